/* Whether HELM can run what is about to be downloaded: found out from its configuration or its headers alone.
 *
 * Called by pull.c before it fetches anything else. Files that it reads lie in a folder of their own in
 * $TMPDIR, which is gone when it returns: a model whose weights are cut off, for the readers of models to
 * judge. */
#pragma once

#include "client/hub/listing.h"
#include "client/hub/transfer.h"

struct probe {
    struct transfer *transfer;
    const struct listing *listing;
    const bool *chosen;       /* [listing->count] */
    const char *repo, *blobs; /* its name, and the cache's folder of its contents, which may not exist */
    const char *model;        /* the GGUF file, the first of its parts; NULL: a checkpoint */
};
/* HELM_E_UNSUPPORTED and others of the readers of models: the error names what is in the way and what is
 * supported. */
HELM_MUST_CHECK int probe_model(const struct probe *probe, struct helm_err *err);
