/* Buffers for kernel tests: each ends at an unreadable page, so that a load or store past its end stops the
 * test, and deterministic random numbers. Included by tests/kernels only. */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define GUARD_PAGE 4096

struct guarded {
    char *map;
    size_t map_bytes;
    void *data; /* its last byte is the last before the unreadable page */
    size_t bytes;
};

/* Filled with 0xff: NaN in every float format, so that an unwritten value poisons every result it enters. */
static inline void guarded_make(struct guarded *g, size_t bytes)
{
    size_t room = (bytes + GUARD_PAGE - 1) / GUARD_PAGE * GUARD_PAGE;
    g->map_bytes = room + GUARD_PAGE;
    g->map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(g->map != MAP_FAILED);
    int protected = mprotect(g->map + room, GUARD_PAGE, PROT_NONE);
    assert(protected == 0);
    (void)protected;
    g->data = g->map + room - bytes;
    g->bytes = bytes;
    memset(g->map, 0xff, room);
}

static inline void guarded_free(struct guarded *g)
{
    munmap(g->map, g->map_bytes);
    memset(g, 0, sizeof *g);
}

/* xorshift64*: the same numbers everywhere. */
static inline uint64_t random_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1du;
}

/* In [-1, 1), multiples of 2^-23. */
static inline float random_float(uint64_t *state)
{
    return (float)(random_next(state) >> 40) * 0x1p-23f - 1.0f;
}
