/* The files of a repository of the hub, from the hub's answer to /api/models/REPO/revision/REV?blobs=true.
 *
 * Called by pull.c. The text is a stranger's: names that could leave a folder, ids that are no digits and
 * counts beyond bounds are refused. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/model/hub.h"

#define LISTING_BYTES_MAX ((size_t)32 << 20)
#define LISTING_FILES_MAX 50000
#define LISTING_ID_MAX    65

struct listing_file {
    char *name;
    uint64_t bytes;
    /* Its blob's: SHA-256 of a large file, 40 digits of a small one; "": not said */
    char id[LISTING_ID_MAX];
    bool large; /* kept in LFS: id is the contents' SHA-256 */
};
struct listing {
    char commit[HUB_COMMIT_MAX];
    struct listing_file *file;
    size_t count;
};

HELM_MUST_CHECK int listing_parse(const char *text, size_t length, struct listing *listing,
                                  struct helm_err *err);
void listing_free(struct listing *listing); /* also of a zeroed one */
/* NULL: no such file. */
const struct listing_file *listing_find(const struct listing *listing, const char *name);
