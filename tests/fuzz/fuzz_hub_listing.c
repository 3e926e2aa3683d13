/* Fuzz target: the hub's list of a repository's files (client/hub/listing.c), and the tags of those that are
 * GGUF models (common/model/hub_tag.c). No accepted name leaves its folder, every id is of digits, every tag
 * means its file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/hub/listing.h"

#define FILES_MAX 50

static void check_tags(const struct listing *listing)
{
    const char *names[FILES_MAX];
    struct hub_files files = {names, 0};
    for (size_t i = 0; i < listing->count && files.count < FILES_MAX; i++)
        if (hub_file_is_gguf(listing->file[i].name)) names[files.count++] = listing->file[i].name;
    for (size_t i = 0; i < files.count; i++) {
        struct hub_name name = {.repo = "a/b"};
        struct helm_err err = {0};
        size_t which = FILES_MAX;
        hub_tag_of(&files, i, name.tag);
        if (name.tag[0] && (hub_tag_find(&files, &name, &which, &err) || which != i)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct listing listing;
    struct helm_err err = {0};
    if (listing_parse((const char *)data, size, &listing, &err)) {
        if (!err.code || listing.file || listing.count) abort();
        return 0;
    }
    if (!hub_commit_is_valid(listing.commit)) abort();
    for (size_t i = 0; i < listing.count; i++) {
        const struct listing_file *f = &listing.file[i];
        char path[HUB_FILE_MAX + 3];
        snprintf(path, sizeof path, "/%s/", f->name);
        if (strstr(path, "/../") || strstr(path, "/./") || strstr(path, "//") || strchr(path, '\n')) abort();
        if (f->id[strspn(f->id, "0123456789abcdef")] || (f->large && f->id[0] && strlen(f->id) != 64))
            abort();
        if (!listing_find(&listing, f->name)) abort();
    }
    check_tags(&listing);
    listing_free(&listing);
    return 0;
}
