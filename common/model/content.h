/* Digests of what was read of a model: tells whether it is the same when it is read again.
 *
 * Called by shards.c for every run of bytes, and by both workers' loaders. Pure. A sum of digests of runs,
 * each with its place, so that threads may read in any order; the same cuts into runs give the same sum. XXH3
 * of 64 bits (https://xxhash.com): against changes, not against forgers. */
#pragma once

#include "common/model/model.h"

/* `place`: where it stands, such as its offset. */
uint64_t content_of(const void *bytes, size_t count, uint64_t place);
/* The digest of the numbers that a model's arithmetic depends on beside its weights. */
uint64_t content_of_config(const struct model_config *config);

/* Which model it is, in 64 bits: what a session's file is bound to (proto/helm.proto, SessionShape).
 *
 * Called once by helmd, at its start. It covers the numbers that the arithmetic depends on, every tensor's
 * name, shape and format, the vectors' bytes and IDENTITY_SAMPLE bytes at the beginning of each matrix and as
 * many in its middle: a few MB of any model. A model that was trained further, merged or converted differs in
 * those. XXH3 of 64 bits: against mistakes, not against forgers. */
#define IDENTITY_SAMPLE 4096

/* The same wherever the model lies, and whatever is planned for it. */
HELM_MUST_CHECK int model_identity(const struct model *model, uint64_t *identity, struct helm_err *err);
