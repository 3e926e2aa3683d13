/* The hub's list of a repository's files. See listing.h. */
#include "client/hub/listing.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

#define FILE_BYTES_MAX ((uint64_t)1 << 50)

static bool is_digits(const char *text, size_t length)
{
    return strlen(text) == length && text[strspn(text, "0123456789abcdef")] == '\0';
}

static int read_id(const json_t *object, const char *key, size_t digits, char id[LISTING_ID_MAX],
                   struct helm_err *err)
{
    const char *text = NULL;
    int rc = json_get_string(object, key, false, &text, err);
    if (rc || !text) return rc;
    if (!is_digits(text, digits))
        return helm_fail(err, HELM_E_FORMAT, "'%s' is no digest: '%.80s'", key, text);
    memcpy(id, text, digits + 1);
    return 0;
}

static int read_file(const json_t *object, struct listing_file *file, struct helm_err *err)
{
    const char *name = NULL;
    const json_t *lfs = json_object_get(object, "lfs");
    int rc = json_is_object(object) ? json_get_string(object, "rfilename", true, &name, err)
                                    : helm_fail(err, HELM_E_FORMAT, "not an object");
    if (!rc && !hub_file_is_safe(name))
        rc = helm_fail(err, HELM_E_FORMAT, "a file name that leaves the folder: '%.100s'", name);
    if (!rc) rc = json_get_u64(object, "size", false, 0, FILE_BYTES_MAX, &file->bytes, err);
    if (!rc) rc = read_id(object, "blobId", 40, file->id, err);
    if (!rc && json_is_object(lfs)) {
        file->large = true;
        file->id[0] = '\0';
        rc = read_id(lfs, "sha256", 64, file->id, err);
        if (!rc) rc = json_get_u64(lfs, "size", false, 0, FILE_BYTES_MAX, &file->bytes, err);
    }
    if (rc) return rc;
    file->name = strdup(name);
    return file->name ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for the list of files");
}

static int read_files(const json_t *siblings, struct listing *listing, struct helm_err *err)
{
    const size_t count = json_array_size(siblings);
    if (!json_is_array(siblings)) return helm_fail(err, HELM_E_FORMAT, "'siblings' is no list");
    if (count > LISTING_FILES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%zu files, the limit is %d", count, LISTING_FILES_MAX);
    listing->file = calloc(count + 1, sizeof *listing->file);
    if (!listing->file) return helm_fail(err, HELM_E_NOMEM, "no memory for the list of files");
    for (size_t i = 0; i < count; i++) {
        int rc = read_file(json_array_get(siblings, i), &listing->file[i], err);
        if (rc) return helm_err_prefix(err, "file %zu", i);
        listing->count++;
    }
    return 0;
}

int listing_parse(const char *text, size_t length, struct listing *listing, struct helm_err *err)
{
    json_t *json = NULL;
    const char *commit = NULL;
    memset(listing, 0, sizeof *listing);
    int rc = json_parse_bounded("the hub's answer", text, length, LISTING_BYTES_MAX, &json, err);
    if (rc) return rc;
    rc = json_is_object(json) ? json_get_string(json, "sha", true, &commit, err)
                              : helm_fail(err, HELM_E_FORMAT, "not an object");
    if (!rc && !hub_commit_is_valid(commit))
        rc = helm_fail(err, HELM_E_FORMAT, "'sha' is no commit: '%.80s'", commit);
    if (!rc) {
        memcpy(listing->commit, commit, HUB_COMMIT_MAX);
        rc = read_files(json_object_get(json, "siblings"), listing, err);
    }
    json_decref(json);
    if (rc) {
        helm_err_prefix(err, "the hub's answer");
        listing_free(listing);
    }
    return rc;
}

void listing_free(struct listing *listing)
{
    for (size_t i = 0; i < listing->count; i++) free(listing->file[i].name);
    free(listing->file);
    memset(listing, 0, sizeof *listing);
}

const struct listing_file *listing_find(const struct listing *listing, const char *name)
{
    for (size_t i = 0; i < listing->count; i++)
        if (strcmp(listing->file[i].name, name) == 0) return &listing->file[i];
    return NULL;
}
