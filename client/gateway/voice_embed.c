/* Embeddings in OpenAI's and Ollama's dialects: one piece, no stream. See voice.h. */
#include <sodium.h>
#include <stdlib.h>

#include "client/gateway/gateway.h"
#include "client/gateway/voice.h"
#include "common/base/units.h"

static void add_floats(struct cli_text *out, const struct choice *c)
{
    cli_text_fill(out, "[");
    for (size_t i = 0; i < c->embedding_count; i++) cli_text_fill(out, "$,", JSON(c->embedding[i]));
    cli_text_fill(out, "]");
}

/* The numbers' bytes, little-endian fp32 (RFC 4648, section 4). */
static void add_base64(struct cli_text *out, const struct choice *c)
{
    const size_t bytes = c->embedding_count * sizeof *c->embedding,
                 space = sodium_base64_encoded_len(bytes, sodium_base64_VARIANT_ORIGINAL);
    char *text = malloc(space);
    if (text) {
        sodium_bin2base64(text, space, (const unsigned char *)c->embedding, bytes,
                          sodium_base64_VARIANT_ORIGINAL);
        cli_text_fill(out, "'$'", PLAIN(text));
    }
    out->failed |= !text;
    free(text);
}

static void openai_whole(struct exchange *ex)
{
    struct cli_text *out = &ex->out;
    const uint32_t tokens = voice_prompt_tokens(ex);
    cli_text_fill(out, "{'object':'list','data':[");
    for (uint32_t i = 0; i < ex->choice_count; i++) {
        cli_text_fill(out, "{'object':'embedding','index':$,'embedding':", JSON(i));
        (ex->ask.base64 ? add_base64 : add_floats)(out, &ex->choices[i]);
        cli_text_fill(out, "},");
    }
    cli_text_fill(out, "],'model':$,'usage':{'prompt_tokens':$,'total_tokens':$}}",
                  JSON(ex->gateway->model.name), JSON(tokens), JSON(tokens));
}

static void ollama_whole(struct exchange *ex)
{
    struct cli_text *out = &ex->out;
    cli_text_fill(out, "{'model':$,'embeddings':[", JSON(ex->gateway->model.name));
    for (uint32_t i = 0; i < ex->choice_count; i++) {
        add_floats(out, &ex->choices[i]);
        cli_text_fill(out, ",");
    }
    cli_text_fill(out, "],'total_duration':$,'load_duration':0,'prompt_eval_count':$}",
                  JSON((units_now_us() - ex->begin_us) * 1000), JSON(voice_prompt_tokens(ex)));
}

/* /api/embeddings: one prompt, one embedding. */
static void ollama_first(struct exchange *ex)
{
    cli_text_fill(&ex->out, "{'embedding':");
    add_floats(&ex->out, &ex->choices[0]);
    cli_text_fill(&ex->out, "}");
}

const struct voice voice_embeddings = {.whole = openai_whole}, voice_ollama_embed = {.whole = ollama_whole},
                   voice_ollama_embedding = {.whole = ollama_first};
