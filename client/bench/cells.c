/* The matrix: made from the options, run round by round. See bench.h. Called by main; owns groups and cells.
 *
 * Rounds are interleaved over the whole matrix, every other one backwards, so that a machine whose bandwidth
 * drifts favours no cell; read bandwidth is measured before and after each. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/shared/private_daemon.h"
#include "common/base/cgroup.h"
#include "common/base/units.h"
#include "client/bench/bench.h"

/* Reading is measured over as much as the weights take, so that caches help both alike: past most caches, and
 * not so much that preparing it takes long. */
#define READ_BYTES_MIN (256 * MIB)
#define READ_BYTES_MAX (4 * GIB)

int cells_make(struct bench *bench, struct helm_err *err)
{
    const struct bench_options *o = &bench->options;
    uint32_t models = o->models.count ? o->models.count : 1;
    uint32_t per_group = o->prompt_count * o->output_count;
    bench->group = calloc((size_t)models * o->vram_count, sizeof *bench->group);
    bench->cell = calloc((size_t)models * o->vram_count * per_group, sizeof *bench->cell);
    if (!bench->group || !bench->cell) return helm_fail(err, HELM_E_NOMEM, "no memory for the matrix");
    for (uint32_t m = 0; m < models; m++) {
        for (uint32_t v = 0; v < o->vram_count; v++) {
            struct bench_group *group = &bench->group[bench->group_count];
            group->model = o->models.count ? o->models.item[m] : NULL;
            group->vram_bytes = o->vram_bytes[v];
            group->cli = bench->base;
            group->cli.model = group->model;
            group->cli.vram_bytes = group->vram_bytes;
            group->cli.has_vram = group->vram_bytes != 0;
            for (uint32_t i = 0; i < per_group; i++)
                bench->cell[bench->cell_count++] =
                    (struct bench_cell){.group = bench->group_count,
                                        .prompt_tokens = (uint32_t)o->prompt[i / o->output_count],
                                        .output_tokens = (uint32_t)o->output[i % o->output_count]};
            bench->group_count++;
        }
    }
    return 0;
}

/* ---- one daemon ---- */

static void group_close(struct bench_group *group)
{
    helm_disconnect(&group->cli.client);
    private_daemon_stop(&group->cli.daemon);
    group->open = false;
}

/* The report's facts about the daemon; asked once, at its first opening. */
static int group_describe(struct bench_group *group, struct helm_err *err)
{
    struct helm_status *status = NULL;
    char *plan = NULL;
    if (group->info) return 0;
    int rc = helm_model_info(group->cli.client, CLI_ANSWER_MS, &group->info, err);
    if (rc == 0) rc = helm_status(group->cli.client, CLI_ANSWER_MS, &status, err);
    if (rc == 0) rc = helm_plan(group->cli.client, CLI_ANSWER_MS, &plan, err);
    if (rc == 0) rc = bytes_read_plan(group, plan, err);
    if (rc < 0) goto out;
    group->node = -1;
    group->local = strncmp(helm_client_endpoint(group->cli.client), "ipc://", 6) == 0;
    group->version = strdup(status->version);
    group->workers = json_array();
    for (size_t i = 0; i < status->worker_count; i++) {
        const struct helm_worker_status *w = &status->workers[i];
        json_array_append_new(group->workers,
                              json_pack("{s:s, s:i, s:i, s:s, s:I, s:I}", "name", w->name, "threads",
                                        (int)w->threads, "numa_node", (int)w->numa_node, "kernels",
                                        w->kernels, "weight_bytes", (json_int_t)w->weight_bytes, "huge_bytes",
                                        (json_int_t)w->huge_bytes));
        if (strcmp(w->name, "cpu") != 0 || !w->threads) continue;
        group->has_cpu = true;
        group->threads = w->threads;
        group->node = w->numa_node;
        group->weight_bytes = w->weight_bytes;
    }
out:
    if (rc < 0) { /* asked again at the next opening */
        free(group->info);
        group->info = NULL;
    }
    free(status);
    free(plan);
    return rc;
}

