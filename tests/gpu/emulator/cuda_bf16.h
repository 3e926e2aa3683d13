/* bf16 for the emulated device: see cuda_fp16.h. */
#include "tests/gpu/emulator/cuda_fp16.h"
