/* Architectures: one constant `struct arch` in a file of its own (arch/), and the registry of them.
 *
 * An architecture says, as data: the keys of its configuration in config.json and in GGUF files, its tensors'
 * names in both, its kinds of layers and their operations; and, as one function each, which layer is of which
 * kind. The readers in this folder are driven by that and ask for no architecture by name. To add one: a file
 * in arch/, a line in `archs` of arch.c. Usual rows, which most have, are in arch/usual.h. Constant tables;
 * no state. */
#pragma once

#include "common/model/model.h"

struct keys;
struct gguf_files;
struct fused_tensor;

/* ---- keys ---- */

enum key_kind {
    KEY_NONE, /* the end of a table */
    KEY_U32,
    KEY_DOUBLE,
    KEY_FLOAT,
    KEY_BOOL,
    KEY_WORD,  /* one of `words`, or absent; nothing is kept of it */
    KEY_FIXED, /* is `neutral` wherever it is there: other values are refused, since nothing computes by them
                */
};
/* Whether the reader demands a key. GGUF files have defaults of their own for some. */
enum key_need {
    KEY_OPTIONAL,
    KEY_NEEDED,
    KEY_STATED,           /* config.json: it is there, though it may be null; GGUF: optional */
    KEY_NEEDED_IN_CONFIG, /* config.json: there, and not null; GGUF: optional */
    KEY_NEEDED_IN_GGUF,   /* the other way round */
};
#define KEY_NAMES_MAX 3
struct arch_key {
    enum key_kind kind;
    enum key_need need;
    size_t at;                       /* of the member of struct model_config */
    const char *name[KEY_NAMES_MAX]; /* in config.json: the first, and others for it */
    const char *gguf[2];             /* after the architecture's name and a dot */
    double min, max;                 /* of numbers */
    double neutral;                  /* FIXED */
    const char *words;               /* WORD: "silu swish" */
    const char *why;                 /* FIXED: what is not supported; NULL: the value alone is named */
    bool null_is_zero;               /* null in config.json means 0: there is none */
    bool zero_is_none;               /* 0 in GGUF files means that the key is not there */
};

/* ---- tensors ---- */

/* A role's names in this architecture's files, where they are not the usual ones of role.c. */
struct arch_name {
    enum tensor_role role; /* TENSOR_NONE: the end of a table */
    const char *name,
        *gguf; /* after the layer's prefix; NULL: the usual one. A star: the number of an expert */
};

/* A vector that is stored otherwise than it is used. */
enum vector_form {
    VECTOR_LESS_ONE,  /* w - 1 */
    VECTOR_LOGARITHM, /* w = -exp of it */
    VECTOR_OVER_ROOT  /* w = it over the root of how many there are: in GGUF files, too */
};
struct arch_vector {
    enum tensor_role role;
    enum vector_form form;
};

/* The beginning of a name in files, and its beginning here, after the prefix of the layer of drafts. */
struct arch_rename {
    const char *from, *to;
};

/* ---- the architecture ---- */

#define ARCH_ALIASES 3
struct arch {
    const char *architecture; /* as in "architectures" */
    const char *model_type;
    /* Architectures with more than text, of which this is the text: their key `text_config` has its
     * configuration, whose model_type is the one above or `text_type`. */
    const char *outer[ARCH_ALIASES], *text_type;
    const char *gguf[ARCH_ALIASES]; /* general.architecture; the first is written */
    const char
        *gguf_told_by; /* a key of this architecture that is there and not 0, where several share the name; */
    uint32_t gguf_told_is;     /* or is this; 0: any number tells */
    bool for_tests;            /* messages do not name it */
    bool gguf_interleaved;     /* rows of q and k are as model_tensor.interleaved_heads says, */
    bool interleaved;          /* in safetensors files, too */
    struct model_config start; /* meanings of absent keys */
    void (*gguf_start)(
        struct model_config *config); /* the same of GGUF files, where it differs; NULL: it does not */
    const struct arch_key *keys;
    const struct arch_name *names; /* NULL: all are the usual ones */
    const struct fused_tensor
        *fused; /* tensors of files that hold several, or none row by row (fused.h); NULL: none */
    /* Vectors that files, those of GGUF as said above, store otherwise than they are used (shards.c), up to
     * TENSOR_NONE; NULL: none */
    const struct arch_vector *vectors;
    const char *const
        *skipped; /* beginnings of names that belong to other parts: images, drafts; NULL: none */
    /* Names of the tensors of its layer of drafts, in safetensors files, that are not those of a layer; up to
     * a NULL. No list: HELM knows no such layer of it. GGUF files have the usual names */
    const struct arch_rename *draft_names;
    const struct math_part *hidden_states; /* model_math.hidden_states; NULL: x is them */
    const struct math_op *embed, *head;
    const struct math_part *inputs;       /* model_math.inputs; NULL: none has any */
    const struct math_part *const *parts; /* the kinds of units, up to a NULL */
    /* Which of `parts` a layer's half is. */
    uint32_t (*kind)(const struct model_config *config, uint32_t layer, enum unit_part part);
    /* After the keys: which layer has a window, experts and so on; what is derived, and what is refused. */
    int (*layers)(struct keys *keys, struct model_config *config, struct helm_err *err);
    /* After that, what only the tensors of all parts of a GGUF file say; NULL: nothing more. */
    int (*gguf_tensors)(const struct gguf_files *files, struct model_config *config, struct helm_err *err);
    /* Numbers of the configuration into the operations; NULL: none are. */
    void (*fill)(const struct model_config *config, struct model_math *math);
};

