/* Paths that llama.cpp's server has and its tools look at, and what a browser asks before a page of another
 * site may ask. See routes.h. */
#include <stdlib.h>
#include <string.h>

#include "client/gateway/gateway.h"
#include "client/gateway/routes.h"
#include "common/base/units.h"

/* The defaults of a request, and the model's texts. */
void info_props(struct exchange *ex)
{
    const struct gateway *g = ex->gateway;
    const struct sampling_options *s = &g->model.defaults;
    struct cli_text *out = &ex->out;
    const char *template = helm_tokenizer_chat_template(g->model.tokenizer, NULL);
    const struct inquiry_fact *plan = g->cli.client ? ex->facts[INQUIRY_PLAN] : NULL; /* away: no slots */
    cli_text_fill(out,
                  "{'default_generation_settings':{'n_ctx':$,'params':{'temperature':$,'top_k':$,'top_p':$,"
                  "'min_p':$,'repeat_penalty':$}},",
                  JSON(g->model.context), cli_value_digits(s->temperature, 6), JSON(s->top_k),
                  cli_value_digits(s->top_p > 0 ? s->top_p : 1.0, 6), cli_value_digits(s->min_p, 6),
                  cli_value_digits(s->repetition_penalty > 0 ? s->repetition_penalty : 1.0, 6));
    cli_text_fill(
        out,
        "'total_slots':$,'model_alias':$,'model_path':$,'modalities':{'vision':false,'audio':false},"
        "'chat_template':$,'build_info':'helm-$'}",
        JSON(plan ? plan->slots : 0), JSON(g->model.name), JSON(g->folder), JSON(template ? template : ""),
        PLAIN(HELM_VERSION));
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
    cli_text_fill(&ex->out, "[");
    for (size_t i = 0; i < list->count; i++) {
        const struct helm_list_entry *e = &list->entries[i];
        if (g->names_users && strcmp(e->user, ex->whose->name) != 0) continue;
        cli_text_fill(&ex->out,
                      "{'id':$,'id_task':$,'n_ctx':$,'is_processing':$,'state':$,'n_prompt_tokens':$,"
                      "'n_prompt_tokens_processed':$,'n_decoded':$},",
                      JSON(i), JSON(e->id), JSON(g->model.context),
                      cli_value_bool(strcmp(e->state, "queued") != 0), JSON(e->state), JSON(e->prompt_tokens),
                      JSON(e->prefilled_tokens), JSON(e->output_tokens));
    }
    cli_text_fill(&ex->out, "]");
    exchange_answer(ex, 200, JSON_TYPE, &ex->out);
}

/* server.c adds the headers that say it. */
void info_preflight(struct exchange *ex)
{
    exchange_answer(ex, 204, JSON_TYPE, &ex->out);
}
