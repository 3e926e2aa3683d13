/* helm-cli status, ps, cancel: what the daemon knows, as tables for people and as JSON for scripts. See cli.h
 * and query.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/commands.h"
#include "client/cli/query.h"
#include "common/base/units.h"
#include "common/base/printable.h"

/* Parses the line of a command whose one option is --json. */
static void parse(struct cli *cli, const struct args_spec *about, int argc, char *const argv[], bool *json,
                  struct args_parsed *parsed)
{
    const struct args_option table[] = {
        {"json", 0, ARGS_FLAG, NULL, "print JSON", .target = json},
    };
    struct args_spec spec = *about;
    spec.options = table;
    spec.option_count = 1;
    spec.parent = cli->global;
    args_parse_main(&spec, argc, argv, parsed);
}

int query_begin(struct cli *cli, const struct args_spec *about, int argc, char *const argv[], bool *json,
                struct args_parsed *parsed)
{
    parse(cli, about, argc, argv, json, parsed);
    return cli_open(cli);
}

int query_finish(struct cli_text *out, int rc, struct helm_err *err)
{
    if (rc == 0) rc = cli_text_write(out, err);
    cli_text_free(out);
    return rc < 0 ? cli_fail(err, false) : CLI_EXIT_DONE;
}

void query_add_clean(struct cli_text *out, const char *text)
{
    for (size_t i = 0, left = strlen(text), bytes; left; i += bytes, left -= bytes) {
        bytes = printable_character(text + i, left);
        cli_text_add(out, bytes ? text + i : "?", bytes ? bytes : 1);
        if (!bytes) bytes = 1;
    }
}

static void add_json(struct cli_text *out, const char *key, const char *text)
{
    cli_text_printf(out, "\"%s\":", key);
    cli_text_json(out, text, strlen(text));
    cli_text_add(out, ",", 1);
}

/* Takes back the comma after a last member. */
static void drop_comma(struct cli_text *out)
{
    if (out->length && out->data[out->length - 1] == ',') out->data[--out->length] = 0;
}

/* ---- status ----------------------------------------------------------------------------------------- */

