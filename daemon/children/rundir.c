/* The run directory. See rundir.h. Called by main.c and clients/endpoint.c; owns the lock descriptors.
 *
 * A lock file may be removed by its holder while another daemon waits for it. So a daemon that gets the lock
 * checks that the file it locked is still the one with that name. The keeper of a killed daemon shares the
 * lock until it has tidied up; a starting daemon waits for that, but never for a live daemon. */
#include "daemon/children/rundir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/units.h"

static int choose_path(const char *option, struct rundir *dir, mode_t *forbidden, struct helm_err *err)
{
    const char *systemd = getenv("RUNTIME_DIRECTORY"), *xdg = getenv("XDG_RUNTIME_DIR");
    int n;
    *forbidden = S_IWGRP | S_IWOTH; /* others may be let in to connect, never to replace a socket */
    if (option)
        n = snprintf(dir->path, sizeof dir->path, "%s", option);
    else if (systemd && *systemd)
        n = snprintf(dir->path, sizeof dir->path, "%.*s", (int)strcspn(systemd, ":"), systemd);
    else if (geteuid() == 0)
        n = snprintf(dir->path, sizeof dir->path, "/run/helm");
    else if (xdg && xdg[0] == '/')
        n = snprintf(dir->path, sizeof dir->path, "%s/helm", xdg);
    else {
        n = snprintf(dir->path, sizeof dir->path, "/tmp/helm-%u", (unsigned)geteuid());
        *forbidden = S_IRWXG | S_IRWXO;
    }
    if (n < 0 || (size_t)n >= sizeof dir->path)
        return helm_fail(err, HELM_E_LIMIT, "run directory: path of %d bytes, at most %zu", n,
                         sizeof dir->path - 1);
    if (dir->path[0] != '/')
        return helm_fail(err, HELM_E_USAGE, "run directory %s: must be an absolute path", dir->path);
    return 0;
}

static int make_checked(const char *path, mode_t forbidden, bool *created, struct helm_err *err)
{
    struct stat st;
    /* The sticky bit, without meaning for a directory that only its owner writes, says that a helmd made it:
     * the next one then knows that it may remove it, however this one ends. */
    if (mkdir(path, 0700) == 0) {
        if (chmod(path, S_ISVTX | 0700)) return helm_fail_errno(err, "run directory %s", path);
    } else if (errno != EEXIST) {
        return helm_fail_errno(err, "run directory %s", path);
    }
    if (lstat(path, &st)) return helm_fail_errno(err, "run directory %s", path);
    if (!S_ISDIR(st.st_mode))
        return helm_fail(err, HELM_E_PERMISSION, "run directory %s is not a directory", path);
    if (st.st_uid != geteuid())
        return helm_fail(err, HELM_E_PERMISSION, "run directory %s belongs to user %u, not to this one (%u)",
                         path, (unsigned)st.st_uid, (unsigned)geteuid());
    if (st.st_mode & forbidden)
        return helm_fail(err, HELM_E_PERMISSION, "run directory %s has mode %04o: chmod %s it", path,
                         (unsigned)(st.st_mode & 07777), forbidden & S_IRGRP ? "0700" : "go-w");
    *created = (st.st_mode & S_ISVTX) != 0;
    return 0;
}

/* Private directories of daemons that were killed together with their keepers; in them those of their draft
 * models' daemons. */
static void remove_dead(const char *dir)
{
    DIR *list = opendir(dir);
    struct dirent *entry;
    char path[RUNDIR_PATH_MAX + 300], draft[RUNDIR_PATH_MAX];
    while (list && (entry = readdir(list))) {
        char *end;
        if (strncmp(entry->d_name, "worker.", 7) != 0) continue;
        long pid = strtol(entry->d_name + 7, &end, 10);
        if (*end || pid <= 0 || pid == getpid() || kill((pid_t)pid, 0) == 0 || errno != ESRCH) continue;
        if (snprintf(draft, sizeof draft, "%s/%s/draft", dir, entry->d_name) < (int)sizeof draft) {
            static const char *const files[] = {"helmd.sock", "helmd.sock.lock"};
            remove_dead(draft);
            for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
                snprintf(path, sizeof path, "%s/%s", draft, files[i]);
                unlink(path);
            }
            rmdir(draft);
        }
        snprintf(path, sizeof path, "%s/%s/control", dir, entry->d_name);
        unlink(path);
        *strrchr(path, '/') = 0;
        if (rmdir(path) == 0) log_info("removed what a killed daemon left: %s", path);
    }
    if (list) closedir(list);
}

