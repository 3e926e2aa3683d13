/* Roles of tensors: their usual names in both kinds of file, their shapes, and what of the configuration they
 * need. See arch.h and model.h.
 *
 * Which roles a model has follows from its operations (math_part) and from this table. Called by the readers
 * in this folder and, through model.h, by planners and workers. Constant data only. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/model/arch.h"

/* Numbers of rows and columns, as products of members of the configuration. */
enum dim {
    DIM_ONE, /* a vector */
    DIM_VOCAB,
    DIM_POSITIONS,
    DIM_HIDDEN,
    DIM_PAIR, /* of two hidden states */
    DIM_Q,
    DIM_KV,
    DIM_HEAD,
    DIM_O,      /* the input of o */
    DIM_Q_RANK, /* of latent attention */
    DIM_RANK,
    DIM_K_B,
    DIM_NOPE,
    DIM_Q_NORM, /* of each head, or of all together */
    DIM_K_NORM,
    DIM_HEADS,
    DIM_INTERMEDIATE,
    DIM_EXPERTS,        /* their number */
    DIM_EXPERT,         /* the width between the halves of one */
    DIM_EXPERTS_INNER,  /* rows of all experts' gates, */
    DIM_EXPERTS_HIDDEN, /* of all experts' downs */
    DIM_CHANNELS,       /* of gated delta nets */
    DIM_CONV,
    DIM_DELTA_HEADS,
    DIM_DELTA_HEAD,
    DIM_DELTA_VALUES,
    DIM_SHARED,    /* the width between the halves of the shared one */
    DIM_PER_LAYER, /* of per-layer embeddings: of a layer, of all */
    DIM_PER_LAYERS
};
#define AT(member) offsetof(struct model_config, member)
#define NONE       SIZE_MAX
static const size_t dims[][2] = {
    [DIM_ONE] = {NONE, NONE},
    [DIM_VOCAB] = {AT(vocab), NONE},
    [DIM_POSITIONS] = {AT(positions), NONE},
    [DIM_HIDDEN] = {AT(hidden), NONE},
    [DIM_PAIR] = {AT(hidden), NONE},
    [DIM_Q] = {AT(heads), AT(head_dim)},
    [DIM_KV] = {AT(kv_heads), AT(head_dim)},
    [DIM_HEAD] = {AT(head_dim), NONE},
    [DIM_O] = {AT(heads), AT(head_dim)},
    [DIM_Q_RANK] = {AT(latent.q_rank), NONE},
    [DIM_RANK] = {AT(latent.rank), NONE},
    [DIM_K_B] = {AT(heads), AT(latent.rank)},
    [DIM_NOPE] = {AT(latent.nope), NONE},
    [DIM_Q_NORM] = {AT(head_dim), NONE},
    [DIM_K_NORM] = {AT(head_dim), NONE},
    [DIM_HEADS] = {AT(heads), NONE},
    [DIM_INTERMEDIATE] = {AT(intermediate), NONE},
    [DIM_EXPERTS] = {AT(router.experts), NONE},
    [DIM_EXPERT] = {AT(expert_intermediate), NONE},
    [DIM_EXPERTS_INNER] = {AT(router.experts), AT(expert_intermediate)},
    [DIM_EXPERTS_HIDDEN] = {AT(router.experts), AT(hidden)},
    [DIM_CHANNELS] = {AT(delta.channels), NONE},
    [DIM_CONV] = {AT(delta.conv), NONE},
    [DIM_DELTA_HEADS] = {AT(delta.value_heads), NONE},
    [DIM_DELTA_HEAD] = {AT(delta.value_dim), NONE},
    [DIM_DELTA_VALUES] = {AT(delta.value_heads), AT(delta.value_dim)},
    [DIM_SHARED] = {AT(shared_intermediate), NONE},
    [DIM_PER_LAYER] = {AT(per_layer), NONE},
    [DIM_PER_LAYERS] = {AT(layers), AT(per_layer)},
};

