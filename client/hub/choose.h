/* Which of a repository's files make the model. Called by pull.c; owns nothing. */
#pragma once

#include <stdbool.h>

#include "client/hub/listing.h"

/* chosen[i] of listing->file[i]: with `file` that one, with all parts of a split GGUF file; with `tag` the
 * GGUF file that it means; else a checkpoint's files that HELM reads, else the only GGUF file. `model`: the
 * GGUF file, the first of its parts, borrowed from the listing; NULL: none. HELM_E_USAGE: there are several,
 * each of which `say` has told with its size and a tag. */
struct choice {
    bool *chosen; /* the caller's, [listing->count] */
    const char *model;
    bool checkpoint; /* is chosen */
};
HELM_MUST_CHECK int choose_files(const struct listing *listing, const struct hub_name *name,
                                 struct choice *choice, void (*say)(void *context, const char *line),
                                 void *context, struct helm_err *err);
