/* The report of helm-inspect as text for people. See inspect.h. */
#include <string.h>

#include "common/model/arch.h"
#include "common/base/units.h"
#include "tools/inspect/inspect.h"

uint32_t inspect_roles(const struct model *model, struct inspect_role *roles)
{
    struct inspect_role all[TENSOR_ROLE_COUNT] = {0};
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *tensor = &model->tensors[i];
        struct inspect_role *role = &all[tensor->role];
        const char *dtype = tensor_format_name(tensor->format);
        role->dtype = role->count && strcmp(role->dtype, dtype) != 0 ? "mixed" : dtype;
        role->rows = tensor->rows;
        role->cols = tensor->cols;
        role->bytes += tensor->bytes;
        role->count++;
    }
    uint32_t used = 0;
    for (int r = 0; r < TENSOR_ROLE_COUNT; r++) {
        if (!all[r].count) continue;
        roles[used] = all[r];
        roles[used++].role = (enum tensor_role)r;
    }
    return used;
}

static void print_shape(FILE *out, enum tensor_role role, uint64_t rows, uint64_t cols)
{
    char text[48];
    if (arch_role_rank(role, false) == 1)
        snprintf(text, sizeof text, "%llu", (unsigned long long)cols);
    else
        snprintf(text, sizeof text, "%llu x %llu", (unsigned long long)rows, (unsigned long long)cols);
    fprintf(out, "  %-16s", text);
}

static void print_rope(const struct rope_config *rope, FILE *out)
{
    fprintf(out, "rope           %s, theta %g", rope_kind_name(rope->kind), rope->theta);
    if (rope->dims) fprintf(out, ", %u of each head", rope->dims);
    if (rope->kind == ROPE_PART)
        fprintf(out, ", %g of the pairs turn", rope->part);
    else if (rope->kind != ROPE_DEFAULT && rope->kind != ROPE_FACTORS)
        fprintf(out, ", factor %g", rope->factor);
    if (rope->kind == ROPE_LLAMA3)
        fprintf(out, ", low %g, high %g", rope->low_freq_factor, rope->high_freq_factor);
    if (rope->kind == ROPE_YARN)
        fprintf(out, ", beta %g to %g, attention factor %g", rope->beta_fast, rope->beta_slow,
                rope->attention_factor);
    if (rope->kind == ROPE_LONG) fprintf(out, ", attention factor %g", rope->attention_factor);
    if (rope->kind == ROPE_LLAMA3 || rope->kind == ROPE_YARN || rope->kind == ROPE_LONG)
        fprintf(out, ", trained on %u tokens", rope->original_context);
    fputc('\n', out);
}

/* Gated delta nets: their heads, and what they keep of a sequence whatever its length. */
static void print_delta(const struct model_config *config, FILE *out)
{
    const struct model_delta *d = &config->delta;
    char bytes[UNITS_TEXT];
    uint32_t layers = 0;
    for (uint32_t i = 0; config->recurrent && i < config->layers; i++) layers += config->recurrent[i];
    if (layers == 0) return;
    fprintf(
        out,
        "delta nets     in %u of %u layers, %u heads of %u over %u of %u; a state of %s in each sequence\n",
        layers, config->layers, d->value_heads, d->value_dim, d->key_heads, d->key_dim,
        units_format_size(layers * model_delta_bytes(d), bytes));
}

static void print_window(const struct model_config *config, FILE *out)
{
    uint32_t sliding = 0, window = 0;
    for (uint32_t i = 0; i < config->layers; i++) {
        if (!config->window[i]) continue;
        sliding++;
        window = config->window[i];
    }
    fprintf(out, "context        %u tokens, ", config->max_context);
    if (!sliding)
        fprintf(out, "full attention in %s\n", config->recurrent ? "the other layers" : "every layer");
    else
        fprintf(out, "a window of %u in %u of %u layers\n", window, sliding, config->layers);
}

static void print_biases(const struct model_config *config, FILE *out)
{
    const char *const of[] = {config->o_bias   ? "q, k, v, o"
                              : config->q_bias ? "q, k, v"
                                               : NULL,
                              config->mlp_bias ? "mlp" : NULL,
                              config->experts_bias ? "router, experts" : NULL};
    const char *before = "";
    fprintf(out, "biases         ");
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        if (!of[i]) continue;
        fprintf(out, "%s%s", before, of[i]);
        before = ", ";
    }
    fprintf(out, "%s\n", *before ? "" : "none");
}

