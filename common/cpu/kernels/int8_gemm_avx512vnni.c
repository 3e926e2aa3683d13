/* Several tokens' products of blocks with activations of 8 bits, with AVX512-VNNI. Called through the table
 * of linear.c after the CPU check. */
#include "common/cpu/kernels/lanes512.h"

#include "common/cpu/kernels/int8_words512.h"

#include "common/cpu/kernels/int8_gemm512.h"

INLINE vec signed_numbers(const uint8_t *w, const uint8_t *second, const size_t k,
                          const enum tensor_format format)
{
    return _mm512_castsi512_ps(
        _mm512_sub_epi8(bytes_of(w, second, k, false, format), _mm512_set1_epi8((char)number_less(format))));
}

/* m[r] has eight dwords of row r, then of row r + 8; m[i] becomes dword i of all rows. */
INLINE void transpose_halves(vec m[8])
{
    vec t[8];
    UNROLL for (int i = 0; i < 8; i += 2)
    {
        t[i] = _mm512_unpacklo_ps(m[i], m[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(m[i], m[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
    {
        m[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        m[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        m[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        m[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        const vec low = _mm512_shuffle_f32x4(m[i], m[i + 4], 0x88),
                  high = _mm512_shuffle_f32x4(m[i], m[i + 4], 0xdd);
        m[i] = _mm512_shuffle_f32x4(low, low, 0xd8);
        m[i + 4] = _mm512_shuffle_f32x4(high, high, 0xd8);
    }
}

INLINE void unpack_numbers(char *to, const uint8_t *const row[LANES], const enum tensor_format format)
{
    vec m[LANES];
    if (block_values(format) == 32) {
        UNROLL for (size_t r = 0; r < 8; r++) m[r] = signed_numbers(row[r], row[r + 8], 0, format);
        transpose_halves(m);
        UNROLL for (size_t i = 0; i < 8; i++) vec_store(to + i * LANES * 4, m[i]);
        return;
    }
    UNROLL for (size_t k = 0; k < 4; k++)
    {
        UNROLL for (size_t r = 0; r < LANES; r++) m[r] = signed_numbers(row[r], NULL, k, format);
        vec_transpose(m);
        UNROLL for (size_t i = 0; i < LANES; i++)
            vec_store(to + (2 * k + i / 8) * INT8_PANEL + i % 8 * LANES * 4, m[i]);
    }
}

#define NAME     "avx512-vnni"
#define FEATURES FEATURES_VNNI
#define KERNELS  int8_avx512vnni_gemm
#define FORMATS  INT8_PLAIN_FORMATS
#include "common/cpu/kernels/int8_gemm.h"
