/* The machine that helm-plan plans for. See options.h. Called by helm_plan.c; owns nothing. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/node.h"
#include "common/base/start.h"
#include "common/base/units.h"
#include "daemon/children/worker_process.h"
#include "tools/plan/options.h"

#define GPU_WORKER "helm-worker-gpu"

/* A GPU that a profile describes, with a ceiling. */
static void describe_device(const struct profile_gpu *gpu, uint64_t vram, struct ledger_device *ledger)
{
    const struct accelerator_info device = {.vram_bytes = gpu->vram_bytes,
                                            .vram_free = gpu->vram_free,
                                            .context_bytes = gpu->context_bytes};
    char asked[UNITS_TEXT], there[UNITS_TEXT];
    *ledger = (struct ledger_device){.limit = UINT64_MAX};
    if (gpu->device == PROFILE_DEVICE_CUDA)
        accelerator_ledger_cuda(&device, vram, ledger);
    else if (gpu->device == PROFILE_DEVICE_EMULATED)
        accelerator_ledger_emulated(vram, ledger);
    if (gpu->device == PROFILE_DEVICE_CUDA && vram > gpu->vram_bytes)
        log_warn("--vram %s: the profile's GPU has %s", units_format_size(vram, asked),
                 units_format_size(gpu->vram_bytes, there));
}

/* The second GPU of the file, where the options have one: with one name the next one that there is. A GPU
 * that is alone in its file stands for two where there are two ceilings. */
static int describe_second(const struct options *o, struct profile *profile, struct profile *second,
                           struct planner_request *r, struct helm_err *err)
{
    const char *name = o->devices.device[1];
    const bool any = !strchr(o->device, ','), automatic = strcmp(name, "auto") == 0;
    struct helm_err none = {0};
    if (!name[0]) return 0;
    const int rc = profile_read(o->profile, automatic ? "cuda:1" : name, second, &none);
    const bool alone = rc == HELM_E_NOT_FOUND && any;
    if (alone && !o->devices.vram_given) return 0;
    if (rc && !alone) return helm_fail(err, rc, "%s: %.400s", o->profile, none.text);
    if (!alone) profile->second = second;
    describe_device(alone ? &profile->gpu : &second->gpu, o->devices.vram[1], &r->machine.second);
    return 0;
}

/* The device and the memory of the machine that a profile describes. */
int machine_describe(const struct options *o, bool able, struct profile *profile, struct profile *second,
                     struct planner_request *r, struct helm_err *err)
{
    struct cgroup_memory *memory = &r->machine.memory;
    if (o->devices.vram_given && profile->gpu.device == PROFILE_DEVICE_NONE)
        return helm_fail(err, HELM_E_USAGE, "--vram: the profile's machine has no GPU");
    describe_device(&profile->gpu, o->devices.vram[0], &r->machine.device);
    const int rc =
        able && profile->gpu.device != PROFILE_DEVICE_NONE ? describe_second(o, profile, second, r, err) : 0;
    if (rc) return rc;
    if (able)
        snprintf(r->no_device, sizeof r->no_device, "%s",
                 strcmp(o->device, "cpu") == 0 ? "--device cpu" : "the profile's machine has none");
    else
        r->machine.device = (struct ledger_device){.limit = UINT64_MAX};
    if (!profile->host_bytes && !o->host_memory_bytes) return cgroup_read_memory(memory, err);
    /* --host-memory alone limits then, and the ledger says so */
    uint64_t bytes = o->host_memory_bytes ? PLAN_BYTES_MAX : profile->host_bytes;
    *memory = (struct cgroup_memory){.limit_bytes = CGROUP_UNLIMITED,
                                     .machine_bytes = bytes,
                                     .available_bytes = bytes};
    return 0;
}

static int wanted_node(const struct options *o)
{
    return o->node_given ? (int)o->node : -1;
}

/* The profile that helm-profile left of this machine with one device. */
static int read_kept(const struct options *o, const struct accelerator *device, struct profile *profile,
                     struct ledger_device *ledger, struct helm_err *err)
{
    struct profile_hardware hardware = {.threads = 0, .node = wanted_node(o)};
    char path[PATH_TEXT], fingerprint[72];
    snprintf(hardware.device, sizeof hardware.device, "%s", device->hardware);
    int rc = profile_fingerprint(&hardware, fingerprint, NULL, 0, err);
    if (!rc) rc = profile_cache_path(fingerprint, path, sizeof path, err);
    if (rc) return rc;
    if (access(path, F_OK))
        return helm_fail(
            err, HELM_E_NOT_FOUND,
            "there is no profile of this machine (%.250s): `helm-profile --device %s` makes one in a "
            "minute, --profile FILE takes another machine's",
            path, device->name[0] ? device->name : "cpu");
    rc = profile_read(path, NULL, profile, err);
    if (!rc) accelerator_ledger_measured(&profile->gpu, ledger);
    return rc ? helm_err_prefix(err, "the profile of this machine cannot be used (helm-profile renews it)")
              : 0;
}

/* This machine: its devices, its memory, and its profile; a second one's where that is another model. */
int machine_find(const struct options *o, bool able, struct profile *profile, struct profile *second,
                 struct planner_request *r, struct helm_err *err)
{
    int node = -1;
    static struct accelerator device, other; /* large */
    struct helm_err none = {0};
    char program[PATH_TEXT] = "";
    /* A missing program is reported by the choice of the device. */
    if (worker_process_find(NULL, GPU_WORKER, program, sizeof program, &none)) program[0] = 0;
    int rc = start_check_proc(err);
    if (!rc)
        rc = accelerator_choose(able ? o->devices.device[0] : "cpu", o->devices.vram[0], program, &device,
                                err);
    if (!rc) rc = accelerator_choose_second(&o->devices, &device, &other, err);
    if (!rc) rc = accelerator_choose_node(&device, wanted_node(o), &node, err);
    if (!rc) rc = node_read_memory(node, &r->machine.memory, err);
    if (rc) return rc;
    r->machine.device = device.ledger;
    r->machine.second = other.ledger;
    if (able) snprintf(r->no_device, sizeof r->no_device, "%s", device.why);
    rc = read_kept(o, &device, profile, &r->machine.device, err);
    if (rc || other.ledger.kind == LEDGER_DEVICE_NONE) return rc;
    if (accelerator_alike(&device, &other)) {
        accelerator_ledger_measured(&profile->gpu, &r->machine.second);
        return 0;
    }
    rc = read_kept(o, &other, second, &r->machine.second, err);
    if (!rc) profile->second = second;
    if (rc != HELM_E_NOT_FOUND || !accelerator_second_unnamed(&o->devices)) return rc;
    fprintf(stderr, "helm-plan: %s is left out: %s\n", other.name, err->text);
    r->machine.second.kind = LEDGER_DEVICE_NONE;
    *err = (struct helm_err){0};
    return 0;
}
