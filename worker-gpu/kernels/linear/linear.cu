/* Linear layers: the kernels by format and schedule, and the launchers that choose from them.
 *
 * A schedule has a kernel for each format that it takes, and says whether that takes a layer. The first that
 * does is launched. To add a format: decode.cuh. worker-gpu/kernels/kernels.h says what the launchers
 * mean. */
#include "worker-gpu/kernels/formats/decode.cuh"

/* The library multiplies what lies there as plain values. */
static bool takes_chunk(const struct linear_call &call)
{
    return tensor_format_is_plain(call.args->format);
}
#define MATMUL(D)                                                                                            \
    {                                                                                                        \
        "matmul", takes_chunk, nullptr, nullptr                                                              \
    }
static linear_kernels matmul_kernels = BY_FORMAT(MATMUL, {});

/* Fastest first. */
static const int KERNELS_MAX = 4;
static const struct linear_kernel *const table[GPUK_SCHEDULES][KERNELS_MAX] = {
    {gemv_once_kernels, gemv_bulk_kernels, gemv_groups_kernels, gemv_plain_kernels},
    {gemm_integer_kernels, gemm_stream_kernels, gemm_tensor_kernels, gemm_plain_kernels},
    {gemm_blocks_kernels},
    {gemm_wide_kernels},
    {matmul_kernels}};

static const struct linear_kernel *choose(const struct linear_call &call, enum gpuk_schedule schedule)
{
    for (const struct linear_kernel *kernels : table[schedule]) {
        const struct linear_kernel *kernel = kernels ? &kernels[call.args->format] : nullptr;
        if (kernel && kernel->takes && kernel->takes(call)) return kernel;
    }
    return nullptr;
}

int gpuk_prepare_linear(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (const auto &schedule : table)
        for (const struct linear_kernel *kernels : schedule)
            for (int f = 0; kernels && f < FORMAT_COUNT && !rc; f++)
                if (kernels[f].prepare) rc = kernels[f].prepare(device, err);
    return rc;
}

bool gpuk_linear_aligned(const struct gpuk_linear_args *args)
{
    size_t bits = (size_t)tensor_format_row_bytes(args->format, args->cols);
    for (uint32_t s = 0; s < args->segments; s++) bits |= (size_t)args->segment[s].weight;
    return bits % 16 == 0;
}

bool gpuk_linear_begins(const struct gpuk_linear_args *args)
{
    const size_t block = tensor_format_of(args->format)->block_bytes;
    size_t bits = 0, align = block % 16 == 0 ? 16 : block % 4 == 0 ? 4 : block % 2 == 0 ? 2 : 1;
    for (uint32_t s = 0; s < args->segments; s++) bits |= (size_t)args->segment[s].weight;
    return bits % align == 0;
}

int gpuk_linear_params(const char *what, const struct gpuk_linear_args *args, struct linear_params *params,
                       struct helm_err *err)
{
    if ((unsigned)args->format >= FORMAT_COUNT)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: weights of format %d", what, (int)args->format);
    if (args->cols == 0 || args->segments == 0 || args->segments > GPUK_SEGMENTS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%s: %u columns, %u matrices (1 to %d)", what, args->cols,
                         args->segments, GPUK_SEGMENTS_MAX);
    if (args->cols % tensor_format_of(args->format)->block_values != 0)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: rows of %u columns of %s", what, args->cols,
                         tensor_format_name(args->format));
    if ((args->swiglu && (args->segments != 2 || args->segment[0].rows != args->segment[1].rows)) ||
        (args->residual && (args->swiglu || args->segments != 1)))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "%s: SwiGLU takes two matrices of equal rows, a residual one", what);
    *params = {};
    for (uint32_t s = 0; s < args->segments; s++) {
        const struct gpuk_linear *from = &args->segment[s];
        if (from->rows == 0 || from->rows > UINT32_MAX / 4)
            return helm_fail(err, HELM_E_LIMIT, "%s: a matrix of %u rows", what, from->rows);
        uint32_t pairs = args->swiglu ? (s == 0 ? from->rows : 0) : (from->rows + 1) / 2;
        params->pairs += pairs;
        params->segment[s] = {(const unsigned char *)from->weight, from->bias, from->out, from->rows,
                              params->pairs};
    }
    params->x = args->x;
    params->norm = args->norm;
    params->residual = args->residual;
    params->row_bytes = tensor_format_row_bytes(args->format, args->cols);
    params->cols = args->cols;
    params->segments = args->segments;
    params->x_stride = args->x_stride;
    params->out_stride = args->out_stride;
    params->eps = args->eps;
    params->swiglu = args->swiglu;
    params->glu = args->glu;
    return HELM_OK;
}

