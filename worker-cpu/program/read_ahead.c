/* The trial of read-ahead. See execute.h. Passes over the linears alone, alternating between the two
 * distances, so that other processes' load on memory affects both alike. Owns nothing. */
#include "worker-cpu/program/execute.h"

#include <string.h>
#include <unistd.h>

#include "common/base/units.h"
#include "worker-cpu/program/linear.h"

#define ROUNDS      7
#define ROUNDS_LESS 3 /* after so long */
#define ENOUGH_NS   600000000ull
#define PASS_BYTES  (512ull << 20) /* or three times the L3, but no more than can be read in */
#define PASS_S      0.1
#define GAIN        1.02 /* less may be chance */

struct pass {
    struct run *run;
    const struct program *program[2];
    uint32_t index, entry;
    uint64_t bytes, most;
};

static void chunk_linear(void *ctx, uint32_t chunk, uint32_t thread)
{
    const struct pass *p = ctx;
    linear_one_token(p->run, chunk, thread);
}

static bool next_linear(void *ctx, uint32_t thread, struct pool_job *job)
{
    struct pass *p = ctx;
    (void)thread;
    for (; p->index < 2; p->index++, p->entry = 0)
        while (p->entry < p->program[p->index]->count) {
            const struct program_entry *e = &p->program[p->index]->entry[p->entry++];
            if (e->kind != OP_LINEAR) continue;
            if (p->bytes >= p->most) return false;
            p->bytes += e->bytes;
            p->run->entry = e;
            p->run->turn++;
            *job = (struct pool_job){.run = chunk_linear,
                                     .chunks = e->chunks,
                                     .alone = e->alone,
                                     .width = e->share};
            return true;
        }
    return false;
}

/* Bytes a second. */
static double pass(struct pass *p, uint32_t far)
{
    p->run->reads.gemv.far = far;
    p->index = p->entry = 0;
    p->bytes = 0;
    const uint64_t begin = units_now_ns();
    pool_run(p->run->pool, next_linear, p);
    p->run->entry = NULL;
    return (double)p->bytes * 1e9 / (double)(units_now_ns() - begin);
}

static double median(double *value, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t k = i; k > 0 && value[k] < value[k - 1]; k--) {
            const double other = value[k];
            value[k] = value[k - 1];
            value[k - 1] = other;
        }
    return value[count / 2];
}

static uint64_t pass_bytes(void)
{
    const long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE); /* 0 or less: not known */
    return l3 > 0 && 3 * (uint64_t)l3 > PASS_BYTES ? 3 * (uint64_t)l3 : PASS_BYTES;
}

void read_ahead_choose(struct run *run, const struct program *layers, const struct program *head,
                       uint64_t least, struct read_ahead *found)
{
    const uint32_t before = run->reads.gemv.far;
    struct pass p = {.run = run, .program = {layers, head}, .most = pass_bytes()};
    double rate[2][ROUNDS];
    uint32_t rounds = 0;
    memset(found, 0, sizeof *found);
    if (layers->bytes + head->bytes < least) return;
    const double most = PASS_S * pass(&p, before); /* the first also touches pages for the first time */
    if (most < (double)p.most) p.most = most > (double)READ_AHEAD_LEAST ? (uint64_t)most : READ_AHEAD_LEAST;
    const uint64_t begin = units_now_ns();
    while (rounds < ROUNDS && (rounds < ROUNDS_LESS || units_now_ns() - begin < ENOUGH_NS)) {
        const int first = rounds & 1; /* which may find the caches otherwise than the second */
        for (int i = 0; i < 2; i++) rate[first ^ i][rounds] = pass(&p, first ^ i ? GEMV_FAR : 0);
        rounds++;
    }
    found->near_rate = median(rate[0], rounds);
    found->far_rate = median(rate[1], rounds);
    run->reads.gemv.far = found->far_rate > found->near_rate * GAIN   ? GEMV_FAR
                          : found->near_rate > found->far_rate * GAIN ? 0
                                                                      : before;
}
