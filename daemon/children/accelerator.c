/* Finding the accelerator. See accelerator.h. Called by main.c before any thread exists; owns nothing. */
#include "daemon/children/accelerator.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/base/node.h"
#include "common/base/units.h"
#include "common/plan/engine_limits.h"
#include "daemon/children/child_run.h"
#include "daemon/planner/profile/profile.h"
#include "daemon/children/worker_process.h"

#define PROBE_BYTES_MAX ((size_t)64 << 10)
#define PROBE_S         30 /* a driver's first start after boot takes seconds */
/* Where the probe does not say: a context with the kernels and a library's, on the large side, since a plan
 * that the worker then finds too large is refused. */
#define CONTEXT_BYTES     (768 * MIB)
#define GRAPH_BYTES       (24 * MIB) /* 2 to 4 MiB seen of the tiers of 36 layers; drivers differ */
#define GRAPH_SLICE_BYTES (16 * KIB) /* a copy, its arrival and a kernel in each tier */
#define ROUNDING_BYTES    (16 * MIB) /* that allocations are rounded up by */
#define VRAM_LEAST        MIB

static int copy_text(const json_t *json, const char *key, bool required, char *out, size_t size,
                     struct helm_err *err)
{
    const char *text = NULL;
    int rc = json_get_string(json, key, required, &text, err);
    if (rc) return rc;
    snprintf(out, size, "%s", text ? text : "");
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return 0;
}

static int parse_device(const json_t *json, struct accelerator_info *device, struct helm_err *err)
{
    const json_t *node = json_object_get(json, "numa_node");
    uint64_t generation = 0, width = 0;
    int rc = json_is_object(json) ? 0 : helm_fail(err, HELM_E_FORMAT, "not an object");
    if (!rc) rc = copy_text(json, "name", true, device->name, sizeof device->name, err);
    if (!rc) rc = copy_text(json, "uuid", false, device->uuid, sizeof device->uuid, err);
    if (!rc) rc = copy_text(json, "compute", false, device->compute, sizeof device->compute, err);
    if (!rc) rc = copy_text(json, "driver", false, device->driver, sizeof device->driver, err);
    if (!rc) rc = json_get_u64(json, "link_generation", false, 0, 64, &generation, err);
    if (!rc) rc = json_get_u64(json, "link_width", false, 0, 64, &width, err);
    if (!rc) rc = json_get_u64(json, "vram_bytes", true, 1, PLAN_BYTES_MAX, &device->vram_bytes, err);
    if (!rc) rc = json_get_u64(json, "vram_free", true, 0, device->vram_bytes, &device->vram_free, err);
    if (!rc)
        rc = json_get_u64(json, "context_bytes", false, 0, device->vram_bytes, &device->context_bytes, err);
    device->link_generation = (uint32_t)generation;
    device->link_width = (uint32_t)width;
    device->numa_node = -1;
    if (!rc && json_is_integer(node) && json_integer_value(node) >= 0 && json_integer_value(node) < 1024)
        device->numa_node = (int)json_integer_value(node);
    return rc;
}

int accelerator_parse(const char *text, size_t length, struct accelerator_info devices[ACCELERATOR_COUNT_MAX],
                      uint32_t *count, struct helm_err *err)
{
    json_t *json = NULL;
    char why[160] = "the probe found none";
    *count = 0;
    memset(devices, 0, ACCELERATOR_COUNT_MAX * sizeof *devices);
    int rc = json_parse_bounded("probe", text, length, PROBE_BYTES_MAX, &json, err);
    if (rc) return rc;
    const json_t *list = json_object_get(json, "devices");
    const bool unusable = json_object_get(json, "unusable");
    const char *key = unusable ? "unusable" : "error";
    if (json_object_get(json, key)) rc = copy_text(json, key, true, why, sizeof why, err);
    if (!rc && list && !json_is_array(list))
        rc = helm_fail(err, HELM_E_FORMAT, "probe: 'devices' is no array");
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n && i < ACCELERATOR_COUNT_MAX && !rc; i++) {
        rc = parse_device(json_array_get(list, i), &devices[i], err);
        if (rc) helm_err_prefix(err, "probe: device %zu", i);
        if (!rc) *count = (uint32_t)i + 1;
    }
    if (!rc && *count == 0) rc = helm_fail(err, unusable ? HELM_E_UNSUPPORTED : HELM_E_NOT_FOUND, "%s", why);
    json_decref(json);
    return rc;
}

