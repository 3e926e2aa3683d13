/* helm-cli status, ps, cancel: what the daemon knows, as tables for people and as JSON for scripts. See cli.h
 * and query.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    if (rc == 0) rc = cli_write(out->data, out->length, err);
    cli_text_free(out);
    return rc < 0 ? cli_fail(err, false) : CLI_EXIT_DONE;
}

int query_add_clean(struct cli_text *out, const char *text, struct helm_err *err)
{
    int rc = 0;
    for (const char *c = text; rc == 0 && *c; c++) {
        char shown = (unsigned char)*c < 32 || *c == 127 ? '?' : *c;
        rc = cli_text_add(out, &shown, 1, err);
    }
    return rc;
}

static int add_json(struct cli_text *out, const char *key, const char *text, struct helm_err *err)
{
    int rc = cli_text_printf(out, err, "\"%s\":", key);
    if (rc == 0) rc = cli_text_json(out, text, strlen(text), err);
    return rc == 0 ? cli_text_add(out, ",", 1, err) : rc;
}

/* Takes back the comma after a last member. */
static void drop_comma(struct cli_text *out)
{
    if (out->length && out->data[out->length - 1] == ',') out->data[--out->length] = 0;
}

/* ---- status ----------------------------------------------------------------------------------------- */

static int status_json(const struct helm_status *s, const struct helm_model_info *m, struct cli_text *out,
                       struct helm_err *err)
{
    int rc = cli_text_add(out, "{", 1, err);
    if (rc == 0) rc = add_json(out, "version", s->version, err);
    if (rc == 0) rc = add_json(out, "state", s->state, err);
    if (rc == 0)
        rc =
            cli_text_printf(out, err,
                            "\"uptime_ms\":%" PRIu64 ",\"running\":%u,\"queued\":%u,\"queue_limit\":%u,"
                            "\"kv_pages_used\":%u,\"kv_pages_total\":%u,\"requests_total\":%" PRIu64
                            ",\"tokens_prompt_total\":%" PRIu64 ",\"tokens_output_total\":%" PRIu64
                            ",\"steps_total\":%" PRIu64 ",\"seconds_linear\":%.6f,\"seconds_attention\":%.6f,"
                            "\"seconds_sample\":%.6f,\"seconds_idle\":%.6f,\"seconds_steps\":%.6f,"
                            "\"load_seconds_left\":%.3f,\"workers\":[",
                            s->uptime_ms, s->running, s->queued, s->queue_limit, s->kv_pages_used,
                            s->kv_pages_total, s->requests_total, s->tokens_prompt_total,
                            s->tokens_output_total, s->steps_total, s->seconds_linear, s->seconds_attention,
                            s->seconds_sample, s->seconds_idle, s->seconds_steps, s->load_seconds_left);
    for (size_t i = 0; rc == 0 && i < s->worker_count; i++) {
        const struct helm_worker_status *w = &s->workers[i];
        rc = cli_text_add(out, "{", 1, err);
        if (rc == 0) rc = add_json(out, "name", w->name, err);
        if (rc == 0) rc = add_json(out, "state", w->state, err);
        if (rc == 0) rc = add_json(out, "kernels", w->kernels, err);
        if (rc == 0) rc = add_json(out, "device", w->device, err);
        if (rc == 0)
            rc = cli_text_printf(out, err,
                                 "\"pid\":%u,\"epoch\":%u,\"restarts\":%u,\"threads\":%u,\"numa_node\":%d,"
                                 "\"weight_bytes\":%" PRIu64 ",\"huge_bytes\":%" PRIu64
                                 ",\"loaded_bytes\":%" PRIu64 ",\"vram_bytes\":%" PRIu64
                                 ",\"busy_seconds\":%.6f,\"wait_seconds\":%.6f,\"weight_bytes_read\":%" PRIu64
                                 ",\"link_bytes\":%" PRIu64 "},",
                                 w->pid, w->epoch, w->restarts, w->threads, w->numa_node, w->weight_bytes,
                                 w->huge_bytes, w->loaded_bytes, w->vram_bytes, w->busy_seconds,
                                 w->wait_seconds, w->weight_bytes_read, w->link_bytes);
    }
    drop_comma(out);
    if (rc == 0) rc = cli_text_add(out, "],\"model\":", 10, err);
    if (rc == 0 && !m) rc = cli_text_add(out, "null", 4, err);
    if (rc == 0 && m) {
        rc = cli_text_add(out, "{", 1, err);
        if (rc == 0) rc = add_json(out, "folder", m->folder, err);
        if (rc == 0) rc = add_json(out, "architecture", m->architecture, err);
        if (rc == 0) rc = add_json(out, "dtype", m->dtype, err);
        if (rc == 0)
            rc = cli_text_printf(
                out, err,
                "\"layers\":%u,\"hidden\":%u,\"intermediate\":%u,\"heads\":%u,\"kv_heads\":%u,"
                "\"head_dim\":%u,\"vocab\":%u,\"context\":%u,\"model_context\":%u,"
                "\"weight_bytes\":%" PRIu64 ",\"parameters\":%" PRIu64 ",\"bos\":%d,\"eos\":",
                m->layers, m->hidden, m->intermediate, m->heads, m->kv_heads, m->head_dim, m->vocab,
                m->context, m->model_context, m->weight_bytes, m->parameters, m->bos);
        if (rc == 0) rc = cli_text_ids(out, m->eos, m->eos_count, true, err);
        if (rc == 0) rc = cli_text_add(out, "}", 1, err);
    }
    return rc == 0 ? cli_text_add(out, "}\n", 2, err) : rc;
}

