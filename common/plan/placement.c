/* Placements of matrices. See placement.h. Called by the planner, both workers and tests; reads no file and
 * no arena. */
#include "common/plan/placement.h"

#include <math.h>
#include <stdlib.h>

#include "common/base/units.h"
#include "common/formats/packed.h"
#include "common/model/arch.h"
#include "common/model/share.h"
#include "common/plan/engine_limits.h"

/* ---- sizes ---- */

uint64_t placement_align(enum plan_memory memory)
{
    return memory == PLAN_HOST ? HOST_ALIGN : VRAM_ALIGN;
}

uint64_t placement_rounded(enum plan_memory memory, uint64_t bytes)
{
    return round_up(bytes, placement_align(memory));
}

/* Where the tensor is of experts, their number; else 1. */
static uint32_t parts_of(const struct model *model, const struct model_tensor *t)
{
    return arch_role_of_experts(t->role) ? model->config.router.experts : 1;
}

bool placement_takes(const struct model *model, const struct model_tensor *t, enum tensor_format format)
{
    return tensor_format_converts(t->format, format) && tensor_format_takes(format, t->rows, t->cols) &&
           t->rows / parts_of(model, t) % tensor_format_of(format)->group_rows == 0;
}

void placement_packing(const struct model *model, bool *link, bool *cpu)
{
    const uint32_t units = unit_count(model->config.layers);
    for (uint32_t u = 0; u < units; u++) link[u] = cpu[u] = true;
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        const uint32_t u = model_tensor_unit(t);
        if (t->layer < 0 || u >= units || arch_role_is_vector(t->role)) continue;
        const bool takes = placement_takes(model, t, FORMAT_BF16_PACKED),
                   runs = t->cols % PACKED_CPU_COLS == 0;
        const bool heads = arch_role_of_heads(t->role); /* whose product takes rows of one size alone */
        link[u] &=
            takes && !heads && (runs || !arch_role_of_experts(t->role)); /* as experts/packed.cu takes them */
        cpu[u] &= takes && !heads && runs;
    }
}

/* Bytes of a packed matrix, by its shape: headers and tables of its groups, codes, and some escapes. */
static double packed_by_shape(const struct model_tensor *t)
{
    const uint32_t values = packed_group_values((uint32_t)t->rows, (uint32_t)t->cols, 0);
    const uint64_t escapes = (uint64_t)(PLACEMENT_PACKED_ESCAPES * values) + 1,
                   most = packed_group_bytes_max(values),
                   group = packed_table_bytes(values) +
                           packed_round((uint64_t)packed_tiles(values) * PACKED_TILE_BYTES + escapes);
    return (double)(packed_groups((uint32_t)t->rows) * (group < most ? group : most));
}

uint64_t placement_room(const struct model_tensor *t, enum tensor_format format, enum plan_memory memory,
                        const struct packed_parts *parts)
{
    if (format == t->format) return t->bytes;
    if (memory == PLAN_HOST || !tensor_format_of(format)->variable)
        return tensor_format_bytes(format, t->rows, t->cols);
    double part = 0;
    if (parts)
        part = t->layer < 0                             ? parts->head
               : unit_part_of_role(t->role) == UNIT_MLP ? parts->mlp
                                                        : parts->attention;
    const double packed = part > 0 ? part * (double)t->bytes : packed_by_shape(t);
    return placement_rounded(memory, (uint64_t)ceil(packed * (1 + PLACEMENT_PACKED_SLACK))) +
           placement_rounded(memory, packed_offsets_bytes((uint32_t)t->rows));
}

uint64_t placement_vector_room(const struct model_tensor *t, enum plan_memory memory)
{
    return placement_rounded(memory, tensor_format_bytes(FORMAT_F32, t->rows, t->cols));
}

/* ---- the list ---- */

enum which { FIXED = 1, VARYING = 2 };

struct laying {
    const struct model *model;
    const struct plan *plan;
    const struct packed_parts *parts;
    enum plan_memory memory;
    unsigned which;
    uint64_t end; /* of what lies in that memory */
    struct placement *place;
    uint32_t count;
    bool table; /* among them one of per-layer embeddings */
};

enum tensor_format placement_format(const struct model *model, const struct mixture *weights,
                                    const struct model_tensor *t, enum tensor_format format)
{
    if (format != PLAN_AS_STORED) return format;
    return weights ? mixture_format_at_load(weights, model, t) : t->format;
}

