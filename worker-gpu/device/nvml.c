/* The driver's management library. See nvml.h. The link's generation is what it may reach, not what it has
 * just now: an idle one slows down to save power. */
#include "worker-gpu/device/nvml.h"

#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

#define PROCESSES_MAX 128 /* with a context on one device; of more it is not known which is ours */

/* Contexts of this process on the device, by its own number: a container's may be another's outside, so that
 * nvml_taken wants it to grow with the context. */
static void find_own(const struct nvml_entries *e, void *device, struct nvml_answer *answer)
{
    struct nvml_process process[PROCESSES_MAX];
    unsigned count = PROCESSES_MAX;
    if (!e->processes || e->processes(device, &count, process) || count > PROCESSES_MAX) return;
    for (unsigned i = 0; i < count; i++) {
        if (process[i].pid != (unsigned)getpid() || process[i].used_bytes == UINT64_MAX) continue;
        answer->own_known = true;
        answer->own_bytes += process[i].used_bytes;
    }
}

static bool ask_device(const struct nvml_entries *e, const char *bus, struct nvml_answer *answer)
{
    struct {
        unsigned long long total, available, used;
    } memory = {0};
    void *device = NULL;
    unsigned generation = 0, width = 0;
    if (e->find(bus, &device) || e->memory(device, &memory)) return false;
    answer->used_bytes = memory.used;
    find_own(e, device, answer);
    if (!e->driver || e->driver(answer->driver, sizeof answer->driver)) answer->driver[0] = '\0';
    answer->driver[sizeof answer->driver - 1] = '\0';
    if (e->generation && e->width && e->generation(device, &generation) == 0 &&
        e->width(device, &width) == 0) {
        answer->link_generation = generation;
        answer->link_width = width;
    }
    return true;
}

bool nvml_ask_through(const struct nvml_entries *e, const char *bus, struct nvml_answer *answer)
{
    memset(answer, 0, sizeof *answer);
    if (!e->init || !e->end || !e->find || !e->memory || e->init() != 0) return false;
    bool ok = ask_device(e, bus, answer);
    e->end();
    return ok;
}

bool nvml_taken(const struct nvml_answer *before, const struct nvml_answer *after, uint64_t *bytes)
{
    bool own = after->own_known && after->own_bytes > before->own_bytes;
    uint64_t from = own ? before->own_bytes : before->used_bytes,
             to = own ? after->own_bytes : after->used_bytes;
    *bytes = to > from ? to - from : 0;
    return own;
}

bool nvml_ask(const char *bus, struct nvml_answer *answer)
{
    struct nvml_entries e;
    const struct {
        void *at;
        const char *name;
    } list[] = {{&e.init, "nvmlInit_v2"},
                {&e.end, "nvmlShutdown"},
                {&e.find, "nvmlDeviceGetHandleByPciBusId_v2"},
                {&e.memory, "nvmlDeviceGetMemoryInfo"},
                {&e.processes, "nvmlDeviceGetComputeRunningProcesses_v3"},
                {&e.driver, "nvmlSystemGetDriverVersion"},
                {&e.generation, "nvmlDeviceGetMaxPcieLinkGeneration"},
                {&e.width, "nvmlDeviceGetMaxPcieLinkWidth"}};
    memset(answer, 0, sizeof *answer);
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        void *found = dlsym(library, list[i].name);
        memcpy(list[i].at, &found, sizeof found);
    }
    bool ok = nvml_ask_through(&e, bus, answer);
    dlclose(library);
    return ok;
}