/* What it does in a step's time: computing, waiting for the other worker; the rest is neither's. */
static int status_work(const struct helm_worker_status *w, double steps, struct cli_text *out,
                       struct helm_err *err)
{
    char read[UNITS_TEXT], link[UNITS_TEXT];
    if (steps <= 0) return 0;
    int rc = cli_text_printf(out, err,
                             "           busy %.0f %% of the steps' time, waiting %.0f %%; weights read %s",
                             100 * w->busy_seconds / steps, 100 * w->wait_seconds / steps,
                             units_format_size(w->weight_bytes_read, read));
    if (rc == 0 && w->link_bytes)
        rc = cli_text_printf(out, err, ", over the link %s", units_format_size(w->link_bytes, link));
    return rc == 0 ? cli_text_add(out, "\n", 1, err) : rc;
}

static int status_worker(const struct helm_worker_status *w, double steps, struct cli_text *out,
                         struct helm_err *err)
{
    char size[UNITS_TEXT], huge[UNITS_TEXT], loaded[UNITS_TEXT], vram[UNITS_TEXT];
    int rc = cli_text_printf(out, err, "worker     ");
    if (rc == 0) rc = query_add_clean(out, w->name, err);
    if (rc == 0) rc = cli_text_printf(out, err, ": ");
    if (rc == 0) rc = query_add_clean(out, w->state, err);
    if (rc == 0)
        rc = cli_text_printf(
            out, err, ", pid %u, %u threads, NUMA node %d, restarts %u, weights %s of %s, huge pages %s\n",
            w->pid, w->threads, w->numa_node, w->restarts, units_format_size(w->loaded_bytes, loaded),
            units_format_size(w->weight_bytes, size), units_format_size(w->huge_bytes, huge));
    if (rc == 0 && w->device[0]) {
        rc = cli_text_printf(out, err, "           device: ");
        if (rc == 0) rc = query_add_clean(out, w->device, err);
        if (rc == 0)
            rc = cli_text_printf(out, err, ", VRAM in use %s\n", units_format_size(w->vram_bytes, vram));
    }
    if (rc == 0) rc = cli_text_printf(out, err, "           kernels: ");
    if (rc == 0) rc = query_add_clean(out, w->kernels, err);
    if (rc == 0) rc = cli_text_add(out, "\n", 1, err);
    return rc == 0 ? status_work(w, steps, out, err) : rc;
}

static int status_table(const struct helm_status *s, const struct helm_model_info *m, const char *endpoint,
                        struct cli_text *out, struct helm_err *err)
{
    char size[UNITS_TEXT];
    int rc = cli_text_printf(out, err, "daemon     helmd ");
    if (rc == 0) rc = query_add_clean(out, s->version, err);
    if (rc == 0) rc = cli_text_printf(out, err, " at %s, up %.1f s, ", endpoint, (double)s->uptime_ms / 1000);
    if (rc == 0) rc = query_add_clean(out, s->state, err);
    if (rc == 0 && s->load_seconds_left > 0)
        rc = cli_text_printf(out, err, " (%.0f s left)", s->load_seconds_left);
    if (rc == 0 && m) {
        bool billions = m->parameters >= 1000000000;
        rc = cli_text_printf(out, err, "\nmodel      ");
        if (rc == 0) rc = query_add_clean(out, m->folder, err);
        if (rc == 0) rc = cli_text_printf(out, err, "\n           ");
        if (rc == 0) rc = query_add_clean(out, m->architecture, err);
        if (rc == 0)
            rc = cli_text_printf(out, err,
                                 ", %.3g %s parameters, %s, %u layers, context %u tokens (model: %u)",
                                 (double)m->parameters / (billions ? 1e9 : 1e6),
                                 billions ? "billion" : "million", units_format_size(m->weight_bytes, size),
                                 m->layers, m->context, m->model_context);
    }
    if (rc == 0)
        rc = cli_text_printf(out, err,
                             "\nrequests   %u running, %u queued of %u, %" PRIu64 " since the start\n"
                             "tokens     %" PRIu64 " prompt, %" PRIu64 " output, in %" PRIu64 " steps\n"
                             "KV pages   %u of %u in use\n"
                             "time       linear %.2f s, attention %.2f s, sampling %.2f s, idle %.2f s\n",
                             s->running, s->queued, s->queue_limit, s->requests_total, s->tokens_prompt_total,
                             s->tokens_output_total, s->steps_total, s->kv_pages_used, s->kv_pages_total,
                             s->seconds_linear, s->seconds_attention, s->seconds_sample, s->seconds_idle);
    for (size_t i = 0; rc == 0 && i < s->worker_count; i++)
        rc = status_worker(&s->workers[i], s->seconds_steps, out, err);
    return rc;
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
    if (rc == 0)
        rc = json ? status_json(status, model, &out, &err)
                  : status_table(status, model, helm_client_endpoint(cli->client), &out, &err);
    exit_status = query_finish(&out, rc, &err);
    free(status);
    free(model);
    return exit_status;
}

