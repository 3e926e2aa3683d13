/* Sizes and places of what workers compute in. See workspace.h. Called by the planner and by both workers;
 * pure. */
#include "common/plan/workspace.h"

#include <string.h>

#include "common/base/units.h"
#include "common/formats/packed.h"
#include "common/sampling/sampling.h"
#include "common/shared/arena_layout.h"

#define HEAD_GROUPS  (ARENA_STEP_ROWS / ENGINE_FEW_TOKENS)
#define COUNTS       (3 + HEAD_GROUPS) /* tokens, rows, samples; samples of each group */
#define CPU_ALIGN    16                /* floats: a cache line */
#define TILE_TOKENS  16                /* kernels of several tokens pad them to a multiple of this, */
#define TILE_COLUMNS 64                /* and columns, or less */

_Static_assert(GPU_ROW_STATES == ARENA_ROW_STATES, "a row's snapshots");

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- the GPU's step block ---- */

/* Takes room for `count` numbers at *at. */
static uint32_t take(uint32_t *at, uint32_t count)
{
    uint32_t offset = *at;
    *at += (count + 3) / 4 * 4 * (uint32_t)sizeof(uint32_t);
    return offset;
}

void gpu_block_place(uint32_t tokens, uint32_t rows, uint32_t line, bool two_tables, struct gpu_block *b)
{
    uint32_t at = 0, sub = 0;
    memset(b, 0, sizeof *b);
    b->tokens = tokens;
    b->rows = rows;
    b->subs = (tokens + GPU_SUB_TOKENS - 1) / GPU_SUB_TOKENS;
    b->counts = take(&at, COUNTS);
    b->token_id = take(&at, tokens);
    b->position = take(&at, tokens);
    b->token_row = take(&at, tokens);
    b->row_first = take(&at, rows + 1);
    b->row_slot = take(&at, rows);
    b->row_state = take(&at, rows);
    b->row_left = take(&at, rows * GPU_ROW_STATES * 2);
    b->row_begin = take(&at, rows);
    b->window_begin = take(&at, rows);
    b->pieces = take(&at, rows + 1);
    b->arena_pieces = take(&at, rows + 1);
    b->sample_token = take(&at, rows);
    b->sub_counts = take(&sub, COUNTS);
    b->sub_token_row = take(&sub, GPU_SUB_TOKENS);
    b->sub_row_first = take(&sub, rows + 1);
    b->sub_row_slot = take(&sub, rows);
    b->sub = at;
    b->sub_stride = sub;
    if (b->subs > 1) at += b->subs * sub;
    b->arena_table = at; /* in front, so that what is copied ends with the last line used of the other */
    if (two_tables) at += (rows * line + 3) / 4 * 4 * (uint32_t)sizeof(uint32_t);
    b->page_table = at;
    b->bytes = at + (uint64_t)rows * line * sizeof(uint32_t);
}

/* ---- the GPU's workspace ---- */

static uint64_t linear_bytes(const struct model_config *c)
{
    const uint64_t widest = model_widest(c);
    uint64_t inputs = ENGINE_FEW_TOKENS * widest * sizeof(float);
    uint64_t sums = larger(smaller(GPU_LINEAR_SUMS * inputs, GPU_LINEAR_SUMS_BYTES), inputs);
    return GPU_LINEAR_COUNTER_BYTES + round_up(sums, VRAM_ALIGN);
}

static uint64_t attention_bytes(const struct model_config *c)
{
    uint64_t pairs = (uint64_t)ENGINE_FEW_TOKENS * c->heads;
    return round_up(pairs * sizeof(uint32_t), VRAM_ALIGN) +
           pairs * GPU_ATTENTION_SPLITS * (2 + model_heads_most(c).head_dim) * sizeof(float);
}

uint64_t workspace_chain_lists(const struct model_config *c)
{
    const uint64_t layer = c->delta.value_heads ? 6 : 5;
    return round_up((layer * c->layers + 1) * GPU_CHAIN_OP_BYTES, VRAM_ALIGN);
}

uint64_t workspace_chain_bytes(const struct model_config *c)
{
    uint64_t words = (uint64_t)c->heads * GPU_CHAIN_PIECES * (model_heads_most(c).head_dim + 2);
    return workspace_chain_lists(c) + c->layers * round_up(words * sizeof(uint64_t), VRAM_ALIGN);
}

