/* Products with experts: checks, and which kernel is launched. See experts.h.
 *
 * A kernel for each format and schedule says whether it takes a call; the first that does is launched. */
#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/experts/experts.cuh"

static const experts_kernels *const few[] = {&experts_once_kernels, &experts_digits_kernels,
                                             &experts_bulk_kernels, &experts_packed_kernels,
                                             &experts_plain_kernels};
static const experts_chunk_kernels *const chunks[] = {&experts_wide_kernels, &experts_tensor_kernels,
                                                      &experts_each_kernels};

int gpuk_prepare_experts(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = gpuk_prepare_experts_route(device, err);
    if (!rc) rc = gpuk_prepare_router_logits(device, err);
    if (!rc) rc = gpuk_prepare_experts_share(device, err);
    for (int f = 0; f < FORMAT_COUNT; f++) {
        for (const experts_kernels *kernels : few)
            if (!rc && (*kernels)[f].prepare) rc = (*kernels)[f].prepare(device, err);
        for (const experts_chunk_kernels *kernels : chunks)
            if (!rc && (*kernels)[f].prepare) rc = (*kernels)[f].prepare(device, err);
    }
    return rc;
}

/* ---- checks --------------------------------------------------------------------------------------- */

static int check(const char *what, const struct gpuk_experts *e, uint32_t chosen, struct helm_err *err)
{
    const bool known = (unsigned)e->format < FORMAT_COUNT,
               packed = known && tensor_format_of(e->format)->variable;
    if (!known || (packed && (!e->host || (e->slot && !e->stride))) ||
        e->rows % tensor_format_of(e->format)->group_rows != 0)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s: experts of format %d", what, (int)e->format);
    if (e->experts == 0 || e->experts > MODEL_EXPERTS_MAX || chosen == 0 || chosen > MODEL_EXPERTS_CHOSEN_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%s: %u of %u experts (at most %d of %d)", what, chosen,
                         e->experts, MODEL_EXPERTS_CHOSEN_MAX, MODEL_EXPERTS_MAX);
    if (e->rows == 0 || e->cols == 0 || e->rows > 1u << 20 || e->cols > 1u << 20 ||
        e->cols % tensor_format_of(e->format)->block_values != 0)
        return helm_fail(err, HELM_E_LIMIT, "%s: experts of %u rows of %u columns of %s", what, e->rows,
                         e->cols, tensor_format_name(e->format));
    if ((size_t)e->weight % 16 != 0 || (size_t)e->host % (packed && !e->slot ? sizeof(uint32_t) : 16) != 0 ||
        e->stride % 16 != 0)
        return helm_fail(err, HELM_E_USAGE, "%s: experts do not begin on 16 bytes", what);
    return HELM_OK;
}
/* Checks both roles of a gated unit. */
static int check_two(const struct gpuk_experts *gate, const struct gpuk_experts *up, uint32_t chosen,
                     struct helm_err *err)
{
    int rc = check("experts' gate", gate, chosen, err);
    if (!rc) rc = check("experts' up", up, chosen, err);
    if (rc) return rc;
    if (gate->format != up->format || gate->rows != up->rows || gate->cols != up->cols ||
        gate->experts != up->experts || gate->slot != up->slot)
        return helm_fail(err, HELM_E_UNSUPPORTED, "experts: gate is %s %u x %u, up %s %u x %u",
                         tensor_format_name(gate->format), gate->rows, gate->cols,
                         tensor_format_name(up->format), up->rows, up->cols);
    return HELM_OK;
}
static experts_role role_of(const struct gpuk_experts *e)
{
    return {static_cast<const unsigned char *>(e->weight), static_cast<const unsigned char *>(e->host),
            e->bias, e->stride};
}

/* ---- few tokens ----------------------------------------------------------------------------------- */

static struct experts_call call_of(const struct gpuk_device *device, const struct gpuk_experts *e,
                                   const struct gpuk_choice *choice, uint32_t tokens, const uint32_t *count)
{
    struct experts_call call = {};
    struct experts_params &p = call.params;
    call.device = device, call.format = e->format;
    p.role[0] = role_of(e), p.slot = e->slot, p.choice = *choice, p.count = count, p.tokens = tokens;
    p.row_bytes = tensor_format_row_bytes(e->format, e->cols);
    p.experts = e->experts, p.rows = e->rows, p.cols = e->cols;
    return call;
}

static int launch_few(struct experts_call *call, void *workspace, uint32_t flags, void *stream,
                      struct helm_err *err)
{
    if (call->params.tokens == 0 || call->params.tokens > GPUK_BATCH_MAX)
        return helm_fail(err, HELM_E_LIMIT, "experts: %u tokens (1 to %d)", call->params.tokens,
                         GPUK_BATCH_MAX);
    call->workspace = workspace, call->flags = flags, call->stream = stream;
    for (const experts_kernels *kernels : few) {
        const struct experts_kernel *kernel = &(*kernels)[call->format];
        if (kernel->takes && kernel->takes(*call)) return kernel->launch(*call, err);
    }
    return helm_fail(err, HELM_E_UNSUPPORTED, "experts of %s", tensor_format_name(call->format));
}

extern "C" size_t gpuk_experts_workspace_bytes(uint32_t tokens, uint32_t, uint32_t cols)
{
    return ((size_t)tokens * cols * sizeof(float) + 255) / 256 * 256;
}