/* The devices that it printed, or the reason why there are none. */
static int probe_result(struct child_run *p, struct accelerator_info *devices, uint32_t *count,
                        struct helm_err *err)
{
    char how[128];
    bool well = WIFEXITED(p->status) && WEXITSTATUS(p->status) == 0;
    while (p->length && (p->text[p->length - 1] == '\n' || p->text[p->length - 1] == ' ')) p->length--;
    int rc = p->length ? accelerator_parse(p->text, p->length, devices, count, err) : HELM_E_PEER;
    if (!rc || rc == HELM_E_NOT_FOUND || (well && p->length)) return rc;
    const char *last = child_words_end(&p->words);
    worker_process_describe(p->status, how, sizeof how);
    return helm_fail(err, HELM_E_PEER, "%s %s and printed nothing%s%s%s", p->name, how,
                     p->length ? " that can be read" : "", last[0] ? ": " : "", last);
}

static void pass_on(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "%s\n", line);
}

static int probe_run(const char *program, struct accelerator_info *devices, uint32_t *count,
                     struct helm_err *err)
{
    const char *slash = strrchr(program, '/'), *const argv[] = {program, "--probe", NULL};
    char name[80];
    struct child_run probe = {.name = name,
                              .program = program,
                              .argv = argv,
                              .text = malloc(PROBE_BYTES_MAX + 1),
                              .most = PROBE_BYTES_MAX,
                              .parent_fd = -1,
                              .limit_s = PROBE_S,
                              .words.on_line = pass_on};
    snprintf(name, sizeof name, "%.60s --probe", slash ? slash + 1 : program);
    int rc =
        probe.text ? child_run(&probe, err) : helm_fail(err, HELM_E_NOMEM, "no memory to probe for devices");
    if (!rc) rc = probe_result(&probe, devices, count, err);
    free(probe.text);
    return rc;
}

void accelerator_ledger_emulated(uint64_t vram_bytes, struct ledger_device *ledger)
{
    *ledger = (struct ledger_device){.kind = LEDGER_DEVICE_EMULATED,
                                     .limit = vram_bytes ? vram_bytes : ACCELERATOR_EMULATED_VRAM,
                                     .context_bytes = GPU_CONTEXT_EMULATED,
                                     .library_bytes = GPU_MATMUL_WORKSPACE_EMULATED,
                                     .graph_bytes = 256 * KIB,
                                     .graph_layer_bytes = 64 * KIB,
                                     .graph_slice_bytes = 12 * KIB};
    snprintf(ledger->limit_from, sizeof ledger->limit_from, "%s",
             vram_bytes ? "--vram" : "the emulated device without --vram");
}

void accelerator_ledger_cuda(const struct accelerator_info *device, uint64_t vram_bytes,
                             struct ledger_device *ledger)
{
    char all[UNITS_TEXT];
    *ledger =
        (struct ledger_device){.kind = LEDGER_DEVICE_CUDA,
                               .limit = vram_bytes ? vram_bytes : device->vram_free,
                               .context_bytes = device->context_bytes ? device->context_bytes : CONTEXT_BYTES,
                               .graph_bytes = GRAPH_BYTES,
                               .graph_slice_bytes = GRAPH_SLICE_BYTES,
                               .library_bytes = GPU_MATMUL_WORKSPACE + ROUNDING_BYTES};
    if (vram_bytes)
        snprintf(ledger->limit_from, sizeof ledger->limit_from, "--vram");
    else
        snprintf(ledger->limit_from, sizeof ledger->limit_from, "free of the GPU's %s",
                 units_format_size(device->vram_bytes, all));
}

