/* Bounded reads of regular files. See file.h. */
#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_under(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && (path[n] == '/' || (n == 1 && folder[0] == '/'));
}

#define LFS_POINTER_MAX 1024 /* bytes */

/* The Hugging Face cache keeps ".../models--X/snapshots/REV/FILE -> ../../blobs/HASH", FILE possibly in
 * folders: the one outside target allowed. */
static int is_hub_blob(const char *target, const char *folder)
{
    const char *snapshots = strstr(folder, "/snapshots/");
    if (!snapshots) return 0;
    const char *last = snapshots;
    while ((snapshots = strstr(snapshots + 1, "/snapshots/"))) last = snapshots;
    char blobs[PATH_MAX + 16];
    snprintf(blobs, sizeof blobs, "%.*s/blobs", (int)(last - folder), folder);
    return is_under(target, blobs);
}

/* Refuses the pointer that a repository cloned without Git LFS has in a large file's place. */
static int refuse_pointer(int fd, const char *path, struct helm_err *err)
{
    static const char first[] = "version https://git-lfs.github.com/spec/";
    char text[sizeof first - 1];
    if (pread(fd, text, sizeof text, 0) != (ssize_t)sizeof text || memcmp(text, first, sizeof text) != 0)
        return 0;
    return helm_fail(
        err, HELM_E_FORMAT,
        "%s: a Git LFS pointer, not the file it stands for: `git lfs pull` in that folder fetches it, or "
        "`helm-cli pull ORG/NAME` the model",
        path);
}

static int open_regular(const char *path, int *fd, uint64_t *bytes, struct helm_err *err)
{
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* non-blocking: a FIFO must not hang the reader */
    if (*fd < 0) {
        if (errno == ENOENT) return helm_fail(err, HELM_E_NOT_FOUND, "%s: no such file", path);
        return helm_fail_errno(err, "%s: cannot open", path);
    }
    if (fstat(*fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(*fd);
        *fd = -1;
        return helm_fail(err, HELM_E_FORMAT, "%s: not a regular file", path);
    }
    *bytes = (uint64_t)st.st_size;
    int rc = st.st_size < LFS_POINTER_MAX ? refuse_pointer(*fd, path, err) : 0;
    if (!rc) return 0;
    close(*fd);
    *fd = -1;
    return rc;
}

bool file_first_line(char *line, size_t size, const char *path, ...)
{
    char full[2 * PATH_MAX + 64];
    va_list ap;
    va_start(ap, path);
    vsnprintf(full, sizeof full, path, ap);
    va_end(ap);
    FILE *file = fopen(full, "re");
    const bool found = file && fgets(line, (int)size, file);
    if (file) fclose(file);
    line[found ? strcspn(line, "\n") : 0] = '\0';
    return found;
}

bool file_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int file_check_parent(const char *path, struct helm_err *err)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX];
    if (!slash || slash == path) return 0;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    if (file_is_folder(folder)) return 0;
    return helm_fail(err, HELM_E_NOT_FOUND, "%s: there is no folder %s to write it into", path, folder);
}

int file_open_inside(const char *folder, const char *name, int *fd, uint64_t *bytes, struct helm_err *err)
{
    *fd = -1;
    *bytes = 0;
    if (!*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return helm_fail(err, HELM_E_FORMAT, "'%.100s' is not a plain file name inside the model folder",
                         name);
    char root[PATH_MAX], joined[PATH_MAX], target[PATH_MAX];
    if (!realpath(folder, root)) {
        if (errno == ENOENT) return helm_fail(err, HELM_E_NOT_FOUND, "%s: no such folder", folder);
        return helm_fail_errno(err, "%s: cannot resolve", folder);
    }
    int n = snprintf(joined, sizeof joined, "%s/%s", root, name);
    if (n < 0 || (size_t)n >= sizeof joined)
        return helm_fail(err, HELM_E_LIMIT, "path of '%.100s' is longer than %d bytes", name, PATH_MAX - 1);
    if (!realpath(joined, target)) {
        if (errno == ENOENT) return helm_fail(err, HELM_E_NOT_FOUND, "%s/%s: no such file", folder, name);
        return helm_fail_errno(err, "%s/%s: cannot resolve", folder, name);
    }
    if (!is_under(target, root) && !is_hub_blob(target, root))
        return helm_fail(err, HELM_E_PERMISSION, "%s/%s: a link that leaves the model folder (to %.200s)",
                         folder, name, target);
    return open_regular(target, fd, bytes, err);
}

int file_cut_short(const char *what, uint64_t present, uint64_t expected, bool header, struct helm_err *err)
{
    return helm_fail(err, HELM_E_FORMAT,
                     "%s: an incomplete download: %llu bytes are there, %s%llu expected%s", what,
                     (unsigned long long)present, header ? "at least " : "", (unsigned long long)expected,
                     header ? ", for the header alone" : "");
}

bool file_pwrite_all(int fd, const void *bytes, size_t length, uint64_t offset)
{
    for (const char *at = bytes; length;) {
        const ssize_t wrote = pwrite(fd, at, length, (off_t)offset);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote == 0) errno = EIO; /* a file that takes nothing, and does not say why */
        if (wrote <= 0) return false;
        at += wrote;
        offset += (uint64_t)wrote;
        length -= (size_t)wrote;
    }
    return true;
}

int file_pread_all(int fd, void *buf, size_t bytes, uint64_t offset, const char *what, struct helm_err *err)
{
    char *at = buf;
    while (bytes) {
        size_t want = bytes < (1u << 30) ? bytes : (1u << 30);
        ssize_t got = pread(fd, at, want, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return helm_fail_errno(err, "%s: read at byte %llu failed", what, (unsigned long long)offset);
        if (got == 0)
            return helm_fail(err, HELM_E_FORMAT, "%s: file ends at byte %llu, %zu bytes short", what,
                             (unsigned long long)offset, bytes);
        at += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return 0;
}

static int read_fd(int fd, uint64_t bytes, const char *what, size_t max_bytes, char **text, size_t *length,
                   struct helm_err *err)
{
    int rc = 0;
    char *buf = NULL;
    if (bytes > max_bytes) {
        rc = helm_fail(err, HELM_E_LIMIT, "%s: %llu bytes exceed the limit of %zu", what,
                       (unsigned long long)bytes, max_bytes);
        goto out;
    }
    buf = malloc((size_t)bytes + 1);
    if (!buf) {
        rc = helm_fail(err, HELM_E_NOMEM, "%s: no memory for %llu bytes", what, (unsigned long long)bytes);
        goto out;
    }
    rc = file_pread_all(fd, buf, (size_t)bytes, 0, what, err);
    if (rc) goto out;
    buf[bytes] = '\0';
    *text = buf;
    *length = (size_t)bytes;
    buf = NULL;
out:
    free(buf);
    close(fd);
    return rc;
}

int file_read(const char *path, size_t max_bytes, char **text, size_t *length, struct helm_err *err)
{
    int fd;
    uint64_t bytes;
    *text = NULL;
    *length = 0;
    int rc = open_regular(path, &fd, &bytes, err);
    if (rc) return rc;
    return read_fd(fd, bytes, path, max_bytes, text, length, err);
}

int file_read_inside(const char *folder, const char *name, size_t max_bytes, char **text, size_t *length,
                     struct helm_err *err)
{
    int fd;
    uint64_t bytes;
    *text = NULL;
    *length = 0;
    int rc = file_open_inside(folder, name, &fd, &bytes, err);
    if (rc) return rc;
    return read_fd(fd, bytes, name, max_bytes, text, length, err);
}
