/* Lowering: the order of a step. The spans of this worker with the hand-overs around them, what the other one
 * asks for meanwhile, and what MLP halves take of the tokens first. See program.h and lower.h; program.c has
 * what each operation becomes. */
#include <stdlib.h>
#include <string.h>

#include "common/plan/schedule.h"
#include "common/plan/share.h"
#include "worker-cpu/program/lower.h"

/* A hand-over of the residual stream. */
struct hand_over {
    enum arena_lane_kind lanes;
    uint32_t lane, ticket;
    bool last;
};

static void add_lane(struct lowering *low, enum op_kind kind, const struct hand_over *how)
{
    const struct arena *arena = low->source->arena;
    struct program_entry *e = lower_entry(low, kind, -1);
    e->lane = arena ? arena_lane_at(arena, how->lanes, how->lane) : NULL;
    e->ticket = how->ticket;
    e->last = how->last;
}

static void lower_unit(struct lowering *low, uint32_t unit)
{
    const struct math_part *math = model_unit_math(low->source->model, unit);
    uint32_t first = low->program->count;
    for (uint32_t i = 0; i < math->ops; i++)
        lower_op(low, &math->op[i], i + 1 < math->ops ? &math->op[i + 1] : NULL, (int32_t)unit_layer(unit),
                 false);
    if (first == low->program->count || low->rc) return;
    const struct plan *plan = low->source->plan;
    if (plan_disk_ring(plan) && plan->unit[unit].home[0] == PLAN_HOME_DISK) {
        low->program->entry[first].takes_unit = true;
        low->program->entry[low->program->count - 1].leaves_unit = true;
    }
    for (; first < low->program->count; first++) low->program->entry[first].unit = unit;
}

/* The other worker's activations in, our half layers, ours out. */
static void lower_span(struct lowering *low, const struct plan_span *span)
{
    const struct model *model = low->source->model;
    const struct hand_over in = {ARENA_LANE_STEP, span->lane_in, span->ticket_in, span->last_in},
                           out = {ARENA_LANE_STEP, span->lane_out, span->ticket_out, false};
    if (span->ticket_in) add_lane(low, OP_LANE_READ, &in);
    if (span->embed) lower_op(low, &model->math.embed, NULL, -1, false);
    for (uint32_t u = span->first_unit; u < span->first_unit + span->unit_count; u++) lower_unit(low, u);
    if (span->ticket_out) add_lane(low, OP_LANE_WRITE, &out);
}

/* Inputs that MLP halves of these spans take of the tokens, from their embedding, which is then here whoever
 * has it. */
static void lower_inputs(struct lowering *low, const struct plan_span *spans, uint32_t count)
{
    const struct math_part *inputs = &low->source->model->math.inputs;
    bool here = false;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t u = 0; u < spans[i].unit_count; u++)
            here |= spans[i].processor == low->source->self && unit_part(spans[i].first_unit + u) == UNIT_MLP;
    if (!here || !inputs->ops) return;
    lower_op(low, &low->source->model->math.embed, NULL, -1, false);
    for (uint32_t i = 0; i < inputs->ops; i++) lower_op(low, &inputs->op[i], NULL, -1, false);
}

/* A mixture's unit of which the other worker asks for some experts. */
static void lower_mixed(struct lowering *low, uint32_t unit)
{
    const struct math_part *math = model_unit_math(low->source->model, unit);
    for (uint32_t i = 0; i < math->ops; i++)
        lower_op(low, &math->op[i], i + 1 < math->ops ? &math->op[i + 1] : NULL, (int32_t)unit_layer(unit),
                 true);
}

/* A dense MLP of which the other worker has the first rows: x comes by lane, and the sum of the others goes
 * back in its place. */
static void lower_shared(struct lowering *low, uint32_t unit)
{
    const struct program_source *s = low->source;
    const struct math_part *math = model_unit_math(s->model, unit);
    const enum plan_processor device = plan_home_processor(PLAN_HOME_SHARED);
    const uint32_t ticket = plan_shared_index(s->plan, unit) + 1;
    const struct hand_over in = {ARENA_LANE_EXPERTS, plan_link_of(device, s->self), ticket,
                                 ticket == plan_shared_units(s->plan)},
                           out = {ARENA_LANE_EXPERTS, plan_link_of(s->self, device), ticket, false};
    struct math_op op[MATH_OPS_MAX];
    uint32_t ops = 0;
    for (uint32_t i = 0; i < math->ops; i++) {
        if (share_is_own(math->op[i].weight[0])) continue;
        op[ops] = math->op[i];
        op[ops++].residual = false;
    }
    add_lane(low, OP_LANE_READ, &in);
    for (uint32_t i = 0; i < ops; i++)
        lower_op(low, &op[i], i + 1 < ops ? &op[i + 1] : NULL, (int32_t)unit_layer(unit), false);
    add_lane(low, OP_LANE_WRITE, &out);
}

