/* Which accelerator there is: --device and --vram turned into something that can be planned for.
 *
 * Called by main.c once, before planning. helmd never loads CUDA: it asks `helm-worker-gpu --probe`, which
 * prints one JSON line, {"devices": [{"name", "uuid", "vram_bytes", "vram_free", "numa_node", "compute",
 * "context_bytes", "driver", "link_generation", "link_width" (the last four optional)}, ...], "error":
 * TEXT (why there is none) or "unusable": TEXT (why one that is there cannot be used)}. The probe's output
 * is bounded and checked; a probe that hangs is killed; its standard error is passed on. */
#pragma once

#include <stddef.h>
#include <string.h>

#include "common/base/err.h"
#include "daemon/planner/memory/ledger.h"

struct profile_gpu; /* daemon/planner/profile/profile.h */

#define ACCELERATOR_COUNT_MAX     16
#define ACCELERATORS_MAX          2                   /* that a plan can use */
#define ACCELERATOR_EMULATED_VRAM ((uint64_t)1 << 30) /* where --vram is not given */

struct accelerator_info {
    char name[96], uuid[64], compute[16], driver[24];
    uint32_t link_generation, link_width;          /* of PCIe; 0 = not stated */
    uint64_t vram_bytes, vram_free, context_bytes; /* context: 0 = not stated */
    int numa_node;                                 /* -1: unknown */
};

struct accelerator {
    struct ledger_device ledger;  /* kind NONE: plan for the CPU */
    char name[16];                /* for LOAD: "cuda:0", "emulated" */
    char text[128];               /* for people */
    char hardware[128];           /* profile_hardware.device: whatever makes a profile of it outdated */
    struct accelerator_info info; /* of a CUDA device, else empty */
    int numa_node;
    bool required;                                         /* asked for by name */
    char why[160];                                         /* kind NONE: the reason */
    struct accelerator_info probed[ACCELERATOR_COUNT_MAX]; /* all that there are, where it was asked */
    uint32_t probed_count, index;                          /* index: of this one */
};

/* --device and --vram: a device and its ceiling each. */
struct accelerator_wish {
    /* As of one device; the second's "": there is to be none, "auto": if there is one. */
    char device[ACCELERATORS_MAX][96];
    uint64_t vram[ACCELERATORS_MAX]; /* 0: not stated */
    bool vram_given;
};
/* Whether nobody named a second device: one that cannot be used is left out, and that is no error. */
static inline bool accelerator_second_unnamed(const struct accelerator_wish *wish)
{
    return strcmp(wish->device[1], "auto") == 0 && !wish->vram_given;
}
/* `devices`: names, comma-separated. `ceilings`: as many sizes; NULL: not given. `auto`, `cuda` and
 * `emulated` are as many devices as there are ceilings; `auto` without ceilings as many as there are.
 * described: names are a profile's, and checked there. HELM_E_USAGE names what is wrong, and the numbers. */
HELM_MUST_CHECK int accelerator_wish_read(const char *devices, const char *ceilings, bool described,
                                          struct accelerator_wish *wish, struct helm_err *err);

/* The NUMA node of weights, caches and compute threads: `wanted`; with -1 the device's; without one, or where
 * that is not known or not allowed, the one with the most memory available. -1: this machine has no NUMA. */
HELM_MUST_CHECK int accelerator_choose_node(const struct accelerator *accelerator, int wanted, int *node,
                                            struct helm_err *err);

/* --device is auto, cpu, emulated, cuda or cuda:N; else HELM_E_USAGE. */
HELM_MUST_CHECK int accelerator_check_option(const char *option, struct helm_err *err);
/* `option`: --device, so checked. `vram_bytes`: --vram, 0 when not given. A device that was asked
 * for and is not there is HELM_E_UNSUPPORTED with the reason; `auto` without one is not an error, and a probe
 * that failed, other than by finding none, is warned of. HELM_E_CANCELLED: helmd was told to end
 * (child_run.h). */
HELM_MUST_CHECK int accelerator_choose(const char *option, uint64_t vram_bytes, const char *worker_program,
                                       struct accelerator *choice, struct helm_err *err);

/* The second device of the wish, after the first was chosen; kind NONE: there is to be none, or there is none
 * and it was `auto` without ceilings. */
HELM_MUST_CHECK int accelerator_choose_second(const struct accelerator_wish *wish,
                                              const struct accelerator *first, struct accelerator *choice,
                                              struct helm_err *err);
/* Whether both are the same model on links alike, so that one's profile is the other's. */
bool accelerator_alike(const struct accelerator *a, const struct accelerator *b);

/* Fills in the ledger's device: a CUDA device that is there or described (helm-plan), or an emulated one.
 * `vram_bytes`: --vram, 0 when not given. */
void accelerator_ledger_cuda(const struct accelerator_info *device, uint64_t vram_bytes,
                             struct ledger_device *ledger);
void accelerator_ledger_emulated(uint64_t vram_bytes, struct ledger_device *ledger);
/* Replaces the assumptions of a CUDA device's probe by its profile's measurements. */
void accelerator_ledger_measured(const struct profile_gpu *measured, struct ledger_device *ledger);

/* Reads a probe's output. HELM_E_NOT_FOUND: no device, HELM_E_UNSUPPORTED: none that can be used, both with
 * the probe's own reason. */
HELM_MUST_CHECK int accelerator_parse(const char *text, size_t length,
                                      struct accelerator_info devices[ACCELERATOR_COUNT_MAX], uint32_t *count,
                                      struct helm_err *err);