static int lay(struct laying *l, const struct model_tensor *t, enum tensor_format format,
               struct helm_err *err)
{
    format = placement_format(l->model, l->plan->weights, t, format);
    if (!(l->which & (tensor_format_of(format)->variable ? VARYING : FIXED))) return 0;
    if (!placement_takes(l->model, t, format))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "the plan has %s as %s: its %llu x %llu values of %s cannot lie so", t->name,
                         tensor_format_name(format), (unsigned long long)t->rows, (unsigned long long)t->cols,
                         tensor_format_name(t->format));
    const uint64_t align = placement_align(l->memory), bytes = placement_room(t, format, l->memory, l->parts);
    uint64_t at = l->end;
    if (units_add(at, align - 1, &at) || units_add(at - at % align, bytes, &l->end) ||
        l->end > PLAN_BYTES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "weights: sizes overflow at %s", t->name);
    l->place[l->count++] = (struct placement){.role = t->role,
                                              .layer = t->layer,
                                              .format = format,
                                              .memory = l->memory,
                                              .offset = at - at % align,
                                              .bytes = bytes};
    return 0;
}

bool placement_lies(enum plan_home home, enum tensor_role role, enum plan_memory memory)
{
    if (plan_home_rows[home].route == PLAN_ROWS)
        return memory == (share_is_own(role) ? plan_processor_memory(plan_home_processor(home))
                                             : plan_home_memory(home));
    if (plan_home_rows[home].route == PLAN_READ)
        return memory == (arch_role_of_experts(role) ? plan_home_memory(home)
                                                     : plan_processor_memory(plan_home_processor(home)));
    if (plan_home_memory(home) == memory) return true;
    return plan_home_rows[home].route == PLAN_SLOTS && !arch_role_of_experts(role) &&
           plan_processor_memory(plan_home_processor(home)) == memory;
}

bool placement_inputs(const struct model *model, const struct plan *plan, enum plan_processor processor)
{
    for (uint32_t l = 0; model->math.inputs.ops && l < plan->layers; l++)
        if (plan_computes(plan, processor, unit_of(l, UNIT_MLP))) return true;
    return false;
}

bool placement_reads_tokens(const struct model *model, const struct plan *plan, enum plan_processor processor)
{
    return plan->embed == processor || placement_inputs(model, plan, processor);
}

/* With a ring a unit on disk is there as a whole, with slots its experts alone. */
static bool lies(const struct plan *plan, uint32_t unit, enum tensor_role role, enum plan_memory memory)
{
    const enum plan_home home = plan->unit[unit].home[0];
    if (plan_home_rows[home].route == PLAN_READ && plan_disk_ring(plan))
        return memory == plan_home_memory(home);
    return placement_lies(home, role, memory);
}

/* The embedding's memory, and host memory where a processor that reads its rows has none: for inputs, or with
 * a head that makes drafts, unless the head is the embedding. */
static bool embeds_from(const struct laying *l, enum plan_memory memory)
{
    const enum plan_memory home = plan_processor_memory(l->plan->embed);
    if (home == memory) return true;
    const bool drafts = l->plan->draft_layers > 0, tied = l->model->config.tied_head;
    if (drafts && tied && plan_processor_memory(l->plan->head) == memory) return true;
    for (int p = 0; memory == PLAN_HOST && p < PLAN_PROCESSORS; p++)
        if (plan_processor_memory((enum plan_processor)p) != home &&
            (placement_inputs(l->model, l->plan, (enum plan_processor)p) ||
             (drafts && !tied && l->plan->head == (enum plan_processor)p)))
            return true;
    return false;
}

/* Matrices of model_math.inputs: tables in host memory, what is multiplied where that is done. */
static int lay_inputs(struct laying *l, struct helm_err *err)
{
    const struct math_part *inputs = &l->model->math.inputs;
    bool here = false, any = false;
    int rc = 0;
    for (int p = 0; p < PLAN_PROCESSORS; p++) {
        const bool makes = placement_inputs(l->model, l->plan, (enum plan_processor)p);
        any |= makes;
        here |= makes && plan_processor_memory((enum plan_processor)p) == l->memory;
    }
    for (uint32_t i = 0; i < inputs->ops && !rc; i++) {
        const struct math_op *op = &inputs->op[i];
        if (op->kind == MATH_PER_LAYER ? l->memory != PLAN_HOST || !any : !here) continue;
        l->table |= op->kind == MATH_PER_LAYER;
        rc = lay(l, model_find(l->model, op->weight[0], -1), PLAN_AS_STORED, err);
    }
    return rc;
}

