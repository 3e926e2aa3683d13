/* Measuring a device: the protocol, the link and the hand-over. See measure.h.
 *
 * The thread that keeps copies flowing sleeps in between. The CPU's rates are measured meanwhile, and a
 * spinning thread would take a CPU from the workers' pinned threads (11 to 16 % of those rates, on 16 CPUs).
 * It also wakes rarely, once for several pieces.
 *
 * Owns the device, host memory of the arena's kind (a memfd with huge pages, registered with the driver) and,
 * while copies flow, the thread that keeps them flowing. Compute rates are measure/kernels.c's. */
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/cgroup.h"
#include "common/base/units.h"
#include "common/cpu/pool.h"
#include "common/formats/random_blocks.h"
#include "worker-gpu/measure/private.h"

#define PIECE_MAX     (16 * MIB)
#define PIECE_MIN     (64 * KIB)
#define PIECE_S       0.02 /* a piece takes about so long where the link is slow */
#define SMALL_BYTES   (8 * KIB)
#define SMALL_COUNT   64
#define ROUNDS        32    /* hand-overs of one sample */
#define BESIDE_S      0.005 /* copies that flow beside those take about so long */
#define STREAM_EVENTS 4
#define STREAM_WAKE_S 0.004      /* at the first copy's speed: from one look at them to the next */
#define STREAM_PIECES 32         /* at most for each */
#define CONTROL_BYTES (64 * KIB) /* of the host's region: words and lanes of the hand-over */
#define LINE_TEXT     64
#define COMMAND_TEXT  (64 * 1024) /* a model's path, its layers and their kinds */

/* The oldest give way: what is kept is of the end of a long run. */
void measure_add(struct measure_samples *samples, double value)
{
    if (samples->count == MEASURE_SAMPLES_MAX) {
        samples->count--;
        memmove(samples->value, samples->value + 1, samples->count * sizeof *samples->value);
    }
    samples->value[samples->count++] = value;
}

static void print_json(FILE *out, json_t *json)
{
    if (json) json_dumpf(json, out, JSON_COMPACT);
    fputc('\n', out);
    fflush(out);
    json_decref(json);
}

void measure_print(struct measure *m, const char *name, uint32_t x, const struct measure_samples *samples)
{
    char of_other[LINE_TEXT];
    json_t *list = json_array();
    if (m->format != FORMAT_BF16 || m->kv != KV_F16) {
        const bool weights = m->format != FORMAT_BF16;
        snprintf(of_other, sizeof of_other, "%s.%s.gpu_%s", weights ? "formats" : "kv",
                 weights ? tensor_format_name(m->format) : kv_dtype_name(m->kv), strchr(name, '.') + 1);
        name = of_other;
    }
    for (uint32_t i = 0; i < samples->count; i++) json_array_append_new(list, json_real(samples->value[i]));
    print_json(m->out, json_pack("{s:s, s:i, s:o}", "name", name, "x", (int)x, "samples", list));
}

int measure_drain(struct measure *m, enum device_queue queue, struct helm_err *err)
{
    struct device *d = m->device;
    int rc = d->ops->event_record(d, queue, m->event, err);
    return rc ? rc : d->ops->event_wait(d, m->event, err);
}

/* ---- the link ---- */

/* Copies the next bytes: before the same come again all of either side has passed by, so that none of it is
 * still in a cache. */
int measure_copy_next(struct measure *m, enum device_direction direction, uint64_t size, struct helm_err *err)
{
    if (m->host_at + size > m->host_bytes) m->host_at = 0;
    if (m->device_at + size > m->weight_bytes) m->device_at = 0;
    char *host = m->host + m->host_at, *device = m->weights + m->device_at;
    m->host_at += size;
    m->device_at += size;
    return direction == DEVICE_TO_DEVICE
               ? device_copy(m->device, DEVICE_COPY, direction, device, host, size, err)
               : device_copy(m->device, DEVICE_COPY, direction, host, device, size, err);
}

static int copy_round(struct measure *m, enum device_direction direction, uint64_t bytes, uint64_t piece,
                      struct helm_err *err)
{
    int rc = 0;
    for (uint64_t done = 0; done < bytes && !rc; done += piece)
        rc = measure_copy_next(m, direction, piece, err);
    return rc ? rc : measure_drain(m, DEVICE_COPY, err);
}

