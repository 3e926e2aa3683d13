/* The functions of worker-gpu/kernels/ptx.cuh on the emulated device.
 *
 * Included by ptx.cuh in its own place. Shared memory addresses are offsets into the block's dynamic shared
 * memory, as the matrix and copy instructions are only used there. */
#pragma once

#include <vector>

#include "tests/gpu/emulator/cuda_fp16.h"

#define SHARED_DYNAMIC(type, name) type *name = reinterpret_cast<type *>(emulator_shared())

static inline void let_next_start() {}
static inline void wait_for_previous() {}
static inline uint4 load_weight16(const void *p)
{
    return *(const uint4 *)p;
}
static inline void ask_l2(const void *) {}
static inline uint32_t shared_address(const void *p)
{
    return (uint32_t)((const unsigned char *)p - emulator_shared());
}

static inline uint32_t add_of_lane_before(uint32_t v, uint32_t distance)
{
    const int lane = (int)(threadIdx.x & 31), from = lane - (int)distance;
    const uint32_t before = __shfl_sync(0xffffffffu, v, from < 0 ? lane : from);
    return from < 0 ? v : v + before;
}

struct emulator_meeting {
    const uint64_t *counter;
    uint64_t count;
};
static inline bool emulator_met(void *argument)
{
    const emulator_meeting *m = (const emulator_meeting *)argument;
    return *m->counter >= m->count;
}
static inline void meet_arrive(uint64_t *counter)
{
    ++*counter;
}
static inline uint64_t meet_count(const uint64_t *counter)
{
    return *counter;
}
static inline uint32_t count_arrival(uint32_t *counter)
{
    return (*counter)++;
}
static inline void meet_wait(const uint64_t *counter, uint64_t count)
{
    emulator_meeting m = {counter, count};
    emulator_wait(emulator_met, &m);
}

static inline void word_put(uint64_t *to, float value, uint32_t tag)
{
    *to = (uint64_t)tag << 32 | __float_as_uint(value);
}
static inline uint64_t word_get(const uint64_t *from)
{
    return *from;
}
static inline void words_get(const uint64_t *from, uint64_t to[2])
{
    if ((size_t)from % 16 != 0) abort();
    to[0] = from[0], to[1] = from[1];
}
static inline void word_late()
{
    emulator_pass();
}

/* ---- bulk copies: a barrier is a phase, whether its expectation is due, and the bytes due
 * ----------------------- */

struct emulator_barrier {
    uint32_t phase : 1, arrivals_due : 15, arrivals : 16;
    int32_t bytes_due;
};
static inline emulator_barrier *emulator_barrier_at(uint32_t address)
{
    return (emulator_barrier *)(emulator_shared() + address);
}
static inline void emulator_barrier_turn(emulator_barrier *b)
{
    if (b->arrivals_due == 0 && b->bytes_due == 0) b->phase ^= 1, b->arrivals_due = b->arrivals;
}
static inline void bulk_barriers_open(uint32_t barrier, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) *emulator_barrier_at(barrier + 8 * i) = {0, 1, 1, 0};
}
static inline void barrier_open(uint32_t barrier, uint32_t arrivals)
{
    if (arrivals < 1 || arrivals > 32767) abort();
    *emulator_barrier_at(barrier) = {0, arrivals & 32767, arrivals & 32767, 0};
}
static inline void barriers_opened() {}
static inline void barrier_arrive(uint32_t barrier)
{
    emulator_barrier *b = emulator_barrier_at(barrier);
    if (b->arrivals_due < 1) abort();
    b->arrivals_due--;
    emulator_barrier_turn(b);
}
static inline void bulk_expect(uint32_t barrier, uint32_t bytes)
{
    emulator_barrier *b = emulator_barrier_at(barrier);
    if (b->arrivals_due < 1) abort();
    b->arrivals_due--;
    b->bytes_due += (int32_t)bytes;
    emulator_barrier_turn(b);
}
static inline void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    if ((to | bytes | (uint32_t)(size_t)from) % 16 != 0 || bytes == 0) abort();
    emulator_within(from, bytes);
    memcpy(emulator_shared() + to, from, bytes);
    emulator_barrier *b = emulator_barrier_at(barrier);
    b->bytes_due -= (int32_t)bytes;
    emulator_barrier_turn(b);
}
static inline void bulk_after_stores() {}
static inline void bulk_ask_l2(const void *from, uint32_t bytes)
{
    if ((bytes | (uint32_t)(size_t)from) % 16 != 0 || bytes == 0) abort();
    emulator_within(from, bytes);
}
struct emulator_phase {
    uint32_t barrier, parity;
};
static inline bool emulator_phase_over(void *argument)
{
    const emulator_phase *p = (const emulator_phase *)argument;
    return emulator_barrier_at(p->barrier)->phase != p->parity;
}
static inline void bulk_wait(uint32_t barrier, uint32_t parity)
{
    emulator_phase p = {barrier, parity};
    emulator_wait(emulator_phase_over, &p);
}