/* ---- ps --------------------------------------------------------------------------------------------- */

static int list_json(const struct helm_list *list, struct cli_text *out, struct helm_err *err)
{
    int rc = cli_text_add(out, "[", 1, err);
    for (size_t i = 0; rc == 0 && i < list->count; i++) {
        const struct helm_list_entry *e = &list->entries[i];
        rc = cli_text_printf(out, err, "{\"id\":%" PRIu64 ",", e->id);
        if (rc == 0) rc = add_json(out, "state", e->state, err);
        if (rc == 0) rc = add_json(out, "label", e->label, err);
        if (rc == 0)
            rc = cli_text_printf(
                out, err,
                "\"prompt_tokens\":%u,\"prefilled_tokens\":%u,\"output_tokens\":%u,\"max_tokens\":%u,"
                "\"age_ms\":%" PRIu64 "},",
                e->prompt_tokens, e->prefilled_tokens, e->output_tokens, e->max_tokens, e->age_ms);
    }
    drop_comma(out);
    return rc == 0 ? cli_text_add(out, "]\n", 2, err) : rc;
}

static int list_table(const struct helm_list *list, struct cli_text *out, struct helm_err *err)
{
    int rc = cli_text_printf(out, err, "%8s  %-8s %9s %15s %15s  %s\n", "ID", "STATE", "AGE", "PREFILLED",
                             "OUTPUT", "LABEL");
    for (size_t i = 0; rc == 0 && i < list->count; i++) {
        const struct helm_list_entry *e = &list->entries[i];
        char prefilled[32], output[32];
        snprintf(prefilled, sizeof prefilled, "%u/%u", e->prefilled_tokens, e->prompt_tokens);
        snprintf(output, sizeof output, "%u/%u", e->output_tokens, e->max_tokens);
        struct cli_text state = {0};
        rc = query_add_clean(&state, e->state, err);
        if (rc == 0)
            rc = cli_text_printf(out, err, "%8" PRIu64 "  %-8s %7.1f s %15s %15s  ", e->id,
                                 state.data ? state.data : "", (double)e->age_ms / 1000, prefilled, output);
        cli_text_free(&state);
        if (rc == 0) rc = query_add_clean(out, e->label, err);
        if (rc == 0) rc = cli_text_add(out, "\n", 1, err);
    }
    return rc;
}

int command_ps(struct cli *cli, int argc, char *const argv[])
{
    const struct args_spec about = {.program = "helm-cli ps",
                                    .usage = "[--json]",
                                    .about = "Open requests of every client, oldest first."};
    bool json = false;
    struct args_parsed parsed;
    struct helm_err err = {0};
    struct helm_list *list = NULL;
    struct cli_text out = {0};
    int exit_status = query_begin(cli, &about, argc, argv, &json, &parsed);
    if (exit_status != CLI_EXIT_DONE) return exit_status;
    int rc = helm_list(cli->client, CLI_ANSWER_MS, &list, &err);
    if (rc == 0) rc = json ? list_json(list, &out, &err) : list_table(list, &out, &err);
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
    if (rc == 0 && json)
        rc = cli_text_printf(&out, &err, "{\"id\":%" PRIu64 ",\"cancelled\":true}\n", id);
    else if (rc == 0)
        rc = cli_text_printf(&out, &err, "request %" PRIu64 " cancelled\n", id);
    return query_finish(&out, rc, &err);
}