static void status_json(const struct helm_status *s, const struct helm_model_info *m, struct cli_text *out)
{
    cli_text_add(out, "{", 1);
    add_json(out, "version", s->version);
    add_json(out, "state", s->state);
    add_json(out, "kv_dtype", s->kv_dtype);
    add_json(out, "prefix_cache", s->prefix_cache);
    add_json(out, "speculate", s->speculate);
    add_json(out, "activations", s->activations);
    add_json(out, "invariant", s->invariant);
    cli_text_printf(out,
                    "\"uptime_ms\":%" PRIu64 ",\"running\":%u,\"queued\":%u,\"queue_limit\":%u,"
                    "\"kv_pages_used\":%u,\"kv_pages_total\":%u,\"requests_total\":%" PRIu64
                    ",\"tokens_prompt_total\":%" PRIu64 ",\"tokens_output_total\":%" PRIu64
                    ",\"steps_total\":%" PRIu64 ",\"seconds_linear\":%.6f,\"seconds_attention\":%.6f,"
                    "\"seconds_sample\":%.6f,\"seconds_idle\":%.6f,\"seconds_steps\":%.6f,"
                    "\"load_seconds_left\":%.3f,\"kv_token_bytes\":%" PRIu64 ",\"kv_pages_cached\":%u,"
                    "\"prefix_hits_total\":%" PRIu64 ",\"tokens_cached_total\":%" PRIu64
                    ",\"prefix_evictions_total\":%" PRIu64
                    ",\"snapshots\":%u,\"snapshots_total\":%u,\"snapshot_bytes\":%" PRIu64
                    ",\"snapshot_hits_total\":%" PRIu64 ",\"snapshots_dropped_total\":%" PRIu64
                    ",\"draft_tokens\":%u,\"tokens_drafted_total\":%" PRIu64
                    ",\"tokens_accepted_total\":%" PRIu64
                    ",\"seconds_with_drafts\":%.6f,\"seconds_without_drafts\":%.6f,",
                    s->uptime_ms, s->running, s->queued, s->queue_limit, s->kv_pages_used, s->kv_pages_total,
                    s->requests_total, s->tokens_prompt_total, s->tokens_output_total, s->steps_total,
                    s->seconds_linear, s->seconds_attention, s->seconds_sample, s->seconds_idle,
                    s->seconds_steps, s->load_seconds_left, s->kv_token_bytes, s->kv_pages_cached,
                    s->prefix_hits_total, s->tokens_cached_total, s->prefix_evictions_total, s->snapshots,
                    s->snapshots_total, s->snapshot_bytes, s->snapshot_hits_total, s->snapshots_dropped_total,
                    s->draft_tokens, s->tokens_drafted_total, s->tokens_accepted_total,
                    s->seconds_with_drafts, s->seconds_without_drafts);
    cli_text_printf(out,
                    "\"kv_places_used\":%u,\"kv_places_total\":%u,\"kv_pages_host\":%u,"
                    "\"kv_pages_moved_out_total\":%" PRIu64 ",\"kv_pages_fetched_total\":%" PRIu64
                    ",\"experts_used_total\":%" PRIu64 ",\"experts_present_total\":%" PRIu64
                    ",\"experts_moved_total\":%" PRIu64 ",\"workers\":[",
                    s->kv_places_used, s->kv_places_total, s->kv_pages_host, s->kv_pages_moved_out_total,
                    s->kv_pages_fetched_total, s->experts_used_total, s->experts_present_total,
                    s->experts_moved_total);
    for (size_t i = 0; i < s->worker_count; i++) {
        const struct helm_worker_status *w = &s->workers[i];
        cli_text_add(out, "{", 1);
        add_json(out, "name", w->name);
        add_json(out, "state", w->state);
        add_json(out, "kernels", w->kernels);
        add_json(out, "device", w->device);
        cli_text_printf(out,
                        "\"pid\":%u,\"epoch\":%u,\"restarts\":%u,\"threads\":%u,\"numa_node\":%d,"
                        "\"weight_bytes\":%" PRIu64 ",\"huge_bytes\":%" PRIu64 ",\"loaded_bytes\":%" PRIu64
                        ",\"vram_bytes\":%" PRIu64
                        ",\"busy_seconds\":%.6f,\"wait_seconds\":%.6f,\"weight_bytes_read\":%" PRIu64
                        ",\"link_bytes\":%" PRIu64 "},",
                        w->pid, w->epoch, w->restarts, w->threads, w->numa_node, w->weight_bytes,
                        w->huge_bytes, w->loaded_bytes, w->vram_bytes, w->busy_seconds, w->wait_seconds,
                        w->weight_bytes_read, w->link_bytes);
    }
    drop_comma(out);
    cli_text_add(out, "],\"model\":", 10);
    if (!m) cli_text_add(out, "null", 4);
    if (m) {
        cli_text_add(out, "{", 1);
        add_json(out, "folder", m->folder);
        add_json(out, "architecture", m->architecture);
        add_json(out, "dtype", m->dtype);
        cli_text_printf(out,
                        "\"layers\":%u,\"hidden\":%u,\"intermediate\":%u,\"heads\":%u,\"kv_heads\":%u,"
                        "\"head_dim\":%u,\"vocab\":%u,\"context\":%u,\"model_context\":%u,"
                        "\"weight_bytes\":%" PRIu64 ",\"parameters\":%" PRIu64 ",\"bos\":%d,\"eos\":",
                        m->layers, m->hidden, m->intermediate, m->heads, m->kv_heads, m->head_dim, m->vocab,
                        m->context, m->model_context, m->weight_bytes, m->parameters, m->bos);
        cli_text_ids(out, m->eos, m->eos_count, true);
        cli_text_add(out, "}", 1);
    }
    cli_text_add(out, "}\n", 2);
}

