/* Which profile is planned with: the file that --profile names, else the cached one of this hardware, else
 * one that is measured now.
 *
 * Called by main.c: for a profile once, after the device is chosen and before planning; for what memory gives
 * now once, when there is a plan. helmd measures nothing itself: it runs `helm-profile`, beside its own
 * program like the workers', reads the profile that it prints, and shows its other lines in the log. That the
 * profile cannot be kept is a warning, and the next start measures again. There is no plan without a profile:
 * a measuring that fails is an error that names the way out, --profile. */
#pragma once

#include "daemon/children/accelerator.h"
#include "daemon/planner/profile/now.h"
#include "daemon/planner/profile/profile.h"
#include "daemon/planner/profile/programs.h"

struct profiling_request {
    const char *file;                 /* --profile, or NULL */
    const char *program_dir;          /* where helm-profile is; NULL: beside helmd */
    const struct accelerator *device; /* that will be planned for */
    bool exactly;                     /* no other device's entry of a profile serves */
    uint32_t threads;                 /* as asked for, 0: the worker's choice */
    int node;                         /* NUMA node as asked for, -1: as accelerator_choose_node does */
    uint64_t copy_bytes_per_s;        /* of the emulated device; 0: as fast as memory */
    unsigned formats;                 /* of the weights that will be planned (format_bit) */
    bool dense; /* those formats are all that the plan needs: no mixture, no bf16, a cache of numbers */
    struct profile_reads reads; /* --now: by what host memory is read */
    int parent_fd;              /* the measuring ends when its writer closes it; -1: none */
};

/* *fresh: the machine was measured now. Formats that the cached profile lacks are measured; that this fails
 * is a warning, and the plan's forecasts are then as if of bf16. HELM_E_CANCELLED: the parent has gone, or
 * helmd was told to end (child_run.h), while it was measured. */
HELM_MUST_CHECK int profiling_get(const struct profiling_request *request, struct profile *profile,
                                  bool *fresh, struct helm_err *err);

/* The model's own programs on this machine, for `profile`: the kept ones, or measured now (20 s at most, on
 * the device alone 7 s) where the profile is this machine's. *programs has no kinds where there are none, and
 * all is priced by rates: that they could not be measured is a warning. HELM_E_CANCELLED as above. */
struct profiling_model {
    const struct model *model;
    const char *weights; /* --weights; NULL: as stored */
    const char *kv_dtype;
    bool device_alone; /* no plan has the CPU compute any of it */
};
HELM_MUST_CHECK int profiling_programs(const struct profiling_request *request,
                                       const struct profiling_model *model, const struct profile *profile,
                                       struct programs *programs, struct helm_err *err);

/* --now: "auto" measures where the profile is this machine's and not `fresh`, no device is emulated and the
 * plan has a use for it; "on" anywhere, "off" nowhere; or a file, as `helm-profile --now` prints it. The
 * answer is in the log. */
#define PROFILING_NOW_AUTO "auto"
/* The memory's rates now, compared with this profile's. used: whether steps of the plan read host memory. A
 * failed measurement is a warning under "auto" and an error under "on". HELM_E_CANCELLED as above. */
HELM_MUST_CHECK int profiling_now(const struct profiling_request *request, const char *option, bool used,
                                  bool fresh, const struct profile *profile, struct machine_now *now,
                                  struct helm_err *err);
