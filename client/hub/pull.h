/* Downloads a model from the hub into its cache (common/model/hub.h has the layout).
 *
 * Called by helm-cli's `pull`, on one thread. Files take their names when they are whole; what an interrupted
 * run leaves is where the next one goes on, also one of the hub's own programs. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/model/hub.h"

struct pull_progress {
    const char *file;        /* that is being fetched */
    uint64_t bytes, at, all; /* of it; of all files: that are there, and in all */
    uint32_t number, count;  /* of the files */
    bool done;               /* with this file */
};
struct pull_request {
    struct hub_name name;
    const char *revision; /* branch, tag or commit */
    void (*say)(void *context, const char *line);
    bool (*progress)(void *context, const struct pull_progress *progress); /* false ends it */
    void *context;
};
struct pulled {
    char path[PATH_MAX]; /* the snapshot's folder of a checkpoint; else the file */
    bool model;          /* that --model takes */
};
/* Nothing is downloaded of a model that HELM cannot run. HELM_E_USAGE: the repository has several models,
 * which `say` has listed. HELM_E_CAPACITY: the disk has no room. HELM_E_PERMISSION: the hub wants a token.
 * HELM_E_MISMATCH: bytes are not those of their checksum; they are removed. */
HELM_MUST_CHECK int pull_model(const struct pull_request *request, struct pulled *pulled,
                               struct helm_err *err);
