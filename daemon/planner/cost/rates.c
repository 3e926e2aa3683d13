/* A profile's rates for steps of one size; where packed weights are worth it. See cost/rates.h and cost.h;
 * docs/planner-prices.md has what each rate stands for. */
#include "daemon/planner/cost/rates.h"
#include "daemon/planner/profile/policy.h"

#include <math.h>

uint32_t cost_rates_as_few(const struct pricing *p)
{
    if (!p->step->invariant || p->tier != OP_TIER_FEW || p->profile->gpu.device != PROFILE_DEVICE_CUDA)
        return 0;
    return p->step->tokens <= GPU_STEADY_FEW ? GPU_STEADY_FEW : ENGINE_FEW_TOKENS;
}

static int require(double rate, const char *name, struct helm_err *err)
{
    if (rate > 0) return 0;
    return helm_fail(err, HELM_E_FORMAT, "the profile lacks %s: a step cannot be priced without it", name);
}

/* Rates for the step's type of cache; all 0 for f16, whose rates are the profile's own, and for unmeasured
 * types. */
static const struct profile_kv *kv_of(const struct pricing *p)
{
    return &p->profile->kv[p->step->kv_dtype];
}

double cost_attention_host(const struct profile *profile, enum kv_dtype kv_dtype)
{
    const struct profile_cpu *cpu = &profile->cpu;
    const struct profile_kv *kv = &profile->kv[kv_dtype];
    if (kv->cpu_attention.value > 0) return rate_or(&kv->cpu_attention_host, kv->cpu_attention.value);
    return rate_or(&cpu->attention_host, cpu->attention.value);
}

/* A table of bf16 is bounded by the bytes of bf16 before its peak, which is arithmetic's. Where there are
 * fewer bytes, as many operations a second more are done, up to the peak. */
static double peak_of(const struct profile_table *plain, uint32_t tokens)
{
    double peak = profile_table_at(plain, tokens).value;
    for (uint32_t i = 0; i < plain->count; i++)
        if (plain->point[i].x > tokens) peak = fmax(peak, plain->point[i].y.value);
    return peak;
}

static int rates_of_cpu(struct pricing *p, struct helm_err *err)
{
    const struct profile_cpu *cpu = &p->profile->cpu;
    struct device_rates *r = &p->cpu;
    r->gemv = cpu->gemv.value;
    r->gemv_beside = rate_or(&cpu->gemv_beside, r->gemv);
    if (r->gemv_beside > r->gemv) r->gemv_beside = r->gemv; /* noise: contention cannot raise the rate */
    const double company = r->gemv > 0 ? r->gemv_beside / r->gemv : 1;
    r->packed = cpu->gemv_packed.value;
    r->packed_beside = fmin(r->packed, rate_or(&cpu->gemv_packed_beside, r->packed * company));
    r->attention = rate_or(&kv_of(p)->cpu_attention, cpu->attention.value);
    r->attention_host = cost_attention_host(p->profile, p->step->kv_dtype);
    r->attention_flops = rate_or(&kv_of(p)->cpu_attention_flops, cpu->attention_flops.value);
    r->read = r->gemv;
    r->linear = 0; /* one token's are none of its own, whatever step these rates were of before */
    r->operation = cpu->operation.value;
    r->parts = 1;
    int rc = require(r->gemv, "cpu.gemv", err);
    if (!rc) rc = require(r->attention, "cpu.attention", err);
    if (rc) return rc;
    r->attention_beside = r->attention * (r->gemv_beside / r->gemv);
    if (p->step->tokens == 1) return 0;
    r->linear = profile_table_at(&cpu->linear, p->step->tokens).value;
    r->peak = peak_of(&cpu->linear, p->step->tokens);
    rc = require(r->linear, "cpu.linear", err);
    if (!rc) rc = require(r->attention_flops, "cpu.attention_flops", err);
    return rc;
}

/* Bytes of cache a second of one token's attention in a chain. A block takes up to PROFILE_GROUP query heads
 * that share a KV head. More are shared by several blocks, each of which reads the cache: 5 as 3 and 2. A
 * block's time grows with its heads, along a line through the two measured points. */
