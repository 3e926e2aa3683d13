/* Facts of the model and its daemon: opened at the start, asked for by paths without a body. See
 * gateway.h and routes.h. */
#include <ctype.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/shared/exposition.h"
#include "client/gateway/gateway.h"
#include "client/gateway/grammars.h"
#include "client/gateway/routes.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/units.h"

#define MODEL_MS       10000
#define JSON_TYPE      "application/json"
#define OLLAMA_VERSION "0.14.0" /* the release whose API the paths under /api follow */

/* ---- the model -------------------------------------------------------------------------------------- */

/* The tokens by their bytes, for grammars; without an end of sequence there are none. */
static int open_vocabulary(struct gateway *g, const struct helm_model_info *info, struct helm_err *err)
{
    struct ask_model *m = &g->model;
    struct helm_err why = {0};
    uint32_t end[64 + ENDS_MAX];
    size_t ends = 0;
    for (; ends < info->eos_count && ends < 64; ends++) end[ends] = info->eos[ends];
    for (size_t i = 0; i < m->ends.count; i++) end[ends++] = m->ends.ids[i];
    if (helm_vocabulary_open(m->tokenizer, end, ends, m->vocab, &g->vocabulary, &why) < 0)
        snprintf(m->vocabulary_why, sizeof m->vocabulary_why, "%s", why.text);
    m->vocabulary = g->vocabulary;
    return grammars_open(&m->grammars, err);
}

static int ask_model(struct gateway *g, struct helm_model_info **out, struct helm_err *err)
{
    struct helm_model_info *info = NULL;
    int rc = helm_model_info(g->cli.client, MODEL_MS, &info, err);
    if (rc < 0) return rc;
    g->model.context = info->context;
    g->model.vocab = info->vocab;
    g->folder = strdup(info->folder);
    *out = info;
    return g->folder ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a path");
}

/* The chat template, and how its family writes calls and thinking. */
static void open_chat(struct gateway *g)
{
    struct ask_model *m = &g->model;
    struct helm_err why = {0};
    char families[192];
    if (cli_open_chat(&g->cli, &why) < 0) {
        snprintf(m->chat_why, sizeof m->chat_why, "%s", why.text);
        return;
    }
    m->chat = g->cli.chat;
    const char *usual = helm_tokenizer_chat_template(m->tokenizer, NULL);
    const char *template = helm_tokenizer_chat_template(m->tokenizer, "tool_use");
    if (!template) template = usual;
    m->calls = call_syntax_of(template);
    m->tags = reasoning_tags_of(usual);
    m->may_think = reasoning_is_shown(usual);
    call_syntax_families(families, sizeof families);
    if (!m->calls)
        snprintf(m->calls_why, sizeof m->calls_why,
                 template && strstr(template, "tools")
                     ? "its chat template shows none of the ways to write calls that HELM knows (%s)"
                     : "its chat template has no tools",
                 families);
}

int info_open_model(struct gateway *g, const char *name, struct helm_err *err)
{
    struct ask_model *m = &g->model;
    char *folder = NULL;
    struct helm_model_info *info = NULL;
    int rc = ask_model(g, &info, err);
    if (rc == 0) rc = cli_open_tokenizer(&g->cli, err);
    if (rc == 0) rc = cli_text_folder(&g->cli, &folder, err);
    if (rc == 0) rc = sampling_apply_checkpoint(folder, &m->defaults, err);
    if (rc == 0) rc = info_read_pooling(m, folder, err);
    free(folder);
    if (rc == 0) {
        m->tokenizer = g->cli.tok;
        open_chat(g);
        ends_find(m->tokenizer, m->chat, m->vocab, &m->ends);
        rc = open_vocabulary(g, info, err);
    }
    free(info);
    if (rc < 0) return rc;
    if (name)
        snprintf(m->name, sizeof m->name, "%s", name);
    else
        cli_name_model(g->folder, m->name, sizeof m->name);
    if (!m->chat) log_warn("no conversations: %s", m->chat_why);
    return 0;
}

int info_check_model(struct gateway *g, const struct helm_model_info *info, struct helm_err *err)
{
    if (strcmp(g->folder, info->folder) != 0 || g->model.vocab != info->vocab)
        return helm_fail(err, HELM_E_MISMATCH, "helmd serves another model now: %s instead of %s",
                         info->folder, g->folder);
    if (g->model.context != info->context) log_info("the context is %u tokens now", info->context);
    g->model.context = info->context;
    return 0;
}

/* ---- what helmd said -------------------------------------------------------------------------------- */

/* NULL: nothing is known, or the daemon is gone. */
static const struct inquiry_fact *known(const struct exchange *ex, enum inquiry_question which)
{
    return ex->gateway->cli.client ? ex->facts[which] : NULL;
}

