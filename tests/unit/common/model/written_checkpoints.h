/* Checkpoints that tests write, file by file. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "common/model/checkpoint.h"
#include "common/model/shards.h"
#include "tests/unit/common/model/build_checkpoint.h"

#define SHAPE                                                                                                \
    "\"hidden_size\": 8, \"intermediate_size\": 12, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,"   \
    "\"num_key_value_heads\": 1, \"head_dim\": 4, \"vocab_size\": 16, \"dtype\": \"bfloat16\""
#define QWEN3 "{\"architectures\": [\"Qwen3ForCausalLM\"], " SHAPE "}"

#define QWEN2 "{\"architectures\": [\"Qwen2ForCausalLM\"], \"tie_word_embeddings\": true, " SHAPE "}"

#define LLAMA                                                                                                \
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": true, \"mlp_bias\": true, " SHAPE "}"
#define QWEN3_MOE                                                                                            \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"num_experts\": 3, \"num_experts_per_tok\": 2,"         \
    "\"moe_intermediate_size\": 6, \"mlp_only_layers\": [0], " SHAPE "}"
#define MIXTRAL                                                                                              \
    "{\"architectures\": [\"MixtralForCausalLM\"], \"num_local_experts\": 3, \"num_experts_per_tok\": "      \
    "2, " SHAPE "}"
static const char *const one_file[] = {"model.safetensors"};

static const char *const two_files[] = {"model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};

/* Writes, reads and expects the error; an expected code of 0 also checks the model's invariants. */
static inline void expect(struct built *b, int code, const char *text)
{
    struct model model;
    struct helm_err err = {0};
    built_write(b);
    int rc = model_read(b->folder, &model, &err);
    if (rc != code || !strstr(err.text, text))
        fail_msg("code %d, text '%s'; expected %d, '%s'", rc, err.text, code, text);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < model.tensor_count; i++) {
        const struct model_tensor *t = &model.tensors[i];
        assert_ptr_equal(model_find(&model, t->role, t->layer), t);
        if (!t->piece_count && !t->stored) assert_true(t->offset + t->bytes <= model.shards[t->shard].bytes);
        assert_int_equal(t->bytes, tensor_format_bytes(t->format, t->rows, t->cols));
        if (i && !t->turn)
            assert_true(t[-1].shard < t->shard || (t[-1].shard == t->shard && t[-1].offset < t->offset));
        sum += t->bytes;
    }
    assert_int_equal(model.weight_bytes, sum);
    if (code) assert_null(model.tensors);
    if (code) assert_null(model.folder);
    model_free(&model);
    built_end(b);
}
