/* Nearest names in folders. See nearest.h. */
#include "common/model/nearest.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/suggest.h"

#define REPO_PREFIX "models--"

static bool is_gguf(const char *name)
{
    static const char suffix[] = ".gguf";
    const size_t length = strlen(name), tail = sizeof suffix - 1;
    return length > tail && strcmp(name + length - tail, suffix) == 0 && strncmp(name, "mmproj", 6) != 0;
}

/* Keeps a copy of what is nearest so far, as the folder's entries do not last. */
static void try_name(struct suggest *near, const char *name, char best[NAME_MAX + 1])
{
    suggest_try(near, name);
    if (near->best != name) return;
    snprintf(best, NAME_MAX + 1, "%s", name);
    near->best = best;
}

bool nearest_file(const char *path, char name[NAME_MAX + 1])
{
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    char folder[PATH_MAX], there[PATH_MAX + NAME_MAX + 2];
    struct suggest near;
    const bool gguf = is_gguf(last);
    snprintf(folder, sizeof folder, "%.*s",
             slash == path ? 1
             : slash       ? (int)(slash - path)
                           : 1,
             slash ? path : ".");
    suggest_begin(&near, last, strlen(last));
    if (gguf && near.distance) near.distance = SIZE_MAX;
    DIR *dir = opendir(folder);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(there, sizeof there, "%s/%s", folder, entry->d_name);
        if (is_gguf(entry->d_name) || (!gguf && file_is_folder(there))) try_name(&near, entry->d_name, name);
    }
    if (dir) closedir(dir);
    return near.best != NULL;
}

bool nearest_repo(const char *cache, const char *repo, char name[NAME_MAX + 1])
{
    struct suggest near;
    char there[NAME_MAX + 1];
    suggest_begin(&near, repo, strlen(repo));
    DIR *dir = opendir(cache);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, REPO_PREFIX, strlen(REPO_PREFIX)) != 0) continue;
        const char *from = entry->d_name + strlen(REPO_PREFIX), *divide = strstr(from, "--");
        if (!divide) continue;
        snprintf(there, sizeof there, "%.*s/%s", (int)(divide - from), from, divide + 2);
        try_name(&near, there, name);
    }
    if (dir) closedir(dir);
    return near.best != NULL;
}