uint64_t workspace_experts_bytes(const struct model_config *c)
{
    const uint64_t widest = larger(c->hidden, c->expert_intermediate),
                   inputs = ENGINE_FEW_TOKENS * c->router.chosen * widest * sizeof(float);
    return c->router.experts ? GPU_LINEAR_COUNTER_BYTES + GPU_EXPERTS_INPUTS * round_up(inputs, VRAM_ALIGN)
                             : 0;
}

static void size_always(const struct gpu_workspace_case *c, struct gpu_workspace *w)
{
    struct gpu_block block;
    gpu_block_place(w->tokens, c->slots, c->line, c->tiered, &block);
    w->area[GPU_AREA_BLOCK].bytes = block.bytes;
    w->area[GPU_AREA_X].bytes = (uint64_t)w->tokens * c->config->hidden * sizeof(float);
    w->area[GPU_AREA_LINEAR].bytes = linear_bytes(c->config);
}

static void size_head(const struct gpu_workspace_case *c, struct gpu_workspace *w)
{
    const uint64_t samples = round_up(c->slots, ENGINE_FEW_TOKENS), vocab = c->config->vocab;
    w->area[GPU_AREA_SAMPLE].bytes = samples * c->config->hidden * sizeof(float);
    w->area[GPU_AREA_LOGITS].bytes = samples * vocab * sizeof(float);
    w->area[GPU_AREA_ARGMAX].bytes = samples * GPU_ARGMAX_ROW_BYTES;
    w->area[GPU_AREA_FEW].bytes = samples * (vocab / GPU_FEW_LOGITS * sizeof(float) + GPU_FEW_ROW_BYTES);
}

uint32_t workspace_attention_width(const struct model_config *c)
{
    if (c->latent.rank) return c->heads * c->head_dim + c->head_dim + model_latent_q(c) + c->latent.q_rank;
    return c->heads * (c->gated_attention ? 2 : 1) * model_heads_most(c).head_dim + 2 * model_kv_width(c);
}

uint32_t workspace_per_layer_width(const struct model_config *c)
{
    return c->per_layer ? (1 + c->layers) * c->per_layer : 0;
}

uint32_t workspace_delta_width(const struct model_config *c)
{
    const struct model_delta *d = &c->delta;
    /* rows of whole vectors */
    return (uint32_t)round_up(d->channels + d->value_heads * (d->value_dim + 2), 4);
}

static uint64_t delta_values(const struct model_config *c)
{
    return (uint64_t)c->delta.value_heads * c->delta.value_dim;
}

