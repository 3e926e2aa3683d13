/* The registry of architectures, and tensors' names. See arch.h; each architecture is a file in arch/. */
#include "common/model/arch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/fused.h"

/* In the order of messages, a family a line. Mixtral is after Mistral: where GGUF files call several the
 * same, the last that a key tells is meant (gguf_config.c). */
static const struct arch *const archs[] = {
    &arch_llama,       &arch_mistral,     &arch_ministral3,                     /* arch/llama.c */
    &arch_qwen2,       &arch_qwen3,       &arch_qwen2_moe,     &arch_qwen3_moe, /* arch/qwen.c */
    &arch_dots1,                                                                /* arch/dots.c */
    &arch_mixtral,                                                              /* arch/mixtral.c */
    &arch_gpt_oss,                                                              /* arch/gpt_oss.c */
    &arch_qwen35,      &arch_qwen35_moe,  &arch_qwen3_next,                     /* arch/qwen35.c */
    &arch_phi3,                                                                 /* arch/phi3.c */
    &arch_opt,                                                                  /* arch/opt.c */
    &arch_granite,                                                              /* arch/granite.c */
    &arch_gemma3,      &arch_gemma4,                                            /* arch/gemma.c */
    &arch_minimax_m2,                                                           /* arch/minimax.c */
    &arch_glm4,        &arch_glm4_moe,                                          /* arch/glm.c */
    &arch_deepseek_v2, &arch_deepseek_v3, &arch_glm4_moe_lite,                  /* arch/deepseek.c */
    &arch_smollm3,                                                              /* arch/smollm3.c */
    &arch_seed_oss,                                                             /* arch/seed_oss.c */
    &arch_olmo2,       &arch_olmo3,                                             /* arch/olmo.c */
    &arch_state_test,                                                           /* arch/state_test.c */
};
#define ARCH_COUNT (sizeof archs / sizeof *archs)

const struct arch *arch_at(uint32_t index)
{
    return index < ARCH_COUNT ? archs[index] : NULL;
}

const struct arch *arch_find(const char *architecture, bool *outer)
{
    *outer = false;
    for (size_t i = 0; i < ARCH_COUNT; i++)
        if (strcmp(archs[i]->architecture, architecture) == 0) return archs[i];
    *outer = true;
    for (size_t i = 0; i < ARCH_COUNT; i++)
        for (int k = 0; k < ARCH_ALIASES && archs[i]->outer[k]; k++)
            if (strcmp(archs[i]->outer[k], architecture) == 0) return archs[i];
    return NULL;
}

const struct arch *arch_find_type(const char *model_type)
{
    for (size_t i = 0; i < ARCH_COUNT; i++)
        if (strcmp(archs[i]->model_type, model_type) == 0) return archs[i];
    return NULL;
}

const struct arch *arch_of(const struct model_config *config)
{
    for (size_t i = 0; i < ARCH_COUNT; i++)
        if (strcmp(archs[i]->architecture, config->architecture) == 0) return archs[i];
    fprintf(stderr, "a configuration names no architecture: '%s'\n", config->architecture);
    abort(); /* readers refuse unknown ones by name */
}

const char *arch_names(char *text, size_t size, bool gguf)
{
    const char *seen[ARCH_COUNT * ARCH_ALIASES];
    size_t used = 0, count = 0;
    text[0] = '\0';
    for (size_t i = 0; i < ARCH_COUNT; i++)
        for (int k = 0; k < ARCH_ALIASES; k++) {
            const char *name = gguf ? archs[i]->gguf[k] : k == 0 ? archs[i]->architecture : NULL;
            bool known = !name || archs[i]->for_tests;
            for (size_t j = 0; j < count && !known; j++) known = strcmp(seen[j], name) == 0;
            if (known || used >= size) continue;
            if (used + strlen(name) + sizeof ", , ..." > size) { /* and more than the text has room for */
                snprintf(text + used, size - used, ", ...");
                return text;
            }
            const int n = snprintf(text + used, size - used, "%s%s", count ? ", " : "", name);
            used += n > 0 ? (size_t)n : 0;
            seen[count++] = name;
        }
    return text;
}

/* ---- names ---- */

