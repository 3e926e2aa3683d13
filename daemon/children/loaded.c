/* The check that a worker loads the same again. See loaded.h. Called by workers.c and main.c; owns the files'
 * former state. */
#include "daemon/children/loaded.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_TEXT 4096

static const char *name_of(const struct model *model, uint32_t i)
{
    return i < model->shard_count ? model->shards[i].file : "config.json";
}

/* All zero where there is none. */
static struct stat look_at(const struct model *model, uint32_t i)
{
    char path[PATH_TEXT];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", model->folder, name_of(model, i));
    if (stat(path, &st)) memset(&st, 0, sizeof st);
    return st;
}

int loaded_files_note(const struct model *model, struct loaded_files *files, struct helm_err *err)
{
    *files =
        (struct loaded_files){.model = model, .file = calloc(model->shard_count + 1, sizeof *files->file)};
    if (!files->file) return helm_fail(err, HELM_E_NOMEM, "no memory for a list of files");
    for (uint32_t i = 0; i <= model->shard_count; i++) files->file[i] = look_at(model, i);
    return 0;
}

void loaded_files_free(struct loaded_files *files)
{
    free(files->file);
    *files = (struct loaded_files){0};
}

static const char *change_of(const struct stat *was, const struct stat *is)
{
    if (was->st_ino && !is->st_ino) return "is gone";
    if (was->st_ino != is->st_ino || was->st_dev != is->st_dev) return "is another file";
    if (was->st_size != is->st_size) return "has another size";
    if (memcmp(&was->st_mtim, &is->st_mtim, sizeof was->st_mtim) != 0) return "was written to";
    /* set back, the time of writing is; this one cannot be */
    return memcmp(&was->st_ctim, &is->st_ctim, sizeof was->st_ctim) != 0 ? "was changed" : NULL;
}

int loaded_check(struct loaded *before, const struct loaded *now, const struct loaded_files *files,
                 struct helm_err *err)
{
    const bool other = (before->vectors && now->vectors && before->vectors != now->vectors) ||
                       (before->matrices && now->matrices && before->matrices != now->matrices);
    if (now->vectors) before->vectors = now->vectors;
    if (now->matrices) before->matrices = now->matrices;
    if (!other) return 0;
    const char *name = "", *change = NULL;
    for (uint32_t i = 0; files->file && i <= files->model->shard_count && !change; i++) {
        const struct stat is = look_at(files->model, i);
        change = change_of(&files->file[i], &is);
        name = name_of(files->model, i);
    }
    return helm_fail(
        err, HELM_E_MISMATCH,
        "the model changed on disk while it was served (%s%s%s): what a worker loads again is not what "
        "was loaded, so requests cannot go on with the same tokens",
        change ? name : "no file's size or time tells which", change ? " " : "", change ? change : "");
}