static void print_config(const struct model_config *config, FILE *out)
{
    char bf16[UNITS_TEXT], f32[UNITS_TEXT], full[UNITS_TEXT];
    uint64_t kv = model_kv_bytes_per_token(config, model_paged_layers(config), KV_BF16);
    fprintf(out, "architecture   %s (%s), %s\n", config->architecture, config->model_type,
            dtype_name(config->dtype));
    fprintf(out, "shape          %u layers, hidden %u, intermediate %u, vocabulary %u\n", config->layers,
            config->hidden, config->intermediate, config->vocab);
    if (config->router.experts) {
        uint32_t sparse = 0;
        for (uint32_t i = 0; i < config->layers; i++) sparse += model_layer_sparse(config, i);
        fprintf(out, "experts        %u of %u, %u a token, in %u of %u layers", config->router.experts,
                config->expert_intermediate, config->router.chosen, sparse, config->layers);
        if (config->shared_intermediate)
            fprintf(out, "; a shared one of %u%s", config->shared_intermediate,
                    config->shared_weighed ? " with a weight" : "");
        fputc('\n', out);
    }
    fprintf(out, "attention      %u heads over %u KV heads of %u%s%s\n", config->heads, config->kv_heads,
            config->head_dim, config->qk_norm ? ", norms on q and k" : "", config->sinks ? ", sinks" : "");
    print_delta(config, out);
    print_biases(config, out);
    print_rope(&config->rope[0], out);
    print_window(config, out);
    fprintf(out, "head           %s\n", config->tied_head ? "tied to the embedding" : "its own");
    fprintf(out, "special ids    bos ");
    if (config->bos < 0)
        fprintf(out, "none");
    else
        fprintf(out, "%d", config->bos);
    fprintf(out, ", eos %s", config->eos_count ? "" : "none");
    for (uint32_t i = 0; i < config->eos_count; i++) fprintf(out, "%s%d", i ? " " : "", config->eos[i]);
    fprintf(out, "\nKV cache       %s a token in 16 bits, %s in fp32; %s for the whole context in 16 bits\n",
            units_format_size(kv, bf16), units_format_size(2 * kv, f32),
            units_format_size(kv * config->max_context, full));
}

static void print_tables(const struct model *model, bool tensors, FILE *out)
{
    struct inspect_role roles[TENSOR_ROLE_COUNT];
    char size[UNITS_TEXT];
    uint32_t count = inspect_roles(model, roles);
    fprintf(out, "\n%-34s  %7s  %-16s  %-5s  %12s  %6s\n", "tensors by role", "count", "shape", "dtype",
            "bytes", "share");
    for (uint32_t i = 0; i < count; i++) {
        fprintf(out, "%-34s  %7u", arch_role_name(roles[i].role), roles[i].count);
        print_shape(out, roles[i].role, roles[i].rows, roles[i].cols);
        fprintf(out, "  %-5s  %12s  %5.1f%%\n", roles[i].dtype, units_format_size(roles[i].bytes, size),
                100.0 * (double)roles[i].bytes / (double)model->weight_bytes);
    }
    fprintf(out, "%-34s  %7u  %-16s  %-5s  %12s\n", "total", model->tensor_count, "", "",
            units_format_size(model->weight_bytes, size));
    fprintf(out, "\n%.3f billion parameters, %llu bytes in %u file%s\n", (double)model->parameter_count / 1e9,
            (unsigned long long)model->weight_bytes, model->shard_count, model->shard_count == 1 ? "" : "s");
    if (model->skipped_count)
        fprintf(out, "%u more tensors (%s) are not read: nothing here computes with them, as with '%s'\n",
                model->skipped_count, units_format_size(model->skipped_bytes, size), model->skipped);
    if (!tensors) return;
    fprintf(out, "\n%-50s  %-16s  %-5s  %14s  %16s  file\n", "tensor", "shape", "dtype", "bytes", "offset");
    for (uint32_t i = 0; i < model->tensor_count; i++) {
        const struct model_tensor *tensor = &model->tensors[i];
        fprintf(out, "%-50s", tensor->name);
        print_shape(out, tensor->role, tensor->rows, tensor->cols);
        fprintf(out, "  %-5s  %14llu  %16llu  %s\n", tensor_format_name(tensor->format),
                (unsigned long long)tensor->bytes, (unsigned long long)tensor->offset,
                model->shards[tensor->shard].file);
    }
}

void inspect_print(const struct inspect_report *report, bool tensors, FILE *out)
{
    fprintf(out, "%-14s %s\n", report->gguf ? "file" : "folder", report->folder);
    if (report->config) print_config(report->config, out);
    if (report->gguf) inspect_print_gguf(report->gguf, tensors && !report->model, out);
    if (report->model) print_tables(report->model, tensors, out);
    if (report->model)
        fprintf(out, "\nloads          yes\n");
    else
        fprintf(out, "\nloads          no (%s): %s\n", helm_code_name(report->problem->code),
                report->problem->text);
}
