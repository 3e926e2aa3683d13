/* The device's part, measured by helm-worker-gpu, the only program that touches a device. See profile_tool.h
 * and worker-gpu/measure/measure.h, which has the protocol. Called by helm_profile.c; owns the process while
 * it runs. Its output is bounded and checked. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/base/units.h"
#include "tools/profile/profile_tool.h"

#define LINE_TEXT   32768
#define COMMAND_MAX 16384 /* that is echoed in a line */
#define WAIT_MS     60000 /* for a line: a first start of a driver and its libraries takes seconds */
#define X_MAX       65536

struct profile_device_run {
    pid_t pid;
    int in, out; /* its standard input and output */
    char text[LINE_TEXT];
    size_t used;
};

/* ---- the process ---- */

/* In the child, after fork: only async-signal-safe calls. */
static void become(const char *program, char *const argv[], const int in[2], const int out[2], pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    if (dup2(in[0], STDIN_FILENO) < 0 || dup2(out[1], STDOUT_FILENO) < 0) _exit(126);
    execv(program, argv);
    _exit(127);
}

int profile_device_open(const struct profile_device_options *o, struct profile_device_run **out,
                        struct helm_err *err)
{
    int in[2] = {-1, -1}, from[2] = {-1, -1}, rc = 0;
    char speed[32], host[32];
    const char *argv[10] = {"helm-worker-gpu", "--measure", o->name};
    size_t n = 3;
    struct profile_device_run *d = calloc(1, sizeof *d);
    *out = NULL;
    if (!d) return helm_fail(err, HELM_E_NOMEM, "no memory to measure the device");
    d->pid = d->in = d->out = -1;
    snprintf(speed, sizeof speed, "%llu", (unsigned long long)o->copy_bytes_per_s);
    if (o->copy_bytes_per_s) {
        argv[n++] = "--emulated-copy";
        argv[n++] = speed;
    }
    snprintf(host, sizeof host, "%llu", (unsigned long long)o->host_bytes);
    if (o->host_bytes) {
        argv[n++] = "--host";
        argv[n++] = host;
    }
    if (o->quick) argv[n++] = "--quick";
    if (pipe2(in, O_CLOEXEC) || pipe2(from, O_CLOEXEC)) rc = helm_fail_errno(err, "pipe to %s", o->program);
    pid_t parent = getpid();
    if (!rc) {
        d->pid = fork();
        if (d->pid == 0) become(o->program, (char *const *)argv, in, from, parent);
        if (d->pid < 0) rc = helm_fail_errno(err, "starting %s", o->program);
    }
    if (in[0] >= 0) close(in[0]);
    if (from[1] >= 0) close(from[1]);
    d->in = in[1];
    d->out = from[0];
    if (rc) {
        profile_device_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void profile_device_close(struct profile_device_run *d)
{
    if (!d) return;
    if (d->in >= 0) close(d->in); /* the end of its input ends it */
    if (d->pid > 0) {
        struct pollfd item = {.fd = d->out, .events = POLLIN};
        char rest[256];
        while (poll(&item, 1, 5000) > 0 && read(d->out, rest, sizeof rest) > 0) continue;
        kill(d->pid, SIGKILL); /* gone already, or stuck */
        while (waitpid(d->pid, NULL, 0) < 0 && errno == EINTR) continue;
    }
    if (d->out >= 0) close(d->out);
    free(d);
}

/* The next whole line, parsed; its "error" is ours. */
static int next_line(struct profile_device_run *d, json_t **json, struct helm_err *err)
{
    uint64_t end_us = units_now_us() + (uint64_t)WAIT_MS * 1000;
    char *end;
    while (!(end = memchr(d->text, '\n', d->used))) {
        uint64_t now_us = units_now_us();
        struct pollfd item = {.fd = d->out, .events = POLLIN};
        if (now_us >= end_us)
            return helm_fail(err, HELM_E_PEER, "helm-worker-gpu --measure says nothing for %d s",
                             WAIT_MS / 1000);
        if (d->used == LINE_TEXT)
            return helm_fail(err, HELM_E_PEER,
                             "helm-worker-gpu --measure printed a line of more than %d bytes", LINE_TEXT);
        if (poll(&item, 1, (int)((end_us - now_us + 999) / 1000)) <= 0) continue;
        ssize_t n = read(d->out, d->text + d->used, LINE_TEXT - d->used);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return helm_fail(err, HELM_E_PEER, "helm-worker-gpu --measure ended early");
        d->used += (size_t)n;
    }
    size_t length = (size_t)(end - d->text);
    int rc = json_parse_bounded("helm-worker-gpu --measure", d->text, length, LINE_TEXT, json, err);
    d->used -= length + 1;
    memmove(d->text, end + 1, d->used);
    if (rc) return rc;
    const char *error = NULL;
    rc = json_get_string(*json, "error", false, &error, err);
    if (!rc && error) rc = helm_fail(err, HELM_E_DEVICE, "the device cannot be measured: %.400s", error);
    if (rc) {
        json_decref(*json);
        *json = NULL;
    }
    return rc;
}

static int say(const struct profile_device_run *d, const char *command, struct helm_err *err)
{
    const size_t n = strlen(command);
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGPIPE, &ignore, &before);
    const bool written =
        write(d->in, command, n) == (ssize_t)n && write(d->in, "\n", 1) == 1; /* less than a pipe holds */
    sigaction(SIGPIPE, &before, NULL);
    return written ? 0 : helm_fail(err, HELM_E_PEER, "helm-worker-gpu --measure has ended");
}

/* ---- values ---- */

/* One value, {"name", "x", "samples"}; the name lives as long as the object. */
static int parse_value(const json_t *json, const char **name, uint64_t *x, struct profile_samples *samples,
                       struct helm_err *err)
{
    const json_t *list = json_object_get(json, "samples"), *item;
    size_t i;
    int rc = json_get_string(json, "name", true, name, err);
    if (!rc) rc = json_get_u64(json, "x", true, 0, X_MAX, x, err);
    if (!rc && !json_is_array(list)) rc = helm_fail(err, HELM_E_FORMAT, "'samples' is no array");
    if (rc) return helm_err_prefix(err, "helm-worker-gpu --measure");
    json_array_foreach(list, i, item)
    {
        double value = json_number_value(item);
        if (!json_is_number(item) || !isfinite(value) || value < 0)
            return helm_fail(err, HELM_E_FORMAT, "helm-worker-gpu --measure: a sample of %.40s is no number",
                             *name);
        profile_samples_add(samples, value);
    }
    return 0;
}

/* Where values go. */
struct taker {
    struct profile *profile;
    struct profile_copied *copied;
    struct profile_samples *variant; /* [variants]: of programs */
    uint32_t variants;
};

static int take_value(const json_t *json, const struct taker *taker, struct helm_err *err)
{
    struct profile_samples samples = {.count = 0};
    const char *name = "";
    uint64_t x = 0;
    int rc = parse_value(json, &name, &x, &samples, err);
    if (rc) return rc;
    if (taker->copied && strcmp(name, "link.copied") == 0 && samples.count == 2) {
        *taker->copied = (struct profile_copied){.bytes = samples.value[0], .at_s = samples.value[1]};
        return 0;
    }
    if (strcmp(name, "program") == 0 && x < taker->variants) {
        for (uint32_t i = 0; i < samples.count; i++)
            profile_samples_add(&taker->variant[x], samples.value[i]);
        return 0;
    }
    if (taker->profile && strcmp(name, "gpu.context") == 0 && samples.count == 1) {
        /* A sixteenth more, since a plan that the worker then finds too large is refused. */
        if (taker->profile->gpu.device == PROFILE_DEVICE_CUDA)
            taker->profile->gpu.context_bytes = (uint64_t)(samples.value[0] * 17 / 16);
        return 0;
    }
    bool table = false;
    void *place = taker->profile ? profile_find(taker->profile, name, &table) : NULL;
    if (place && table)
        profile_table_put(place, (uint32_t)x, profile_samples_value(&samples));
    else if (place)
        *(struct profile_value *)place = profile_samples_value(&samples);
    return place
               ? 0
               : helm_fail(err, HELM_E_FORMAT, "helm-worker-gpu --measure: '%.40s' was not asked for", name);
}

/* Gives a command and takes values until it is done. */
static int obey(struct profile_device_run *d, const char *command, const struct taker *taker,
                struct helm_err *err)
{
    int rc = say(d, command, err);
    for (bool done = false; !rc && !done;) {
        json_t *json = NULL;
        const char *text = NULL;
        rc = next_line(d, &json, err);
        if (rc) break;
        if (json_object_get(json, "name")) {
            rc = take_value(json, taker, err);
        } else if (!json_object_get(json, "ready")) {
            rc = json_get_string(json, "done", true, &text, err);
            done = !rc && strcmp(text, command) == 0;
            if (!rc && !done)
                rc = helm_fail(err, HELM_E_FORMAT, "helm-worker-gpu --measure did '%.40s', not '%s'", text,
                               command);
        }
        json_decref(json);
    }
    return rc;
}

int profile_device_measure(struct profile_device_run *d, struct profile *profile, struct helm_err *err)
{
    return obey(d, "measure", &(struct taker){.profile = profile}, err);
}

int profile_device_link(struct profile_device_run *d, double *rate, struct helm_err *err)
{
    struct profile link = {.quick = true};
    int rc = obey(d, "link", &(struct taker){.profile = &link}, err);
    *rate = link.link.h2d.value;
    return rc;
}

int profile_device_format(struct profile_device_run *d, enum tensor_format format, double seconds,
                          struct profile *profile, struct helm_err *err)
{
    char command[48];
    snprintf(command, sizeof command, "format %s %.3f", tensor_format_name(format), seconds);
    return obey(d, command, &(struct taker){.profile = profile}, err);
}

int profile_device_programs(struct profile_device_run *d, const json_t *request, struct helm_err *err)
{
    char *text = json_dumps(request, JSON_COMPACT), *command = NULL;
    const size_t size = text ? strlen(text) + sizeof "programs " : 0;
    int rc = text && (command = malloc(size)) ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a command");
    if (!rc && size > COMMAND_MAX)
        rc = helm_fail(err, HELM_E_LIMIT, "what is to be measured takes %zu bytes to say, the limit is %d",
                       size, COMMAND_MAX);
    if (!rc) snprintf(command, size, "programs %s", text);
    if (!rc) rc = obey(d, command, &(struct taker){.profile = NULL}, err);
    free(command);
    free(text);
    return rc;
}

int profile_device_programs_close(struct profile_device_run *d, struct helm_err *err)
{
    return obey(d, "close", &(struct taker){.profile = NULL}, err);
}

int profile_device_cell(struct profile_device_run *d, const struct profile_device_cell *cell,
                        struct profile_samples *variant, uint32_t variants, struct helm_err *err)
{
    char command[64];
    for (uint32_t v = 0; v < variants; v++) variant[v].count = 0;
    snprintf(command, sizeof command, "cell %u %u %.3f%s", cell->tokens, cell->context, cell->seconds,
             cell->beside ? " beside" : "");
    return obey(d, command, &(struct taker){.variant = variant, .variants = variants}, err);
}

int profile_device_stream_start(struct profile_device_run *d, struct helm_err *err)
{
    return obey(d, "stream", &(struct taker){.profile = NULL}, err);
}

int profile_device_stream_stop(struct profile_device_run *d, struct helm_err *err)
{
    return obey(d, "stop", &(struct taker){.profile = NULL}, err);
}

int profile_device_copied(struct profile_device_run *d, struct profile_copied *copied, struct helm_err *err)
{
    *copied = (struct profile_copied){.at_s = -1};
    int rc = obey(d, "copied", &(struct taker){.copied = copied}, err);
    if (!rc && copied->at_s < 0)
        rc = helm_fail(err, HELM_E_FORMAT, "helm-worker-gpu --measure says nothing of what was copied");
    return rc;
}
