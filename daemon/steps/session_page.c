/* A KV page as sessions have it. See session_page.h. Called by sessions.c; owns nothing. */
#include "daemon/steps/session_page.h"

#include <stdio.h>
#include <string.h>

#include "common/plan/state.h"
#include "common/model/content.h"
#include "common/plan/schedule.h"

static bool is_its(const struct session_page *p, uint32_t layer)
{
    return plan_state_at(p->plan, layer).kind == p->kind;
}

/* Whether a device's cells lie in its memory alone. */
static bool lies_apart(const struct session_page *p)
{
    return p->kind == STATE_WINDOW || !plan_kv_tiered(p->plan);
}

/* Layers of the devices before this one. */
static uint32_t layers_apart(const struct session_page *p, enum plan_processor processor)
{
    return p->kind == STATE_WINDOW ? plan_session_window_layer(p->plan, processor)
                                   : plan_session_layer(p->plan, processor);
}

int session_page_init(struct session_page *p, const struct plan *plan, const struct arena *arena,
                      enum state_kind kind, struct helm_err *err)
{
    const struct arena_header *h = arena_header_of(arena);
    *p = (struct session_page){.plan = plan,
                               .arena = arena,
                               .kind = kind,
                               .kv = kind == STATE_WINDOW ? arena_window_layout(arena) : h->kv};
    p->kv.layers = 0;
    for (uint32_t l = 0; l < plan->layers; l++) p->kv.layers += is_its(p, l);
    p->bytes = kv_page_bytes(&p->kv);
    const uint64_t apart = lies_apart(p) ? layers_apart(p, PLAN_PROCESSORS) * kv_layer_bytes(&p->kv) : 0;
    p->moves = apart > 0;
    if (apart > h->region[ARENA_REGION_SESSION].bytes)
        return helm_fail(err, HELM_E_MISMATCH,
                         "sessions: %llu bytes of a page lie in VRAM, the arena's region for them has %llu",
                         (unsigned long long)apart,
                         (unsigned long long)h->region[ARENA_REGION_SESSION].bytes);
    return 0;
}

/* A layer's cells of a page, in the arena's pool or in the session region. */
static unsigned char *cells_of(const struct session_page *p, uint32_t page, uint32_t layer)
{
    const struct kv_layout *host = &arena_header_of(p->arena)->kv, windows = arena_window_layout(p->arena);
    uint32_t kv_layer;
    const enum plan_processor processor = plan_kv_of(p->plan, layer, &kv_layer);
    const uint64_t layer_bytes = kv_layer_bytes(&p->kv);
    if (plan_processor_has_memory(processor) && lies_apart(p))
        return (unsigned char *)arena_region_ptr(p->arena, ARENA_REGION_SESSION) +
               (layers_apart(p, processor) + kv_layer) * layer_bytes;
    if (p->kind == STATE_WINDOW)
        return (unsigned char *)arena_window_pool(p->arena) + kv_offset(&windows, page, kv_layer, 0, 0);
    return (unsigned char *)arena_region_ptr(p->arena, ARENA_REGION_KV) +
           kv_offset(host, page, plan_kv_tiered(p->plan) ? plan_kv_layer_in_arena(p->plan, layer) : kv_layer,
                     0, 0);
}

void session_page_read(const struct session_page *p, uint32_t page, unsigned char *bytes)
{
    const uint64_t layer_bytes = kv_layer_bytes(&p->kv);
    for (uint32_t l = 0, n = 0; l < p->plan->layers; l++)
        if (is_its(p, l)) memcpy(bytes + n++ * layer_bytes, cells_of(p, page, l), layer_bytes);
}

void session_page_write(const struct session_page *p, uint32_t page, const unsigned char *bytes)
{
    const uint64_t layer_bytes = kv_layer_bytes(&p->kv);
    for (uint32_t l = 0, n = 0; l < p->plan->layers; l++)
        if (is_its(p, l)) memcpy(cells_of(p, page, l), bytes + n++ * layer_bytes, layer_bytes);
}

/* ---- numbers ---- */

/* Numbers of 16 bits: whether all are at most `most` in magnitude, in the order of their bits. */
static bool all_within16(const unsigned char *bytes, uint64_t count, uint16_t most)
{
    unsigned bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint16_t value;
        memcpy(&value, bytes + 2 * i, sizeof value);
        bad |= (value & 0x7fff) > most;
    }
    return !bad;
}

/* Scales: none is negative, which no writer makes and kernels take none for. */
static bool all_scales(const unsigned char *bytes, uint64_t count, uint16_t most)
{
    unsigned bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint16_t value;
        memcpy(&value, bytes + 2 * i, sizeof value);
        bad |= value > most;
    }
    return !bad;
}

