/* e^v and silu(gate) * up of vectors of any width: the same bits in every kernel that joins gates and ups.
 * Included after lanes256.h or lanes512.h by vector_simd.h and by gemm_amx.c. */
#pragma once

/* e^v to about 1 ulp for finite v: v = n ln2 + r, |r| <= ln2 / 2, e^r by its Taylor polynomial of degree 7
 * (remainder 6e-9), scaled by 2^n. Beyond the limits e^v is 0 or infinite; without them r would be inf - inf.
 * A NaN stays one. */
INLINE vec vec_exp(vec v)
{
    v = vec_min(vec_set1(90.0f), vec_max(vec_set1(-110.0f), v));
    const vec n = vec_round(vec_mul(v, vec_set1(1.44269504f)));
    vec r = vec_fnmadd(n, vec_set1(0.693145752f), v); /* ln2 in two parts: the high one is short */
    r = vec_fnmadd(n, vec_set1(1.42860677e-6f), r);
    vec p = vec_set1(1.0f / 5040);
    p = vec_fmadd(p, r, vec_set1(1.0f / 720));
    p = vec_fmadd(p, r, vec_set1(1.0f / 120));
    p = vec_fmadd(p, r, vec_set1(1.0f / 24));
    p = vec_fmadd(p, r, vec_set1(1.0f / 6));
    p = vec_fmadd(p, r, vec_set1(0.5f));
    p = vec_fmadd(p, r, vec_set1(1.0f));
    p = vec_fmadd(p, r, vec_set1(1.0f));
    return vec_scale2_far(p, n);
}

INLINE vec vec_swiglu(vec gate, vec up)
{
    const vec e = vec_exp(vec_sub(vec_zero(), gate));
    return vec_mul(vec_div(gate, vec_add(vec_set1(1.0f), e)), up);
}