/* The worker's part of a step's time: computing, waiting for the other worker; the rest is neither's. */
static void status_work(const struct helm_worker_status *w, double steps, struct cli_text *out)
{
    char read[UNITS_TEXT], link[UNITS_TEXT];
    if (steps <= 0) return;
    cli_text_printf(out, "           busy %.0f %% of the steps' time, waiting %.0f %%; weights read %s",
                    100 * w->busy_seconds / steps, 100 * w->wait_seconds / steps,
                    units_format_size(w->weight_bytes_read, read));
    if (w->link_bytes) cli_text_printf(out, ", over the link %s", units_format_size(w->link_bytes, link));
    cli_text_add(out, "\n", 1);
}

static void status_worker(const struct helm_worker_status *w, double steps, struct cli_text *out)
{
    char size[UNITS_TEXT], huge[UNITS_TEXT], loaded[UNITS_TEXT], vram[UNITS_TEXT];
    cli_text_printf(out, "worker     ");
    query_add_clean(out, w->name);
    cli_text_printf(out, ": ");
    query_add_clean(out, w->state);
    cli_text_printf(out, ", pid %u, %u threads, NUMA node %d, restarts %u, weights %s of %s, huge pages %s\n",
                    w->pid, w->threads, w->numa_node, w->restarts, units_format_size(w->loaded_bytes, loaded),
                    units_format_size(w->weight_bytes, size), units_format_size(w->huge_bytes, huge));
    if (w->device[0]) {
        cli_text_printf(out, "           device: ");
        query_add_clean(out, w->device);
        cli_text_printf(out, ", VRAM in use %s\n", units_format_size(w->vram_bytes, vram));
    }
    cli_text_printf(out, "           kernels: ");
    query_add_clean(out, w->kernels);
    cli_text_add(out, "\n", 1);
    status_work(w, steps, out);
}