static double chain_attention_of(const struct pricing *p)
{
    const struct profile_gpu *gpu = &p->profile->gpu;
    const struct model_config *c = &p->model->config;
    const double one = rate_or(&kv_of(p)->gpu_chain_attention, gpu->chain_attention.value),
                 two = rate_or(&kv_of(p)->gpu_chain_attention_pair, gpu->chain_attention_pair.value);
    if (two <= 0 || c->kv_heads == 0) return one;
    double pair = 1 / two, group = 1 / one;
    double heads = (double)c->heads / c->kv_heads, blocks = ceil(heads / PROFILE_GROUP);
    double more = (ceil(heads / blocks) - PROFILE_PAIR) / (PROFILE_GROUP - PROFILE_PAIR);
    double seconds = pair + more * fmax(0, group - pair);
    return 1 / (blocks * fmax(seconds, pair / PROFILE_PAIR));
}

/* The rate of several tokens' attention depends on the queries, times heads, that there are at once. */
static double attention_flops_of(const struct pricing *p)
{
    const struct profile_gpu *gpu = &p->profile->gpu;
    const double full = gpu->attention_flops.value,
                 kept = full > 0 ? rate_or(&kv_of(p)->gpu_attention_flops, full) / full : 1;
    double rows = fmin(p->step->tokens, GPU_SUB_TOKENS) * p->model->config.heads;
    if (gpu->attention_rows.count == 0) return full * kept;
    return profile_table_at(&gpu->attention_rows, (uint32_t)fmin(rows, UINT32_MAX)).value * kept;
}

static int rates_of_gpu(struct pricing *p, struct helm_err *err)
{
    const struct profile_gpu *gpu = &p->profile->gpu;
    struct device_rates *r = &p->gpu;
    r->gemv = r->gemv_beside = gpu->gemv.value;
    r->attention = r->attention_beside = rate_or(&kv_of(p)->gpu_attention, gpu->attention.value);
    r->attention_flops = gpu->attention_flops.value;
    r->read = rate_or(&gpu->read, r->gemv);
    r->linear = 0;
    r->operation =
        p->tier == OP_TIER_CHUNK ? rate_or(&gpu->launch, gpu->operation.value) : gpu->operation.value;
    r->parts = ceil((double)p->step->tokens / GPU_SUB_TOKENS);
    int rc = require(r->gemv, "gpu.gemv", err);
    if (!rc) rc = require(r->attention, "gpu.attention", err);
    if (!rc) rc = require(p->profile->link.h2d.value, "link.h2d", err);
    p->kernel = *r;
    p->chained = p->tier == OP_TIER_ONE && !p->model->config.router.experts && gpu->chain_gemv.value > 0 &&
                 gpu->chain_attention.value > 0;
    if (p->chained) {
        r->gemv = r->gemv_beside = gpu->chain_gemv.value;
        r->attention = r->attention_beside = chain_attention_of(p);
        r->operation = gpu->chain_operation.value;
    }
    const uint32_t few = cost_rates_as_few(p);
    if (rc || (p->step->tokens == 1 && !few)) return rc;
    const uint32_t part = few ? few : (uint32_t)fmin(p->step->tokens, GPU_SUB_TOKENS);
    r->linear = profile_table_at(&gpu->linear, part).value;
    r->product = profile_table_at(&gpu->linear_operation, part).value;
    r->attention_flops = attention_flops_of(p);
    rc = require(r->linear, "gpu.linear", err);
    if (!rc) rc = require(r->attention_flops, "gpu.attention_flops", err);
    p->kernel = *r;
    return rc;
}

/* Whether the CPU has packed weights to multiply with in this step, if it has any of its units. */
static bool any_packed_cpu(const struct pricing *p)
{
    for (uint32_t u = 0; u < unit_count(p->model->config.layers); u++)
        if (cost_rates_packed_cpu(p, u) || cost_rates_packed_mixed(p, u)) return true;
    return false;
}