/* The holder of the lock: the pid in the file, if that process lives. */
static long live_holder(int fd)
{
    char text[24] = "";
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    long pid = n > 0 ? strtol(text, NULL, 10) : 0;
    return pid > 0 && (kill((pid_t)pid, 0) == 0 || errno == EPERM) ? pid : 0;
}

/* A lock file is empty or holds a pid: a file of that name with anything else in it is not a daemon's. */
static bool is_lock_file(int fd)
{
    char text[24];
    struct stat st;
    ssize_t n = pread(fd, text, sizeof text, 0);
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || n < 0 || n == (ssize_t)sizeof text) return false;
    for (ssize_t i = 0; i < n; i++)
        if (!(text[i] >= '0' && text[i] <= '9') && !(text[i] == '\n' && i == n - 1)) return false;
    return true;
}

/* Removes a socket, and nothing else that may have its name. */
static int remove_socket(const char *path, struct helm_err *err)
{
    struct stat st;
    if (lstat(path, &st)) return 0;
    if (!S_ISSOCK(st.st_mode))
        return helm_fail(err, HELM_E_PERMISSION, "%s exists and is not a socket", path);
    if (unlink(path)) return helm_fail_errno(err, "socket %s", path);
    return 0;
}

static int fail_busy(const char *socket, long pid, struct helm_err *err)
{
    return helm_fail(err, HELM_E_BUSY,
                     "another helmd (pid %ld) already listens on ipc://%s: end it, or give this one another "
                     "--listen ipc:///PATH",
                     pid, socket);
}

static int lock_endpoint(struct rundir_lock *lock, struct helm_err *err)
{
    uint64_t give_up_us = units_now_us() + RUNDIR_LOCK_WAIT_MS * 1000;
    for (;;) {
        int fd = open(lock->file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) return helm_fail_errno(err, "lock file %s", lock->file);
        if (!is_lock_file(fd)) {
            close(fd);
            return helm_fail(err, HELM_E_PERMISSION, "lock file %s exists and is not a daemon's", lock->file);
        }
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            struct stat held, named;
            if (fstat(fd, &held) == 0 && stat(lock->file, &named) == 0 && held.st_ino == named.st_ino) {
                lock->fd = fd;
                break;
            }
            close(fd); /* removed by its last holder while we opened it: try the new one */
            continue;
        }
        int saved = errno;
        long pid = live_holder(fd);
        close(fd);
        if (saved != EWOULDBLOCK) {
            errno = saved;
            return helm_fail_errno(err, "lock file %s", lock->file);
        }
        if (pid) return fail_busy(lock->socket, pid, err);
        if (units_now_us() > give_up_us)
            return helm_fail(err, HELM_E_BUSY, "lock file %s is held by something that is not a helmd",
                             lock->file);
        units_sleep_ms(5);
    }
    char text[24];
    int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    if (ftruncate(lock->fd, 0) || pwrite(lock->fd, text, (size_t)n, 0) != n)
        return helm_fail_errno(err, "lock file %s", lock->file);
    /* The endpoint is not locked, so a socket file there is a dead daemon's. Any other file is not ours to
     * remove. */
    bool stale = access(lock->socket, F_OK) == 0;
    int rc = remove_socket(lock->socket, err);
    if (!rc && stale) log_info("removed the socket of a daemon that is gone: %s", lock->socket);
    return rc;
}

/* The path of an ipc endpoint, NULL of a tcp one. */
static int read_endpoint(const char *text, const char **path, struct helm_err *err)
{
    static const char ipc[] = "ipc://", tcp[] = "tcp://";
    *path = NULL;
    if (strncmp(text, tcp, strlen(tcp)) == 0) {
        const char *colon = strrchr(text + strlen(tcp), ':');
        uint64_t port;
        if (!colon || !colon[1])
            return helm_fail(err, HELM_E_USAGE, "--listen %s: not tcp://ADDRESS:PORT", text);
        return units_parse_u64("--listen: the port", colon + 1, 0, 65535, &port, err);
    }
    if (strncmp(text, ipc, strlen(ipc)) != 0)
        return helm_fail(err, HELM_E_USAGE, "--listen %s: endpoints are ipc:///PATH or tcp://ADDRESS:PORT",
                         text);
    if (text[strlen(ipc)] != '/')
        return helm_fail(err, HELM_E_USAGE, "--listen %s: the path of an ipc endpoint must be absolute",
                         text);
    *path = text + strlen(ipc);
    if (strlen(*path) < RUNDIR_PATH_MAX) return 0;
    return helm_fail(err, HELM_E_USAGE, "--listen %s: path of %zu bytes, sockets take at most %d", text,
                     strlen(*path), RUNDIR_PATH_MAX - 1);
}

