/* Owners of sockets, their directories and their listeners. See trust.h. */
#include "client/connection/trust.h"

#include <limits.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define OTHERS (S_IWGRP | S_IWOTH)

/* "alice (uid 1000)" */
static const char *name_user(uid_t uid, char text[96])
{
    const struct passwd *user = getpwuid(uid);
    if (user)
        snprintf(text, 96, "%.60s (uid %u)", user->pw_name, (unsigned)uid);
    else
        snprintf(text, 96, "uid %u", (unsigned)uid);
    return text;
}

/* The directory that holds `path`; "." for a bare name. */
static void parent_of(const char *path, char parent[PATH_MAX])
{
    snprintf(parent, PATH_MAX, "%s", path);
    char *slash = strrchr(parent, '/');
    if (!slash)
        strcpy(parent, ".");
    else
        slash[slash == parent] = 0;
}

/* Whether root alone may change every directory above this one. */
static bool is_system_directory(const char *directory)
{
    char at[PATH_MAX], parent[PATH_MAX];
    struct stat st;
    if (!realpath(directory, at)) return false;
    while (strcmp(at, "/") != 0) {
        parent_of(at, parent);
        if (stat(parent, &st) || st.st_uid != 0 || (st.st_mode & OTHERS)) return false;
        memcpy(at, parent, sizeof at);
    }
    return true;
}

/* directory NULL: of an abstract socket. */
static bool is_trusted(uid_t uid, const char *directory)
{
    struct stat st;
    if (uid == geteuid() || uid == 0) return true;
    return directory && stat(directory, &st) == 0 && st.st_uid == uid && is_system_directory(directory);
}

static int refuse(const char *path, const char *what, uid_t uid, struct helm_err *err)
{
    char owner[96], self[96];
    return helm_fail(err, HELM_E_PERMISSION,
                     "%s: %s belongs to %s, not to %s, root or the owner of a system directory: not trusted",
                     path, what, name_user(uid, owner), name_user(geteuid(), self));
}

static const char *path_of(const char *endpoint)
{
    static const char ipc[] = "ipc://";
    return strncmp(endpoint, ipc, strlen(ipc)) == 0 ? endpoint + strlen(ipc) : endpoint;
}

int trust_place(const char *endpoint, struct helm_err *err)
{
    const char *path = path_of(endpoint);
    char directory[PATH_MAX];
    struct stat link, st, socket_st;
    if (*path == '@') return 0;
    parent_of(path, directory);
    if (lstat(directory, &link) || stat(directory, &st)) return 0;
    /* a link may be turned to another directory by its owner */
    if (S_ISLNK(link.st_mode) && link.st_uid != geteuid() && link.st_uid != 0)
        return refuse(path, "the link to its directory", link.st_uid, err);
    if (!is_trusted(st.st_uid, directory)) return refuse(path, "its directory", st.st_uid, err);
    if (lstat(path, &socket_st) == 0 && !is_trusted(socket_st.st_uid, directory))
        return refuse(path, "the socket", socket_st.st_uid, err);
    /* where all may write, the sticky bit leaves a socket to its owner */
    if ((st.st_mode & OTHERS) && !(st.st_mode & S_ISVTX))
        return helm_fail(
            err, HELM_E_PERMISSION,
            "%s: its directory has mode %04o, so that others may replace the socket: chmod go-w it", path,
            (unsigned)(st.st_mode & 07777));
    return 0;
}

int trust_peer(int fd, const char *endpoint, struct helm_err *err)
{
    const char *path = path_of(endpoint);
    char directory[PATH_MAX];
    struct ucred peer;
    socklen_t size = sizeof peer;
    int domain = 0;
    socklen_t domain_size = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_size) || domain != AF_UNIX) return 0;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
        return helm_fail_errno(err, "%s: whose process listens there", path);
    if (*path != '@') parent_of(path, directory);
    if (is_trusted(peer.uid, *path == '@' ? NULL : directory)) return 0;
    return refuse(path, "the process that listens there", peer.uid, err);
}
