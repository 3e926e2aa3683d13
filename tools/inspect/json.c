/* The report of helm-inspect as one JSON object for programs. See inspect.h. */
#include "common/model/arch.h"
#include "tools/inspect/inspect.h"

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *rope_json(const struct rope_config *rope)
{
    json_t *root = json_pack("{s:s, s:f, s:f}", "kind", rope_kind_name(rope->kind), "theta", rope->theta,
                             "factor", rope->factor);
    if (root && rope->kind == ROPE_LLAMA3) {
        json_object_set_new(root, "low_freq_factor", json_real(rope->low_freq_factor));
        json_object_set_new(root, "high_freq_factor", json_real(rope->high_freq_factor));
    }
    if (root && rope->kind == ROPE_YARN) {
        json_object_set_new(root, "beta_fast", json_real(rope->beta_fast));
        json_object_set_new(root, "beta_slow", json_real(rope->beta_slow));
        json_object_set_new(root, "attention_factor", json_real(rope->attention_factor));
        json_object_set_new(root, "truncate", json_boolean(rope->truncate));
    }
    if (root && rope->kind == ROPE_LONG)
        json_object_set_new(root, "attention_factor", json_real(rope->attention_factor));
    if (root && (rope->kind == ROPE_LLAMA3 || rope->kind == ROPE_YARN || rope->kind == ROPE_LONG))
        json_object_set_new(root, "original_context", number(rope->original_context));
    return root;
}

static json_t *experts_json(const struct model_config *config)
{
    json_t *layers = json_array();
    for (uint32_t i = 0; i < config->layers; i++)
        if (model_layer_sparse(config, i)) json_array_append_new(layers, number(i));
    return json_pack("{s:i, s:i, s:i, s:b, s:b, s:o, s:i, s:b}", "count", (int)config->router.experts,
                     "chosen", (int)config->router.chosen, "intermediate", (int)config->expert_intermediate,
                     "normalised", config->router.normalise, "bias", config->experts_bias, "layers", layers,
                     "shared_intermediate", (int)config->shared_intermediate, "shared_weighed",
                     config->shared_weighed);
}

static json_t *config_json(const struct model_config *config)
{
    json_t *windows = json_array(), *eos = json_array();
    for (uint32_t i = 0; i < config->layers; i++) json_array_append_new(windows, number(config->window[i]));
    for (uint32_t i = 0; i < config->eos_count; i++) json_array_append_new(eos, json_integer(config->eos[i]));
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:o, s:b, s:b, s:b, s:b, "
                     "s:b, s:b, s:o, "
                     "s:o, s:o}",
                     "architecture", config->architecture, "model_type", config->model_type, "dtype",
                     dtype_name(config->dtype), "layers", (int)config->layers, "hidden", (int)config->hidden,
                     "intermediate", (int)config->intermediate, "vocab", (int)config->vocab, "heads",
                     (int)config->heads, "kv_heads", (int)config->kv_heads, "head_dim", (int)config->head_dim,
                     "max_context", (int)config->max_context, "norm_eps", config->norm_eps, "rope",
                     rope_json(&config->rope[0]), "qk_norm", config->qk_norm, "sinks", config->sinks,
                     "qkv_bias", config->q_bias, "o_bias", config->o_bias, "mlp_bias", config->mlp_bias,
                     "tied_head", config->tied_head, "window", windows, "bos",
                     config->bos < 0 ? json_null() : json_integer(config->bos), "eos", eos);
}

static json_t *shape_json(enum tensor_role role, uint64_t rows, uint64_t cols)
{
    return arch_role_rank(role, false) == 1 ? json_pack("[o]", number(cols))
                                            : json_pack("[o, o]", number(rows), number(cols));
}

static json_t *roles_json(const struct model *model)
{
    struct inspect_role roles[TENSOR_ROLE_COUNT];
    uint32_t count = inspect_roles(model, roles);
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++)
        json_array_append_new(list,
                              json_pack("{s:s, s:i, s:o, s:s, s:o}", "name", arch_role_name(roles[i].role),
                                        "count", (int)roles[i].count, "shape",
                                        shape_json(roles[i].role, roles[i].rows, roles[i].cols), "dtype",
                                        roles[i].dtype, "bytes", number(roles[i].bytes)));
    return list;
}

static json_t *tensors_json(const struct model *model)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *t = &model->tensors[i];
        json_array_append_new(list,
                              json_pack("{s:s, s:o, s:s, s:o, s:o, s:s}", "name", t->name, "shape",
                                        shape_json(t->role, t->rows, t->cols), "dtype",
                                        tensor_format_name(t->format), "bytes", number(t->bytes), "offset",
                                        number(t->offset), "file", model->shards[t->shard].file));
    }
    return list;
}

static json_t *shards_json(const struct model *model)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < model->shard_count; i++)
        json_array_append_new(list, json_pack("{s:s, s:o}", "file", model->shards[i].file, "bytes",
                                              number(model->shards[i].bytes)));
    return list;
}

json_t *inspect_json(const struct inspect_report *report, bool tensors)
{
    const struct model_config *config = report->config;
    const struct model *model = report->model;
    json_t *root = json_pack("{s:s, s:b}", "folder", report->folder, "loads", model != NULL);
    if (!root) return NULL;
    if (config) {
        json_t *json = config_json(config);
        if (json && config->router.experts) json_object_set_new(json, "experts", experts_json(config));
        json_object_set_new(root, "config", json);
        json_object_set_new(
            root, "kv_bytes_per_token",
            json_pack("{s:o, s:o}", "bf16",
                      number(model_kv_bytes_per_token(config, model_paged_layers(config), KV_BF16)), "f32",
                      number(model_kv_bytes_per_token(config, model_paged_layers(config), KV_F32))));
    }
    if (report->gguf) json_object_set_new(root, "keys", inspect_gguf_json(report->gguf));
    if (model) {
        json_object_set_new(root, "weight_bytes", number(model->weight_bytes));
        json_object_set_new(root, "skipped_tensors", number(model->skipped_count));
        json_object_set_new(root, "skipped_bytes", number(model->skipped_bytes));
        json_object_set_new(root, "parameters", number(model->parameter_count));
        json_object_set_new(root, "shards", shards_json(model));
        json_object_set_new(root, "roles", roles_json(model));
        if (tensors) json_object_set_new(root, "tensors", tensors_json(model));
    } else {
        json_object_set_new(root, "error",
                            json_pack("{s:s, s:s}", "code", helm_code_name(report->problem->code), "text",
                                      report->problem->text));
    }
    return root;
}
