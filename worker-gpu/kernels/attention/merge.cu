/* Partial results of attention, merged: those of decode attention with those of positions that another
 * processor has attended to. One warp a head; worker-gpu/kernels/kernels.h says what it means. */
#include "worker-gpu/kernels/attention/rope.cuh"

static const uint32_t WARPS = 8;

__global__ void __launch_bounds__(WARPS * 32)
    attention_merge_kernel(const __grid_constant__ gpuk_merge a, const uint32_t *count)
{
    wait_for_previous();
    let_next_start();
    const uint32_t t = blockIdx.x, head = blockIdx.y * WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (t >= *count || head >= a.heads) return;
    const size_t at = (size_t)t * a.heads + head;
    const float *o = a.o + at * a.head_dim, *other = a.other + at * (a.head_dim + 2);
    /* from host memory, maybe: all on its way before the first is used, and nothing of an earlier step */
    float here[GPUK_HEAD_DIM_MAX / 32], there[GPUK_HEAD_DIM_MAX / 32];
    const float other_m = __ldcv(other), other_s = __ldcv(other + 1), m = __ldcg(a.m + at),
                s = __ldcg(a.s + at);
#pragma unroll
    for (uint32_t j = 0; j < GPUK_HEAD_DIM_MAX / 32; j++) {
        const uint32_t d = lane + 32 * j;
        there[j] = d < a.head_dim ? __ldcv(other + 2 + d) : 0.0f;
        here[j] = d < a.head_dim ? __ldcg(o + d) : 0.0f;
    }
    const float most = fmaxf(m, other_m);
    const float mine = s > 0 ? expf(m - most) : 0.0f, theirs = other_s > 0 ? expf(other_m - most) : 0.0f;
    float sum = mine * s + theirs * other_s;
    if (a.sinks && sum > 0) sum += expf(a.sinks[head] - most);
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < GPUK_HEAD_DIM_MAX / 32; j++) {
        const uint32_t d = lane + 32 * j;
        const float value = (s > 0 ? mine * here[j] : 0.0f) + (other_s > 0 ? theirs * there[j] : 0.0f);
        if (d < a.head_dim)
            a.out[at * a.head_dim + d] =
                value * inverse * gate_of(a.gate, a.gate_stride, a.heads * a.head_dim, at * a.head_dim + d);
    }
}

int gpuk_prepare_attention_merge(const struct gpuk_device *, struct helm_err *err)
{
    return gpuk_prepare("merging attention", attention_merge_kernel, 0, err);
}

extern "C" int gpuk_attention_merge(const struct gpuk_merge *merge, const uint32_t *count, uint32_t tokens,
                                    uint32_t flags, void *stream, struct helm_err *err)
{
    if (tokens == 0 || tokens > GPUK_BATCH_MAX || merge->heads == 0 || merge->heads > MODEL_HEADS_MAX ||
        merge->head_dim == 0 || merge->head_dim > GPUK_HEAD_DIM_MAX)
        return helm_fail(err, HELM_E_LIMIT, "merging attention: %u tokens of %u heads of %u", tokens,
                         merge->heads, merge->head_dim);
    return gpuk_launch("merging attention", attention_merge_kernel, dim3(tokens, div_up(merge->heads, WARPS)),
                       dim3(WARPS * 32), 0, flags, stream, err, *merge, count);
}
