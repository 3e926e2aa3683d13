/* Models in GGUF files, made in memory by a recipe, written, and read as models: what the tests of
 * gguf_model.c begin with. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/model.h"
#include "tests/unit/common/base/tree.h"
#include "tests/unit/common/model/build_gguf.h"

#define HIDDEN 64
#define HEADS  4
#define VOCAB  96
#define INNER  32

/* A made model's parts besides those that every one has. */
struct recipe {
    const char *arch;
    void (*keys)(struct built *b, const char *arch); /* more of them; NULL: none */
    uint32_t key_count;
    bool tied, biases, factors;
    const char *leave_out, *add;    /* a tensor */
    uint32_t kv_heads;              /* 0: 2 */
    uint32_t experts, expert_inner; /* its MLP is a mixture; 0: it is none */
    uint32_t shared, share_rank;    /* with a shared expert; its weight's vector, 0: it has none */
    bool qk_norm, choice_bias;
};

static struct built built;
static uint64_t tensor_count, data_bytes;
static struct built infos;

static void add_tensor(const struct recipe *r, const char *name, uint64_t cols, uint64_t rows)
{
    if (r->leave_out && strcmp(r->leave_out, name) == 0) return;
    put_tensor(&infos, name, cols, rows, 0, data_bytes);
    data_bytes += (cols * (rows ? rows : 1) * 4 + 31) / 32 * 32;
    tensor_count++;
}

/* [experts][rows][cols] */
static void add_experts(const struct recipe *r, const char *name, uint64_t cols, uint64_t rows)
{
    put_string(&infos, name);
    put(&infos, 3, 4);
    put(&infos, cols, 8);
    put(&infos, rows, 8);
    put(&infos, r->experts, 8);
    put(&infos, 0, 4);
    put(&infos, data_bytes, 8);
    data_bytes += (r->experts * cols * rows * 4 + 31) / 32 * 32;
    tensor_count++;
}

static void key(char text[128], const char *arch, const char *name)
{
    snprintf(text, 128, "%s.%s", arch, name);
}
static void arch_u32(struct built *b, const char *arch, const char *name, uint32_t number)
{
    char text[128];
    key(text, arch, name);
    put_u32(b, text, number);
}
static void arch_f32(struct built *b, const char *arch, const char *name, float number)
{
    char text[128];
    key(text, arch, name);
    put_f32(b, text, number);
}

