/* Chains: the kernels of those with experts. Launched by chain.cu. */
#include "worker-gpu/kernels/chain/kernel.cuh"

chain_functions chain_sparse_kernels = {CHAIN_KERNELS(chain_shaped, decode_bf16, true),
                                        CHAIN_KERNELS(chain_shaped, decode_f16, true),
                                        {},
                                        CHAIN_KERNELS(chain_shaped, decode_blocks, true)};
