/* Finding the accelerator. See accelerator.h. Called by main.c before any thread or signal descriptor exists;
 * owns the probe's process while it runs. */
#include "daemon/accelerator.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/json.h"
#include "common/log.h"
#include "common/units.h"

#define PROBE_BYTES_MAX ((size_t)64 << 10)
#define PROBE_MS        30000 /* a driver's first start after boot takes seconds */
/* Where the probe does not say: a context with the kernels and a library's, on the large side, since a plan
 * that the worker then finds too large is refused. */
#define CONTEXT_BYTES     (768 * MIB)
#define GRAPH_BYTES       (24 * MIB) /* 2 to 4 MiB seen of the tiers of 36 layers; drivers differ */
#define GRAPH_SLICE_BYTES (16 * KIB) /* a copy, its arrival and a kernel in each tier */
#define LIBRARY_BYTES     (48 * MIB) /* matrix products' workspace, and what allocations are rounded up to */
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
    if (json_object_get(json, "error")) rc = copy_text(json, "error", true, why, sizeof why, err);
    if (!rc && list && !json_is_array(list))
        rc = helm_fail(err, HELM_E_FORMAT, "probe: 'devices' is no array");
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n && i < ACCELERATOR_COUNT_MAX && !rc; i++) {
        rc = parse_device(json_array_get(list, i), &devices[i], err);
        if (rc) helm_err_prefix(err, "probe: device %zu", i);
        if (!rc) *count = (uint32_t)i + 1;
    }
    if (!rc && *count == 0) rc = helm_fail(err, HELM_E_NOT_FOUND, "%s", why);
    json_decref(json);
    return rc;
}

/* In the child, after fork: only async-signal-safe calls. */
static void probe_become(const char *program, const int out[2], pid_t parent)
{
    char *const argv[] = {(char *)program, (char *)"--probe", NULL};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    if (dup2(out[1], STDOUT_FILENO) < 0) _exit(126);
    execv(program, argv);
    _exit(127);
}

/* Reads until the end, PROBE_BYTES_MAX, or the time is over: true at the end. */
static bool probe_read(int fd, char *text, size_t *length)
{
    uint64_t end_us = units_now_us() + (uint64_t)PROBE_MS * 1000;
    *length = 0;
    for (;;) {
        uint64_t now_us = units_now_us();
        struct pollfd item = {.fd = fd, .events = POLLIN};
        if (now_us >= end_us || *length == PROBE_BYTES_MAX) return false;
        if (poll(&item, 1, (int)((end_us - now_us + 999) / 1000)) <= 0) continue;
        ssize_t n = read(fd, text + *length, PROBE_BYTES_MAX - *length);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n == 0;
        *length += (size_t)n;
    }
}

static int probe_run(const char *program, struct accelerator_info *devices, uint32_t *count,
                     struct helm_err *err)
{
    int out[2] = {-1, -1}, status = 0, rc = 0;
    size_t length = 0;
    char *text = malloc(PROBE_BYTES_MAX + 1);
    if (!text) return helm_fail(err, HELM_E_NOMEM, "no memory to probe for devices");
    if (pipe2(out, O_CLOEXEC)) {
        rc = helm_fail_errno(err, "pipe to the probe");
        goto out;
    }
    pid_t parent = getpid(), child = fork();
    if (child == 0) probe_become(program, out, parent);
    if (child < 0) {
        rc = helm_fail_errno(err, "starting %s", program);
        goto out;
    }
    close(out[1]);
    out[1] = -1;
    bool whole = probe_read(out[0], text, &length);
    if (!whole) kill(child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    while (length && (text[length - 1] == '\n' || text[length - 1] == ' ')) length--;
    if (!whole)
        rc = helm_fail(err, HELM_E_PEER, "%s --probe did not end within %d s", program, PROBE_MS / 1000);
    else if (length)
        rc = accelerator_parse(text, length, devices, count, err);
    else
        rc = helm_fail(err, HELM_E_PEER, "%s --probe printed nothing and ended with status %d", program,
                       WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
out:
    for (int i = 0; i < 2; i++)
        if (out[i] >= 0) close(out[i]);
    free(text);
    return rc;
}

void accelerator_ledger_emulated(uint64_t vram_bytes, struct ledger_device *ledger)
{
    *ledger = (struct ledger_device){.kind = LEDGER_DEVICE_EMULATED,
                                     .limit = vram_bytes ? vram_bytes : ACCELERATOR_EMULATED_VRAM,
                                     .context_bytes = MIB,
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
                               .library_bytes = LIBRARY_BYTES};
    if (vram_bytes)
        snprintf(ledger->limit_from, sizeof ledger->limit_from, "--vram");
    else
        snprintf(ledger->limit_from, sizeof ledger->limit_from, "free of the GPU's %s",
                 units_format_size(device->vram_bytes, all));
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
    choice->numa_node = device->numa_node;
    snprintf(choice->name, sizeof choice->name, "cuda:%u", index);
    snprintf(choice->hardware, sizeof choice->hardware, "cuda %.40s %.40s driver %.20s gen %u x%u",
             device->name, device->uuid, device->driver[0] ? device->driver : "?", device->link_generation,
             device->link_width);
    snprintf(choice->text, sizeof choice->text, "%.60s, %s of VRAM free", device->name,
             units_format_size(device->vram_free, size));
}

/* The one asked for. `auto` takes none yet: the CUDA kernels have to be verified on hardware first
 * (docs/benchmarks.md says what has run there), so a GPU is used only by whoever asks for it. */
static int choose_probed(const char *option, uint64_t vram_bytes, const struct accelerator_info *devices,
                         uint32_t count, struct accelerator *choice, struct helm_err *err)
{
    uint32_t index = 0;
    if (strncmp(option, "cuda:", 5) == 0) {
        unsigned long number = strtoul(option + 5, NULL, 10); /* digits only: config.c saw to that */
        if (number >= count)
            return helm_fail(err, HELM_E_NOT_FOUND, "there is no device %lu, only %u", number, count);
        index = (uint32_t)number;
    } else if (!choice->required) { /* auto: where there is most room */
        for (uint32_t i = 1; i < count; i++)
            if (devices[i].vram_free > devices[index].vram_free) index = i;
    }
    choose_cuda(&devices[index], index, vram_bytes, choice);
    return 0;
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
    if (vram_bytes && vram_bytes < VRAM_LEAST)
        return helm_fail(err, HELM_E_USAGE, "--vram %llu: less than 1 MiB is no device's memory",
                         (unsigned long long)vram_bytes);
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
        int rc = access(worker_program, X_OK)
                     ? helm_fail(&found, HELM_E_NOT_FOUND, "there is no helm-worker-gpu")
                     : probe_run(worker_program, devices, &count, &found);
        if (!rc) rc = choose_probed(option, vram_bytes, devices, count, choice, &found);
        if (rc && choice->required)
            return helm_fail(err, HELM_E_UNSUPPORTED, "--device %s: %.400s", option, found.text);
        if (rc) {
            snprintf(choice->why, sizeof choice->why, "no GPU chosen (%.160s)", found.text);
            log_info("device: %s: everything is planned on the CPU", choice->why);
            if (vram_bytes) log_warn("--vram has no effect where no GPU is used");
            return 0;
        }
    }
    log_info("device: %s (%s)", choice->text, choice->name);
    return 0;
}
