/* Lowering: mixtures of experts. See making.h; called by math.c.
 *
 * The router's logits are a product of one or few tokens, with the norm, exact enough to choose by; the
 * experts' gates make the choice before they begin, of a chunk an operation of its own. The choice stays in
 * device memory: entries depend on shapes alone. One and few tokens take all experts where they lie; a
 * chunk's tokens are grouped by expert once, and each piece of the matrices is whole experts, whose part of
 * the groups begins at their number.
 *
 * Experts in both memories (plan.h): after the router's logits one operation makes the choice of a few
 * tokens, says of each expert whether it lies in a slot, is read in host memory or is the CPU's, and asks for
 * these by lane; the CPU's answer is added last. */
#include "worker-gpu/program/making.h"
#include "common/plan/share.h"
#include "worker-gpu/program/lower.h"

static struct gpuk_choice choice_of(const struct lowering *low)
{
    const struct gpu_buffers *b = low->source->buffers;
    const uint32_t chosen = low->source->model->config.router.chosen;
    uint32_t *id = gpu_area(b, GPU_AREA_CHOICE);
    return (struct gpuk_choice){.chosen = chosen,
                                .id = id,
                                .weight = (float *)(id + (size_t)b->work.tokens * chosen)};
}

/* The same as it is made: by which weights of experts are multiplied. */
static struct gpuk_choice choosing(const struct lowering *low, const struct making *m)
{
    struct gpuk_choice choice = choice_of(low);
    choice.scale = making_vector(low, m, m->at->math->expert_scale);
    return choice;
}

/* Whether the choice is made by an operation of its own, whatever the number of tokens. */
static bool is_routed(const struct lowering *low, const struct making *m)
{
    const struct math_part *part = model_unit_math(low->source->model, m->at->unit);
    for (uint32_t i = 0; i < part->ops; i++)
        if (part->op[i].expert_scale != TENSOR_NONE) return true;
    return making_mixed(low, m);
}

/* The numbers that the sum of a token's experts is added to; NULL: none. */
static const float *added_to(const struct lowering *low, const struct making *m)
{
    return m->at->math->residual ? gpu_area(low->source->buffers, GPU_AREA_X) : NULL;
}
static float *sum_of(const struct lowering *low, const struct making *m)
{
    return (float *)(void *)making_place(low, m, m->at->math->out[0]).at;
}

/* Added to scores for the choice alone; or NULL. */
static const float *choice_bias_of(const struct lowering *low, int32_t layer)
{
    return gpu_vector_of(low->source->weights, TENSOR_CHOICE_BIAS, layer);
}

static struct gpuk_groups groups_of(const struct lowering *low)
{
    const struct gpu_buffers *b = low->source->buffers;
    const struct model_router *router = &low->source->model->config.router;
    uint32_t *first = gpu_area(b, GPU_AREA_GROUPS), *pair = first + router->experts + 1;
    return (struct gpuk_groups){.first = first,
                                .pair = pair,
                                .place = pair + (size_t)b->work.tokens * router->chosen};
}

static bool is_chunk(const struct lowering *low)
{
    return making_tier(low) == OP_TIER_CHUNK;
}

bool making_mixed(const struct lowering *low, const struct making *m)
{
    return low->source->plan->unit[m->at->unit].home[low->program->phase] == PLAN_HOME_MIXED;
}

/* Where this step's kernels find a layer's experts. */
static uint32_t *slots_now(const struct lowering *low)
{
    return gpu_area(low->source->buffers, GPU_AREA_SLOTS);
}

void make_router(struct lowering *low, const struct making *m)
{
    const struct gpu_buffers *b = low->source->buffers;
    const struct model_config *c = &low->source->model->config;
    struct op *op = making_op(low, m);
    op->workspace = gpu_area(b, is_chunk(low) ? GPU_AREA_MATMUL : GPU_AREA_LINEAR);
    op->as.linear =
        (struct gpuk_linear_args){.format = FORMAT_F32,
                                  .cols = c->hidden,
                                  .segments = 1,
                                  .segment = {{.weight = making_vector(low, m, m->at->math->router),
                                               .bias = making_vector(low, m, m->at->math->bias[0]),
                                               .out = gpu_area(b, GPU_AREA_ROUTER),
                                               .rows = c->router.experts}},
                                  .x = gpu_area(b, GPU_AREA_X),
                                  .norm = making_vector(low, m, m->at->math->norm),
                                  .eps = (float)c->norm_eps,
                                  .x_stride = c->hidden,
                                  .out_stride = c->router.experts};
    if (!op->as.linear.segment[0].weight && !low->rc)
        low->rc = helm_fail(low->err, HELM_E_INTERNAL, "layer %d: its router is not in VRAM", m->at->layer);
}