static void size_layers(const struct gpu_workspace_case *c, struct gpu_workspace *w)
{
    const struct model_config *m = c->config;
    const uint64_t few = ENGINE_FEW_TOKENS * sizeof(float),
                   q = (uint64_t)m->heads * model_heads_most(m).head_dim,
                   width = larger(workspace_attention_width(m), workspace_delta_width(m)),
                   a = larger(q, delta_values(m)), channels = m->delta.channels,
                   n = larger(model_dense_width(m), m->per_layer), tokens = w->tokens, sub = w->sub_tokens;
    w->area[GPU_AREA_H].bytes = sub * m->hidden * c->chunk_bytes;
    w->area[GPU_AREA_OUT].bytes = m->normed_outputs || m->drafts ? tokens * m->hidden * sizeof(float) : 0;
    w->area[GPU_AREA_SUM].bytes = m->normed_outputs && m->router.experts ? w->area[GPU_AREA_OUT].bytes : 0;
    w->area[GPU_AREA_PAIR].bytes =
        m->drafts ? 2 * tokens * m->hidden * larger(c->chunk_bytes, sizeof(float)) : 0;
    w->area[GPU_AREA_PER_LAYER].bytes = tokens * workspace_per_layer_width(m) * sizeof(float);
    w->area[GPU_AREA_ROPE_TABLE].bytes =
        model_ropes(m) * tokens * model_heads_most(m).head_dim * sizeof(float);
    w->area[GPU_AREA_INV_FREQ].bytes = model_ropes(m) * model_heads_most(m).head_dim * sizeof(float);
    w->area[GPU_AREA_ATTENTION].bytes = attention_bytes(m);
    w->area[GPU_AREA_CHAINS].bytes =
        c->chains && !m->router.experts
            ? workspace_chain_bytes(m) + ((uint64_t)c->apart + c->tiered) * workspace_chain_lists(m)
            : 0;
    w->area[GPU_AREA_PARTIAL].bytes = c->tiered ? 2 * few * m->heads : 0;
    w->area[GPU_AREA_MATMUL].bytes = c->matmul;
    w->area[GPU_AREA_FEW_QKV].bytes = few * width;
    w->area[GPU_AREA_FEW_Q].bytes = few * q;
    w->area[GPU_AREA_FEW_A].bytes = few * a;
    w->area[GPU_AREA_FEW_VALUES].bytes = few * m->heads * m->latent.value;
    w->area[GPU_AREA_FEW_DELTA].bytes = few * channels;
    w->area[GPU_AREA_FEW_ACT].bytes = few * larger(model_mlp_width(m), m->per_layer);
    w->area[GPU_AREA_FEW_SHARED].bytes = few * m->shared_intermediate;
    w->area[GPU_AREA_CHUNK_QKV].bytes = tokens * width * sizeof(float);
    w->area[GPU_AREA_CHUNK_A].bytes = m->gated_attention || channels ? tokens * a * c->chunk_bytes : 0;
    w->area[GPU_AREA_CHUNK_LOW].bytes = tokens * m->latent.q_rank * sizeof(float);
    w->area[GPU_AREA_CHUNK_VALUES].bytes = tokens * m->heads * m->latent.value * c->chunk_bytes;
    w->area[GPU_AREA_CHUNK_DELTA].bytes =
        sub * (channels * sizeof(float) + (uint64_t)m->delta.value_heads * GPU_DELTA_CHUNK_BYTES);
    w->area[GPU_AREA_CHUNK_Q].bytes = (c->tiered ? tokens : sub) * q * c->query_bytes;
    w->area[GPU_AREA_CHUNK_PART].bytes =
        c->tiered ? tokens * (q + (uint64_t)m->heads * GPU_PART_FLOATS) * sizeof(float) : 0;
    w->area[GPU_AREA_CHUNK_ACT].bytes = tokens * n * c->chunk_bytes;
    w->area[GPU_AREA_CHUNK_GATES].bytes = sub * 2 * n * c->chunk_bytes;
    w->area[GPU_AREA_CHUNK_SHARED].bytes = tokens * m->shared_intermediate * c->chunk_bytes;
    w->area[GPU_AREA_CHUNK_SHARED_GATES].bytes = sub * 2 * m->shared_intermediate * c->chunk_bytes;
}

static void size_experts(const struct gpu_workspace_case *c, struct gpu_workspace *w)
{
    const struct model_config *m = c->config;
    const uint64_t tokens = w->tokens, pairs = tokens * m->router.chosen, number = sizeof(float);
    if (!m->router.experts) return;
    w->area[GPU_AREA_ROUTER].bytes = tokens * m->router.experts * number;
    w->area[GPU_AREA_CHOICE].bytes = 2 * pairs * number;
    w->area[GPU_AREA_GROUPS].bytes = (m->router.experts + 1 + 2 * pairs) * number;
    w->area[GPU_AREA_EXPERTS].bytes = workspace_experts_bytes(m);
    w->area[GPU_AREA_SLOTS].bytes = m->router.experts * sizeof(uint32_t);
    w->area[GPU_AREA_CHUNK_EXPERTS_X].bytes = tokens * m->hidden * c->chunk_bytes;
    w->area[GPU_AREA_CHUNK_EXPERTS_ACT].bytes = pairs * m->expert_intermediate * c->chunk_bytes;
    w->area[GPU_AREA_CHUNK_EXPERTS_SUM].bytes = pairs * m->hidden * number;
}

/* Areas first .. last, one after the other from `at` on. Returns where they end. */
static uint64_t place_areas(struct gpu_workspace *w, enum gpu_area first, enum gpu_area last, uint64_t at)
{
    for (int a = (int)first; a <= (int)last; a++) {
        w->area[a].at = at;
        at += round_up(w->area[a].bytes, VRAM_ALIGN);
    }
    return at;
}

