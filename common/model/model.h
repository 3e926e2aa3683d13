/* A checkpoint as data: its configuration, its tables of tensors, operations and units.
 *
 * Read by helmd (ledger, plan), by the workers (loading, lowering to programs) and by tools. Everything here
 * was checked when it was read: every size product fits 64 bits, every tensor lies inside its file, every
 * tensor the operations need exists with the shape the configuration implies, and none is left over. The
 * structures are plain data owned by `struct model`; nothing points outside it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/formats/kv_dtype.h"
#include "common/formats/tensor_format.h"
#include "common/model/limits.h"
#include "common/model/router.h"
#include "common/model/unit.h"

enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_FACTORS, ROPE_LONG, ROPE_PART };
const char *rope_kind_name(enum rope_kind kind);
struct rope_config {
    enum rope_kind kind;
    double theta;
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn, longrope: multiplies cos and sin; resolved, never 0 */
    double mscale_all;         /* yarn: of latent attention's scores (rope_score_factor); 0: none */
    double part;               /* ROPE_PART: pairs that turn, of all; the others stay */
    bool truncate;             /* yarn: floor/ceil of the correction range */
    uint32_t original_context; /* llama3, yarn, longrope */
    uint32_t dims;             /* of each head that turn, the first ones; 0: all */
    bool pairs;                /* neighbours turn together; false: value i and i + dims / 2 */
    /* [dims / 2], of ROPE_FACTORS and ROPE_LONG: what each inverse frequency is divided by; of a longrope
     * those up to the original context, and those of longer ones. */
    float *factors, *long_factors;
};
#define MODEL_ROPES_MAX 2

/* Layers of gated delta nets. */
struct model_delta {
    uint32_t key_heads, value_heads; /* value_heads 0: there are none */
    uint32_t key_dim, value_dim;     /* numbers of a head of q and k, of v */
    uint32_t inner;                  /* GGUF: value_heads * value_dim */
    uint32_t conv;                   /* tokens that the convolution sees */
    uint32_t channels;               /* that it goes over: q, k and v of all heads */
    enum head_order order;
};

/* Latent attention: every head's keys and values are products of one latent of `rank` numbers a position,
 * which the cache keeps with one rotated key that all heads share (rope[0].dims numbers). Heads attend in the
 * latent's space: kv_heads is 1 and head_dim rank + rope[0].dims. */
struct model_latent {
    uint32_t rank;        /* 0: attention is not latent */
    uint32_t q_rank;      /* q comes through so many numbers; 0: straight from the input */
    uint32_t nope, value; /* numbers of a head that do not turn, of q and k; of v */
};

/* Heads of a kind of layers' keys and values. */
struct model_heads {
    uint32_t kv_heads, head_dim;
};