/* Its attention to the positions that lie in the arena alone. */
static void lower_attend_host(struct lowering *low, uint32_t layer)
{
    const struct program_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const uint32_t *window = c->window, all = plan_assisted_layers(s->plan, window, c->layers);
    uint32_t kv_layer;
    const enum plan_processor device = plan_kv_of(s->plan, layer, &kv_layer);
    if (!plan_keeps_pages(s->plan, layer) || device == s->self) return;
    if (!plan_assists_layer(s->plan, window ? window[layer] : 0)) return;
    struct program_entry *e = lower_entry(low, OP_ATTEND_HOST, (int32_t)layer);
    const struct math_part *math = model_unit_math(s->model, unit_of(layer, UNIT_ATTENTION));
    for (uint32_t i = 0; i < math->ops; i++)
        if (math->op[i].kind == MATH_ATTENTION) e->scale = math->op[i].score_scale;
    e->kv_layer = plan_kv_layer_in_arena(s->plan, layer);
    e->window = window ? window[layer] : 0;
    e->ticket = ++low->asked;
    e->last = low->asked == all;
    if (!s->arena) return;
    e->lane = arena_lane_at(s->arena, ARENA_LANE_KV, plan_link_of(device, s->self));
    e->answer = arena_lane_at(s->arena, ARENA_LANE_KV, plan_link_of(s->self, device));
}

/* Work that the other worker asks of us while it computes these half layers. */
static void lower_asked(struct lowering *low, uint32_t phase, const struct plan_span *span)
{
    for (uint32_t u = span->first_unit; u < span->first_unit + span->unit_count; u++)
        if (plan_home_rows[low->source->plan->unit[u].home[phase]].helper == low->source->self)
            (low->source->plan->unit[u].home[phase] == PLAN_HOME_SHARED ? lower_shared : lower_mixed)(low, u);
        else if (low->source->assisted && unit_part(u) == UNIT_ATTENTION)
            lower_attend_host(low, unit_layer(u));
}

/* How many tokens at most a program of few, or of as few sampled rows, computes as one token's kernels do; 0:
 * it has kernels of several. */
static uint32_t few_of(const struct program_source *source)
{
    return source->plan->invariant ? PROGRAM_FEW_TOKENS : source->apart;
}

static const uint32_t typical[OP_TIER_COUNT] = {1, PROGRAM_FEW_TOKENS, 256};

int program_lower(const struct program_source *source, uint32_t phase, enum op_tier tier,
                  struct program *program, struct helm_err *err)
{
    struct lowering low = {.source = source,
                           .program = program,
                           .tier = tier,
                           .tokens = typical[tier],
                           .few = tier == OP_TIER_FEW && few_of(source),
                           .err = err};
    low.tiled = tier != OP_TIER_ONE && !low.few;
    *program = (struct program){.phase = phase, .tiled = low.tiled, .few = low.few ? few_of(source) : 0};
    struct plan_span *spans = NULL;
    uint32_t span_count = 0;
    low.rc = plan_spans(source->plan, phase, &spans, &span_count, err);
    if (!low.rc) lower_entry(&low, OP_EMBED, -1);
    if (!low.rc) lower_inputs(&low, spans, span_count);
    for (uint32_t i = 0; i < span_count && !low.rc; i++) {
        if (spans[i].processor == source->self)
            lower_span(&low, &spans[i]);
        else
            lower_asked(&low, phase, &spans[i]);
    }
    free(spans);
    if (!low.rc && !program->entry[0].gather && !program->entry[0].rotates) {
        program->count--;
        memmove(program->entry, program->entry + 1, program->count * sizeof *program->entry);
    }
    if (low.rc) program_free(program);
    return low.rc;
}

int program_lower_drafts(const struct program_source *source, bool first, enum op_tier tier,
                         struct program *program, struct helm_err *err)
{
    const struct model *model = source->model;
    struct lowering low = {
        .source = source, .program = program, .tier = tier, .tokens = typical[tier], .err = err};
    low.tiled = tier != OP_TIER_ONE;
    *program = (struct program){.tiled = low.tiled};
    if (!source->plan->draft_layers) return 0;
    lower_entry(&low, OP_EMBED, -1);
    for (uint32_t i = 0; i < model->math.hidden_states.ops && first; i++)
        lower_op(&low, &model->math.hidden_states.op[i], NULL, -1, false);
    for (uint32_t u = plan_answer_units(source->plan); u < unit_count(source->plan->layers); u++)
        lower_unit(&low, u);
    if (low.rc) program_free(program);
    return low.rc;
}

int program_lower_head(const struct program_source *source, bool many, struct program *program,
                       struct helm_err *err)
{
    struct lowering low = {.source = source,
                           .program = program,
                           .tier = many ? OP_TIER_FEW : OP_TIER_ONE,
                           .tokens = many ? PROGRAM_FEW_TOKENS : 1,
                           .few = many && few_of(source),
                           .err = err};
    low.tiled = many && !low.few;
    *program = (struct program){.tiled = low.tiled, .few = low.few ? few_of(source) : 0};
    const struct model_math *math = &source->model->math;
    lower_op(&low, source->drafts ? &math->draft_head : &math->head, NULL, -1, false);
    if (low.rc) program_free(program);
    return low.rc;
}

void program_free(struct program *program)
{
    for (uint32_t i = 0; i < program->count; i++) free(program->entry[i].bound);
    free(program->entry);
    memset(program, 0, sizeof *program);
}
