/* The mixtures as tables. See mixture.h; the rules are those that llama.cpp's published files follow
 * (src/llama-quant.cpp), held against such files by test_mixture.c. */
#include "common/model/mixture.h"

#include <strings.h>

#include "common/model/arch.h"
#include "common/model/share.h"

/* In which layers a rule holds, of n. */
enum where {
    EVERYWHERE,
    FIRST_TWO,
    FIRST_FOUR,
    FIRST_EIGHTH,
    FIRST_SIXTEENTH,
    OUTER_AND_THIRDS, /* the first and last eighths, and every third layer between */
    SHARED_BY_FOUR,   /* every layer, where at least four query heads share a value head */
};
struct rule {
    enum tensor_role role;
    enum where where;
    enum { ALWAYS, MEASURED, UNMEASURED } when; /* of importance */
    enum tensor_format format;
};

#define RULES_MAX 8
struct mixture {
    const char *name, *alias; /* the alias may be NULL */
    uint32_t file_type;
    enum tensor_format base, embed, head;
    struct rule rule[RULES_MAX]; /* the first that holds; the end: TENSOR_NONE */
};

#define RULE(role, where, when, format)                                                                      \
    {                                                                                                        \
        TENSOR_##role, where, when, FORMAT_##format                                                          \
    }
#define MORE(format) RULE(V, OUTER_AND_THIRDS, ALWAYS, format), RULE(DOWN, OUTER_AND_THIRDS, ALWAYS, format)
#define IQ4_RULES    RULE(V, SHARED_BY_FOUR, ALWAYS, Q5_K), RULE(DOWN, FIRST_EIGHTH, UNMEASURED, Q5_K)
#define IQ2_RULES                                                                                            \
    RULE(V, SHARED_BY_FOUR, ALWAYS, Q4_K), RULE(V, EVERYWHERE, ALWAYS, IQ3_S),                               \
        RULE(DOWN, FIRST_EIGHTH, ALWAYS, IQ3_S), RULE(O, EVERYWHERE, ALWAYS, IQ3_S)
