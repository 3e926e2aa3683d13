/* The fields of /v1/rerank and its prompts: Qwen3-Reranker's question about each document, whose answer is
 * "yes" or "no". See ask.h. */
#include <stdlib.h>
#include <string.h>

#include "client/gateway/ask.h"

/* The model's training prompt. Control tokens are tokens in it; in a request's own texts they are text. */
static const char before[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n";
static const char after[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
static const char instruction[] =
    "Given a web search query, retrieve relevant passages that answer the query";

/* Tokens that a vocabulary has to have; the first two are those that are compared. */
static const char *const needed[] = {"yes", "no", "<|im_start|>", "<|im_end|>", "<think>", "</think>"};

static bool take_documents(struct ask_reader *r, const json_t *value)
{
    r->ask->documents = value;
    return true;
}
static const struct ask_field rows[] = {
    {"model", ASK_RERANK, ask_take_model},
    {"query", ASK_RERANK, ASK_SAID(prompt, 1)},
    {"documents", ASK_RERANK, take_documents},
    {"top_n", ASK_RERANK, ASK_WHOLE(top_n, 1, UINT32_MAX)},
    {"return_documents", ASK_RERANK, ASK_FLAG(return_documents)},
    {"user", ASK_RERANK, ask_take_user},
    /* beyond Jina's */
    {"instruction", ASK_RERANK, ASK_SAID(system, 1)},
};

const json_t *ask_document_text(const json_t *document)
{
    const json_t *text = json_is_object(document) ? json_object_get(document, "text") : document;
    return json_is_string(text) ? text : NULL;
}

static bool find_tokens(struct ask_reader *r)
{
    uint32_t ids[sizeof needed / sizeof *needed];
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        ids[i] = helm_tokenizer_token_to_id(r->model->tokenizer, needed[i], strlen(needed[i]));
        if (ids[i] == HELM_TOKENIZER_NO_ID || ids[i] >= r->model->vocab)
            return refuse(r->refusal, 400, "unsupported_value", "model",
                          "'%.100s' is no reranker as Qwen3-Reranker is: its vocabulary has no token '%s'",
                          r->model->name, needed[i]);
    }
    r->ask->judged[0] = ids[0];
    r->ask->judged[1] = ids[1];
    return true;
}

static bool encode(struct ask_reader *r, const char *text, size_t length, unsigned flags, struct ask_ids *out)
{
    struct helm_err err = {0};
    const int rc =
        helm_tokenizer_encode(r->model->tokenizer, text, length, flags, &out->data, &out->count, &err);
    return rc == 0 || refuse_err(r->refusal, r->param, rc, err.text);
}

/* One document's question: `head` and `tail` around the part that the request says. */
static bool add_document(struct ask_reader *r, size_t index, const struct ask_ids *head,
                         const struct ask_ids *tail)
{
    const json_t *text = ask_document_text(json_array_get(r->ask->documents, index));
    const char *instruct = r->system ? json_string_value(r->system) : instruction;
    struct ask_ids said = {0};
    if (!text)
        return refuse(r->refusal, 400, "invalid_type", "documents",
                      "documents[%zu] is neither a text nor an object with a 'text'", index);
    json_t *whole = json_sprintf("<Instruct>: %s\n<Query>: %s\n<Document>: %s", instruct,
                                 json_string_value(r->prompt), json_string_value(text));
    if (!whole) return ask_out_of_memory(r);
    struct ask_prompt *prompt = ask_new_prompt(r);
    bool good = prompt && encode(r, json_string_value(whole), json_string_length(whole),
                                 HELM_TOKENIZER_ENCODE_PLAIN, &said);
    json_decref(whole);
    const size_t count = head->count + said.count + tail->count;
    if (good && count >= r->model->context)
        good =
            refuse(r->refusal, 400, "context_length_exceeded", "documents",
                   "documents[%zu] with the query has %zu tokens, and this model's context has room for %u",
                   index, count, r->model->context - 1);
    if (good) {
        prompt->ids = malloc(count * sizeof *prompt->ids);
        good = prompt->ids || ask_out_of_memory(r);
    }
    if (good) {
        memcpy(prompt->ids, head->data, head->count * sizeof *prompt->ids);
        memcpy(prompt->ids + head->count, said.data, said.count * sizeof *prompt->ids);
        memcpy(prompt->ids + head->count + said.count, tail->data, tail->count * sizeof *prompt->ids);
        prompt->count = count;
    }
    free(said.data);
    return good;
}

static bool finish(struct ask_reader *r)
{
    struct ask *ask = r->ask;
    struct ask_ids head = {0}, tail = {0};
    const size_t count = json_array_size(ask->documents);
    ask->stream = false;
    ask->max_tokens = 1;
    if (!r->prompt) return refuse(r->refusal, 400, "missing_parameter", "query", "'query' is missing");
    if (!ask->documents)
        return refuse(r->refusal, 400, "missing_parameter", "documents", "'documents' is missing");
    if (!count || count > ASK_DOCUMENTS)
        return refuse(r->refusal, 400, "invalid_value", "documents",
                      "'documents' is not a list of 1 to %d documents", ASK_DOCUMENTS);
    if (!ask->top_n || ask->top_n > count) ask->top_n = (uint32_t)count;
    bool good = find_tokens(r) &&
                encode(r, before, sizeof before - 1, HELM_TOKENIZER_ENCODE_PARSE_ADDED, &head) &&
                encode(r, after, sizeof after - 1, HELM_TOKENIZER_ENCODE_PARSE_ADDED, &tail);
    r->param = "documents";
    for (size_t i = 0; good && i < count; i++) good = add_document(r, i, &head, &tail);
    free(head.data);
    free(tail.data);
    return good;
}

const struct ask_dialect ask_rerank = {ASK_RERANK, {ASK_ROWS(rows)}, finish};