/* How long a piece should be: the real 16 MiB, or less on a link so slow that nothing else would get done. */
int measure_choose_piece(struct measure *m, uint64_t *piece, double *rate, struct helm_err *err)
{
    double start = units_now_s();
    int rc = copy_round(m, DEVICE_TO_DEVICE, MIB, MIB, err);
    *rate = (double)MIB / (units_now_s() - start);
    *piece = PIECE_MAX;
    while (*piece > PIECE_MIN &&
           ((double)*piece > *rate * PIECE_S || *piece > m->host_bytes || *piece > m->weight_bytes))
        *piece /= 2;
    return rc;
}

static int measure_copies(struct measure *m, enum device_direction direction, const char *name,
                          struct helm_err *err)
{
    struct measure_samples samples = {.count = 0};
    uint64_t piece = 0;
    double rate = 0, end = units_now_s() + measure_budget_s(m);
    int rc = measure_choose_piece(m, &piece, &rate, err);
    double wanted = rate * measure_sample_s(m) * 3;
    if (wanted > (double)m->host_bytes) wanted = (double)m->host_bytes;
    uint64_t bytes = ((uint64_t)wanted + piece) / piece * piece;
    if (!rc) rc = copy_round(m, direction, bytes, piece, err);
    while (!rc && samples.count < MEASURE_SAMPLES_MAX && (samples.count < 5 || units_now_s() < end)) {
        double start = units_now_s();
        rc = copy_round(m, direction, bytes, piece, err);
        measure_add(&samples, (double)bytes / (units_now_s() - start));
    }
    if (!rc) measure_print(m, name, 0, &samples);
    return rc;
}

static int measure_latency(struct measure *m, struct helm_err *err)
{
    struct measure_samples samples = {.count = 0};
    int rc = 0;
    for (uint32_t s = 0; s < 9 && !rc; s++) {
        double start = units_now_s();
        m->host_at = m->device_at = 0;
        rc = copy_round(m, DEVICE_TO_DEVICE, SMALL_COUNT * SMALL_BYTES, SMALL_BYTES, err);
        if (s) measure_add(&samples, (units_now_s() - start) / SMALL_COUNT);
    }
    if (!rc) measure_print(m, "link.latency", 0, &samples);
    return rc;
}

/* ---- the hand-over ---- */

/* As in a step: the queue waits for a word, takes a lane, puts one, writes a word; everything is queued
 * ahead. One way takes half of there and back. `pieces` of copies flow meanwhile. */
static int measure_hand_over(struct measure *m, const char *name, uint64_t pieces, uint64_t piece,
                             struct helm_err *err)
{
    struct measure_samples samples = {.count = 0};
    struct device *d = m->device;
    _Atomic uint32_t *down = (_Atomic uint32_t *)(void *)m->host,
                     *up = (_Atomic uint32_t *)(void *)(m->host + 64);
    float *to = (float *)(void *)(m->host + 4096), *from = to + MEASURE_LANE_FLOATS;
    static const float zero[MEASURE_LANE_FLOATS];
    atomic_store(down, 0);
    atomic_store(up, 0);
    memcpy(to, zero, sizeof zero);
    int rc = measure_kernels_lane(m, to, from, err); /* code that is loaded now need not be while it waits */
    if (!rc) rc = measure_drain(m, DEVICE_COMPUTE, err);
    for (uint32_t s = 0; s < (m->options->quick ? 5 : 17) && !rc; s++) {
        uint32_t first = s * ROUNDS + 1;
        for (uint32_t i = first; i < first + ROUNDS && !rc; i++) {
            rc = device_word_wait(d, down, i, DEVICE_EQUAL, err);
            if (!rc) rc = measure_kernels_lane(m, to, from, err);
            if (!rc) rc = device_word_write(d, up, i, err);
        }
        for (uint64_t i = 0; i < pieces && !rc; i++) rc = measure_copy_next(m, DEVICE_TO_DEVICE, piece, err);
        double start = units_now_s();
        for (uint32_t i = first; i < first + ROUNDS && !rc; i++) {
            memcpy(to, zero, sizeof zero);
            atomic_store_explicit(down, i, memory_order_release);
            rc = device_word_poll(d, up, i, MEASURE_WAIT_MS, err);
        }
        if (s) measure_add(&samples, (units_now_s() - start) / ROUNDS / 2);
        if (!rc) rc = measure_drain(m, DEVICE_COMPUTE, err);
        if (!rc && pieces) rc = measure_drain(m, DEVICE_COPY, err);
    }
    if (!rc) measure_print(m, name, 0, &samples);
    return rc;
}

