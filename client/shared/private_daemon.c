/* Starting and ending a private helmd. See private_daemon.h. Owns the child, its directory, the ready pipe
 * and, until it is ready, the socket on which it says what it is doing, as it would to systemd. */
#include "client/shared/private_daemon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/printable.h"
#include "common/base/start.h"
#include "common/base/units.h"

extern char **environ;

#define PREFIX        "helm-cli-" /* of the directory's name */
#define STALE_SECONDS 60
#define READY_FD      3 /* helmd's number for the ready pipe */
#define READY_FD_TEXT "3"
#define READY_LINE    (HELM_ERR_TEXT + HELM_ENDPOINT_MAX)
#define STOP_SECONDS  10
#define LOOK_MS       250 /* how often the progress line is renewed */
#define ARGS_MAX      (40 + ARGS_LIST_MAX)
#define LOG_TAIL      4096
#define STATUS_TEXT   400                         /* of what helmd says it is doing */
#define CHECKING      "checking int8 activations" /* its status begins so after loading (loop.c) */

struct private_daemon {
    pid_t pid; /* 0: not running */
    int ready_fd;
    int notify_fd; /* STATUS=... of helmd; -1 once it is ready */
    int lock_fd;   /* of the directory: says that it is in use */
    bool own_log;  /* its stderr goes to directory/log */
    char directory[PATH_MAX];
    char endpoint[HELM_ENDPOINT_MAX];
    char program[PATH_MAX];
    char vram[24], host_memory[24], ctx[24], threads[24];
};

const char *private_daemon_endpoint(const struct private_daemon *daemon)
{
    return daemon->endpoint;
}

/* helmd as it was built or installed: in the folder of this very program. */
static int find_program(struct private_daemon *daemon, struct helm_err *err)
{
    static const char name[] = "helmd";
    int rc = start_check_proc(err);
    if (rc) return rc;
    ssize_t n = readlink("/proc/self/exe", daemon->program, sizeof daemon->program - sizeof name);
    if (n < 0) return helm_fail_errno(err, "finding this program's folder");
    daemon->program[n] = 0;
    char *slash = strrchr(daemon->program, '/');
    memcpy(slash ? slash + 1 : daemon->program, name, sizeof name);
    if (access(daemon->program, X_OK) != 0)
        return helm_fail(err, HELM_E_NOT_FOUND, "no helmd to start: %s: %s", daemon->program,
                         strerror(errno));
    return 0;
}

/* Removes a directory and its entries, to the depth that a killed helmd can leave. */
static void remove_directory(const char *path, int depth)
{
    char inner[PATH_MAX];
    DIR *dir = opendir(path);
    if (dir) {
        const struct dirent *entry;
        while ((entry = readdir(dir))) {
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
            if (unlinkat(dirfd(dir), entry->d_name, 0) == 0 || depth == 0) continue;
            int n = snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
            if (n > 0 && (size_t)n < sizeof inner) remove_directory(inner, depth - 1);
        }
        closedir(dir);
    }
    rmdir(path);
}

/* Directories of helm-clis that were killed: unlocked, and old enough not to be one that is just being made.
 */
static void sweep(const char *parent)
{
    char path[PATH_MAX];
    struct stat st;
    DIR *dir = opendir(parent);
    if (!dir) return;
    const struct dirent *entry;
    while ((entry = readdir(dir))) {
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) != 0) continue;
        int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0) continue;
        int n = snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);
        if (n > 0 && (size_t)n < sizeof path && fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
            time(NULL) - st.st_mtime > STALE_SECONDS && flock(fd, LOCK_EX | LOCK_NB) == 0)
            remove_directory(path, 2);
        close(fd);
    }
    closedir(dir);
}

/* Messages of helmd from here on are refused at once, and do not wait for a reader. */
static void close_notify(struct private_daemon *daemon)
{
    if (daemon->notify_fd >= 0) close(daemon->notify_fd);
    daemon->notify_fd = -1;
}