/* Formats of matrices, the embedding and the head; rules. */
#define MIXTURE(name, alias, type, base, embed, head, ...)                                                   \
    {                                                                                                        \
        name, alias, type, FORMAT_##base, FORMAT_##embed, FORMAT_##head,                                     \
        {                                                                                                    \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }
static const struct mixture mixtures[] = {
    MIXTURE("q8_0", NULL, 7, Q8_0, Q8_0, Q8_0, {0}),
    MIXTURE("q6_k", NULL, 18, Q6_K, Q6_K, Q6_K, {0}),
    MIXTURE("q5_k_m", "q5_k", 17, Q5_K, Q5_K, Q6_K, MORE(Q6_K)),
    MIXTURE("q5_k_s", NULL, 16, Q5_K, Q5_K, Q6_K, {0}),
    MIXTURE("q5_0", NULL, 8, Q5_0, Q5_0, Q6_K, RULE(DOWN, FIRST_EIGHTH, MEASURED, Q5_1)),
    MIXTURE("q5_1", NULL, 9, Q5_1, Q5_1, Q6_K, {0}),
    MIXTURE("q4_k_m", "q4_k", 15, Q4_K, Q4_K, Q6_K, MORE(Q6_K)),
    MIXTURE("q4_k_s", NULL, 14, Q4_K, Q4_K, Q6_K, RULE(V, FIRST_FOUR, ALWAYS, Q5_K),
            RULE(DOWN, FIRST_EIGHTH, ALWAYS, Q5_K)),
    MIXTURE("q4_0", NULL, 2, Q4_0, Q4_0, Q6_K, RULE(DOWN, FIRST_EIGHTH, MEASURED, Q4_1)),
    MIXTURE("q4_1", NULL, 3, Q4_1, Q4_1, Q6_K, {0}),
    MIXTURE("iq4_xs", NULL, 30, IQ4_XS, IQ4_XS, Q6_K, IQ4_RULES),
    MIXTURE("iq4_nl", NULL, 25, IQ4_NL, IQ4_NL, Q6_K, IQ4_RULES),
    /* published of models with experts alone; here of all matrices but the ends */
    MIXTURE("mxfp4", "mxfp4_moe", 38, MXFP4, Q8_0, Q8_0, {0}),
    MIXTURE("q3_k_m", "q3_k", 12, Q3_K, Q3_K, Q6_K, RULE(V, FIRST_TWO, ALWAYS, Q5_K),
            RULE(V, EVERYWHERE, ALWAYS, Q4_K), RULE(DOWN, FIRST_SIXTEENTH, ALWAYS, Q5_K),
            RULE(DOWN, EVERYWHERE, ALWAYS, Q4_K), RULE(O, EVERYWHERE, ALWAYS, Q4_K)),
    MIXTURE("q3_k_s", NULL, 11, Q3_K, Q3_K, Q6_K, {0}),
    MIXTURE("q2_k", NULL, 10, Q2_K, Q2_K, Q6_K, RULE(V, SHARED_BY_FOUR, ALWAYS, Q4_K),
            RULE(V, EVERYWHERE, ALWAYS, Q3_K), RULE(DOWN, EVERYWHERE, ALWAYS, Q3_K),
            RULE(O, EVERYWHERE, ALWAYS, Q3_K)),
    MIXTURE("iq3_s", NULL, 26, IQ3_S, IQ3_S, Q6_K, RULE(V, SHARED_BY_FOUR, ALWAYS, Q4_K)),
    MIXTURE("iq3_xxs", NULL, 23, IQ3_XXS, IQ3_S, Q5_K, RULE(V, SHARED_BY_FOUR, ALWAYS, Q4_K),
            RULE(V, EVERYWHERE, MEASURED, IQ3_S), RULE(V, EVERYWHERE, UNMEASURED, Q3_K),
            RULE(Q, EVERYWHERE, MEASURED, IQ2_S), RULE(K, EVERYWHERE, MEASURED, IQ2_S),
            RULE(O, EVERYWHERE, ALWAYS, IQ3_S), RULE(DOWN, FIRST_EIGHTH, UNMEASURED, Q4_K),
            RULE(DOWN, EVERYWHERE, UNMEASURED, Q3_K)),
    MIXTURE("iq2_m", NULL, 29, IQ2_S, IQ3_S, Q5_K, IQ2_RULES),
    MIXTURE("iq2_s", NULL, 28, IQ2_XS, IQ3_S, Q5_K, IQ2_RULES),
    MIXTURE("iq2_xs", NULL, 20, IQ2_XS, Q2_K, Q5_K, RULE(V, SHARED_BY_FOUR, ALWAYS, Q4_K),
            RULE(V, EVERYWHERE, ALWAYS, Q2_K), RULE(DOWN, FIRST_EIGHTH, ALWAYS, Q2_K)),
    MIXTURE("bf16", NULL, 32, BF16, BF16, BF16, {0}),
    MIXTURE("f16", NULL, 1, F16, F16, F16, {0}),
};
#define MIXTURES (sizeof mixtures / sizeof *mixtures)

const struct mixture *mixture_at(uint32_t i)
{
    return i < MIXTURES ? &mixtures[i] : NULL;
}

const struct mixture *mixture_named(const char *name)
{
    for (size_t i = 0; i < MIXTURES; i++)
        if (strcasecmp(name, mixtures[i].name) == 0 ||
            (mixtures[i].alias && strcasecmp(name, mixtures[i].alias) == 0))
            return &mixtures[i];
    return NULL;
}

const char *mixture_name(const struct mixture *mixture)
{
    return mixture->name;
}

bool mixture_is_plain(const struct mixture *mixture)
{
    return tensor_format_is_plain(mixture->base);
}

bool mixture_lays(const struct mixture *mixture)
{
    return !mixture_is_plain(mixture) && tensor_format_of(mixture->base)->write;
}

uint32_t mixture_file_type(const struct mixture *mixture)
{
    return mixture->file_type;
}

static bool holds(enum where where, const struct model_config *c, uint32_t layer)
{
    const uint32_t n = c->layers;
    const bool in[] = {[EVERYWHERE] = true,
                       [FIRST_TWO] = layer < 2,
                       [FIRST_FOUR] = layer < 4,
                       [FIRST_EIGHTH] = layer < n / 8,
                       [FIRST_SIXTEENTH] = layer < n / 16,
                       [OUTER_AND_THIRDS] = layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2,
                       [SHARED_BY_FOUR] = c->heads / c->kv_heads >= 4};
    return in[where];
}

/* Experts: those of a published MXFP4 file alone are MXFP4, all else has 8 bits. With eight experts attention
 * is small beside them: its k and v take 8 bits, and what brings its output back 5 where most have 4 or
 * fewer. FORMAT_COUNT: no rule of these. */
static enum tensor_format wanted_of_mixtures(const struct mixture *m, const struct model_config *c,
                                             const struct model_tensor *t)
{
    static const unsigned few = 1u << FORMAT_Q2_K | 1u << FORMAT_Q3_K | 1u << FORMAT_Q4_K |
                                1u << FORMAT_IQ4_NL | 1u << FORMAT_IQ4_XS | 1u << FORMAT_IQ3_S |
                                1u << FORMAT_IQ3_XXS | 1u << FORMAT_IQ2_S | 1u << FORMAT_IQ2_XS;
    if (!c->router.experts || tensor_format_is_plain(m->base)) return FORMAT_COUNT;
    if (m->base == FORMAT_MXFP4) return arch_role_of_experts(t->role) ? FORMAT_MXFP4 : FORMAT_Q8_0;
    if (c->router.experts / model_expert_parts(c) != 8) return FORMAT_COUNT;
    if (t->role == TENSOR_K || t->role == TENSOR_V) return FORMAT_Q8_0;
    return t->role == TENSOR_O && few & format_bit(m->base) ? FORMAT_Q5_K : FORMAT_COUNT;
}

/* By the rules alone. */
static enum tensor_format wanted(const struct mixture *m, const struct model_config *c,
                                 const struct model_tensor *t, bool importance)
{
    if (t->role == TENSOR_HEAD || (t->role == TENSOR_EMBED && c->tied_head)) return m->head;
    if (t->role == TENSOR_EMBED) return m->embed;
    enum tensor_format format = wanted_of_mixtures(m, c, t);
    if (format != FORMAT_COUNT) return format;
    const bool down = t->role == TENSOR_DOWN_EXPERTS || t->role == TENSOR_SHARED_DOWN;
    const enum tensor_role role = down ? TENSOR_DOWN : share_role_of(t->role);
    format = m->base;
    for (int i = 0; i < RULES_MAX && m->rule[i].role != TENSOR_NONE; i++) {
        const struct rule *r = &m->rule[i];
        if (r->role != role || !holds(r->where, c, (uint32_t)t->layer)) continue;
        if (r->when != ALWAYS && (r->when == MEASURED) != importance) continue;
        format = r->format;
        break;
    }
    /* Eight query heads of 70B share what this matrix makes: it is small and all of them need it. */
    const bool is_70b = c->layers == 80 && c->heads != c->kv_heads;
    if (t->role == TENSOR_V && is_70b && (format == FORMAT_Q3_K || format == FORMAT_Q4_K)) return FORMAT_Q5_K;
    return format;
}

/* The format that takes rows that are no whole blocks of 256. */
static enum tensor_format of_smaller_blocks(enum tensor_format format)
{
    switch (format) {
    case FORMAT_Q4_K:
        return FORMAT_Q5_0;
    case FORMAT_Q5_K:
        return FORMAT_Q5_1;
    case FORMAT_Q6_K:
        return FORMAT_Q8_0;
    default: /* fewer bits than these */
        return FORMAT_IQ4_NL;
    }
}

enum tensor_format mixture_format(const struct mixture *mixture, const struct model *model,
                                  const struct model_tensor *t, bool importance)
{
    enum tensor_format format = wanted(mixture, &model->config, t, importance);
    if (arch_role_is_vector(t->role)) return t->format;
    /* A few rows, by which each token's decay and rate go. */
    if (t->role == TENSOR_DELTA_ALPHA || t->role == TENSOR_DELTA_BETA) return t->format;
    if (tensor_format_takes(format, t->rows, t->cols)) return format;
    format = of_smaller_blocks(format);
    return tensor_format_takes(format, t->rows, t->cols) ? format : t->format;
}

enum tensor_format mixture_format_at_load(const struct mixture *mixture, const struct model *model,
                                          const struct model_tensor *t)
{
    if (!tensor_format_is_plain(t->format)) return t->format;
    if (t->role == TENSOR_EMBED && !model->config.tied_head) return t->format;
    return mixture_format(mixture, model, t, false);
}

void mixture_lay_tensor(struct model *model, struct model_tensor *t, enum tensor_format format)
{
    model->weight_bytes -= t->bytes;
    t->format = format;
    t->bytes = tensor_format_bytes(format, t->rows, t->cols);
    model->weight_bytes += t->bytes;
}

void mixture_lay(struct model *model, const struct mixture *mixture)
{
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        struct model_tensor *t = &model->tensors[i];
        if (!arch_role_is_vector(t->role))
            mixture_lay_tensor(model, t, mixture_format_at_load(mixture, model, t));
    }
    model->laid = mixture;
}

int mixture_read_headers(const char *path, const char *name, struct model *model, struct helm_err *err)
{
    bool derived = false;
    const int rc = model_read_headers(path, model, &derived, err);
    if (!rc && mixture_named(name)) mixture_lay(model, mixture_named(name));
    return rc;
}
