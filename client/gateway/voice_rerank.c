/* The answer of /v1/rerank: documents by their scores, as Jina's and llama.cpp's servers write it. One piece,
 * no stream. See voice.h. */
#include <stdlib.h>

#include "client/gateway/gateway.h"
#include "client/gateway/voice.h"

static int by_score(const void *a, const void *b)
{
    const struct choice *const *x = a, *const *y = b;
    if ((*x)->score != (*y)->score) return (*x)->score > (*y)->score ? -1 : 1;
    return (*x)->index < (*y)->index ? -1 : 1;
}

static void whole(struct exchange *ex)
{
    struct cli_text *out = &ex->out;
    const uint32_t tokens = voice_prompt_tokens(ex), count = ex->choice_count;
    const struct choice **order = calloc(count, sizeof *order);
    if (!order) {
        out->failed = true;
        return;
    }
    for (uint32_t i = 0; i < count; i++) order[i] = &ex->choices[i];
    qsort(order, count, sizeof *order, by_score);
    cli_text_fill(out, "{'object':'list','model':$,'usage':{'prompt_tokens':$,'total_tokens':$},'results':[",
                  JSON(ex->gateway->model.name), JSON(tokens), JSON(tokens));
    for (uint32_t i = 0; i < ex->ask.top_n; i++) {
        cli_text_fill(out, "{'index':$,'relevance_score':$,", JSON(order[i]->index), JSON(order[i]->score));
        if (ex->ask.return_documents) {
            const json_t *text = ask_document_text(json_array_get(ex->ask.documents, order[i]->index));
            cli_text_fill(out, "'document':{'text':$}",
                          JSON_BYTES(json_string_value(text), json_string_length(text)));
        }
        cli_text_fill(out, "},");
    }
    cli_text_fill(out, "]}");
    free(order);
}

const struct voice voice_rerank = {.whole = whole};