extern "C" const char *gpuk_linear_kernel(const struct gpuk_device *device,
                                          const struct gpuk_linear_args *args, enum gpuk_schedule schedule)
{
    struct helm_err unused;
    struct linear_call call = {};
    call.device = device, call.args = args;
    call.tokens = schedule == GPUK_ONE ? 1 : GPUK_BATCH_MAX;
    if (gpuk_linear_params("linear", args, &call.params, &unused)) return nullptr;
    const struct linear_kernel *kernel = choose(call, schedule);
    return kernel ? kernel->name : nullptr;
}

extern "C" bool gpuk_linear_as_chained(const struct gpuk_device *device, const struct gpuk_linear_args *args)
{
    const char *kernel = args->steady ? gpuk_linear_kernel(device, args, GPUK_FEW) : nullptr;
    return kernel && kernel == gemm_integer_kernels[args->format].name;
}

static int launch(const char *what, struct linear_call *call, enum gpuk_schedule schedule,
                  struct helm_err *err)
{
    int rc = gpuk_linear_params(what, call->args, &call->params, err);
    if (rc) return rc;
    struct linear_call most = *call;
    if (call->args->steady) most.tokens = GPUK_BATCH_MAX;
    const struct linear_kernel *kernel = choose(most, schedule);
    if (!kernel)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: %u rows of %u columns of %s on this device", what,
                         call->args->segment[0].rows, call->args->cols,
                         tensor_format_name(call->args->format));
    return kernel->launch(*call, err);
}

extern "C" size_t gpuk_gemv_workspace_bytes(uint32_t cols)
{
    return GPUK_LINEAR_COUNTER_BYTES + ((size_t)cols * sizeof(float) + 255) / 256 * 256;
}

extern "C" int gpuk_gemv(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                         void *workspace, uint32_t flags, void *stream, struct helm_err *err)
{
    struct linear_call call = {};
    call.device = device, call.args = args, call.tokens = 1;
    call.workspace = workspace, call.flags = flags, call.stream = stream;
    return launch("gemv", &call, GPUK_ONE, err);
}

extern "C" size_t gpuk_gemm_small_workspace_bytes(uint32_t tokens, uint32_t cols)
{
    return GPUK_LINEAR_COUNTER_BYTES + (gpuk_linear_sums_bytes(tokens, cols) + 255) / 256 * 256;
}

extern "C" int gpuk_gemm_small(const struct gpuk_device *device, const struct gpuk_linear_args *args,
                               uint32_t tokens, const uint32_t *count, void *workspace, uint32_t flags,
                               void *stream, struct helm_err *err)
{
    struct linear_call call = {};
    if (tokens == 0 || tokens > GPUK_BATCH_MAX)
        return helm_fail(err, HELM_E_LIMIT, "gemm: %u tokens (1 to %d)", tokens, GPUK_BATCH_MAX);
    call.device = device, call.args = args, call.tokens = tokens, call.count = count;
    call.workspace = workspace, call.flags = flags, call.stream = stream;
    return launch("gemm", &call, GPUK_FEW, err);
}