static const struct helm_model_info *known_model(const struct exchange *ex)
{
    const struct inquiry_fact *fact = known(ex, INQUIRY_MODEL);
    return fact ? fact->model : NULL;
}

/* ---- answers ---------------------------------------------------------------------------------------- */

static void write_model(struct exchange *ex)
{
    voice_add_member(&ex->out, "{\"id\":", ex->gateway->model.name);
    cli_text_printf(&ex->out,
                    ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"helm\",\"max_model_len\":%u}",
                    (long long)ex->created, ex->gateway->model.context);
}

void info_models(struct exchange *ex)
{
    cli_text_printf(&ex->out, "{\"object\":\"list\",\"data\":[");
    write_model(ex);
    cli_text_printf(&ex->out, "]}");
    exchange_answer(ex, 200, JSON_TYPE, &ex->out);
}

void info_model(struct exchange *ex)
{
    json_t *named = json_string(ex->named);
    struct ask ask = {.kind = ASK_CHAT};
    struct ask_reader reader = {.model = &ex->gateway->model,
                                .ask = &ask,
                                .refusal = &ex->refusal,
                                .param = "model"};
    const bool good =
        named ? ask_take_model(&reader, named)
              : refuse(&ex->refusal, 404, "model_not_found", "model", "that model is not served here");
    json_decref(named);
    if (!good) {
        exchange_refuse(ex);
        return;
    }
    write_model(ex);
    exchange_answer(ex, 200, JSON_TYPE, &ex->out);
}

int info_write_health(struct gateway *g, struct cli_text *out)
{
    struct inquiry_fact *fact = g->cli.client ? inquiry_last(g->inquiry, INQUIRY_STATUS) : NULL;
    const uint64_t age_us = fact ? units_now_us() - fact->at_us : 0;
    const char *state = g->draining                  ? "draining"
                        : !fact                      ? "no daemon"
                        : age_us > INQUIRY_SILENT_US ? "no answer"
                                                     : fact->status->state;
    const bool ready = strcmp(state, "ready") == 0;
    cli_text_printf(out, "{\"status\":\"%s\"", ready ? "ok" : state);
    if (fact && age_us > INQUIRY_SILENT_US)
        cli_text_printf(out, ",\"answered_seconds_ago\":%.1f", (double)age_us * 1e-6);
    cli_text_printf(out, "}");
    inquiry_give_back(fact);
    return ready ? 200 : 503;
}

void info_health(struct exchange *ex)
{
    const int status = info_write_health(ex->gateway, &ex->out);
    exchange_answer(ex, status, JSON_TYPE, &ex->out);
}

void info_metrics(struct exchange *ex)
{
    metrics_write(ex->gateway, known(ex, INQUIRY_STATUS), known(ex, INQUIRY_PLAN), &ex->out);
    exchange_answer(ex, 200, EXPOSITION_TYPE, &ex->out);
}

/* For the page: the model, the daemon's status, its plan and what was measured of it. */
static void write_status(struct cli_text *out, const struct inquiry_fact *fact)
{
    const struct helm_status *s = fact->status;
    cli_text_printf(out, ",\"status\":{\"age_ms\":%llu,\"version\":",
                    (unsigned long long)(units_now_us() - fact->at_us) / 1000);
    voice_add_string(out, s->version);
    voice_add_member(out, ",\"state\":", s->state);
    cli_text_printf(
        out,
        ",\"running\":%u,\"queued\":%u,\"queue_limit\":%u,\"kv_pages_used\":%u,\"kv_pages_total\":%u,"
        "\"tokens_prompt\":%llu,\"tokens_output\":%llu,\"seconds_steps\":%.6f,\"uptime_ms\":%llu,\"workers\":"
        "[",
        s->running, s->queued, s->queue_limit, s->kv_pages_used, s->kv_pages_total,
        (unsigned long long)s->tokens_prompt_total, (unsigned long long)s->tokens_output_total,
        voice_finite(s->seconds_steps), (unsigned long long)s->uptime_ms);
    for (size_t i = 0; i < s->worker_count; i++) {
        const struct helm_worker_status *w = &s->workers[i];
        cli_text_printf(out, "%s{\"name\":", i ? "," : "");
        voice_add_string(out, w->name);
        voice_add_member(out, ",\"state\":", w->state);
        voice_add_member(out, ",\"device\":", w->device);
        cli_text_printf(
            out, ",\"busy_seconds\":%.6f,\"wait_seconds\":%.6f,\"link_bytes\":%llu,\"vram_bytes\":%llu}",
            voice_finite(w->busy_seconds), voice_finite(w->wait_seconds), (unsigned long long)w->link_bytes,
            (unsigned long long)w->vram_bytes);
    }
    cli_text_printf(out, "]}");
}