double cost_rates_link(const struct pricing *p)
{
    const struct profile_link *link = &p->profile->link;
    const double beside = cost_rates_copy(link);
    if (p->tier != OP_TIER_ONE || !any_packed_cpu(p)) return beside;
    return fmin(rate_or(&link->h2d_beside_packed, beside), link->h2d.value);
}

double cost_rates_copy(const struct profile_link *link)
{
    return fmin(rate_or(&link->h2d_beside, link->h2d.value), link->h2d.value);
}

double cost_rates_direct(const struct profile *profile, enum kv_dtype kv_dtype)
{
    const struct profile_link *link = &profile->link;
    const double measured =
        rate_or(&profile->kv[kv_dtype].gpu_attention_direct, profile->gpu.attention_direct.value);
    return measured > 0 && link->h2d.value > 0 ? cost_rates_copy(link) * fmin(1, measured / link->h2d.value)
                                               : rate_or(&link->direct, cost_rates_copy(link));
}

/* Packed weights are expanded a slice at a time before they are used, once for any number of tokens. If the
 * rate is unmeasured, memory bounds it: packed bytes are read and plain ones written. */
static double expand_rate(const struct profile *profile)
{
    double read = rate_or(&profile->gpu.read, profile->gpu.gemv.value);
    return rate_or(&profile->gpu.expand, read / (1 + COST_PACKED_PART));
}

/* ---- formats ---- */

double cost_rates_spread(const struct profile_value *v)
{
    return v->value > 0 && v->high > v->low ? (v->high - v->low) / (2 * v->value) : 0;
}

static double spread_at(const struct profile_table *table, uint32_t x)
{
    const struct profile_value v = profile_table_at(table, x);
    return cost_rates_spread(&v);
}

/* Bytes of a format for each byte of as many values of bf16. */
static double part_of(enum tensor_format format)
{
    const struct tensor_format_traits *t = tensor_format_of(format);
    return (double)t->block_bytes / (t->block_values * 2.0);
}

double cost_rates_linear(const struct profile_table *plain, enum tensor_format format, uint32_t tokens)
{
    const double rate = profile_table_at(plain, tokens).value;
    return tensor_format_is_plain(format) ? rate : fmin(rate / part_of(format), peak_of(plain, tokens));
}

static void cpu_with(const struct pricing *p, enum tensor_format format, uint32_t tokens,
                     struct format_rates *out)
{
    const struct profile_format *f = &p->profile->format[format];
    struct device_rates *r = &out->cpu;
    if (r->linear > 0 && !f->cpu_linear.count)
        r->linear = cost_rates_linear(&p->profile->cpu.linear, format, tokens);
    if (f->cpu_gemv.value <= 0) return;
    const double company = p->cpu.gemv_beside / p->cpu.gemv;
    r->gemv = f->cpu_gemv.value;
    r->gemv_beside = fmin(r->gemv, rate_or(&f->cpu_gemv_beside, r->gemv * company));
    out->cpu_spread = fmax(cost_rates_spread(&f->cpu_gemv), cost_rates_spread(&f->cpu_gemv_beside));
    if (tokens == 1 || !f->cpu_linear.count) return;
    r->linear = profile_table_at(&f->cpu_linear, tokens).value;
    out->cpu_spread = spread_at(&f->cpu_linear, tokens);
}

/* One token: as kernels, and in chains where the format was measured in one. */
static void gpu_one_with(const struct pricing *p, const struct profile_format *f, struct format_rates *out)
{
    struct device_rates *kernel = &out->kernel, *chain = &out->gpu;
    kernel->gemv = kernel->gemv_beside = f->gpu_gemv.value;
    kernel->product = f->gpu_operation.value;
    out->gpu_spread = cost_rates_spread(&f->gpu_gemv);
    if (p->chained && f->gpu_chain_gemv.value > 0) {
        chain->gemv = chain->gemv_beside = f->gpu_chain_gemv.value;
        chain->product = f->gpu_chain_operation.value;
        out->gpu_spread = cost_rates_spread(&f->gpu_chain_gemv);
    } else {
        *chain = *kernel;
    }
}