static int lay_memory(struct laying *l, enum plan_memory memory, unsigned which, struct helm_err *err)
{
    const struct plan *plan = l->plan;
    const bool embed = embeds_from(l, memory), head = plan_processor_memory(plan->head) == memory,
               same = embed && head && l->model->config.tied_head;
    int rc = 0;
    l->memory = memory;
    l->which = which;
    if (same && plan_processor_memory(plan->embed) == memory &&
        plan_head_format(plan) != plan_embed_format(plan))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "the plan has the head as %s, but it is also the embedding in %s",
                         plan_head_format(plan) == PLAN_AS_STORED
                             ? "it is stored"
                             : tensor_format_name(plan_head_format(plan)),
                         plan_memory_name(memory));
    if (embed && !same) rc = lay(l, model_find(l->model, TENSOR_EMBED, -1), plan_embed_format(plan), err);
    if (!rc) rc = lay_inputs(l, err);
    for (uint32_t u = 0; u < unit_count(plan->layers) && !rc; u++) {
        const struct model_unit *unit = &l->model->unit[u];
        for (uint32_t i = 0; i < unit->matrix_count && !rc; i++)
            if (lies(plan, u, unit->tensor[i]->role, memory))
                rc = lay(l, unit->tensor[i], plan_unit_format(plan, u), err);
    }
    if (!rc && head) rc = lay(l, model_find(l->model, TENSOR_HEAD, -1), plan_head_format(plan), err);
    return rc;
}

/* The list, in a fresh array. */
static int lay_all(struct laying *l, struct helm_err *err)
{
    const struct model *model = l->model;
    if (l->plan->layers != model->config.layers)
        return helm_fail(err, HELM_E_MISMATCH, "the plan has %u layers, the model %u", l->plan->layers,
                         model->config.layers);
    /* An embedding that is a head elsewhere is there twice, and so may be what is no expert's. */
    l->place = calloc(2 * (size_t)model->tensor_count + 2 + PLAN_MEMORIES, sizeof *l->place);
    if (!l->place) return helm_fail(err, HELM_E_NOMEM, "no memory for %u placements", model->tensor_count);
    int rc = lay_memory(l, PLAN_HOST, FIXED | VARYING, err);
    for (int m = PLAN_HOST + 1; m < PLAN_MEMORIES && !rc; m++) {
        l->end = 0;
        rc = lay_memory(l, (enum plan_memory)m, FIXED, err);
        if (!rc) rc = lay_memory(l, (enum plan_memory)m, VARYING, err);
    }
    return rc;
}

int placement_make(const struct model *model, const struct packed_parts *parts, struct plan *plan,
                   struct helm_err *err)
{
    struct laying l = {.model = model, .plan = plan, .parts = parts};
    plan_drop_placements(plan);
    int rc = lay_all(&l, err);
    if (rc) {
        free(l.place);
        return rc;
    }
    plan->placement = l.place;
    plan->placement_count = l.count;
    plan->host_table = l.table;
    return 0;
}

/* ---- finding ---- */

struct placements placements_in(const struct plan *plan, enum plan_memory memory)
{
    struct placements in = {.place = plan->placement};
    uint32_t i = 0;
    while (i < plan->placement_count && plan->placement[i].memory != memory) i++;
    if (plan->placement) in.place = plan->placement + i;
    for (; i < plan->placement_count && plan->placement[i].memory == memory; i++, in.count++) {
        const struct placement *p = &plan->placement[i];
        if (tensor_format_of(p->format)->variable) in.varying += p->bytes;
    }
    if (in.count)
        in.region_bytes =
            placement_rounded(memory, in.place[in.count - 1].offset + in.place[in.count - 1].bytes);
    return in;
}

unsigned placements_formats(const struct placements *in)
{
    unsigned formats = 0;
    for (uint32_t i = 0; i < in->count; i++) formats |= format_bit(in->place[i].format);
    return formats;
}

uint32_t placements_packed_in_vram(const struct plan *plan, uint64_t *varying)
{
    uint32_t units = 0;
    *varying = 0;
    for (int m = PLAN_HOST + 1; m < PLAN_MEMORIES; m++) {
        units += plan_units_in(plan, (enum plan_memory)m, FORMAT_BF16_PACKED);
        *varying += placements_in(plan, (enum plan_memory)m).varying;
    }
    return units;
}