/* Alone, and while copies as a step's are under way. */
static int measure_hand_overs(struct measure *m, struct helm_err *err)
{
    uint64_t piece = 0;
    double rate = 0;
    int rc = measure_hand_over(m, "link.hand_over", 0, 0, err);
    if (!rc) rc = measure_choose_piece(m, &piece, &rate, err);
    if (rc) return rc;
    return measure_hand_over(m, "link.hand_over_beside", (uint64_t)(rate * BESIDE_S) / piece + 1, piece, err);
}

/* ---- streaming ---- */

struct stream {
    struct measure *m;
    pthread_t thread;
    bool started;
    _Atomic bool flows, stop;
    pthread_mutex_t lock; /* guards the two that follow */
    double copied, at_s;  /* bytes that had arrived when the last copy that is done was, and that time */
    int rc;
    struct helm_err err;
};

static void stream_arrived(struct stream *s, uint64_t bytes)
{
    pthread_mutex_lock(&s->lock);
    s->copied += (double)bytes;
    s->at_s = units_now_s();
    pthread_mutex_unlock(&s->lock);
    atomic_store(&s->flows, true);
}

static int stream_loop(struct stream *s, struct device_event **event, struct helm_err *err)
{
    struct measure *m = s->m;
    struct device *d = m->device;
    uint64_t piece = 0, pieces = 1, number = 0;
    double rate = 0;
    int rc = d->ops->thread_begin(d, err);
    if (!rc) rc = measure_choose_piece(m, &piece, &rate, err);
    while (pieces < STREAM_PIECES && (double)(piece * (pieces + 1)) < rate * STREAM_WAKE_S) pieces++;
    for (int i = 0; i < STREAM_EVENTS && !rc; i++)
        rc = d->ops->event_create(d, DEVICE_EVENT_SLEEPING, &event[i], err);
    while (!rc && !atomic_load(&s->stop)) {
        struct device_event *mine = event[number % STREAM_EVENTS];
        if (number >= STREAM_EVENTS) {
            rc = d->ops->event_wait(d, mine, err);
            if (!rc) stream_arrived(s, pieces * piece);
        }
        for (uint64_t i = 0; i < pieces && !rc; i++) rc = measure_copy_next(m, DEVICE_TO_DEVICE, piece, err);
        if (!rc) rc = d->ops->event_record(d, DEVICE_COPY, mine, err);
        number++;
    }
    return rc ? rc : measure_drain(m, DEVICE_COPY, err);
}

static void *stream_main(void *arg)
{
    struct stream *s = arg;
    struct device_event *event[STREAM_EVENTS] = {NULL};
    s->rc = stream_loop(s, event, &s->err);
    for (int i = 0; i < STREAM_EVENTS; i++)
        if (event[i]) s->m->device->ops->event_free(s->m->device, event[i]);
    atomic_store(&s->flows, true); /* or never will */
    return NULL;
}

