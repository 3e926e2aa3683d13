/* A worker without a model: speaks the control protocol, takes steps from the arena, and answers with tokens
 * that are a pure function of the sequence so far. helmd cannot tell it from a real one, so everything about
 * helmd can be tested in milliseconds, and every way a worker can fail can be had on request. Called
 * helm-worker-gpu it is the GPU worker: its KV is in memory of its own, which is lost with it.
 *
 * Its "KV cache" is the token ids themselves, written into the KV pages through the page table and read back
 * from there for every sample: a page table row, a start position or a shared page that helmd got wrong
 * changes the tokens. Next token = hash(all tokens read back, seed, index), kept inside the vocabulary. Two
 * workers hand that hash to each other through the lanes as the plan says; each checks it against what it
 * reads back itself, so KV that one of them lost, or a lane left over from another life, ends it.
 *
 * A cache of two tiers is kept as real workers do (fake_kv.h).
 *
 * `--probe` prints one device of probe_vram_mib=N (0: none; probe_hang=1: nothing, for ever).
 *
 * Faults: HELM_FAKE_WORKER="key=value ..." in the environment; "gpu.key=value" is for that worker alone.
 * Keys: step_us (time a step takes), token_us (for each token of it besides), draft_us (for each draft that
 * its rows make), right_permille (so many of 1,000 such drafts are right), load_ms, crash_step=N (abort in
 * step N of each life), crash_epoch=E (only in this epoch), exit_load=1, exit_loaded=1, fault_load=1 (these
 * three from epoch load_from=E to load_to=E, else always), hang_step=N (never answers, nor PING),
 * bad_epoch=1, bad_secret=1, bad_abi=1, bad_result=N, ignore_shutdown=1, eos_at=N (the N-th output token is
 * token 1), garbage=1 (a frame that is no message, after READY). */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "common/shared/arena.h"
#include "common/base/args.h"
#include "common/shared/doorbell.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "common/plan/plan.h"
#include "common/base/units.h"
#include "proto/control.pb-c.h"
#include "tests/process/fake_kv.h"

struct fake {
    struct arena arena;
    uint64_t arena_fd, done_fd, secret_fd, worker, epoch;
    const char *control, *log_level;
    uint8_t secret[16];
    void *zmq, *socket;
    uint32_t serial, steps;
    struct plan plan;
    struct {
        struct plan_span *spans;
        uint32_t span_count;
        bool own,
            borrowed; /* it computes the layer whose cells are in my pool; in the CPU's, being the GPU */
    } phase[PLAN_PHASES_MAX];
    struct fake_kv kv;
};

static const char *kind = "cpu";

static bool fault_find(const char *key, long *value)
{
    const char *text = getenv("HELM_FAKE_WORKER");
    size_t n = strlen(key);
    for (; text && *text; text += strcspn(text, " "), text += *text == ' ') {
        if (strncmp(text, key, n) != 0 || text[n] != '=') continue;
        *value = strtol(text + n + 1, NULL, 10);
        return true;
    }
    return false;
}

static long fault(const char *key)
{
    char mine[64];
    long value = 0;
    snprintf(mine, sizeof mine, "%s.%s", kind, key);
    if (!fault_find(mine, &value)) fault_find(key, &value);
    return value;
}

static bool fault_now(const struct fake *f, const char *key)
{
    long epoch = fault("crash_epoch");
    return fault(key) == (long)f->steps && f->steps && (!epoch || epoch == (long)f->epoch);
}

static bool fault_loading(const struct fake *f, const char *key)
{
    long to = fault("load_to");
    return fault(key) && (long)f->epoch >= fault("load_from") && (!to || (long)f->epoch <= to);
}

