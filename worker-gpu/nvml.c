/* The driver's management library. See nvml.h. The link's generation is what it may reach, not what it has
 * just now: an idle one slows down to save power. */
#include "worker-gpu/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Of the library's interface, which has no header here; every call returns 0 when it worked. */
struct entries {
    int (*init)(void), (*end)(void);
    int (*find)(const char *bus, void **device);
    int (*memory)(void *device, void *total_free_used);
    int (*driver)(char *text, unsigned size);
    int (*generation)(void *device, unsigned *generation);
    int (*width)(void *device, unsigned *width);
};

static bool ask_device(const struct entries *e, const char *bus, struct nvml_answer *answer)
{
    struct {
        unsigned long long total, available, used;
    } memory = {0};
    void *device = NULL;
    unsigned generation = 0, width = 0;
    if (e->find(bus, &device) || e->memory(device, &memory)) return false;
    answer->used_bytes = memory.used;
    if (!e->driver || e->driver(answer->driver, sizeof answer->driver)) answer->driver[0] = '\0';
    answer->driver[sizeof answer->driver - 1] = '\0';
    if (e->generation && e->width && e->generation(device, &generation) == 0 &&
        e->width(device, &width) == 0) {
        answer->link_generation = generation;
        answer->link_width = width;
    }
    return true;
}

bool nvml_ask(const char *bus, struct nvml_answer *answer)
{
    struct entries e;
    const struct {
        void *at;
        const char *name;
    } list[] = {{&e.init, "nvmlInit_v2"},
                {&e.end, "nvmlShutdown"},
                {&e.find, "nvmlDeviceGetHandleByPciBusId_v2"},
                {&e.memory, "nvmlDeviceGetMemoryInfo"},
                {&e.driver, "nvmlSystemGetDriverVersion"},
                {&e.generation, "nvmlDeviceGetMaxPcieLinkGeneration"},
                {&e.width, "nvmlDeviceGetMaxPcieLinkWidth"}};
    bool ok = false;
    memset(answer, 0, sizeof *answer);
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        void *found = dlsym(library, list[i].name);
        memcpy(list[i].at, &found, sizeof found);
    }
    if (e.init && e.end && e.find && e.memory && e.init() == 0) {
        ok = ask_device(&e, bus, answer);
        e.end();
    }
    dlclose(library);
    return ok;
}
