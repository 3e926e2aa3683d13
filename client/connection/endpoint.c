/* Endpoints as text and the probe for a listener. See endpoint.h. Called by connection.c. Owns nothing. */
#include "client/connection/endpoint.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/connection/trust.h"
#include "common/base/units.h"

#define IPC "ipc://"
#define TCP "tcp://"

static int put(char out[HELM_ENDPOINT_MAX], struct helm_err *err, const char *prefix, const char *middle,
               const char *suffix)
{
    int n = snprintf(out, HELM_ENDPOINT_MAX, "%s%s%s", prefix, middle, suffix);
    if (n < 0 || n >= HELM_ENDPOINT_MAX) {
        out[0] = 0;
        return helm_fail(err, HELM_E_LIMIT, "the default endpoint is longer than %d bytes",
                         HELM_ENDPOINT_MAX - 1);
    }
    return 0;
}

int endpoint_default(const char *system_socket, char endpoint[HELM_ENDPOINT_MAX], struct helm_err *err)
{
    endpoint[0] = 0;
    const char *value = getenv("HELM_ENDPOINT");
    if (value && *value) return put(endpoint, err, value, "", "");
    struct stat st;
    if (stat(system_socket, &st) == 0) return put(endpoint, err, IPC, system_socket, "");
    bool forbidden = errno == EACCES; /* its directory admits only users that may use the daemon */
    char uid[24];
    snprintf(uid, sizeof uid, "%lu", (unsigned long)getuid());
    value = getenv("XDG_RUNTIME_DIR");
    int rc = value && *value ? put(endpoint, err, IPC, value, "/helm/helmd.sock")
                             : put(endpoint, err, IPC "/tmp/helm-", uid, "/helmd.sock");
    /* with no daemon of one's own either, what keeps this user from the system's is the thing to be told */
    if (rc == 0 && forbidden && stat(endpoint + strlen(IPC), &st) < 0)
        rc = put(endpoint, err, IPC, system_socket, "");
    return rc;
}

int helm_default_endpoint(char endpoint[HELM_ENDPOINT_MAX], struct helm_err *err)
{
    return endpoint_default("/run/helm/helmd.sock", endpoint, err);
}

int endpoint_check(const char *endpoint, bool has_keys, struct helm_err *err)
{
    size_t length = strlen(endpoint);
    if (length >= HELM_ENDPOINT_MAX)
        return helm_fail(err, HELM_E_USAGE, "an endpoint of %zu bytes exceeds the limit of %d", length,
                         HELM_ENDPOINT_MAX - 1);
    if (strncmp(endpoint, IPC, strlen(IPC)) == 0) {
        struct sockaddr_un address;
        size_t path = length - strlen(IPC);
        if (path == 0) return helm_fail(err, HELM_E_USAGE, "endpoint '%s' has no path", endpoint);
        if (path >= sizeof address.sun_path)
            return helm_fail(err, HELM_E_USAGE,
                             "endpoint '%s': a socket path of %zu bytes exceeds the limit of %zu", endpoint,
                             path, sizeof address.sun_path - 1);
        return 0;
    }
    if (strncmp(endpoint, TCP, strlen(TCP)) == 0) {
        const char *colon = strrchr(endpoint + strlen(TCP), ':');
        uint64_t port;
        if (!colon || colon == endpoint + strlen(TCP) || !colon[1] ||
            strspn(colon + 1, "0123456789") != strlen(colon + 1))
            return helm_fail(err, HELM_E_USAGE, "endpoint '%s' is not tcp://HOST:PORT", endpoint);
        if (units_parse_u64("the port", colon + 1, 1, 65535, &port, err))
            return helm_err_prefix(err, "endpoint '%s'", endpoint);
        if (!has_keys)
            return helm_fail(
                err, HELM_E_USAGE,
                "endpoint '%s' needs CURVE keys: the daemon's public key and a secret key of one's own",
                endpoint);
        return 0;
    }
    return helm_fail(err, HELM_E_USAGE, "endpoint '%s' is neither ipc://PATH nor tcp://HOST:PORT", endpoint);
}

/* Which users may connect, by the socket's mode or that of the folder that keeps this one out. */
static int fail_permission(const char *endpoint, struct helm_err *err)
{
    char at[HELM_ENDPOINT_MAX];
    struct stat st;
    snprintf(at, sizeof at, "%s", endpoint + strlen(IPC));
    int seen = stat(at, &st);
    for (char *slash; seen && errno == EACCES && (slash = strrchr(at, '/')) && slash != at;) {
        *slash = 0;
        seen = stat(at, &st);
    }
    if (seen) return helm_fail(err, HELM_E_PERMISSION, "%s: not permitted for this user", endpoint);
    const struct passwd *owner = getpwuid(st.st_uid);
    const struct group *group = getgrgid(st.st_gid);
    if (!(st.st_mode & (S_ISDIR(st.st_mode) ? S_IXGRP : S_IWGRP)) || !group)
        return helm_fail(err, HELM_E_PERMISSION,
                         "%s: not permitted for this user; user '%s' alone may connect", endpoint,
                         owner ? owner->pw_name : "?");
    char name[64];
    snprintf(name, sizeof name, "%s", group->gr_name);
    const struct passwd *self = getpwuid(geteuid());
    return helm_fail(
        err, HELM_E_PERMISSION,
        "%s: not permitted for this user; members of group '%s' may connect: `sudo usermod -aG %s "
        "%s`, then log in anew",
        endpoint, name, name, self ? self->pw_name : "USER");
}

int endpoint_probe(const char *endpoint, struct helm_err *err)
{
    if (strncmp(endpoint, IPC, strlen(IPC)) != 0) return 0;
    const char *path = endpoint + strlen(IPC);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int rc = trust_place(endpoint, err);
    if (rc) return rc;
    size_t length = strlen(path);
    memcpy(address.sun_path, path, length);
    socklen_t size = sizeof address;
    if (path[0] == '@') { /* ZeroMQ's spelling of an abstract socket: a leading NUL, no terminator */
        address.sun_path[0] = 0;
        size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return helm_fail_errno(err, "opening a socket");
    if (connect(fd, (const struct sockaddr *)&address, size) == 0) {
        rc = trust_peer(fd, endpoint, err);
    } else {
        switch (errno) {
        case EAGAIN:
            break; /* a full backlog: there is a listener */
        case ENOENT:
            rc = helm_fail(err, HELM_E_NOT_FOUND, "no daemon at %s: there is no such socket", endpoint);
            break;
        case ECONNREFUSED:
            rc = helm_fail(err, HELM_E_NOT_FOUND, "no daemon at %s: nobody listens on that socket", endpoint);
            break;
        case EACCES:
        case EPERM:
            rc = fail_permission(endpoint, err);
            break;
        default:
            rc = helm_fail(err, HELM_E_NOT_FOUND, "no daemon at %s: %s", endpoint, strerror(errno));
            break;
        }
    }
    close(fd);
    return rc;
}
