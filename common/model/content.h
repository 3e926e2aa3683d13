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