/* Members that must be true, or not 0, for the tensor to be there. */
#define IF(member) AT(member), sizeof((struct model_config *)0)->member
#define ALWAYS     0, 0

struct role {
    const char *name; /* a star stands for an expert's number */
    const char *gguf;
    bool per_layer;
    enum unit_part part; /* of a layer's */
    enum dim rows, cols;
    size_t needs, needs_size;
};
#define ATTENTION true, UNIT_ATTENTION
#define MLP       true, UNIT_MLP
#define DELTA     IF(delta.value_heads)
#define LATENT    IF(latent.rank)
#define SPARSE    IF(router.experts)
#define PER_LAYER IF(per_layer)
#define DRAFTS    IF(drafts)
#define MODEL     false, UNIT_PARTS
static const struct role roles[TENSOR_ROLE_COUNT] = {
    [TENSOR_NONE] = {"none", "none", MODEL, DIM_ONE, DIM_ONE, ALWAYS},
    [TENSOR_EMBED] = {"model.embed_tokens.weight", "token_embd.weight", MODEL, DIM_VOCAB, DIM_HIDDEN, ALWAYS},
    [TENSOR_POSITIONS] = {"model.embed_positions.weight", "position_embd.weight", MODEL, DIM_POSITIONS,
                          DIM_HIDDEN, IF(positions)},
    [TENSOR_FINAL_NORM] = {"model.norm.weight", "output_norm.weight", MODEL, DIM_ONE, DIM_HIDDEN, ALWAYS},
    [TENSOR_FINAL_NORM_BIAS] = {"model.norm.bias", "output_norm.bias", MODEL, DIM_ONE, DIM_HIDDEN, ALWAYS},
    [TENSOR_HEAD] = {"lm_head.weight", "output.weight", MODEL, DIM_VOCAB, DIM_HIDDEN, ALWAYS},
    [TENSOR_ATTN_NORM] = {"input_layernorm.weight", "attn_norm.weight", ATTENTION, DIM_ONE, DIM_HIDDEN,
                          ALWAYS},
    [TENSOR_ATTN_NORM_BIAS] = {"input_layernorm.bias", "attn_norm.bias", ATTENTION, DIM_ONE, DIM_HIDDEN,
                               ALWAYS},
    [TENSOR_ATTN_OUT_NORM] = {"self_attn.output_norm.weight", "attn_post_norm.weight", ATTENTION, DIM_ONE,
                              DIM_HIDDEN, ALWAYS},
    [TENSOR_Q] = {"self_attn.q_proj.weight", "attn_q.weight", ATTENTION, DIM_Q, DIM_HIDDEN, ALWAYS},
    [TENSOR_Q_GATE] = {"self_attn.q_gate_proj.weight", "attn_q_gate.weight", ATTENTION, DIM_Q, DIM_HIDDEN,
                       IF(gated_attention)},
    [TENSOR_K] = {"self_attn.k_proj.weight", "attn_k.weight", ATTENTION, DIM_KV, DIM_HIDDEN, ALWAYS},
    [TENSOR_V] = {"self_attn.v_proj.weight", "attn_v.weight", ATTENTION, DIM_KV, DIM_HIDDEN, ALWAYS},
    [TENSOR_O] = {"self_attn.o_proj.weight", "attn_output.weight", ATTENTION, DIM_HIDDEN, DIM_O, ALWAYS},
    [TENSOR_Q_BIAS] = {"self_attn.q_proj.bias", "attn_q.bias", ATTENTION, DIM_ONE, DIM_Q, IF(q_bias)},
    [TENSOR_K_BIAS] = {"self_attn.k_proj.bias", "attn_k.bias", ATTENTION, DIM_ONE, DIM_KV, IF(k_bias)},
    [TENSOR_V_BIAS] = {"self_attn.v_proj.bias", "attn_v.bias", ATTENTION, DIM_ONE, DIM_KV, IF(v_bias)},
    [TENSOR_O_BIAS] = {"self_attn.o_proj.bias", "attn_output.bias", ATTENTION, DIM_ONE, DIM_HIDDEN,
                       IF(o_bias)},
    [TENSOR_Q_NORM] = {"self_attn.q_norm.weight", "attn_q_norm.weight", ATTENTION, DIM_ONE, DIM_Q_NORM,
                       IF(qk_norm)},
    [TENSOR_K_NORM] = {"self_attn.k_norm.weight", "attn_k_norm.weight", ATTENTION, DIM_ONE, DIM_K_NORM,
                       IF(qk_norm)},
    [TENSOR_SINKS] = {"self_attn.sinks", "attn_sinks.weight", ATTENTION, DIM_ONE, DIM_HEADS, IF(sinks)},
    [TENSOR_Q_A] = {"self_attn.q_a_proj.weight", "attn_q_a.weight", ATTENTION, DIM_Q_RANK, DIM_HIDDEN,
                    IF(latent.q_rank)},
    [TENSOR_Q_A_NORM] = {"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", ATTENTION, DIM_ONE,
                         DIM_Q_RANK, IF(latent.q_rank)},
    [TENSOR_Q_B] = {"self_attn.q_b_proj.weight", "attn_q_b.weight", ATTENTION, DIM_Q, DIM_Q_RANK,
                    IF(latent.q_rank)},
    [TENSOR_KV_NORM] = {"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", ATTENTION, DIM_ONE,
                        DIM_RANK, LATENT},
    [TENSOR_K_B] = {"self_attn.k_b_proj.weight", "attn_k_b.weight", ATTENTION, DIM_K_B, DIM_NOPE, LATENT},
    [TENSOR_V_B] = {"self_attn.v_b_proj.weight", "attn_v_b.weight", ATTENTION, DIM_O, DIM_RANK, LATENT},
    [TENSOR_DELTA_QKV] = {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight", ATTENTION, DIM_CHANNELS,
                          DIM_HIDDEN, DELTA},
    [TENSOR_DELTA_Z] = {"linear_attn.in_proj_z.weight", "attn_gate.weight", ATTENTION, DIM_DELTA_VALUES,
                        DIM_HIDDEN, DELTA},
    [TENSOR_DELTA_ALPHA] = {"linear_attn.in_proj_a.weight", "ssm_alpha.weight", ATTENTION, DIM_DELTA_HEADS,
                            DIM_HIDDEN, DELTA},
    [TENSOR_DELTA_BETA] = {"linear_attn.in_proj_b.weight", "ssm_beta.weight", ATTENTION, DIM_DELTA_HEADS,
                           DIM_HIDDEN, DELTA},
    [TENSOR_DELTA_CONV] = {"linear_attn.conv1d.weight", "ssm_conv1d.weight", ATTENTION, DIM_CHANNELS,
                           DIM_CONV, DELTA},
    [TENSOR_DELTA_DECAY] = {"linear_attn.A_log", "ssm_a", ATTENTION, DIM_ONE, DIM_DELTA_HEADS, DELTA},
    [TENSOR_DELTA_TIME_BIAS] = {"linear_attn.dt_bias", "ssm_dt.bias", ATTENTION, DIM_ONE, DIM_DELTA_HEADS,
                                DELTA},
    [TENSOR_DELTA_NORM] = {"linear_attn.norm.weight", "ssm_norm.weight", ATTENTION, DIM_ONE, DIM_DELTA_HEAD,
                           DELTA},
    [TENSOR_DELTA_OUT] = {"linear_attn.out_proj.weight", "ssm_out.weight", ATTENTION, DIM_HIDDEN,
                          DIM_DELTA_VALUES, DELTA},
    [TENSOR_MLP_NORM] = {"post_attention_layernorm.weight", "ffn_norm.weight", MLP, DIM_ONE, DIM_HIDDEN,
                         ALWAYS},
    [TENSOR_MLP_NORM_BIAS] = {"post_attention_layernorm.bias", "ffn_norm.bias", MLP, DIM_ONE, DIM_HIDDEN,
                              ALWAYS},
    [TENSOR_MLP_OUT_NORM] = {"mlp.output_norm.weight", "ffn_post_norm.weight", MLP, DIM_ONE, DIM_HIDDEN,
                             ALWAYS},
    [TENSOR_LAYER_SCALE] = {"layer_scalar", "layer_output_scale.weight", MLP, DIM_ONE, DIM_ONE, ALWAYS},
    [TENSOR_GATE] = {"mlp.gate_proj.weight", "ffn_gate.weight", MLP, DIM_INTERMEDIATE, DIM_HIDDEN, ALWAYS},
    [TENSOR_UP] = {"mlp.up_proj.weight", "ffn_up.weight", MLP, DIM_INTERMEDIATE, DIM_HIDDEN, ALWAYS},
    [TENSOR_DOWN] = {"mlp.down_proj.weight", "ffn_down.weight", MLP, DIM_HIDDEN, DIM_INTERMEDIATE, ALWAYS},
    [TENSOR_GATE_BIAS] = {"mlp.gate_proj.bias", "ffn_gate.bias", MLP, DIM_ONE, DIM_INTERMEDIATE,
                          IF(mlp_bias)},
    [TENSOR_UP_BIAS] = {"mlp.up_proj.bias", "ffn_up.bias", MLP, DIM_ONE, DIM_INTERMEDIATE, IF(mlp_bias)},
    [TENSOR_DOWN_BIAS] = {"mlp.down_proj.bias", "ffn_down.bias", MLP, DIM_ONE, DIM_HIDDEN, IF(mlp_bias)},
    /* parts of tensors of the files */
    [TENSOR_OWN_GATE] = {"mlp.own_gate_proj.weight", "ffn_own_gate.weight", MLP, DIM_SHARED, DIM_HIDDEN,
                         IF(shared_intermediate)},
    [TENSOR_OWN_UP] = {"mlp.own_up_proj.weight", "ffn_own_up.weight", MLP, DIM_SHARED, DIM_HIDDEN,
                       IF(shared_intermediate)},
    [TENSOR_OWN_DOWN] = {"mlp.own_down_proj.weight", "ffn_own_down.weight", MLP, DIM_HIDDEN, DIM_SHARED,
                         IF(shared_intermediate)},
    [TENSOR_ROUTER] = {"mlp.gate.weight", "ffn_gate_inp.weight", MLP, DIM_EXPERTS, DIM_HIDDEN, SPARSE},
    [TENSOR_ROUTER_BIAS] = {"mlp.gate.bias", "ffn_gate_inp.bias", MLP, DIM_ONE, DIM_EXPERTS,
                            IF(experts_bias)},
    [TENSOR_GATE_EXPERTS] = {"mlp.experts.*.gate_proj.weight", "ffn_gate_exps.weight", MLP, DIM_EXPERTS_INNER,
                             DIM_HIDDEN, SPARSE},
    [TENSOR_UP_EXPERTS] = {"mlp.experts.*.up_proj.weight", "ffn_up_exps.weight", MLP, DIM_EXPERTS_INNER,
                           DIM_HIDDEN, SPARSE},
    [TENSOR_DOWN_EXPERTS] = {"mlp.experts.*.down_proj.weight", "ffn_down_exps.weight", MLP,
                             DIM_EXPERTS_HIDDEN, DIM_EXPERT, SPARSE},
    [TENSOR_GATE_EXPERTS_BIAS] = {"mlp.experts.*.gate_proj.bias", "ffn_gate_exps.bias", MLP, DIM_EXPERTS,
                                  DIM_EXPERT, IF(experts_bias)},
    [TENSOR_UP_EXPERTS_BIAS] = {"mlp.experts.*.up_proj.bias", "ffn_up_exps.bias", MLP, DIM_EXPERTS,
                                DIM_EXPERT, IF(experts_bias)},
    [TENSOR_DOWN_EXPERTS_BIAS] = {"mlp.experts.*.down_proj.bias", "ffn_down_exps.bias", MLP, DIM_EXPERTS,
                                  DIM_HIDDEN, IF(experts_bias)},
    [TENSOR_CHOICE_BIAS] = {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias", MLP, DIM_ONE, DIM_EXPERTS,
                            IF(choice_bias)},
    [TENSOR_SHARED_GATE] = {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", MLP, DIM_SHARED,
                            DIM_HIDDEN, IF(shared_intermediate)},
    [TENSOR_SHARED_UP] = {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", MLP, DIM_SHARED,
                          DIM_HIDDEN, IF(shared_intermediate)},
    [TENSOR_SHARED_DOWN] = {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", MLP, DIM_HIDDEN,
                            DIM_SHARED, IF(shared_intermediate)},
    [TENSOR_SHARE] = {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", MLP, DIM_ONE, DIM_HIDDEN,
                      IF(shared_weighed)},
    [TENSOR_ROUTER_NORM] = {"router.scale", "ffn_gate_inp.scale", MLP, DIM_ONE, DIM_HIDDEN, SPARSE},
    [TENSOR_EXPERT_SCALE] = {"router.per_expert_scale", "ffn_down_exps.scale", MLP, DIM_ONE, DIM_EXPERTS,
                             SPARSE},
    [TENSOR_EXPERTS_NORM] = {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", MLP, DIM_ONE,
                             DIM_HIDDEN, SPARSE},
    [TENSOR_EXPERTS_OUT_NORM] = {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight", MLP,
                                 DIM_ONE, DIM_HIDDEN, SPARSE},
    [TENSOR_DENSE_OUT_NORM] = {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", MLP, DIM_ONE,
                               DIM_HIDDEN, SPARSE},
    [TENSOR_PER_LAYER_EMBED] = {"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight", MODEL,
                                DIM_VOCAB, DIM_PER_LAYERS, PER_LAYER},
    [TENSOR_PER_LAYER_PROJ] = {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight",
                               MODEL, DIM_PER_LAYERS, DIM_HIDDEN, PER_LAYER},
    [TENSOR_PER_LAYER_NORM] = {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight", MODEL,
                               DIM_ONE, DIM_PER_LAYER, PER_LAYER},
    [TENSOR_PER_LAYER_GATE] = {"per_layer_input_gate.weight", "inp_gate.weight", MLP, DIM_PER_LAYER,
                               DIM_HIDDEN, PER_LAYER},
    [TENSOR_PER_LAYER_OUT] = {"per_layer_projection.weight", "proj.weight", MLP, DIM_HIDDEN, DIM_PER_LAYER,
                              PER_LAYER},
    [TENSOR_PER_LAYER_OUT_NORM] = {"post_per_layer_input_norm.weight", "post_norm.weight", MLP, DIM_ONE,
                                   DIM_HIDDEN, PER_LAYER},
    [TENSOR_DRAFT_EMBED_NORM] = {"enorm.weight", "nextn.enorm.weight", ATTENTION, DIM_ONE, DIM_HIDDEN,
                                 DRAFTS},
    [TENSOR_DRAFT_HIDDEN_NORM] = {"hnorm.weight", "nextn.hnorm.weight", ATTENTION, DIM_ONE, DIM_HIDDEN,
                                  DRAFTS},
    [TENSOR_DRAFT_PROJ] = {"eh_proj.weight", "nextn.eh_proj.weight", ATTENTION, DIM_HIDDEN, DIM_PAIR, DRAFTS},
    [TENSOR_DRAFT_OUT_NORM] = {"shared_head.norm.weight", "nextn.shared_head_norm.weight", MLP, DIM_ONE,
                               DIM_HIDDEN, DRAFTS},
};