static int make_directory(struct private_daemon *daemon, struct helm_err *err)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    if (!runtime || !*runtime || stat(runtime, &st) < 0 || !S_ISDIR(st.st_mode)) runtime = "/tmp";
    int n = snprintf(daemon->directory, sizeof daemon->directory, "%s/" PREFIX "XXXXXX", runtime);
    if (n < 0 || (size_t)n >= sizeof daemon->directory ||
        (size_t)n > 80) { /* a socket path holds 107 bytes */
        daemon->directory[0] = 0;
        return helm_fail(err, HELM_E_LIMIT, "XDG_RUNTIME_DIR is too long for a socket below it: %s", runtime);
    }
    if (!mkdtemp(daemon->directory)) {
        int rc = helm_fail_errno(err, "making a directory in %s", runtime);
        daemon->directory[0] = 0;
        return rc;
    }
    daemon->lock_fd = open(daemon->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (daemon->lock_fd < 0 || flock(daemon->lock_fd, LOCK_EX | LOCK_NB) < 0)
        return helm_fail_errno(err, "locking %s", daemon->directory);
    sweep(runtime);
    snprintf(daemon->endpoint, sizeof daemon->endpoint, "ipc://%.*s/helmd.sock", 100, daemon->directory);
    return 0;
}

/* helmd finds it by $NOTIFY_SOCKET, which it would have from systemd. That nothing can be shown is no reason
 * not to start. */
static void open_notify(struct private_daemon *daemon)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int n = snprintf(at.sun_path, sizeof at.sun_path, "%s/notify", daemon->directory);
    daemon->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (n > 0 && (size_t)n < sizeof at.sun_path && daemon->notify_fd >= 0 &&
        bind(daemon->notify_fd, (const struct sockaddr *)&at, sizeof at) == 0 &&
        setenv("NOTIFY_SOCKET", at.sun_path, 1) == 0)
        return;
    unsetenv("NOTIFY_SOCKET");
    close_notify(daemon);
}

static void fill_arguments(const struct cli *cli, struct private_daemon *daemon, const char *args[ARGS_MAX])
{
    size_t n = 0;
    const struct {
        const char *name, *value;
    } options[] = {
        {"--model", cli->model},
        {"--listen", daemon->endpoint},
        {"--rundir", daemon->directory},
        {"--ready-fd", READY_FD_TEXT},
        {"--device", cli->device},
        {"--vram", cli->has_vram ? daemon->vram : NULL},
        {"--host-memory", cli->has_host_memory ? daemon->host_memory : NULL},
        {"--ctx", cli->has_ctx ? daemon->ctx : NULL},
        {"--threads", cli->has_threads ? daemon->threads : NULL},
        {"--plan", cli->plan},
        {"--profile", cli->profile},
        {"--strategy", cli->strategy},
        {"--config", cli->config},
        {"--kv-dtype", cli->kv_dtype},
        {"--kernels", cli->kernels},
        {"--activations", cli->exact ? "exact" : cli->activations},
        {"--log-level", cli->log_level ? cli->log_level : "warn"},
    };
    snprintf(daemon->vram, sizeof daemon->vram, "%llu", (unsigned long long)cli->vram_bytes);
    snprintf(daemon->host_memory, sizeof daemon->host_memory, "%llu",
             (unsigned long long)cli->host_memory_bytes);
    snprintf(daemon->ctx, sizeof daemon->ctx, "%llu", (unsigned long long)cli->ctx_tokens);
    snprintf(daemon->threads, sizeof daemon->threads, "%llu", (unsigned long long)cli->threads);
    args[n++] = daemon->program;
    args[n++] = "--die-with-parent";
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        if (!options[i].value) continue;
        args[n++] = options[i].name;
        args[n++] = options[i].value;
    }
    for (uint32_t i = 0; cli->daemon_arguments && i < cli->daemon_arguments->count; i++)
        args[n++] = cli->daemon_arguments->item[i];
    args[n] = NULL;
}

