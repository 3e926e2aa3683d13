/* Prefill's matrix products: cuBLASLt by plans that are made once.
 *
 * Steady plans: each sum is added up in one piece, and products of fewer tokens take the algorithm of the
 * most, so that a token has the same bits in products of any size.
 *
 * Row-major out[T][R] = x[T][C] w[R][C]^T is column-major out^T = w^T' x with w stored as C x R and x as C x
 * T, so the library sees op(A) = w transposed, B = x. A plan asks for the library's best algorithm for a
 * shape; running it is one call that allocates nothing, so it can be captured. Called by the CUDA device and
 * the benchmark; owns its handle and plans.
 *
 * The library is loaded with the first handle and stays: its relocations take 0.4 s, which a program that
 * opens no CUDA device need not spend. */
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "worker-gpu/kernels/device.cuh"

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#define LIBRARY    "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)
#define CALLS(X)                                                                                             \
    X(cublasLtCreate)                                                                                        \
    X(cublasLtDestroy)                                                                                       \
    X(cublasLtGetStatusString)                                                                               \
    X(cublasLtMatmul)                                                                                        \
    X(cublasLtMatmulAlgoCheck)                                                                               \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                        \
    X(cublasLtMatmulDescCreate)                                                                              \
    X(cublasLtMatmulDescDestroy)                                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                                        \
    X(cublasLtMatmulPreferenceCreate)                                                                        \
    X(cublasLtMatmulPreferenceDestroy)                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                            \
    X(cublasLtMatrixLayoutDestroy)                                                                           \
    X(cublasLtMatrixLayoutSetAttribute)

/* The library's calls, by the types of its header. */
static struct {
#define MEMBER(name) decltype(&::name) name;
    CALLS(MEMBER)
} lt;

struct gpuk_matmul_plan {
    struct gpuk_matmul_plan *next;
    cublasLtHandle_t handle;
    enum dtype dtype, out_dtype;
    uint32_t tokens, rows, cols, out_stride;
    bool accumulate;
    uint32_t steady; /* tokens whose algorithm it has; 0: its own */
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
};
struct gpuk_matmul {
    cublasLtHandle_t handle;
    struct gpuk_matmul_plan *plans;
    uint32_t steady;
};

static int fail(struct helm_err *err, cublasStatus_t status, const char *what)
{
    return helm_fail(err, HELM_E_DEVICE, "%s: %s", what, lt.cublasLtGetStatusString(status));
}

static void plan_free(struct gpuk_matmul_plan *plan)
{
    if (plan->a) lt.cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->b) lt.cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->c) lt.cublasLtMatrixLayoutDestroy(plan->c);
    if (plan->desc) lt.cublasLtMatmulDescDestroy(plan->desc);
    free(plan);
}

extern "C" int gpuk_matmul_load(struct helm_err *err)
{
    const struct {
        void *at;
        const char *name;
    } calls[] = {
#define ROW(name) {&lt.name, #name},
        CALLS(ROW)};
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) return helm_fail(err, HELM_E_DEVICE, "the CUDA Toolkit's library: %s", dlerror());
    for (const auto &call : calls) {
        void *found = dlsym(library, call.name);
        if (!found) return helm_fail(err, HELM_E_DEVICE, "%s has no %s", LIBRARY, call.name);
        memcpy(call.at, &found, sizeof found);
    }
    return HELM_OK;
}

extern "C" int gpuk_matmul_open(struct gpuk_matmul **matmul, struct helm_err *err)
{
    *matmul = NULL;
    int rc = gpuk_matmul_load(err);
    if (rc) return rc;
    struct gpuk_matmul *m = (struct gpuk_matmul *)calloc(1, sizeof *m);
    if (!m) return helm_fail(err, HELM_E_NOMEM, "no memory for cuBLASLt's plans");
    cublasStatus_t status = lt.cublasLtCreate(&m->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(m);
        return fail(err, status, "cublasLtCreate");
    }
    *matmul = m;
    return HELM_OK;
}