/* ---- properties of a role ---- */

bool arch_role_per_layer(enum tensor_role role)
{
    return roles[role].per_layer;
}

bool arch_role_is_vector(enum tensor_role role)
{
    const enum dim rows = roles[role].rows;
    return rows == DIM_ONE || rows == DIM_EXPERTS || rows == DIM_POSITIONS || arch_role_of_channels(role);
}

bool model_tensor_is_vector(const struct model_tensor *tensor)
{
    return tensor->rows == 1 || arch_role_is_vector(tensor->role);
}

bool arch_role_of_experts(enum tensor_role role)
{
    return roles[role].rows == DIM_EXPERTS_INNER || roles[role].rows == DIM_EXPERTS_HIDDEN;
}

bool arch_role_of_channels(enum tensor_role role)
{
    return role == TENSOR_DELTA_CONV;
}

bool arch_role_of_one_row(enum tensor_role role)
{
    return role == TENSOR_SHARE;
}

bool arch_role_of_heads(enum tensor_role role)
{
    return role == TENSOR_K_B || role == TENSOR_V_B;
}

uint32_t arch_role_rank(enum tensor_role role, bool gguf)
{
    const bool vector = roles[role].rows == DIM_ONE && (gguf || !arch_role_of_one_row(role));
    return gguf && (arch_role_of_experts(role) || arch_role_of_heads(role)) ? 3 : vector ? 1 : 2;
}

