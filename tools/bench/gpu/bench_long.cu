/* Attention over long contexts in helm-bench-gpu-kernels --long: whole steps of one chain and attention alone at contexts up
 * to 32K, and the separate kernel and a chain of nothing else by shares of query heads and head_dim.
 *
 * Called by bench_kernels.cu. Percent is of VRAM read, of weights and KV read once; attention alone: of KV. */
#include <math.h>
#include <string.h>

#include "tools/bench/gpu/bench.cuh"

static const uint32_t ALL = (1u << PART_COUNT) - 1;

static double kv_bytes(const struct kv_layout *l, uint32_t context)
{
    return (double)context * 2 * l->kv_heads * kv_cell_bytes(l->dtype, l->head_dim);
}

/* One line: a step, and attention alone. */
static void long_row(struct bench *b, struct bench_model *m, uint32_t context)
{
    const struct bench_shape *s = &m->shape;
    const double kv = kv_bytes(&m->kv.layout, context);
    bench_model_step(m, 1, context - 1, false);
    bench_chain_write(m, ALL, true, 0);
    const double step = bench_time_graph(b, 3, [&] { bench_enqueue_chain(m); });
    bench_chain_write(m, 1u << PART_ATTENTION, false, 0);
    const double alone =
        bench_time_graph(b, 3, [&] { GPUK(gpuk_chain_run(&m->chain, 0, m->stream, &err)); }) / s->layers;
    const double all = m->decode_bytes + s->layers * kv;
    printf("%-8s %-5s at %5u %9.1f us a step, %5.1f %% of read, %6.1f token/s; attention %7.2f us a "
           "layer, %5.1f %%\n",
           s->name, kv_dtype_name((enum kv_dtype)m->kv.layout.dtype), context, step * 1e6,
           100 * all / step / 1e9 / b->read_gbs, 1 / step, alone * 1e6, 100 * kv / alone / 1e9 / b->read_gbs);
}

void bench_long_steps(struct bench *b, struct bench_model *m)
{
    for (uint32_t dtype : {KV_F16, KV_Q8_0}) {
        m->kv.layout.dtype = dtype; /* any bytes will do */
        for (uint32_t context : {128u, 1024u, 2048u, 2049u, 4096u, 16384u, 32768u}) {
            long_row(b, m, context);
        }
    }
}

/* Attention of any shape over the model's cache, whose bytes are divided anew. */
void bench_long_shapes(struct bench *b, struct bench_model *m)
{
    const uint32_t CONTEXT = 32768, LAYERS = 4, KV_HEADS = 8;
    const struct gpuk_kv kept = m->kv;
    bench_model_step(m, 1, CONTEXT - 1, false);
    printf("attention over %u positions of %u kv heads, %% of read: the separate kernel / in a chain, by "
           "query heads a kv head\n",
           CONTEXT, KV_HEADS);
    for (uint32_t dtype : {KV_F16, KV_Q8_0, KV_F32})
        for (uint32_t dim : {64u, 96u, 128u, 256u}) {
            printf("  %-5s head_dim %3u: ", kv_dtype_name((enum kv_dtype)dtype), dim);
            for (uint32_t group : {1u, 2u, 4u, 5u, 8u}) {
                struct gpuk_attention a = {};
                a.step = m->step, a.kv = kept;
                a.kv.layout = {LAYERS, KV_HEADS, dim, kept.layout.page_tokens, dtype};
                a.heads = group * KV_HEADS, a.scale = 1 / sqrtf((float)dim), a.eps = 1e-6f;
                a.q_norm = a.k_norm = m->ones, a.rope_table = m->rope_table;
                a.q = m->q, a.k = a.q + a.heads * dim, a.v = a.k + KV_HEADS * dim;
                a.q_stride = a.kv_stride = (a.heads + 2 * KV_HEADS) * dim;
                const double kv = kv_bytes(&a.kv.layout, CONTEXT);
                const double alone =
                    bench_time_graph(b, 2,
                                     [&] {
                                         for (uint32_t l = 0; l < LAYERS; l++) {
                                             a.kv.layer = l;
                                             GPUK(gpuk_attention_decode(m->device, &a, 1, true, m->attended,
                                                                        NULL, NULL, m->attention_workspace,
                                                                        l ? early_of(b) : 0, m->stream,
                                                                        &err));
                                         }
                                     }) /
                    LAYERS;
                std::vector<struct gpuk_chain_op> ops(LAYERS);
                for (uint32_t l = 0; l < LAYERS; l++) {
                    ops[l].kind = GPUK_CHAIN_ATTENTION;
                    a.kv.layer = l;
                    ops[l].attention.args = a, ops[l].attention.out = m->attended;
                }
                double chained = 0;
                if (b->device.bulk_copy && gpuk_chain_takes(&b->device, &ops[0])) {
                    struct gpuk_chain chain;
                    void *list;
                    CUDA(cudaMalloc(&list, gpuk_chain_bytes(ops.data(), LAYERS)));
                    GPUK(gpuk_chain_write(m->device, ops.data(), LAYERS, list, m->attention_workspace,
                                          m->stream, &chain, &err));
                    chained =
                        bench_time_graph(b, 2, [&] { GPUK(gpuk_chain_run(&chain, 0, m->stream, &err)); }) /
                        LAYERS;
                    CUDA(cudaFree(list));
                }
                printf("  %u: %5.1f / %5.1f", group, 100 * kv / alone / 1e9 / b->read_gbs,
                       chained > 0 ? 100 * kv / chained / 1e9 / b->read_gbs : 0);
            }
            printf("\n");
        }
    bench_model_step(m, 1, 200, false);
}
