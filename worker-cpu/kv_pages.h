/* The KV pool's memory: its first part before READY, the rest after the first answers.
 *
 * Populating a large pool takes seconds where the machine must first find the memory, and no request needs
 * all of it at once: engine.c populates kv_pages_first_bytes() with the pool's threads, and one background
 * thread of the lowest priority does the rest in address order, which is the order helmd gives pages out in.
 * A page used before its turn works (the first write finds memory) and is moved to huge pages when its turn
 * comes. Called by engine.c only. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "common/shared/arena.h"

struct kv_filler {
    const struct arena *arena; /* borrowed */
    uint64_t offset, bytes;
    pthread_t thread;
    bool started;
    _Atomic bool stop;
};

/* How much of a pool of `bytes` is populated at load; a multiple of a huge page, or all of it. */
uint64_t kv_pages_first_bytes(uint64_t bytes);

/* Starts populating [offset, offset + bytes) of the arena; nothing happens with 0 bytes. */
HELM_MUST_CHECK int kv_filler_start(struct kv_filler *filler, const struct arena *arena, uint64_t offset,
                                    uint64_t bytes, struct helm_err *err);
/* Ends it, done or not. A filler that was never started is allowed. */
void kv_filler_stop(struct kv_filler *filler);
