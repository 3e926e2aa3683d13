/* helm-cli status, ps, cancel: what the daemon knows, as tables for people and as JSON for scripts. See cli.h
 * and query.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/commands.h"
#include "client/cli/query.h"
#include "common/base/units.h"

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

/* ---- status ----------------------------------------------------------------------------------------- */

static void worker_json(const struct helm_worker_status *w, struct cli_text *out)
{
    cli_text_fill(out, "{");
    cli_text_members(out, JSON_MEMBER(w, name), JSON_MEMBER(w, state), JSON_MEMBER(w, kernels),
                     JSON_MEMBER(w, device), JSON_MEMBER(w, pid), JSON_MEMBER(w, epoch),
                     JSON_MEMBER(w, restarts), JSON_MEMBER(w, threads), JSON_MEMBER(w, numa_node),
                     JSON_MEMBER(w, weight_bytes), JSON_MEMBER(w, huge_bytes), JSON_MEMBER(w, loaded_bytes),
                     JSON_MEMBER(w, vram_bytes), JSON_SECONDS(w, busy_seconds), JSON_SECONDS(w, wait_seconds),
                     JSON_MEMBER(w, weight_bytes_read), JSON_MEMBER(w, link_bytes));
    cli_text_fill(out, "},");
}

static void model_json(const struct helm_model_info *m, struct cli_text *out)
{
    cli_text_fill(out, "{");
    cli_text_members(out, JSON_MEMBER(m, folder), JSON_MEMBER(m, architecture), JSON_MEMBER(m, dtype),
                     JSON_MEMBER(m, layers), JSON_MEMBER(m, hidden), JSON_MEMBER(m, intermediate),
                     JSON_MEMBER(m, heads), JSON_MEMBER(m, kv_heads), JSON_MEMBER(m, head_dim),
                     JSON_MEMBER(m, vocab), JSON_MEMBER(m, context), JSON_MEMBER(m, model_context),
                     JSON_MEMBER(m, weight_bytes), JSON_MEMBER(m, parameters), JSON_MEMBER(m, bos));
    cli_text_fill(out, "'eos':");
    cli_text_ids(out, m->eos, m->eos_count, true);
    cli_text_fill(out, "}");
}

static void status_json(const struct helm_status *s, const struct helm_model_info *m, struct cli_text *out)
{
    cli_text_fill(out, "{");
    cli_text_members(out, JSON_MEMBER(s, version), JSON_MEMBER(s, state), JSON_MEMBER(s, kv_dtype),
                     JSON_MEMBER(s, prefix_cache), JSON_MEMBER(s, speculate), JSON_MEMBER(s, draft_model),
                     JSON_MEMBER(s, activations), JSON_MEMBER(s, invariant), JSON_MEMBER(s, uptime_ms),
                     JSON_MEMBER(s, running), JSON_MEMBER(s, queued), JSON_MEMBER(s, queue_limit),
                     JSON_MEMBER(s, kv_pages_used), JSON_MEMBER(s, kv_pages_total),
                     JSON_MEMBER(s, requests_total), JSON_MEMBER(s, tokens_prompt_total),
                     JSON_MEMBER(s, tokens_output_total), JSON_MEMBER(s, steps_total),
                     JSON_SECONDS(s, seconds_linear), JSON_SECONDS(s, seconds_attention),
                     JSON_SECONDS(s, seconds_sample), JSON_SECONDS(s, seconds_idle),
                     JSON_SECONDS(s, seconds_steps));
    cli_text_fill(out, "'load_seconds_left':$,", cli_value_fixed(s->load_seconds_left, 3));
    cli_text_members(out, JSON_MEMBER(s, kv_token_bytes), JSON_MEMBER(s, kv_pages_cached),
                     JSON_MEMBER(s, prefix_hits_total), JSON_MEMBER(s, tokens_cached_total),
                     JSON_MEMBER(s, prefix_evictions_total), JSON_MEMBER(s, snapshots),
                     JSON_MEMBER(s, snapshots_total), JSON_MEMBER(s, snapshot_bytes),
                     JSON_MEMBER(s, snapshot_hits_total), JSON_MEMBER(s, snapshots_dropped_total),
                     JSON_MEMBER(s, draft_tokens), JSON_MEMBER(s, tokens_drafted_total),
                     JSON_MEMBER(s, tokens_accepted_total), JSON_SECONDS(s, seconds_with_drafts),
                     JSON_SECONDS(s, seconds_without_drafts), JSON_MEMBER(s, kv_places_used),
                     JSON_MEMBER(s, kv_places_total), JSON_MEMBER(s, kv_pages_host),
                     JSON_MEMBER(s, kv_pages_moved_out_total), JSON_MEMBER(s, kv_pages_fetched_total),
                     JSON_MEMBER(s, experts_used_total), JSON_MEMBER(s, experts_present_total),
                     JSON_MEMBER(s, experts_moved_total));
    cli_text_fill(out, "'workers':[");
    for (size_t i = 0; i < s->worker_count; i++) worker_json(&s->workers[i], out);
    cli_text_fill(out, "],'model':");
    if (m)
        model_json(m, out);
    else
        cli_text_fill(out, "null");
    cli_text_fill(out, "}\n");
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
    cli_text_say(out,
                 "worker     $: $, pid $, $ threads, NUMA node $, restarts $, weights $ of $, huge pages $\n",
                 CLEAN(w->name), CLEAN(w->state), JSON(w->pid), JSON(w->threads), JSON(w->numa_node),
                 JSON(w->restarts), PLAIN(units_format_size(w->loaded_bytes, loaded)),
                 PLAIN(units_format_size(w->weight_bytes, size)),
                 PLAIN(units_format_size(w->huge_bytes, huge)));
    if (w->device[0])
        cli_text_say(out, "           device: $, VRAM in use $\n", CLEAN(w->device),
                     PLAIN(units_format_size(w->vram_bytes, vram)));
    cli_text_say(out, "           kernels: $\n", CLEAN(w->kernels));
    status_work(w, steps, out);
}