#define LAYER_PREFIX "model.layers."
#define GGUF_PREFIX  "blk."
/* Prefixes of names in checkpoints whose text model lies inside another, and of the model alone. */
static const struct {
    const char *from, *to;
} nested[] = {{"model.language_model.", "model."},
              {"language_model.model.", "model."},
              {"language_model.lm_head.", "lm_head."},
              {"model.decoder.", "model."}};

/* The name as a text model alone has it. */
static const char *plain_name(const char *name, bool gguf, char buffer[MODEL_NAME_MAX])
{
    for (size_t i = 0; i < sizeof nested / sizeof *nested && !gguf; i++) {
        const size_t length = strlen(nested[i].from);
        if (strncmp(name, nested[i].from, length) != 0) continue;
        snprintf(buffer, MODEL_NAME_MAX, "%s%.*s", nested[i].to, MODEL_NAME_MAX - 16, name + length);
        return buffer;
    }
    return name;
}

/* "model.layers.12.rest" -> 12 and "rest". Exactly the digits that would be printed: no sign, no leading
 * zero. */
static const char *split_layer(const char *name, const char *before, int32_t *layer)
{
    size_t prefix = strlen(before);
    if (strncmp(name, before, prefix) != 0) return NULL;
    const char *digits = name + prefix;
    size_t count = strspn(digits, "0123456789");
    if (count == 0 || count > 6 || digits[count] != '.' || (digits[0] == '0' && count > 1)) return NULL;
    *layer = (int32_t)strtol(digits, NULL, 10);
    return digits + count + 1;
}

const char *arch_layer_name(const char *name, bool gguf, int32_t *layer)
{
    return split_layer(name, gguf ? GGUF_PREFIX : LAYER_PREFIX, layer);
}

const char *arch_role_own_name(const struct arch *arch, enum tensor_role role, bool gguf)
{
    for (const struct arch_name *n = arch ? arch->names : NULL; n && n->role != TENSOR_NONE; n++) {
        const char *own = gguf ? n->gguf : n->name;
        if (n->role == role && own) return own;
    }
    return gguf ? arch_role_gguf_name(role) : arch_role_name(role);
}

/* Whether `text` is the pattern, with a star or, as it would be printed, a number where that has its star. */
static bool match_pattern(const char *pattern, const char *text, int32_t *expert)
{
    const char *star = strchr(pattern, '*');
    *expert = -1;
    if (!star || strcmp(pattern, text) == 0) return strcmp(pattern, text) == 0;
    const size_t before = (size_t)(star - pattern);
    if (strncmp(pattern, text, before) != 0) return false;
    const char *digits = text + before;
    const size_t count = strspn(digits, "0123456789");
    if (count == 0 || count > 6 || (digits[0] == '0' && count > 1)) return false;
    *expert = (int32_t)strtol(digits, NULL, 10);
    return strcmp(star + 1, digits + count) == 0;
}

bool arch_match(const struct arch *arch, const char *name, bool gguf, struct arch_match *what)
{
    char buffer[MODEL_NAME_MAX];
    int32_t number = -1;
    const char *whole = plain_name(name, gguf, buffer), *rest = arch_layer_name(whole, gguf, &number);
    for (int r = TENSOR_NONE + 1; r < TENSOR_ROLE_COUNT; r++) {
        const enum tensor_role role = (enum tensor_role)r;
        const char *tail = arch_role_per_layer(role) ? rest : whole;
        if (!tail || !match_pattern(arch_role_own_name(arch, role, gguf), tail, &what->expert)) continue;
        what->role = role;
        what->layer = arch_role_per_layer(role) ? number : -1;
        return true;
    }
    return false;
}

bool arch_match_name(const char *name, enum tensor_role *role, int32_t *layer)
{
    struct arch_match what;
    if (!arch_match(NULL, name, false, &what)) return false;
    *role = what.role;
    *layer = what.layer;
    return true;
}

const struct fused_tensor *arch_match_fused(const struct arch *arch, const char *name, bool gguf,
                                            int32_t *layer)
{
    char buffer[MODEL_NAME_MAX];
    const char *own = arch_layer_name(plain_name(name, gguf, buffer), gguf, layer);
    for (const struct fused_tensor *f = own ? arch->fused : NULL; f && f->roles; f++) {
        const char *fused = gguf ? f->gguf : f->name;
        if (fused && strcmp(fused, own) == 0) return f;
    }
    return NULL;
}

