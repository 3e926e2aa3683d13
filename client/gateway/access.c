/* Hosts, origins and keys. See access.h. */
#include "client/gateway/access.h"

#include <arpa/inet.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "common/base/file.h"

#define KEYS_BYTES_MAX ((size_t)1 << 20)
#define KEY_BYTES_MIN  8

static void free_keys(struct access_key *keys, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (keys[i].key) explicit_bzero(keys[i].key, strlen(keys[i].key));
        free(keys[i].key);
        free(keys[i].name);
    }
    free(keys);
}

/* A name that can be shown as it is; or a hash, of a key without one. */
static int name_user(const struct access *access, struct access_key *key, struct helm_err *err)
{
    unsigned char hash[crypto_generichash_BYTES_MIN];
    bool plain = *key->name && strlen(key->name) < sizeof key->user;
    for (const char *c = key->name; *c; c++) plain &= *c > ' ' && *c < 127;
    if (plain) {
        snprintf(key->user, sizeof key->user, "%s", key->name);
        return 0;
    }
    if (crypto_generichash(hash, sizeof hash, (const unsigned char *)key->key, strlen(key->key),
                           access->secret, sizeof access->secret) < 0)
        return helm_fail(err, HELM_E_INTERNAL, "a key cannot be hashed");
    snprintf(key->user, sizeof key->user, "key-%02x%02x%02x%02x%02x%02x", hash[0], hash[1], hash[2], hash[3],
             hash[4], hash[5]);
    return 0;
}

/* One line, cut at its white space. */
static int take_line(struct access *to, char *line, const char *file, size_t number, struct helm_err *err)
{
    char *rest = NULL, *first = strtok_r(line, " \t\r", &rest);
    if (!first || *first == '#') return 0;
    char *second = strtok_r(NULL, " \t\r", &rest);
    if (second && strtok_r(NULL, " \t\r", &rest))
        return helm_fail(err, HELM_E_FORMAT, "%s:%zu: not KEY or NAME KEY", file, number);
    const char *key = second ? second : first;
    if (strlen(key) < KEY_BYTES_MIN)
        return helm_fail(err, HELM_E_FORMAT, "%s:%zu: a key of less than %d characters", file, number,
                         KEY_BYTES_MIN);
    void *grown = realloc(to->keys, (to->key_count + 1) * sizeof *to->keys);
    if (!grown) return helm_fail(err, HELM_E_NOMEM, "no memory for keys");
    to->keys = grown;
    struct access_key *entry = &to->keys[to->key_count++];
    *entry = (struct access_key){.name = strdup(second ? first : ""), .key = strdup(key)};
    if (!entry->name || !entry->key) return helm_fail(err, HELM_E_NOMEM, "no memory for keys");
    return name_user(to, entry, err);
}

int access_read_keys(struct access *access, struct helm_err *err)
{
    struct access fresh = {0};
    struct stat st;
    char *text = NULL, *rest = NULL;
    size_t length = 0, number = 0;
    if (!access->file) return 0;
    if (!access->keys && getrandom(access->secret, sizeof access->secret, 0) < 0)
        return helm_fail_errno(err, "drawing a secret");
    memcpy(fresh.secret, access->secret, sizeof fresh.secret);
    if (stat(access->file, &st) == 0 && (st.st_mode & S_IRWXO))
        return helm_fail(err, HELM_E_PERMISSION, "%s has mode %04o: others may read the keys (chmod o= %s)",
                         access->file, (unsigned)(st.st_mode & 07777), access->file);
    int rc = file_read(access->file, KEYS_BYTES_MAX, &text, &length, err);
    for (char *line = text; rc == 0 && line; line = rest) {
        rest = strchr(line, '\n');
        if (rest) *rest++ = 0;
        rc = take_line(&fresh, line, access->file, ++number, err);
    }
    if (rc == 0 && fresh.key_count == 0) rc = helm_fail(err, HELM_E_FORMAT, "%s: no key in it", access->file);
    if (text) explicit_bzero(text, length);
    free(text);
    if (rc < 0) {
        free_keys(fresh.keys, fresh.key_count);
        return rc;
    }
    free_keys(access->keys, access->key_count);
    access->keys = fresh.keys;
    access->key_count = fresh.key_count;
    return 0;
}

