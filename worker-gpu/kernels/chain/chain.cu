/* Chains: their kernels, and their launcher; chain/list.cu writes the lists. chains.h says what they
 * mean. */
#include "worker-gpu/kernels/chain/kernel.cuh"

/* [chain_family][enum kv_dtype] */
static chain_functions kernels = {CHAIN_KERNELS(chain_shaped, decode_bf16),
                                  CHAIN_KERNELS(chain_shaped, decode_f16),
                                  CHAIN_KERNELS(chain_shaped, decode_f32),
                                  CHAIN_KERNELS(chain_shaped, decode_blocks)};

int gpuk_prepare_chain(const struct gpuk_device *device, struct helm_err *err)
{
    int rc = HELM_OK;
    for (const auto &family : kernels)
        for (const chain_function kernel : family)
            if (!rc && kernel && device->bulk_copy)
                rc = gpuk_prepare("chain", kernel, (size_t)device->shared_bytes_max, err);
    return rc;
}

extern "C" int gpuk_chain_run(const struct gpuk_chain *chain, uint32_t flags, void *stream,
                              struct helm_err *err)
{
    const struct chain_params p = {(unsigned char *)(uintptr_t)chain->list,
                                   chain->count,
                                   chain->meetings,
                                   chain->linears,
                                   chain->slots,
                                   chain->askers,
                                   chain->pitch,
                                   chain->region_bytes,
                                   chain->norm_bytes};
    const chain_function kernel = kernels[chain->variant / KV_DTYPE_COUNT][chain->variant % KV_DTYPE_COUNT];
    /* Begun early, the blocks become resident together without a cooperative launch: blocks of the kernel in
     * front wait for nothing after them, so they end, and nothing else begins before this kernel has
     * ended. */
    return gpuk_launch("chain", kernel, dim3(chain->blocks), dim3(chain->warps * 32), chain->shared_bytes,
                       flags & GPUK_EARLY ? (uint32_t)GPUK_EARLY : GPUK_TOGETHER, stream, err, p);
}
