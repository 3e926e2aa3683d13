/* The fields of /v1/embeddings and of Ollama's /api/embed, in one table. See ask.h. */
#include <string.h>

#include "client/gateway/ask.h"

/* One of two words; *second: it is the other one. */
static bool take_word(struct ask_reader *r, const json_t *value, const char *first, const char *other,
                      bool *second)
{
    const char *word = json_string_value(value);
    if (word && (strcmp(word, first) == 0 || strcmp(word, other) == 0)) {
        *second = strcmp(word, other) == 0;
        return true;
    }
    return refuse(r->refusal, 400, "invalid_value", r->param, "'%s' is neither \"%s\" nor \"%s\"", r->param,
                  first, other);
}

static bool take_encoding(struct ask_reader *r, const json_t *value)
{
    return take_word(r, value, "float", "base64", &r->ask->base64);
}
static bool take_pooling(struct ask_reader *r, const json_t *value)
{
    bool last = false;
    if (!take_word(r, value, "mean", "last", &last)) return false;
    r->ask->has_pooling = true;
    r->ask->pooling = last ? HELM_POOLING_LAST : HELM_POOLING_MEAN;
    return true;
}

static const struct ask_field rows[] = {
    {"model", ASK_EMBEDS, ask_take_model},
    {"input", ASK_EMBEDS, ASK_LATER(prompt)},
    {"prompt", ASK_OLLAMA_EMBED, ASK_LATER(prompt)}, /* of the older /api/embeddings */
    {"encoding_format", ASK_EMBED, take_encoding},
    {"user", ASK_EMBED, ask_take_user},
    {"truncate", ASK_OLLAMA_EMBED, ASK_FLAG(truncate)},
    /* beyond both */
    {"pooling", ASK_EMBEDS, take_pooling},
};

static bool finish(struct ask_reader *r)
{
    struct ask *ask = r->ask;
    r->param = "input";
    ask->stream = false;
    if (*r->model->pooling_why && !ask->has_pooling)
        return refuse(r->refusal, 400, "missing_parameter", "pooling", "'pooling' is missing: %s",
                      r->model->pooling_why);
    if (!ask_add_prompts(r, r->prompt)) return false;
    for (size_t i = 0; ask->truncate && i < ask->prompt_count; i++)
        if (ask->prompt[i].count > r->model->context) ask->prompt[i].count = r->model->context;
    return true;
}

const struct ask_dialect ask_embed = {ASK_EMBEDS, {ASK_ROWS(rows)}, finish};
