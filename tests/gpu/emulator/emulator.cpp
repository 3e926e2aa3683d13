/* Fibers that stand for the threads of a block: see cuda_runtime.h beside this.
 *
 * One host thread; a fiber's stack is its own, switching saves the registers that calls preserve (x86-64). A
 * warp's fibers run one after another until all wait, then the next warp's; the blocks of a cooperative
 * launch take turns in the same way. A waiting fiber writes down its condition, so that it is not switched to
 * before that has come. State is global because kernels' built-in variables are. */
#pragma GCC optimize("O2") /* -Og is for the many kernels (cuda.mk); this is their inner loop */
#include <stdio.h>
#include <sys/mman.h>

#include <map>
#include <vector>

#include "tests/gpu/emulator/cuda_runtime.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)   ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif

dim3 emulator_thread, emulator_block, emulator_block_dim, emulator_grid_dim;

/* Stacks begin a little apart from each other: frames of a warp's fibers, which take turns, are in the first-level cache
 * together, where equal places of pages are few. */
static const size_t STACK_BYTES = 192 * 1024, STACK_APART = 17 * 64, SHARED_BYTES = 228 * 1024,
                    GUARD_BYTES = 4096;
static const uint32_t THREADS_MAX = 1024;

struct warp_state {
    uint32_t lanes, arrived, generation;
    uint32_t value[2][32 * 8];
    double product[16][8];
    int byte_product[16][8];
};
struct block_state {
    dim3 index;
    void *stack[THREADS_MAX], *pointer[THREADS_MAX];
    bool done[THREADS_MAX];
    bool (*ready[THREADS_MAX])(void *); /* a fiber's condition; none: it may run */
    void *argument[THREADS_MAX];
    emulator_copies copies[THREADS_MAX];
    uint32_t threads, current, alive, arrived, generation;
    uint32_t some_arrived[16], some_generation[16]; /* at threads_meet */
    uint64_t progress;
    warp_state warp[THREADS_MAX / 32];
    unsigned char *shared;
};
/* Kept from launch to launch for their memory. */
static struct block_pool : std::vector<block_state *> {
    ~block_pool()
    {
        for (block_state *b : *this) {
            for (void *stack : b->stack) free(stack);
            ASAN_UNPOISON_MEMORY_REGION(b->shared, SHARED_BYTES + GUARD_BYTES);
            free(b->shared);
            free(b);
        }
    }
} blocks;
static block_state *emu; /* whose turn it is */
static void *home;
static size_t
    shared_bytes; /* of a block's shared memory those that the launch asked for; a guard is after them */
static void (*thread_function)(const void *);
static const void *thread_argument;

/* Saves the registers of the running fiber, keeps its stack pointer in *from and goes on at `to`. */
extern "C" void emulator_switch(void **from, void *to);
__asm__(".text\n.globl emulator_switch\n.type emulator_switch,@function\nemulator_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size emulator_switch,.-emulator_switch\n");

/* Bytes of each piece of memory, by where it begins. */
static std::map<size_t, size_t> pieces;

void *emulator_alloc(size_t bytes)
{
    void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (p) pieces[(size_t)p] = bytes;
    return p;
}
void emulator_free(void *p)
{
    pieces.erase((size_t)p);
    free(p);
}
void emulator_within(const void *from, size_t bytes)
{
    const size_t at = (size_t)from;
    auto behind = pieces.upper_bound(at);
    if (behind != pieces.begin()) {
        const auto &piece = *--behind;
        if (at + bytes <= piece.first + piece.second) return;
    }
    fprintf(stderr, "emulator: %zu bytes at %p are not within what was allocated\n", bytes, from);
    abort();
}

unsigned char *emulator_shared(void)
{
    return emu->shared;
}

static inline bool turned(void *argument);

/* The first fiber from `index` on, of the warp that ends at `end`, that may run; `end` if none may. */
static uint32_t next_fiber(const block_state *b, uint32_t index, uint32_t end)
{
    for (; index < end; index++) {
        if (b->done[index]) continue;
        if (!b->ready[index]) break;
        if (b->ready[index] == turned ? turned(b->argument[index]) : b->ready[index](b->argument[index]))
            break;
    }
    return index;
}