const struct placement *placement_find(const struct placements *in, enum tensor_role role, int32_t layer)
{
    for (uint32_t i = 0; i < in->count; i++)
        if (in->place[i].role == role && in->place[i].layer == layer) return &in->place[i];
    return NULL;
}

const struct model_tensor *placement_tensor(const struct model *model, const struct placement *place)
{
    return model_find(model, place->role, place->layer);
}

/* ---- checking a received or hand-written list ---- */

static const char *name_of(const struct placement *p, char name[MODEL_NAME_MAX])
{
    model_tensor_name(NULL, p->role, p->layer, name);
    return name;
}

/* A placement beside what it has to be. */
static int check_one(const struct placement *p, const struct placement *wanted, struct helm_err *err)
{
    char name[MODEL_NAME_MAX];
    const bool varies = tensor_format_of(wanted->format)->variable;
    if (p->format != wanted->format)
        return helm_fail(err, HELM_E_MISMATCH, "%s lies as %s, by the plan's stages as %s", name_of(p, name),
                         tensor_format_name(p->format), tensor_format_name(wanted->format));
    if (varies && p->memory != PLAN_HOST) return 0; /* the planner's to know; loading sees */
    if (varies ? p->bytes >= wanted->bytes : p->bytes == wanted->bytes) return 0;
    return helm_fail(err, HELM_E_MISMATCH, "%s has %llu bytes; as %s it takes %s%llu", name_of(p, name),
                     (unsigned long long)p->bytes, tensor_format_name(p->format), varies ? "up to " : "",
                     (unsigned long long)wanted->bytes);
}

/* Each lies after the one before it, on a boundary; in VRAM nothing of fixed size is after the stack. */
static int check_place(const struct plan *plan, uint32_t i, struct helm_err *err)
{
    char name[MODEL_NAME_MAX], other[MODEL_NAME_MAX];
    const struct placement *p = &plan->placement[i], *before = i ? p - 1 : NULL;
    const uint64_t align = placement_align(p->memory);
    uint64_t end;
    if (p->offset % align)
        return helm_fail(err, HELM_E_MISMATCH, "%s begins at %llu, which is no multiple of %llu",
                         name_of(p, name), (unsigned long long)p->offset, (unsigned long long)align);
    if (units_add(p->offset, p->bytes, &end) || end > PLAN_BYTES_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%s: %llu bytes from %llu on are too many", name_of(p, name),
                         (unsigned long long)p->bytes, (unsigned long long)p->offset);
    if (!before || before->memory < p->memory) return 0;
    if (before->memory > p->memory)
        return helm_fail(err, HELM_E_FORMAT, "%s in %s is listed after %s in %s", name_of(p, name),
                         plan_memory_name(p->memory), name_of(before, other),
                         plan_memory_name(before->memory));
    if (p->offset < before->offset + before->bytes)
        return helm_fail(err, HELM_E_MISMATCH, "%s begins at %llu of %s, before %s ends at %llu",
                         name_of(p, name), (unsigned long long)p->offset, plan_memory_name(p->memory),
                         name_of(before, other), (unsigned long long)(before->offset + before->bytes));
    if (p->memory != PLAN_HOST && tensor_format_of(before->format)->variable &&
        !tensor_format_of(p->format)->variable)
        return helm_fail(err, HELM_E_MISMATCH, "%s at %llu of %s is after %s, whose size varies",
                         name_of(p, name), (unsigned long long)p->offset, plan_memory_name(p->memory),
                         name_of(before, other));
    return 0;
}

/* Every one that is wanted is there; one that is missing may be in another memory. */
static int check_all_there(const struct plan *plan, const struct laying *wanted, struct helm_err *err)
{
    char name[MODEL_NAME_MAX];
    for (uint32_t i = 0; i < wanted->count; i++) {
        const struct placement *w = &wanted->place[i];
        const struct placements in = placements_in(plan, w->memory);
        const struct placement *p = placement_find(&in, w->role, w->layer);
        if (!p)
            return helm_fail(err, HELM_E_MISMATCH,
                             "%s is missing in %s, where the plan's stages have its %llu bytes",
                             name_of(w, name), plan_memory_name(w->memory), (unsigned long long)w->bytes);
        int rc = check_one(p, w, err);
        if (rc) return rc;
    }
    return 0;
}

