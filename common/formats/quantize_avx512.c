/* Values to blocks of few bits, for processors with AVX512. See quantize.h. */
#define QUANTIZE quantize_avx512
#include "common/formats/quantize_blocks.h"
