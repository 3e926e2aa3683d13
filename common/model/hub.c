/* Names of the hub, its cache, and what --model means. See hub.h. */
#include "common/model/hub.h"

#include <dirent.h>
#include <fts.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/suggest.h"

#define PART_MAX  255 /* of a path: what file systems take */
#define DEPTH_MAX 8   /* of folders in a snapshot */
#define GGUFS_MAX 1000

static bool is_name_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
}

/* As the hub has them: no dot or dash at an end, and "--" stands for the slash in the cache. */
static bool is_repo_part(const char *text, size_t length)
{
    if (length == 0 || length > 96 || text[0] == '.' || text[0] == '-' || text[length - 1] == '.' ||
        text[length - 1] == '-')
        return false;
    for (size_t i = 0; i < length; i++) {
        const bool twice = i + 1 < length && text[i] == text[i + 1] && (text[i] == '-' || text[i] == '.');
        if (!is_name_letter(text[i]) || twice) return false;
    }
    return true;
}

bool hub_tag_is_valid(const char *tag)
{
    size_t length = 0;
    while (is_name_letter(tag[length])) length++;
    return length > 0 && length < HUB_TAG_MAX && !tag[length];
}

bool hub_file_is_safe(const char *file)
{
    const size_t length = strlen(file);
    if (length == 0 || length >= HUB_FILE_MAX) return false;
    for (const char *part = file;;) {
        const size_t bytes = strcspn(part, "/");
        if (bytes == 0 || bytes > PART_MAX || strncmp(part, "..", bytes) == 0) return false;
        for (size_t i = 0; i < bytes; i++)
            if ((unsigned char)part[i] < 0x20 || part[i] == 0x7f || part[i] == '\\') return false;
        if (!part[bytes]) return true;
        part += bytes + 1;
    }
}

bool hub_commit_is_valid(const char *commit)
{
    return strlen(commit) == HUB_COMMIT_MAX - 1 && commit[strspn(commit, "0123456789abcdef")] == '\0';
}

/* A name as Ollama and web pages have it, without the hub's own. */
static const char *skip_hub(const char *text)
{
    static const char *const hubs[] = {"https://", "hf.co/", "huggingface.co/"};
    for (size_t i = 0; i < sizeof hubs / sizeof *hubs; i++)
        if (strncmp(text, hubs[i], strlen(hubs[i])) == 0) text += strlen(hubs[i]);
    return text;
}

int hub_name_parse(const char *given, struct hub_name *name, struct helm_err *err)
{
    const char *text = skip_hub(given);
    const size_t org = strcspn(text, "/");
    const char *second = text[org] ? text + org + 1 : text + org;
    const size_t model = strcspn(second, "/:");
    const char *rest = second[model] ? second + model + 1 : NULL;
    const char *file = second[model] == '/' ? rest : NULL, *tag = second[model] == ':' ? rest : NULL;
    memset(name, 0, sizeof *name);
    if (!is_repo_part(text, org) || !is_repo_part(second, model) || (file && !hub_file_is_safe(file)) ||
        (tag && !hub_tag_is_valid(tag)))
        return helm_fail(err, HELM_E_USAGE,
                         "'%.200s' is no name of the hub: ORG/NAME, ORG/NAME:TAG or ORG/NAME/FILE", given);
    snprintf(name->repo, sizeof name->repo, "%.*s", (int)(org + 1 + model), text);
    snprintf(name->file, sizeof name->file, "%s", file ? file : "");
    snprintf(name->tag, sizeof name->tag, "%s", tag ? tag : "");
    return 0;
}

int hub_cache_folder(char folder[PATH_MAX], struct helm_err *err)
{
    static const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HUGGINGFACE_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = getenv(places[i].variable);
        if (!value || !*value) continue;
        if (snprintf(folder, PATH_MAX, "%s%s", value, places[i].below) >= PATH_MAX)
            return helm_fail(err, HELM_E_LIMIT, "$%s is too long", places[i].variable);
        return 0;
    }
    return helm_fail(err, HELM_E_NOT_FOUND,
                     "none of HF_HUB_CACHE, HF_HOME and HOME says where the hub's cache is");
}