struct model_config {
    char architecture[64]; /* "Qwen3ForCausalLM" */
    char model_type[32];   /* "qwen3" */
    uint32_t layers, hidden, vocab;
    uint32_t intermediate; /* of the widest dense MLP */
    uint32_t *widths;      /* [layers]: of each one, owned; NULL: all are as wide */
    uint32_t heads, kv_heads, head_dim;
    struct model_heads window_heads; /* of layers with a window; zeros: as the others' */
    uint32_t positions;              /* rows of learned position embeddings; 0: there are none */
    /* The last ones of `layers`, which make drafts: 1, or 0 if they are not read. Layers after those, whose
     * tensors are skipped */
    uint32_t drafts, draft_layers;
    /* `window` and `sparse` are made of these */
    uint32_t sliding_window, window_layers, sparse_step, leading_dense, shared_experts;
    uint32_t full_attention_interval; /* each such layer attends (of hybrids), or has no window, or no RoPE;
                                         0: all do */
    bool use_window;
    struct model_delta delta;
    struct model_latent latent;
    bool *recurrent;      /* [layers]: of hybrids, the layer is a gated delta net; NULL: none is */
    bool gated_attention; /* attention's output has a gate, whose rows lie with those of q */
    bool normed_outputs;  /* the halves' outputs are normed before they are added */
    bool partial_rope;    /* a part of each head turns; its configuration says which (rope[0].dims) */
    /* Multipliers of the embedding, of what is added to the residual stream, of attention's scores, of
     * logits; 0: none */
    double embedding_scale, residual_scale, attention_scale, logit_scale;
    double logit_cap; /* soft cap of logits; 0: none */
    double q_growth;  /* q grows with each original context (rope[0]) before it: math_growth (unit.h); 0: it
                         does not */
    bool *
        reads; /* [layers], owned: the layer reads another one's cache (model_cache_layer); NULL: none does */
    uint32_t reading_layers; /* number of these layers, which are the last */
    bool reading_wide;       /* their MLPs are twice as wide as the others' */
    uint32_t per_layer;      /* numbers of a token's embedding for each layer; 0: there are none */
    uint32_t per_layer_vocab;
    bool k_is_v;          /* layers without a window have no v of their own */
    uint32_t max_context; /* max_position_embeddings, or what YaRN extends it to */
    double norm_eps;
    /* Kinds of layers name theirs (math_op.rope). The second is that of layers with a window; its theta is 0
     * where all have the first. */
    struct rope_config rope[MODEL_ROPES_MAX];
    bool qk_norm;                        /* RMSNorm over each head of q and k before RoPE (Qwen3), */
    bool whole_norms;                    /* or over all heads of one together (MiniMax-M2) */
    bool q_bias, k_bias, v_bias, o_bias; /* attention biases */
    bool mlp_bias;
    bool tied_head;   /* lm_head is embed_tokens */
    enum dtype dtype; /* as config.json says; each tensor has its own */
    bool gguf;        /* tensors are called as in GGUF files */
    uint32_t *window; /* [layers]: 0 = full attention; w = a token sees itself and the w - 1 before it */
    /* Mixtures of experts. router.experts is 0 where no layer is one. */
    struct model_router router;
    uint32_t expert_intermediate;
    uint32_t expert_parts; /* experts that one of the files is cut into (parts.h); 0 or 1: they are whole */
    bool experts_bias;     /* router and experts have biases */
    bool choice_bias;      /* the choice of them has one */
    /* The expert that every token has beside its own; of a dense MLP that two processors compute, the
     * first one's rows (share.h); 0: there is none */
    uint32_t shared_intermediate;
    bool shared_weighed;               /* a token gives it a weight; else 1 */
    bool sinks;                        /* attention has */
    enum tensor_format experts_format; /* of matrices that only config.json is there of */
    /* The format of matrices whose numbers and scales are apart in files: FP8, NVFP4; 0: neither. Rows and
     * columns of FP8's scales; 0: config.json does not say */
    enum tensor_format scaled;
    uint32_t scaled_rows, scaled_cols;
    bool *sparse;               /* [layers]: the layer's MLP is a mixture; NULL: none is */
    int32_t bos;                /* -1: none */
    int32_t eos[MODEL_EOS_MAX]; /* config.json and generation_config.json together */
    uint32_t eos_count;
};

/* A part of a tensor in a file. STORED_SCALED: and where its scales are, and what multiplies all; 0:
 * nowhere. */
struct model_piece {
    uint32_t shard;
    uint64_t offset;
    uint32_t scale_shard, whole_shard;
    uint64_t scales, whole;
};
/* How all experts' rows of a tensor lie in its file; model_shards_read makes rows of them (fused.h). */
enum tensor_stored {
    STORED_ROWS,         /* contiguous, as here, or in pieces, or of interleaved heads */
    STORED_BLOCKS_APART, /* MXFP4: all numbers of blocks, and their scales in another tensor */
    STORED_COLUMNS,      /* each expert's columns, contiguous */
    STORED_IN_TURN,      /* single values of two tensors in turn, as biases of gate and up */
    STORED_SCALED,       /* numbers of 8 or 4 bits, scales in tensors of their own (scaled.h); in pieces */
    STORED_TURNED,       /* each head's columns are rows of the file */
};
/* The scales of a STORED_SCALED tensor. */
struct model_scaled {
    bool blocks;         /* blocks of a GGUF file */
    bool divides;        /* the scale for the whole divides */
    uint32_t rows, cols; /* FP8: how many share a scale */
    enum dtype dtype;    /* of these */
};
/* A tensor of scales, until its matrix is there. */
struct model_scale {
    char name[MODEL_NAME_MAX], matrix[MODEL_NAME_MAX];
    int kind; /* enum scaled_name */
    struct model_piece at;
    uint64_t count, cols;
    bool e4m3;
    enum dtype dtype;
};

/* How a tensor of experts in parts, or of their router, comes from one of whole experts (parts.h); how one
 * of a shared MLP comes from the whole one (share.h). */