extern "C" void gpuk_matmul_close(struct gpuk_matmul *matmul)
{
    if (!matmul) return;
    while (matmul->plans) {
        struct gpuk_matmul_plan *plan = matmul->plans;
        matmul->plans = plan->next;
        plan_free(plan);
    }
    lt.cublasLtDestroy(matmul->handle);
    free(matmul);
}

extern "C" void gpuk_matmul_steady(struct gpuk_matmul *matmul, uint32_t most)
{
    matmul->steady = most;
}

static cudaDataType_t type_of(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? CUDA_R_16BF : dtype == DTYPE_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static const int STEADY_CHOICES = 8;

static cublasStatus_t set_tokens(struct gpuk_matmul_plan *p, uint64_t tokens)
{
    cublasStatus_t s =
        lt.cublasLtMatrixLayoutSetAttribute(p->b, CUBLASLT_MATRIX_LAYOUT_COLS, &tokens, sizeof tokens);
    return s ? s
             : lt.cublasLtMatrixLayoutSetAttribute(p->c, CUBLASLT_MATRIX_LAYOUT_COLS, &tokens, sizeof tokens);
}

/* The first algorithm for the most tokens that takes every smaller multiple, too; then the plan's own
 * number. */
static int choose_steady(struct gpuk_matmul_plan *p, const cublasLtMatmulHeuristicResult_t *found, int count,
                         struct helm_err *err)
{
    int chosen = -1;
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < count && chosen < 0 && !s; i++) {
        bool takes = true;
        for (uint32_t tokens = GPU_STEADY_TOKENS; tokens < p->steady && takes && !s;
             tokens += GPU_STEADY_TOKENS) {
            cublasLtMatmulHeuristicResult_t checked;
            s = set_tokens(p, tokens);
            takes = !s &&
                    lt.cublasLtMatmulAlgoCheck(p->handle, p->desc, p->a, p->b, p->c, p->c, &found[i].algo,
                                               &checked) == CUBLAS_STATUS_SUCCESS &&
                    checked.workspaceSize <= GPUK_MATMUL_WORKSPACE;
        }
        if (takes) chosen = i;
    }
    if (!s) s = set_tokens(p, p->tokens);
    if (s) return fail(err, s, "cuBLASLt plan");
    if (chosen < 0)
        return helm_fail(
            err, HELM_E_UNSUPPORTED,
            "cuBLASLt has no algorithm for %u x %u that takes %u to %u tokens, which an invariant plan needs",
            p->rows, p->cols, GPU_STEADY_TOKENS, p->steady);
    p->algo = found[chosen].algo;
    return HELM_OK;
}

/* Fills in the descriptions and asks for the algorithm. */
static int plan_make(struct gpuk_matmul_plan *p, struct helm_err *err)
{
    cublasOperation_t transposed = CUBLAS_OP_T;
    cudaDataType_t in = type_of(p->dtype), out = type_of(p->out_dtype);
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found[STEADY_CHOICES] = {};
    size_t workspace = GPUK_MATMUL_WORKSPACE;
    uint32_t no_parts = CUBLASLT_REDUCTION_SCHEME_NONE;
    /* known alignments of the pointers: rows start at multiples of their length */
    uint32_t in_bytes = p->dtype == DTYPE_F32 ? 4 : 2, out_bytes = p->out_dtype == DTYPE_F32 ? 4 : 2;
    uint32_t w_align = (size_t)p->cols * in_bytes % 16 == 0 ? 16 : in_bytes;
    /* the output may begin p->rows columns after another of the same size, as up lies after gate */
    bool out_even = (size_t)p->out_stride * out_bytes % 16 == 0 && (size_t)p->rows * out_bytes % 16 == 0;
    uint32_t out_align = out_even ? 16 : out_bytes;
    int count = 0;
    const uint32_t asked = p->steady ? p->steady : p->tokens;
    cublasStatus_t s = lt.cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s)
        s = lt.cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                              sizeof transposed);
    if (!s) s = lt.cublasLtMatrixLayoutCreate(&p->a, in, p->cols, p->rows, p->cols);
    if (!s) s = lt.cublasLtMatrixLayoutCreate(&p->b, in, p->cols, asked, p->cols);
    if (!s) s = lt.cublasLtMatrixLayoutCreate(&p->c, out, p->rows, asked, p->out_stride);
    if (!s) s = lt.cublasLtMatmulPreferenceCreate(&preference);
    if (!s)
        s = lt.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &workspace, sizeof workspace);
    if (!s && p->steady)
        s = lt.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                    &no_parts, sizeof no_parts);
    const cublasLtMatmulPreferenceAttributes_t alignments[4] = {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                                                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                                                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                                                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    for (int i = 0; i < 4 && !s; i++)
        s = lt.cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], i < 2 ? &w_align : &out_align,
                                                    sizeof w_align);
    if (!s)
        s = lt.cublasLtMatmulAlgoGetHeuristic(p->handle, p->desc, p->a, p->b, p->c, p->c, preference,
                                              p->steady ? STEADY_CHOICES : 1, found, &count);
    if (preference) lt.cublasLtMatmulPreferenceDestroy(preference);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED || (!s && count == 0))
        return helm_fail(err, HELM_E_UNSUPPORTED, "cuBLASLt has no algorithm for %u x %u times %u tokens",
                         p->rows, p->cols, p->tokens);
    if (s) return fail(err, s, "cuBLASLt plan");
    if (p->steady) return choose_steady(p, found, count, err);
    p->algo = found[0].algo;
    return HELM_OK;
}

