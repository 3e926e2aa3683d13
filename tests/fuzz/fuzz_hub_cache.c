/* Fuzz target: the hub's cache as others left it, and what --model means there (common/model/hub.c).
 *
 * The first line is what --model says ("@" at its head: the cache's folder). Each further one makes something
 * in that folder: NAME/ a folder, NAME=TEXT a file, NAME>TARGET a link. A path that is found exists, and lies
 * in the cache or is what was asked for. */
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/model/hub.h"

#define ENTRIES_MAX 32
#define TEXT_MAX    4096

static char cache[] = "/tmp/helm-fuzz-hub-XXXXXX";
static int cache_fd;

static int drop(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st, (void)kind;
    if (where->level > 0 && remove(path)) abort();
    return 0;
}

static void drop_all(void)
{
    if (nftw(cache, drop, 16, FTW_DEPTH | FTW_PHYS)) abort();
}

static void drop_cache(void)
{
    drop_all();
    rmdir(cache);
}

/* Nothing is made outside the cache. */
static bool is_inside(const char *name)
{
    return *name && *name != '/' && !strstr(name, "..");
}

static void make_folders(char *name)
{
    for (char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdirat(cache_fd, name, 0700);
        *slash = '/';
    }
}

static void make(char *line)
{
    char *kind = line + strcspn(line, "=>");
    const char what = *kind;
    *kind = '\0';
    if (!is_inside(line)) return;
    make_folders(line);
    if (what == '>') {
        if (is_inside(kind + 1)) (void)!symlinkat(kind + 1, cache_fd, line);
        return;
    }
    const int fd = what ? openat(cache_fd, line, O_CREAT | O_WRONLY | O_TRUNC | O_NOFOLLOW, 0600) : -1;
    if (fd < 0) return;
    (void)!write(fd, kind + 1, strlen(kind + 1));
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    char text[TEXT_MAX], model[PATH_MAX + TEXT_MAX], *path, *rest = text;
    struct helm_err err = {0};
    if (size >= sizeof text) return 0;
    if (!ready && (!mkdtemp(cache) || setenv("HF_HUB_CACHE", cache, 1) || atexit(drop_cache))) abort();
    if (!ready) cache_fd = open(cache, O_PATH | O_DIRECTORY);
    ready = true;
    memcpy(text, data, size);
    text[size] = '\0';
    const char *first = strsep(&rest, "\n");
    snprintf(model, sizeof model, "%s%s", *first == '@' ? cache : "", *first == '@' ? first + 1 : first);
    for (int i = 0; rest && i < ENTRIES_MAX; i++) make(strsep(&rest, "\n"));
    if (hub_locate(model, &path, &err)) {
        if (path || !err.code || !err.text[0]) abort();
    } else {
        const bool same = strcmp(path, model) == 0;
        const size_t begin = strncmp(path, cache, strlen(cache)) == 0 ? strlen(cache) : strlen(model);
        if (!same && (access(path, F_OK) || strlen(path) < begin || strstr(path + begin, ".."))) abort();
        if (!same && begin == strlen(model) && strncmp(path, model, begin) != 0) abort();
    }
    free(path);
    drop_all();
    return 0;
}