bool arch_is_rope_factors(const char *name)
{
    return strcmp(name, ARCH_ROPE_FACTORS) == 0 || strcmp(name, ARCH_ROPE_SHORT) == 0 ||
           strcmp(name, ARCH_ROPE_LONG) == 0;
}

bool arch_ignores_name(const char *name)
{
    static const char suffix[] = ".rotary_emb.inv_freq";
    size_t length = strlen(name), tail = sizeof suffix - 1;
    return length > tail && strcmp(name + length - tail, suffix) == 0;
}

/* Whether a layer's tensor (or its bias, or scales) is of keys or values. */
static bool makes_cache(const struct arch *arch, const char *own, bool gguf)
{
    static const enum tensor_role roles[] = {TENSOR_K, TENSOR_V, TENSOR_K_NORM};
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        const char *name = arch_role_own_name(arch, roles[i], gguf), *end = strrchr(name, '.');
        if (strncmp(own, name, (size_t)(end - name) + 1) == 0) return true;
    }
    return false;
}

const char *arch_draft_name(const struct model_config *config, const char *name, char buffer[MODEL_NAME_MAX])
{
    const struct arch_rename *r = config->drafts && !config->gguf ? arch_of(config)->draft_names : NULL;
    for (; r && r->from; r++) {
        const size_t length = strlen(r->from);
        if (strncmp(name, r->from, length) != 0) continue;
        snprintf(buffer, MODEL_NAME_MAX, LAYER_PREFIX "%u.%s%.*s", model_answer_layers(config), r->to,
                 MODEL_NAME_MAX - 64, name + length);
        return buffer;
    }
    return name;
}

/* A layer of drafts may have copies of the embedding and of the head: those of the model are used. */
static bool copies_end(const char *own)
{
    static const char *const copies[] = {"embed_tokens.", "shared_head.head.", "nextn.embed_tokens.",
                                         "nextn.shared_head_head."};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        if (strncmp(own, copies[i], strlen(copies[i])) == 0) return true;
    return false;
}

bool arch_skips_name(const struct model_config *config, const char *in_file)
{
    char buffer[MODEL_NAME_MAX], renamed[MODEL_NAME_MAX];
    const char *name = arch_draft_name(config, in_file, renamed);
    int32_t layer = -1;
    const struct arch *arch = arch_of(config);
    for (const char *const *begin = arch->skipped; begin && *begin; begin++)
        if (strncmp(name, *begin, strlen(*begin)) == 0) return true;
    const char *own = arch_layer_name(plain_name(name, config->gguf, buffer), config->gguf, &layer);
    if (own && layer >= 0 && model_reads_cache(config, (uint32_t)layer))
        return makes_cache(arch, own, config->gguf);
    if (own && config->drafts && layer == (int32_t)model_answer_layers(config)) return copies_end(own);
    return own && layer >= (int32_t)config->layers &&
           layer - (int32_t)config->layers < (int32_t)config->draft_layers;
}

/* ---- the names of a configuration's tensors ---- */

void model_tensor_name(const struct model_config *config, enum tensor_role role, int32_t layer,
                       char name[MODEL_NAME_MAX])
{
    const bool gguf = config && config->gguf;
    const char *own = arch_role_own_name(config ? arch_of(config) : NULL, role, gguf);
    if (arch_role_per_layer(role))
        snprintf(name, MODEL_NAME_MAX, "%s%d.%s", gguf ? GGUF_PREFIX : LAYER_PREFIX, layer, own);
    else
        snprintf(name, MODEL_NAME_MAX, "%s", own);
}

uint32_t model_tensor_parts(const struct model_config *config, enum tensor_role role)
{
    return strchr(arch_role_own_name(arch_of(config), role, config->gguf), '*') ? config->router.experts : 1;
}

void model_part_name(const struct model_config *config, enum tensor_role role, int32_t layer, uint32_t part,
                     char name[MODEL_NAME_MAX])
{
    char all[MODEL_NAME_MAX];
    model_tensor_name(config, role, layer, all);
    const char *star = strchr(all, '*');
    if (star)
        snprintf(name, MODEL_NAME_MAX, "%.*s%u%s", (int)(star - all), all, part, star + 1);
    else
        snprintf(name, MODEL_NAME_MAX, "%s", all);
}