static void gpu_few_with(const struct profile_format *f, uint32_t tokens, struct device_rates *r)
{
    if (f->gpu_gemv.value > 0) r->gemv = r->gemv_beside = f->gpu_gemv.value;
    r->linear = profile_table_at(&f->gpu_linear, tokens).value;
    if (f->gpu_linear_operation.count) r->product = profile_table_at(&f->gpu_linear_operation, tokens).value;
}

/* Whether all of the layers' matrices are blocks that were measured in chains, in which they have the bits of
 * few tokens'. */
static bool has_chained_blocks(const struct pricing *p)
{
    if (p->model->config.router.experts) return false;
    for (uint32_t u = 0; u < unit_count(p->model->config.layers); u++)
        for (uint32_t i = 0; i < p->model->unit[u].matrix_count; i++) {
            const enum tensor_format format = p->model->unit[u].tensor[i]->format;
            if (tensor_format_is_plain(format) || p->profile->format[format].gpu_chain_gemv.value <= 0)
                return false;
        }
    return true;
}

static void gpu_with(const struct pricing *p, enum tensor_format format, const struct rates_size *size,
                     struct format_rates *out)
{
    const struct profile_format *f = &p->profile->format[format];
    const bool plain = tensor_format_is_plain(format),
               measured = f->gpu_gemv.value > 0 || f->gpu_expand.value > 0;
    const uint32_t as_few = cost_rates_as_few(p),
                   few = as_few ? as_few : (uint32_t)fmin(size->tokens, ENGINE_FEW_TOKENS);
    bool reads = true; /* as it lies */
    if (size->tier == OP_TIER_FEW && !f->gpu_linear.count && out->gpu.linear > 0)
        out->gpu.linear = out->kernel.linear = cost_rates_linear(&p->profile->gpu.linear, format, few);
    const struct profile_table *linear = &f->gpu_linear;
    /* the worker measures chunks of blocks as they lie up to the tokens that it multiplies so */
    const double most = linear->count ? linear->point[linear->count - 1].x : 0;
    const bool is_short =
        size->tier == OP_TIER_CHUNK && !plain && size->tokens <= most && most > ENGINE_FEW_TOKENS;
    if (size->tier == OP_TIER_CHUNK) {
        reads = plain;
    } else if (measured && size->tier == OP_TIER_ONE) {
        reads = plain || f->gpu_gemv.value > 0;
        if (f->gpu_gemv.value > 0) gpu_one_with(p, f, out);
    } else if (measured) {
        reads = plain || f->gpu_linear.count > 0;
        if (f->gpu_linear.count) {
            gpu_few_with(f, few, &out->gpu);
            gpu_few_with(f, few, &out->kernel);
            out->gpu_spread = spread_at(&f->gpu_linear, few);
        }
    }
    out->expands = !reads;
    out->expands_home = !reads && !is_short;
    if (out->expands) out->gpu = out->kernel; /* nothing that is expanded is in a chain */
    if (is_short) gpu_few_with(f, size->tokens, &out->gpu);
    if (out->expands) out->gpu_spread = fmax(out->gpu_spread, cost_rates_spread(&f->gpu_expand));
}

void cost_rates_with(const struct pricing *p, enum tensor_format format, const struct rates_size *size,
                     struct format_rates *out)
{
    *out = (struct format_rates){.cpu = p->cpu,
                                 .gpu = p->gpu,
                                 .kernel = p->kernel,
                                 .expand = rate_or(&p->profile->format[format].gpu_expand, p->expand)};
    if (!profile_format_has_rates(format)) return;
    cpu_with(p, format, size->tokens, out);
    if (p->device) gpu_with(p, format, size, out);
}

bool cost_rates_packed(const struct pricing *p, uint32_t unit, enum plan_home home)
{
    return p->step->format && p->step->format[unit][home] == FORMAT_BF16_PACKED;
}

