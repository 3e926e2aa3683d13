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
    cli_text_fill(&ex->out, "{'id':$,'object':'model','created':$,'owned_by':'helm','max_model_len':$}",
                  JSON(ex->gateway->model.name), JSON(ex->created), JSON(ex->gateway->model.context));
}

void info_models(struct exchange *ex)
{
    cli_text_fill(&ex->out, "{'object':'list','data':[");
    write_model(ex);
    cli_text_fill(&ex->out, "]}");
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
    cli_text_fill(out, "{'status':$,", JSON(ready ? "ok" : state));
    if (fact && age_us > INQUIRY_SILENT_US)
        cli_text_fill(out, "'answered_seconds_ago':$", cli_value_fixed((double)age_us * 1e-6, 1));
    cli_text_fill(out, "}");
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
    cli_text_fill(out, "'status':{'age_ms':$,", JSON((units_now_us() - fact->at_us) / 1000));
    cli_text_members(out, JSON_MEMBER(s, version), JSON_MEMBER(s, state), JSON_MEMBER(s, running),
                     JSON_MEMBER(s, queued), JSON_MEMBER(s, queue_limit), JSON_MEMBER(s, kv_pages_used),
                     JSON_MEMBER(s, kv_pages_total));
    cli_text_fill(out, "'tokens_prompt':$,'tokens_output':$,'seconds_steps':$,'uptime_ms':$,'workers':[",
                  JSON(s->tokens_prompt_total), JSON(s->tokens_output_total),
                  cli_value_fixed(s->seconds_steps, 6), JSON(s->uptime_ms));
    for (size_t i = 0; i < s->worker_count; i++) {
        const struct helm_worker_status *w = &s->workers[i];
        cli_text_fill(out,
                      "{'name':$,'state':$,'device':$,'busy_seconds':$,'wait_seconds':$,'link_bytes':$,"
                      "'vram_bytes':$},",
                      JSON(w->name), JSON(w->state), JSON(w->device), cli_value_fixed(w->busy_seconds, 6),
                      cli_value_fixed(w->wait_seconds, 6), JSON(w->link_bytes), JSON(w->vram_bytes));
    }
    cli_text_fill(out, "]},");
}

static void write_plan(struct cli_text *out, const struct inquiry_fact *fact)
{
    const struct helm_plan_info *plan = fact->plan;
    const double tok_s = plan->decode_seconds > 0 ? (double)plan->batch / plan->decode_seconds : 0;
    cli_text_fill(out, "'plan':$,'forecast':{'batch':$,'context':$,'decode_tok_s':$},'decode':[",
                  PLAIN(fact->shown ? fact->shown : "null"), JSON(plan->batch), JSON(plan->context),
                  cli_value_digits(tok_s, 6));
    for (size_t i = 0; i < plan->decode_count; i++) {
        const struct helm_plan_steps *d = &plan->decode[i];
        cli_text_fill(out, "{'batch':$,'context':$,'steps':$,'seconds':$,'planned_seconds':$},",
                      JSON(d->batch), JSON(d->tokens), JSON(d->count), JSON(d->measured_seconds),
                      JSON(d->planned_seconds));
    }
    cli_text_fill(out, "],'resources':[");
    for (size_t i = 0; i < plan->resource_count; i++) {
        const struct helm_plan_resource *r = &plan->resources[i];
        cli_text_fill(out, "{'name':$,'busy':$,'planned_busy':$,'bytes_per_second':$},", JSON(r->name),
                      cli_value_digits(r->busy, 6), cli_value_digits(r->busy_planned, 6),
                      cli_value_digits(r->bytes_per_second, 6));
    }
    cli_text_fill(out, "],'drift':$", JSON(plan->drift));
}

void info_status_page(struct exchange *ex)
{
    struct gateway *g = ex->gateway;
    const struct inquiry_fact *status = known(ex, INQUIRY_STATUS), *plan = known(ex, INQUIRY_PLAN);
    cli_text_fill(&ex->out, "{'model':$,'context':$,'chat':$,", JSON(g->model.name), JSON(g->model.context),
                  cli_value_bool(g->model.chat != NULL));
    if (status) write_status(&ex->out, status);
    if (status && plan) write_plan(&ex->out, plan);
    cli_text_fill(&ex->out, "}");
    exchange_answer(ex, 200, JSON_TYPE, &ex->out);
}

/* ---- Ollama ----------------------------------------------------------------------------------------- */

/* Clients compare it with the release of Ollama that they need. */
void info_version(struct exchange *ex)
{
    cli_text_fill(&ex->out, "{'version':$,'helm':$}", JSON(OLLAMA_VERSION), JSON(HELM_VERSION));
    exchange_answer(ex, 200, JSON_TYPE, &ex->out);
}

