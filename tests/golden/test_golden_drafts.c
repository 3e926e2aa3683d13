/* A layer that makes drafts (multi-token prediction) on the CPU against its definition in scalar loops and
 * doubles: from the hidden states that the model's embedding request gives, and the tokens. Prompts in chunks
 * of every size, wrong drafts at every place, going back with fixed states, chains to the end of a page. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/model/checkpoint.h"
#include "tests/unit/common/base/tree.h"
#include "tools/mkmodel/mkmodel.h"
#include "worker-cpu/local.h"

#define LAYERS 4
#define VOCAB  256
#define HIDDEN 64
#define HEADS  2
#define DIM    64 /* of q, k and v of a head */
#define RANK   64 /* of latents and of q's narrow form */
#define INNER  96
#define PROMPT 37
#define ANSWER 40
#define ALL    (PROMPT + ANSWER)
#define PAGE   16
#define MOST   4    /* drafts */
#define NEAR   2e-3 /* of logits: fp32 sums beside doubles */

#define CONFIG(architecture, type, ...)                                                                      \
    "{\"architectures\": [\"" architecture "\"], \"model_type\": \"" type "\", \"hidden_size\": 64, "        \
    "\"intermediate_size\": 96, \"num_hidden_layers\": 4, \"num_attention_heads\": 2, \"vocab_size\": 256, " \
    "\"max_position_embeddings\": 512, \"rms_norm_eps\": 1e-6, \"tie_word_embeddings\": false, "             \
    "\"dtype\": \"bfloat16\", " __VA_ARGS__ "}"
#define ROPE(more)   "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000000.0" more "}"
#define QUARTER_ROPE ROPE(", \"partial_rotary_factor\": 0.25")
#define GROUPED      "\"num_key_value_heads\": 1, \"head_dim\": 64, "
#define EXPERTS                                                                                              \
    "\"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, "                   \
    "\"n_shared_experts\": 1, \"first_k_dense_replace\": 1, \"norm_topk_prob\": true, "                      \
    "\"routed_scaling_factor\": 2.5, \"n_group\": 1, \"topk_group\": 1, \"num_nextn_predict_layers\": 1, "
#define COUNT_OF_EXPERTS 8
#define CHOSEN           2
#define EXPERT_INNER     32
#define SCALE            2.5

/* Models of which the layer is defined here. */
static const struct described {
    const char *config;
    uint32_t turns;             /* numbers of a head that turn: the first ones, or with latents the last */
    bool gated, biased, latent; /* attention: its output has a gate; q, k and v have biases */
    bool sparse;                /* experts by sigmoids and a bias, and one that every token has */
    bool recurrent;             /* fixed states */
} models[] = {
    {.config = CONFIG("Qwen3_5ForCausalLM", "qwen3_5_text",
                      GROUPED QUARTER_ROPE ", "
                                           "\"linear_conv_kernel_dim\": 4, \"linear_key_head_dim\": 32, "
                                           "\"linear_value_head_dim\": 32, \"linear_num_key_heads\": 1, "
                                           "\"linear_num_value_heads\": 2, \"full_attention_interval\": 4, "
                                           "\"mtp_num_hidden_layers\": 1"),
     .turns = 16,
     .gated = true,
     .recurrent = true},
    {.config = CONFIG("Glm4MoeForCausalLM", "glm4_moe",
                      GROUPED EXPERTS QUARTER_ROPE ", "
                                                   "\"attention_bias\": true, \"use_qk_norm\": true"),
     .turns = 16,
     .biased = true,
     .sparse = true},
    {.config =
         CONFIG("DeepseekV3ForCausalLM", "deepseek_v3",
                EXPERTS ROPE("") ", "
                                 "\"num_key_value_heads\": 2, \"kv_lora_rank\": 64, \"q_lora_rank\": 64, "
                                 "\"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 32, \"v_head_dim\": 64"),
     .turns = 32,
     .latent = true,
     .sparse = true},
};

struct fixture {
    const struct described *of;
    char folder[TREE_PATH];
    struct local *local;
    uint32_t token[ALL + MOST + 1]; /* prompt, then the greedy answer */
    double hidden[ALL][HIDDEN];     /* after the final norm */
    double k[ALL + MOST][HEADS * DIM], v[ALL + MOST][HEADS * DIM];
};

