/* A crowd of clients in one process: COUNT connections that ask an HTTP server for PATH, each again as soon
 * as it has its answer, until SECONDS after all have begun; on a machine that is so busy that none was
 * answered by then, until one is. `new`: a new connection for each request; `kept`: the same one. Prints how
 * many answers came, and how many connections ended without one. Called by gateway_neighbours.py, for what
 * one client can do to others.
 *
 *     fake_crowd PORT new|kept COUNT SECONDS PATH [ADDRESS it comes from] */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS 16384
#define WAITS_S     30 /* for a first answer */

static struct {
    int epoll_fd;
    struct sockaddr_in to, from;
    bool kept, asked[DESCRIPTORS], answered[DESCRIPTORS];
    char request[512];
    size_t length;
    unsigned long answers, without;
} crowd;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void join(void)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0 || fd >= DESCRIPTORS) exit(2);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data = {.fd = fd}};
    const struct linger reset = {1, 0}; /* no port waits for late packets */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (bind(fd, (const struct sockaddr *)&crowd.from, sizeof crowd.from) < 0 ||
        (connect(fd, (const struct sockaddr *)&crowd.to, sizeof crowd.to) < 0 && errno != EINPROGRESS) ||
        epoll_ctl(crowd.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        exit(2);
    crowd.asked[fd] = crowd.answered[fd] = false;
}

static bool ask(int fd)
{
    crowd.asked[fd] = true;
    return write(fd, crowd.request, crowd.length) == (ssize_t)crowd.length;
}

/* Whether the connection goes on. Answers come in one piece each, or the server closes after one. */
static bool hear(int fd)
{
    char piece[65536];
    ssize_t n;
    while ((n = read(fd, piece, sizeof piece)) > 0)
        if (crowd.kept) {
            crowd.answers++;
            if (!ask(fd)) return false;
        } else {
            crowd.answered[fd] = true;
        }
    if (n < 0 && errno == EAGAIN) return true;
    if (!crowd.kept && crowd.answered[fd])
        crowd.answers++;
    else
        crowd.without++;
    return false;
}

static void see(const struct epoll_event *event)
{
    const int fd = event->data.fd;
    bool goes_on = !(event->events & EPOLLERR);
    if (!goes_on) crowd.without++;
    if (goes_on && event->events == EPOLLOUT && !crowd.asked[fd]) goes_on = ask(fd);
    if (goes_on && event->events & EPOLLIN) goes_on = hear(fd);
    if (goes_on) return;
    close(fd);
    join();
}

int main(int argc, char **argv)
{
    const struct rlimit descriptors = {DESCRIPTORS, DESCRIPTORS};
    struct epoll_event events[256];
    if (argc < 6) return 2;
    (void)setrlimit(RLIMIT_NOFILE, &descriptors);
    crowd.epoll_fd = epoll_create1(0);
    crowd.kept = strcmp(argv[2], "kept") == 0;
    crowd.to = crowd.from = (struct sockaddr_in){.sin_family = AF_INET};
    crowd.to.sin_port = htons((uint16_t)atoi(argv[1]));
    inet_pton(AF_INET, "127.0.0.1", &crowd.to.sin_addr);
    inet_pton(AF_INET, argc > 6 ? argv[6] : "127.0.0.1", &crowd.from.sin_addr);
    crowd.length =
        (size_t)snprintf(crowd.request, sizeof crowd.request, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n",
                         argv[5], crowd.kept ? "" : "Connection: close\r\n");
    const double begin = now();
    for (int i = 0; i < atoi(argv[3]); i++) join();
    const double end = now() + atof(argv[4]);
    while (now() < end + (crowd.answers ? 0 : WAITS_S)) {
        const int count = epoll_wait(crowd.epoll_fd, events, 256, 100);
        for (int i = 0; i < count; i++) see(&events[i]);
    }
    printf("%lu answers, %lu connections without one, %.0f answers a second\n", crowd.answers, crowd.without,
           (double)crowd.answers / (now() - begin));
    return 0;
}