/* arch/llama.c, qwen.c, dots.c, mixtral.c, gpt_oss.c; one a line from here on */
extern const struct arch arch_llama, arch_mistral, arch_ministral3, arch_qwen2, arch_qwen3, arch_qwen2_moe,
    arch_qwen3_moe, arch_dots1, arch_mixtral, arch_gpt_oss;
extern const struct arch arch_phi3;
extern const struct arch arch_opt;
extern const struct arch arch_granite;
extern const struct arch arch_qwen35, arch_qwen35_moe, arch_qwen3_next;          /* arch/qwen35.c */
extern const struct arch arch_gemma3, arch_gemma4;                               /* arch/gemma.c */
extern const struct arch arch_minimax_m2;                                        /* arch/minimax.c */
extern const struct arch arch_glm4, arch_glm4_moe;                               /* arch/glm.c */
extern const struct arch arch_deepseek_v2, arch_deepseek_v3, arch_glm4_moe_lite; /* arch/deepseek.c */
extern const struct arch arch_smollm3;
extern const struct arch arch_seed_oss;
extern const struct arch arch_olmo2, arch_olmo3; /* arch/olmo.c */
extern const struct arch arch_state_test;
/* The registry: index from 0, NULL after the last. */
const struct arch *arch_at(uint32_t index);
/* By a name in "architectures", or by a model_type; NULL: unknown. *outer: the text is in its
 * `text_config`. */
const struct arch *arch_find(const char *architecture, bool *outer);
const struct arch *arch_find_type(const char *model_type);
/* The architecture that a configuration names. */
const struct arch *arch_of(const struct model_config *config);
/* "LlamaForCausalLM, MistralForCausalLM" or "llama, mistral3" for messages, with "..." for those that `text`
 * has no room for. */
const char *arch_names(char *text, size_t size, bool gguf);

/* ---- names in files ---- */

/* The meaning of a tensor's name in a file, whether or not the configuration has such a tensor. */
struct arch_match {
    enum tensor_role role;
    int32_t layer;  /* -1 where the role has none */
    int32_t expert; /* whose it is; -1: of all, or of none */
};
/* Returns false for a name no role has. arch NULL: by the usual names alone. A role that safetensors files
 * have a tensor of for each expert is also matched with a star for the number: the name of all of them
 * together. */
bool arch_match(const struct arch *arch, const char *name, bool gguf, struct arch_match *what);
/* The rest of a name after the layer's prefix, and that layer's number; NULL: it does not begin so. */
const char *arch_layer_name(const char *name, bool gguf, int32_t *layer);
/* The name of a role after the layer's prefix; arch NULL: the usual one. */
const char *arch_role_own_name(const struct arch *arch, enum tensor_role role, bool gguf);
/* By the usual names of safetensors files. */
bool arch_match_name(const char *name, enum tensor_role *role, int32_t *layer);
/* The fused tensor of this name; *layer is filled in. NULL: there is none. */
const struct fused_tensor *arch_match_fused(const struct arch *arch, const char *name, bool gguf,
                                            int32_t *layer);

/* Tensors of a GGUF file that divide the inverse frequencies; the two of a longrope. */
#define ARCH_ROPE_FACTORS "rope_freqs.weight"
#define ARCH_ROPE_SHORT   "rope_factors_short.weight"
#define ARCH_ROPE_LONG    "rope_factors_long.weight"
bool arch_is_rope_factors(const char *name);
/* Buffers that old files carry although they are computed ("...rotary_emb.inv_freq"). */
bool arch_ignores_name(const char *name);
/* Tensors of parts that are not the text's, or of layers after the last one (drafts). */
bool arch_skips_name(const struct model_config *config, const char *name);
/* The name that a file's tensor of the layer of drafts has here, in `buffer`; or `name` itself. */
const char *arch_draft_name(const struct model_config *config, const char *name, char buffer[MODEL_NAME_MAX]);

/* ---- roles (role.c) ---- */

/* True for roles that exist once a layer. */
bool arch_role_per_layer(enum tensor_role role);
/* True for roles that workers keep as fp32 beside their matrices: norms, biases, routers. */
bool arch_role_is_vector(enum tensor_role role);
/* Dimensions of its tensor in a file: 3 of experts' and of heads' in GGUF files; else 1 or 2. */
uint32_t arch_role_rank(enum tensor_role role, bool gguf);
bool arch_role_of_experts(enum tensor_role role);
/* A matrix for each head, the heads' rows one after another. */
bool arch_role_of_heads(enum tensor_role role);
/* The weights of a convolution, which safetensors files have with a dimension of 1 between its two. */
bool arch_role_of_channels(enum tensor_role role);
/* A vector that files have also as a matrix of one row. */
bool arch_role_of_one_row(enum tensor_role role);
/* "q_proj" and the like for tables, e.g. "self_attn.q_proj.weight"; and what GGUF files usually call it. */
const char *arch_role_name(enum tensor_role role);
const char *arch_role_gguf_name(enum tensor_role role);
/* Appends the keys whose numbers a role's rows (or columns) are the product of: "('hidden_size' is 64)". */
void arch_role_keys(const struct model_config *config, enum tensor_role role, bool rows, char *text,
                    size_t size);
