/* Listening sockets and their peers. See endpoint.h. Called by client_socket.c and main.c; owns nothing. */
#include "daemon/clients/endpoint.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/children/rundir.h"

#define BACKLOG    256
#define KEYS       (UINT64_C(1) << 63) /* numbers of peers with a key have this bit */
#define NAMED      (UINT64_C(1) << 62) /* those of users whom a gateway named have this one, and not KEYS */
#define GROUPS_MAX 1024

bool endpoint_is_tcp(const char *endpoint)
{
    return strncmp(endpoint, "tcp://", 6) == 0;
}

static int listen_local(const char *path, int *fd, struct helm_err *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return helm_fail(err, HELM_E_LIMIT, "ipc://%s: path of %zu bytes, sockets take at most %zu", path,
                         strlen(path), sizeof address.sun_path - 1);
    strcpy(address.sun_path, path);
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* The socket file must never exist with more rights than it ends with, hence the mask around bind. */
    const mode_t mask = umask(0117);
    const int bound = *fd < 0 ? -1 : bind(*fd, (struct sockaddr *)&address, sizeof address);
    const int saved = errno;
    umask(mask);
    errno = saved;
    if (bound || listen(*fd, BACKLOG)) return helm_fail_errno(err, "cannot listen on ipc://%s", path);
    return chmod(path, 0660) ? helm_fail_errno(err, "mode of ipc://%s", path) : 0;
}

static int bind_at(const struct addrinfo *where, int *fd)
{
    const int yes = 1;
    *fd = socket(where->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes)) return -1;
    return bind(*fd, where->ai_addr, where->ai_addrlen);
}

/* ADDRESS:PORT, [ADDRESS]:PORT, or *:PORT for all addresses. */
static int bind_tcp(const char *text, int *fd, struct helm_err *err)
{
    char host[256];
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const char *colon = strrchr(text, ':');
    size_t n = colon ? (size_t)(colon - text) : 0;
    const bool brackets = n > 2 && text[0] == '[' && text[n - 1] == ']';
    if (!colon || n == 0 || n >= sizeof host || !colon[1])
        return helm_fail(err, HELM_E_USAGE, "tcp://%s: expected tcp://ADDRESS:PORT", text);
    snprintf(host, sizeof host, "%.*s", (int)(brackets ? n - 2 : n), text + brackets);
    const bool all = strcmp(host, "*") == 0;
    const int rc = getaddrinfo(all ? NULL : host, colon + 1, &hints, &found);
    if (rc) return helm_fail(err, HELM_E_USAGE, "tcp://%s: %s", text, gai_strerror(rc));
    const int bound = bind_at(found, fd);
    const int saved = errno;
    freeaddrinfo(found);
    errno = saved;
    return bound ? helm_fail_errno(err, "cannot listen on tcp://%s", text) : 0;
}

static int listen_tcp(const char *text, int *fd, struct helm_err *err)
{
    const int rc = bind_tcp(text, fd, err);
    if (rc || listen(*fd, BACKLOG) == 0) return rc;
    return helm_fail_errno(err, "cannot listen on tcp://%s", text);
}

int endpoint_check_free(const char *rundir, const struct args_list *endpoints, struct helm_err *err)
{
    int rc = rundir_check(rundir, endpoints, err);
    for (uint32_t i = 0; i < endpoints->count && !rc; i++) {
        int fd = -1;
        if (!endpoint_is_tcp(endpoints->item[i])) continue;
        rc = bind_tcp(endpoints->item[i] + strlen("tcp://"), &fd, err);
        if (fd >= 0) close(fd);
    }
    return rc;
}

int endpoint_listen(const char *endpoint, int *fd, struct helm_err *err)
{
    *fd = -1;
    const int rc = endpoint_is_tcp(endpoint) ? listen_tcp(endpoint + strlen("tcp://"), fd, err)
                                             : listen_local(endpoint + strlen("ipc://"), fd, err);
    if (rc && *fd >= 0) {
        close(*fd);
        *fd = -1;
    }
    return rc;
}

int endpoint_accept(int fd, bool tcp)
{
    const int yes = 1, client = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client >= 0 && tcp) {
        (void)setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        (void)setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    }
    return client;
}

static bool is_member(int fd, const struct ucred *user, uint32_t group)
{
    gid_t groups[GROUPS_MAX];
    socklen_t size = sizeof groups;
    if (group == ENDPOINT_NO_GROUP) return false;
    if (user->gid == group) return true;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size)) return false;
    for (size_t i = 0; i < size / sizeof *groups; i++)
        if (groups[i] == group) return true;
    return false;
}

struct endpoint_peer endpoint_user(int fd, const struct endpoint_groups *groups)
{
    struct ucred user;
    socklen_t size = sizeof user;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &size)) return (struct endpoint_peer){0};
    const bool administers =
        user.uid == 0 || user.uid == geteuid() || is_member(fd, &user, groups->administer);
    return (struct endpoint_peer){.number = (uint64_t)user.uid + 1,
                                  .administers = administers,
                                  .names_users = administers || is_member(fd, &user, groups->name_users)};
}

uint64_t endpoint_key(const uint8_t *key)
{
    uint64_t number;
    memcpy(&number, key, sizeof number);
    return number | KEYS;
}

uint64_t endpoint_named(uint64_t peer, const char *name, const uint8_t secret[ENDPOINT_SECRET])
{
    _Static_assert(crypto_shorthash_KEYBYTES == ENDPOINT_SECRET && crypto_shorthash_BYTES == 8, "SipHash");
    uint64_t number, key[2];
    memcpy(key, secret, sizeof key);
    key[0] ^= peer; /* users of one name whom two gateways named are two */
    crypto_shorthash((uint8_t *)&number, (const uint8_t *)name, strlen(name), (const uint8_t *)key);
    return (number & (NAMED - 1)) | NAMED;
}