/* The attention half of a chunk. The partial results between pieces take the rest of q k v's place, after the
 * output, unless that has an area of its own. */
static uint64_t place_attention(const struct gpu_workspace_case *c, struct gpu_workspace *w, uint64_t at)
{
    const uint64_t output =
        (uint64_t)w->tokens * c->config->heads * model_heads_most(c->config).head_dim * c->chunk_bytes;
    const uint64_t q = place_areas(w, GPU_AREA_CHUNK_Q, GPU_AREA_CHUNK_Q, at),
                   end = place_areas(w, GPU_AREA_CHUNK_QKV, GPU_AREA_CHUNK_DELTA, q);
    if (!w->area[GPU_AREA_CHUNK_PART].bytes) return end;
    const uint64_t part = w->area[GPU_AREA_CHUNK_A].bytes ? end : q + round_up(output, VRAM_ALIGN);
    return larger(end, place_areas(w, GPU_AREA_CHUNK_PART, GPU_AREA_CHUNK_PART, part));
}

/* A chunk's first rows of a shared MLP, of which the others take the rest of ACT; gates are joined before the
 * next ones come. */
static void place_own_rows(struct gpu_workspace *w)
{
    const uint64_t rest = w->area[GPU_AREA_CHUNK_ACT].bytes - w->area[GPU_AREA_CHUNK_SHARED].bytes;
    w->area[GPU_AREA_CHUNK_SHARED].at = w->area[GPU_AREA_CHUNK_ACT].at + rest; /* tokens are multiples */
    w->area[GPU_AREA_CHUNK_SHARED_GATES].at = w->area[GPU_AREA_CHUNK_GATES].at;
}

void gpu_workspace_place(const struct gpu_workspace_case *c, struct gpu_workspace *w)
{
    memset(w, 0, sizeof *w);
    /* whole sub-chunks, or whole multiples that an invariant plan's products are of */
    w->tokens = (uint32_t)round_up(c->step_tokens,
                                   c->step_tokens > GPU_SUB_TOKENS ? GPU_SUB_TOKENS : GPU_STEADY_TOKENS);
    w->sub_tokens = (uint32_t)smaller(w->tokens, GPU_SUB_TOKENS);
    size_always(c, w);
    if (c->head) size_head(c, w);
    if (c->layers) size_layers(c, w);
    if (c->layers) size_experts(c, w);
    const uint64_t at = place_areas(w, 0, GPU_AREA_MATMUL, 0);
    w->bytes =
        larger(larger(place_areas(w, GPU_AREA_FEW_QKV, GPU_AREA_FEW_SHARED, at), place_attention(c, w, at)),
               place_areas(w, GPU_AREA_CHUNK_ACT, GPU_AREA_CHUNK_GATES, at));
    if (!c->config->router.experts) {
        place_own_rows(w);
        return;
    }
    const uint64_t shared = place_areas(w, GPU_AREA_CHUNK_SHARED, GPU_AREA_CHUNK_SHARED, at);
    w->bytes =
        larger(w->bytes, place_areas(w, GPU_AREA_CHUNK_SHARED_GATES, GPU_AREA_CHUNK_SHARED_GATES, shared));
    w->bytes = larger(w->bytes, place_areas(w, GPU_AREA_CHUNK_EXPERTS_X, GPU_AREA_CHUNK_EXPERTS_SUM, shared));
}

struct plan_staging plan_staging_of(const struct plan_staging_case *c)
{
    if (!c->tiered)
        return (struct plan_staging){.pages = c->borrows ? GPU_STAGINGS * c->page_count : 0,
                                     .windows = c->borrows ? GPU_STAGINGS * c->windows : 0};
    const uint32_t tile = plan_tile_pages(c->page_tokens), half = c->page_count / 2 + c->page_count % 2;
    uint32_t piece = c->piece_pages ? c->piece_pages : PLAN_PIECE_POSITIONS / c->page_tokens;
    if (piece > half) piece = half;
    piece = piece < tile ? tile : (uint32_t)round_up(piece, tile);
    const uint32_t pages = 2 * piece + plan_tail_at(c->page_tokens, c->slots, c->step_tokens, c->borrows);
    return (struct plan_staging){.piece = piece, .pages = pages, .windows = c->borrows ? c->windows : 0};
}

