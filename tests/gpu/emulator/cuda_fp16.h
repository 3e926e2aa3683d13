/* f16 and bf16 for the emulated device: bit patterns with the conversions the kernels use.
 *
 * Included as <cuda_fp16.h> and <cuda_bf16.h>; rounding is common/formats/convert.h's, to nearest even.
 */
#pragma once

extern "C" {
#include "common/formats/convert.h"
}
#include "tests/gpu/emulator/cuda_runtime.h"

struct __half {
    uint16_t bits;
};
struct __half2 {
    __half x, y;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
static inline float __half2float(__half v)
{
    return convert_f16_f32(v.bits);
}
static inline __half __float2half_rn(float v)
{
    return {convert_f32_f16(v)};
}
static inline float2 __half22float2(__half2 v)
{
    return {__half2float(v.x), __half2float(v.y)};
}
static inline __half2 __floats2half2_rn(float a, float b)
{
    return {__float2half_rn(a), __float2half_rn(b)};
}
static inline float __bfloat162float(__nv_bfloat16 v)
{
    return convert_bf16_f32(v.bits);
}
static inline __nv_bfloat16 __float2bfloat16_rn(float v)
{
    return {convert_f32_bf16(v)};
}
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
    return {__float2bfloat16_rn(a), __float2bfloat16_rn(b)};
}
