/* Calls of CUDA and of launchers where a failure ends the program with its place: tests/gpu and
 * helm-bench-gpu-kernels.
 */
#pragma once

#include <cuda_runtime.h>

#include <stdio.h>
#include <stdlib.h>

#include "worker-gpu/kernels/kernels.h"

#define CUDA(call)                                                                                           \
    do {                                                                                                     \
        cudaError_t code_ = (call);                                                                          \
        if (code_ != cudaSuccess) {                                                                          \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(code_));                 \
            exit(2);                                                                                         \
        }                                                                                                    \
    } while (0)
#define GPUK(call)                                                                                           \
    do {                                                                                                     \
        struct helm_err err = {};                                                                            \
        if ((call) != HELM_OK) {                                                                             \
            printf("%s:%d: %s\n", __FILE__, __LINE__, err.text);                                             \
            exit(2);                                                                                         \
        }                                                                                                    \
    } while (0)