static void write_plan(struct cli_text *out, const struct inquiry_fact *fact)
{
    const struct helm_plan_info *plan = fact->plan;
    cli_text_printf(out, ",\"plan\":%s,\"forecast\":{\"batch\":%u,\"context\":%u,\"decode_tok_s\":%.6g}",
                    fact->shown ? fact->shown : "null", plan->batch, plan->context,
                    plan->decode_seconds > 0 ? voice_finite((double)plan->batch / plan->decode_seconds)
                                             : 0.0);
    cli_text_printf(out, ",\"decode\":[");
    for (size_t i = 0; i < plan->decode_count; i++) {
        const struct helm_plan_steps *d = &plan->decode[i];
        cli_text_printf(
            out, "%s{\"batch\":%u,\"context\":%u,\"steps\":%llu,\"seconds\":%.9g,\"planned_seconds\":%.9g}",
            i ? "," : "", d->batch, d->tokens, (unsigned long long)d->count,
            voice_finite(d->measured_seconds), voice_finite(d->planned_seconds));
    }
    cli_text_printf(out, "],\"resources\":[");
    for (size_t i = 0; i < plan->resource_count; i++) {
        const struct helm_plan_resource *r = &plan->resources[i];
        cli_text_printf(out, "%s{\"name\":", i ? "," : "");
        voice_add_string(out, r->name);
        cli_text_printf(out, ",\"busy\":%.6g,\"planned_busy\":%.6g,\"bytes_per_second\":%.6g}",
                        voice_finite(r->busy), voice_finite(r->busy_planned),
                        voice_finite(r->bytes_per_second));
    }
    voice_add_member(out, "],\"drift\":", plan->drift);
}

void info_status_page(struct exchange *ex)
{
    struct gateway *g = ex->gateway;
    const struct inquiry_fact *status = known(ex, INQUIRY_STATUS), *plan = known(ex, INQUIRY_PLAN);
    voice_add_member(&ex->out, "{\"model\":", g->model.name);
    cli_text_printf(&ex->out, ",\"context\":%u,\"chat\":%s", g->model.context,
                    g->model.chat ? "true" : "false");
    if (status) write_status(&ex->out, status);
    if (status && plan) write_plan(&ex->out, plan);
    cli_text_printf(&ex->out, "}");
    exchange_answer(ex, 200, JSON_TYPE, &ex->out);
}

/* ---- Ollama ----------------------------------------------------------------------------------------- */

/* Clients compare it with the release of Ollama that they need. */
void info_version(struct exchange *ex)
{
    cli_text_printf(&ex->out, "{\"version\":\"" OLLAMA_VERSION "\",\"helm\":\"%s\"}", HELM_VERSION);
    exchange_answer(ex, 200, JSON_TYPE, &ex->out);
}

/* "Qwen3ForCausalLM" is qwen3. */
static void name_family(const char *architecture, char family[64])
{
    snprintf(family, 64, "%.*s", (int)strcspn(architecture, "F"), architecture);
    for (char *c = family; *c; c++) *c = (char)tolower((unsigned char)*c);
}

static void add_families(struct cli_text *out, const char *family)
{
    voice_add_member(out, ",\"families\":[", family);
    cli_text_printf(out, "]");
}

/* Ollama's tools look here before they ask: at the context's length, and whether there are tools. Runs in a
 * thread. */
void info_show(struct exchange *ex)
{
    const struct gateway *g = ex->gateway;
    struct cli_text *out = &ex->out;
    const struct inquiry_fact *fact = ex->facts[INQUIRY_MODEL];
    bool stream;
    if (!ask_read_name(&g->model, ex->body.data ? ex->body.data : "", ex->body.length, &stream, &ex->refusal))
        return;
    if (!fact) {
        refuse_err(&ex->refusal, NULL, HELM_E_PEER, "helmd is not there");
        return;
    }
    const struct helm_model_info *info = fact->model;
    char family[64];
    name_family(info->architecture, family);
    const char *template = helm_tokenizer_chat_template(g->model.tokenizer, NULL);
    voice_add_member(out, "{\"template\":", template ? template : "");
    cli_text_printf(out,
                    ",\"capabilities\":[\"completion\"%s%s],\"details\":{\"parent_model\":\"\",\"format\":\"%"
                    "s\",\"family\":",
                    g->model.calls ? ",\"tools\"" : "", g->model.may_think ? ",\"thinking\"" : "",
                    file_is_folder(g->folder) ? "safetensors" : "gguf");
    voice_add_string(out, family);
    add_families(out, family);
    cli_text_printf(out,
                    ",\"parameter_size\":\"%.1fB\",\"quantization_level\":", (double)info->parameters * 1e-9);
    voice_add_string(out, info->dtype);
    voice_add_member(out, "},\"model_info\":{\"general.architecture\":", family);
    cli_text_printf(out, ",\"general.parameter_count\":%llu,", (unsigned long long)info->parameters);
    char key[96];
    snprintf(key, sizeof key, "%s.context_length", family);
    voice_add_string(out, key);
    cli_text_printf(out, ":%u}}", info->context);
}

