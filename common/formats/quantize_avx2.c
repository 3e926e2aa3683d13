/* Values to blocks of few bits, for processors with AVX2. See quantize.h. */
#define QUANTIZE quantize_avx2
#include "common/formats/quantize_blocks.h"
