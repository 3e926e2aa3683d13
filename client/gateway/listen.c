/* Where the gateway listens: an address as it is written, and its socket. See listen.h. */
#include "client/gateway/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/units.h"

/* "HOST:PORT" or "[ADDRESS]:PORT". */
static int split_listen(const char *listen, char host[256], const char **port, struct helm_err *err)
{
    const char *colon = strrchr(listen, ':'), *digits = colon ? colon + 1 : listen;
    const bool brackets = *listen == '[';
    const size_t length = colon ? (size_t)(colon - listen) : 0;
    struct helm_err none = {0};
    uint64_t number;
    const bool is_port = *digits && strspn(digits, "0123456789") == strlen(digits);
    const bool in_range = is_port && !units_parse_u64("", digits, 0, 65535, &number, &none);
    if (is_port && !in_range)
        return helm_fail(err, HELM_E_USAGE,
                         "--listen %s: ports end at 65535: write one from 1024 on, such as %.*s:8080", listen,
                         (int)(length ? length : 9), length ? listen : "127.0.0.1");
    if (!is_port || length < 1 || length > 255 || (brackets && colon[-1] != ']') || strchr(listen, '/'))
        return helm_fail(
            err, HELM_E_USAGE,
            "--listen %s: not HOST:PORT: write 127.0.0.1:%s for clients on this machine, 0.0.0.0:%s "
            "for all (with --api-keys)",
            listen, in_range ? digits : "8080", in_range ? digits : "8080");
    snprintf(host, 256, "%.*s", (int)(length - (brackets ? 2 : 0)), listen + brackets);
    *port = digits;
    return 0;
}

int listen_check(const char *listen, struct helm_err *err)
{
    char host[256];
    const char *port;
    return split_listen(listen, host, &port, err);
}

bool listen_is_loopback(const char *listen)
{
    char host[256];
    const char *port;
    struct helm_err err = {0};
    if (split_listen(listen, host, &port, &err) < 0) return false;
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

/* Why it cannot be listened there, by errno, and what to write instead. */
static int fail_listen(const char *listen_at, const char *port, struct helm_err *err)
{
    const int host = (int)(port - listen_at), number = atoi(port);
    switch (errno) {
    case EADDRINUSE:
        return helm_fail(
            err, HELM_E_IO,
            "--listen %s: another program has that port: write another, such as %.*s%d, or %.*s0 for "
            "any that is free",
            listen_at, host, listen_at, number < 65535 ? number + 1 : 8080, host, listen_at);
    case EACCES:
        return helm_fail(
            err, HELM_E_IO,
            "--listen %s: ports below 1024 are not for this user: write one from 1024 on, such as "
            "%.*s8080",
            listen_at, host, listen_at);
    case EADDRNOTAVAIL:
        return helm_fail(
            err, HELM_E_IO,
            "--listen %s: this machine has no such address: write 127.0.0.1:%s, or 0.0.0.0:%s for "
            "all that it has",
            listen_at, port, port);
    default:
        return helm_fail_errno(err, "--listen %s", listen_at);
    }
}

int listen_bind(const char *listen_at, int *fd, struct helm_err *err)
{
    char host[256];
    const char *port;
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE};
    const int on = 1;
    int rc = split_listen(listen_at, host, &port, err);
    if (rc < 0) return rc;
    const int trouble = getaddrinfo(host, port, &hints, &found);
    if (trouble) return helm_fail(err, HELM_E_USAGE, "--listen %s: %s", listen_at, gai_strerror(trouble));
    *fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(*fd, found->ai_addr, found->ai_addrlen) < 0)
        rc = fail_listen(listen_at, port, err);
    freeaddrinfo(found);
    return rc;
}

/* Its port is known only now, where any was wanted. */
int listen_start(const char *listen_at, int fd, char at[128], struct helm_err *err)
{
    char name[INET6_ADDRSTRLEN + 2] = "", service[8] = "";
    struct sockaddr_storage bound;
    socklen_t bound_size = sizeof bound;
    if (listen(fd, SOMAXCONN) < 0 || getsockname(fd, (struct sockaddr *)&bound, &bound_size) < 0)
        return fail_listen(listen_at, strrchr(listen_at, ':') + 1, err);
    if (getnameinfo((struct sockaddr *)&bound, bound_size, name, sizeof name, service, sizeof service,
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(at, 128, strchr(name, ':') ? "[%s]:%s" : "%s:%s", name, service);
    return 0;
}
