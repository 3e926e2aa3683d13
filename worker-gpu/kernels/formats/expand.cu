/* Weights of formats that are not plain to the values that they decode to, on their way from where the copy
 * engine put them to where they are multiplied.
 *
 * A warp expands a tile, which its decoder knows how to (D::expand). Nothing is shared between warps; any
 * number of blocks may run. */
#include "worker-gpu/kernels/formats/decode.cuh"
#include "worker-gpu/kernels/formats/decode_bf16_packed.cuh"

/* More warps than loads take to come; of 6 blocks, 40 registers. */
template <typename D> constexpr uint32_t resident_blocks()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
    return 4; /* 1,024 threads */
#else
    return D::EXPAND_BLOCKS;
#endif
}
static const uint32_t THREADS = 256;

struct expand_list {
    struct gpuk_expand_part part[GPUK_EXPAND_PARTS_MAX];
    uint32_t tiles[GPUK_EXPAND_PARTS_MAX]; /* of a group of rows */
    uint32_t end[GPUK_EXPAND_PARTS_MAX];   /* tiles of this part and those before it; of unused ones too */
};

template <typename D>
__global__ void __launch_bounds__(THREADS, resident_blocks<D>())
    expand_kernel(const __grid_constant__ struct expand_list list)
{
    let_next_start();
    wait_for_previous();
    const uint32_t lane = threadIdx.x & 31, warps = gridDim.x * (THREADS / 32),
                   all = list.end[GPUK_EXPAND_PARTS_MAX - 1];
    for (uint32_t t = blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5); t < all; t += warps) {
        int p = 0;
        uint32_t from = 0;
#pragma unroll
        for (int i = 1; i < GPUK_EXPAND_PARTS_MAX; i++)
            if (t >= list.end[i - 1]) p = i, from = list.end[i - 1];
        const uint32_t group = (t - from) / list.tiles[p];
        D::expand(list.part[p], group, (t - from) - group * list.tiles[p], lane);
    }
}

template <typename D>
static int expand(const struct gpuk_device *device, const struct gpuk_expand_part *part, uint32_t parts,
                  uint32_t blocks, void *stream, struct helm_err *err)
{
    struct expand_list list = {};
    uint64_t all = 0;
    for (uint32_t i = 0; i < GPUK_EXPAND_PARTS_MAX; i++) {
        if (i < parts) {
            list.part[i] = part[i];
            list.tiles[i] = div_up(D::GROUP_ROWS * part[i].cols, D::TILE_VALUES);
            all += (uint64_t)div_up(part[i].rows, D::GROUP_ROWS) * list.tiles[i];
            if (all > UINT32_MAX / 2) return helm_fail(err, HELM_E_LIMIT, "expand: too many rows");
        }
        list.end[i] = (uint32_t)all;
    }
    const uint32_t most = blocks ? blocks : (uint32_t)device->sm_count * D::EXPAND_BLOCKS;
    const uint32_t need = (uint32_t)((all + THREADS / 32 - 1) / (THREADS / 32));
    return gpuk_launch("expand", expand_kernel<D>, dim3(need < most ? need : most), dim3(THREADS), 0, 0,
                       stream, err, list);
}

struct expander {
    bool (*takes)(const struct gpuk_expand_part &part);   /* its shape */
    bool (*aligned)(const struct gpuk_expand_part &part); /* its addresses */
    int (*expand)(const struct gpuk_device *device, const struct gpuk_expand_part *part, uint32_t parts,
                  uint32_t blocks, void *stream, struct helm_err *err);
    void (*kernel)(struct expand_list);
};
template <typename D> static constexpr struct expander expander_of()
{
    if constexpr (D::EXPANDS) return {D::takes, D::aligned, expand<D>, expand_kernel<D>};
    return {};
}
#define EXPANDER(D) expander_of<D>()
static const struct expander expanders[FORMAT_COUNT] = BY_FORMAT(EXPANDER, EXPANDER(decode_bf16_packed));

extern "C" int gpuk_expand(const struct gpuk_device *device, const struct gpuk_expand_part *part,
                           uint32_t parts, uint32_t blocks, void *stream, struct helm_err *err)
{
    if (parts == 0 || parts > GPUK_EXPAND_PARTS_MAX)
        return helm_fail(err, HELM_E_USAGE, "expand: %u parts (1 to %d)", parts, GPUK_EXPAND_PARTS_MAX);
    const enum tensor_format format = part[0].format;
    for (uint32_t i = 0; i < parts; i++) {
        if ((unsigned)format >= FORMAT_COUNT || part[i].format != format || !expanders[format].takes)
            return helm_fail(err, HELM_E_UNSUPPORTED, "expand: weights of %s and %s",
                             tensor_format_name(format), tensor_format_name(part[i].format));
        if (!expanders[format].takes(part[i]))
            return helm_fail(err, HELM_E_UNSUPPORTED, "expand: %u rows of %u columns of %s", part[i].rows,
                             part[i].cols, tensor_format_name(format));
        if (!expanders[format].aligned(part[i]) || (uintptr_t)part[i].out % 16)
            return helm_fail(err, HELM_E_USAGE, "expand: addresses are not aligned");
    }
    return expanders[format].expand(device, part, parts, blocks, stream, err);
}

int gpuk_prepare_expand(const struct gpuk_device *, struct helm_err *err)
{
    int rc = HELM_OK;
    for (const struct expander &e : expanders)
        if (!rc && e.kernel) rc = gpuk_prepare("expand", e.kernel, 0, err);
    return rc;
}