int hub_repo_folder(const struct hub_name *name, char folder[PATH_MAX], struct helm_err *err)
{
    char cache[PATH_MAX];
    int rc = hub_cache_folder(cache, err);
    if (rc) return rc;
    const int org = (int)strcspn(name->repo, "/");
    if (snprintf(folder, PATH_MAX, "%s/models--%.*s--%s", cache, org, name->repo, name->repo + org + 1) >=
        PATH_MAX)
        return helm_fail(err, HELM_E_LIMIT, "the hub's cache has too long a path: %.200s", cache);
    return 0;
}

/* The snapshot that refs/main names, else the only one. */
static bool find_snapshot(const char *repo_folder, char snapshot[PATH_MAX])
{
    char path[PATH_MAX], *commit = NULL;
    size_t length = 0;
    int n = snprintf(path, sizeof path, "%s/refs/main", repo_folder), found = 0;
    if (n < PATH_MAX && !file_read(path, 256, &commit, &length, &(struct helm_err){0})) {
        commit[strcspn(commit, "\r\n ")] = '\0';
        n = hub_commit_is_valid(commit) ? snprintf(snapshot, PATH_MAX, "%s/snapshots/%s", repo_folder, commit)
                                        : 0;
        free(commit);
        if (n > 0 && n < PATH_MAX && file_is_folder(snapshot)) return true;
    }
    n = snprintf(path, sizeof path, "%s/snapshots", repo_folder);
    DIR *dir = n < PATH_MAX ? opendir(path) : NULL;
    if (!dir) return false;
    for (const struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        n = snprintf(snapshot, PATH_MAX, "%s/%s", path, entry->d_name);
        found++;
    }
    closedir(dir);
    return found == 1 && n > 0 && n < PATH_MAX && file_is_folder(snapshot);
}

static int take(const char *text, char **path, struct helm_err *err)
{
    *path = strdup(text);
    return *path ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a path");
}

static bool has(const char *folder, const char *name)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", folder, name) < PATH_MAX && access(path, F_OK) == 0;
}

/* A repository's own folder in the cache is not what holds the files. */
static int locate_existing(const char *text, char **path, struct helm_err *err)
{
    char snapshot[PATH_MAX];
    if (!file_is_folder(text) || has(text, "config.json") || !has(text, "snapshots"))
        return take(text, path, err);
    if (find_snapshot(text, snapshot)) return take(snapshot, path, err);
    return helm_fail(
        err, HELM_E_USAGE,
        "%.200s is a folder of the hub's cache whose refs/main names none of its snapshots: name one, "
        "%.200s/snapshots/COMMIT",
        text, text);
}

/* The GGUF models of a snapshot, whose names are malloc'd. Links to files are files there; links to folders
 * are not followed. */
static int list_ggufs(char snapshot[PATH_MAX], struct hub_files *files, struct helm_err *err)
{
    char *const roots[] = {snapshot, NULL};
    const size_t skip = strlen(snapshot) + 1;
    int rc = 0;
    FTS *walk = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL);
    if (!walk) return helm_fail_errno(err, "%s", snapshot);
    for (FTSENT *entry; !rc && (entry = fts_read(walk));) {
        if (entry->fts_level >= DEPTH_MAX) fts_set(walk, entry, FTS_SKIP);
        if (entry->fts_info != FTS_F && entry->fts_info != FTS_SL) continue;
        const char *file = entry->fts_path + skip;
        if (entry->fts_level < 1 || !hub_file_is_safe(file) || !hub_file_is_gguf(file)) continue;
        if (access(entry->fts_path, F_OK)) continue;
        const char **grown = realloc(files->name, (files->count + 1) * sizeof *grown);
        if (grown) files->name = grown;
        if (grown && (grown[files->count] = strdup(file)))
            files->count++;
        else
            rc = helm_fail(err, HELM_E_NOMEM, "no memory for the files of %s", snapshot);
        if (!rc && files->count > GGUFS_MAX)
            rc = helm_fail(err, HELM_E_LIMIT, "%s has more than %d GGUF files", snapshot, GGUFS_MAX);
    }
    fts_close(walk);
    return rc;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* The file of a snapshot that a name means; "": the snapshot itself. */
