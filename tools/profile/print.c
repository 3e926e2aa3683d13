/* A profile for people. See profile_tool.h. Called by helm_profile.c; owns nothing. */

#include "common/base/units.h"
#include "tools/profile/profile_tool.h"

enum unit { UNIT_BYTES, UNIT_FLOPS, UNIT_SECONDS };

static void print_value(FILE *out, const char *name, const struct profile_value *v, enum unit unit,
                        const char *what)
{
    static const char *const text[] = {"GB/s", "GFLOP/s", "us"};
    static const double factor[] = {1e-9, 1e-9, 1e6};
    if (v->source == PROFILE_UNKNOWN) {
        fprintf(out, "  %-16s %31s  %-8s %s\n", name, "", "unknown", what);
        return;
    }
    fprintf(out, "  %-16s %10.5g (%8.4g - %8.4g) %-8s %-9s %s\n", name, v->value * factor[unit],
            v->low * factor[unit], v->high * factor[unit], text[unit], profile_source_name(v->source), what);
}

static void print_table(FILE *out, const char *name, const struct profile_table *table, enum unit unit,
                        const char *x, const char *what)
{
    for (uint32_t i = 0; i < table->count; i++) {
        char line[64];
        snprintf(line, sizeof line, "%-8.8s %4u %s", i ? "" : name, table->point[i].x, x);
        print_value(out, line, &table->point[i].y, unit, i ? "" : what);
    }
}

static void print_format(const struct profile *p, enum tensor_format format, FILE *out)
{
    const struct profile_format *f = &p->format[format];
    if (f->cpu_gemv.source == PROFILE_UNKNOWN && f->gpu_expand.source == PROFILE_UNKNOWN) return;
    fprintf(out, "Weights in %s, bytes as they are stored:\n", tensor_format_name(format));
    print_value(out, "cpu gemv", &f->cpu_gemv, UNIT_BYTES, "one token");
    if (p->gpu.device != PROFILE_DEVICE_NONE)
        print_value(out, "  beside", &f->cpu_gemv_beside, UNIT_BYTES, "while the link streams");
    print_table(out, "linear", &f->cpu_linear, UNIT_FLOPS, "tok", "of the CPU");
    if (f->cpu_int8_gemv.source != PROFILE_UNKNOWN) {
        print_value(out, "cpu gemv int8", &f->cpu_int8_gemv, UNIT_BYTES, "with activations rounded to int8");
        if (p->gpu.device != PROFILE_DEVICE_NONE)
            print_value(out, "  beside", &f->cpu_int8_gemv_beside, UNIT_BYTES, "while the link streams");
        print_table(out, "cpu linear int8", &f->cpu_int8_linear, UNIT_FLOPS, "tok", "by tokens");
    }
    if (p->gpu.device == PROFILE_DEVICE_NONE) return;
    print_value(out, "gpu gemv", &f->gpu_gemv, UNIT_BYTES, "one token");
    print_value(out, "  operation", &f->gpu_operation, UNIT_SECONDS, "a product beside its bytes");
    print_value(out, "chain gemv", &f->gpu_chain_gemv, UNIT_BYTES, "in one kernel with others");
    print_value(out, "  operation", &f->gpu_chain_operation, UNIT_SECONDS, "");
    print_table(out, "linear", &f->gpu_linear, UNIT_FLOPS, "tok", "of the GPU");
    print_table(out, "a product", &f->gpu_linear_operation, UNIT_SECONDS, "tok", "beside its work");
    print_value(out, "expand", &f->gpu_expand, UNIT_BYTES, "as 16 bits come out");
}

static void print_kv(const struct profile *p, enum kv_dtype dtype, FILE *out)
{
    const struct profile_kv *kv = &p->kv[dtype];
    if (kv->cpu_attention.source == PROFILE_UNKNOWN && kv->gpu_attention.source == PROFILE_UNKNOWN) return;
    fprintf(out, "KV cache of %s, bytes as they lie in memory:\n", kv_dtype_name(dtype));
    print_value(out, "cpu attention", &kv->cpu_attention, UNIT_BYTES, "one query");
    print_value(out, "  chunk", &kv->cpu_attention_flops, UNIT_FLOPS, "");
    if (p->gpu.device == PROFILE_DEVICE_NONE) return;
    print_value(out, "  for a GPU", &kv->cpu_attention_host, UNIT_BYTES, "in host memory, one query");
    print_value(out, "gpu attention", &kv->gpu_attention, UNIT_BYTES, "one query");
    print_value(out, "  chunk", &kv->gpu_attention_flops, UNIT_FLOPS, "");
    print_value(out, "  direct", &kv->gpu_attention_direct, UNIT_BYTES, "in host memory, one query");
    print_value(out, "chain attention", &kv->gpu_chain_attention, UNIT_BYTES, "");
    print_value(out, "  two heads", &kv->gpu_chain_attention_pair, UNIT_BYTES, "of a KV head");
}

