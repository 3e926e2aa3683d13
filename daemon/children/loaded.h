/* The check that a worker which is started again loads the same.
 *
 * Called by workers.c at every READY. Owns the state that the files had when the model was read. Without
 * this, weights that changed on disk under a running daemon would give other tokens after a worker's death,
 * without a word. */
#pragma once

#include <stdint.h>
#include <sys/stat.h>

#include "common/base/err.h"
#include "common/model/model.h"

/* The digests of one worker (content.h); 0: not known. */
struct loaded {
    uint64_t vectors;  /* of what every start reads: norms, biases, the configuration's numbers */
    uint64_t matrices; /* of the rest */
};

/* The model's files, for a name in the reason. */
struct loaded_files {
    const struct model *model; /* borrowed */
    struct stat *file;         /* [shard_count + 1]: the last is the configuration's, if it is a file */
};

HELM_MUST_CHECK int loaded_files_note(const struct model *model, struct loaded_files *files,
                                      struct helm_err *err);
void loaded_files_free(struct loaded_files *files);

/* Holds what a worker says that it loaded `now` against what it loaded before, and keeps it. HELM_E_MISMATCH:
 * it is not the same; the text names the first file that looks changed. */
HELM_MUST_CHECK int loaded_check(struct loaded *before, const struct loaded *now,
                                 const struct loaded_files *files, struct helm_err *err);