void accelerator_ledger_measured(const struct profile_gpu *measured, struct ledger_device *ledger)
{
    if (ledger->kind == LEDGER_DEVICE_CUDA && measured->context_bytes)
        ledger->context_bytes = measured->context_bytes;
}

static void choose_emulated(uint64_t vram_bytes, struct accelerator *choice)
{
    char size[UNITS_TEXT];
    accelerator_ledger_emulated(vram_bytes, &choice->ledger);
    snprintf(choice->name, sizeof choice->name, "emulated");
    snprintf(choice->hardware, sizeof choice->hardware, "emulated");
    snprintf(choice->text, sizeof choice->text, "emulated, on the CPU, with %s",
             units_format_size(choice->ledger.limit, size));
}

static void choose_cuda(const struct accelerator_info *device, uint32_t index, uint64_t vram_bytes,
                        struct accelerator *choice)
{
    char size[UNITS_TEXT], all[UNITS_TEXT];
    bool beyond = vram_bytes >= device->vram_free;
    accelerator_ledger_cuda(device, beyond ? 0 : vram_bytes, &choice->ledger);
    if (vram_bytes && beyond)
        log_warn("--vram %s: only %s are free on the GPU", units_format_size(vram_bytes, all),
                 units_format_size(device->vram_free, size));
    choice->info = *device;
    choice->index = index;
    choice->numa_node = device->numa_node;
    snprintf(choice->name, sizeof choice->name, "cuda:%u", index);
    snprintf(choice->hardware, sizeof choice->hardware, "cuda %.40s %.40s driver %.20s gen %u x%u",
             device->name, device->uuid, device->driver[0] ? device->driver : "?", device->link_generation,
             device->link_width);
    snprintf(choice->text, sizeof choice->text, "%.60s, %s of VRAM free", device->name,
             units_format_size(device->vram_free, size));
}

static bool is_cuda(const char *option)
{
    return strncmp(option, "cuda:", 5) == 0;
}

static int check_ceiling(uint64_t vram_bytes, struct helm_err *err)
{
    if (!vram_bytes || vram_bytes >= VRAM_LEAST) return 0;
    return helm_fail(err, HELM_E_USAGE, "--vram %llu: less than 1 MiB is no device's memory",
                     (unsigned long long)vram_bytes);
}

/* The device with the most free memory but `except`; count: there is none. */
static uint32_t freest(const struct accelerator_info *devices, uint32_t count, uint32_t except)
{
    uint32_t index = count;
    for (uint32_t i = 0; i < count; i++)
        if (i != except && (index == count || devices[i].vram_free > devices[index].vram_free)) index = i;
    return index;
}

/* The one asked for: by its number, the first (`cuda`), or the one with the most free memory (`auto`). */
static int choose_probed(const char *option, uint64_t vram_bytes, const struct accelerator_info *devices,
                         uint32_t count, struct accelerator *choice, struct helm_err *err)
{
    uint32_t index = 0;
    if (is_cuda(option)) {
        unsigned long number = strtoul(option + 5, NULL, 10); /* digits only, by accelerator_check_option */
        if (number >= count)
            return helm_fail(err, HELM_E_NOT_FOUND, "there is no device %lu, only %u", number, count);
        index = (uint32_t)number;
    } else if (!choice->required) {
        index = freest(devices, count, UINT32_MAX);
    }
    choose_cuda(&devices[index], index, vram_bytes, choice);
    return 0;
}

int accelerator_check_option(const char *option, struct helm_err *err)
{
    static const char *const names[] = {"auto", "cpu", "emulated", "cuda"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(option, names[i]) == 0) return 0;
    const size_t digits = is_cuda(option) ? strlen(option + 5) : 0;
    if (digits > 0 && strspn(option + 5, "0123456789") == digits) return 0;
    return helm_fail(err, HELM_E_USAGE, "--device '%.40s': is auto, cpu, cuda, cuda:N or emulated", option);
}

