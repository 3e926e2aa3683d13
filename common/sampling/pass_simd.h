/* The passes' arithmetic in lanes of one width. Included by pass.c alone, once for each width, with
 * PASS_LANES, PASS_NAME, PASS_OP, the types and casts defined, and load_finite, sum and max of that width
 * before it.
 *
 * Lanes do the same multiplications and additions in the same order, without FMA, so that nothing depends on
 * the width. */

/* exp((x - top) * inv_temp), from 1 down to about 1e-38 (which weighs 0) for everything far below. x = n ln 2
 * + r, |r| <= ln 2 / 2; adding and subtracting 1.5 * 2^23 rounds to the nearest whole number. */
PASS_TARGET static inline PASS_F PASS_NAME(exp_below)(PASS_F x, const struct sampling_row *row)
{
    const PASS_F magic = PASS_OP(set1_ps)(12582912.0f);
    PASS_F z =
        PASS_OP(mul_ps)(PASS_OP(sub_ps)(x, PASS_OP(set1_ps)(row->top)), PASS_OP(set1_ps)(row->inv_temp));
    z = PASS_OP(max_ps)(z, PASS_OP(set1_ps)(-87.0f));
    const PASS_F shifted = PASS_OP(add_ps)(PASS_OP(mul_ps)(z, PASS_OP(set1_ps)(1.44269504f)), magic);
    const PASS_F n = PASS_OP(sub_ps)(shifted, magic);
    PASS_F r = PASS_OP(sub_ps)(z, PASS_OP(mul_ps)(n, PASS_OP(set1_ps)(0.693359375f)));
    r = PASS_OP(add_ps)(r, PASS_OP(mul_ps)(n, PASS_OP(set1_ps)(2.12194440e-4f)));
    PASS_F p = PASS_OP(set1_ps)(1.9875691500e-4f);
    p = PASS_OP(add_ps)(PASS_OP(mul_ps)(p, r), PASS_OP(set1_ps)(1.3981999507e-3f));
    p = PASS_OP(add_ps)(PASS_OP(mul_ps)(p, r), PASS_OP(set1_ps)(8.3334519073e-3f));
    p = PASS_OP(add_ps)(PASS_OP(mul_ps)(p, r), PASS_OP(set1_ps)(4.1665795894e-2f));
    p = PASS_OP(add_ps)(PASS_OP(mul_ps)(p, r), PASS_OP(set1_ps)(1.6666665459e-1f));
    p = PASS_OP(add_ps)(PASS_OP(mul_ps)(p, r), PASS_OP(set1_ps)(5.0000001201e-1f));
    p = PASS_OP(add_ps)(PASS_OP(mul_ps)(p, PASS_OP(mul_ps)(r, r)),
                        PASS_OP(add_ps)(r, PASS_OP(set1_ps)(1.0f)));
    /* n in the exponent's place, modulo 2^32 */
    const PASS_I exponent = PASS_OP(slli_epi32)(PASS_CAST_I(shifted), 23);
    const PASS_F e = PASS_CAST_F(PASS_OP(add_epi32)(PASS_CAST_I(p), exponent));
    return PASS_OP(min_ps)(e, PASS_OP(set1_ps)(1.0f));
}

/* floor(e * 2^40) = upper * 2^20 + lower, each part a 32-bit lane. */
PASS_TARGET static inline void PASS_NAME(split_weight)(PASS_F e, PASS_I *upper, PASS_I *lower)
{
    const PASS_F scale = PASS_OP(set1_ps)(1048576.0f);
    const PASS_F scaled = PASS_OP(mul_ps)(e, scale);
    *upper = PASS_OP(cvttps_epi32)(scaled);
    *lower =
        PASS_OP(cvttps_epi32)(PASS_OP(mul_ps)(PASS_OP(sub_ps)(scaled, PASS_OP(cvtepi32_ps)(*upper)), scale));
}

/* Largest of one block. */
PASS_TARGET static float PASS_NAME(block_max)(const float *x)
{
    PASS_F a = PASS_NAME(load_finite)(x), c = PASS_NAME(load_finite)(x + PASS_LANES);
    for (int i = 2 * PASS_LANES; i < SAMPLING_BLOCK; i += 2 * PASS_LANES) {
        a = PASS_OP(max_ps)(a, PASS_NAME(load_finite)(x + i));
        c = PASS_OP(max_ps)(c, PASS_NAME(load_finite)(x + i + PASS_LANES));
    }
    return PASS_NAME(max)(PASS_OP(max_ps)(a, c));
}

/* Sum of one block's weights: each lane's is less than 2^26. */
PASS_TARGET static uint64_t PASS_NAME(block_sum)(const float *x, const struct sampling_row *row)
{
    PASS_I upper = PASS_ZERO, lower = PASS_ZERO, u, l;
    for (int i = 0; i < SAMPLING_BLOCK; i += PASS_LANES) {
        PASS_NAME(split_weight)(PASS_NAME(exp_below)(PASS_NAME(load_finite)(x + i), row), &u, &l);
        upper = PASS_OP(add_epi32)(upper, u);
        lower = PASS_OP(add_epi32)(lower, l);
    }
    return ((uint64_t)PASS_NAME(sum)(upper) << 20) + PASS_NAME(sum)(lower);
}

#undef PASS_LANES
#undef PASS_NAME
#undef PASS_OP
#undef PASS_F
#undef PASS_I
#undef PASS_CAST_I
#undef PASS_CAST_F
#undef PASS_ZERO
#undef PASS_TARGET
