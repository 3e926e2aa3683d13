/* Files of CURVE keys. See curve_keys.h. Called by client_socket.c; owns the list. */
#include "daemon/clients/curve_keys.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zmq.h>

#include "common/base/file.h"

#define KEY_TEXT    40 /* a Z85 key */
#define CLIENTS_MAX 1024

int curve_keys_read_secret(const char *path, struct curve_server *server, struct helm_err *err)
{
    struct stat st;
    if (stat(path, &st)) return helm_fail_errno(err, "curve-secret-key-file %s", path);
    if (st.st_mode & (S_IRWXG | S_IRWXO))
        return helm_fail(err, HELM_E_PERMISSION,
                         "curve-secret-key-file %s has mode %04o: only its owner may have access (chmod 600)",
                         path, (unsigned)(st.st_mode & 07777));
    char *text = NULL;
    size_t length = 0;
    int rc = file_read(path, 4096, &text, &length, err);
    if (rc) return rc;
    const size_t n = strcspn(text, "\r\n \t");
    const bool alone = strspn(text + n, "\r\n \t") == length - n;
    text[n] = 0;
    if (n != KEY_TEXT || !alone || !zmq_z85_decode(server->secret, text) ||
        crypto_scalarmult_base(server->public, server->secret))
        rc = helm_fail(err, HELM_E_FORMAT, "curve-secret-key-file %s: expected one Z85 key of %d characters",
                       path, KEY_TEXT);
    sodium_memzero(text, length);
    free(text);
    return rc;
}

static bool is_word(const char *text, size_t bytes, const char *word)
{
    return bytes == strlen(word) && strncmp(text, word, bytes) == 0;
}

static int take_line(const char *path, uint32_t line, char *text, struct curve_keys *keys,
                     struct helm_err *err)
{
    text += strspn(text, " \t\r");
    const size_t n = strcspn(text, " \t\r");
    if (n == 0 || *text == '#') return 0;
    const char *word = text[n] ? text + n + 1 : text + n;
    text[n] = 0;
    word += strspn(word, " \t\r");
    const size_t word_bytes = strcspn(word, " \t\r");
    if (keys->count == CLIENTS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%s: more than %d keys", path, CLIENTS_MAX);
    struct curve_client_key *key = &keys->client[keys->count];
    if (n != KEY_TEXT || !zmq_z85_decode(key->key, text))
        return helm_fail(err, HELM_E_FORMAT, "%s: key %u is not a Z85 key of %d characters", path, line,
                         KEY_TEXT);
    const bool comment = word_bytes == 0 || *word == '#';
    key->administers = !comment && is_word(word, word_bytes, "admin");
    key->names_users = key->administers || (!comment && is_word(word, word_bytes, "gateway"));
    if (!comment && !key->names_users)
        return helm_fail(err, HELM_E_FORMAT,
                         "%s: after key %u stands '%.*s', which may be 'admin', 'gateway' or '# ...'", path,
                         line, (int)(word_bytes < 32 ? word_bytes : 32), word);
    keys->count++;
    return 0;
}

int curve_keys_read_clients(const char *path, struct curve_keys *keys, struct helm_err *err)
{
    char *text = NULL, *rest = NULL;
    size_t length = 0;
    uint32_t line = 0;
    *keys = (struct curve_keys){0};
    int rc = file_read(path, 1 << 20, &text, &length, err);
    if (rc) return rc;
    keys->client = calloc(CLIENTS_MAX, sizeof *keys->client);
    if (!keys->client) rc = helm_fail(err, HELM_E_NOMEM, "no memory for %s", path);
    for (char *p = text; !rc && (p = strtok_r(p, "\n", &rest)); p = NULL)
        rc = take_line(path, ++line, p, keys, err);
    if (!rc && keys->count == 0)
        rc = helm_fail(err, HELM_E_FORMAT, "%s: no key in it: nobody could connect", path);
    free(text);
    if (rc) curve_keys_free(keys);
    return rc;
}

void curve_keys_free(struct curve_keys *keys)
{
    free(keys->client);
    *keys = (struct curve_keys){0};
}

const struct curve_client_key *curve_keys_find(const struct curve_keys *keys, const uint8_t key[CURVE_KEY])
{
    for (uint32_t i = 0; i < keys->count; i++)
        if (memcmp(keys->client[i].key, key, CURVE_KEY) == 0) return &keys->client[i];
    return NULL;
}