static int spawn(const struct cli *cli, struct private_daemon *daemon, struct helm_err *err)
{
    const char *args[ARGS_MAX];
    char log[PATH_MAX + 8];
    int pipe_fd[2], rc = 0;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, defaults;
    if (pipe2(pipe_fd, O_CLOEXEC) < 0) return helm_fail_errno(err, "opening a pipe");
    fill_arguments(cli, daemon, args);
    daemon->own_log = cli->log_level == NULL;
    snprintf(log, sizeof log, "%s/log", daemon->directory);
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    /* standard output is the command's result: what helmd might print goes where its log goes */
    if (daemon->own_log)
        posix_spawn_file_actions_addopen(&files, STDERR_FILENO, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&files, pipe_fd[1], READY_FD);
    int error = posix_spawn(&daemon->pid, daemon->program, &files, &attributes, (char *const *)args, environ);
    if (error) {
        daemon->pid = 0;
        errno = error;
        rc = helm_fail_errno(err, "starting %s", daemon->program);
    }
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    close(pipe_fd[1]);
    daemon->ready_fd = pipe_fd[0];
    return rc;
}

/* The line on a terminal until helmd is ready: what it says it is doing, then how much of the weights was
 * read. */
struct progress {
    struct helm_client *client;
    uint64_t begin_us, first_us; /* of the start, of the first bytes */
    uint64_t all_bytes;
    char status[STATUS_TEXT];     /* "WHAT: HOW FAR", "" before it says anything */
    bool terminal, shown, silent; /* silent: the log itself is shown */
};

static void show_line(struct progress *progress, const char *line)
{
    struct winsize size;
    const int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
    fprintf(stderr, "\r\033[K%.*s", width, line);
    progress->shown = true;
}

/* Whether helmd is busy with something that is neither planning nor loading, and takes seconds. */
static bool takes_long(const char *status)
{
    static const char *const begins[] = {"measuring", CHECKING};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(status, begins[i], strlen(begins[i])) == 0) return true;
    return false;
}

/* Takes all messages, since helmd blocks on a full socket, and shows the last STATUS= among them. Long work
 * sends many: where a line cannot be redrawn, only the first of them is printed. */
static void take_status(struct private_daemon *daemon, struct progress *progress)
{
    static const char key[] = "STATUS=";
    char text[STATUS_TEXT + 128];
    ssize_t n;
    while ((n = recv(daemon->notify_fd, text, sizeof text - 1, 0)) > 0) {
        text[n] = 0;
        char *status = strncmp(text, key, strlen(key)) == 0 ? text : strstr(text, "\nSTATUS=");
        if (!status) continue;
        status = strchr(status, '=') + 1;
        status[strcspn(status, "\n")] = 0;
        for (size_t i = 0, left = strlen(status), bytes; left; i += bytes, left -= bytes)
            if (!(bytes = printable_character(status + i, left))) status[i] = '?', bytes = 1;
        const size_t what = strcspn(status, ":");
        const bool news = strncmp(status, progress->status, what) != 0;
        snprintf(progress->status, sizeof progress->status, "%s", status);
        if (news && !progress->terminal && !progress->silent && takes_long(status)) {
            status[what] = 0;
            cli_complain(status);
        }
    }
}

