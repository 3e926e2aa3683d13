/* Values to blocks of few bits, for any x86-64. See quantize.h. */
#define QUANTIZE quantize_ref
#include "common/formats/quantize_blocks.h"
