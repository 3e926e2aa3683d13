/* The pooling that a model's files state: a GGUF file's pooling_type, or sentence-transformers'
 * 1_Pooling/config.json. Called by info.c; its result is the default of requests. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/gateway.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/model/gguf.h"

#define CONFIG_MAX ((size_t)1 << 20)

static void take(struct ask_model *m, const char *file, const char *how)
{
    if (strcmp(how, "mean") == 0 || strcmp(how, "last") == 0)
        m->pooling = *how == 'l' ? HELM_POOLING_LAST : HELM_POOLING_MEAN;
    else
        snprintf(m->pooling_why, sizeof m->pooling_why,
                 "%.300s says that embeddings are pooled by '%.40s', and HELM has \"mean\" and \"last\"",
                 file, how);
}

static int read_gguf(struct ask_model *m, const char *path, struct helm_err *err)
{
    static const char *const kinds[] = {NULL, "mean", "cls", "last", "rank"}; /* 0: none of them */
    struct gguf header;
    char architecture[64] = "", key[96];
    uint64_t kind = 0;
    int rc = gguf_open(path, &header, err);
    if (!rc && header.values)
        rc = gguf_get_string(&header, "general.architecture", true, architecture, sizeof architecture, err);
    snprintf(key, sizeof key, "%s.pooling_type", architecture);
    if (!rc && header.values) rc = gguf_get_u64(&header, key, false, 0, 4, &kind, err);
    if (!rc && kinds[kind]) take(m, path, kinds[kind]);
    gguf_free(&header);
    return rc;
}

static int read_transformers(struct ask_model *m, const char *folder, struct helm_err *err)
{
    static const struct {
        const char *key, *how;
    } modes[] = {{"pooling_mode_lasttoken", "last"},
                 {"pooling_mode_mean_tokens", "mean"},
                 {"pooling_mode_cls_token", "cls"},
                 {"pooling_mode_max_tokens", "max"},
                 {"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len"},
                 {"pooling_mode_weightedmean_tokens", "weightedmean"}};
    static const char name[] = "config.json", where[] = "1_Pooling/config.json";
    char inside[PATH_MAX];
    char *text = NULL;
    size_t length = 0;
    json_t *object = NULL;
    if (snprintf(inside, sizeof inside, "%s/1_Pooling", folder) >= (int)sizeof inside ||
        !file_is_folder(inside))
        return 0;
    int rc = file_read_inside(inside, name, CONFIG_MAX, &text, &length, err);
    if (rc == HELM_E_NOT_FOUND) {
        *err = (struct helm_err){0};
        return 0;
    }
    if (rc == 0) rc = json_parse_bounded(where, text, length, CONFIG_MAX, &object, err);
    for (size_t i = 0; rc == 0 && i < sizeof modes / sizeof *modes; i++)
        if (json_is_true(json_object_get(object, modes[i].key))) {
            take(m, where, modes[i].how);
            break;
        }
    json_decref(object);
    free(text);
    return rc;
}

int info_read_pooling(struct ask_model *m, const char *path, struct helm_err *err)
{
    int rc = file_is_folder(path) ? read_transformers(m, path, err) : 0;
    return rc ? rc : read_gguf(m, path, err);
}
