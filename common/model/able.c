/* Operations that workers can compute. See able.h. */
#include "common/model/able.h"

/* Demands of an operation beyond the fields that all workers compute: RMS norms of inputs, gated SiLU,
 * clamped SiLU of experts, residual addition, also of a normed output, two RoPE tables, also of a part of
 * each head, a score scale, sinks, norms of heads, of values without a weight, values that are keys, a gate
 * of attention's output, gated delta nets, gated GELU, a scaled embedding, a factor of what a layer leaves, a
 * soft cap of logits, experts' norms of their own and scales, another layer's cache, rows of per-layer
 * embeddings and gates that multiply them. */
enum want {
    WANT_NORM_ONE_PLUS,
    WANT_NORM_LAYER,
    WANT_NORM_LAYER_ELSEWHERE,
    WANT_OTHER_GATED,
    WANT_ALONE,
    WANT_ALONE_OTHER,
    WANT_GATED_EXPERTS,
    WANT_IN_SCALE,
    WANT_OUT_SCALE,
    WANT_PRODUCT_SCALE,
    WANT_SOFT_CAP,
    WANT_NO_ROPE,
    WANT_POSITIONS,
    WANT_RUNNING_MEAN,
    WANTS
};
static const struct {
    const char *name;
    bool able[ABLE_WORKERS];
} wants[WANTS] = {
    [WANT_NORM_ONE_PLUS] = {"an RMS norm by 1 + w", {false, false}},
    [WANT_NORM_LAYER] = {"a LayerNorm", {true, false}},
    [WANT_NORM_LAYER_ELSEWHERE] = {"a LayerNorm before experts", {false, false}},
    [WANT_OTHER_GATED] = {"a gate by an activation that is not SiLU or GELU", {true, false}},
    [WANT_ALONE] = {"an activation without a gate", {true, false}},
    [WANT_ALONE_OTHER] = {"SiLU without a gate", {false, false}},
    [WANT_GATED_EXPERTS] = {"experts with an activation that is not SiLU or GELU", {false, false}},
    [WANT_IN_SCALE] = {"a scaled input", {false, false}},
    [WANT_OUT_SCALE] = {"a scaled output", {false, false}},
    [WANT_PRODUCT_SCALE] = {"a scaled output", {true, false}},
    [WANT_SOFT_CAP] = {"a soft cap", {true, false}},
    [WANT_NO_ROPE] = {"attention without RoPE", {true, false}},
    [WANT_POSITIONS] = {"learned positions", {true, false}},
    [WANT_RUNNING_MEAN] = {"a state of fixed size", {true, false, true}},
};

/* A set of enum want. */
static uint32_t wants_of(const struct math_op *op)
{
    const enum activation a = op->activation;
    const bool experts = op->kind == MATH_EXPERTS_GLU, linear = op->kind == MATH_LINEAR,
               embed = op->kind == MATH_EMBED, scaled = op->out_scale != 0 && op->out_scale != 1,
               layer = op->norm_kind == NORM_LAYER || op->norm_bias != TENSOR_NONE,
               usual = a == ACTIVATION_SILU || a == ACTIVATION_CLAMPED;
    const bool product = linear && a == ACTIVATION_NONE,
               gates = op->gated || (op->times != BUFFER_NONE && a != ACTIVATION_NONE);
    const bool want[WANTS] = {
        [WANT_NORM_ONE_PLUS] = op->norm_kind == NORM_RMS_ONE_PLUS,
        [WANT_NORM_LAYER] = linear && layer,
        [WANT_NORM_LAYER_ELSEWHERE] = !linear && layer,
        [WANT_OTHER_GATED] = gates && !experts && a != ACTIVATION_SILU && a != ACTIVATION_GELU_TANH,
        [WANT_ALONE] = !gates && a != ACTIVATION_NONE && !usual,
        [WANT_ALONE_OTHER] = !gates && usual,
        [WANT_GATED_EXPERTS] = experts && !usual && a != ACTIVATION_GELU_TANH,
        [WANT_IN_SCALE] = op->in_scale != 0 && op->in_scale != 1 && op->kind != MATH_PER_LAYER,
        [WANT_OUT_SCALE] = scaled && !product && !embed && op->kind != MATH_PER_LAYER,
        [WANT_PRODUCT_SCALE] = scaled && product,
        [WANT_SOFT_CAP] = op->soft_cap != 0 && op->out[0] != BUFFER_LOGITS,
        [WANT_NO_ROPE] = op->no_rope,
        [WANT_POSITIONS] = op->positions != TENSOR_NONE,
        [WANT_RUNNING_MEAN] = op->kind == MATH_RUNNING_MEAN,
    };
    uint32_t set = 0;
    for (uint32_t i = 0; i < WANTS; i++) set |= want[i] ? 1u << i : 0;
    return set;
}

int able_check_op(const struct math_op *op, enum able_worker worker, const char *where, struct helm_err *err)
{
    static const char *const by[] = {[ABLE_CPU] = " by CPU workers",
                                     [ABLE_GPU] = " by GPU workers",
                                     [ABLE_EMULATED] = " by GPU workers",
                                     [ABLE_WORKERS] = ""};
    const uint32_t set = wants_of(op);
    for (uint32_t i = 0; i < WANTS; i++) {
        bool able = !(set & 1u << i);
        for (int w = 0; w < ABLE_WORKERS; w++)
            able |=
                (worker == ABLE_WORKERS || (int)worker == w || (worker == ABLE_EMULATED && w == ABLE_GPU)) &&
                wants[i].able[w];
        if (!able)
            return helm_fail(err, HELM_E_UNSUPPORTED, "%s: '%s' with %s is not supported%s", where, op->name,
                             wants[i].name, by[worker]);
    }
    return 0;
}

int able_check_worker(const struct model_math *math, enum able_worker worker, struct helm_err *err)
{
    int rc = able_check_op(&math->embed, worker, "model", err);
    for (uint32_t i = 0; i < math->inputs.ops && !rc; i++)
        rc = able_check_op(&math->inputs.op[i], worker, math->inputs.name, err);
    for (uint32_t p = 0; p < math->parts && !rc; p++)
        for (uint32_t i = 0; i < math->part[p].ops && !rc; i++)
            rc = able_check_op(&math->part[p].op[i], worker, math->part[p].name, err);
    return rc ? rc : able_check_op(&math->head, worker, "model", err);
}

/* Tables that no worker makes. */
static int check_ropes(const struct model_config *config, struct helm_err *err)
{
    for (uint32_t i = 0; i < MODEL_ROPES_MAX; i++) {
        if (config->rope[i].pairs)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "RoPE that turns neighbours of each head is not supported");
    }
    return 0;
}

int able_check_model(const struct model_config *config, const struct model_math *math, struct helm_err *err)
{
    const int rc = check_ropes(config, err);
    return rc ? rc : able_check_worker(math, ABLE_WORKERS, err);
}
