/* Models and machines that exist only in the planner's tests: shapes and rates, no weights. Included by
 * tests/unit/daemon/planner/test_*.c; the caller frees what made_up_open allocates. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "daemon/planner/search/search.h"

struct made_up {
    struct model model;
    struct model_tensor *tensor;
    uint32_t *window;
    struct analyse_table analysed;
    struct search_bytes *bytes; /* [units][3], made_up_memory */
};

struct made_up_shape {
    uint32_t layers, hidden, intermediate, heads, kv_heads, head_dim, vocab;
    bool tied;
};

static const struct made_up_shape shape_8b = {36, 4096, 12288, 32, 8, 128, 151936, false};
static const struct made_up_shape shape_14b = {40, 5120, 17408, 40, 8, 128, 151936, false};
static const struct made_up_shape shape_32b = {64, 5120, 25600, 64, 8, 128, 151936, false};
static const struct made_up_shape shape_70b = {80, 8192, 28672, 64, 8, 128, 128256, false};

static inline void made_up_add(struct made_up *m, enum tensor_role role, int32_t layer, uint64_t rows,
                               uint64_t cols)
{
    m->tensor[m->model.tensor_count++] = (struct model_tensor){.role = role,
                                                               .layer = layer,
                                                               .format = FORMAT_BF16,
                                                               .rows = rows,
                                                               .cols = cols,
                                                               .bytes = rows * cols * 2};
}

/* The model's tables, from its tensors. */
static inline bool made_up_index(struct model *m)
{
    struct helm_err err = {0};
    model_math_build(&m->config, &m->math);
    m->by_role = calloc(TENSOR_ROLE_COUNT * (size_t)(m->config.layers + 1), sizeof *m->by_role);
    for (uint32_t i = 0; i < m->tensor_count && m->by_role; i++)
        m->by_role[m->tensors[i].role * (m->config.layers + 1) + (uint32_t)(m->tensors[i].layer + 1)] = i + 1;
    return m->by_role && model_units_build(m, &err) == 0;
}

static inline bool made_up_open(struct made_up *m, const struct made_up_shape *s)
{
    uint32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    struct helm_err err = {0};
    memset(m, 0, sizeof *m);
    m->tensor = calloc(9 * (size_t)s->layers + 3, sizeof *m->tensor);
    m->window = calloc(s->layers, sizeof *m->window);
    if (!m->tensor || !m->window) return false;
    m->model.tensors = m->tensor;
    m->model.config = (struct model_config){.architecture = "LlamaForCausalLM",
                                            .layers = s->layers,
                                            .hidden = s->hidden,
                                            .intermediate = s->intermediate,
                                            .vocab = s->vocab,
                                            .heads = s->heads,
                                            .kv_heads = s->kv_heads,
                                            .head_dim = s->head_dim,
                                            .max_context = 40960,
                                            .tied_head = s->tied,
                                            .dtype = DTYPE_BF16,
                                            .window = m->window};
    made_up_add(m, TENSOR_EMBED, -1, s->vocab, s->hidden);
    for (int32_t l = 0; l < (int32_t)s->layers; l++) {
        made_up_add(m, TENSOR_ATTN_NORM, l, 1, s->hidden);
        made_up_add(m, TENSOR_Q, l, q, s->hidden);
        made_up_add(m, TENSOR_K, l, kv, s->hidden);
        made_up_add(m, TENSOR_V, l, kv, s->hidden);
        made_up_add(m, TENSOR_O, l, s->hidden, q);
        made_up_add(m, TENSOR_MLP_NORM, l, 1, s->hidden);
        made_up_add(m, TENSOR_GATE, l, s->intermediate, s->hidden);
        made_up_add(m, TENSOR_UP, l, s->intermediate, s->hidden);
        made_up_add(m, TENSOR_DOWN, l, s->hidden, s->intermediate);
    }
    made_up_add(m, TENSOR_FINAL_NORM, -1, 1, s->hidden);
    if (!s->tied) made_up_add(m, TENSOR_HEAD, -1, s->vocab, s->hidden);
    return made_up_index(&m->model) && analyse_table_build(&m->model, &m->analysed, &err) == 0;
}

static inline void made_up_close(struct made_up *m)
{
    analyse_table_free(&m->analysed);
    free(m->model.by_role);
    free(m->model.unit);
    free((void *)m->model.unit_tensor);
    free(m->tensor);
    free(m->window);
    free(m->bytes);
    memset(m, 0, sizeof *m);
}