static uint32_t warp_end(const block_state *b, uint32_t index)
{
    const uint32_t end = index / 32 * 32 + 32;
    return end < b->threads ? end : b->threads;
}

/* Goes on with fiber `index`, or with `home` where that is the warp's end. */
static void go_on(void **from, uint32_t index, uint32_t end)
{
    emu->current = index;
    emulator_thread = dim3(index, 0, 0);
    emulator_switch(from, index < end ? emu->pointer[index] : home);
}

/* Later fibers of the warp run, in their order. */
static void yield(void)
{
    const uint32_t index = emu->current, end = warp_end(emu, index);
    go_on(&emu->pointer[index], next_fiber(emu, index + 1, end), end);
}

void emulator_wait(bool (*ready)(void *), void *argument)
{
    block_state *b = emu;
    const uint32_t index = b->current;
    if (!ready(argument)) {
        b->ready[index] = ready, b->argument[index] = argument;
        yield();
        b->ready[index] = nullptr;
    }
    b->progress++;
}

void emulator_pass(void)
{
    yield();
}

static void arrive(uint32_t *arrived, uint32_t *generation, uint32_t of)
{
    if (++*arrived == of) *arrived = 0, ++*generation;
}
struct turn {
    const uint32_t *generation;
    uint32_t before;
};
static inline bool turned(void *argument)
{
    const turn *t = (const turn *)argument;
    return *t->generation != t->before;
}

static uint32_t *put(warp_state *w, const uint32_t *value, int words)
{
    uint32_t *all = w->value[w->generation & 1];
    for (int i = 0; i < words; i++) all[emu->current % 32 * 8 + (uint32_t)i] = value[i];
    return all;
}

const uint32_t *emulator_exchange(const uint32_t *value, int words)
{
    warp_state *w = &emu->warp[emu->current / 32];
    turn t = {&w->generation, w->generation};
    const uint32_t *all = put(w, value, words);
    arrive(&w->arrived, &w->generation, w->lanes);
    emulator_wait(turned, &t);
    return all;
}

/* Two elements of a word, in order of k. */
static inline void elements(uint32_t pair, const float *number, double *low, double *high)
{
    *low = number[pair & 0xffff], *high = number[pair >> 16];
}

/* Twice for wider vectors, chosen when the program starts: before a sanitizer is there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WIDE_VECTORS
#else
#define WIDE_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

/* a (16 x 16) times b (16 x 8), both as the lanes hold their fragments of them. */
WIDE_VECTORS static void multiply(const uint32_t *all, const float *number, double product[16][8])
{
    typedef double row_of_8 __attribute__((vector_size(64)));
    double a[16][16];
    alignas(64) double b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const uint32_t *of = all + lane * 8;
        const int row = lane / 4, k = lane % 4 * 2;
        for (int part = 0; part < 4; part++) {
            double *to = &a[row + part % 2 * 8][k + part / 2 * 8];
            elements(of[part], number, &to[0], &to[1]);
        }
        for (int part = 0; part < 2; part++)
            elements(of[4 + part], number, &b[k + part * 8][row], &b[k + 1 + part * 8][row]);
    }
    for (int row = 0; row < 16; row++) {
        row_of_8 sum = {}, column;
        for (int k = 0; k < 16; k++) {
            memcpy(&column, b[k], sizeof column);
            sum += a[row][k] * column;
        }
        memcpy(product[row], &sum, sizeof sum);
    }
}

const double (*emulator_multiply(const uint32_t fragments[6], const float *number))[8]
{
    warp_state *w = &emu->warp[emu->current / 32];
    turn t = {&w->generation, w->generation};
    const uint32_t *all = put(w, fragments, 6);
    if (w->lanes != 32) abort();
    /* a product is read by every lane before all have come again */
    if (w->arrived + 1 == w->lanes) multiply(all, number, w->product);
    arrive(&w->arrived, &w->generation, w->lanes);
    emulator_wait(turned, &t);
    return w->product;
}

