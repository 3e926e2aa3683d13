/* Fuzz target: the hub's list of a repository's files (client/hub/listing.c). No accepted name leaves its folder, every id
 * is of digits. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/hub/listing.h"

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
        if (f->name[0] == '/' || strstr(f->name, "../") || strcmp(f->name, "..") == 0 ||
            strchr(f->name, '\n'))
            abort();
        if (f->id[strspn(f->id, "0123456789abcdef")] || (f->large && f->id[0] && strlen(f->id) != 64))
            abort();
        if (!listing_find(&listing, f->name)) abort();
    }
    listing_free(&listing);
    return 0;
}
