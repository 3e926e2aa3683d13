/* Nearest names in folders. See nearest.h. */
#include "common/model/nearest.h"

#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/suggest.h"

#define REPO_PREFIX "models--"
#define NEAREST     "the nearest name there is "

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

static bool find_beside(const char *path, char name[NAME_MAX + 1])
{
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    char folder[PATH_MAX], there[PATH_MAX + NAME_MAX + 2];
    struct suggest near;
    const bool gguf = is_gguf(last);
    snprintf(folder, sizeof folder, "%.*s", slash > path ? (int)(slash - path) : 1, slash ? path : ".");
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

bool nearest_refuse(const char *path, struct helm_err *err)
{
    char name[NAME_MAX + 1];
    if (!find_beside(path, name)) return false;
    helm_fail(err, HELM_E_NOT_FOUND, "%s: no such file or folder; " NEAREST "%s", path, name);
    return true;
}

static bool find_in_snapshots(const char *repo_folder, const char *file, char name[NAME_MAX + 1])
{
    char snapshots[PATH_MAX], path[2 * PATH_MAX];
    bool found = false;
    if (snprintf(snapshots, sizeof snapshots, "%s/snapshots", repo_folder) >= PATH_MAX) return false;
    DIR *dir = opendir(snapshots);
    for (const struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s/%s", snapshots, entry->d_name, file);
        found = find_beside(path, name);
    }
    if (dir) closedir(dir);
    return found;
}

static bool find_repo(const char *repo_folder, char name[NAME_MAX + 1])
{
    const char *slash = strrchr(repo_folder, '/');
    struct suggest near;
    char cache[PATH_MAX];
    if (!slash || file_is_folder(repo_folder)) return false;
    snprintf(cache, sizeof cache, "%.*s", (int)(slash - repo_folder), repo_folder);
    suggest_begin(&near, slash + 1, strlen(slash + 1));
    if (near.distance) near.distance -= strlen(REPO_PREFIX) / 3; /* which all of them have */
    DIR *dir = opendir(cache);
    for (const struct dirent *entry; dir && (entry = readdir(dir));)
        if (strncmp(entry->d_name, REPO_PREFIX, strlen(REPO_PREFIX)) == 0)
            try_name(&near, entry->d_name, name);
    if (dir) closedir(dir);
    const char *org = near.best ? near.best + strlen(REPO_PREFIX) : "", *divide = strstr(org, "--");
    char repo[NAME_MAX + 1];
    if (!divide) return false;
    snprintf(repo, sizeof repo, "%.*s/%s", (int)(divide - org), org, divide + 2);
    strcpy(name, repo);
    return true;
}

const char *nearest_cached(const char *repo_folder, const char *file, char text[NEAREST_TEXT])
{
    char name[NAME_MAX + 1];
    *text = '\0';
    if (*file ? find_in_snapshots(repo_folder, file, name) || find_repo(repo_folder, name)
              : find_repo(repo_folder, name))
        snprintf(text, NEAREST_TEXT, "; " NEAREST "%s", name);
    return text;
}