int accelerator_choose(const char *option, uint64_t vram_bytes, const char *worker_program,
                       struct accelerator *choice, struct helm_err *err)
{
    struct accelerator_info devices[ACCELERATOR_COUNT_MAX];
    struct helm_err found = {0};
    uint32_t count = 0;
    *choice = (struct accelerator){.numa_node = -1,
                                   .ledger.limit = UINT64_MAX,
                                   .required = strcmp(option, "auto") != 0 && strcmp(option, "cpu") != 0};
    int rc = check_ceiling(vram_bytes, err);
    if (rc) return rc;
    if (strcmp(option, "cpu") == 0) {
        snprintf(choice->why, sizeof choice->why, "--device cpu was asked for");
        if (vram_bytes) log_warn("--vram has no effect with --device cpu");
        return 0;
    }
    if (strcmp(option, "emulated") == 0) {
        if (access(worker_program, X_OK))
            return helm_fail(err, HELM_E_UNSUPPORTED, "--device emulated: there is no helm-worker-gpu");
        choose_emulated(vram_bytes, choice);
    } else {
        if (access(worker_program, X_OK))
            rc = errno == ENOENT
                     ? helm_fail(&found, HELM_E_NOT_FOUND, "there is no helm-worker-gpu")
                     : helm_fail(&found, HELM_E_PERMISSION, "helm-worker-gpu: %s", strerror(errno));
        if (!rc) rc = probe_run(worker_program, devices, &count, &found);
        if (!rc) rc = choose_probed(option, vram_bytes, devices, count, choice, &found);
        if (!rc) memcpy(choice->probed, devices, sizeof devices);
        choice->probed_count = rc ? 0 : count;
        if (rc == HELM_E_CANCELLED) return helm_fail(err, rc, "%s", found.text);
        if (rc && choice->required)
            return helm_fail(err, HELM_E_UNSUPPORTED, "--device %s: %.460s", option, found.text);
        if (rc) {
            snprintf(choice->why, sizeof choice->why, "no GPU chosen (%.160s)", found.text);
            /* A machine without a GPU is in order; one that could not be asked may have one that lies idle.
             */
            log_at(rc == HELM_E_NOT_FOUND ? LOG_LEVEL_INFO : LOG_LEVEL_WARN,
                   "device: no GPU chosen (%s): everything is planned on the CPU", found.text);
            if (vram_bytes) log_warn("--vram has no effect where no GPU is used");
            return 0;
        }
    }
    log_info("device: %s (%s)", choice->text, choice->name);
    return 0;
}

/* ---- two of them ---- */

/* Parts of a comma-separated list, of which the first ACCELERATORS_MAX are kept. Returns how many there
 * are. */
static uint32_t split(const char *list, char part[ACCELERATORS_MAX][96])
{
    uint32_t count = 0;
    for (const char *at = list;; at++) {
        const size_t length = strcspn(at, ",");
        if (count < ACCELERATORS_MAX) snprintf(part[count], sizeof *part, "%.*s", (int)length, at);
        count++;
        at += length;
        if (!*at) return count;
    }
}

static int read_ceilings(const char *text, struct accelerator_wish *wish, uint32_t *count,
                         struct helm_err *err)
{
    char part[ACCELERATORS_MAX][96] = {""};
    *count = text ? split(text, part) : 0;
    wish->vram_given = text;
    if (*count > ACCELERATORS_MAX)
        return helm_fail(err, HELM_E_USAGE, "--vram '%.60s' has %u ceilings: a plan has %d devices at most",
                         text, *count, ACCELERATORS_MAX);
    int rc = 0;
    for (uint32_t i = 0; i < *count && !rc; i++)
        rc = units_parse_size("--vram", part[i], &wish->vram[i], err);
    return rc;
}

/* A list names each device, so that none is there twice. */
static int check_listed(const char *devices, const struct accelerator_wish *wish, struct helm_err *err)
{
    const char *a = wish->device[0], *b = wish->device[1];
    if (is_cuda(a) && is_cuda(b) && strcmp(a, b) != 0) return 0;
    if (strcmp(a, "emulated") == 0 && strcmp(b, "emulated") == 0) return 0;
    return helm_fail(err, HELM_E_USAGE,
                     "--device '%.60s': a list has two different cuda:N, or is emulated,emulated", devices);
}