uint64_t plan_staging_bytes(const struct plan_staging *staging, uint64_t page, uint64_t window)
{
    const uint64_t pages = staging->pages * page, windows = staging->windows * window;
    return staging->piece ? pages + windows : larger(pages, windows);
}

struct plan_staging plan_staging(const struct plan *plan)
{
    return plan_staging_of(
        &(struct plan_staging_case){.page_tokens = plan->page_tokens,
                                    .page_count = plan->page_count,
                                    .piece_pages = plan->kv_piece_pages,
                                    .step_tokens = plan->step_tokens,
                                    .slots = plan->slots,
                                    .tiered = plan_kv_tiered(plan),
                                    .windows = plan->window_page_count,
                                    .borrows = plan_borrows_kv(plan) || plan_appends_in_arena(plan)});
}

uint32_t workspace_chunk_bytes(const struct model *model)
{
    size_t most = dtype_bytes(model->config.dtype);
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        const size_t bytes = dtype_bytes(tensor_format_product(t->format));
        if (t->layer >= 0 && !model_tensor_is_vector(t) && bytes > most) most = bytes;
    }
    return (uint32_t)most;
}

/* ---- the CPU's activations ---- */

void cpu_activations_place(const struct cpu_activations_case *s, struct cpu_activations *a)
{
    const struct model_config *c = s->config;
    const uint32_t dim = model_heads_most(c).head_dim, q = c->heads * dim, kv = model_kv_width(c);
    const uint64_t inputs = larger(s->unit_tokens, s->sampled_rows); /* tokens of one product's input */
    const uint32_t chosen = c->router.chosen, mlp = model_mlp_width(c);
    uint64_t at = 0;
    *a = (struct cpu_activations){.width = {[BUFFER_X] = c->hidden,
                                            [BUFFER_H] = c->hidden,
                                            [BUFFER_Q] = q,
                                            [BUFFER_K] = kv,
                                            [BUFFER_V] = kv,
                                            [BUFFER_A] = q,
                                            [BUFFER_Q_LOW] = c->latent.q_rank,
                                            [BUFFER_Q_HEADS] = model_latent_q(c),
                                            [BUFFER_VALUES] = c->heads * c->latent.value,
                                            [BUFFER_DELTA] = c->delta.value_heads * c->delta.value_dim,
                                            [BUFFER_SHARED] = c->shared_intermediate,
                                            [BUFFER_SHARED_UP] = c->shared_intermediate,
                                            [BUFFER_PAIR] = c->drafts ? 2 * c->hidden : 0,
                                            [BUFFER_GATE] = (uint32_t)larger(mlp, c->per_layer),
                                            [BUFFER_UP] = mlp,
                                            [BUFFER_ROUTER] = c->router.experts,
                                            [BUFFER_CHOICE] = 3 * chosen,
                                            [BUFFER_DOWN] = chosen * c->hidden,
                                            [BUFFER_OUT] = c->normed_outputs || c->drafts ? c->hidden : 0,
                                            [BUFFER_SUM] =
                                                c->normed_outputs && c->router.experts ? c->hidden : 0,
                                            [BUFFER_Q_GATE] = c->gated_attention ? q : 0,
                                            [BUFFER_DELTA_QKV] = c->delta.channels,
                                            [BUFFER_DELTA_Z] = c->delta.value_heads * c->delta.value_dim,
                                            [BUFFER_DELTA_ALPHA] = c->delta.value_heads,
                                            [BUFFER_DELTA_BETA] = c->delta.value_heads,
                                            [BUFFER_PER_LAYER] = c->layers * c->per_layer,
                                            [BUFFER_LOGITS] = c->vocab},
                                  .widest = c->hidden};
    for (uint32_t b = BUFFER_X; b < BUFFER_LOGITS; b++) {
        const uint64_t tokens = b == BUFFER_X   ? larger(s->unit_tokens, s->end_tokens)
                                : b == BUFFER_H ? inputs
                                                : s->unit_tokens;
        a->at[b] = at;
        at += round_up(tokens * a->width[b], CPU_ALIGN);
        if (s->unit_tokens && b < BUFFER_GATE && a->width[b] > a->widest) a->widest = a->width[b];
    }
    const uint64_t half = model_ropes(c) * round_up((uint64_t)s->unit_tokens * ((dim + 1) / 2), CPU_ALIGN);
    a->cosine = at;
    a->sine = at + half;
    a->floats = at + 2 * half;
    if (s->unit_tokens) a->joined = (uint32_t)larger(model_dense_width(c), c->per_layer);
    a->tile_tokens = (uint32_t)smaller(inputs, CPU_TILE_TOKENS);
    a->tiles = (uint32_t)((inputs + CPU_TILE_TOKENS - 1) / CPU_TILE_TOKENS);
}