static int add_endpoint(struct rundir *dir, const char *text, struct helm_err *err)
{
    uint32_t i = dir->endpoints.count;
    const char *path;
    if (i == ARGS_LIST_MAX) return helm_fail(err, HELM_E_LIMIT, "more than %d endpoints", ARGS_LIST_MAX);
    int n = snprintf(dir->endpoint_text[i], sizeof dir->endpoint_text[i], "%s", text);
    if (n < 0 || (size_t)n >= sizeof dir->endpoint_text[i])
        return helm_fail(err, HELM_E_USAGE, "--listen %.64s...: too long", text);
    int rc = read_endpoint(text, &path, err);
    if (!rc && path) {
        struct rundir_lock *lock = &dir->lock[dir->lock_count++];
        snprintf(lock->socket, sizeof lock->socket, "%s", path);
        snprintf(lock->file, sizeof lock->file, "%s.lock", path);
        lock->fd = -1;
        rc = lock_endpoint(lock, err);
    }
    if (rc) return rc;
    dir->endpoints.item[i] = dir->endpoint_text[i];
    dir->endpoints.count++;
    return 0;
}

/* The lock is shared for a moment, so that a daemon that starts meanwhile finds no holder that lives, and
 * waits. */
static int check_free(const char *path, struct helm_err *err)
{
    char file[RUNDIR_PATH_MAX + 8];
    snprintf(file, sizeof file, "%s.lock", path);
    const int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return 0; /* free, or for rundir_open to refuse */
    const bool held = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK && is_lock_file(fd);
    const long pid = held ? live_holder(fd) : 0;
    close(fd);
    return pid ? fail_busy(path, pid, err) : 0;
}

int rundir_check(const char *option, const struct args_list *listen, struct helm_err *err)
{
    struct rundir dir = {0};
    char path[RUNDIR_PATH_MAX + 16];
    mode_t forbidden;
    int rc = choose_path(option, &dir, &forbidden, err);
    snprintf(path, sizeof path, "%s/helmd.sock", dir.path);
    if (!rc && listen->count == 0) return check_free(path, err);
    for (uint32_t i = 0; i < listen->count && !rc; i++) {
        const char *local;
        rc = read_endpoint(listen->item[i], &local, err);
        if (!rc && local) rc = check_free(local, err);
    }
    return rc;
}

int rundir_open(const char *option, const struct args_list *listen, struct rundir *dir, struct helm_err *err)
{
    memset(dir, 0, sizeof *dir);
    mode_t forbidden;
    int rc = choose_path(option, dir, &forbidden, err);
    if (!rc) rc = make_checked(dir->path, forbidden, &dir->created, err);
    if (rc) return rc;
    char text[RUNDIR_PATH_MAX + 32];
    int n = snprintf(dir->private_dir, sizeof dir->private_dir, "%s/worker.%ld", dir->path, (long)getpid());
    if (n < 0 || (size_t)n + sizeof "/control" > sizeof dir->private_dir) {
        dir->private_dir[0] = 0;
        return helm_fail(err, HELM_E_LIMIT, "run directory %s: too long for a socket path of %d bytes",
                         dir->path, RUNDIR_PATH_MAX - 1);
    }
    bool created;
    rc = make_checked(dir->private_dir, S_IRWXG | S_IRWXO, &created, err);
    if (rc && access(dir->path, F_OK) && make_checked(dir->path, forbidden, &dir->created, err) == 0)
        rc = make_checked(dir->private_dir, S_IRWXG | S_IRWXO, &created,
                          err); /* a dying daemon had removed it */
    if (rc) {
        dir->private_dir[0] = 0;
        return rc;
    }
    snprintf(dir->control, sizeof dir->control, "ipc://%.99s/control", dir->private_dir);
    unlink(dir->control + 6); /* a pid that came round again */
    remove_dead(dir->path);
    if (listen->count == 0) {
        snprintf(text, sizeof text, "ipc://%s/helmd.sock", dir->path);
        return add_endpoint(dir, text, err);
    }
    for (uint32_t i = 0; i < listen->count; i++) {
        rc = add_endpoint(dir, listen->item[i], err);
        if (rc) return rc;
    }
    return 0;
}

void rundir_close(struct rundir *dir)
{
    if (dir->private_dir[0]) {
        unlink(dir->control + 6);
        rmdir(dir->private_dir);
        dir->private_dir[0] = 0;
    }
    for (uint32_t i = 0; i < dir->lock_count; i++) {
        if (dir->lock[i].fd < 0) continue;              /* another daemon's */
        (void)remove_socket(dir->lock[i].socket, NULL); /* not what rundir_open refused to replace */
        unlink(dir->lock[i].file);
        close(dir->lock[i].fd);
    }
    dir->lock_count = 0;
    if (dir->created) rmdir(dir->path);
    dir->created = false;
}