/* Connects, starting the daemon first where it is a private one. *status: of what went wrong. */
static int group_open(struct bench *bench, struct bench_group *group, int *status, struct helm_err *err)
{
    *status = CLI_EXIT_REFUSED;
    if (group->open) return 0;
    if (group->model) {
        uint64_t start_us = units_now_us();
        int rc = private_daemon_start(&group->cli, &group->cli.daemon, &bench->signal_number, err);
        if (rc < 0) *status = private_daemon_exit(rc);
        if (rc == 0) rc = samples_add(&group->load_seconds, (double)(units_now_us() - start_us) * 1e-6, err);
        if (rc < 0) return rc;
    }
    *status = CLI_EXIT_NO_DAEMON;
    int rc = cli_connect(&group->cli, err);
    if (rc == HELM_E_USAGE) *status = CLI_EXIT_USAGE; /* keys */
    if (rc < 0) cli_advise(&group->cli, err);
    if (rc < 0) return rc;
    group->open = true;
    return group_describe(group, err);
}

/* ---- read bandwidth ---- */

static int limit_prepare(struct bench *bench, const struct bench_group *group, struct helm_err *err)
{
    struct cgroup_memory memory;
    uint64_t bytes = bench->options.read_bytes;
    if (!group->local || !group->has_cpu || !bytes) return 0;
    if (bytes == UINT64_MAX) {
        bytes = group->weight_bytes < READ_BYTES_MAX ? group->weight_bytes : READ_BYTES_MAX;
        if (bytes < READ_BYTES_MIN) bytes = READ_BYTES_MIN;
    }
    if (bench->limit && bench->limit_threads == group->threads && bench->limit_node == group->node &&
        bench->limit_bytes == bytes)
        return 0;
    read_limit_close(&bench->limit);
    bench->limit_bytes = bytes;
    int rc = cgroup_read_memory(&memory, err);
    if (rc < 0) return rc;
    if (bytes > memory.available_bytes / 4) bytes = memory.available_bytes / 4;
    bench->limit_threads = group->threads;
    bench->limit_node = group->node;
    return read_limit_open(group->threads, group->node, NULL, bytes, &bench->limit, err);
}

/* GB/s, or 0 where it cannot be measured: the daemon is on another machine, or has no CPU worker. */
static int measure_read(struct bench *bench, const struct bench_group *group, double *gb_s,
                        struct helm_err *err)
{
    *gb_s = 0;
    if (!bench->limit || !group->local || !group->has_cpu) return 0;
    int rc = read_limit_measure(bench->limit, gb_s, err);
    return rc ? rc : samples_add(&bench->read_gb_s, *gb_s, err);
}

/* ---- one cell, one round ---- */

static int cell_measure(struct bench *bench, struct bench_group *group, struct bench_cell *cell,
                        uint64_t round, struct helm_err *err)
{
    const struct bench_options *o = &bench->options;
    uint32_t count = cell->prompt_tokens;
    if (cell->prompt_tokens + cell->output_tokens > group->info->context)
        return helm_fail(err, HELM_E_CAPACITY, "%u + %u tokens do not fit the daemon's context of %u (--ctx)",
                         cell->prompt_tokens, cell->output_tokens, group->info->context);
    uint32_t *ids = calloc(count, sizeof *ids);
    if (!ids) return helm_fail(err, HELM_E_NOMEM, "no memory for a prompt");
    prompt_fill(o->seed, 0, group->info->vocab, ids, count);
    cell->checksum = prompt_checksum(ids, count);
    free(ids);

    int rc = limit_prepare(bench, group, err);
    if (rc == 0)
        rc =
            drive_requests(bench, group, cell, PROMPT_WARMUP_FIRST + round * o->warmup, o->warmup, true, err);
    size_t before_count = cell->server_tpot_ms.count;
    double before = 0, after = 0;
    if (rc == 0) rc = measure_read(bench, group, &before, err);
    if (rc == 0) rc = drive_requests(bench, group, cell, round * o->requests, o->requests, false, err);
    if (rc == 0) rc = measure_read(bench, group, &after, err);
    if (rc < 0) return rc;
    double read_gb_s = (before + after) / 2;
    if (read_gb_s > 0) rc = samples_add(&cell->read_gb_s, read_gb_s, err);
    double bound_ms = bytes_bound_ms(bench, group, read_gb_s);
    double tpot_ms = samples_quantile_from(&cell->server_tpot_ms, before_count, 0.5);
    if (rc < 0 || bound_ms <= 0 || tpot_ms <= 0) return rc;
    rc = samples_add(&cell->bound_ms, bound_ms, err);
    return rc < 0 ? rc : samples_add(&cell->ratio, bound_ms / tpot_ms, err);
}