uint64_t cpu_experts_bytes(const struct model_config *c)
{
    const uint64_t cols = larger(c->hidden, c->expert_intermediate), blocks = round_up(cols, 256),
                   few = ENGINE_FEW_TOKENS * (blocks + blocks / 8), /* with sums of sixteen and of 32 */
        laid_out = larger(CPU_EXPERTS_TOKENS * round_up(cols, TILE_COLUMNS), few),
                   numbers = CPU_EXPERTS_TOKENS * (cols + 2 * CPU_EXPERTS_ROWS) + laid_out;
    return c->router.experts ? numbers * sizeof(float) + 256 : 0;
}

/* The most that a tile and the joined one beside it take, whatever the kernels' layout. */
static uint64_t tile_bytes(const struct cpu_activations *a, enum linear_inputs inputs)
{
    const uint64_t columns = round_up(a->widest, TILE_COLUMNS) + round_up(a->joined, TILE_COLUMNS),
                   numbers = round_up(a->tile_tokens, TILE_TOKENS) * columns;
    return numbers * (inputs == LINEAR_INT8 ? 2 : sizeof(float));
}

/* A thread's scratch: for one use at a time; inputs of a few tokens once more in the order of the kernel,
 * which may add sums of sixteen and fill up to 256; rows of packed weights and blocks that are decoded for
 * several tokens; experts'. */
static uint64_t thread_bytes(const struct model_config *m, bool decodes)
{
    const uint64_t widest = model_widest(m),
                   ordered = ENGINE_FEW_TOKENS * (widest + widest / 8 + 288) * sizeof(float),
                   decoded = larger(PACKED_ROWS * widest * sizeof(uint16_t), CPU_UNPACKED_BYTES);
    return sampling_scratch_bytes(m->vocab) + CPU_SCRATCH_BYTES + ordered + (decodes ? decoded : 0) +
           cpu_experts_bytes(m);
}

/* Kernels of INT8 lay values down as their instructions want them: one layout serves all formats that have
 * such a kernel. A format that AVX512-VNNI has none for takes AVX2's, and then the reference's. */
#define INT8_LAYOUTS 3

struct cpu_room cpu_room_of(const struct cpu_activations_case *c, unsigned formats)
{
    const struct model_config *m = c->config;
    struct cpu_activations place;
    bool there[DTYPE_COUNT] = {false}, packed = false;
    /* layouts of inputs: one of each type of values, and a router's */
    uint64_t blocks = 0, types = m->router.experts > 0;
    cpu_activations_place(c, &place);
    for (int f = 0; f < FORMAT_COUNT; f++) {
        if (!(formats & format_bit((enum tensor_format)f))) continue;
        there[tensor_format_value((enum tensor_format)f)] = true;
        blocks += tensor_format_of((enum tensor_format)f)->block_values > 1;
        packed |= tensor_format_of((enum tensor_format)f)->variable;
    }
    for (int d = 0; d < DTYPE_COUNT; d++) types += there[d];
    const uint64_t tiles = types * tile_bytes(&place, LINEAR_EXACT) +
                           smaller(blocks, INT8_LAYOUTS) * tile_bytes(&place, LINEAR_INT8);
    return (struct cpu_room){.activations = round_up(place.floats * sizeof(float) + place.tiles * tiles,
                                                     ARENA_HUGE_PAGE),
                             .thread = round_up(thread_bytes(m, blocks || packed), CPU_SCRATCH_ALIGN)};
}