extern "C" int gpuk_experts_glu(const struct gpuk_device *device, const struct gpuk_experts_glu *args,
                                uint32_t tokens, const uint32_t *count, void *workspace, uint32_t flags,
                                void *stream, struct helm_err *err)
{
    int rc = check_two(&args->gate, &args->up, args->choice.chosen, err);
    if (!rc && args->router) rc = gpuk_check_router(args->router, err);
    if (!rc && args->router && args->choice.scale)
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "experts' gates choose without scales of experts");
    if (!rc && args->ahead) rc = check("experts' down", args->ahead, args->choice.chosen, err);
    if (rc) return rc;
    if (args->router &&
        (args->router->experts != args->gate.experts || args->router->chosen != args->choice.chosen))
        return helm_fail(err, HELM_E_USAGE, "experts: a router of %u of %u, %u of %u experts",
                         args->router->chosen, args->router->experts, args->choice.chosen,
                         args->gate.experts);
    struct experts_call call = call_of(device, &args->gate, &args->choice, tokens, count);
    struct experts_params &p = call.params;
    p.role[1] = role_of(&args->up), p.glu = args->glu;
    p.x = args->x, p.norm = args->norm, p.x_stride = args->x_stride, p.eps = args->eps, p.out = args->act;
    if (args->router)
        p.routes = true, p.router = *args->router, p.logits = args->logits, p.choice_bias = args->choice_bias;
    if (args->ahead && args->ahead->experts == p.experts && args->ahead->slot == p.slot)
        p.ahead = role_of(args->ahead),
        p.ahead_bytes = tensor_format_bytes(args->ahead->format, args->ahead->rows, args->ahead->cols);
    return launch_few(&call, workspace, flags, stream, err);
}

extern "C" int gpuk_experts_down(const struct gpuk_device *device, const struct gpuk_experts_down *args,
                                 uint32_t tokens, const uint32_t *count, void *workspace, uint32_t flags,
                                 void *stream, struct helm_err *err)
{
    int rc = check("experts' down", &args->down, args->choice.chosen, err);
    if (rc) return rc;
    if (args->out_stride < args->down.rows)
        return helm_fail(err, HELM_E_USAGE, "experts' down: rows of %u numbers, %u apart", args->down.rows,
                         args->out_stride);
    struct experts_call call = call_of(device, &args->down, &args->choice, tokens, count);
    struct experts_params &p = call.params;
    p.down = true, p.x = args->act, p.residual = args->residual, p.out = args->out,
    p.out_stride = args->out_stride;
    if (args->router && experts_ranks(*args->router))
        p.again = true, p.router = *args->router, p.logits = args->logits, p.choice_bias = args->choice_bias;
    return launch_few(&call, workspace, flags, stream, err);
}

/* ---- chunks --------------------------------------------------------------------------------------- */

static int launch_chunk(const struct experts_chunk_call &call, struct helm_err *err)
{
    const struct experts_chunk_params &p = call.params;
    if (call.tokens == 0 || call.tokens > 1u << 19)
        return helm_fail(err, HELM_E_LIMIT, "experts of a chunk: %u tokens (1 to 2^19)", call.tokens);
    if (call.dtype != tensor_format_of(call.format)->product)
        return helm_fail(err, HELM_E_UNSUPPORTED, "experts of a chunk: %s with activations of dtype %d",
                         tensor_format_name(call.format), (int)call.dtype);
    for (const experts_chunk_kernels *kernels : chunks) {
        const struct experts_chunk_kernel *kernel = &(*kernels)[call.format];
        if (kernel->takes && kernel->takes(call)) return kernel->launch(call, err);
    }
    return helm_fail(err, HELM_E_UNSUPPORTED, "experts of a chunk: %u x %u of %s", p.rows, p.cols,
                     tensor_format_name(call.format));
}
static struct experts_chunk_call chunk_of(const struct gpuk_device *device, const struct gpuk_experts *e,
                                          uint32_t chosen, const struct gpuk_groups *groups, enum dtype dtype)
{
    struct experts_chunk_call call = {};
    struct experts_chunk_params &p = call.params;
    call.device = device, call.format = e->format, call.dtype = dtype;
    p.role[0] = role_of(e), p.slot = e->slot, p.first = groups->first, p.pair = groups->pair;
    p.row_bytes = tensor_format_row_bytes(e->format, e->cols);
    p.experts = e->experts, p.rows = e->rows, p.cols = e->cols, p.chosen = chosen;
    return call;
}

extern "C" int gpuk_experts_glu_chunk(const struct gpuk_device *device,
                                      const struct gpuk_experts_glu_chunk *args, uint32_t tokens,
                                      uint32_t flags, void *stream, struct helm_err *err)
{
    int rc = check_two(&args->gate, &args->up, args->chosen, err);
    if (rc) return rc;
    struct experts_chunk_call call = chunk_of(device, &args->gate, args->chosen, &args->groups, args->dtype);
    call.params.role[1] = role_of(&args->up), call.params.glu = args->glu;
    call.params.x = args->x, call.params.out = args->act, call.params.out_dtype = args->act_dtype;
    call.tokens = tokens, call.flags = flags, call.stream = stream;
    return launch_chunk(call, err);
}

extern "C" int gpuk_experts_down_chunk(const struct gpuk_device *device,
                                       const struct gpuk_experts_down_chunk *args, uint32_t tokens,
                                       uint32_t flags, void *stream, struct helm_err *err)
{
    int rc = check("experts' down", &args->down, args->chosen, err);
    if (rc) return rc;
    struct experts_chunk_call call = chunk_of(device, &args->down, args->chosen, &args->groups, args->dtype);
    call.params.down = true, call.params.x = args->act, call.params.out = args->sums,
    call.params.out_dtype = DTYPE_F32;
    call.tokens = tokens, call.flags = flags, call.stream = stream;
    return launch_chunk(call, err);
}