/* Memory as the ledger counts it, roughly: weights, and `kv_tokens` of KV with each attention half. */
static inline struct search_memory made_up_memory(struct made_up *m, uint64_t vram, uint64_t host,
                                                  uint64_t kv_tokens)
{
    uint32_t units = unit_count(m->model.config.layers);
    free(m->bytes);
    m->bytes = calloc(3 * (size_t)units, sizeof *m->bytes);
    struct search_memory memory = {.vram_limit = vram, .host_limit = host, .unit = m->bytes};
    for (uint32_t u = 0; u < units && m->bytes; u++) {
        uint64_t weights = analyse_units_stored(&m->analysed, u, u);
        uint64_t kv =
            unit_part(u) == UNIT_MLP ? 0 : kv_tokens * model_kv_bytes_per_token(&m->model.config, 1, KV_F16);
        m->bytes[3 * u + PLAN_HOME_CPU] = (struct search_bytes){0, weights + kv};
        m->bytes[3 * u + PLAN_HOME_GPU] = (struct search_bytes){weights + kv, 0};
        m->bytes[3 * u + PLAN_HOME_STREAM] = (struct search_bytes){kv, weights};
    }
    uint64_t embed = m->analysed.embed.stored, head = m->analysed.head.stored;
    memory.embed[PLAN_HOME_CPU].host = memory.embed[PLAN_HOME_GPU].vram = embed;
    memory.head[PLAN_HOME_CPU].host = memory.head[PLAN_HOME_GPU].vram = head;
    memory.tied_both[PLAN_HOME_CPU].host = memory.tied_both[PLAN_HOME_GPU].vram = head;
    memory.cpu_any = (struct search_bytes){0, UINT64_C(200) << 20};
    memory.gpu_any = (struct search_bytes){UINT64_C(700) << 20, UINT64_C(300) << 20};
    memory.stream_any = (struct search_bytes){UINT64_C(1) << 20, 0};
    memory.ring_granule = UINT64_C(32) << 20;
    memory.ring_max = UINT64_C(1) << 30;
    return memory;
}

static inline struct profile_value made_up_value(double value)
{
    return (struct profile_value){.value = value,
                                  .low = value * 0.97,
                                  .high = value * 1.03,
                                  .source = PROFILE_MEASURED};
}

struct made_up_rates {
    double cpu, cpu_beside, gpu, link, link_beside; /* GB a second */
    double cpu_tflops, gpu_tflops;
};

static const struct made_up_rates rates_h200 = {105, 80, 3600, 55, 52, 2.5, 450};
static const struct made_up_rates rates_4060 = {45, 35, 218, 12, 11, 0.6, 40};
static const struct made_up_rates rates_3090 = {60, 45, 850, 24, 21, 1.0, 60};

static inline struct profile made_up_profile(const struct made_up_rates *r)
{
    struct profile p = {.cpu = {.threads = 16}, .gpu = {.device = PROFILE_DEVICE_CUDA}};
    p.cpu.read.point[0] = (struct profile_point){16, made_up_value(r->cpu * 1.05e9)};
    p.cpu.read.count = 1;
    p.cpu.gemv = made_up_value(r->cpu * 1e9);
    p.cpu.gemv_beside = made_up_value(r->cpu_beside * 1e9);
    p.cpu.linear.point[0] = (struct profile_point){2, made_up_value(r->cpu * 2e9)};
    p.cpu.linear.point[1] = (struct profile_point){64, made_up_value(r->cpu_tflops * 0.7e12)};
    p.cpu.linear.point[2] = (struct profile_point){512, made_up_value(r->cpu_tflops * 1e12)};
    p.cpu.linear.count = 3;
    p.cpu.attention = made_up_value(r->cpu * 0.8e9);
    p.cpu.attention_flops = made_up_value(r->cpu_tflops * 0.3e12);
    p.cpu.operation = made_up_value(4e-6);
    p.gpu.vram_bytes = UINT64_C(1) << 37;
    p.gpu.vram_free = UINT64_C(1) << 37;
    p.gpu.read = made_up_value(r->gpu * 1.1e9);
    p.gpu.gemv = made_up_value(r->gpu * 1e9);
    p.gpu.linear.point[0] = (struct profile_point){2, made_up_value(r->gpu * 2e9)};
    p.gpu.linear.point[1] = (struct profile_point){64, made_up_value(r->gpu_tflops * 0.2e12)};
    p.gpu.linear.point[2] = (struct profile_point){512, made_up_value(r->gpu_tflops * 1e12)};
    p.gpu.linear.count = 3;
    p.gpu.attention = made_up_value(r->gpu * 0.7e9);
    p.gpu.attention_flops = made_up_value(r->gpu_tflops * 0.3e12);
    p.gpu.operation = made_up_value(2e-6);
    p.gpu.launch = made_up_value(4e-6);
    p.link.h2d = made_up_value(r->link * 1e9);
    p.link.d2h = made_up_value(r->link * 0.95e9);
    p.link.h2d_beside = made_up_value(r->link_beside * 1e9);
    p.link.latency = made_up_value(8e-6);
    p.link.hand_over = made_up_value(5e-6);
    p.step = made_up_value(20e-6);
    return p;
}