/* a (16 x 32, or x 16) times b (32 x 8), both as the lanes hold their fragments of them. */
WIDE_VECTORS static void multiply_bytes(const uint32_t *all, uint32_t words, bool is_signed,
                                        int product[16][8])
{
    typedef int row_of_8 __attribute__((vector_size(32)));
    int a[16][32];
    alignas(32) int b[32][8];
    for (uint32_t k = 0; k < 16 * words; k++) {
        const uint32_t from = k % 16 / 4, high = k / 16, shift = k % 4 * 8;
        for (uint32_t row = 0; row < 16; row++) {
            const uint32_t byte = all[(row % 8 * 4 + from) * 8 + 2 * high + row / 8] >> shift & 255;
            a[row][k] = is_signed ? (int8_t)byte : (int)byte;
        }
        for (uint32_t column = 0; column < 8; column++)
            b[k][column] = (int8_t)(all[(column * 4 + from) * 8 + 4 + high] >> shift & 255);
    }
    for (uint32_t row = 0; row < 16; row++) {
        row_of_8 sum = {}, columns;
        for (uint32_t k = 0; k < 16 * words; k++) {
            memcpy(&columns, b[k], sizeof columns);
            sum += a[row][k] * columns;
        }
        memcpy(product[row], &sum, sizeof sum);
    }
}

const int (*emulator_multiply_bytes(const uint32_t fragments[6], uint32_t words, bool is_signed))[8]
{
    warp_state *w = &emu->warp[emu->current / 32];
    turn t = {&w->generation, w->generation};
    const uint32_t *all = put(w, fragments, 6);
    if (w->lanes != 32) abort();
    if (w->arrived + 1 == w->lanes) multiply_bytes(all, words, is_signed, w->byte_product);
    arrive(&w->arrived, &w->generation, w->lanes);
    emulator_wait(turned, &t);
    return w->byte_product;
}
void __syncwarp(void)
{
    const uint32_t nothing = 0;
    emulator_exchange(&nothing, 1);
}
void __syncthreads(void)
{
    turn t = {&emu->generation, emu->generation};
    arrive(&emu->arrived, &emu->generation, emu->alive);
    emulator_wait(turned, &t);
}
void threads_meet(uint32_t number, uint32_t count)
{
    if (number == 0 || number > 15 || count % 32 != 0 || count > emu->threads) abort();
    turn t = {&emu->some_generation[number], emu->some_generation[number]};
    arrive(&emu->some_arrived[number], &emu->some_generation[number], count);
    emulator_wait(turned, &t);
}

static void say(const char *what, const block_state *b)
{
    fprintf(stderr, "emulator: block (%u, %u, %u) %s\n", b->index.x, b->index.y, b->index.z, what);
}

emulator_copies &emulator_copies_left(void)
{
    return emu->copies[emu->current];
}

static void fiber_main(void)
{
    thread_function(thread_argument);
    const uint32_t index = emu->current;
    if (emu->copies[index].open || emu->copies[index].groups) {
        say("has a thread that ends with asynchronous copies on their way", emu);
        abort();
    }
    warp_state *w = &emu->warp[index / 32];
    emu->done[index] = true;
    emu->progress++;
    /* waiting threads no longer wait for this one */
    w->lanes--;
    if (w->lanes && w->arrived == w->lanes) w->arrived = 0, w->generation++;
    emu->alive--;
    if (emu->alive && emu->arrived == emu->alive) emu->arrived = 0, emu->generation++;
    const uint32_t end = warp_end(emu, index);
    go_on(&emu->pointer[index], next_fiber(emu, index + 1, end), end);
}