/* And nothing else. */
static int check_none_other(const struct plan *plan, const struct laying *wanted, struct helm_err *err)
{
    char name[MODEL_NAME_MAX];
    const struct plan list = {.placement = wanted->place, .placement_count = wanted->count};
    for (uint32_t i = 0; i < plan->placement_count; i++) {
        const struct placement *p = &plan->placement[i];
        const struct placements given = placements_in(plan, p->memory), in = placements_in(&list, p->memory);
        if (placement_find(&given, p->role, p->layer) == p && placement_find(&in, p->role, p->layer))
            continue;
        return helm_fail(err, HELM_E_MISMATCH, "%s has %llu bytes at %llu of %s, where %s", name_of(p, name),
                         (unsigned long long)p->bytes, (unsigned long long)p->offset,
                         plan_memory_name(p->memory),
                         placement_find(&in, p->role, p->layer) ? "it is already"
                                                                : "no stage of the plan has it");
    }
    return 0;
}

int placement_check(const struct model *model, const struct plan *plan, struct helm_err *err)
{
    struct laying wanted = {.model = model, .plan = plan};
    if (!plan->placement) return helm_fail(err, HELM_E_FORMAT, "the plan says not where weights lie");
    int rc = lay_all(&wanted, err);
    if (!rc && wanted.table != plan->host_table)
        rc = helm_fail(err, HELM_E_MISMATCH, "'per_layer_table' is %s in a plan of a model that has %s",
                       plan->host_table ? "there" : "missing", wanted.table ? "one" : "none");
    for (uint32_t i = 0; i < plan->placement_count && !rc; i++) rc = check_place(plan, i, err);
    if (!rc) rc = check_none_other(plan, &wanted, err);
    if (!rc) rc = check_all_there(plan, &wanted, err);
    free(wanted.place);
    return rc ? helm_err_prefix(err, "placements"), rc : 0;
}

/* ---- vectors ---- */

/* Those of the embedding, of the head and of inputs, where they are the processor's. */
#define ENDS_MAX (2 + MATH_OPS_MAX)
static uint32_t vectors_of_ends(const struct model *model, const struct plan *plan,
                                enum plan_processor processor, const struct model_tensor **ends)
{
    const struct math_part *inputs = &model->math.inputs;
    const struct math_op *op[ENDS_MAX] = {plan->embed == processor ? &model->math.embed : NULL,
                                          plan->head == processor ? &model->math.head : NULL};
    enum tensor_role roles[MATH_ROLES_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < inputs->ops && placement_inputs(model, plan, processor); i++)
        op[2 + i] = &inputs->op[i];
    for (int i = 0; i < ENDS_MAX; i++)
        for (uint32_t k = op[i] ? op[i]->weights : 0, all = op[i] ? math_roles(op[i], roles) : 0; k < all;
             k++) {
            ends[count] = model_find(model, roles[k], -1);
            count += ends[count] != NULL;
        }
    return count;
}

uint64_t placement_vectors(const struct model *model, const struct plan *plan, enum plan_processor processor,
                           struct placement *out, uint32_t *count)
{
    const enum plan_memory memory = plan_processor_memory(processor);
    const struct model_tensor *of_ends[ENDS_MAX * MATH_ROLES_MAX];
    const uint32_t ends_count = vectors_of_ends(model, plan, processor, of_ends);
    uint64_t end = 0;
    uint32_t n = 0;
    for (uint32_t u = 0; u <= unit_count(plan->layers); u++) {
        const bool ends = u == unit_count(plan->layers);
        const struct model_tensor *const *tensor = ends ? of_ends : model->unit[u].tensor;
        const uint32_t first = ends ? 0 : model->unit[u].matrix_count;
        const uint32_t all = ends                                ? ends_count
                             : plan_computes(plan, processor, u) ? model->unit[u].tensor_count
                                                                 : first;
        for (uint32_t i = first; i < all; i++, n++) {
            const uint64_t bytes = placement_vector_room(tensor[i], memory);
            if (out)
                out[n] = (struct placement){.role = tensor[i]->role,
                                            .layer = tensor[i]->layer,
                                            .format = FORMAT_F32,
                                            .memory = memory,
                                            .offset = end,
                                            .bytes = bytes};
            end += bytes;
        }
    }
    if (count) *count = n;
    return end;
}