void make_route(struct lowering *low, const struct making *m)
{
    making_op(low, m)->as.route = (struct op_route){.router = low->source->model->config.router,
                                                    .logits = gpu_area(low->source->buffers, GPU_AREA_ROUTER),
                                                    .choice_bias = choice_bias_of(low, m->at->layer),
                                                    .out = choosing(low, m)};
}

void make_weigh(struct lowering *low, const struct making *m)
{
    const struct model_config *c = &low->source->model->config;
    const struct place x = making_place(low, m, m->at->math->in),
                       act = making_place(low, m, m->at->math->out[0]);
    struct op *op = making_op(low, m);
    op->as.weigh = (struct gpuk_weigh){.x = (const float *)(void *)x.at,
                                       .norm = making_vector(low, m, m->at->math->norm),
                                       .weight = making_vector(low, m, m->at->math->router),
                                       .eps = (float)c->norm_eps,
                                       .width = c->hidden,
                                       .act = act.at,
                                       .dtype = act.dtype,
                                       .n = c->shared_intermediate};
    if ((!op->as.weigh.norm || !op->as.weigh.weight) && !low->rc)
        low->rc = helm_fail(low->err, HELM_E_INTERNAL, "layer %d: its shared expert's weight is not in VRAM",
                            m->at->layer);
}

void make_experts_group(struct lowering *low, const struct making *m)
{
    making_op(low, m)->as.experts_group =
        (struct op_experts_group){.choice = choice_of(low),
                                  .experts = low->source->model->config.router.experts,
                                  .slot = making_mixed(low, m) ? slots_now(low) : NULL,
                                  .out = groups_of(low)};
}

/* One role's matrices of experts in both memories. A chunk's kernels find no packed ones
 * (gpu_slots_table_chunk), as if they were plain. */
static struct gpuk_experts mixed_of(const struct lowering *low, const struct making *m, enum slot_role role)
{
    const struct gpu_slots *slots = low->source->slots;
    const struct gpu_matrix *matrix = gpu_matrix_of(low->source->weights, slot_tensor(role), m->at->layer);
    const struct slot_place *place =
        &slots->place.unit[plan_mixed_index(low->source->plan, m->at->unit)].role[role];
    const uint32_t experts = low->source->model->config.router.experts;
    const bool own =
        m->at->math->weight[role == SLOT_UP] == slot_tensor(role); /* false: the down that is read after the
                                                                    * gates */
    const bool none = is_chunk(low) && tensor_format_of(matrix->format)->variable;
    return (struct gpuk_experts){.format = none ? tensor_format_plain(tensor_format_product(matrix->format))
                                                : matrix->format,
                                 .experts = experts,
                                 .bias =
                                     own ? making_vector(low, m, m->at->math->bias[role == SLOT_UP]) : NULL,
                                 .rows = matrix->rows / experts,
                                 .cols = matrix->cols,
                                 .slot = slots_now(low),
                                 .weight = slots->memory + place->at,
                                 .host = matrix->host,
                                 .stride = place->stride};
}

/* Experts of a layer from `weight` on; of packed ones with their table of offsets. */
static struct gpuk_experts experts_at(const struct gpu_matrix *matrix, enum tensor_format format,
                                      uint32_t all, const char *weight, const uint32_t *offset)
{
    const uint32_t rows = matrix->rows / all;
    const bool packed = tensor_format_of(format)->variable;
    return (struct gpuk_experts){.format = format,
                                 .rows = rows,
                                 .cols = matrix->cols,
                                 .weight = weight,
                                 .host = packed ? offset : NULL,
                                 .stride = packed ? 0 : tensor_format_bytes(format, rows, matrix->cols)};
}

