/* Sends a cell's requests and times their tokens as a client sees them. See bench.h. Called by cells.c; owns
 * nothing past a call, but requests may be left open when it fails: the caller drops the connection then. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "common/base/units.h"
#include "client/bench/bench.h"

struct drive {
    struct bench_cell *cell;
    bool warm_up;
    uint64_t over;
    int rc;
    struct helm_err err; /* of the first request that went wrong */
};

struct drive_request {
    struct drive *drive;
    uint64_t number;
    uint64_t sent_ns, first_ns, last_ns;
    uint32_t tokens;
};

static void keep(struct drive *drive, struct samples *samples, double value)
{
    if (!drive->warm_up && drive->rc == 0) drive->rc = samples_add(samples, value, &drive->err);
}

static void on_token(void *user, uint64_t request, const struct helm_token *token)
{
    (void)request;
    (void)token;
    struct drive_request *r = user;
    uint64_t now = units_now_ns();
    if (r->tokens++ == 0)
        r->first_ns = now;
    else
        keep(r->drive, &r->drive->cell->gap_ms, (double)(now - r->last_ns) * 1e-6);
    r->last_ns = now;
}

static void on_done(void *user, uint64_t request, const struct helm_done *done)
{
    (void)request;
    struct drive_request *r = user;
    struct drive *d = r->drive;
    struct bench_cell *cell = d->cell;
    d->over++;
    if (done->finish != HELM_FINISH_LENGTH || r->tokens != cell->output_tokens) {
        if (d->rc == 0)
            d->rc = helm_fail(&d->err, HELM_E_PEER, "a request ended by '%s' after %u of %u tokens%s%s",
                              helm_finish_name(done->finish), r->tokens, cell->output_tokens,
                              *done->detail ? ": " : "", done->detail);
        return;
    }
    if (done->cached_tokens) {
        if (d->rc == 0)
            d->rc = helm_fail(
                &d->err, HELM_E_STATE,
                "%u of a prompt's %u tokens were not computed: the daemon had them from before (start it "
                "with --prefix-cache off, or take another --seed)",
                done->cached_tokens, done->prompt_tokens);
        return;
    }
    double first_s = (double)(r->first_ns - r->sent_ns) * 1e-9;
    double rest_s = (double)(r->last_ns - r->first_ns) * 1e-9;
    keep(d, &cell->ttft_ms, first_s * 1e3);
    keep(d, &cell->prefill_tok_s, cell->prompt_tokens / first_s);
    keep(d, &cell->server_ttft_ms, done->timings.ttft_ms);
    keep(d, &cell->server_prefill_tok_s, done->timings.prefill_tok_s);
    if (cell->output_tokens > 1 && rest_s > 0) {
        keep(d, &cell->decode_tok_s, (cell->output_tokens - 1) / rest_s);
        keep(d, &cell->server_tpot_ms, done->timings.tpot_ms);
        keep(d, &cell->server_decode_tok_s, done->timings.decode_tok_s);
    }
    if (!d->warm_up) cell->requests_done++;
}

static void on_error(void *user, uint64_t request, int code, const char *text)
{
    (void)request;
    struct drive_request *r = user;
    r->drive->over++;
    if (r->drive->rc == 0) r->drive->rc = helm_fail(&r->drive->err, code, "%s", text);
}

static int start_request(struct bench *bench, struct bench_group *group, struct drive_request *r,
                         uint32_t *prompt, struct helm_err *err)
{
    static const struct helm_callbacks callbacks = {.token = on_token, .done = on_done, .error = on_error};
    const struct bench_cell *cell = r->drive->cell;
    const struct bench_options *o = &bench->options;
    uint64_t ignored;
    prompt_fill(bench->options.seed, r->number, group->info->vocab, prompt, cell->prompt_tokens);
    const struct helm_generate_request what = {.prompt = prompt,
                                               .prompt_count = cell->prompt_tokens,
                                               .max_tokens = cell->output_tokens,
                                               .sampling = {.temperature = (float)o->temperature,
                                                            .top_k = (uint32_t)o->top_k,
                                                            .top_p = (float)o->top_p,
                                                            .repetition_penalty =
                                                                (float)o->repetition_penalty,
                                                            .has_seed = true,
                                                            .seed = r->number},
                                               .ignore_eos = true,
                                               .label = "helm-bench"};
    r->sent_ns = units_now_ns();
    return helm_generate(group->cli.client, &what, &callbacks, r,
                         (int)(bench->options.silence_seconds * 1000), &ignored, err);
}

/* Waits for tokens, or for a signal. */
static int wait_some(struct bench *bench, struct bench_group *group, struct helm_err *err)
{
    struct pollfd p[2] = {{.fd = helm_client_fd(group->cli.client), .events = POLLIN},
                          {.fd = bench->base.signal_fd, .events = POLLIN}};
    if (poll(p, 2, -1) < 0 && errno != EINTR) return helm_fail_errno(err, "waiting for tokens");
    if (p[1].revents && (bench->signal_number = cli_take_signal(&bench->base)) != 0)
        return helm_fail(err, HELM_E_CANCELLED, "ended by signal %d", bench->signal_number);
    return helm_dispatch(group->cli.client, 0, err);
}

/* Adds the workers' counts, before and after. */
static int add_status(struct bench_group *group, struct bench_cell *cell, int sign, struct helm_err *err)
{
    struct helm_status *status = NULL;
    int rc = helm_status(group->cli.client, CLI_ANSWER_MS, &status, err);
    if (rc < 0) return rc;
    cell->seconds_linear += sign * status->seconds_linear;
    cell->seconds_attention += sign * status->seconds_attention;
    cell->seconds_sample += sign * status->seconds_sample;
    cell->seconds_idle += sign * status->seconds_idle;
    if (sign > 0)
        cell->steps += status->steps_total;
    else
        cell->steps -= status->steps_total;
    free(status);
    return 0;
}

int drive_requests(struct bench *bench, struct bench_group *group, struct bench_cell *cell, uint64_t first,
                   uint64_t count, bool warm_up, struct helm_err *err)
{
    struct drive drive = {.cell = cell, .warm_up = warm_up};
    struct drive_request *request = calloc(count + 1, sizeof *request);
    uint32_t *prompt = calloc(cell->prompt_tokens, sizeof *prompt);
    uint64_t sent = 0, begin_ns = 0;
    int rc = 0;
    if (!request || !prompt) {
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for %llu requests of %u tokens",
                       (unsigned long long)count, cell->prompt_tokens);
        goto out;
    }
    if (!warm_up) rc = add_status(group, cell, -1, err);
    begin_ns = units_now_ns();
    while (rc == 0 && drive.rc == 0 && drive.over < count) {
        while (rc == 0 && sent < count && sent - drive.over < bench->options.concurrency) {
            request[sent] = (struct drive_request){.drive = &drive, .number = first + sent};
            rc = start_request(bench, group, &request[sent], prompt, err);
            sent++;
        }
        if (rc == 0) rc = wait_some(bench, group, err);
    }
    if (drive.rc < 0 &&
        rc != HELM_E_CANCELLED) { /* the request's own words say more than a lost connection's */
        rc = drive.rc;
        if (err) *err = drive.err;
    }
    if (rc == 0 && !warm_up) {
        double wall_s = (double)(units_now_ns() - begin_ns) * 1e-9;
        rc = add_status(group, cell, 1, err);
        if (rc == 0)
            rc = samples_add(&cell->throughput_tok_s, (double)(count * cell->output_tokens) / wall_s, err);
    }
out:
    free(request);
    free(prompt);
    return rc;
}