static int status_of(int code)
{
    static const unsigned refused = 1u << -HELM_E_BUSY | 1u << -HELM_E_CAPACITY | 1u << -HELM_E_LIMIT |
                                    1u << -HELM_E_FORMAT | 1u << -HELM_E_STATE | 1u << -HELM_E_NOT_FOUND |
                                    1u << -HELM_E_UNSUPPORTED | 1u << -HELM_E_PERMISSION;
    return code < 0 && code >= HELM_E_DEVICE && refused >> -code & 1 ? CLI_EXIT_REFUSED : CLI_EXIT_FAILED;
}

static void cell_fail(struct bench_cell *cell, int status, const struct helm_err *err)
{
    cell->status = status;
    cell->err = *err;
}

static void cell_run(struct bench *bench, struct bench_cell *cell, uint64_t round)
{
    struct bench_group *group = &bench->group[cell->group];
    struct helm_err err = {0};
    char vram[32];
    int status;
    if (cell->status) return;
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[Kround %llu of %llu: %s, %s, %u + %u tokens\r", (unsigned long long)round + 1,
                (unsigned long long)bench->options.rounds, bench_model_name(group),
                bench_vram_text(group, vram), cell->prompt_tokens, cell->output_tokens);
    int rc = group_open(bench, group, &status, &err);
    if (rc < 0) {
        if (bench->signal_number) return;
        group_close(group);
        cli_complain(err.text);
        for (uint32_t i = 0; i < bench->cell_count; i++)
            if (bench->cell[i].group == cell->group && !bench->cell[i].status)
                cell_fail(&bench->cell[i], status, &err);
        return;
    }
    rc = cell_measure(bench, group, cell, round, &err);
    if (rc == 0 || bench->signal_number) return;
    cell_fail(cell, status_of(rc), &err);
    cli_complain(err.text);
    if (rc == HELM_E_PEER && group->cli.daemon) private_daemon_show_log(group->cli.daemon);
    group_close(group); /* ends what is still open of the cell */
}

int cells_run(struct bench *bench)
{
    bool keep = bench->options.keep || bench->group_count == 1;
    int status = CLI_EXIT_DONE;
    for (uint64_t round = 0; round < bench->options.rounds && !bench->signal_number; round++) {
        for (uint32_t i = 0; i < bench->cell_count && !bench->signal_number; i++) {
            bool back = round % 2 != 0;
            uint32_t at = back ? bench->cell_count - 1 - i : i;
            uint32_t next = back ? at - 1 : at + 1; /* wraps to a number past the end */
            cell_run(bench, &bench->cell[at], round);
            bool last = next >= bench->cell_count || bench->cell[next].group != bench->cell[at].group;
            if (last && !keep) group_close(&bench->group[bench->cell[at].group]);
        }
    }
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
    for (uint32_t i = 0; i < bench->group_count; i++) group_close(&bench->group[i]);
    for (uint32_t i = 0; i < bench->cell_count && !status; i++) status = bench->cell[i].status;
    return bench->signal_number ? CLI_EXIT_SIGNAL + bench->signal_number : status;
}

void cells_free(struct bench *bench)
{
    for (uint32_t i = 0; i < bench->group_count; i++) {
        struct bench_group *group = &bench->group[i];
        samples_free(&group->load_seconds);
        json_decref(group->stages);
        json_decref(group->workers);
        free(group->info);
        free(group->version);
    }
    for (uint32_t i = 0; i < bench->cell_count; i++) {
        struct bench_cell *c = &bench->cell[i];
        struct samples *all[] = {&c->ttft_ms,
                                 &c->gap_ms,
                                 &c->decode_tok_s,
                                 &c->prefill_tok_s,
                                 &c->throughput_tok_s,
                                 &c->server_ttft_ms,
                                 &c->server_tpot_ms,
                                 &c->server_prefill_tok_s,
                                 &c->server_decode_tok_s,
                                 &c->read_gb_s,
                                 &c->bound_ms,
                                 &c->ratio};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) samples_free(all[k]);
    }
    samples_free(&bench->read_gb_s);
    read_limit_close(&bench->limit);
    free(bench->group);
    free(bench->cell);
}
