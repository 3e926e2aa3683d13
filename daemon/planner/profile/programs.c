/* A model's own programs: their kinds, the name of their file, and the time of any step between measured
 * ones. See programs.h; the file itself is programs_json.c's. Called by helm-profile, helmd, helm-plan and
 * the cost model; owns nothing. */
#include "daemon/planner/profile/programs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/planner/profile/profile.h"
#include "daemon/planner/profile/policy.h"

/* ---- kinds ---- */

static void add_number(struct digest *digest, uint64_t number)
{
    digest_add(digest, &number, sizeof number);
}

static void add_tensor(struct digest *digest, const struct model_tensor *t)
{
    add_number(digest, t->role);
    add_number(digest, t->format);
    add_number(digest, t->rows);
    add_number(digest, t->cols);
}

static void add_unit(struct digest *digest, const struct model *model, uint32_t unit)
{
    const struct model_config *c = &model->config;
    const struct model_unit *u = &model->unit[unit];
    const struct math_part *math = model_unit_math(model, unit);
    for (uint32_t i = 0; i < math->ops; i++) {
        add_number(digest, math->op[i].kind);
        add_number(digest, math->op[i].activation);
        add_number(digest, math->op[i].norm_kind);
        add_number(digest, math->op[i].out_factor);
        if (math->op[i].kind != MATH_ATTENTION) continue;
        add_number(digest, math->op[i].kv_heads);
        add_number(digest, math->op[i].head_dim);
        if (math->op[i].latent) add_number(digest, math->op[i].latent); /* profiles of before know none */
        add_number(digest, math->op[i].v_is_k);
        add_number(digest, math->op[i].v_normed);
    }
    for (uint32_t i = 0; i < u->tensor_count; i++) add_tensor(digest, u->tensor[i]);
    add_number(digest, math->state);
    add_number(digest, math->state_bytes);
    if (math->attends) {
        add_number(digest, c->heads);
        add_number(digest, c->window ? c->window[unit_layer(unit)] : 0);
    }
    if (math->experts) {
        add_number(digest, c->router.experts);
        add_number(digest, c->router.chosen);
    }
}

uint64_t programs_signature(const struct model *model, uint32_t unit)
{
    struct digest digest = digest_begin();
    const struct model_tensor *head = model_find(model, TENSOR_HEAD, -1);
    if (unit < unit_count(model->config.layers))
        add_unit(&digest, model, unit);
    else if (head)
        add_tensor(&digest, head);
    return digest.low ^ digest.high;
}

static void name_kind(const struct model *model, uint32_t unit, char name[PROGRAMS_NAME_TEXT])
{
    const bool head = unit == unit_count(model->config.layers);
    const struct model_tensor *of_head = model_find(model, TENSOR_HEAD, -1);
    const struct model_unit *u = head ? NULL : &model->unit[unit];
    unsigned named = 0;
    size_t used = (size_t)snprintf(name, PROGRAMS_NAME_TEXT, "%.30s of",
                                   head ? "head" : model_unit_math(model, unit)->name);
    for (uint32_t i = 0; i < (head ? of_head != NULL : u->matrix_count) && used < PROGRAMS_NAME_TEXT; i++) {
        const enum tensor_format format = (head ? of_head : u->tensor[i])->format;
        if (named & format_bit(format)) continue;
        used += (size_t)snprintf(name + used, PROGRAMS_NAME_TEXT - used, "%s %s", named ? " and" : "",
                                 tensor_format_name(format));
        named |= format_bit(format);
    }
}

const struct programs_kind *programs_find(const struct programs *programs, uint64_t signature)
{
    for (uint32_t i = 0; i < programs->kinds; i++)
        if (programs->kind[i].signature == signature) return &programs->kind[i];
    return NULL;
}

void programs_list(const struct model *model, struct programs *programs)
{
    *programs = (struct programs){.kinds = 0};
    for (uint32_t u = 0; u <= unit_count(model->config.layers); u++) {
        const uint64_t signature = programs_signature(model, u);
        if (unit_layer(u) >= model_answer_layers(&model->config) && u < unit_count(model->config.layers))
            continue;
        if (programs->kinds == PROGRAMS_KINDS_MAX || programs_find(programs, signature)) continue;
        struct programs_kind *kind = &programs->kind[programs->kinds++];
        kind->signature = signature;
        name_kind(model, u, kind->name);
    }
}

uint32_t programs_layers(const struct model *model, const struct programs *programs, uint32_t *layer)
{
    bool there[PROGRAMS_KINDS_MAX] = {false};
    uint32_t count = 0;
    for (uint32_t l = 0; l < model_answer_layers(&model->config); l++) {
        bool adds = false;
        for (int part = 0; part < UNIT_PARTS; part++) {
            const struct programs_kind *kind =
                programs_find(programs, programs_signature(model, unit_of(l, (enum unit_part)part)));
            if (!kind || there[kind - programs->kind]) continue;
            there[kind - programs->kind] = adds = true;
        }
        if (adds) layer[count++] = l;
    }
    return count;
}

/* ---- its name ---- */