static void make(struct fixture *f)
{
    struct model_config config;
    struct mkmodel_result result;
    struct helm_err err = {0};
    tree_make(f->folder);
    tree_write(f->folder, "config.json", f->of->config);
    if (model_read_config(f->folder, &config, &err) || checkpoint_add_drafts(&config, &err))
        fail_msg("%s", err.text);
    const struct mkmodel_request request = {.config = &config,
                                            .folder = f->folder,
                                            .dtype = DTYPE_BF16,
                                            .seed = 11,
                                            .shard_bytes = 1 << 26,
                                            .embedding = 1,
                                            .threads = 1};
    if (mkmodel_write(&request, &result, &err)) fail_msg("%s", err.text);
    model_config_free(&config);
}

/* ---- the definition ---- */

static const struct weights *weights_of(const struct fixture *f)
{
    return &f->local->engine.weights;
}

static double number(const struct tensor_matrix *m, uint64_t row, uint64_t col)
{
    const uint32_t bits = (uint32_t)((const uint16_t *)m->data)[row * m->cols + col] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* By `rows` rows of a matrix from `first` on. */
static void multiply_rows(const struct fixture *f, enum tensor_role role, int32_t layer, uint64_t first,
                          uint64_t rows, const double *in, double *out)
{
    const struct tensor_matrix *m = weights_matrix(weights_of(f), role, layer);
    assert_int_equal(m->format, FORMAT_BF16);
    assert_true(first + rows <= m->rows);
    for (uint64_t r = 0; r < rows; r++) {
        out[r] = 0;
        for (uint64_t c = 0; c < m->cols; c++) out[r] += number(m, first + r, c) * in[c];
    }
}

static void multiply(const struct fixture *f, enum tensor_role role, int32_t layer, const double *in,
                     double *out)
{
    multiply_rows(f, role, layer, 0, weights_matrix(weights_of(f), role, layer)->rows, in, out);
}

static void norm(const struct fixture *f, enum tensor_role role, const double *in, uint32_t n, double *out)
{
    const float *w = weights_vector(weights_of(f), role, LAYERS);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += in[i] * in[i];
    for (uint32_t i = 0; i < n; i++) out[i] = in[i] / sqrt(sum / n + 1e-6) * (double)w[i];
}

static void turn(double *numbers, uint32_t turns, uint32_t position)
{
    for (uint32_t i = 0; i < turns / 2; i++) {
        const double angle = position * pow(1e7, -2.0 * i / turns), a = numbers[i],
                     b = numbers[i + turns / 2];
        numbers[i] = a * cos(angle) - b * sin(angle);
        numbers[i + turns / 2] = b * cos(angle) + a * sin(angle);
    }
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void add_bias(const struct fixture *f, enum tensor_role role, uint32_t count, double *to)
{
    const float *bias = weights_vector(weights_of(f), role, LAYERS);
    for (uint32_t i = 0; i < count; i++) to[i] += (double)bias[i];
}

/* q of all heads, and k and v of the position; one head of k and v for all. */
static void grouped(struct fixture *f, uint32_t position, const double *n, double *q)
{
    double *k = f->k[position], *v = f->v[position];
    multiply(f, TENSOR_Q, LAYERS, n, q);
    multiply(f, TENSOR_K, LAYERS, n, k);
    multiply(f, TENSOR_V, LAYERS, n, v);
    if (f->of->biased) {
        add_bias(f, TENSOR_Q_BIAS, HEADS * DIM, q);
        add_bias(f, TENSOR_K_BIAS, DIM, k);
        add_bias(f, TENSOR_V_BIAS, DIM, v);
    }
    for (uint32_t h = 0; h < HEADS; h++) {
        norm(f, TENSOR_Q_NORM, q + h * DIM, DIM, q + h * DIM);
        turn(q + h * DIM, f->of->turns, position);
    }
    norm(f, TENSOR_K_NORM, k, DIM, k);
    turn(k, f->of->turns, position);
    memcpy(k + DIM, k, DIM * sizeof *k);
    memcpy(v + DIM, v, DIM * sizeof *v);
}

/* The same of latents: each head's keys and values are made of the position's latent. All heads share the
 * numbers of keys that turn. */
static void of_latents(struct fixture *f, uint32_t position, const double *n, double *q)
{
    const uint32_t turns = f->of->turns, still = DIM - turns;
    double low[RANK], row[RANK + DIM];
    multiply(f, TENSOR_Q_A, LAYERS, n, low);
    norm(f, TENSOR_Q_A_NORM, low, RANK, low);
    multiply(f, TENSOR_Q_B, LAYERS, low, q);
    multiply(f, TENSOR_K, LAYERS, n, row);
    norm(f, TENSOR_KV_NORM, row, RANK, row);
    turn(row + RANK, turns, position);
    const struct tensor_matrix *to_keys = weights_matrix(weights_of(f), TENSOR_K_B, LAYERS);
    for (uint32_t h = 0; h < HEADS; h++) {
        double *k = f->k[position] + h * DIM;
        turn(q + h * DIM + still, turns, position);
        for (uint32_t c = 0; c < still; c++) {
            k[c] = 0;
            for (uint32_t r = 0; r < RANK; r++) k[c] += number(to_keys, h * RANK + r, c) * row[r];
        }
        memcpy(k + still, row + RANK, turns * sizeof *k);
    }
    multiply(f, TENSOR_V_B, LAYERS, row, f->v[position]);
}

static void attend(struct fixture *f, uint32_t position, double *x)
{
    double n[HIDDEN], q[HEADS * DIM], gate[HEADS * DIM], a[HEADS * DIM], out[HIDDEN];
    norm(f, TENSOR_ATTN_NORM, x, HIDDEN, n);
    (f->of->latent ? of_latents : grouped)(f, position, n, q);
    if (f->of->gated) multiply(f, TENSOR_Q_GATE, LAYERS, n, gate);
    for (uint32_t h = 0; h < HEADS; h++) {
        double score[ALL + MOST], sum = 0;
        for (uint32_t p = 0; p <= position; p++) {
            score[p] = 0;
            for (uint32_t i = h * DIM; i < (h + 1) * DIM; i++) score[p] += q[i] * f->k[p][i];
            score[p] = exp(score[p] / 8);
            sum += score[p];
        }
        for (uint32_t i = h * DIM; i < (h + 1) * DIM; i++) {
            a[i] = 0;
            for (uint32_t p = 0; p <= position; p++) a[i] += score[p] / sum * f->v[p][i];
            if (f->of->gated) a[i] *= sigmoid(gate[i]);
        }
    }
    multiply(f, TENSOR_O, LAYERS, a, out);
    for (uint32_t i = 0; i < HIDDEN; i++) x[i] += out[i];
}

/* Adds `weight` times what an MLP makes of n: part `part` of three matrices' rows. */
static void add_mlp(const struct fixture *f, const enum tensor_role role[3], uint32_t part, uint32_t inner,
                    double weight, const double *n, double *x)
{
    double gate[INNER], up[INNER], out[HIDDEN];
    multiply_rows(f, role[0], LAYERS, (uint64_t)part * inner, inner, n, gate);
    multiply_rows(f, role[1], LAYERS, (uint64_t)part * inner, inner, n, up);
    for (uint32_t i = 0; i < inner; i++) gate[i] *= sigmoid(gate[i]) * up[i];
    multiply_rows(f, role[2], LAYERS, (uint64_t)part * HIDDEN, HIDDEN, gate, out);
    for (uint32_t i = 0; i < HIDDEN; i++) x[i] += weight * out[i];
}

static void mixture(const struct fixture *f, const double *n, double *x)
{
    static const enum tensor_role shared[] = {TENSOR_SHARED_GATE, TENSOR_SHARED_UP, TENSOR_SHARED_DOWN},
                                  own[] = {TENSOR_GATE_EXPERTS, TENSOR_UP_EXPERTS, TENSOR_DOWN_EXPERTS};
    const float *router = weights_vector(weights_of(f), TENSOR_ROUTER, LAYERS),
                *bias = weights_vector(weights_of(f), TENSOR_CHOICE_BIAS, LAYERS);
    double score[COUNT_OF_EXPERTS] = {0}, sum = 0;
    uint32_t chosen[CHOSEN];
    for (uint32_t e = 0; e < COUNT_OF_EXPERTS; e++) {
        for (uint32_t i = 0; i < HIDDEN; i++) score[e] += (double)router[e * HIDDEN + i] * n[i];
        score[e] = sigmoid(score[e]);
    }
    for (uint32_t c = 0; c < CHOSEN; c++) {
        double best = -1;
        for (uint32_t e = 0; e < COUNT_OF_EXPERTS; e++) {
            const double choice = score[e] + (double)bias[e];
            if (choice <= best || (c && e == chosen[0])) continue;
            best = choice;
            chosen[c] = e;
        }
        sum += score[chosen[c]];
    }
    add_mlp(f, shared, 0, EXPERT_INNER, 1, n, x);
    for (uint32_t c = 0; c < CHOSEN; c++)
        add_mlp(f, own, chosen[c], EXPERT_INNER, SCALE * score[chosen[c]] / sum, n, x);
}

/* The layer at a position: from the hidden state there and the token after it to the hidden state of the next
 * draft, in x. */
static void layer_at(struct fixture *f, uint32_t position, uint32_t next, const double *hidden, double *x)
{
    static const enum tensor_role dense[] = {TENSOR_GATE, TENSOR_UP, TENSOR_DOWN};
    double embedding[HIDDEN], pair[2 * HIDDEN], n[HIDDEN];
    const struct tensor_matrix *table = weights_matrix(weights_of(f), TENSOR_EMBED, -1);
    for (uint32_t i = 0; i < HIDDEN; i++) embedding[i] = number(table, next, i);
    norm(f, TENSOR_DRAFT_EMBED_NORM, embedding, HIDDEN, pair);
    norm(f, TENSOR_DRAFT_HIDDEN_NORM, hidden, HIDDEN, pair + HIDDEN);
    multiply(f, TENSOR_DRAFT_PROJ, LAYERS, pair, x);
    attend(f, position, x);
    norm(f, TENSOR_MLP_NORM, x, HIDDEN, n);
    if (f->of->sparse)
        mixture(f, n, x);
    else
        add_mlp(f, dense, 0, INNER, 1, n, x);
    norm(f, TENSOR_DRAFT_OUT_NORM, x, HIDDEN, x);
}

/* The draft is the likeliest token, or as likely but for rounding. */
static void check_draft(const struct fixture *f, const double *x, uint32_t draft, const char *where)
{
    double logits[VOCAB];
    uint32_t best = 0;
    multiply(f, TENSOR_HEAD, -1, x, logits);
    for (uint32_t i = 1; i < VOCAB; i++)
        if (logits[i] > logits[best]) best = i;
    assert_true(draft < VOCAB);
    if (logits[draft] < logits[best] - NEAR)
        fail_msg("%s: draft %u with logit %.4f, the best is %u with %.4f", where, draft, logits[draft], best,
                 logits[best]);
}

/* ---- the worker ---- */

static const struct step_result *run(struct fixture *f, const struct step_row *row)
{
    const struct step_result *result;
    struct helm_err err = {0};
    if (local_step(f->local, row, 1, &result, &err)) fail_msg("%s", err.text);
    assert_int_equal(result->row[0].status, STEP_ROW_OK);
    return result;
}

/* The greedy answer in slot 0, without drafts; and hidden states of all positions in slot 1. */
static void answer(struct fixture *f)
{
    const struct arena *arena = &f->local->arena;
    arena_slot_of(arena, 0)->prompt_count = arena_slot_of(arena, 1)->prompt_count = PROMPT;
    for (uint32_t i = 0; i < PROMPT; i++) f->token[i] = 3 + (i * i * 7 + 11 * i) % 240;
    for (uint32_t i = 0; i < ALL; i++) {
        if (i < PROMPT) arena_history_of(arena, 0)[i] = f->token[i];
        const struct step_row row = {.slot = 0,
                                     .start = i,
                                     .count = 1,
                                     .flags = i + 1 >= PROMPT ? STEP_ROW_SAMPLE : 0};
        const struct step_result *result = run(f, &row);
        if (i + 1 < PROMPT) continue;
        f->token[i + 1] = result->row[0].sampled.token;
        arena_history_of(arena, 0)[i + 1] = f->token[i + 1];
    }
    memcpy(arena_history_of(arena, 1), f->token, ALL * sizeof *f->token);
    for (uint32_t i = 0; i < ALL; i++) {
        const struct step_row row = {.slot = 1, .start = i, .count = 1, .flags = STEP_ROW_POOL_LAST};
        (void)run(f, &row);
        memcpy(f->hidden[i], arena_pooled_of(arena, 1), sizeof f->hidden[i]);
    }
}

/* Checks what was made after `right`, the last position whose token is known to be right. Returns how many
 * there are. */
static uint32_t check_made(struct fixture *f, const struct step_result *result, const struct step_row *row,
                           uint32_t right)
{
    const uint32_t page_end = ((row->start + row->count - 1) / PAGE + 1) * PAGE;
    double x[HIDDEN];
    char where[80];
    uint32_t made = 0;
    /* cells of all positions, as the sequence has them */
    for (uint32_t p = 0; p <= right; p++) layer_at(f, p, f->token[p + 1], f->hidden[p], x);
    for (; made < row->drafts_next && result->made[made] != ARENA_NO_DRAFT; made++) {
        snprintf(where, sizeof where, "row of %u at %u, draft %u", row->count, row->start, made);
        check_draft(f, x, result->made[made], where);
        if (made + 1 < row->drafts_next) layer_at(f, right + 1 + made, result->made[made], x, x);
    }
    const uint32_t room = 1 + page_end - (right + 1),
                   wanted = row->drafts_next < room ? row->drafts_next : room;
    assert_int_equal(made, wanted);
    for (uint32_t i = made; i < ARENA_STEP_DRAFTS; i++) assert_int_equal(result->made[i], ARENA_NO_DRAFT);
    return made;
}

/* Slot 2: the prompt in chunks of `chunk`, then the answer by rows of known tokens and drafts, of which the
 * one at `wrong` is wrong in each row. */
static void walk(struct fixture *f, uint32_t chunk, uint32_t wrong, uint32_t most)
{
    const struct arena *arena = &f->local->arena;
    uint32_t *history = arena_history_of(arena, 2);
    arena_slot_of(arena, 2)->prompt_count = PROMPT;
    memset(history, 0, (ALL + MOST) * sizeof *history);
    memcpy(history, f->token, PROMPT * sizeof *history);
    for (uint32_t at = 0; at < PROMPT; at += chunk) {
        const bool last = at + chunk >= PROMPT;
        const struct step_row row = {.slot = 2,
                                     .start = at,
                                     .count = last ? PROMPT - at : chunk,
                                     .flags = last ? STEP_ROW_SAMPLE : 0,
                                     .drafts_next = last ? most : 0};
        const struct step_result *result = run(f, &row);
        if (last) assert_int_equal(result->row[0].sampled.token, f->token[PROMPT]);
        if (last) (void)check_made(f, result, &row, PROMPT - 1);
    }
    uint32_t known = PROMPT + 1, from = PROMPT; /* tokens known; computed, of which states are */
    bool back = false;
    while (known + most + 1 < ALL) {
        const uint32_t kept = wrong < most ? wrong : most;
        memcpy(history, f->token, known * sizeof *history);
        for (uint32_t i = 0; i < most; i++)
            history[known + i] = i == wrong ? (f->token[known + i] + 1) % VOCAB : f->token[known + i];
        const struct step_row row = {.slot = 2,
                                     .start = from,
                                     .count = known - from + most,
                                     .flags = STEP_ROW_SAMPLE,
                                     .drafts = most,
                                     .drafts_next = most,
                                     .state_from = back && f->of->recurrent ? 1 : 0,
                                     .left = {{f->of->recurrent ? 1 : 0, known - from}}};
        const struct step_result *result = run(f, &row);
        for (uint32_t i = 0; i <= kept; i++)
            assert_int_equal(result->row[i].sampled.token, f->token[known + i]);
        (void)check_made(f, result, &row, known - 1 + kept);
        back = kept < most;
        from = back && f->of->recurrent ? known : known + kept;
        known += kept + 1;
    }
}

static void check_model(struct fixture *f)
{
    struct helm_err err = {0};
    /* kernels that multiply several tokens as exactly as one, so that no choice is near */
    const struct local_options options = {.folder = f->folder,
                                          .kernels = "avx2",
                                          .kv_dtype = KV_F32,
                                          .threads = 2,
                                          .slots = 3,
                                          .context_tokens = ALL + 2 * PAGE,
                                          .step_tokens = 64,
                                          .page_tokens = PAGE,
                                          .snapshots = f->of->recurrent ? 2 : 0,
                                          .draft_tokens = MOST,
                                          .drafts = true};
    f->local = aligned_alloc(64, (sizeof *f->local + 63) / 64 * 64);
    assert_non_null(f->local);
    if (local_open(&options, f->local, &err)) fail_msg("%s", err.text);
    assert_int_equal(f->local->engine.plan.draft_layers, 1);
    answer(f);
    static const uint32_t chunks[] = {1, 2, 7, 16, 30, PROMPT};
    for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
        walk(f, chunks[c], (uint32_t)c % (MOST + 1), 1 + (uint32_t)c % MOST);
    for (uint32_t wrong = 0; wrong <= MOST; wrong++) walk(f, 20, wrong, MOST);
    local_close(f->local);
    free(f->local);
}

static void the_layer_is_what_its_definition_says(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct fixture *f = calloc(1, sizeof *f);
        assert_non_null(f);
        f->of = &models[m];
        make(f);
        check_model(f);
        tree_remove(f->folder);
        free(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_layer_is_what_its_definition_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