enum tensor_cut {
    CUT_NONE,       /* it is the same bytes */
    CUT_COLUMNS,    /* each part's rows are a part of its expert's columns */
    CUT_REPEATED,   /* each part has its expert's row */
    CUT_FIRST,      /* the first part has its expert's row, the others zeros */
    CUT_OF_ROWS,    /* neighbouring rows of the whole, */
    CUT_OF_COLUMNS, /* neighbouring columns */
};

struct model_tensor {
    enum tensor_role role;
    int32_t layer; /* -1 for the three that belong to no layer */
    char name[MODEL_NAME_MAX];
    enum tensor_format format; /* of a vector: single numbers */
    uint64_t rows, cols;       /* a vector is rows = 1 */
    uint64_t bytes;
    uint32_t shard;  /* index into model.shards */
    uint64_t offset; /* of the first byte, from the start of the shard file */
    /* Heads whose rows (of a bias: values) lie interleaved in the file: rows 2i and 2i + 1 of a head are its
     * rows i and i + half of it; 0: rows are in order. model_shards_read brings them in order. */
    uint32_t interleaved_heads;
    uint32_t interleaved_rows; /* of each such head, those which turn; 0: all */
    uint32_t interleaved_from; /* the first of these */
    /* In a file that has a tensor for each expert: pieces[piece .. piece + experts) of equal bytes, which
     * make up the tensor in this order; piece_count 0: the tensor is one run of the file. `shard` and
     * `offset` are the first's. */
    uint32_t piece, piece_count;
    enum tensor_stored stored;
    uint32_t experts; /* of a tensor that is not STORED_ROWS */
    uint32_t turns,
        turn; /* rows (STORED_IN_TURN: values) turn, turn + turns, ... of the file's are its own; 0: all */
    struct model_piece scales; /* STORED_BLOCKS_APART; offset 0: not found yet */
    /* STORED_TURNED: `experts` heads, of each so many rows in the file, the first `cols` of which are its
     * columns; their format, of `rows` / heads values */
    uint32_t head_rows;
    enum tensor_format file_format;
    struct model_scaled scaled;
    /* Members above about files (`stored` and the like) are those of whole experts */
    enum tensor_cut cut;
    uint32_t parts, part_rows;     /* of an expert; rows of a part */
    uint64_t cut_first, cut_whole; /* CUT_OF_...: the first of them, and how many the whole has */
};

struct model_shard {
    char file[MODEL_NAME_MAX];
    uint64_t bytes;
};

struct mixture;
struct model {
    char *folder; /* that the shards are in */
    char *path;   /* as it was given: what another process reads the same model by */
    struct model_config config;
    struct model_math math;
    struct model_tensor *tensors; /* sorted by (shard, offset) */
    uint32_t tensor_count;
    struct model_piece *pieces;
    uint32_t piece_count;
    struct model_scale *scales; /* while the files are read */
    uint32_t scale_count;
    struct model_shard *shards;
    uint32_t shard_count;
    /* [layers], owned: two processors compute the layer's MLP, whose math is the last part (share.h); NULL:
     * of none */
    bool *shared;
    struct model_unit *unit;                 /* [unit_count(config.layers)] */
    const struct model_tensor **unit_tensor; /* unit[].tensor point into it */
    uint64_t weight_bytes;                   /* sum over tensors */
    /* Tensors of the files that belong to other parts (images, drafts), which nothing reads */
    uint32_t skipped_count;
    uint64_t skipped_bytes;
    char skipped[MODEL_NAME_MAX]; /* the first of them */
    uint64_t parameter_count;
    const struct mixture
        *laid; /* `tensors` have the formats that this makes of theirs at load; NULL: their own */
    uint32_t
        *by_role; /* [TENSOR_ROLE_COUNT * (layers + 1)]: index into tensors + 1, 0 = none; for model_find */
};

/* `path` is what --model means (hub.h), here and in model_read_headers: a path, or a name in the hub's cache.
 * A folder: config.json, generation_config.json (optional), the index or model.safetensors, and every shard's
 * header are read; never the weights. A GGUF file, or the first of several that it is split into, or a folder
 * with one and no safetensors file: its header is read. On failure *model is zeroed. model_free accepts a
 * zeroed struct. */
HELM_MUST_CHECK int model_read(const char *path, struct model *model, struct helm_err *err);
/* The same with the layer that makes drafts (docs/speculation.md), which becomes the last one: config.drafts
 * is 1. HELM_E_UNSUPPORTED: the model has none, or none that HELM knows. */