/* Asks the daemon itself, which answers while it loads; until it listens there is only the time to show. */
static void show_progress(const struct private_daemon *daemon, struct progress *progress)
{
    struct helm_err ignored = {0};
    struct helm_status *status = NULL;
    struct helm_model_info *model = NULL;
    uint64_t done = 0, now_us = units_now_us();
    char line[STATUS_TEXT + 64];
    const bool checks = strncmp(progress->status, CHECKING, strlen(CHECKING)) == 0; /* everything is loaded */
    if (checks ||
        (!progress->client && helm_connect(daemon->endpoint, LOOK_MS, &progress->client, &ignored) < 0)) {
        snprintf(line, sizeof line, "%.0f s  %s", (double)(now_us - progress->begin_us) / 1e6,
                 progress->status[0] ? progress->status : "starting");
        show_line(progress, line);
        return;
    }
    if (helm_status(progress->client, LOOK_MS, &status, &ignored) < 0 ||
        (!progress->all_bytes && helm_model_info(progress->client, LOOK_MS, &model, &ignored) < 0 &&
         ignored.code == HELM_E_PEER))
        helm_disconnect(&progress->client);
    if (model) progress->all_bytes = model->weight_bytes;
    for (size_t i = 0; status && i < status->worker_count; i++) done += status->workers[i].loaded_bytes;
    int n = snprintf(line, sizeof line, "loading, %.1f s", (double)(now_us - progress->begin_us) / 1e6);
    if (done) { /* before the first bytes helmd plans and prepares memory */
        char done_text[UNITS_TEXT], all_text[UNITS_TEXT], rate_text[UNITS_TEXT];
        if (!progress->first_us) progress->first_us = now_us - LOOK_MS * 1000;
        units_format_size((uint64_t)((double)done / ((double)(now_us - progress->first_us) / 1e6)),
                          rate_text);
        n += snprintf(line + n, sizeof line - (size_t)n, ": %s of %s, %s/s",
                      units_format_size(done, done_text), units_format_size(progress->all_bytes, all_text),
                      rate_text);
        if (status->load_seconds_left > 0)
            snprintf(line + n, sizeof line - (size_t)n, ", %.0f s left", status->load_seconds_left);
    }
    show_line(progress, line);
    free(status);
    free(model);
}

/* "ready ENDPOINT" or "error CODE TEXT", CODE being a number of enum helm_code or its name. */
static int read_verdict(char *line, struct helm_err *err)
{
    static const char ready[] = "ready ", error[] = "error ";
    if (strncmp(line, ready, strlen(ready)) == 0) return 0;
    if (strncmp(line, error, strlen(error)) != 0)
        return helm_fail(err, HELM_E_PEER, "helmd reported neither ready nor error: %.100s", line);
    char *code_text = line + strlen(error);
    char *text = strchr(code_text, ' ');
    if (text) *text++ = 0;
    int code = (int)strtol(code_text, NULL, 10);
    if (code > 0) code = -code;
    for (int c = HELM_E_USAGE; code == 0 && c >= HELM_E_DEVICE; c--)
        if (strcmp(code_text, helm_code_name(c)) == 0) code = c;
    /* Nothing was begun, whatever kept it from that: HELM_E_PEER is for a helmd that says nothing. */
    if (code == 0 || code == HELM_E_PEER || code == HELM_E_NOMEM) code = HELM_E_STATE;
    return helm_fail(err, code, "%s", text ? text : code_text);
}

static int await_ready(struct cli *cli, struct private_daemon *daemon, int *signal_number,
                       struct helm_err *err)
{
    char line[READY_LINE];
    size_t used = 0;
    struct progress progress = {.begin_us = units_now_us(),
                                .terminal = isatty(STDERR_FILENO) && daemon->own_log,
                                .silent = !daemon->own_log};
    uint64_t look_us = progress.begin_us;
    int rc = 1;
    while (rc > 0) {
        struct pollfd p[3] = {{.fd = daemon->ready_fd, .events = POLLIN},
                              {.fd = cli->signal_fd, .events = POLLIN},
                              {.fd = daemon->notify_fd, .events = POLLIN}};
        if (poll(p, 3, progress.terminal ? LOOK_MS : -1) < 0 && errno != EINTR) {
            rc = helm_fail_errno(err, "waiting for helmd");
            break;
        }
        if (p[1].revents && (*signal_number = cli_take_signal(cli)) != 0) {
            rc = helm_fail(err, HELM_E_CANCELLED, "ended by signal %d while loading", *signal_number);
            break;
        }
        if (p[2].revents) take_status(daemon, &progress);
        if (p[0].revents) {
            ssize_t n = read(daemon->ready_fd, line + used, sizeof line - 1 - used);
            if (n > 0) used += (size_t)n;
            line[used] = 0;
            char *end = strchr(line, '\n');
            if (end) {
                *end = 0;
                rc = read_verdict(line, err);
            } else if (n <= 0 || used == sizeof line - 1) {
                rc = helm_fail(err, HELM_E_PEER, "helmd ended before it was ready");
            }
        } else if (progress.terminal && units_now_us() - look_us >= LOOK_MS * 1000) {
            show_progress(daemon, &progress);
            look_us = units_now_us();
        }
    }
    if (progress.shown) fprintf(stderr, "\r\033[K");
    close_notify(daemon);
    helm_disconnect(&progress.client);
    return rc;
}

