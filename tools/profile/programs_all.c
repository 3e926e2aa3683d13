/* A model's own programs on both processors, in the time that a first start has for them. See profile_tool.h.
 * Called by helm_profile.c; owns the device's process while it measures. */
#include "common/cpu/pool.h"
#include "common/model/mixture.h"
#include "daemon/children/accelerator.h"
#include "tools/profile/profile_tool.h"

/* 20 s together with what is read. On the device; on the CPU as most plans run them and as invariant ones do,
 * alone or beside a device. */
#define GPU_S       6.0 /* most plans' of it two thirds */
#define GPU_ALONE_S 9.0 /* where nothing is measured on the CPU */
#define EMULATED_S  2.0
#define CPU_S       11.0
#define INVARIANT_S 7.0
#define BESIDE_GPU  0.55 /* of the CPU's time */

int profile_programs_model(const char *path, const char *weights, struct model *model, struct helm_err *err)
{
    const int rc = mixture_read_headers(path, weights ? weights : "stored", model, err);
    return rc ? helm_err_prefix(err, "--model") : 0;
}

/* Its process ends where something fails there: that is no reason to have no others. */
static int measure_on_device(const struct profile_programs_all *all, struct profile_device_run **device,
                             struct programs *programs, struct helm_err *err)
{
    const bool emulated = all->accelerator->ledger.kind == LEDGER_DEVICE_EMULATED;
    struct profile_programs_gpu request = {.model = all->model,
                                           .path = all->path,
                                           .weights = all->weights ? all->weights : "stored",
                                           .kv_dtype = all->kv_dtype,
                                           .device = *device,
                                           .vram_free = emulated ? all->accelerator->ledger.limit
                                                                 : all->accelerator->info.vram_free,
                                           .emulated = emulated};
    const struct profile_progress *progress = all->cpu.progress;
    struct helm_err why = {0};
    const double begin_s = units_now_s(), all_s = emulated ? EMULATED_S : all->on_cpu ? GPU_S : GPU_ALONE_S;
    int rc = 0;
    for (int w = 0; w < PROGRAMS_GPU_WAYS && !rc; w++) {
        request.way = (enum programs_gpu_way)w;
        request.seconds = w == PROGRAMS_GPU ? all_s * 2 / 3 : all_s / 3;
        rc = profile_programs_gpu_measure(&request, programs, &why);
    }
    programs->gpu_tried = true;
    if (!rc) {
        profile_say(progress, "the model's programs: on the device in %.1f s", units_now_s() - begin_s);
        return 0;
    }
    profile_say(progress, "the model's programs: not on the device: %s", why.text);
    programs_forget_gpu(programs);
    profile_device_close(*device);
    *device = NULL;
    return all->on_cpu ? profile_device_open(&all->device, device, err) : 0;
}

int profile_programs_all(const struct profile_programs_all *all, struct programs *programs,
                         struct helm_err *err)
{
    struct model model = {0};
    struct profile_programs request = {.cpu = all->cpu,
                                       .model = &model,
                                       .kv_dtype = kv_dtype_named(all->kv_dtype)};
    const double begin_s = units_now_s(), part = all->on_device ? BESIDE_GPU : 1;
    profile_say(all->cpu.progress, "the model's programs: measuring them (up to %.0f s)",
                (all->on_device ? all->on_cpu ? GPU_S : GPU_ALONE_S : 0) +
                    (all->on_cpu ? part * (CPU_S + INVARIANT_S) : 0));
    pin_prefer_node(all->cpu.node);
    int rc = all->accelerator->ledger.kind != LEDGER_DEVICE_NONE
                 ? profile_device_open(&all->device, &request.device, err)
                 : 0;
    if (!rc && all->on_device) rc = measure_on_device(all, &request.device, programs, err);
    for (int invariant = 0; all->on_cpu && invariant < 2 && !rc; invariant++) {
        request.cpu.invariant = invariant;
        request.seconds = part * (invariant ? INVARIANT_S : CPU_S);
        rc = profile_programs_model(all->path, all->weights, &model, err);
        if (!rc) rc = profile_programs_measure(&request, programs, err);
    }
    profile_device_close(request.device);
    if (!rc)
        profile_say(all->cpu.progress, "the model's programs: %u kinds in %.1f s", programs->kinds,
                    units_now_s() - begin_s);
    return rc;
}
