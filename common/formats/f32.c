/* Weights as f32 numbers, as checkpoints have them. See tensor_format.h. */
#include "common/formats/plain.h"

PLAIN_FORMAT(f32, F32, "F32");