static void status_table(const struct helm_status *s, const struct helm_model_info *m, const char *endpoint,
                         struct cli_text *out)
{
    char size[UNITS_TEXT];
    cli_text_printf(out, "daemon     helmd ");
    query_add_clean(out, s->version);
    cli_text_printf(out, " at %s, up %.1f s, ", endpoint, (double)s->uptime_ms / 1000);
    query_add_clean(out, s->state);
    if (s->load_seconds_left > 0) cli_text_printf(out, " (%.0f s left)", s->load_seconds_left);
    if (m) {
        bool billions = m->parameters >= 1000000000;
        cli_text_printf(out, "\nmodel      ");
        query_add_clean(out, m->folder);
        cli_text_printf(out, "\n           ");
        query_add_clean(out, m->architecture);
        cli_text_printf(out, ", %.3g %s parameters, %s, %u layers, context %u tokens (model: %u)",
                        (double)m->parameters / (billions ? 1e9 : 1e6), billions ? "billion" : "million",
                        units_format_size(m->weight_bytes, size), m->layers, m->context, m->model_context);
    }
    cli_text_printf(out,
                    "\nrequests   %u running, %u queued of %u, %" PRIu64 " since the start\n"
                    "tokens     %" PRIu64 " prompt, %" PRIu64 " output, in %" PRIu64 " steps\n"
                    "KV pages   %u of %u in use",
                    s->running, s->queued, s->queue_limit, s->requests_total, s->tokens_prompt_total,
                    s->tokens_output_total, s->steps_total, s->kv_pages_used, s->kv_pages_total);
    if (s->kv_token_bytes > 0) {
        cli_text_printf(out, ", ");
        query_add_clean(out, s->kv_dtype);
        cli_text_printf(out, ", %s a token", units_format_size(s->kv_token_bytes, size));
    }
    if (s->kv_places_total > 0)
        cli_text_printf(out,
                        "\nin VRAM    %u of %u pages, %u in host memory alone; %" PRIu64
                        " moved out so far, %" PRIu64 " fetched",
                        s->kv_places_used, s->kv_places_total, s->kv_pages_host, s->kv_pages_moved_out_total,
                        s->kv_pages_fetched_total);
    if (s->experts_used_total > 0)
        cli_text_printf(out,
                        "\nexperts    %.1f %% of %" PRIu64 " uses in VRAM; %" PRIu64 " brought there so far",
                        100.0 * (double)s->experts_present_total / (double)s->experts_used_total,
                        s->experts_used_total, s->experts_moved_total);
    cli_text_printf(out, "\nprefixes   ");
    query_add_clean(out, s->prefix_cache);
    if (strcmp(s->prefix_cache, "off") != 0)
        cli_text_printf(out,
                        ", %u more pages kept, %" PRIu64 " requests found %" PRIu64 " tokens, %" PRIu64
                        " pages dropped",
                        s->kv_pages_cached, s->prefix_hits_total, s->tokens_cached_total,
                        s->prefix_evictions_total);
    if (s->snapshots_total > 0)
        cli_text_printf(out,
                        "\nsnapshots  %u of %u, %s each; %" PRIu64 " sequences began with one, %" PRIu64
                        " dropped",
                        s->snapshots, s->snapshots_total, units_format_size(s->snapshot_bytes, size),
                        s->snapshot_hits_total, s->snapshots_dropped_total);
    if (s->draft_tokens > 0) {
        cli_text_printf(out, "\ndrafts     ");
        query_add_clean(out, s->speculate);
        cli_text_printf(out, ", %u a step at most; %" PRIu64 " of %" PRIu64 " were right", s->draft_tokens,
                        s->tokens_accepted_total, s->tokens_drafted_total);
        if (s->seconds_with_drafts > 0)
            cli_text_printf(out, "; %.2f times the forecast speed of steps without",
                            s->seconds_without_drafts / s->seconds_with_drafts);
    }
    if (s->activations[0]) {
        cli_text_printf(out, "\nproducts   ");
        query_add_clean(out, s->activations);
    }
    if (s->invariant[0]) {
        cli_text_printf(out, "\ninvariant  ");
        query_add_clean(out, s->invariant);
    }
    cli_text_printf(out, "\ntime       linear %.2f s, attention %.2f s, sampling %.2f s, idle %.2f s\n",
                    s->seconds_linear, s->seconds_attention, s->seconds_sample, s->seconds_idle);
    for (size_t i = 0; i < s->worker_count; i++) status_worker(&s->workers[i], s->seconds_steps, out);
}

int command_status(struct cli *cli, int argc, char *const argv[])
{
    const struct args_spec about = {.program = "helm-cli status",
                                    .usage = "[--json]",
                                    .about = "The daemon's state, its model, its workers and its counters."};
    bool json = false;
    struct args_parsed parsed;
    struct helm_err err = {0};
    struct helm_status *status = NULL;
    struct helm_model_info *model = NULL;
    struct cli_text out = {0};
    int exit_status = query_begin(cli, &about, argc, argv, &json, &parsed);
    if (exit_status != CLI_EXIT_DONE) return exit_status;
    int rc = helm_status(cli->client, CLI_ANSWER_MS, &status, &err);
    if (rc == 0) rc = helm_model_info(cli->client, CLI_ANSWER_MS, &model, &err);
    if (rc == HELM_E_STATE) rc = 0; /* still loading: the model is not known yet */
    if (rc == 0 && json) status_json(status, model, &out);
    if (rc == 0 && !json) status_table(status, model, helm_client_endpoint(cli->client), &out);
    exit_status = query_finish(&out, rc, &err);
    free(status);
    free(model);
    return exit_status;
}

/* ---- ps --------------------------------------------------------------------------------------------- */

