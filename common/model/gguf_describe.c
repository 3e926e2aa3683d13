/* A configuration as the key/values of a GGUF file: the other way round from gguf_config.c. See gguf_write.h.
 *
 * The architecture's table says which keys there are. The written values are read again and compared, so that
 * nothing is written that a reader would take otherwise. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/arch.h"
#include "common/model/fused.h"
#include "common/model/checkpoint.h"
#include "common/model/gguf_write.h"
#include "common/model/keys.h"

/* The version of GGUF's blocks since 2023; llama.cpp asks for it. */
#define QUANTIZATION_VERSION 2

struct describing {
    struct gguf_values *values;
    const struct arch *arch;
    char key[GGUF_KEY_MAX];
};

static const char *key_of(struct describing *d, const char *name)
{
    snprintf(d->key, sizeof d->key, "%s.%s", d->arch->gguf[0], name);
    return d->key;
}

static bool named_before(const struct arch *arch, const struct arch_key *row)
{
    for (const struct arch_key *other = arch->keys; other != row; other++)
        if (other->gguf[0] && strcmp(other->gguf[0], row->gguf[0]) == 0) return true;
    return false;
}

static void put_key(struct describing *d, const struct model_config *c, const struct arch_key *row)
{
    const char *from = (const char *)c + row->at;
    uint32_t number = 0;
    double real = 0;
    float single = 0;
    switch (row->kind) {
    case KEY_U32:
        memcpy(&number, from, sizeof number);
        if (row->at == offsetof(struct model_config, draft_layers))
            number = 0; /* their tensors are skipped */
        if (number) gguf_put_u32(d->values, key_of(d, row->gguf[0]), number);
        break;
    case KEY_DOUBLE:
        memcpy(&real, from, sizeof real);
        gguf_put_f32(d->values, key_of(d, row->gguf[0]), (float)real);
        break;
    case KEY_FLOAT:
        memcpy(&single, from, sizeof single);
        gguf_put_f32(d->values, key_of(d, row->gguf[0]), single);
        break;
    case KEY_BOOL:
        gguf_put_bool(d->values, key_of(d, row->gguf[0]), *(const bool *)from);
        break;
    case KEY_FIXED:
        gguf_put_u32(d->values, key_of(d, row->gguf[0]), (uint32_t)row->neutral);
        break;
    case KEY_WORD:
    case KEY_NONE:
        break;
    }
}

/* Llama 3's scaling is a tensor of the file (ARCH_ROPE_FACTORS). */
static void put_rope(struct describing *d, const struct model_config *c)
{
    const struct rope_config *rope = &c->rope[0];
    gguf_put_f32(d->values, key_of(d, "rope.freq_base"), (float)rope->theta);
    if (!keys_reads_gguf(d->arch, "rope.dimension_count"))
        gguf_put_u32(d->values, key_of(d, "rope.dimension_count"), c->head_dim);
    if (rope->kind != ROPE_LINEAR && rope->kind != ROPE_YARN) return;
    gguf_put_text(d->values, key_of(d, "rope.scaling.type"), rope->kind == ROPE_YARN ? "yarn" : "linear");
    gguf_put_f32(d->values, key_of(d, "rope.scaling.factor"), (float)rope->factor);
    if (rope->kind == ROPE_LINEAR) return;
    gguf_put_u32(d->values, key_of(d, "rope.scaling.original_context_length"), rope->original_context);
    gguf_put_f32(d->values, key_of(d, "rope.scaling.yarn_beta_fast"), (float)rope->beta_fast);
    gguf_put_f32(d->values, key_of(d, "rope.scaling.yarn_beta_slow"), (float)rope->beta_slow);
    if (rope->attention_factor == 1 && keys_reads_gguf(d->arch, "rope.scaling.yarn_log_multiplier"))
        gguf_put_f32(d->values, key_of(d, "rope.scaling.yarn_log_multiplier"), 1);
}

/* ---- reading it again ---- */

