/* Chains in helm-bench-gpu-kernels: a whole decode step with all layers in one launch, what it costs by
 * parts, by slots of the ring, and a check of its logits.
 *
 * Called by bench_kernels.cu. */
#include <string.h>

#include <algorithm>

#include "tools/bench/gpu/bench.cuh"

static const uint32_t ALL = (1u << PART_COUNT) - 1, NO_ATTENTION = ALL & ~(1u << PART_ATTENTION);

int bench_chain_check(struct bench_model *m, uint32_t position)
{
    const int RUNS = 40;
    bench_model_step(m, 1, position, false);
    bench_enqueue_decode(m, 1, 0);
    const auto plain = bench_logits(m);
    std::vector<float> first;
    int bad = 0;
    bench_chain_write(m, ALL, true, 0);
    for (int i = 0; i < RUNS; i++) {
        CUDA(cudaMemsetAsync(m->logits, 0xff, m->shape.vocab * 4, m->stream));
        bench_enqueue_chain(m);
        const auto again = bench_logits(m);
        if (i == 0) first = again;
        bad += memcmp(first.data(), again.data(), first.size() * 4) != 0;
    }
    const double apart = bench_apart(plain, first);
    const bool good = bad == 0 && apart < 1e-2; /* false for NaN */
    printf("%-8s decode check at %u, chain: %s; other bits in %d of %d runs, %.1e apart from kernel by "
           "kernel; %u "
           "slots, %u KiB of shared memory\n",
           m->shape.name, position, good ? "ok" : "FAILED", bad, RUNS, apart, m->chain.slots,
           m->chain.shared_bytes >> 10);
    return good ? 0 : 1;
}

static double step_seconds(struct bench *b, struct bench_model *m)
{
    return bench_time_graph(b, 5, [&] { bench_enqueue_chain(m); });
}
static double chain_seconds(struct bench *b, struct bench_model *m)
{
    return bench_time_graph(b, 5, [&] { GPUK(gpuk_chain_run(&m->chain, 0, m->stream, &err)); });
}
static void step_row(struct bench *b, struct bench_model *m, const char *what)
{
    const double s = step_seconds(b, m);
    bench_row(m->shape.name, what, s, m->decode_bytes / s / 1e9, "GB/s ", b->read_gbs);
}

void bench_chains(struct bench *b, struct bench_model *m)
{
    const struct bench_shape *s = &m->shape;
    struct gpuk_device *d = &b->device;
    bench_model_step(m, 1, 200, false);
    bench_chain_write(m, ALL, true, 0);
    step_row(b, m, "decode step, chain");
    bench_chain_write(m, NO_ATTENTION, true, 0);
    step_row(b, m, "  without attention");

    printf("%-8s   %% of read by slots:", s->name);
    for (uint32_t a_warp = 1, before = 0;; a_warp++, before = m->chain.slots) {
        d->gemv_slots = (int)a_warp;
        bench_chain_write(m, ALL, true, 0);
        if (m->chain.slots == before) break; /* no more of them fit */
        printf("  %u: %.1f", m->chain.slots, 100 * m->decode_bytes / step_seconds(b, m) / 1e9 / b->read_gbs);
    }
    printf("\n");
    d->gemv_slots = 0;

    /* one kind of operation after another, meetings included: what each costs */
    const char *names[PART_COUNT] = {"chain: norm+qkv", "chain: attention", "chain: o", "chain: gate+up",
                                     "chain: down"};
    for (int part = 0; part < PART_COUNT; part++) {
        bench_chain_write(m, 1u << part, false, 0);
        const double t = chain_seconds(b, m) / s->layers;
        const double rate = bench_part_bytes(m, (enum bench_part)part) / t / 1e9;
        bench_row(s->name, names[part], t, rate, "GB/s ", rate > 0 ? b->read_gbs : 0);
    }
    bench_chain_write(m, 1u << PART_O, false, 16);
    bench_row(s->name, "chain: 16 rows of o", chain_seconds(b, m) / s->layers, 0, "", 0);
    bench_chain_write(m, 1u << PART_DOWN, false, 16);
    bench_row(s->name, "chain: 16 rows of down", chain_seconds(b, m) / s->layers, 0, "", 0);

    for (uint32_t dtype : {KV_BF16, KV_Q8_0}) {
        m->kv.layout.dtype = dtype; /* any bytes will do */
        bench_chain_write(m, ALL, true, 0);
        for (uint32_t context : {128u, 1024u, 4096u, m->context}) {
            char what[64];
            bench_model_step(m, 1, context - 1, false);
            snprintf(what, sizeof what, "  chain at %u, %s", context, kv_dtype_name((enum kv_dtype)dtype));
            const double t = step_seconds(b, m);
            const double bytes = m->decode_bytes + (double)s->layers * context * 2 * s->kv_heads *
                                                       kv_cell_bytes(dtype, s->head_dim);
            bench_row(s->name, what, t, bytes / t / 1e9, "GB/s ", b->read_gbs);
        }
    }
    m->kv.layout.dtype = KV_BF16;
    bench_model_step(m, 1, 200, false);
}