/* "Qwen3ForCausalLM" is qwen3. */
static void name_family(const char *architecture, char family[64])
{
    snprintf(family, 64, "%.*s", (int)strcspn(architecture, "F"), architecture);
    for (char *c = family; *c; c++) *c = (char)tolower((unsigned char)*c);
}

/* A model's details as Ollama gives them; zeroes of one that is not known. */
static void add_details(struct cli_text *out, const struct gateway *g, const struct helm_model_info *info)
{
    char family[64];
    name_family(info ? info->architecture : "", family);
    cli_text_fill(out,
                  "'details':{'parent_model':'','format':$,'family':$,'families':[$],'parameter_size':'$B',"
                  "'quantization_level':$},",
                  JSON(file_is_folder(g->folder) ? "safetensors" : "gguf"), JSON(family), JSON(family),
                  cli_value_fixed(info ? (double)info->parameters * 1e-9 : 0.0, 1),
                  JSON(info ? info->dtype : ""));
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
    cli_text_fill(out, "{'template':$,'capabilities':['completion',$$],", JSON(template ? template : ""),
                  PLAIN(g->model.calls ? "\"tools\"," : ""), PLAIN(g->model.may_think ? "\"thinking\"" : ""));
    add_details(out, g, info);
    cli_text_fill(out,
                  "'model_info':{'general.architecture':$,'general.parameter_count':$,'$.context_length':$}}",
                  JSON(family), JSON(info->parameters), PLAIN(family), JSON(info->context));
}

/* A client that wants to be sure of the model pulls it: it is here. In a thread. */
void info_pull(struct exchange *ex)
{
    bool stream;
    if (!ask_read_name(&ex->gateway->model, ex->body.data ? ex->body.data : "", ex->body.length, &stream,
                       &ex->refusal))
        return;
    if (stream) cli_text_fill(&ex->out, "{'status':'pulling manifest'}\n");
    cli_text_fill(&ex->out, stream ? "{'status':'success'}\n" : "{'status':'success'}");
    ex->type = stream ? "application/x-ndjson" : JSON_TYPE;
}

/* Tells models apart; it is of what the model says of itself, not of its files' bytes. */
static void make_digest(const struct gateway *g, const struct helm_model_info *info,
                        char hex[2 * crypto_hash_sha256_BYTES + 1])
{
    unsigned char sum[crypto_hash_sha256_BYTES];
    char text[1024];
    const int length = snprintf(text, sizeof text, "%s %s %s %s %llu %llu", g->model.name, g->folder,
                                info ? info->architecture : "", info ? info->dtype : "",
                                (unsigned long long)(info ? info->parameters : 0),
                                (unsigned long long)(info ? info->weight_bytes : 0));
    crypto_hash_sha256(sum, (const unsigned char *)text,
                       (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
    sodium_bin2hex(hex, 2 * sizeof sum + 1, sum, sizeof sum);
}

/* Name, bytes and details of the one model; null answers become zeroes. */
static void write_tag(struct exchange *ex, bool running)
{
    struct gateway *g = ex->gateway;
    struct cli_text *out = &ex->out;
    const struct helm_model_info *info = known_model(ex);
    const struct inquiry_fact *status = known(ex, INQUIRY_STATUS);
    char tagged[sizeof g->model.name + 8], digest[2 * crypto_hash_sha256_BYTES + 1];
    const char *name = g->model.name, *base = strrchr(name, '/');
    uint64_t vram = 0;
    for (size_t i = 0; status && i < status->status->worker_count; i++)
        vram += status->status->workers[i].vram_bytes;
    /* as Ollama names models: with a tag */
    snprintf(tagged, sizeof tagged, "%s%s", name, strchr(base ? base : name, ':') ? "" : ":latest");
    make_digest(g, info, digest);
    cli_text_fill(out, "{'name':$,'model':$,'size':$,'digest':$,", JSON(tagged), JSON(tagged),
                  JSON(info ? info->weight_bytes : 0), JSON(digest));
    add_details(out, g, info);
    if (running)
        cli_text_fill(out, "'expires_at':'9999-12-31T23:59:59Z','size_vram':$,'context_length':$}",
                      JSON(vram), JSON(g->model.context));
    else
        cli_text_fill(out, "'modified_at':'1970-01-01T00:00:00Z'}");
}

static void write_tags(struct exchange *ex, bool running)
{
    cli_text_fill(&ex->out, "{'models':[");
    if (!running || known(ex, INQUIRY_STATUS)) write_tag(ex, running);
    cli_text_fill(&ex->out, "]}");
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
