/* Weights as bf16 numbers, as checkpoints have them. See tensor_format.h. */
#include "common/formats/plain.h"

PLAIN_FORMAT(bf16, BF16, "BF16");
