/* Which tier a step's tokens are, and up to how many of them weights are multiplied apart, as one token's.
 * See program.h; called by engine.c and program.c, and by helm-profile. Pure. */
#include "worker-cpu/program/lower.h"

#include <stdlib.h>

#include "common/model/share.h"
#include "common/plan/schedule.h"

enum op_tier program_tier_of(uint32_t tokens)
{
    return tokens == 1 ? OP_TIER_ONE : tokens <= PROGRAM_FEW_TOKENS ? OP_TIER_FEW : OP_TIER_CHUNK;
}

bool program_tier_occurs(const struct plan *plan, uint32_t phase, enum op_tier tier)
{
    static const uint32_t first[OP_TIER_COUNT] = {1, 2, PROGRAM_FEW_TOKENS + 1},
                          last[OP_TIER_COUNT] = {1, PROGRAM_FEW_TOKENS, UINT32_MAX};
    uint32_t from = plan_phase_from(plan, phase), to = plan_list_tokens(plan, phase);
    if (plan->invariant) /* prompts of this length, in steps of any; few tokens after them, by the decode
                            list */
        return tier == OP_TIER_CHUNK ? from <= to : phase == 0 && first[tier] <= plan_decode_tokens(plan);
    if (from < first[tier]) from = first[tier];
    if (to > last[tier]) to = last[tier];
    return from <= to;
}

/* The fewest tokens that the kernels of an operation's weights multiply apart; `most` where it has none. */
static uint32_t apart_of(const struct program_source *s, const struct math_op *op, int32_t layer,
                         uint32_t most)
{
    if (op->kind == MATH_EMBED || op->kind == MATH_ATTENTION || op->kind == MATH_ROUTE) return most;
    if (share_is_own(op->weight[0])) return most;    /* another processor's */
    if (op->weight[0] == TENSOR_ROUTER) return most; /* next to nothing, whatever multiplies it */
    for (uint32_t w = 0; w < op->weights; w++) {
        const struct tensor_matrix *m = weights_matrix(s->weights, op->weight[w], layer);
        const struct linear_kernel *one = s->kernels->linear[s->inputs][m->format].one;
        if (!one || one->apart < most) most = one ? one->apart : 0;
    }
    return most;
}

int program_apart(const struct program_source *source, uint32_t phase, uint32_t *tokens, struct helm_err *err)
{
    struct plan_span *spans = NULL;
    uint32_t count = 0, most = UINT32_MAX;
    *tokens = 0;
    int rc = plan_spans(source->plan, phase, &spans, &count, err);
    if (rc) return rc;
    for (uint32_t s = 0; s < count; s++)
        for (uint32_t u = spans[s].first_unit; u < spans[s].first_unit + spans[s].unit_count; u++) {
            const struct math_part *math = model_unit_math(source->model, u);
            const enum plan_home home = source->plan->unit[u].home[phase];
            const bool asked = plan_home_rows[home].helper == source->self, shared = home == PLAN_HOME_SHARED,
                       ours = spans[s].processor == source->self || (asked && shared);
            if (asked && !shared) most = 0; /* experts that the GPU asks for: experts.c chooses for each */
            for (uint32_t i = 0; i < math->ops && ours; i++)
                most = apart_of(source, &math->op[i], (int32_t)unit_layer(u), most);
        }
    free(spans);
    if (most != UINT32_MAX) *tokens = most;
    return 0;
}

uint32_t program_apart_head(const struct program_source *source)
{
    return apart_of(source, &source->model->math.head, -1, PROGRAM_FEW_TOKENS);
}
