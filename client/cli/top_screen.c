/* The lines of `helm-cli top`. See top_screen.h. */
#include "client/cli/top_screen.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/cli/query.h"
#include "common/base/units.h"

#define BAR_CELLS 20

/* A counter's growth a second; counters of a daemon that was started anew begin again. */
static double rate_of(double before, double now, double seconds)
{
    return seconds > 0 && now >= before ? (now - before) / seconds : 0;
}

static double share(double part)
{
    return isfinite(part) && part > 0 ? fmin(part, 1) : 0;
}

static void add_bar(struct cli_text *out, double part)
{
    const int full = (int)lround(share(part) * BAR_CELLS);
    cli_text_add(out, "[", 1);
    for (int i = 0; i < BAR_CELLS; i++) cli_text_add(out, i < full ? "#" : ".", 1);
    cli_text_printf(out, "] %3.0f %%", 100 * share(part));
}

static void add_head(const struct top_view *v, struct cli_text *out)
{
    const struct helm_status *s = v->now;
    cli_text_say(out, "helmd $ at $, up $ s, $", CLEAN(s->version), PLAIN(v->endpoint),
                 cli_value_fixed((double)s->uptime_ms / 1000, 0), CLEAN(s->state));
    if (s->load_seconds_left > 0) cli_text_printf(out, " (%.0f s left)", s->load_seconds_left);
    cli_text_printf(out, "\n");
    if (v->model) cli_text_say(out, "$, context $\n", CLEAN(v->model->folder), JSON(v->model->context));
}

/* Drafts since the screen before, and the speed of steps with them compared with steps without by
 * forecast. */
static void add_drafts(const struct top_view *v, struct cli_text *out)
{
    const struct helm_status *s = v->now, *b = v->before;
    const double drafted = (double)s->tokens_drafted_total - (b ? (double)b->tokens_drafted_total : 0),
                 right = (double)s->tokens_accepted_total - (b ? (double)b->tokens_accepted_total : 0),
                 with = s->seconds_with_drafts - (b ? b->seconds_with_drafts : 0),
                 without = s->seconds_without_drafts - (b ? b->seconds_without_drafts : 0);
    cli_text_printf(out, "drafts     %8.1f a second, %.0f %% right", rate_of(0, drafted, v->seconds),
                    drafted > 0 ? 100 * share(right / drafted) : 0);
    if (with > 0) cli_text_printf(out, ", %.2f times the forecast speed without", without / with);
    cli_text_printf(out, "\n");
}

static void add_speed(const struct top_view *v, struct cli_text *out)
{
    const struct helm_status *s = v->now, *b = v->before;
    const double output = rate_of(b ? (double)b->tokens_output_total : 0, (double)s->tokens_output_total,
                                  v->seconds),
                 prompt = rate_of(b ? (double)b->tokens_prompt_total : 0, (double)s->tokens_prompt_total,
                                  v->seconds),
                 steps = rate_of(b ? (double)b->steps_total : 0, (double)s->steps_total, v->seconds);
    cli_text_printf(out, "\ntokens/s   %8.1f generated, %.1f of prompts, %.1f steps\n", output, prompt,
                    steps);
    if (v->plan && v->plan->decode_seconds > 0)
        cli_text_printf(
            out, "forecast   %8.1f for %u at once after %u positions, first token after %.0f ms of %u\n",
            v->plan->batch / v->plan->decode_seconds, v->plan->batch, v->plan->context,
            1000 * v->plan->ttft_seconds, v->plan->prompt);
    if (v->plan && v->plan->drifting) cli_text_say(out, "drifting   $\n", CLEAN(v->plan->drift));
    cli_text_printf(out, "requests   %8u running, %u queued of %u, %" PRIu64 " since the start\n", s->running,
                    s->queued, s->queue_limit, s->requests_total);
    if (s->draft_tokens) add_drafts(v, out);
    cli_text_printf(out, "KV pages   ");
    add_bar(out, s->kv_pages_total ? (double)s->kv_pages_used / s->kv_pages_total : 0);
    cli_text_printf(out, "  %u of %u, %u more kept for prefixes\n", s->kv_pages_used, s->kv_pages_total,
                    s->kv_pages_cached);
}

static const struct helm_worker_status *worker_before(const struct helm_status *before, const char *name)
{
    for (size_t i = 0; before && i < before->worker_count; i++)
        if (strcmp(before->workers[i].name, name) == 0) return &before->workers[i];
    return NULL;
}

/* Where the time went since: each worker computing, waiting for another, and what it moved. */
static void add_workers(const struct top_view *v, struct cli_text *out)
{
    char size[UNITS_TEXT];
    cli_text_printf(out, "\n");
    for (size_t i = 0; i < v->now->worker_count; i++) {
        const struct helm_worker_status *w = &v->now->workers[i], *b = worker_before(v->before, w->name);
        const double busy = rate_of(b ? b->busy_seconds : 0, w->busy_seconds, v->seconds),
                     waits = rate_of(b ? b->wait_seconds : 0, w->wait_seconds, v->seconds),
                     read = rate_of(b ? (double)b->weight_bytes_read : 0, (double)w->weight_bytes_read,
                                    v->seconds),
                     link = rate_of(b ? (double)b->link_bytes : 0, (double)w->link_bytes, v->seconds);
        struct cli_text name = {0};
        cli_text_say(&name, "$", CLEAN(w->name));
        cli_text_printf(out, "%-10.10s ", name.data ? name.data : "");
        cli_text_free(&name);
        add_bar(out, busy);
        cli_text_printf(out, "  waiting %3.0f %%, reads %.1f GB/s", 100 * share(waits), read * 1e-9);
        if (w->link_bytes) cli_text_printf(out, ", link %.1f GB/s", link * 1e-9);
        if (w->vram_bytes) cli_text_printf(out, ", VRAM %s", units_format_size(w->vram_bytes, size));
        if (strcmp(w->state, "ready") != 0) cli_text_say(out, ", $", CLEAN(w->state));
        if (w->restarts) cli_text_printf(out, ", restarts %u", w->restarts);
        cli_text_printf(out, "\n");
    }
}

/* Bytes of `line` (without its end) that are `columns` characters. */
static size_t cut(const char *line, size_t length, uint32_t columns)
{
    size_t at = 0;
    for (uint32_t shown = 0; at < length; at++) {
        if (((unsigned char)line[at] & 0xc0) == 0x80) continue; /* a character's further bytes */
        if (shown++ == columns) break;
    }
    return at;
}

void top_screen(const struct top_view *v, struct cli_text *out)
{
    struct cli_text all = {0};
    uint32_t lines = 0;
    add_head(v, &all);
    add_speed(v, &all);
    add_workers(v, &all);
    cli_text_printf(&all, "\n");
    if (v->list) query_add_list(v->list, &all);
    for (const char *line = all.data; line && *line && (!v->rows || lines < v->rows); lines++) {
        const char *end = strchr(line, '\n');
        const size_t length = end ? (size_t)(end - line) : strlen(line);
        cli_text_add(out, line, v->columns ? cut(line, length, v->columns) : length);
        cli_text_add(out, "\n", 1);
        line += length + (end != NULL);
    }
    out->failed |= all.failed;
    cli_text_free(&all);
}
