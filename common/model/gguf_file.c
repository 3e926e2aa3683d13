/* Which GGUF file a path means: the file itself, or a folder's only one. See gguf.h and checkpoint.h. Readers
 * of text open headers here without knowing any model. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/model/checkpoint.h"

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), tail = strlen(end);
    return length > tail && strcmp(text + length - tail, end) == 0;
}

bool gguf_is_part(const char *file, uint32_t *number, uint32_t *count)
{
    const size_t length = strlen(file), tail = sizeof GGUF_PART_SUFFIX - 1;
    int used = 0;
    if (length <= tail) return false;
    return sscanf(file + length - tail, "-%5u-of-%5u.gguf%n", number, count, &used) == 2 &&
           (size_t)used == tail;
}

/* A folder's only model: not several GGUF files, nor one beside safetensors files. */
static int find_in_folder(const char *folder, char file[MODEL_NAME_MAX], struct helm_err *err)
{
    int rc = 0;
    DIR *dir = opendir(folder);
    *file = '\0';
    if (!dir) return 0; /* the reader of folders says why */
    for (const struct dirent *entry; !rc && (entry = readdir(dir));) {
        const char *name = entry->d_name;
        uint32_t number = 1, count = 1;
        if (ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json")) {
            *file = '\0';
            break;
        }
        if (!ends_with(name, ".gguf") || strncmp(name, "mmproj", 6) == 0) continue;
        if (gguf_is_part(name, &number, &count) && number != 1) continue;
        if (*file)
            rc = helm_fail(err, HELM_E_USAGE, "%s has several GGUF files, such as %s and %.150s: name one",
                           folder, file, name);
        else if (strlen(name) >= MODEL_NAME_MAX)
            rc = helm_fail(err, HELM_E_LIMIT, "%s: a file name of %zu bytes, the limit is %d", folder,
                           strlen(name), MODEL_NAME_MAX - 1);
        else
            strcpy(file, name);
    }
    closedir(dir);
    return rc;
}

int gguf_find_file(const char *path, char **folder, char file[MODEL_NAME_MAX], struct helm_err *err)
{
    *folder = NULL;
    *file = '\0';
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (file_is_folder(path)) {
        int rc = find_in_folder(path, file, err);
        if (rc || !*file) return rc;
        *folder = strdup(path);
    } else if (!ends_with(name, ".gguf")) {
        return 0;
    } else if (strlen(name) >= MODEL_NAME_MAX) {
        return helm_fail(err, HELM_E_LIMIT, "a file name of %zu bytes, the limit is %d", strlen(name),
                         MODEL_NAME_MAX - 1);
    } else {
        strcpy(file, name);
        *folder = !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
    }
    return *folder ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a path");
}

int gguf_open(const char *path, struct gguf *header, struct helm_err *err)
{
    char *folder, file[MODEL_NAME_MAX];
    int fd = -1;
    uint64_t bytes = 0;
    memset(header, 0, sizeof *header);
    int rc = gguf_find_file(path, &folder, file, err);
    if (rc || !folder) return rc;
    rc = file_open_inside(folder, file, &fd, &bytes, err);
    if (!rc) rc = gguf_read(fd, bytes, file, true, header, err);
    if (fd >= 0) close(fd);
    free(folder);
    return rc;
}