const char *arch_role_name(enum tensor_role role)
{
    return roles[role].name;
}

const char *arch_role_gguf_name(enum tensor_role role)
{
    return roles[role].gguf;
}

enum unit_part unit_part_of_role(enum tensor_role role)
{
    return (unsigned)role < TENSOR_ROLE_COUNT ? roles[role].part : UNIT_PARTS;
}

/* ---- what a configuration has ---- */

static uint32_t number_at(const struct model_config *config, size_t at)
{
    uint32_t number;
    memcpy(&number, (const char *)config + at, sizeof number);
    return number;
}

static uint64_t dim_of(const struct model_config *config, enum dim dim, int32_t layer)
{
    const bool within = layer >= 0 && (uint32_t)layer < config->layers;
    const struct model_heads heads =
        model_heads_of(config, within && config->window && config->window[layer]);
    if (dim == DIM_INTERMEDIATE && within && config->widths) return config->widths[layer];
    uint64_t product = 1;
    if (dim == DIM_Q_NORM) dim = config->whole_norms ? DIM_Q : DIM_HEAD;
    if (dim == DIM_K_NORM) dim = config->whole_norms ? DIM_KV : DIM_HEAD;
    const struct model_latent *latent = &config->latent;
    if (dim == DIM_Q && latent->rank) return model_latent_q(config);
    if (dim == DIM_O && latent->rank) return (uint64_t)config->heads * latent->value;
    if (dim == DIM_Q || dim == DIM_O) return (uint64_t)config->heads * heads.head_dim;
    if (dim == DIM_KV) return (uint64_t)heads.kv_heads * heads.head_dim;
    if (dim == DIM_HEAD) return heads.head_dim;
    if (dim == DIM_PAIR) return 2 * (uint64_t)config->hidden;
    for (int i = 0; i < 2; i++)
        if (dims[dim][i] != NONE) product *= number_at(config, dims[dim][i]);
    return product;
}