void access_free(struct access *access)
{
    free_keys(access->keys, access->key_count);
    *access = (struct access){0};
}

/* The host of "host:port" or "[address]:port", without brackets. false: it is neither. */
static bool host_part(const char *text, char host[256])
{
    const bool brackets = *text == '[';
    if (brackets) text++;
    const size_t length = strcspn(text, brackets ? "]" : ":");
    const char *after = text + length + (brackets && text[length] == ']');
    if (length == 0 || length > 255 || (brackets && text[length] != ']')) return false;
    if (*after && (*after != ':' || after[1 + strspn(after + 1, "0123456789")])) return false;
    memcpy(host, text, length);
    host[length] = 0;
    return true;
}

bool access_host_allowed(const struct access *access, const char *header)
{
    char host[256];
    unsigned char address[16];
    if (!header || !host_part(header, host)) return false;
    if (strcasecmp(host, "localhost") == 0) return true;
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1) return true;
    for (uint32_t i = 0; access->hosts && i < access->hosts->count; i++)
        if (strcasecmp(host, access->hosts->item[i]) == 0) return true;
    return false;
}

bool access_origin_allowed(const char *origin, const char *host)
{
    if (!origin) return true;
    const char *at = strstr(origin, "://");
    return at && host && strcasecmp(at + 3, host) == 0;
}

bool access_origin_listed(const struct access *access, const char *origin)
{
    for (uint32_t i = 0; origin && access->origins && i < access->origins->count; i++)
        if (strcmp(access->origins->item[i], "*") == 0 || strcasecmp(access->origins->item[i], origin) == 0)
            return true;
    return false;
}

int access_check_origins(const struct access *access, struct helm_err *err)
{
    for (uint32_t i = 0; access->origins && i < access->origins->count; i++) {
        const char *origin = access->origins->item[i], *at = strstr(origin, "://");
        if (strcmp(origin, "*") != 0 && (!at || at == origin || !at[3] || strpbrk(at + 3, "/ ,")))
            return helm_fail(
                err, HELM_E_USAGE,
                "--allow-origin %s: write * or SCHEME://HOST[:PORT], such as https://chat.example", origin);
    }
    return 0;
}

/* In a time that does not tell how much of it is right. */
static bool same_key(const char *a, const char *b)
{
    const size_t length = strlen(a), other = strlen(b);
    unsigned char differs = length != other;
    for (size_t i = 0; i < length; i++) differs |= (unsigned char)(a[i] ^ b[other ? i % other : 0]);
    return !differs;
}

static const struct access_key *key_of(const struct access *access, const char *key)
{
    const struct access_key *found = NULL;
    for (size_t i = 0; key && i < access->key_count; i++)
        if (same_key(access->keys[i].key, key)) found = &access->keys[i];
    return found;
}

/* The key in an Authorization header; NULL: there is none. */
static const char *bearer(const char *authorization)
{
    static const char scheme[] = "Bearer ";
    const bool has = authorization && strncasecmp(authorization, scheme, strlen(scheme)) == 0;
    return has ? authorization + strlen(scheme) : NULL;
}

const char *access_key_name(const struct access *access, const char *authorization)
{
    return access_name_of(access, bearer(authorization));
}

const char *access_name_of(const struct access *access, const char *key)
{
    const struct access_key *found = key_of(access, key);
    if (!access->file) return "";
    return found ? found->name : NULL;
}

const char *access_user(const struct access *access, const char *authorization, const char *key)
{
    const struct access_key *found = key_of(access, bearer(authorization));
    if (!found) found = key_of(access, key);
    return found ? found->user : NULL;
}