/* Which experts a piece has: the first, and one role's matrices of them. */
static struct gpuk_experts experts_of(struct lowering *low, const struct making *m, uint32_t part,
                                      uint32_t *first)
{
    *first = 0;
    if (making_mixed(low, m))
        return mixed_of(low, m,
                        m->at->math->kind == MATH_EXPERTS_DOWN ? SLOT_DOWN
                        : part                                 ? SLOT_UP
                                                               : SLOT_GATE);
    const struct piece_part *p = &m->piece->part[part];
    const uint32_t all = low->source->model->config.router.experts, rows = p->matrix->rows / all;
    const float *bias = making_vector(low, m, m->at->math->bias[p->weight]);
    struct gpuk_experts experts =
        experts_at(p->matrix, m->piece->format, all, p->data, p->offset); /* expanded, or as they lie */
    experts.experts = p->rows / rows;
    experts.bias = bias ? bias + p->row : NULL;
    *first = p->row / rows;
    if (!low->rc && (experts.stride % 16 || p->row % rows || p->rows % rows))
        low->rc = helm_fail(
            low->err, HELM_E_UNSUPPORTED,
            "layer %d: experts of %u x %u values of %s, which take %llu bytes each: no multiple of 16",
            m->at->layer, rows, experts.cols, tensor_format_name(experts.format),
            (unsigned long long)experts.stride);
    return experts;
}

/* The matrices read after the gates. */
static struct gpuk_experts downs_of(const struct lowering *low, const struct making *m)
{
    if (making_mixed(low, m)) return mixed_of(low, m, SLOT_DOWN);
    const struct gpu_matrix *down = gpu_matrix_of(low->source->weights, TENSOR_DOWN_EXPERTS, m->at->layer);
    const uint32_t all = low->source->model->config.router.experts;
    struct gpuk_experts experts = experts_at(down, down->format, all, down->data, down->offset_device);
    experts.experts = all;
    return experts;
}

void make_experts_glu(struct lowering *low, const struct making *m)
{
    const struct gpu_buffers *b = low->source->buffers;
    const struct model_config *c = &low->source->model->config;
    uint32_t first;
    const struct gpuk_experts gate = experts_of(low, m, 0, &first), up = experts_of(low, m, 1, &first);
    if (gate.format != up.format && !low->rc)
        low->rc = helm_fail(low->err, HELM_E_UNSUPPORTED, "layer %d: its experts' gates are %s, their ups %s",
                            m->at->layer, tensor_format_name(gate.format), tensor_format_name(up.format));
    struct op *op = making_op(low, m);
    if (is_chunk(low)) {
        struct gpuk_groups groups = groups_of(low);
        groups.first += first;
        op->as.experts_glu =
            (struct op_experts_glu){.is_chunk = true,
                                    .chunk = {.gate = gate,
                                              .up = up,
                                              .glu = math_glu(m->at->math),
                                              .chosen = c->router.chosen,
                                              .groups = groups,
                                              .dtype = tensor_format_product(gate.format),
                                              .act_dtype = tensor_format_product(downs_of(low, m).format),
                                              .x = gpu_area(b, GPU_AREA_CHUNK_EXPERTS_X),
                                              .act = gpu_area(b, GPU_AREA_CHUNK_EXPERTS_ACT)}};
        return;
    }
    const bool routes = !is_routed(low, m); /* else the choice has been made */
    op->workspace = gpu_area(b, GPU_AREA_EXPERTS);
    op->as.experts_glu =
        (struct op_experts_glu){.ahead = downs_of(low, m),
                                .few = {.gate = gate,
                                        .up = up,
                                        .glu = math_glu(m->at->math),
                                        .choice = choice_of(low),
                                        .router = routes ? &c->router : NULL,
                                        .logits = routes ? gpu_area(b, GPU_AREA_ROUTER) : NULL,
                                        .choice_bias = routes ? choice_bias_of(low, m->at->layer) : NULL,
                                        .x = gpu_area(b, GPU_AREA_X),
                                        .norm = making_vector(low, m, m->at->math->norm),
                                        .x_stride = c->hidden,
                                        .eps = (float)c->norm_eps,
                                        .act = gpu_area(b, GPU_AREA_FEW_ACT)}};
}