/* A client that wants to be sure of the model pulls it: it is here. In a thread. */
void info_pull(struct exchange *ex)
{
    bool stream;
    if (!ask_read_name(&ex->gateway->model, ex->body.data ? ex->body.data : "", ex->body.length, &stream,
                       &ex->refusal))
        return;
    if (stream) cli_text_printf(&ex->out, "{\"status\":\"pulling manifest\"}\n");
    cli_text_printf(&ex->out, "{\"status\":\"success\"}%s", stream ? "\n" : "");
    ex->type = stream ? "application/x-ndjson" : JSON_TYPE;
}

/* As Ollama names models: with a tag. */
static void add_tagged(struct cli_text *out, const char *name)
{
    char tagged[sizeof((struct ask_model *)0)->name + 8];
    const char *base = strrchr(name, '/');
    snprintf(tagged, sizeof tagged, "%s%s", name, strchr(base ? base : name, ':') ? "" : ":latest");
    voice_add_string(out, tagged);
}

/* Tells models apart; it is of what the model says of itself, not of its files' bytes. */
static void add_digest(struct cli_text *out, const struct gateway *g, const struct helm_model_info *info)
{
    unsigned char sum[crypto_hash_sha256_BYTES];
    char text[1024], hex[2 * sizeof sum + 1];
    const int length = snprintf(text, sizeof text, "%s %s %s %s %llu %llu", g->model.name, g->folder,
                                info ? info->architecture : "", info ? info->dtype : "",
                                (unsigned long long)(info ? info->parameters : 0),
                                (unsigned long long)(info ? info->weight_bytes : 0));
    crypto_hash_sha256(sum, (const unsigned char *)text,
                       (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
    sodium_bin2hex(hex, sizeof hex, sum, sizeof sum);
    cli_text_printf(out, ",\"digest\":\"%s\"", hex);
}

/* Name, bytes and details of the one model; null answers become zeroes. */
static void write_tag(struct exchange *ex, bool running)
{
    struct gateway *g = ex->gateway;
    struct cli_text *out = &ex->out;
    const struct helm_model_info *info = known_model(ex);
    const struct inquiry_fact *status = known(ex, INQUIRY_STATUS);
    uint64_t vram = 0;
    for (size_t i = 0; status && i < status->status->worker_count; i++)
        vram += status->status->workers[i].vram_bytes;
    char family[64];
    name_family(info ? info->architecture : "", family);
    cli_text_printf(out, "{\"name\":");
    add_tagged(out, g->model.name);
    cli_text_printf(out, ",\"model\":");
    add_tagged(out, g->model.name);
    cli_text_printf(out, ",\"size\":%llu", (unsigned long long)(info ? info->weight_bytes : 0));
    add_digest(out, g, info);
    cli_text_printf(out, ",\"details\":{\"parent_model\":\"\",\"format\":\"%s\",\"family\":",
                    file_is_folder(g->folder) ? "safetensors" : "gguf");
    voice_add_string(out, family);
    add_families(out, family);
    cli_text_printf(out, ",\"parameter_size\":\"%.1fB\",\"quantization_level\":",
                    info ? (double)info->parameters * 1e-9 : 0.0);
    voice_add_string(out, info ? info->dtype : "");
    cli_text_printf(out, "}");
    if (running)
        cli_text_printf(out,
                        ",\"expires_at\":\"9999-12-31T23:59:59Z\",\"size_vram\":%llu,\"context_length\":%u",
                        (unsigned long long)vram, g->model.context);
    else
        cli_text_printf(out, ",\"modified_at\":\"1970-01-01T00:00:00Z\"");
    cli_text_printf(out, "}");
}

static void write_tags(struct exchange *ex, bool running)
{
    cli_text_printf(&ex->out, "{\"models\":[");
    if (!running || known(ex, INQUIRY_STATUS)) write_tag(ex, running);
    cli_text_printf(&ex->out, "]}");
    exchange_answer(ex, 200, JSON_TYPE, &ex->out);
}

void info_tags(struct exchange *ex)
{
    write_tags(ex, false);
}
void info_ps(struct exchange *ex)
{
    write_tags(ex, true);
}