HELM_MUST_CHECK int model_read_drafting(const char *path, struct model *model, struct helm_err *err);
/* For planning, which needs no weights: a shard may end after its header, and of a folder without any
 * safetensors file the tensors are those that config.json implies, in its dtype (*derived is then true). The
 * model can be planned for, not loaded. */
HELM_MUST_CHECK int model_read_headers(const char *path, struct model *model, bool *derived,
                                       struct helm_err *err);
/* The same with the layer that makes drafts, as model_read_drafting has it. */
HELM_MUST_CHECK int model_read_drafting_headers(const char *path, struct model *model, bool *derived,
                                                struct helm_err *err);
/* The tensors that a configuration implies, as if one file held them in the order of use. Takes the
 * configuration (*config is zeroed, also on failure). */
HELM_MUST_CHECK int model_from_config(struct model_config *config, struct model *model, struct helm_err *err);
void model_free(struct model *model);

/* Just the configuration (for planning a machine one does not have): of a folder no tensors are read or
 * required. */
HELM_MUST_CHECK int model_read_config(const char *path, struct model_config *config, struct helm_err *err);
void model_config_free(struct model_config *config);
/* The same from memory; `what` names the source. The fuzz target's entry. */
HELM_MUST_CHECK int model_config_parse(const char *what, const char *text, size_t length,
                                       struct model_config *config, struct helm_err *err);

/* The unit that a tensor of a layer belongs to. */
static inline uint32_t model_tensor_unit(const struct model_tensor *tensor)
{
    return unit_of((uint32_t)tensor->layer, unit_part_of_role(tensor->role));
}
/* Formats of the matrices that steps multiply by, as a set (format_bit). */
unsigned model_formats(const struct model *model);
/* The one of these that most bytes are of. */
enum tensor_format model_main_format(const struct model *model);
/* Whether workers keep it as fp32 beside their matrices: norms, biases, routers. */
bool model_tensor_is_vector(const struct model_tensor *tensor);
/* A vector's numbers as fp32, as they are in the file, into what operations use: some are stored less 1, or
 * as logarithms; those of a convolution, [channels][tokens], become [tokens][channels]. Called by the workers
 * when they have read one. */
HELM_MUST_CHECK int model_vector_finish(const struct model_config *config, const struct model_tensor *tensor,
                                        float *values, struct helm_err *err);
/* The tensor with this role and layer (-1 where it has none), or NULL. TENSOR_HEAD of a tied model is its
 * EMBED. */
const struct model_tensor *model_find(const struct model *model, enum tensor_role role, int32_t layer);

/* How kernels of gated products name an operation's activation. */
static inline enum glu_kind math_glu(const struct math_op *op)
{
    return op->activation == ACTIVATION_CLAMPED     ? GLU_CLAMPED
           : op->activation == ACTIVATION_GELU_TANH ? GLU_GELU
                                                    : GLU_SILU;
}

/* Layers that a token passes through on its way to the head: those that make drafts come after them. */
static inline uint32_t model_answer_layers(const struct model_config *config)
{
    return config->layers - config->drafts;
}
/* Heads of layers with a window, or of the others. */
static inline struct model_heads model_heads_of(const struct model_config *config, bool window)
{
    return window && config->window_heads.head_dim
               ? config->window_heads
               : (struct model_heads){.kv_heads = config->kv_heads, .head_dim = config->head_dim};
}
/* Numbers of q before it meets the latent; 0 where attention is not latent. */
static inline uint32_t model_latent_q(const struct model_config *config)
{
    return config->latent.rank ? config->heads * (config->latent.nope + config->rope[0].dims) : 0;
}
/* The most of any layer: numbers of a head, kv heads, numbers of all kv heads. */
static inline struct model_heads model_heads_most(const struct model_config *config)
{
    const struct model_heads w = model_heads_of(config, true);
    return (struct model_heads){.kv_heads = w.kv_heads > config->kv_heads ? w.kv_heads : config->kv_heads,
                                .head_dim = w.head_dim > config->head_dim ? w.head_dim : config->head_dim};
}
static inline uint32_t model_kv_width(const struct model_config *config)
{
    const struct model_heads w = model_heads_of(config, true);
    const uint32_t own = config->kv_heads * config->head_dim, window = w.kv_heads * w.head_dim;
    return own > window ? own : window;
}
/* Whether a layer reads the cache of another one. model_cache_layer: the last layer before it that has a
 * cache and is of its kind, with a window or without; the layer itself if it has one. */