static void make_file(const struct recipe *r, struct built *b)
{
    const uint32_t kv_heads = r->kv_heads ? r->kv_heads : 2;
    infos.length = tensor_count = data_bytes = 0;
    add_tensor(r, "token_embd.weight", HIDDEN, VOCAB);
    if (r->factors) add_tensor(r, "rope_freqs.weight", HIDDEN / HEADS / 2, 0);
    add_tensor(r, "output_norm.weight", HIDDEN, 0);
    if (!r->tied) add_tensor(r, "output.weight", HIDDEN, VOCAB);
    add_tensor(r, "blk.0.attn_norm.weight", HIDDEN, 0);
    add_tensor(r, "blk.0.attn_q.weight", HIDDEN, HIDDEN);
    add_tensor(r, "blk.0.attn_k.weight", HIDDEN, kv_heads * HIDDEN / HEADS);
    add_tensor(r, "blk.0.attn_v.weight", HIDDEN, kv_heads * HIDDEN / HEADS);
    add_tensor(r, "blk.0.attn_output.weight", HIDDEN, HIDDEN);
    if (r->biases) {
        add_tensor(r, "blk.0.attn_q.bias", HIDDEN, 0);
        add_tensor(r, "blk.0.attn_k.bias", kv_heads * HIDDEN / HEADS, 0);
        add_tensor(r, "blk.0.attn_v.bias", kv_heads * HIDDEN / HEADS, 0);
    }
    if (r->qk_norm) {
        add_tensor(r, "blk.0.attn_q_norm.weight", HIDDEN / HEADS, 0);
        add_tensor(r, "blk.0.attn_k_norm.weight", HIDDEN / HEADS, 0);
    }
    add_tensor(r, "blk.0.ffn_norm.weight", HIDDEN, 0);
    if (r->shared) {
        add_tensor(r, "blk.0.ffn_gate_shexp.weight", HIDDEN, r->shared);
        add_tensor(r, "blk.0.ffn_up_shexp.weight", HIDDEN, r->shared);
        add_tensor(r, "blk.0.ffn_down_shexp.weight", r->shared, HIDDEN);
    }
    if (r->share_rank) add_tensor(r, "blk.0.ffn_gate_inp_shexp.weight", HIDDEN, r->share_rank - 1);
    if (r->choice_bias) add_tensor(r, "blk.0.exp_probs_b.bias", r->experts, 0);
    if (r->experts) {
        add_tensor(r, "blk.0.ffn_gate_inp.weight", HIDDEN, r->experts);
        add_experts(r, "blk.0.ffn_gate_exps.weight", HIDDEN, r->expert_inner);
        add_experts(r, "blk.0.ffn_up_exps.weight", HIDDEN, r->expert_inner);
        add_experts(r, "blk.0.ffn_down_exps.weight", r->expert_inner, HIDDEN);
    } else {
        add_tensor(r, "blk.0.ffn_gate.weight", HIDDEN, INNER);
        add_tensor(r, "blk.0.ffn_up.weight", HIDDEN, INNER);
        add_tensor(r, "blk.0.ffn_down.weight", INNER, HIDDEN);
    }
    if (r->add) add_tensor(r, r->add, HIDDEN, 0);
    put_start(b, tensor_count, 8 + r->key_count);
    put_text(b, "general.architecture", r->arch);
    arch_u32(b, r->arch, "block_count", 1);
    arch_u32(b, r->arch, "embedding_length", HIDDEN);
    arch_u32(b, r->arch, "feed_forward_length", INNER);
    arch_u32(b, r->arch, "attention.head_count", HEADS);
    arch_u32(b, r->arch, "attention.head_count_kv", kv_heads);
    arch_u32(b, r->arch, "context_length", 512);
    arch_f32(b, r->arch, "attention.layer_norm_rms_epsilon", 1e-5f);
    if (r->keys) r->keys(b, r->arch);
    memcpy(b->bytes + b->length, infos.bytes, infos.length);
    b->length += infos.length;
    while (b->length % 32) put(b, 0, 1);
}

/* The header, then data_bytes bytes that are all 1.0f. */
static void write_file(const char *folder, const char *name, const struct built *b)
{
    char path[TREE_PATH + 64];
    const float one = 1;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(b->bytes, 1, b->length, file), b->length);
    for (uint64_t i = 0; i < data_bytes; i += 4) assert_int_equal(fwrite(&one, 1, 4, file), 4);
    assert_int_equal(fclose(file), 0);
}

static int read_recipe(const struct recipe *r, struct model *model, struct helm_err *err)
{
    char folder[TREE_PATH], path[TREE_PATH + 16];
    tree_make(folder);
    make_file(r, &built);
    write_file(folder, "m.gguf", &built);
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    int rc = model_read(path, model, err);
    tree_remove(folder);
    return rc;
}

static void accept(const struct recipe *r, struct model *model)
{
    struct helm_err err = {0};
    if (read_recipe(r, model, &err)) fail_msg("%s", err.text);
}

static void refuse(const struct recipe *r, int code, const char *text)
{
    struct model model;
    struct helm_err err = {0};
    int rc = read_recipe(r, &model, &err);
    if (rc != code || !strstr(err.text, text)) fail_msg("'%s': %d, \"%s\"", text, rc, err.text);
    assert_null(model.folder);
    assert_null(model.tensors);
}

/* More key/values of a recipe. */
#define KEYS(name, body)                                                                                     \
    static void name(struct built *b, const char *arch)                                                      \
    {                                                                                                        \
        (void)b, (void)arch;                                                                                 \
        body;                                                                                                \
    }