/* Whether the configuration has what the role is about, in layers whose operations name it. */
static bool holds(const struct model_config *config, enum tensor_role role)
{
    const char *member = (const char *)config + roles[role].needs;
    bool any = roles[role].needs_size == 0;
    for (size_t i = 0; i < roles[role].needs_size; i++) any |= member[i] != 0;
    return any && !(role == TENSOR_HEAD && config->tied_head);
}

static bool op_names(const struct math_op *op, enum tensor_role role)
{
    enum tensor_role named[MATH_ROLES_MAX];
    const uint32_t count = math_roles(op, named);
    for (uint32_t i = 0; i < count; i++)
        if (named[i] == role) return true;
    return false;
}

static bool part_names(const struct math_part *part, enum tensor_role role)
{
    for (uint32_t i = 0; i < part->ops; i++)
        if (op_names(&part->op[i], role)) return true;
    return false;
}

bool model_role_exists(const struct model_config *config, enum tensor_role role)
{
    return role != TENSOR_NONE && (unsigned)role < TENSOR_ROLE_COUNT && holds(config, role);
}

bool model_expects(const struct model_config *config, enum tensor_role role, int32_t layer)
{
    const struct arch *arch = arch_of(config);
    if (!model_role_exists(config, role) || (layer >= 0) != roles[role].per_layer) return false;
    if (layer < 0)
        return op_names(arch->embed, role) || op_names(arch->head, role) ||
               (arch->inputs && part_names(arch->inputs, role));
    return part_names(arch->parts[arch->kind(config, (uint32_t)layer, roles[role].part)], role);
}

