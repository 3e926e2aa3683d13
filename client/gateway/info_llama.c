/* Paths that llama.cpp's server has and its tools look at, and what a browser asks before a page of another
 * site may ask. See routes.h. */
#include <stdlib.h>
#include <string.h>

#include "client/gateway/gateway.h"
#include "client/gateway/routes.h"
#include "common/base/units.h"

#define JSON_TYPE "application/json"

static void add_sampling(struct cli_text *out, const struct sampling_options *s)
{
    cli_text_printf(
        out, "{\"temperature\":%.6g,\"top_k\":%llu,\"top_p\":%.6g,\"min_p\":%.6g,\"repeat_penalty\":%.6g}",
        s->temperature, (unsigned long long)s->top_k, s->top_p > 0 ? s->top_p : 1.0, s->min_p,
        s->repetition_penalty > 0 ? s->repetition_penalty : 1.0);
}

/* The defaults of a request, and the model's texts. */
void info_props(struct exchange *ex)
{
    const struct gateway *g = ex->gateway;
    struct cli_text *out = &ex->out;
    const char *template = helm_tokenizer_chat_template(g->model.tokenizer, NULL);
    const struct inquiry_fact *plan = g->cli.client ? ex->facts[INQUIRY_PLAN] : NULL; /* away: no slots */
    cli_text_printf(out, "{\"default_generation_settings\":{\"n_ctx\":%u,\"params\":", g->model.context);
    add_sampling(out, &g->model.defaults);
    cli_text_printf(out, "},\"total_slots\":%u,\"model_alias\":", plan ? plan->slots : 0);
    voice_add_string(out, g->model.name);
    voice_add_member(out, ",\"model_path\":", g->folder);
    voice_add_member(out, ",\"modalities\":{\"vision\":false,\"audio\":false},\"chat_template\":",
                     template ? template : "");
    cli_text_printf(out, ",\"build_info\":\"helm-%s\"}", HELM_VERSION);
    exchange_answer(ex, 200, JSON_TYPE, out);
}

/* The requests of the asker, one a slot: helmd has as many as are open. */
void info_slots(struct exchange *ex)
{
    struct gateway *g = ex->gateway;
    const struct inquiry_fact *fact = g->cli.client ? ex->facts[INQUIRY_LIST] : NULL;
    if (!fact || units_now_us() - fact->at_us > INQUIRY_SILENT_US) { /* requests of then say nothing */
        refuse_err(&ex->refusal, NULL, HELM_E_PEER,
                   g->cli.client ? "helmd does not answer" : "helmd is not there");
        exchange_refuse(ex);
        return;
    }
    const struct helm_list *list = fact->list;
    cli_text_printf(&ex->out, "[");
    for (size_t i = 0; i < list->count; i++) {
        const struct helm_list_entry *e = &list->entries[i];
        if (g->names_users && strcmp(e->user, ex->whose->name) != 0) continue;
        cli_text_printf(&ex->out,
                        "%s{\"id\":%zu,\"id_task\":%llu,\"n_ctx\":%u,\"is_processing\":%s,\"state\":",
                        ex->out.length > 1 ? "," : "", i, (unsigned long long)e->id, g->model.context,
                        strcmp(e->state, "queued") == 0 ? "false" : "true");
        voice_add_string(&ex->out, e->state);
        cli_text_printf(&ex->out,
                        ",\"n_prompt_tokens\":%u,\"n_prompt_tokens_processed\":%u,\"n_decoded\":%u}",
                        e->prompt_tokens, e->prefilled_tokens, e->output_tokens);
    }
    cli_text_printf(&ex->out, "]");
    exchange_answer(ex, 200, JSON_TYPE, &ex->out);
}

/* server.c adds the headers that say it. */
void info_preflight(struct exchange *ex)
{
    exchange_answer(ex, 204, JSON_TYPE, &ex->out);
}
