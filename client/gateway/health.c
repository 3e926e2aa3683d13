/* A plain head is read and answered. See health.h. A head that another reader could read otherwise is
 * libmicrohttpd's and framing.c's; the rights of another site's page are access.c's. */
#include "client/gateway/health.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "client/gateway/routes.h"
#include "common/base/log.h"

#define HEAD_MAX 1024 /* bytes of a plain head */

static const char *const begins[] = {"GET /health", "GET /v1/health", "HEAD /health", "HEAD /v1/health"};

static const char *after_path(const char *head, size_t length)
{
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        const size_t bytes = strlen(begins[i]);
        if (length > bytes && memcmp(head, begins[i], bytes) == 0 &&
            (head[bytes] == ' ' || head[bytes] == '?'))
            return head + bytes;
    }
    return NULL;
}

enum health_asks health_asks(int fd)
{
    char head[16];
    const ssize_t n = recv(fd, head, sizeof head, MSG_PEEK);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return HEALTH_SILENT;
    return n > 0 && after_path(head, (size_t)n) ? HEALTH_ASKED : HEALTH_OTHER;
}

struct plain {
    const char *host;
    bool closes; /* the client asks once only */
};

/* A line of a plain head: a name of letters, digits and '-', a colon, a value without control characters. */
static bool is_plain_line(char *line, struct plain *plain)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-";
    static const char *const decisive[] = {"Content-Length", "Transfer-Encoding",
                                           "Expect",         "Upgrade",
                                           "Origin",         "Trailer"};
    const size_t bytes = strspn(line, letters);
    if (!bytes || line[bytes] != ':') return false;
    char *value = line + bytes + 1;
    for (const char *c = value; *c; c++)
        if (((unsigned char)*c < 32 && *c != '\t') || *c == 127) return false;
    line[bytes] = 0;
    for (size_t i = 0; i < sizeof decisive / sizeof *decisive; i++)
        if (strcasecmp(line, decisive[i]) == 0) return false;
    value += strspn(value, " \t");
    if (strcasecmp(line, "Connection") == 0) plain->closes |= strcasecmp(value, "keep-alive") != 0;
    if (strcasecmp(line, "Host") != 0) return true;
    const bool first = !plain->host;
    plain->host = value;
    return first;
}

/* head[length] is 0. Takes it to pieces. */
static bool is_plain(const struct gateway *g, char *head, size_t length, struct plain *plain)
{
    static const char version[] = " HTTP/1.1\r\n";
    const size_t bytes = sizeof version - 1;
    const char *path_end = after_path(head, length);
    if (strlen(head) != length || !path_end || strncmp(path_end, version, bytes) != 0) return false;
    char *line = head + (path_end - head) + bytes, *end;
    for (; (end = strstr(line, "\r\n")) && end != line; line = end + 2) {
        *end = 0;
        if (!is_plain_line(line, plain)) return false;
    }
    return end && end + 2 == head + length && plain->host && access_host_allowed(&g->access, plain->host);
}

/* The answer in `to`; its status. 0: memory is short. */
static int write_answer(struct gateway *g, bool body, bool closes, char to[512])
{
    struct cli_text text = {0};
    struct tm tm;
    char date[40] = "";
    const time_t now = time(NULL);
    const int status = info_write_health(g, &text);
    if (gmtime_r(&now, &tm)) strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    if (!text.failed)
        snprintf(to, 512,
                 "HTTP/1.1 %s\r\nDate: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                 "X-Content-Type-Options: nosniff\r\nCache-Control: no-cache\r\n%s%s\r\n%s",
                 status == 200 ? "200 OK" : "503 Service Unavailable", date, text.length,
                 status == 200 ? "" : "Retry-After: 1\r\n", closes ? "Connection: close\r\n" : "",
                 body ? text.data : "");
    const bool good = !text.failed;
    cli_text_free(&text);
    return good ? status : 0;
}

enum health_answer health_answer(struct gateway *g, int fd)
{
    struct plain plain = {0};
    char head[HEAD_MAX + 1], answer[512], allow[64];
    const char *named;
    const ssize_t length = recv(fd, head, sizeof head - 1, MSG_PEEK);
    if (length <= 0 || length == HEAD_MAX) return HEALTH_NONE;
    head[length] = 0;
    const bool body = *head == 'G', bare = strncmp(head + (body ? 4 : 5), "/health", 7) == 0;
    if (!is_plain(g, head, (size_t)length, &plain)) return HEALTH_NONE;
    const int status = write_answer(g, body, plain.closes, answer);
    if (!status || recv(fd, head, (size_t)length, 0) != length) return HEALTH_NONE;
    const struct route *route = routes_find("GET", bare ? "/health" : "/v1/health", &named, allow);
    g->metrics.requests[routes_row(route)][status / 100]++;
    log_debug("%s %s: %d", body ? "GET" : "HEAD", route->path, status);
    const ssize_t bytes = (ssize_t)strlen(answer);
    const bool taken =
        send(fd, answer, (size_t)bytes, MSG_NOSIGNAL) == bytes; /* otherwise it does not read */
    return taken && !plain.closes ? HEALTH_MORE : HEALTH_CLOSE;
}