bool model_expected_shape(const struct model_config *config, enum tensor_role role, int32_t layer,
                          uint64_t *rows, uint64_t *cols)
{
    bool found = false;
    *rows = *cols = 0;
    if (!model_role_exists(config, role)) return false;
    if (!roles[role].per_layer) found = model_expects(config, role, -1);
    const struct arch *arch = arch_of(config);
    bool named[MATH_PARTS_MAX] = {false};
    for (uint32_t p = 0; roles[role].per_layer && arch->parts[p]; p++)
        named[p] = part_names(arch->parts[p], role);
    for (uint32_t l = 0; roles[role].per_layer && l < config->layers && !found; l++)
        found = named[arch->kind(config, l, roles[role].part)];
    if (!found) return false;
    *rows = dim_of(config, roles[role].rows, layer);
    *cols = dim_of(config, roles[role].cols, layer);
    return true;
}

void arch_role_keys(const struct model_config *config, enum tensor_role role, bool rows, char *text,
                    size_t size)
{
    const struct arch *arch = arch_of(config);
    const size_t *members = dims[rows ? roles[role].rows : roles[role].cols];
    for (int i = 0; i < 2; i++) {
        const char *name = NULL;
        for (const struct arch_key *key = arch->keys; key->kind && !name; key++)
            if (key->kind == KEY_U32 && members[i] != NONE && key->at == members[i])
                name = config->gguf ? key->gguf[0] : key->name[0];
        const size_t used = strlen(text);
        if (name && used < size)
            snprintf(text + used, size - used, "%s'%s' is %u", used ? ", " : "", name,
                     number_at(config, members[i]));
    }
}