void make_experts_down(struct lowering *low, const struct making *m)
{
    const struct gpu_buffers *b = low->source->buffers;
    const struct model_config *c = &low->source->model->config;
    uint32_t first;
    const struct gpuk_experts down = experts_of(low, m, 0, &first);
    struct op *op = making_op(low, m);
    if (is_chunk(low)) {
        struct gpuk_groups groups = groups_of(low);
        groups.first += first;
        op->as.experts_down =
            (struct op_experts_down){.is_chunk = true,
                                     .chunk = {.down = down,
                                               .chosen = c->router.chosen,
                                               .groups = groups,
                                               .dtype = tensor_format_product(down.format),
                                               .act = gpu_area(b, GPU_AREA_CHUNK_EXPERTS_ACT),
                                               .sums = gpu_area(b, GPU_AREA_CHUNK_EXPERTS_SUM)}};
        return;
    }
    const bool routes = !is_routed(low, m);
    op->workspace = gpu_area(b, GPU_AREA_EXPERTS);
    op->as.experts_down = (struct op_experts_down){
        .few = {.down = down,
                .choice = choice_of(low),
                .act = gpu_area(b, GPU_AREA_FEW_ACT),
                .residual = added_to(low, m),
                .out = !m->at->math->residual || making_mixed(low, m) ? sum_of(low, m) : m->x_out,
                .out_stride = c->hidden,
                .router = routes ? &c->router : NULL,
                .logits = routes ? gpu_area(b, GPU_AREA_ROUTER) : NULL,
                .choice_bias = routes ? choice_bias_of(low, m->at->layer) : NULL}};
}

void make_experts_sum(struct lowering *low, const struct making *m)
{
    const struct gpu_buffers *b = low->source->buffers;
    const uint32_t hidden = low->source->model->config.hidden;
    making_op(low, m)->as.experts_sum =
        (struct op_experts_sum){.choice = choice_of(low),
                                .groups = groups_of(low),
                                .sums = gpu_area(b, GPU_AREA_CHUNK_EXPERTS_SUM),
                                .residual = added_to(low, m),
                                .rows = hidden,
                                .out_stride = hidden,
                                .out = sum_of(low, m)};
}

/* ---- in both memories ---- */

/* The word of a lane that a kernel rings or waits for itself, where the device's do; NULL: the queue does.
 * Chunks' do not: they ask with many blocks. */
static uint32_t *bell_of(const struct lowering *low, struct lane *lane)
{
    return low->source->device->rings && !is_chunk(low) ? (uint32_t *)(void *)&lane->bell.value : NULL;
}

/* The lane to the processor that computes what this one leaves out of a unit, or the lane of its answer. */
static struct lane *lane_of(const struct lowering *low, uint32_t unit, bool answer)
{
    const struct gpu_source *s = low->source;
    const enum plan_processor helper = plan_home_rows[s->plan->unit[unit].home[low->program->phase]].helper;
    return arena_lane_at(s->arena, ARENA_LANE_EXPERTS,
                         answer ? plan_link_of(helper, s->self) : plan_link_of(s->self, helper));
}

/* The layer's hand-over to the CPU, as tickets count them. */
static uint32_t ticket_of(const struct lowering *low, const struct making *m)
{
    return plan_mixed_index(low->source->plan, m->at->unit) + 1;
}

/* In a chunk the choice has been made, and nothing is read in host memory: its tokens would read it again and
 * again. */
