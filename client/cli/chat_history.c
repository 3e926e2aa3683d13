/* A conversation in memory and in files. See chat.h. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/chat.h"
#include "common/base/grow.h"
#include "common/base/json.h"

#define FILE_MAX ((size_t)64 << 20)

static const char system_role[] = "system";
static const char *const roles[] = {system_role, "user", "assistant"};
#define ROLES (sizeof roles / sizeof *roles)

int chat_remember(struct chat_history *h, const char *role, const char *text, size_t length,
                  struct helm_err *err)
{
    char *copy = GROW(h->messages, h->count, h->space) ? strndup(text, length) : NULL;
    if (!copy) return helm_fail(err, HELM_E_NOMEM, "no memory for the conversation");
    h->messages[h->count++] = (struct helm_chat_message){role, copy};
    return 0;
}

void chat_forget_last(struct chat_history *h)
{
    free((char *)h->messages[--h->count].content);
}

const char *chat_system(const struct chat_history *h)
{
    return h->count && strcmp(h->messages[0].role, system_role) == 0 ? h->messages[0].content : NULL;
}

void chat_clear(struct chat_history *h)
{
    const size_t kept = chat_system(h) ? 1 : 0;
    while (h->count > kept) chat_forget_last(h);
}

void chat_free(struct chat_history *h)
{
    while (h->count) chat_forget_last(h);
    free(h->messages);
    *h = (struct chat_history){0};
}

int chat_set_system(struct chat_history *h, const char *text, struct helm_err *err)
{
    const bool there = chat_system(h) != NULL;
    int rc = text ? chat_remember(h, system_role, text, strlen(text), err) : 0;
    if (rc) return rc;
    if (there) {
        free((char *)h->messages[0].content);
        memmove(h->messages, h->messages + 1, --h->count * sizeof *h->messages);
    }
    if (!text) return 0;
    const struct helm_chat_message first = h->messages[h->count - 1];
    memmove(h->messages + 1, h->messages, (h->count - 1) * sizeof *h->messages);
    h->messages[0] = first;
    return 0;
}

static json_t *to_json(const struct chat_history *h)
{
    json_t *list = json_array();
    for (size_t i = 0; i < h->count && list; i++) {
        const struct helm_chat_message *m = &h->messages[i];
        json_t *one = json_pack("{s:s, s:s}", "role", m->role, "content", m->content);
        if (json_array_append_new(list, one)) {
            json_decref(list);
            list = NULL;
        }
    }
    return list ? json_pack("{s:o}", "messages", list) : NULL;
}

int chat_save(const struct chat_history *h, const char *path, struct helm_err *err)
{
    char beside[PATH_MAX];
    json_t *json = to_json(h);
    if (!json) return helm_fail(err, HELM_E_NOMEM, "no memory, or a message that is not UTF-8");
    const int n = snprintf(beside, sizeof beside, "%s.%ld~", path, (long)getpid());
    const int fd = n < PATH_MAX ? open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    int rc = fd < 0 ? helm_fail_errno(err, "%s", path) : 0;
    if (!rc && (json_dumpfd(json, fd, JSON_INDENT(1) | JSON_PRESERVE_ORDER) || write(fd, "\n", 1) != 1))
        rc = helm_fail_errno(err, "writing %s", path);
    if (fd >= 0 && close(fd) && !rc) rc = helm_fail_errno(err, "writing %s", path);
    if (!rc && rename(beside, path)) rc = helm_fail_errno(err, "%s", path);
    if (rc && fd >= 0) unlink(beside);
    json_decref(json);
    return rc;
}

static int take_message(struct chat_history *h, const json_t *object, struct helm_err *err)
{
    const char *role = NULL, *content = NULL;
    int rc = json_is_object(object) ? json_get_string(object, "role", true, &role, err)
                                    : helm_fail(err, HELM_E_FORMAT, "not an object");
    if (!rc) rc = json_get_string(object, "content", true, &content, err);
    if (rc) return rc;
    for (size_t i = 0; i < ROLES; i++) {
        if (strcmp(role, roles[i]) != 0) continue;
        if (i == 0 && h->count)
            return helm_fail(err, HELM_E_FORMAT, "a system message that is not the first");
        return chat_remember(h, roles[i], content, strlen(content), err);
    }
    return helm_fail(err, HELM_E_FORMAT, "role '%.40s' is none of system, user and assistant", role);
}

int chat_load(struct chat_history *h, const char *path, struct helm_err *err)
{
    json_t *json = NULL;
    struct chat_history loaded = {0};
    int rc = json_read_file(path, FILE_MAX, &json, err);
    if (rc) return rc;
    const json_t *list = json_is_array(json) ? json : json_object_get(json, "messages");
    if (!json_is_array(list)) rc = helm_fail(err, HELM_E_FORMAT, "no list of messages");
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        rc = take_message(&loaded, json_array_get(list, i), err);
        if (rc) helm_err_prefix(err, "message %zu", i);
    }
    json_decref(json);
    if (rc) {
        chat_free(&loaded);
        return helm_err_prefix(err, "%s", path);
    }
    chat_free(h);
    *h = loaded;
    return 0;
}