/* The configuration that a reader makes of the keys. */
static int read_again(const struct gguf_values *values, struct model_config *back, struct helm_err *err)
{
    const uint32_t version = 3;
    const uint64_t tensors = 0, length = 24 + values->length;
    struct gguf header;
    bool more = false;
    memset(back, 0, sizeof *back);
    uint8_t *bytes = malloc(length + GGUF_ALIGNMENT);
    if (!bytes) return helm_fail(err, HELM_E_NOMEM, "no memory for key/values");
    memcpy(bytes, "GGUF", 4);
    memcpy(bytes + 4, &version, 4);
    memcpy(bytes + 8, &tensors, 8);
    memcpy(bytes + 16, &values->count, 8);
    memcpy(bytes + 24, values->bytes, values->length);
    memset(bytes + length, 0, GGUF_ALIGNMENT);
    const uint64_t whole = (length + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
    const struct gguf_source source = {
        .what = "keys", .bytes = bytes, .length = whole, .file_bytes = whole, .headers = true};
    int rc = gguf_parse(&source, &header, &more, err);
    if (!rc) rc = gguf_config_keys(&header, back, err);
    gguf_free(&header);
    free(bytes);
    return rc;
}

static bool same_layers(const struct model_config *a, const struct model_config *b, bool windows)
{
    if (a->layers != b->layers) return false;
    for (uint32_t l = 0; l < a->layers; l++)
        if (windows ? (a->window ? a->window[l] : 0) != (b->window ? b->window[l] : 0)
                    : model_layer_sparse(a, l) != model_layer_sparse(b, l))
            return false;
    return true;
}

static int compare(const struct model_config *c, const struct model_config *back, struct helm_err *err)
{
    const struct rope_config *rope = &c->rope[0];
    if (c->latent.rank)
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "%s: no GGUF file of latent attention is written (helmd --weights quantises at load)",
            c->architecture);
    for (const struct fused_tensor *f = arch_of(c)->fused; f && f->roles; f++)
        if (f->part == FUSED_ROWS && f->gguf)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "%s: GGUF files hold %u matrices in '%s', which is not written (helmd --weights "
                             "quantises at load)",
                             c->architecture, f->roles, f->gguf);
    if (model_ropes(c) > 1 &&
        (c->attention_scale != back->attention_scale || c->rope[1].kind != back->rope[1].kind ||
         (float)c->rope[1].theta != (float)back->rope[1].theta))
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "%s with scores divided by the root of %g, or another RoPE in windows: no GGUF key says that",
            c->architecture, c->attention_scale);
    if (rope->kind == ROPE_LONG)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "%s with RoPE type 'longrope': no GGUF file of it is written", c->architecture);
    if (!same_layers(c, back, true))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "%s with a sliding window in some layers: no GGUF key says that", c->architecture);
    if (!same_layers(c, back, false))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "%s with dense layers among sparse ones: no GGUF key says that", c->architecture);
    if (c->router.experts && c->router.normalise != back->router.normalise)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "%s with experts' weights that are %snormalised: no GGUF key says that",
                         c->architecture, c->router.normalise ? "" : "not ");
    if (rope->kind == ROPE_YARN && (fabs(rope->attention_factor - back->rope[0].attention_factor) > 1e-6 ||
                                    rope->truncate != back->rope[0].truncate))
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "YaRN with an attention factor of its own (%g), or 'truncate' %s: no GGUF key says that",
            rope->attention_factor, rope->truncate ? "true" : "false");
    return 0;
}

int gguf_put_config(struct gguf_values *values, const struct model_config *c, bool *interleaved,
                    struct helm_err *err)
{
    struct describing d = {.values = values, .arch = arch_of(c)};
    struct gguf_values own = {0};
    struct model_config back;
    if (!d.arch->gguf[0])
        return helm_fail(err, HELM_E_UNSUPPORTED, "architecture '%s' has no name in GGUF files",
                         c->architecture);
    *interleaved = d.arch->gguf_interleaved;
    d.values = &own;
    gguf_put_text(&own, "general.architecture", d.arch->gguf[0]);
    gguf_put_u32(&own, key_of(&d, "vocab_size"), c->vocab);
    gguf_put_u32(&own, key_of(&d, "attention.value_length"), c->head_dim);
    for (const struct arch_key *row = d.arch->keys; row->kind; row++)
        if (row->gguf[0] && !named_before(d.arch, row)) put_key(&d, c, row);
    put_rope(&d, c);
    int rc = own.failed ? helm_fail(err, HELM_E_NOMEM, "no memory for key/values") : 0;
    if (!rc) rc = read_again(&own, &back, err);
    if (!rc) {
        rc = compare(c, &back, err);
        model_config_free(&back);
    }
    if (!rc) gguf_put_values(values, &own);
    gguf_values_free(&own);
    return rc;
}

void gguf_put_mixture(struct gguf_values *values, const struct mixture *mixture)
{
    gguf_put_u32(values, "general.file_type", mixture_file_type(mixture));
    gguf_put_u32(values, "general.quantization_version", QUANTIZATION_VERSION);
}