void programs_key(const char *fingerprint, const char *kv_dtype, struct programs *programs)
{
    struct digest digest = digest_begin();
    snprintf(programs->fingerprint, sizeof programs->fingerprint, "%.71s", fingerprint);
    snprintf(programs->kv_dtype, sizeof programs->kv_dtype, "%.7s", kv_dtype);
    add_number(&digest, PROGRAMS_VERSION);
    digest_add(&digest, programs->fingerprint, strlen(programs->fingerprint) + 1);
    digest_add(&digest, programs->kv_dtype, strlen(programs->kv_dtype) + 1);
    for (uint32_t i = 0; i < programs->kinds; i++) add_number(&digest, programs->kind[i].signature);
    digest_text(&digest, programs->key);
}

int programs_path(const struct programs *programs, char *path, size_t size, struct helm_err *err)
{
    char name[DIGEST_TEXT + 16];
    snprintf(name, sizeof name, "programs-%s", programs->key);
    return profile_cache_file(name, path, size, err);
}

/* ---- what is there ---- */

bool programs_has_cpu(const struct programs *programs)
{
    for (uint32_t k = 0; k < programs->kinds; k++)
        for (int w = 0; w < PROGRAMS_WAYS; w++)
            if (programs->kind[k].cpu[w].count) return true;
    return false;
}

void programs_forget_gpu(struct programs *programs)
{
    for (int w = 0; w < PROGRAMS_GPU_WAYS; w++) {
        for (uint32_t k = 0; k < programs->kinds; k++) programs->kind[k].gpu[w].count = 0;
        programs->gpu_begin[w].count = 0;
    }
}

/* ---- reading them off ---- */

static int order_of(const struct programs_cell *a, const struct programs_cell *b)
{
    if (a->tokens != b->tokens) return a->tokens < b->tokens ? -1 : 1;
    return a->context < b->context ? -1 : a->context > b->context;
}

void programs_put(struct programs_times *times, const struct programs_cell *cell)
{
    uint32_t at = 0;
    while (at < times->count && order_of(&times->cell[at], cell) < 0) at++;
    const bool there = at < times->count && order_of(&times->cell[at], cell) == 0;
    if (!there && times->count == PROGRAMS_CELLS_MAX) return;
    if (!there) memmove(times->cell + at + 1, times->cell + at, (times->count - at) * sizeof *times->cell);
    times->cell[at] = *cell;
    times->count += !there;
}

static struct programs_price price_of(const struct programs_cell *cell)
{
    return (struct programs_price){.seconds = cell->seconds,
                                   .beside = cell->beside,
                                   .spread = (cell->high - cell->low) / 2 / cell->seconds};
}

/* The price at a context, by the cells from `first` on that have as many tokens. The line never falls below
 * half of the shorter context's time, nor rises where the longer one was measured to be faster, which is
 * noise. */
static struct programs_price at_context(const struct programs_times *times, uint32_t first, double context)
{
    const struct programs_cell *a = &times->cell[first], *b = a;
    while (b + 1 < times->cell + times->count && b[1].tokens == a->tokens && (b == a || b->context < context))
        b++;
    if (b > a + 1) a = b - 1;
    struct programs_price price = price_of(a);
    if (b == a) return price;
    const double more =
        fmax(0, b->seconds - a->seconds) * (context - a->context) / ((double)b->context - a->context);
    const double seconds = fmax(a->seconds / 2, a->seconds + more);
    if (price.beside > 0) price.beside *= seconds / price.seconds;
    price.spread = fmax(price.spread, price_of(b).spread);
    price.seconds = seconds;
    return price;
}

/* Along the line through (x0, y0) and (x1, y1), in logarithms where x0 is less than a chunk that others
 * consist of. */
static double along(double x, double x0, double y0, double x1, double y1)
{
    if (x0 >= LEDGER_STEP_TOKENS) return y0 + (x - x0) / (x1 - x0) * (y1 - y0);
    return exp(log(y0) + (log(x) - log(x0)) / (log(x1) - log(x0)) * (log(y1) - log(y0)));
}

bool programs_at(const struct programs_times *times, double tokens, double context,
                 struct programs_price *price)
{
    *price = (struct programs_price){.seconds = 0};
    if (!times->count) return false;
    const struct programs_cell *cell = times->cell;
    uint32_t low = 0, high = 0; /* the first cells of the numbers of tokens around the step's */
    for (uint32_t i = 0; i < times->count; i++) {
        if (i && cell[i].tokens == cell[i - 1].tokens) continue;
        if (i == 0 || cell[high].tokens < tokens) low = high, high = i;
    }
    if (tokens > PLANNER_CONTEXT_GROWTH * cell[high].tokens) return false;
    const struct programs_price a = at_context(times, low, context);
    *price = at_context(times, high, context);
    if (low == high || tokens <= cell[0].tokens) {
        *price = a;
        return true;
    }
    const double at = along(tokens, cell[low].tokens, a.seconds, cell[high].tokens, price->seconds);
    const double beside_a = a.beside > 0 ? a.beside / a.seconds : 0,
                 beside_b = price->beside > 0 ? price->beside / price->seconds : beside_a;
    price->beside = at * (tokens < cell[high].tokens && beside_a > 0 ? (beside_a + beside_b) / 2 : beside_b);
    price->spread = fmax(a.spread, price->spread);
    price->seconds = at;
    return true;
}