static inline bool model_reads_cache(const struct model_config *config, uint32_t layer)
{
    return config->reads && layer < config->layers && config->reads[layer];
}
uint32_t model_cache_layer(const struct model_config *config, uint32_t layer);
/* Whether a layer's MLP is a mixture of experts. */
static inline bool model_layer_sparse(const struct model_config *config, uint32_t layer)
{
    return config->sparse && config->sparse[layer];
}
/* Parts of one expert of the files; the router's experts are such. */
static inline uint32_t model_expert_parts(const struct model_config *config)
{
    return config->expert_parts ? config->expert_parts : 1;
}
/* Numbers between an MLP's two halves, of one token: the most of any layer; of a dense one, 0 where none
 * is. */
uint32_t model_mlp_width(const struct model_config *config);
uint32_t model_dense_width(const struct model_config *config);
/* Columns of the widest matrix that is no expert's, or more. */
uint32_t model_widest(const struct model_config *config);
/* Shape that `config` implies for a role in a layer (-1: in layers without a window); returns false when the
 * configuration has no such tensor in any layer. */
bool model_expected_shape(const struct model_config *config, enum tensor_role role, int32_t layer,
                          uint64_t *rows, uint64_t *cols);
/* Whether it has what the role is about, in layers whose operations name it. */
bool model_role_exists(const struct model_config *config, enum tensor_role role);
/* Whether it has the tensor in this layer (-1: outside the layers). */
bool model_expects(const struct model_config *config, enum tensor_role role, int32_t layer);
/* The file's name of a role ("model.layers.3.mlp.up_proj.weight") into name; config NULL: that of safetensors
 * files. */
void model_tensor_name(const struct model_config *config, enum tensor_role role, int32_t layer,
                       char name[MODEL_NAME_MAX]);
/* The number of a role's tensors in safetensors files, and the name of one. Where a file has one for each
 * expert, model_tensor_name has a star in the place of the expert's number; else the number is 1. */
uint32_t model_tensor_parts(const struct model_config *config, enum tensor_role role);
void model_part_name(const struct model_config *config, enum tensor_role role, int32_t layer, uint32_t part,
                     char name[MODEL_NAME_MAX]);
/* Whether model_math.inputs name it. */
bool model_is_input(const struct model *model, enum tensor_role role);
/* The operations that `config` implies. */
void model_math_build(const struct model_config *config, struct model_math *math);

/* Where the matrices of a gated delta net's heads, [value_heads][key_dim][value_dim], lie in its state: after
 * the columns of the convolution, [conv - 1][channels]. */
uint64_t model_delta_matrices_at(const struct model_delta *delta);
/* Bytes of the whole state, in one layer of one sequence. */
uint64_t model_delta_bytes(const struct model_delta *delta);
/* The window of the layers that have one, which is the same; 0: none has. */
uint32_t model_window(const struct model_config *config);
/* Layers that keep K and V of each position (STATE_PAGES). */
uint32_t model_paged_layers(const struct model_config *config);
/* Bytes of KV cache one token needs over `layers` layers without a window at `kv_dtype`. */
uint64_t model_kv_bytes_per_token(const struct model_config *config, uint32_t layers, enum kv_dtype kv_dtype);

/* One of its tables: inv_freq[dims / 2] (dims 0: head_dim) in float32 as transformers computes it
 * (ROPE_INIT_FUNCTIONS), and the factor that multiplies cos and sin (1 except for yarn and longrope).
 * `context` is what the run is planned for, which chooses a longrope's factors. Angle = (float)position *
 * inv_freq[i]. */
void rope_inv_freq(const struct model_config *config, uint32_t table, uint32_t context, float *inv_freq,
                   float *scale);
/* How many of the tables there are. */
static inline uint32_t model_ropes(const struct model_config *config)
{
    return config->rope[1].theta > 0 ? 2 : 1;
}
/* Numbers of a head that turn by a table. */
static inline uint32_t model_rope_dims(const struct model_config *config, uint32_t table)
{
    return config->rope[table].dims ? config->rope[table].dims : model_heads_of(config, table > 0).head_dim;
}
/* The factor of latent attention's scores: the square of YaRN's factor of all dimensions (DeepSeek-V2); 1:
 * none. */
double rope_score_factor(const struct rope_config *rope);
/* Whether a run of this context takes a longrope's long factors; cells of its cache mean something else
 * then. */
bool rope_is_long(const struct model_config *config, uint32_t context);