/* A block ready to run in place `at` of those that run together. */
static void open_block(size_t at, dim3 index, uint32_t threads)
{
    if (at == blocks.size()) {
        blocks.push_back((block_state *)calloc(1, sizeof(block_state)));
        blocks[at]->shared = (unsigned char *)aligned_alloc(1024, SHARED_BYTES + GUARD_BYTES);
    }
    block_state *b = blocks[at];
    b->index = index;
    b->threads = b->alive = threads, b->arrived = 0;
    memset(b->some_arrived, 0, sizeof b->some_arrived);
    ASAN_UNPOISON_MEMORY_REGION(b->shared, SHARED_BYTES + GUARD_BYTES);
    memset(b->shared, 0xff, shared_bytes + GUARD_BYTES);
    ASAN_POISON_MEMORY_REGION(b->shared + shared_bytes, SHARED_BYTES + GUARD_BYTES - shared_bytes);
    for (uint32_t i = 0; i < threads; i++) {
        if (!b->stack[i]) b->stack[i] = aligned_alloc(64, STACK_BYTES);
        b->done[i] = false, b->ready[i] = nullptr, b->copies[i] = {false, 0};
        void **top = (void **)((char *)b->stack[i] + STACK_BYTES - i % 32 * STACK_APART) -
                     2; /* 16-byte aligned at the call */
        *top = (void *)fiber_main;
        b->pointer[i] = top - 6;
        warp_state *w = &b->warp[i / 32];
        if (i % 32 == 0) w->lanes = 0, w->arrived = 0;
        w->lanes++;
    }
}

/* Lets every thread of a block run until it waits; whether anything moved. */
static bool run_block(block_state *b)
{
    const uint64_t before = b->progress;
    emu = b;
    emulator_block = b->index;
    for (uint32_t first = 0; first < b->threads; first += 32) {
        const uint32_t end = warp_end(b, first);
        uint64_t last;
        do {
            last = b->progress;
            const uint32_t index = next_fiber(b, first, end);
            if (index < end) go_on(&home, index, end);
        } while (b->progress != last);
    }
    return b->progress != before;
}

void __trap(void)
{
    say("trapped", emu);
    abort();
}

static void check_guard(const block_state *b)
{
    const unsigned char *guard = b->shared + shared_bytes;
    ASAN_UNPOISON_MEMORY_REGION(guard, GUARD_BYTES);
    if (*guard == 0xff && memcmp(guard, guard + 1, GUARD_BYTES - 1) == 0) return;
    say("wrote behind its shared memory", b);
    abort();
}

/* Runs the first `count` blocks together to their ends. */
static void run_blocks(size_t count)
{
    for (;;) {
        bool moved = false, alive = false;
        for (size_t i = 0; i < count; i++) {
            if (blocks[i]->alive && run_block(blocks[i])) moved = true;
            alive = alive || blocks[i]->alive;
        }
        if (!alive) break;
        if (moved) continue;
        for (size_t i = 0; i < count; i++)
            if (blocks[i]->alive) say("waits for ever", blocks[i]);
        abort();
    }
    for (size_t i = 0; i < count; i++) check_guard(blocks[i]);
}

cudaError_t emulator_launch(const cudaLaunchConfig_t *config, void (*thread)(const void *),
                            const void *argument)
{
    const uint32_t threads = config->blockDim.x;
    const dim3 grid = config->gridDim;
    if (threads == 0 || threads > THREADS_MAX || config->blockDim.y != 1 || config->blockDim.z != 1 ||
        config->dynamicSmemBytes > SHARED_BYTES || grid.x == 0 || grid.y == 0 || grid.y > 65535 ||
        grid.z == 0 || grid.z > 65535)
        return cudaErrorInvalidValue;
    bool together = false;
    for (unsigned i = 0; i < config->numAttrs; i++)
        together = together || (config->attrs[i].id == cudaLaunchAttributeCooperative &&
                                config->attrs[i].val.cooperative);
    thread_function = thread;
    thread_argument = argument;
    shared_bytes = config->dynamicSmemBytes;
    emulator_block_dim = config->blockDim;
    emulator_grid_dim = grid;
    size_t open = 0;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                open_block(open++, dim3(x, y, z), threads);
                if (!together) run_blocks(open), open = 0;
            }
    if (together) run_blocks(open);
    return cudaSuccess;
}