static void status_table(const struct helm_status *s, const struct helm_model_info *m, const char *endpoint,
                         struct cli_text *out)
{
    char size[UNITS_TEXT];
    cli_text_say(out, "daemon     helmd $ at $, up $ s, $", CLEAN(s->version), PLAIN(endpoint),
                 cli_value_fixed((double)s->uptime_ms / 1000, 1), CLEAN(s->state));
    if (s->load_seconds_left > 0) cli_text_printf(out, " (%.0f s left)", s->load_seconds_left);
    if (m) {
        bool billions = m->parameters >= 1000000000;
        cli_text_say(out,
                     "\nmodel      $\n           $, $ $ parameters, $, $ layers, context $ tokens (model: $)",
                     CLEAN(m->folder), CLEAN(m->architecture),
                     cli_value_digits((double)m->parameters / (billions ? 1e9 : 1e6), 3),
                     PLAIN(billions ? "billion" : "million"), PLAIN(units_format_size(m->weight_bytes, size)),
                     JSON(m->layers), JSON(m->context), JSON(m->model_context));
    }
    cli_text_printf(out,
                    "\nrequests   %u running, %u queued of %u, %" PRIu64 " since the start\n"
                    "tokens     %" PRIu64 " prompt, %" PRIu64 " output, in %" PRIu64 " steps\n"
                    "KV pages   %u of %u in use",
                    s->running, s->queued, s->queue_limit, s->requests_total, s->tokens_prompt_total,
                    s->tokens_output_total, s->steps_total, s->kv_pages_used, s->kv_pages_total);
    if (s->kv_token_bytes > 0)
        cli_text_say(out, ", $, $ a token", CLEAN(s->kv_dtype),
                     PLAIN(units_format_size(s->kv_token_bytes, size)));
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
    cli_text_say(out, "\nprefixes   $", CLEAN(s->prefix_cache));
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
        cli_text_say(out, "\ndrafts     $, $ a step at most; $ of $ were right", CLEAN(s->speculate),
                     JSON(s->draft_tokens), JSON(s->tokens_accepted_total), JSON(s->tokens_drafted_total));
        if (s->seconds_with_drafts > 0)
            cli_text_printf(out, "; %.2f times the forecast speed of steps without",
                            s->seconds_without_drafts / s->seconds_with_drafts);
    }
    if (s->draft_model[0]) cli_text_say(out, "\ndraft      $", CLEAN(s->draft_model));
    if (s->activations[0]) cli_text_say(out, "\nproducts   $", CLEAN(s->activations));
    if (s->invariant[0]) cli_text_say(out, "\ninvariant  $", CLEAN(s->invariant));
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
    cli_text_fill(out, "[");
    for (size_t i = 0; i < list->count; i++) {
        const struct helm_list_entry *e = &list->entries[i];
        cli_text_fill(out, "{");
        cli_text_members(out, JSON_MEMBER(e, id), JSON_MEMBER(e, state), JSON_MEMBER(e, label),
                         JSON_MEMBER(e, user), JSON_MEMBER(e, prompt_tokens),
                         JSON_MEMBER(e, prefilled_tokens), JSON_MEMBER(e, output_tokens),
                         JSON_MEMBER(e, max_tokens), JSON_MEMBER(e, age_ms));
        cli_text_fill(out, "},");
    }
    cli_text_fill(out, "]\n");
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
        cli_text_say(&state, "$", CLEAN(e->state));
        cli_text_printf(out, "%8" PRIu64 "  %-8s %7.1f s %15s %15s  ", e->id, state.data ? state.data : "",
                        (double)e->age_ms / 1000, prefilled, output);
        cli_text_free(&state);
        cli_text_say(out, "$", CLEAN(e->label));
        if (e->user && *e->user) cli_text_say(out, " ($)", CLEAN(e->user));
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