void profile_print(const struct profile *p, FILE *out)
{
    const struct profile_cpu *cpu = &p->cpu;
    const struct profile_gpu *gpu = &p->gpu;
    const struct profile_link *link = &p->link;
    char size[UNITS_TEXT], available[UNITS_TEXT];
    fprintf(out, "%s\n", p->machine);
    fprintf(out, "profile of %s%s, fingerprint %s; median (10th - 90th percentile)\n", p->made,
            p->quick ? ", taken quickly" : "", p->fingerprint);
    if (p->busy_percent >= PROFILE_BUSY)
        fprintf(out,
                "other programs took %u %% of the processors' time meanwhile: forecasts have wider bands\n",
                p->busy_percent);
    fprintf(out, "CPU: %s, %u thread%s, last-level cache %s", cpu->name, cpu->threads,
            cpu->threads == 1 ? "" : "s", units_format_size(cpu->l3_bytes, size));
    if (cpu->weight_bytes)
        fprintf(out, ", measured with %s of weights", units_format_size(cpu->weight_bytes, size));
    fputc('\n', out);
    print_table(out, "read", &cpu->read, UNIT_BYTES, "thr", "plain reads, by threads");
    if (gpu->device != PROFILE_DEVICE_NONE)
        print_value(out, "read beside", &cpu->read_beside, UNIT_BYTES, "all threads, while the link streams");
    print_value(out, "gemv", &cpu->gemv, UNIT_BYTES, "weights, one token");
    if (gpu->device != PROFILE_DEVICE_NONE)
        print_value(out, "gemv beside", &cpu->gemv_beside, UNIT_BYTES, "while the link streams");
    print_value(out, "gemv packed", &cpu->gemv_packed, UNIT_BYTES,
                "the same, of weights that lie there packed");
    if (gpu->device != PROFILE_DEVICE_NONE)
        print_value(out, "  beside", &cpu->gemv_packed_beside, UNIT_BYTES, "while the link streams");
    print_table(out, "linear", &cpu->linear, UNIT_FLOPS, "tok", "by tokens");
    print_value(out, "attention", &cpu->attention, UNIT_BYTES, "KV cache, one query");
    print_value(out, "attention chunk", &cpu->attention_flops, UNIT_FLOPS, "");
    if (gpu->device != PROFILE_DEVICE_NONE)
        print_value(out, "for a GPU", &cpu->attention_host, UNIT_BYTES, "KV cache in host memory, one query");
    print_value(out, "operation", &cpu->operation, UNIT_SECONDS, "beside its bytes");
    if (gpu->device != PROFILE_DEVICE_NONE) {
        fprintf(out, "GPU: %s%s%s, %s, %s free\n", gpu->name, gpu->compute[0] ? ", compute capability " : "",
                gpu->compute, units_format_size(gpu->vram_bytes, size),
                units_format_size(gpu->vram_free, available));
        print_value(out, "read", &gpu->read, UNIT_BYTES, "VRAM");
        print_value(out, "gemv", &gpu->gemv, UNIT_BYTES, "weights, one token");
        print_table(out, "linear", &gpu->linear, UNIT_FLOPS, "tok", "by tokens");
        print_table(out, "a product", &gpu->linear_operation, UNIT_SECONDS, "tok", "beside its work");
        print_value(out, "attention", &gpu->attention, UNIT_BYTES, "KV cache, one query");
        print_value(out, "  direct", &gpu->attention_direct, UNIT_BYTES, "of it in host memory");
        print_value(out, "attention chunk", &gpu->attention_flops, UNIT_FLOPS, "");
        print_table(out, "  by rows", &gpu->attention_rows, UNIT_FLOPS, "row", "queries x heads");
        print_value(out, "operation", &gpu->operation, UNIT_SECONDS, "a kernel in a graph");
        print_value(out, "launch", &gpu->launch, UNIT_SECONDS, "a kernel outside of one");
        print_value(out, "begin", &gpu->begin, UNIT_SECONDS, "a chunk with nothing to do, there and back");
        print_value(out, "  captured", &gpu->begin_graph, UNIT_SECONDS, "a step of one token like that");
        print_value(out, "expand", &gpu->expand, UNIT_BYTES, "packed weights, as they come out");
        print_value(out, "gemv packed", &gpu->gemv_packed, UNIT_BYTES, "one token's products, as if plain");
        print_value(out, "chain gemv", &gpu->chain_gemv, UNIT_BYTES, "one token's operations in one kernel");
        print_value(out, "chain attention", &gpu->chain_attention, UNIT_BYTES, "");
        print_value(out, "  two heads", &gpu->chain_attention_pair, UNIT_BYTES, "of a KV head");
        print_value(out, "chain operation", &gpu->chain_operation, UNIT_SECONDS, "beside its bytes");
        fprintf(out, "Link:");
        if (link->generation) fprintf(out, " PCIe %u x%u", link->generation, link->width);
        fputc('\n', out);
        print_value(out, "to the device", &link->h2d, UNIT_BYTES, "");
        print_value(out, "  beside CPU", &link->h2d_beside, UNIT_BYTES, "while the CPU computes");
        print_value(out, "  beside reads", &link->h2d_beside_read, UNIT_BYTES, "while it reads");
        print_value(out, "  beside packed", &link->h2d_beside_packed, UNIT_BYTES,
                    "while it does with packed weights");
        print_value(out, "from the device", &link->d2h, UNIT_BYTES, "");
        print_value(out, "direct", &link->direct, UNIT_BYTES, "kernels that read host memory");
        print_value(out, "latency", &link->latency, UNIT_SECONDS, "of a small copy");
        print_value(out, "hand-over", &link->hand_over, UNIT_SECONDS, "activations, one way");
        print_value(out, "  beside", &link->hand_over_beside, UNIT_SECONDS, "while copies flow");
    }
    for (int f = 0; f < FORMAT_COUNT; f++) print_format(p, (enum tensor_format)f, out);
    for (int d = 0; d < KV_DTYPE_COUNT; d++) print_kv(p, (enum kv_dtype)d, out);
    fprintf(out, "Rest:\n");
    print_value(out, "wake", &p->wake, UNIT_SECONDS, "from a ring until a sleeper is there");
    print_value(out, "step", &p->step, UNIT_SECONDS, "doorbells and the engine, once a step");
}