static int find_file(char snapshot[PATH_MAX], const struct hub_name *name, char file[HUB_FILE_MAX],
                     struct helm_err *err)
{
    struct hub_files files = {0};
    size_t which = 0;
    snprintf(file, HUB_FILE_MAX, "%s", name->file);
    if (name->file[0] || (!name->tag[0] && has(snapshot, "config.json"))) return 0;
    int rc = list_ggufs(snapshot, &files, err);
    if (files.count) qsort(files.name, files.count, sizeof *files.name, compare_names);
    if (!rc && name->tag[0]) rc = hub_tag_find(&files, name, &which, err);
    if (!rc && (name->tag[0] || (files.count == 1 && strchr(files.name[0], '/'))))
        snprintf(file, HUB_FILE_MAX, "%s", files.name[which]);
    while (files.count) free((char *)files.name[--files.count]);
    free(files.name);
    return rc;
}

/* ---- the existing name that is nearest to one that is not there ---- */

#define REPO_PREFIX  "models--"
#define NEAREST      "the nearest name there is "
#define NEAREST_TEXT 300

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

/* Looks in the path's folder: to a GGUF file's name for the nearest of the GGUF files there, however far; to
 * another one for a near one of folders and GGUF files. true: there is one; *err is HELM_E_NOT_FOUND and
 * names it. */
static bool nearest_refuse(const char *path, struct helm_err *err)
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

/* "; the nearest name there is NAME" of what the hub's cache has, or "": a GGUF file beside `file` ("": none
 * is named) where the repository is there, else a repository. */
static const char *nearest_cached(const char *repo_folder, const char *file, char text[NEAREST_TEXT])
{
    char name[NAME_MAX + 1];
    *text = '\0';
    if (*file ? find_in_snapshots(repo_folder, file, name) || find_repo(repo_folder, name)
              : find_repo(repo_folder, name))
        snprintf(text, NEAREST_TEXT, "; " NEAREST "%s", name);
    return text;
}

/* ---- what --model means ---- */

int hub_locate(const char *text, char **path, struct helm_err *err)
{
    struct hub_name name;
    char folder[PATH_MAX], found[PATH_MAX], inside[HUB_FILE_MAX], file[PATH_MAX + HUB_FILE_MAX];
    struct helm_err ignored = {0};
    *path = NULL;
    if (access(text, F_OK) == 0) return locate_existing(text, path, err);
    if (nearest_refuse(text, err)) return HELM_E_NOT_FOUND;
    if (hub_name_parse(text, &name, &ignored)) return take(text, path, err);
    int rc = hub_repo_folder(&name, folder, err);
    if (rc) return rc;
    if (find_snapshot(folder, found)) {
        rc = find_file(found, &name, inside, err);
        if (rc == HELM_E_NOT_FOUND)
            return helm_err_prefix(err, "the hub's cache (`helm-cli pull %.100s` downloads what it lacks)",
                                   text);
        if (rc) return rc;
        snprintf(file, sizeof file, "%s%s%s", found, inside[0] ? "/" : "", inside);
        if (access(file, F_OK) == 0) return take(file, path, err);
    }
    return helm_fail(err, HELM_E_NOT_FOUND,
                     "%s: no such file or folder, nor is it in the hub's cache (%.160s): `helm-cli pull %s` "
                     "downloads it%s",
                     text, folder, text, nearest_cached(folder, name.file, (char[NEAREST_TEXT]){""}));
}
