/* The machine's best rates, measured with loops that do nothing else: the limits that helm-bench-kernels (and
 * the planner's profile) set beside every kernel's result.
 *
 * Pure functions; callers check the features first. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PROBE_STREAMS_MAX 8

/* Reads `bytes` (64-byte aligned, rounded down to whole streams) as `streams` (1, 2, 4, 8) contiguous streams
 * with whole-register loads, each fetching `ahead` bytes early (0: leave it to the hardware). The sum keeps
 * the loads. */
typedef uint64_t probe_read_fn(const void *data, size_t bytes, unsigned streams, size_t ahead);
probe_read_fn probe_avx2_read, probe_avx512_read;

/* A register-only loop of `rounds`; returns the floating-point operations done. */
typedef double probe_flops_fn(size_t rounds);
probe_flops_fn probe_avx2_flops, probe_avx512_flops, probe_avx512bf16_flops;
/* The thread must have configured its tiles (linear_kernel.thread_begin of amx-bf16). */
probe_flops_fn probe_amx_flops;