bool cost_rates_packed_cpu(const struct pricing *p, uint32_t unit)
{
    return cost_rates_packed(p, unit, PLAN_HOME_CPU) && p->cpu.packed > 0;
}

bool cost_rates_packed_mixed(const struct pricing *p, uint32_t unit)
{
    return cost_rates_packed(p, unit, PLAN_HOME_MIXED) && p->cpu.packed > 0;
}

bool cost_rates_reads_packed(const struct pricing *p, uint32_t inner)
{
    const struct profile_gpu *gpu = &p->profile->gpu;
    return p->tier == OP_TIER_ONE && (gpu->chain_gemv.value > 0 || gpu->gemv_packed.value > 0) &&
           p->model->config.hidden % GPU_PACKED_COLS == 0 && inner % GPU_PACKED_COLS == 0;
}

/* Whether a product's own price holds the operation, as it does the norm before and the activation after. */
static bool is_of_product(enum op_kind kind)
{
    return kind == OP_GEMV || kind == OP_GEMM_SMALL || kind == OP_MATMUL || kind == OP_NORM ||
           kind == OP_SWIGLU || kind == OP_EXPERTS_GLU || kind == OP_EXPERTS_DOWN;
}

static void list_operations(struct pricing *p)
{
    const struct model_math *math = &p->model->math;
    enum op_kind kinds[PROGRAM_OPS_MAX];
    for (int i = 0; i < (int)math->parts; i++) {
        const struct math_part *part = &math->part[i];
        struct part_operations *o = &p->part[i];
        *o = (struct part_operations){.cpu = program_part_count(part, PROCESSOR_CPU, p->tier),
                                      .gpu = program_part_count(part, PROCESSOR_GPU, p->tier)};
        for (uint32_t n = 0; n < part->ops; n++) {
            const uint32_t count = program_ops_of(&part->op[n], PROCESSOR_GPU, p->tier, kinds);
            const bool routes =
                part->op[n].kind == MATH_ROUTE; /* whose product is small: an operation as others are */
            o->products += part->op[n].weights > 0;
            for (uint32_t k = 0; k < count; k++)
                o->others += op_traits_of(kinds[k])->counts[p->tier] && (routes || !is_of_product(kinds[k]));
        }
    }
    p->first =
        program_ops_first(PROCESSOR_GPU, kinds) + program_ops_count(&math->embed, PROCESSOR_GPU, p->tier);
}

int cost_rates_of(struct pricing *p, struct helm_err *err)
{
    const struct cost_step *step = p->step;
    p->device = p->profile->gpu.device != PROFILE_DEVICE_NONE;
    p->tier = step->tokens == 1                   ? OP_TIER_ONE
              : step->tokens <= ENGINE_FEW_TOKENS ? OP_TIER_FEW
                                                  : OP_TIER_CHUNK;
    if (step->invariant && !cost_step_decodes(step)) p->tier = OP_TIER_CHUNK;
    if (step->one_as_few && p->tier == OP_TIER_ONE && !has_chained_blocks(p)) p->tier = OP_TIER_FEW;
    list_operations(p);
    int rc = rates_of_cpu(p, err);
    if (!rc && p->device) rc = rates_of_gpu(p, err);
    if (rc || !p->device) return rc;
    p->expand = expand_rate(p->profile);
    return 0;
}

bool cost_packing_pays(const struct profile *profile)
{
    return (1 - COST_PACKED_PART) / profile->link.h2d.value > 1 / expand_rate(profile);
}

bool cost_packing_pays_cpu(const struct profile *profile, bool beside)
{
    const struct profile_cpu *cpu = &profile->cpu;
    if (beside && cpu->gemv_packed_beside.value > (1 + WORTH_MUCH) * cpu->gemv_beside.value) return true;
    return cpu->gemv_packed.value > (1 + WORTH_MUCH) * cpu->gemv.value;
}

bool cost_packed_is_faster(const struct profile *profile)
{
    const struct profile_gpu *gpu = &profile->gpu;
    return gpu->gemv_packed.value > fmax(gpu->gemv.value, gpu->chain_gemv.value);
}