static void sleep_us(long us)
{
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

static void send_message(struct fake *f, Helm__Control__V1__Control *msg)
{
    uint8_t data[1024];
    msg->version = 1;
    msg->epoch = (uint32_t)f->epoch + (fault("bad_epoch") ? 7 : 0);
    msg->worker = (uint32_t)f->worker;
    size_t size = helm__control__v1__control__pack(msg, data);
    if (zmq_send(f->socket, data, size, 0) < 0) exit(3);
}

static void send_hello(struct fake *f)
{
    Helm__Control__V1__Control msg = HELM__CONTROL__V1__CONTROL__INIT;
    Helm__Control__V1__Hello hello = HELM__CONTROL__V1__HELLO__INIT;
    if (fault("bad_secret")) f->secret[0] ^= 1;
    msg.secret.data = f->secret;
    msg.secret.len = sizeof f->secret;
    hello.pid = (uint32_t)getpid();
    hello.arena_abi = ARENA_ABI + (fault("bad_abi") ? 1 : 0);
    hello.kind = (char *)kind;
    msg.body_case = HELM__CONTROL__V1__CONTROL__BODY_HELLO;
    msg.hello = &hello;
    send_message(f, &msg);
}

static void send_fault(struct fake *f, int code, const char *text)
{
    Helm__Control__V1__Control msg = HELM__CONTROL__V1__CONTROL__INIT;
    Helm__Control__V1__Fault body = HELM__CONTROL__V1__FAULT__INIT;
    body.code = code;
    body.text = (char *)text;
    msg.body_case = HELM__CONTROL__V1__CONTROL__BODY_FAULT;
    msg.fault = &body;
    send_message(f, &msg);
}

static enum plan_processor me(void)
{
    return strcmp(kind, "gpu") == 0 ? PLAN_GPU0 : PLAN_CPU0;
}

/* The spans of one phase, and whose cells this worker writes in it: a layer's KV goes where decode attends
 * it, whichever worker computes it now. Only cells of each worker's first layer are kept. */
static int take_phase(struct fake *f, uint32_t p, struct helm_err *err)
{
    int rc = plan_spans(&f->plan, p, &f->phase[p].spans, &f->phase[p].span_count, err);
    for (uint32_t l = 0; l < f->plan.layers && !rc; l++) {
        uint32_t kv_layer;
        enum plan_processor owner = plan_kv_of(&f->plan, l, &kv_layer);
        if (f->kv.first[owner] != l || plan_home_processor(f->plan.unit[2 * l].home[p]) != me()) continue;
        if (owner == me())
            f->phase[p].own = true;
        else
            f->phase[p].borrowed = true;
    }
    return rc;
}

/* A GPU worker may read streamed weights in the arena only once the CPU worker has loaded them. */
static int wait_for_weights(struct fake *f, struct helm_err *err)
{
    struct doorbell *bell = &arena_control_of(&f->arena)->weights_bell;
    if (!plan_has_home(&f->plan, PLAN_HOME_STREAM)) return 0;
    while (doorbell_read(bell) != 1)
        if (!doorbell_wait(bell, doorbell_read(bell), 0, 20000, NULL))
            return helm_fail(err, HELM_E_PEER, "the weights did not come");
    return 0;
}

/* After a FAULT: not before it is on its way. */
static void leave(struct fake *f)
{
    zmq_close(f->socket);
    zmq_ctx_term(f->zmq);
    exit(1);
}

/* The plan, and where its KV goes. */
static void take_plan(struct fake *f, const Helm__Control__V1__Load *request)
{
    const struct arena_header *h = arena_header_of(&f->arena);
    bool gpu = me() == PLAN_GPU0;
    struct helm_err err = {0};
    json_t *json = NULL;
    int rc = json_parse_bounded("plan", request->plan_json, strlen(request->plan_json), 1 << 20, &json, &err);
    if (!rc) rc = plan_from_json(json, &f->plan, &err);
    if (!rc) rc = plan_check(&f->plan, &err);
    f->kv.arena = &f->arena;
    f->kv.plan = &f->plan;
    f->kv.me = me();
    if (!rc) find_first_layers(&f->kv);
    for (uint32_t p = 0; p < plan_phase_count(&f->plan) && !rc; p++) rc = take_phase(f, p, &err);
    json_decref(json);
    f->kv.pool[PLAN_CPU0].kv = f->kv.pool[PLAN_GPU0].kv = h->kv;
    f->kv.pool[PLAN_CPU0].at = arena_region_ptr(&f->arena, ARENA_REGION_KV);
    f->kv.pool[PLAN_GPU0].kv.layers = plan_layers_of(&f->plan, PLAN_GPU0);
    const uint32_t pages = plan_kv_tiered(&f->plan) ? h->vram_page_count : h->page_count;
    if (gpu) f->kv.pool[PLAN_GPU0].at = calloc(pages, kv_page_bytes(&f->kv.pool[PLAN_GPU0].kv) + 1);
    if (!rc && gpu && (request->vram_bytes == 0 || !request->device[0] || request->weights_ready))
        rc = helm_fail(&err, HELM_E_PEER, "LOAD: device '%s', VRAM %llu, weights ready %llu", request->device,
                       (unsigned long long)request->vram_bytes, (unsigned long long)request->weights_ready);
    if (!rc && !f->kv.pool[me()].at) rc = helm_fail(&err, HELM_E_NOMEM, "no memory for pages");
    if (!rc && gpu) rc = wait_for_weights(f, &err);
    if (!rc) return;
    send_fault(f, HELM_E_PEER, err.text);
    leave(f);
}

static void load(struct fake *f, const Helm__Control__V1__Load *request)
{
    if (fault_loading(f, "exit_load")) _exit(9);
    take_plan(f, request);
    if (fault_loading(f, "fault_load")) {
        send_fault(f, HELM_E_CAPACITY, "the fake weights do not fit");
        leave(f);
    }
    for (long ms = 0; ms < fault("load_ms") && !request->weights_ready; ms += 10) {
        Helm__Control__V1__Control msg = HELM__CONTROL__V1__CONTROL__INIT;
        Helm__Control__V1__Progress progress = HELM__CONTROL__V1__PROGRESS__INIT;
        progress.bytes_done = (uint64_t)ms;
        progress.bytes_total = (uint64_t)fault("load_ms");
        msg.body_case = HELM__CONTROL__V1__CONTROL__BODY_PROGRESS;
        msg.progress = &progress;
        send_message(f, &msg);
        sleep_us(10000);
    }
    if (me() == PLAN_CPU0) doorbell_ring(&arena_control_of(&f->arena)->weights_bell, 1);
    if (strcmp(kind, "cpu") == 0) doorbell_ring(&arena_control_of(&f->arena)->weights_bell, 1);
    if (fault_loading(f, "exit_loaded")) _exit(9);
    Helm__Control__V1__Control msg = HELM__CONTROL__V1__CONTROL__INIT;
    Helm__Control__V1__Ready ready = HELM__CONTROL__V1__READY__INIT;
    ready.threads = 1;
    ready.node = -1;
    ready.kernels = (char *)(request->weights_ready == 77 ? "fake reused" : "fake");
    ready.weight_bytes = arena_header_of(&f->arena)->region[ARENA_REGION_WEIGHTS].bytes;
    ready.weights_digest = 77;
    ready.device = (char *)(strcmp(kind, "gpu") == 0 ? "a fake" : "");
    ready.vram_bytes = strcmp(kind, "gpu") == 0 ? f->plan.memory[PLAN_VRAM0].total : 0;
    msg.body_case = HELM__CONTROL__V1__CONTROL__BODY_READY;
    msg.ready = &ready;
    send_message(f, &msg);
    if (fault("garbage")) zmq_send(f->socket, "\xff\xff\xff\xff", 4, 0);
}

/* The hash in front of this token. */
static uint64_t hash_before(uint64_t hash, uint32_t token)
{
    uint64_t inverse = 1099511628211u;
    for (int i = 0; i < 6; i++) inverse *= 2 - 1099511628211u * inverse;
    return (hash * inverse) ^ token;
}

static uint32_t token_of(const struct fake *f, uint64_t hash)
{
    return 2 + (uint32_t)((hash >> 20) % (arena_header_of(&f->arena)->vocab - 2));
}

static uint64_t hash_after(uint64_t hash, uint32_t token)
{
    return (hash ^ token) * 1099511628211u;
}

/* After the row's first `tokens` tokens. */
static void sample(struct fake *f, const struct step_row *row, uint32_t tokens, uint64_t hash,
                   struct sampling_result *out)
{
    const struct arena_slot *slot = arena_slot_of(&f->arena, row->slot);
    uint32_t count = row->start + tokens, vocab = arena_header_of(&f->arena)->vocab;
    memset(out, 0, sizeof *out);
    out->token = token_of(f, hash);
    if (fault("eos_at") && count - slot->prompt_count + 1 == (uint32_t)fault("eos_at")) out->token = 1;
    out->top_count = slot->sampling.logprobs;
    for (uint32_t i = 0; i < out->top_count; i++) {
        out->top[i].token = (out->token + i) % vocab;
        out->top[i].logprob = -(float)i - 0.5f;
    }
    out->logprob = -0.5f;
}

/* Drafts for the row's next one, each right with the probability that is asked for; `hash` is that of its
 * known tokens. `drafted`: the results after its drafts. */
static void make_drafts(struct fake *f, const struct step_row *row, uint64_t hash,
                        const struct step_result_row *drafted, uint32_t sampled, uint32_t *made)
{
    const uint32_t *draft = arena_history_of(&f->arena, row->slot) + row->start + row->count - row->drafts;
    for (uint32_t k = 0; k < row->drafts && sampled == draft[k]; k++) {
        hash = hash_after(hash, sampled);
        sampled = drafted[k].sampled.token;
    }
    for (uint32_t i = 0; i < row->drafts_next; i++) {
        hash = hash_after(hash, sampled);
        sampled = token_of(f, hash);
        const bool right = (hash * 0x9E3779B97F4A7C15u >> 32) % 1000 < (uint64_t)fault("right_permille");
        made[i] = right ? sampled : sampled == 2 ? 3 : 2;
    }
}

static uint32_t token_at(struct fake *f, const struct step *step, const struct step_row *row,
                         uint32_t position)
{
    const uint32_t serial = step->serial - 1;
    const struct step_result *before = &arena_control_of(&f->arena)->result[serial % ARENA_STEP_RING];
    if (!(row->flags & STEP_ROW_FOLLOWS)) return arena_history_of(&f->arena, row->slot)[position];
    for (uint32_t i = 0; i < before->row_count; i++)
        if (before->serial == serial && before->row[i].slot == row->slot) return before->row[i].sampled.token;
    fail_step("a row follows none");
    return 0;
}

/* Writes the step's KV into a pool and reads all of it back. */
static void attend(struct fake *f, enum plan_processor owner, const struct step *step, uint64_t *hash)
{
    for (uint32_t i = 0; i < step->row_count; i++) {
        const struct step_row *row = &step->row[i];
        const uint32_t from = owner == PLAN_GPU0 ? row->direct_from : 0; /* `hash` has what is below */
        for (uint32_t p = row->start; p < row->start + row->count; p++)
            *cell(&f->kv, owner, row, p) = token_at(f, step, row, p);
        if (fault_now(f, "crash_step") && i == step->row_count / 2) abort(); /* half of the KV is written */
        hash[i] = hash_on(&f->kv, owner, row, hash[i], from, row->start + row->count);
    }
}

/* Every pool this phase gives me; what they hold must be the same. */
static bool attend_all(struct fake *f, uint32_t phase, const struct step *step, uint64_t *hash)
{
    bool own = f->phase[phase].own, borrowed = f->phase[phase].borrowed;
    uint64_t other[ARENA_STEP_ROWS] = {0};
    if (own) attend(f, me(), step, hash);
    if (borrowed) attend(f, PLAN_CPU0, step, own ? other : hash);
    if (own && borrowed && memcmp(hash, other, step->row_count * sizeof *hash) != 0)
        fail_step("the borrowed KV is not mine");
    return own || borrowed;
}

/* This worker's spans of the step, in the plan's order; the lanes carry one hash a row, 0 until a worker has
 * read KV. */
static void run_spans(struct fake *f, const struct step *step, uint64_t *hash)
{
    uint32_t phase = plan_phase_for(&f->plan, step->token_count);
    size_t bytes = step->row_count * sizeof *hash;
    uint64_t got[ARENA_STEP_ROWS] = {0};
    struct helm_err err = {0};
    bool attended = false;
    uint32_t ticket = 0;
    uint64_t below[ARENA_STEP_ROWS] = {0}; /* what the CPU makes of its part of the GPU's cache */
    for (uint32_t i = 0; i < f->phase[phase].span_count; i++) {
        const struct plan_span *span = &f->phase[phase].spans[i];
        const bool assisted = (step->flags & STEP_KV_ASSISTED) && span->processor == PLAN_GPU0;
        if (assisted && me() == PLAN_CPU0) assist(&f->kv, step, span, &ticket, below);
        if (span->processor != me()) continue;
        if (span->ticket_in) {
            struct lane *lane = arena_lane_of(&f->arena, span->lane_in);
            if (lane_wait(lane, span->ticket_in, 0, 60000, NULL, &err)) fail_step(err.text);
            memcpy(got, lane->data, bytes);
            if (span->last_in) lane_release(lane);
        }
        bool attends = span->unit_count > 1 || (span->unit_count == 1 && !(span->first_unit & 1));
        if (assisted) assist(&f->kv, step, span, &ticket, below);
        if (attends && !attended) {
            memcpy(hash, below, bytes);
            attended = attend_all(f, phase, step, hash);
        }
        if (!attended)
            memcpy(hash, got, bytes); /* embedding, head or MLPs alone */
        else if (span->ticket_in && got[0] && memcmp(got, hash, bytes) != 0)
            fail_step("the other worker's KV is not mine");
        if (span->ticket_out) {
            struct lane *lane = arena_lane_of(&f->arena, span->lane_out);
            if (lane_acquire(lane, span->ticket_out, 0, 60000, NULL, &err)) fail_step(err.text);
            memcpy(lane->data, hash, bytes);
            if (lane_publish(lane, span->ticket_out, &err)) fail_step(err.text);
        }
    }
    if (!attended && fault_now(f, "crash_step")) abort();
}

/* Waits for the tokens that rows follow, which the head's worker draws. */
static void wait_for_tokens(struct fake *f, const struct step *step)
{
    struct doorbell *bell = &arena_control_of(&f->arena)->drawn_bell;
    bool follows = false;
    for (uint32_t i = 0; i < step->row_count; i++) follows |= (step->row[i].flags & STEP_ROW_FOLLOWS) != 0;
    uint32_t seen =
        doorbell_read(bell); /* what was looked at is what has to change: a ring in between counts */
    while (follows && !step_reached(seen, step->serial - 1))
        if (!doorbell_wait(bell, seen, 0, 60000, &seen)) fail_step("no tokens to follow");
}

static void run_step(struct fake *f, uint32_t serial)
{
    struct arena_control *control = arena_control_of(&f->arena);
    const struct step *step = &control->step[serial % ARENA_STEP_RING];
    struct step_result *result = &control->result[serial % ARENA_STEP_RING];
    uint64_t hash[ARENA_STEP_ROWS] = {0};
    struct arena_done *done = &control->done[f->worker];
    struct arena_times *times = &done->times[serial % ARENA_STEP_RING];
    uint64_t begin_us = units_now_us();
    f->steps++;
    wait_for_tokens(f, step);
    if (fault("token_us")) sleep_us(fault("token_us") * (long)step->token_count);
    if (fault("step_us")) sleep_us(fault("step_us"));
    uint32_t drafts = 0;
    for (uint32_t i = 0; i < step->row_count; i++)
        if (step->row[i].drafts_next > drafts) drafts = step->row[i].drafts_next;
    if (drafts && fault("draft_us")) sleep_us(fault("draft_us") * (long)drafts);
    const uint32_t further_us = drafts > 1 ? (uint32_t)fault("draft_us") * (drafts - 1) : 0;
    fetch_pages(&f->kv, step);
    run_spans(f, step, hash);
    store_pages(&f->kv, step);
    bool head = f->plan.head == me();
    if (head) {
        memset(result, 0, sizeof *result);
        result->serial = serial;
        result->epoch = step->epoch;
        result->row_count = step->row_count;
        result->compute_ns = 1000;
        result->further_us = further_us;
        uint32_t drafted = step->row_count, made = 0;
        for (uint32_t i = 0; i < step->row_count; i++) {
            const struct step_row *row = &step->row[i];
            result->row[i].slot = row->slot;
            for (uint32_t k = row->drafts; row->flags & STEP_ROW_SAMPLE; k--) {
                struct step_result_row *out = &result->row[k ? drafted + k - 1 : i];
                const uint32_t tokens = row->count - row->drafts + k;
                out->slot = row->slot;
                sample(f, row, tokens, hash[i], &out->sampled);
                if (!k) break;
                hash[i] =
                    hash_before(hash[i], arena_history_of(&f->arena, row->slot)[row->start + tokens - 1]);
            }
            make_drafts(f, row, hash[i], &result->row[drafted], result->row[i].sampled.token,
                        &result->made[made]);
            made += row->drafts_next;
            drafted += row->drafts;
        }
        if (fault_now(f, "bad_result")) result->row[0].sampled.token = UINT32_MAX;
        doorbell_ring(&control->drawn_bell, serial);
    }
    while (fault_now(f, "hang_step")) sleep_us(1000000);
    *times = (struct arena_times){.busy_ns = (units_now_us() - begin_us) * 1000,
                                  .wait_ns = 1000,
                                  .weight_bytes = 1000,
                                  .link_bytes = strcmp(kind, "gpu") == 0 ? 100 : 0};
    doorbell_ring(&done->bell, serial);
    uint64_t one = 1;
    if (write((int)f->done_fd, &one, sizeof one) != sizeof one) exit(4);
}

/* One control message; false ends the process. */
static bool take_control(struct fake *f)
{
    uint8_t data[65536];
    int size = zmq_recv(f->socket, data, sizeof data, ZMQ_DONTWAIT);
    if (size < 0) return true;
    Helm__Control__V1__Control *msg = helm__control__v1__control__unpack(NULL, (size_t)size, data);
    bool go_on = true;
    if (!msg) exit(5);
    if (msg->body_case == HELM__CONTROL__V1__CONTROL__BODY_LOAD) load(f, msg->load);
    if (msg->body_case == HELM__CONTROL__V1__CONTROL__BODY_SHUTDOWN) go_on = fault("ignore_shutdown") != 0;
    if (msg->body_case == HELM__CONTROL__V1__CONTROL__BODY_PING) {
        Helm__Control__V1__Control answer = HELM__CONTROL__V1__CONTROL__INIT;
        Helm__Control__V1__Pong pong = HELM__CONTROL__V1__PONG__INIT;
        pong.last_serial = f->serial;
        answer.body_case = HELM__CONTROL__V1__CONTROL__BODY_PONG;
        answer.pong = &pong;
        send_message(f, &answer);
    }
    helm__control__v1__control__free_unpacked(msg, NULL);
    return go_on;
}

static int probe(void)
{
    unsigned long long mib = (unsigned long long)fault("probe_vram_mib");
    while (fault("probe_hang")) sleep_us(1000000);
    if (mib)
        printf(
            "{\"devices\": [{\"name\": \"Fake GPU\", \"uuid\": \"GPU-0\", \"vram_bytes\": %llu, "
            "\"vram_free\": %llu, \"numa_node\": null, \"compute\": \"9.0\", \"context_bytes\": 1048576}]}\n",
            mib << 20, mib << 20);
    else
        puts("{\"devices\": [], \"error\": \"the fake machine has no GPU\"}");
    return 0;
}

int main(int argc, char **argv)
{
    struct fake f = {0};
    const char *slash = strrchr(argv[0], '/');
    if (strcmp(slash ? slash + 1 : argv[0], "helm-worker-gpu") == 0) kind = "gpu";
    if (argc == 2 && strcmp(argv[1], "--probe") == 0) return probe();
    const struct args_option options[] = {
        {"arena-fd", 0, ARGS_U64, "FD", "the arena", .target = &f.arena_fd},
        {"done-fd", 0, ARGS_U64, "FD", "eventfd to ring", .target = &f.done_fd},
        {"secret-fd", 0, ARGS_U64, "FD", "pipe with the secret", .target = &f.secret_fd},
        {"control", 0, ARGS_TEXT, "ENDPOINT", "helmd's control socket", .target = &f.control},
        {"worker", 0, ARGS_U64, "INDEX", "which worker", .target = &f.worker},
        {"epoch", 0, ARGS_U64, "E", "which life", .target = &f.epoch},
        {"log-level", 0, ARGS_TEXT, "LEVEL", "ignored", .target = &f.log_level},
    };
    const struct args_spec spec = {.program = "fake_worker",
                                   .usage = "[options]",
                                   .options = options,
                                   .option_count = sizeof options / sizeof *options};
    struct args_parsed parsed;
    struct helm_err err = {0};
    args_parse_main(&spec, argc, argv, &parsed);
    log_init("fake_worker", LOG_LEVEL_INFO);
    if (read((int)f.secret_fd, f.secret, sizeof f.secret) != (ssize_t)sizeof f.secret) return 1;
    if (arena_attach((int)f.arena_fd, &f.arena, &err)) {
        log_error("%s", err.text);
        return 1;
    }
    struct arena_control *control = arena_control_of(&f.arena);
    f.serial = doorbell_read(&control->step_bell);
    fprintf(stderr, "fake worker %s: weights bell %u\n", kind, doorbell_read(&control->weights_bell));
    f.zmq = zmq_ctx_new();
    f.socket = zmq_socket(f.zmq, ZMQ_DEALER);
    const int linger = 2000; /* ms, for last words; a helmd that has died takes none */
    if (!f.socket || zmq_setsockopt(f.socket, ZMQ_LINGER, &linger, sizeof linger) ||
        zmq_connect(f.socket, f.control))
        return 1;
    send_hello(&f);
    for (bool go_on = true; go_on;) {
        uint32_t now;
        if (doorbell_wait(&control->step_bell, f.serial, 0, 2, &now)) {
            while (f.serial != now) run_step(&f, ++f.serial);
        }
        go_on = take_control(&f);
    }
    zmq_close(f.socket);
    zmq_ctx_term(f.zmq);
    for (uint32_t p = 0; p < PLAN_PHASES_MAX; p++) free(f.phase[p].spans);
    plan_free(&f.plan);
    free(f.kv.pool[PLAN_GPU0].at);
    arena_close(&f.arena);
    return 0;
}
