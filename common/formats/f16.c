/* Weights as f16 numbers, as checkpoints have them. See tensor_format.h. */
#include "common/formats/plain.h"

PLAIN_FORMAT(f16, F16, "F16");