extern "C" int gpuk_matmul_plan(struct gpuk_matmul *matmul, enum dtype dtype, enum dtype out_dtype,
                                uint32_t tokens, uint32_t rows, uint32_t cols, uint32_t out_stride,
                                bool accumulate, const struct gpuk_matmul_plan **plan, struct helm_err *err)
{
    *plan = NULL;
    if ((unsigned)dtype >= DTYPE_COUNT || (out_dtype != DTYPE_F32 && out_dtype != dtype) || !tokens ||
        !rows || !cols || out_stride < rows)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "matrix product: %u x %u (dtype %d to %d), %u tokens, stride %u", rows, cols,
                         (int)dtype, (int)out_dtype, tokens, out_stride);
    if (matmul->steady && (tokens % GPU_STEADY_TOKENS || tokens > matmul->steady))
        return helm_fail(err, HELM_E_USAGE, "a matrix product of %u tokens, not a multiple of %d up to %u",
                         tokens, GPU_STEADY_TOKENS, matmul->steady);
    for (struct gpuk_matmul_plan *p = matmul->plans; p; p = p->next)
        if (p->dtype == dtype && p->out_dtype == out_dtype && p->tokens == tokens && p->rows == rows &&
            p->cols == cols && p->out_stride == out_stride && p->accumulate == accumulate &&
            p->steady == matmul->steady) {
            *plan = p;
            return HELM_OK;
        }
    struct gpuk_matmul_plan *p = (struct gpuk_matmul_plan *)calloc(1, sizeof *p);
    if (!p) return helm_fail(err, HELM_E_NOMEM, "no memory for a cuBLASLt plan");
    p->handle = matmul->handle;
    p->dtype = dtype, p->out_dtype = out_dtype;
    p->tokens = tokens, p->rows = rows, p->cols = cols, p->out_stride = out_stride,
    p->accumulate = accumulate, p->steady = matmul->steady;
    int rc = plan_make(p, err);
    if (rc) {
        plan_free(p);
        return rc;
    }
    p->next = matmul->plans;
    matmul->plans = p;
    *plan = p;
    return HELM_OK;
}

extern "C" int gpuk_matmul_run(const struct gpuk_matmul_plan *p, const void *w, const void *x, void *out,
                               void *workspace, void *stream, struct helm_err *err)
{
    const float one = 1.0f, beta = p->accumulate ? 1.0f : 0.0f;
    cublasStatus_t status =
        lt.cublasLtMatmul(p->handle, p->desc, &one, w, p->a, x, p->b, &beta, out, p->c, out, p->c, &p->algo,
                          workspace, GPUK_MATMUL_WORKSPACE, (cudaStream_t)stream);
    return status == CUBLAS_STATUS_SUCCESS ? HELM_OK : fail(err, status, "cublasLtMatmul");
}