void make_experts_ask(struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const struct model_config *c = &s->model->config;
    const struct gpu_slots *slots = s->slots;
    const uint32_t ticket = ticket_of(low, m);
    const bool chunk = is_chunk(low);
    struct lane *lane = lane_of(low, m->at->unit, false);
    if (ticket == 1) lower_word(low, OP_WORD_WAIT, &lane->bell.value, 0, DEVICE_EQUAL);
    making_op(low, m)->as.experts_ask = (struct gpuk_experts_ask){
        .router = chunk ? NULL : &c->router,
        .logits = chunk ? NULL : gpu_area(s->buffers, GPU_AREA_ROUTER),
        .choice_bias = chunk ? NULL : choice_bias_of(low, m->at->layer),
        .choice = choosing(low, m),
        .experts = c->router.experts,
        .table = chunk ? gpu_slots_table_chunk(slots, ticket - 1) : gpu_slots_table(slots, ticket - 1),
        .direct_permille = chunk ? NULL : gpu_slots_direct(slots),
        .slot = slots_now(low),
        .x = gpu_area(s->buffers, GPU_AREA_X),
        .width = c->hidden,
        .lane = lane->data,
        .capacity = arena_header_of(s->arena)->step_tokens,
        .seen = chunk ? NULL : slots->seen + (size_t)(ticket - 1) * GPUK_BATCH_MAX * c->router.chosen,
        .bell = bell_of(low, lane),
        .ticket = ticket};
    if (!bell_of(low, lane)) lower_word(low, OP_WORD_WRITE, &lane->bell.value, ticket, DEVICE_EQUAL);
}

void make_experts_add(struct lowering *low, const struct making *m)
{
    const struct gpu_source *s = low->source;
    const uint32_t ticket = ticket_of(low, m);
    struct lane *lane = lane_of(low, m->at->unit, true);
    float *x = sum_of(low, m);
    if (!bell_of(low, lane)) lower_word(low, OP_WORD_WAIT, &lane->bell.value, ticket, DEVICE_AT_LEAST);
    making_op(low, m)->as.experts_add =
        (struct gpuk_experts_add){.x = x,
                                  .sum = lane->data,
                                  .out = is_chunk(low) || !m->at->math->residual ? x : m->x_out,
                                  .width = s->model->config.hidden,
                                  .bell = bell_of(low, lane),
                                  .ticket = ticket};
    if (ticket == plan_mixed_units(s->plan))
        lower_word(low, OP_WORD_WRITE, &lane->bell.value, 0, DEVICE_EQUAL);
}

/* ---- an MLP that two processors compute ---- */

bool lower_shares(const struct lowering *low, uint32_t unit)
{
    return plan_home_rows[low->source->plan->unit[unit].home[low->program->phase]].route == PLAN_ROWS;
}

void lower_share_begin(struct lowering *low, uint32_t unit)
{
    const struct gpu_source *s = low->source;
    const uint32_t ticket = plan_shared_index(s->plan, unit) + 1;
    struct lane *lane = lane_of(low, unit, false);
    if (ticket == 1) lower_word(low, OP_WORD_WAIT, &lane->bell.value, 0, DEVICE_EQUAL);
    lower_add(low, OP_LANE_WRITE, (int32_t)unit_layer(unit))->op.as.move =
        (struct op_move){.from = gpu_area(s->buffers, GPU_AREA_X),
                         .to = lane->data,
                         .width = s->model->config.hidden};
    lower_word(low, OP_WORD_WRITE, &lane->bell.value, ticket, DEVICE_EQUAL);
}

/* Where the device's kernels can wait for a word this one does, unless it is a chunk's, of many blocks, or
 * slices are copied meanwhile: in a captured graph a copy that waits for a kernel seems to wait for the whole
 * run of kernels after it too, up to the next node of the queue (docs/planner-plan.md). Else its queue. */
void lower_share_end(struct lowering *low, uint32_t unit, float *out)
{
    const struct gpu_source *s = low->source;
    const uint32_t ticket = plan_shared_index(s->plan, unit) + 1;
    struct lane *lane = lane_of(low, unit, true);
    const bool waits = s->device->rings && low->program->tier != GPU_TIER_CHUNK && !low->ring->count;
    if (!waits) lower_word(low, OP_WORD_WAIT, &lane->bell.value, ticket, DEVICE_AT_LEAST);
    lower_add(low, OP_EXPERTS_ADD, (int32_t)unit_layer(unit))->op.as.experts_add =
        (struct gpuk_experts_add){.x = gpu_area(s->buffers, GPU_AREA_X),
                                  .sum = lane->data,
                                  .out = out,
                                  .width = s->model->config.hidden,
                                  .bell = waits ? (uint32_t *)(void *)&lane->bell.value : NULL,
                                  .ticket = ticket};
    if (ticket == plan_shared_units(s->plan))
        lower_word(low, OP_WORD_WRITE, &lane->bell.value, 0, DEVICE_EQUAL);
}