int measure_take_memory(struct measure *m, struct helm_err *err)
{
    const struct engine_measure_options *o = m->options;
    struct cgroup_memory memory;
    uint64_t huge = 0, small = 0;
    if (m->kernels) return 0;
    int rc = cgroup_read_memory(&memory, err);
    if (rc) return rc;
    /* Past every cache of the host, but no more than a quarter of what is free there. */
    uint64_t most = memory.available_bytes / 4 / ARENA_HUGE_PAGE * ARENA_HUGE_PAGE;
    m->host_bytes = (m->emulated ? 256 : 1024) * MIB;
    if (o->quick) m->host_bytes /= 4;
    if (m->host_bytes < o->host_bytes) m->host_bytes = round_up(o->host_bytes, ARENA_HUGE_PAGE);
    if (m->host_bytes > most) m->host_bytes = most;
    if (m->host_bytes < 4 * MIB)
        return helm_fail(err, HELM_E_CAPACITY, "%llu bytes of host memory are free: too few to measure with",
                         (unsigned long long)memory.available_bytes);
    const struct arena_spec spec = {
        .slots = 1,
        .context_tokens = 1,
        .step_tokens = 1,
        .hidden = 1,
        .vocab = 1,
        .kv = {.layers = 1, .kv_heads = 1, .head_dim = 2, .page_tokens = 1, .dtype = DTYPE_F16},
        .page_count = 1,
        .weight_bytes = m->host_bytes + CONTROL_BYTES};
    rc = arena_create(&spec, &m->arena, err);
    if (rc) return rc;
    const struct arena_region *region = &arena_header_of(&m->arena)->region[ARENA_REGION_WEIGHTS];
    arena_populate(&m->arena, region->offset, m->host_bytes, &huge, &small);
    m->host = arena_region_ptr(&m->arena, ARENA_REGION_WEIGHTS);
    random_numbers_fill(m->host, m->host_bytes, 0);
    rc = m->device->ops->host_register(m->device, "what is copied from", m->host, m->host_bytes, false, err);
    m->registered = !rc;
    return rc ? rc : measure_kernels_open(m, err);
}

static int stream_start(struct stream *s, struct measure *m, struct helm_err *err)
{
    if (s->started) return helm_fail(err, HELM_E_STATE, "copies are flowing already");
    int rc = measure_take_memory(m, err);
    if (rc) return rc;
    memset(s, 0, sizeof *s);
    s->m = m;
    pthread_mutex_init(&s->lock, NULL);
    rc = pin_create_thread(&s->thread, -1, stream_main, s, err);
    if (rc) return rc;
    s->started = true;
    while (!atomic_load(&s->flows)) units_sleep_ms(2);
    return 0;
}

static int stream_stop(struct stream *s, struct helm_err *err)
{
    if (!s->started) return helm_fail(err, HELM_E_STATE, "no copies are flowing");
    atomic_store(&s->stop, true);
    pthread_join(s->thread, NULL);
    pthread_mutex_destroy(&s->lock);
    s->started = false;
    if (s->rc) *err = s->err;
    return s->rc;
}

static int stream_copied(struct stream *s, struct helm_err *err)
{
    if (!s->started) return helm_fail(err, HELM_E_STATE, "no copies are flowing");
    pthread_mutex_lock(&s->lock);
    const struct measure_samples samples = {.value = {s->copied, s->at_s}, .count = 2};
    pthread_mutex_unlock(&s->lock);
    measure_print(s->m, "link.copied", 0, &samples);
    return 0;
}

/* ---- everything ---- */

/* Memory that the device takes for itself with all kernels loaded: the planner's line "context". */
static void report_context(struct measure *m)
{
    struct measure_samples samples = {.count = 0};
    measure_add(&samples, (double)m->device->used[DEVICE_CONTEXT]);
    measure_print(m, "gpu.context", 0, &samples);
}

/* Copies to the device alone, as measure_all has them: what the link gives now. */
static int measure_link(struct measure *m, const char *what, struct helm_err *err)
{
    (void)what;
    int rc = measure_take_memory(m, err);
    return rc ? rc : measure_copies(m, DEVICE_TO_DEVICE, "link.h2d", err);
}

static int measure_all(struct measure *m, const char *what, struct helm_err *err)
{
    int rc = measure_take_memory(m, err);
    if (!rc) rc = measure_kernels_run(m, err);
    if (!rc) rc = measure_link(m, what, err);
    if (!rc) rc = measure_copies(m, DEVICE_TO_HOST, "link.d2h", err);
    if (!rc) rc = measure_latency(m, err);
    if (!rc) rc = measure_hand_overs(m, err);
    if (!rc) report_context(m);
    return rc;
}