int private_daemon_start(struct cli *cli, struct private_daemon **out, int *signal_number,
                         struct helm_err *err)
{
    struct private_daemon *daemon = calloc(1, sizeof *daemon);
    *out = NULL;
    *signal_number = 0;
    if (!daemon) return helm_fail(err, HELM_E_NOMEM, "no memory to start helmd");
    daemon->ready_fd = daemon->notify_fd = daemon->lock_fd = -1;
    int rc = find_program(daemon, err);
    if (rc == 0) rc = make_directory(daemon, err);
    if (rc == 0) open_notify(daemon);
    if (rc == 0) rc = spawn(cli, daemon, err);
    if (rc == 0) rc = await_ready(cli, daemon, signal_number, err);
    if (rc < 0) {
        if (rc == HELM_E_PEER) private_daemon_show_log(daemon);
        private_daemon_stop(&daemon);
    }
    *out = daemon;
    return rc;
}

int private_daemon_exit(int code)
{
    switch (code) {
    case HELM_E_USAGE:
        return CLI_EXIT_USAGE;
    case HELM_E_PEER:
    case HELM_E_NOMEM:
        return CLI_EXIT_FAILED;
    default:
        return CLI_EXIT_REFUSED;
    }
}

void private_daemon_show_log(const struct private_daemon *daemon)
{
    char path[PATH_MAX + 8], tail[LOG_TAIL + 1];
    if (!daemon->own_log) return;
    snprintf(path, sizeof path, "%s/log", daemon->directory);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    off_t size = lseek(fd, 0, SEEK_END);
    ssize_t n = pread(fd, tail, LOG_TAIL, size > LOG_TAIL ? size - LOG_TAIL : 0);
    close(fd);
    if (n <= 0) return;
    tail[n] = 0;
    char *rest = NULL;
    for (char *line = strtok_r(tail, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        cli_complain(line);
}

/* Waits for the child at most `seconds` (SIGCHLD is blocked since cli_catch_signals, so it cannot be missed).
 */
static bool wait_child(pid_t pid, int seconds)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    uint64_t until = units_now_us() + (uint64_t)seconds * 1000000;
    for (;;) {
        pid_t got = waitpid(pid, NULL, WNOHANG);
        if (got == pid || (got < 0 && errno != EINTR)) return true;
        uint64_t now = units_now_us();
        if (now >= until) return false;
        uint64_t left = until - now;
        struct timespec wait = {.tv_sec = (time_t)(left / 1000000), .tv_nsec = (long)(left % 1000000) * 1000};
        sigtimedwait(&child, NULL, &wait);
    }
}

void private_daemon_stop(struct private_daemon **daemon)
{
    struct private_daemon *d = *daemon;
    if (!d) return;
    *daemon = NULL;
    if (d->ready_fd >= 0) close(d->ready_fd);
    close_notify(d);
    if (d->pid > 0) {
        kill(d->pid, SIGTERM);
        if (!wait_child(d->pid, STOP_SECONDS)) {
            kill(d->pid, SIGKILL);
            waitpid(d->pid, NULL, 0);
        }
    }
    if (d->directory[0]) remove_directory(d->directory, 2);
    if (d->lock_fd >= 0) close(d->lock_fd);
    free(d);
}
