/* Profiles that tests make. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/cpu.h"
#include "common/base/units.h"
#include "daemon/planner/profile/gpus.h"
#include "tests/unit/common/base/tree.h"

static inline struct profile_value measured(double value)
{
    return (struct profile_value){value, value * 0.9, value * 1.25, PROFILE_MEASURED};
}

static inline void add_point(struct profile_table *table, uint32_t x, double value)
{
    table->point[table->count++] = (struct profile_point){x, measured(value)};
}

/* A machine with everything in it. */
static inline struct profile whole(void)
{
    struct profile p = {.fingerprint = "00ff", .machine = "test \"machine\"", .made = "2026-11-20"};
    snprintf(p.cpu.name, sizeof p.cpu.name, "A CPU");
    p.cpu.threads = 16;
    p.cpu.l3_bytes = 300 * MIB;
    add_point(&p.cpu.read, 1, 12e9);
    add_point(&p.cpu.read, 4, 42e9);
    add_point(&p.cpu.read, 16, 115e9);
    p.cpu.gemv = measured(105e9);
    p.cpu.gemv_beside = measured(80e9);
    p.cpu.read_beside = measured(85e9);
    add_point(&p.cpu.linear, 2, 200e9);
    add_point(&p.cpu.linear, 512, 2000e9);
    p.cpu.attention = measured(90e9);
    p.cpu.attention_flops = measured(500e9);
    p.cpu.operation = measured(3.1e-6);
    p.gpu.device = PROFILE_DEVICE_CUDA;
    snprintf(p.gpu.name, sizeof p.gpu.name, "NVIDIA H200");
    snprintf(p.gpu.uuid, sizeof p.gpu.uuid, "GPU-1234");
    snprintf(p.gpu.compute, sizeof p.gpu.compute, "9.0");
    p.gpu.vram_bytes = 140 * GIB;
    p.gpu.vram_free = 139 * GIB;
    p.gpu.context_bytes = 600 * MIB;
    p.gpu.read = measured(4540e9);
    p.gpu.gemv = measured(4100e9);
    add_point(&p.gpu.linear, 2, 7e12);
    add_point(&p.gpu.linear, 512, 500e12);
    p.gpu.attention = measured(3000e9);
    p.gpu.attention_flops = measured(300e12);
    p.gpu.operation = measured(1.1e-6);
    p.gpu.launch = measured(4e-6);
    p.gpu.gemv_packed = measured(3200e9);
    p.gpu.chain_gemv = measured(4300e9);
    p.gpu.chain_attention = measured(2900e9);
    p.gpu.chain_operation = measured(0.9e-6);
    p.gpu.chain_attention_pair = measured(3600e9);
    p.gpu.attention_direct = measured(46e9);
    add_point(&p.gpu.linear_operation, 128, 6.5e-6);
    add_point(&p.gpu.attention_rows, 4096, 40e12);
    p.cpu.gemv_packed = measured(135e9);
    p.cpu.gemv_packed_beside = measured(95e9);
    p.gpu.begin = measured(50e-6);
    p.gpu.begin_graph = measured(30e-6);
    p.wake = measured(45e-6);
    p.link.h2d_beside_packed = measured(53e9);
    p.link.generation = 5;
    p.link.width = 16;
    p.link.h2d = measured(55.4e9);
    p.link.d2h = measured(52e9);
    p.link.h2d_beside = measured(54e9);
    p.link.h2d_beside_read = measured(51e9);
    p.link.direct = (struct profile_value){51e9, 51e9, 51e9, PROFILE_TEXT_SAYS};
    p.link.latency = measured(2e-6);
    p.link.hand_over = measured(3.5e-6);
    p.gpu.launch = (struct profile_value){3.2e-6, 3.2e-6, 3.2e-6, PROFILE_SHEET};
    p.step = (struct profile_value){20e-6, 10e-6, 40e-6, PROFILE_ESTIMATE};
    return p;
}

static const struct cpu_set four = {.cpu = {0, 1, 2, 5}, .count = 4, .cores = 4, .suggested = 4};