/* "q4_K 1.5": a format, and seconds for it. */
static int measure_format(struct measure *m, const char *what, struct helm_err *err)
{
    char name[LINE_TEXT];
    double seconds = 0;
    const enum tensor_format format = sscanf(what, "%63s %lf", name, &seconds) == 2 && seconds > 0
                                          ? tensor_format_named(name)
                                          : FORMAT_COUNT;
    if (format == FORMAT_COUNT || format == FORMAT_BF16 || tensor_format_of(format)->variable)
        return helm_fail(err, HELM_E_USAGE, "'format %s': a format with rates of its own and seconds", what);
    int rc = measure_take_memory(m, err);
    return rc ? rc : measure_format_run(m, format, seconds, err);
}

static int measure_close_programs(struct measure *m, const char *what, struct helm_err *err)
{
    (void)what, (void)err;
    measure_programs_close(m);
    return 0;
}

static int measure_open(struct measure *m, struct helm_err *err)
{
    const struct engine_measure_options *o = m->options;
    const struct device_options options = {.name = o->device,
                                           .vram_bytes = o->vram_bytes,
                                           .copy_bytes_per_s = o->copy_bytes_per_s,
                                           .wait_ms = MEASURE_WAIT_MS};
    m->emulated = strcmp(o->device, "emulated") == 0;
    int rc = device_open(&options, &m->device, err);
    return rc ? rc : m->device->ops->event_create(m->device, DEVICE_EVENT_PLAIN, &m->event, err);
}

static void measure_close(struct measure *m)
{
    if (!m->device) return;
    measure_programs_close(m);
    measure_kernels_close(m);
    if (m->event) m->device->ops->event_free(m->device, m->event);
    if (m->registered) m->device->ops->host_unregister(m->device, m->host);
    device_close(m->device);
    if (m->arena.fd >= 0) arena_close(&m->arena);
}

/* Commands that measure, with what follows the name; `alone`: not while copies are flowing. */
static const struct {
    const char *name;
    bool alone;
    int (*run)(struct measure *m, const char *what, struct helm_err *err);
} commands[] = {{"measure", true, measure_all},          {"link", true, measure_link},
                {"format ", true, measure_format},       {"programs ", true, measure_programs_open},
                {"cell ", false, measure_programs_cell}, {"close", false, measure_close_programs}};

static int obey(struct measure *m, struct stream *stream, const char *command, struct helm_err *err)
{
    if (strcmp(command, "stream") == 0) return stream_start(stream, m, err);
    if (strcmp(command, "stop") == 0) return stream_stop(stream, err);
    if (strcmp(command, "copied") == 0) return stream_copied(stream, err);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const size_t length = strlen(commands[i].name);
        const bool more = commands[i].name[length - 1] == ' ';
        if (strncmp(command, commands[i].name, length) != 0 || (!more && command[length])) continue;
        if (commands[i].alone && stream->started)
            return helm_fail(err, HELM_E_STATE, "'%.*s' while copies are flowing", (int)(length - more),
                             command);
        return commands[i].run(m, command + length, err);
    }
    return helm_fail(
        err, HELM_E_USAGE,
        "'%.40s' is none of measure, link, format, programs, cell, close, stream, copied, stop, quit",
        command);
}

int measure_serve(const struct engine_measure_options *options, FILE *in, FILE *out)
{
    struct measure m = {.options = options, .out = out, .arena = {.fd = -1}, .kv = KV_F16};
    struct stream *stream = calloc(1, sizeof *stream);
    struct helm_err err = {0}, ignored;
    char *line = malloc(COMMAND_TEXT);
    int rc =
        stream && line ? measure_open(&m, &err) : helm_fail(&err, HELM_E_NOMEM, "no memory to measure with");
    if (!rc) print_json(out, json_pack("{s:s}", "ready", m.device->text));
    while (!rc && fgets(line, COMMAND_TEXT, in)) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, "quit") == 0) break;
        rc = obey(&m, stream, line, &err);
        if (!rc) print_json(out, json_pack("{s:s}", "done", line));
    }
    if (stream && stream->started && stream_stop(stream, &ignored) && !rc) rc = HELM_E_DEVICE;
    if (rc) print_json(out, json_pack("{s:s}", "error", err.text));
    /* A device that failed may wait for ever in its queue: the end of the process takes care of it. */
    if (rc != HELM_E_DEVICE && rc != HELM_E_PEER) measure_close(&m);
    free(stream);
    free(line);
    return rc ? 5 : 0;
}