static bool all_finite32(const unsigned char *bytes, uint64_t count)
{
    unsigned bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t value;
        memcpy(&value, bytes + 4 * i, sizeof value);
        bad |= (value & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

/* The largest finite ones, and the largest scale with which numbers of 8 bits are finite in fp16, which
 * kernels round to: 515. */
#define MOST_F16   0x7bffu
#define MOST_BF16  0x7f7fu
#define MOST_SCALE 0x6006u

/* Whether all numbers of one head's rows are finite, as a writer makes them. */
static bool rows_are_finite(const struct kv_layout *kv, const unsigned char *rows)
{
    const uint64_t numbers = (uint64_t)kv->page_tokens * kv->head_dim;
    switch ((enum kv_dtype)kv->dtype) {
    case KV_F32:
        return all_finite32(rows, numbers);
    case KV_F16:
        return all_within16(rows, numbers, MOST_F16);
    case KV_BF16:
        return all_within16(rows, numbers, MOST_BF16);
    case KV_Q8_0:
        return all_scales(rows + kv_scales_at(kv), numbers / KV_Q8_0_VALUES, MOST_SCALE);
    case KV_DTYPE_COUNT:
        break;
    }
    return false;
}

bool session_page_is_finite(const struct session_page *p, const unsigned char *bytes, uint32_t *layer)
{
    const uint64_t head_bytes = kv_head_bytes(&p->kv);
    for (*layer = 0; *layer < p->kv.layers; ++*layer)
        for (uint32_t h = 0; h < kv_kinds(&p->kv) * p->kv.kv_heads; h++)
            if (!rows_are_finite(&p->kv, bytes + *layer * kv_layer_bytes(&p->kv) + h * head_bytes))
                return false;
    return true;
}

bool session_state_is_finite(const unsigned char *state, uint64_t bytes)
{
    return all_finite32(state, bytes / sizeof(float));
}

/* ---- whose pages they are ---- */

static uint64_t add(uint64_t digest, const void *bytes, size_t count)
{
    return content_of(bytes, count, digest);
}

static uint64_t add_number(uint64_t digest, uint64_t number)
{
    return add(digest, &number, sizeof number);
}

static uint64_t add_text(uint64_t digest, const char *text)
{
    return add(digest, text, strlen(text) + 1);
}

/* Where each unit of a list lies, and as what. */
static uint64_t add_list(uint64_t digest, const struct plan *plan, uint32_t list)
{
    for (uint32_t u = 0; u < unit_count(plan->layers); u++) {
        digest = add_number(digest, plan->unit[u].home[list]);
        digest = add_number(digest, plan_unit_format(plan, u));
    }
    return digest;
}

uint64_t session_origin_of(const struct plan *plan, const struct workers *workers, uint32_t list, bool exact)
{
    uint64_t digest = add_text(0, HELM_VERSION);
    if (!plan->invariant) return 0;
    for (uint32_t i = 0; i < workers->count; i++) {
        digest = add_text(digest, workers->worker[i].kernels);
        digest = add_text(digest, workers->worker[i].device);
    }
    digest = add_list(digest, plan, plan_list_phase(plan, list));
    digest = add_number(digest, list);
    digest = add_number(digest, plan->step_tokens);
    digest = add_number(digest, plan->embed);
    for (int p = 0; p < PLAN_PROCESSORS; p++)
        digest = add_number(digest, exact ? LINEAR_EXACT : plan->inputs[p]);
    return digest ? digest : 1;
}

bool session_origin_list(const struct plan *plan, const struct workers *workers, uint64_t origin, bool exact,
                         uint32_t *list)
{
    *list = 0;
    if (!plan->invariant) return true;
    for (; *list < plan_list_count(plan); ++*list)
        if (session_origin_of(plan, workers, *list, exact) == origin) return true;
    return false;
}

bool session_shape_differs(const struct request_shape *from, const struct request_shape *to, char *text,
                           size_t room)
{
    const struct {
        const char *what;
        uint32_t from, to;
    } numbers[] = {{"layers", from->layers, to->layers},
                   {"KV heads", from->kv_heads, to->kv_heads},
                   {"head_dim", from->head_dim, to->head_dim},
                   {"tokens in a page", from->page_tokens, to->page_tokens}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].from == numbers[i].to) continue;
        snprintf(text, room, "the session has %u %s, this daemon %u", numbers[i].from, numbers[i].what,
                 numbers[i].to);
        return true;
    }
    if (strcmp(from->kv_dtype, to->kv_dtype) != 0)
        snprintf(text, room, "the session's KV cache is of %s, this daemon's of %s", from->kv_dtype,
                 to->kv_dtype);
    else if (strcmp(from->weights, to->weights) != 0)
        snprintf(text, room, "the session's weights were converted to '%s', this daemon's to '%s'",
                 from->weights, to->weights);
    else if (from->model != to->model)
        snprintf(text, room, "the session is of model %016llx, this daemon serves model %016llx",
                 (unsigned long long)from->model, (unsigned long long)to->model);
    else
        return false;
    return true;
}