static inline bool bulk_over(uint32_t barrier, uint32_t parity)
{
    emulator_phase p = {barrier, parity};
    return emulator_phase_over(&p);
}
/* ---- asynchronous copies
 * ------------------------------------------------------------------------------------ */

static inline void copy16_async(uint32_t to, const void *from, bool valid)
{
    if (to % 16 != 0 || (valid && (size_t)from % 16 != 0)) abort();
    emulator_copies_left().open = true;
    if (valid)
        emulator_within(from, 16), memcpy(emulator_shared() + to, from, 16);
    else
        memset(emulator_shared() + to, 0, 16);
}
static inline void copies_commit()
{
    emulator_copies &left = emulator_copies_left();
    left = {false, left.groups << 1 | left.open};
}
template <int N> static inline void copies_wait()
{
    emulator_copies_left().groups &= (1u << N) - 1;
}

/* ---- matrix instructions
 * ------------------------------------------------------------------------------------ */

template <typename T> static inline const float *emulator_numbers(float (*value)(T))
{
    static std::vector<float> number;
    for (uint32_t bits = (uint32_t)number.size(); bits < 65536; bits++)
        number.push_back(value({(uint16_t)bits}));
    return number.data();
}
static inline const float *emulator_numbers_of(__half *)
{
    return emulator_numbers(__half2float);
}
static inline const float *emulator_numbers_of(__nv_bfloat16 *)
{
    return emulator_numbers(__bfloat162float);
}
template <typename T> struct matrix_unit {
    static void add(float d[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
    {
        const uint32_t mine[6] = {a0, a1, a2, a3, b0, b1};
        const double(*product)[8] = emulator_multiply(mine, emulator_numbers_of((T *)0));
        const int lane = threadIdx.x & 31;
        for (int i = 0; i < 4; i++)
            d[i] = (float)(d[i] + product[lane / 4 + (i / 2) * 8][lane % 4 * 2 + i % 2]);
    }
};
static inline uint32_t tf32_of(float x)
{
    return (__float_as_uint(x) + 0x1000u) & ~0x1fffu;
}
struct tf32_unit {
    static void add(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
    {
        const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1}, *all = emulator_exchange(mine, 6),
                       lane = threadIdx.x & 31;
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t row = lane / 4, column = lane % 4 * 2 + i % 2;
            double sum = d[i];
            for (uint32_t k = 0; k < 8; k++)
                sum += (double)__uint_as_float(all[(row * 4 + k % 4) * 8 + k / 4 * 2 + i / 2]) *
                       (double)__uint_as_float(all[(column * 4 + k % 4) * 8 + 4 + k / 4]);
            d[i] = (float)sum;
        }
    }
};
/* Over whole numbers of 8 bits. */
template <bool UNSIGNED> struct bytes_unit {
    static void multiply(int d[4], const uint32_t *a, uint32_t b0, uint32_t b1, int start, uint32_t words)
    {
        const uint32_t mine[6] = {a[0], a[1], words > 1 ? a[2] : 0, words > 1 ? a[3] : 0, b0, b1};
        const int(*product)[8] = emulator_multiply_bytes(mine, words, !UNSIGNED);
        const int lane = threadIdx.x & 31;
        for (int i = 0; i < 4; i++) d[i] = start + product[lane / 4 + (i / 2) * 8][lane % 4 * 2 + i % 2];
    }
    static void add32(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int start)
    {
        multiply(d, a, b0, b1, start, 2);
    }
    static void add16(int d[4], uint32_t a0, uint32_t a1, uint32_t b, int start)
    {
        const uint32_t a[2] = {a0, a1};
        multiply(d, a, b, 0, start, 1);
    }
};
/* A warpgroup's: at once, each warp for itself. */
#define WARPGROUP_MATRIX 1
static inline void warpgroup_begin() {}
static inline void warpgroup_commit() {}
template <int N> static inline void warpgroup_wait() {}
static inline void warpgroup_take(float *) {}
static inline uint64_t warpgroup_columns(uint32_t address)
{
    if (address % 32 != 0) abort();
    return address;
}
template <typename T> struct warpgroup_unit {
    static void add(float d[32], const uint32_t a[4], uint64_t b)
    {
        const uint32_t lane = threadIdx.x & 31;
        for (uint32_t j = 0; j < 8; j++) {
            uint32_t pair[2];
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t at = (uint32_t)b + (j * 8 + lane / 4) * 128 + lane % 4 * 4 + i * 16;
                memcpy(&pair[i], emulator_shared() + (at ^ (at >> 7 & 7) << 4), 4);
            }
            matrix_unit<T>::add(d + 4 * j, a[0], a[1], a[2], a[3], pair[0], pair[1]);
        }
    }
};
static inline float exp2_near(float x)
{
    return exp2f(x);
}
static inline uint32_t halves_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d = 0;
    for (int shift = 0; shift < 32; shift += 16)
        d |= (uint32_t)convert_f32_f16(convert_f16_f32((uint16_t)(a >> shift)) *
                                           convert_f16_f32((uint16_t)(b >> shift)) +
                                       convert_f16_f32((uint16_t)(c >> shift)))
             << shift;
    return d;
}
static inline uint32_t transpose_matrix(uint32_t row)
{
    const uint32_t *all = emulator_exchange(&row, 1);
    const uint32_t lane = threadIdx.x & 31, column = lane / 4, first = lane % 4 * 2;
    uint32_t out = 0;
    for (uint32_t i = 0; i < 2; i++)
        out |= (all[((first + i) * 4 + column / 2) * 8] >> (column & 1) * 16 & 0xffff) << 16 * i;
    return out;
}
static inline uint32_t bf16s_add(uint32_t a, uint32_t b)
{
    uint32_t d = 0;
    for (int shift = 0; shift < 32; shift += 16)
        d |= (uint32_t)__float2bfloat16_rn(__uint_as_float(a >> shift << 16) +
                                           __uint_as_float(b >> shift << 16))
                 .bits
             << shift;
    return d;
}
static inline void load_matrices(uint32_t r[4], uint32_t address)
{
    const uint32_t *all = emulator_exchange(&address, 1);
    const int lane = threadIdx.x & 31;
    for (int i = 0; i < 4; i++)
        memcpy(&r[i], emulator_shared() + all[(i * 8 + lane / 4) * 8] + lane % 4 * 4, 4);
}
static inline void load_matrices_transposed(uint32_t r[4], uint32_t address)
{
    const uint32_t *all = emulator_exchange(&address, 1);
    const int lane = threadIdx.x & 31;
    for (int i = 0; i < 4; i++) {
        uint16_t low, high;
        memcpy(&low, emulator_shared() + all[(i * 8 + lane % 4 * 2) * 8] + lane / 4 * 2, 2);
        memcpy(&high, emulator_shared() + all[(i * 8 + lane % 4 * 2 + 1) * 8] + lane / 4 * 2, 2);
        r[i] = low | (uint32_t)high << 16;
    }
}
