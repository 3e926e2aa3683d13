/* Which requests are admitted: the Host and Origin headers, and API keys from a file. Called by server.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "client/gateway/users.h"
#include "common/base/args.h"

struct access_key {
    char *name, *key;
    char user[USERS_NAME]; /* users.h: the name, or where there is none, key- and a hash */
};

struct access {
    const char *file; /* NULL: no keys are asked for */
    const struct args_list *hosts;
    const struct args_list *origins; /* of pages of other sites that may ask; "*" is any */
    struct access_key *keys;
    size_t key_count;
    uint8_t secret[16]; /* of those hashes: what is shown of a key tells nothing of it */
};

/* Reads access->file: a line is KEY or NAME KEY; what begins with # is none. Only its owner and group may
 * read it. On failure the keys that were there stay. */
HELM_MUST_CHECK int access_read_keys(struct access *access, struct helm_err *err);
void access_free(struct access *access);

/* Pages of other sites reach a server on this machine by a name of their own: only IP addresses, localhost
 * and --host are taken. NULL: no header. */
bool access_host_allowed(const struct access *access, const char *host);
/* A browser says whose page asks; NULL (it is no browser) and the gateway's own page are allowed. */
bool access_origin_allowed(const char *origin, const char *host);
/* Whether --allow-origin names it. */
bool access_origin_listed(const struct access *access, const char *origin);
/* Whether each of --allow-origin is "*" or SCHEME://HOST[:PORT]. */
HELM_MUST_CHECK int access_check_origins(const struct access *access, struct helm_err *err);
/* The name of the key in an Authorization header ("" for one without), NULL: none fits. */
const char *access_key_name(const struct access *access, const char *authorization);
/* The user of the key in either of two headers; NULL: none fits, or none is asked for. Keys with one name are
 * one user. */
const char *access_user(const struct access *access, const char *authorization, const char *key);
/* The same of a bare key. */
const char *access_name_of(const struct access *access, const char *key);