/* One name for as many devices as there are ceilings. */
static int name_second(uint32_t ceilings, struct accelerator_wish *wish, struct helm_err *err)
{
    const char *name = wish->device[0], *second = NULL;
    const bool any = strcmp(name, "auto") == 0;
    if (ceilings == 1 || (!ceilings && !any)) return 0;
    if (any || strcmp(name, "emulated") == 0) second = name;
    if (strcmp(name, "cuda") == 0) second = "cuda:1";
    if (!second)
        return helm_fail(err, HELM_E_USAGE, "--vram has %u ceilings, --device %.60s is one device", ceilings,
                         name);
    snprintf(wish->device[1], sizeof wish->device[1], "%s", second);
    return 0;
}

int accelerator_wish_read(const char *devices, const char *ceilings, bool described,
                          struct accelerator_wish *wish, struct helm_err *err)
{
    uint32_t count, sizes;
    *wish = (struct accelerator_wish){.vram_given = false};
    count = split(devices, wish->device);
    if (count > ACCELERATORS_MAX)
        return helm_fail(err, HELM_E_USAGE, "--device '%.60s' names %u devices: a plan has %d at most",
                         devices, count, ACCELERATORS_MAX);
    int rc = read_ceilings(ceilings, wish, &sizes, err);
    for (uint32_t i = 0; i < count && !rc && !described; i++)
        rc = accelerator_check_option(wish->device[i], err);
    if (rc) return rc;
    if (count == 1) return name_second(sizes, wish, err);
    if (sizes && sizes != count)
        return helm_fail(err, HELM_E_USAGE, "--vram has %u ceiling, --device names %u devices", sizes, count);
    return described ? 0 : check_listed(devices, wish, err);
}

int accelerator_choose_second(const struct accelerator_wish *wish, const struct accelerator *first,
                              struct accelerator *choice, struct helm_err *err)
{
    const char *option = wish->device[1];
    *choice = (struct accelerator){.numa_node = -1, .ledger.limit = UINT64_MAX};
    if (!option[0] || first->ledger.kind == LEDGER_DEVICE_NONE) return 0;
    int rc = check_ceiling(wish->vram[1], err);
    if (rc) return rc;
    if (first->ledger.kind == LEDGER_DEVICE_EMULATED) {
        choose_emulated(wish->vram[1], choice);
    } else if (strcmp(option, "auto") == 0) {
        const uint32_t index = freest(first->probed, first->probed_count, first->index);
        if (index == first->probed_count && wish->vram_given)
            return helm_fail(err, HELM_E_UNSUPPORTED, "--vram has 2 ceilings, and there is one GPU");
        if (index == first->probed_count) return 0;
        choose_cuda(&first->probed[index], index, wish->vram[1], choice);
    } else {
        rc = choose_probed(option, wish->vram[1], first->probed, first->probed_count, choice, err);
        if (rc) return helm_err_prefix(err, "--device %s", option);
        if (choice->index == first->index)
            return helm_fail(err, HELM_E_USAGE, "--device %s: it is the first device, too", option);
    }
    log_info("device: a second one: %s (%s)", choice->text, choice->name);
    return 0;
}

bool accelerator_alike(const struct accelerator *a, const struct accelerator *b)
{
    const struct accelerator_info *x = &a->info, *y = &b->info;
    return strcmp(x->name, y->name) == 0 && x->vram_bytes == y->vram_bytes &&
           x->link_generation == y->link_generation && x->link_width == y->link_width;
}

int accelerator_choose_node(const struct accelerator *accelerator, int wanted, int *node,
                            struct helm_err *err)
{
    struct helm_err far = {0};
    int rc = node_choose(wanted >= 0 ? wanted : accelerator->numa_node, node, wanted >= 0 ? err : &far);
    if (rc && wanted < 0) {
        log_warn("the node of %s cannot be used: %s", accelerator->name, far.text);
        rc = node_choose(-1, node, err);
    }
    if (!rc && *node < 0)
        log_info("memory: the system names no NUMA nodes (/sys/devices/system/node): taken as one");
    return rc;
}