static void list_json(const struct helm_list *list, struct cli_text *out)
{
    cli_text_add(out, "[", 1);
    for (size_t i = 0; i < list->count; i++) {
        const struct helm_list_entry *e = &list->entries[i];
        cli_text_printf(out, "{\"id\":%" PRIu64 ",", e->id);
        add_json(out, "state", e->state);
        add_json(out, "label", e->label);
        add_json(out, "user", e->user);
        cli_text_printf(out,
                        "\"prompt_tokens\":%u,\"prefilled_tokens\":%u,\"output_tokens\":%u,\"max_tokens\":%u,"
                        "\"age_ms\":%" PRIu64 "},",
                        e->prompt_tokens, e->prefilled_tokens, e->output_tokens, e->max_tokens, e->age_ms);
    }
    drop_comma(out);
    cli_text_add(out, "]\n", 2);
}

void query_add_list(const struct helm_list *list, struct cli_text *out)
{
    cli_text_printf(out, "%8s  %-8s %9s %15s %15s  %s\n", "ID", "STATE", "AGE", "PREFILLED", "OUTPUT",
                    "LABEL (USER)");
    for (size_t i = 0; i < list->count; i++) {
        const struct helm_list_entry *e = &list->entries[i];
        char prefilled[32], output[32];
        snprintf(prefilled, sizeof prefilled, "%u/%u", e->prefilled_tokens, e->prompt_tokens);
        snprintf(output, sizeof output, "%u/%u", e->output_tokens, e->max_tokens);
        struct cli_text state = {0};
        query_add_clean(&state, e->state);
        cli_text_printf(out, "%8" PRIu64 "  %-8s %7.1f s %15s %15s  ", e->id, state.data ? state.data : "",
                        (double)e->age_ms / 1000, prefilled, output);
        cli_text_free(&state);
        query_add_clean(out, e->label);
        if (e->user && *e->user) {
            cli_text_printf(out, " (");
            query_add_clean(out, e->user);
            cli_text_printf(out, ")");
        }
        cli_text_add(out, "\n", 1);
    }
    if (list->others) cli_text_printf(out, "%zu of others, who alone may see them\n", list->others);
}

int command_ps(struct cli *cli, int argc, char *const argv[])
{
    const struct args_spec about = {
        .program = "helm-cli ps",
        .usage = "[--json]",
        .about = "Open requests, oldest first: one's own, or everybody's as an administrator."};
    bool json = false;
    struct args_parsed parsed;
    struct helm_err err = {0};
    struct helm_list *list = NULL;
    struct cli_text out = {0};
    int exit_status = query_begin(cli, &about, argc, argv, &json, &parsed);
    if (exit_status != CLI_EXIT_DONE) return exit_status;
    int rc = helm_list(cli->client, CLI_ANSWER_MS, &list, &err);
    if (rc == 0 && json) list_json(list, &out);
    if (rc == 0 && !json) query_add_list(list, &out);
    exit_status = query_finish(&out, rc, &err);
    free(list);
    return exit_status;
}

/* ---- cancel ----------------------------------------------------------------------------------------- */

int command_cancel(struct cli *cli, int argc, char *const argv[])
{
    const struct args_spec about = {.program = "helm-cli cancel",
                                    .usage = "ID [--json]",
                                    .about = "Ends a request, any client's, by the id that ps shows.",
                                    .min_operands = 1,
                                    .max_operands = 1};
    bool json = false;
    struct args_parsed parsed;
    struct helm_err err = {0};
    struct cli_text out = {0};
    uint64_t id = 0;
    parse(cli, &about, argc, argv, &json, &parsed);
    if (units_parse_u64("ID", parsed.operand.item[0], 1, UINT64_MAX, &id, &err) < 0)
        return args_usage_error(&about, &err);
    int exit_status = cli_open(cli);
    if (exit_status != CLI_EXIT_DONE) return exit_status;
    int rc = helm_cancel_id(cli->client, id, CLI_ANSWER_MS, &err);
    cli_text_printf(&out,
                    json ? "{\"id\":%" PRIu64 ",\"cancelled\":true}\n" : "request %" PRIu64 " cancelled\n",
                    id);
    return query_finish(&out, rc, &err);
}
