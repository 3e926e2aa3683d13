/* Fibers that stand for the threads of a block: see cuda_runtime.h beside this.
 *
 * One host thread; a fiber's stack is its own, switching saves the registers that calls preserve (x86-64). A
 * warp's fibers run one after another until all wait, then the next warp's. State is global because kernels'
 * built-in variables are. */
#include <stdio.h>
#include <sys/mman.h>

#include <vector>

#include "tests/gpu/emulator/cuda_runtime.h"

dim3 emulator_thread, emulator_block, emulator_block_dim, emulator_grid_dim;

static const size_t STACK_BYTES = 128 * 1024, SHARED_BYTES = 228 * 1024;
static const uint32_t THREADS_MAX = 1024;

struct warp_state {
    uint32_t lanes, arrived, generation;
    uint32_t value[2][32 * 8];
};
static struct {
    void *stack[THREADS_MAX], *pointer[THREADS_MAX], *home;
    bool done[THREADS_MAX];
    uint32_t current, alive, arrived, generation;
    uint64_t progress;
    warp_state warp[THREADS_MAX / 32];
    const std::function<void()> *thread;
    unsigned char *shared;
} emu;

/* Saves the registers of the running fiber, keeps its stack pointer in *from and goes on at `to`. */
extern "C" void emulator_switch(void **from, void *to);
__asm__(".text\n.globl emulator_switch\n.type emulator_switch,@function\nemulator_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
        ".size emulator_switch,.-emulator_switch\n");

unsigned char *emulator_shared(void)
{
    return emu.shared;
}

static void yield_home(void)
{
    const dim3 mine = emulator_thread;
    const uint32_t index = emu.current;
    emulator_switch(&emu.pointer[index], emu.home);
    emulator_thread = mine;
    emu.current = index;
}

void emulator_wait(bool (*ready)(void *), void *argument)
{
    while (!ready(argument)) yield_home();
    emu.progress++;
}

static void arrive(uint32_t *arrived, uint32_t *generation, uint32_t of)
{
    if (++*arrived == of) *arrived = 0, ++*generation;
}
struct turn {
    const uint32_t *generation;
    uint32_t before;
};
static bool turned(void *argument)
{
    const turn *t = (const turn *)argument;
    return *t->generation != t->before;
}

const uint32_t *emulator_exchange(const uint32_t *value, int words)
{
    warp_state *w = &emu.warp[emu.current / 32];
    turn t = {&w->generation, w->generation};
    uint32_t *all = w->value[w->generation & 1];
    for (int i = 0; i < words; i++) all[emu.current % 32 * 8 + (uint32_t)i] = value[i];
    arrive(&w->arrived, &w->generation, w->lanes);
    emulator_wait(turned, &t);
    return all;
}
void __syncwarp(void)
{
    const uint32_t nothing = 0;
    emulator_exchange(&nothing, 1);
}
void __syncthreads(void)
{
    turn t = {&emu.generation, emu.generation};
    arrive(&emu.arrived, &emu.generation, emu.alive);
    emulator_wait(turned, &t);
}

static void fiber_main(void)
{
    (*emu.thread)();
    const uint32_t index = emu.current;
    warp_state *w = &emu.warp[index / 32];
    emu.done[index] = true;
    emu.progress++;
    /* those who wait no longer wait for this one */
    w->lanes--;
    if (w->lanes && w->arrived == w->lanes) w->arrived = 0, w->generation++;
    emu.alive--;
    if (emu.alive && emu.arrived == emu.alive) emu.arrived = 0, emu.generation++;
    emulator_switch(&emu.pointer[index], emu.home);
}

static void run_block(uint32_t threads)
{
    emu.alive = threads, emu.arrived = 0;
    memset(emu.shared, 0xff, SHARED_BYTES);
    for (uint32_t i = 0; i < threads; i++) {
        emu.done[i] = false;
        void **top = (void **)((char *)emu.stack[i] + STACK_BYTES) - 2; /* 16-byte aligned at the call */
        *top = (void *)fiber_main;
        emu.pointer[i] = top - 6;
        warp_state *w = &emu.warp[i / 32];
        if (i % 32 == 0) w->lanes = 0, w->arrived = 0;
        w->lanes++;
    }
    while (emu.alive) {
        const uint64_t before = emu.progress;
        for (uint32_t first = 0; first < threads; first += 32) {
            uint64_t last;
            do {
                last = emu.progress;
                for (uint32_t i = first; i < first + 32 && i < threads; i++) {
                    if (emu.done[i]) continue;
                    emu.current = i;
                    emulator_thread = dim3(i, 0, 0);
                    emulator_switch(&emu.home, emu.pointer[i]);
                }
            } while (emu.progress != last);
        }
        if (emu.progress == before && emu.alive) {
            fprintf(stderr, "emulator: block (%u, %u, %u) waits for ever\n", emulator_block.x,
                    emulator_block.y, emulator_block.z);
            abort();
        }
    }
}

cudaError_t emulator_launch(const cudaLaunchConfig_t *config, const std::function<void()> &thread)
{
    const uint32_t threads = config->blockDim.x;
    if (threads == 0 || threads > THREADS_MAX || config->blockDim.y != 1 || config->blockDim.z != 1 ||
        config->dynamicSmemBytes > SHARED_BYTES || config->gridDim.x == 0 || config->gridDim.y == 0 ||
        config->gridDim.y > 65535 || config->gridDim.z == 0 || config->gridDim.z > 65535)
        return cudaErrorInvalidValue;
    if (!emu.shared) emu.shared = (unsigned char *)aligned_alloc(1024, SHARED_BYTES);
    for (uint32_t i = 0; i < threads; i++)
        if (!emu.stack[i]) emu.stack[i] = aligned_alloc(64, STACK_BYTES);
    emu.thread = &thread;
    emulator_block_dim = config->blockDim;
    emulator_grid_dim = config->gridDim;
    for (unsigned z = 0; z < config->gridDim.z; z++)
        for (unsigned y = 0; y < config->gridDim.y; y++)
            for (unsigned x = 0; x < config->gridDim.x; x++) {
                emulator_block = dim3(x, y, z);
                run_block(threads);
            }
    return cudaSuccess;
}