/* ---- widths ---- */

uint32_t model_dense_width(const struct model_config *config)
{
    uint64_t rows, cols;
    return model_expected_shape(config, TENSOR_DOWN, -1, &rows, &cols) ? config->intermediate : 0;
}

uint32_t model_mlp_width(const struct model_config *config)
{
    const uint32_t dense = model_dense_width(config),
                   sparse = config->router.chosen * config->expert_intermediate;
    return dense > sparse ? dense : sparse;
}

uint32_t model_widest(const struct model_config *config)
{
    const uint64_t of[] = {config->drafts ? 2 * (uint64_t)config->hidden : config->hidden,
                           (uint64_t)config->heads * model_heads_most(config).head_dim,
                           config->intermediate,
                           config->latent.q_rank,
                           (uint64_t)config->heads * config->latent.value,
                           config->shared_intermediate,
                           config->per_layer,
                           (uint64_t)config->delta.value_heads * config->delta.value_dim};
    uint64_t widest = 0;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) widest = of[i] > widest ? of[i] : widest;
    return (uint32_t)widest;
}

uint32_t model_window(const struct model_config *config)
{
    uint32_t window = 0;
    for (uint32_t l = 0; config->window && l < config->layers && !window; l++) window = config->window[l];
    return window;
}

uint64_t model_kv_bytes_per_token(const struct model_config *config, uint32_t layers, enum kv_dtype kv_dtype)
{
    const uint32_t rows = config->latent.rank ? 1 : 2; /* K and V */
    return (uint64_t)rows * layers * config->kv_heads * kv_cell_bytes(kv_dtype, config->head_dim);
}
