/* Chains: the kernels of those with experts in blocks that have 16 warps which compute. Launched by chain.cu. */
#include "worker-gpu/kernels/chain_kernel.cuh"

chain_functions chain_sparse_many_kernels = {{},
                                             {},
                                             {},
                                             CHAIN_KERNELS(chain_sparse_many_shaped, decode_blocks, true)};
