/* The request in a body of HTTP: checked, its text turned into tokens.
 *
 * Called by the gateway's workers, by tests and by the fuzz target; pure, so any number of threads may read
 * bodies with one model at the same time. Every field is read by a row of its dialect's table (ask_openai.c,
 * ask_ollama.c, ...), or the one table of ask_members.c says whether it is taken though nothing reads it, and
 * is named, or refused. Bodies come from strangers; common/base/json.h bounds their nesting, the server their
 * size. */
#pragma once

#include <float.h>
#include <jansson.h>
#include <stddef.h>

#include "client/shared/sampling.h"
#include "client/gateway/refusal.h"
#include "client/gateway/responses.h"
#include "client/text/answer/ends.h"
#include "client/text/answer/syntax.h"
#include "common/base/json.h"

struct grammars;
struct kept_grammar;

#define ASK_STOPS      16
#define ASK_STOPS_CHAT 4    /* of OpenAI's */
#define ASK_CHOICES    16   /* prompts times `n` */
#define ASK_INPUTS     256  /* of one request for embeddings */
#define ASK_DOCUMENTS  1000 /* of one request for scores */
#define ASK_BIASES     300
#define ASK_TOP        20         /* logprobs of a token */
#define ASK_STOP_BYTES 1024       /* of one stop text */
#define ASK_VALUES     (1u << 20) /* of JSON in a body: each takes a hundred bytes of memory */
#define ASK_LABEL      64

/* The served model as requests need it. Borrowed by every ask; owned by struct gateway. */
struct ask_model {
    char name[256];
    const struct args_list *aliases; /* further names */
    const struct helm_tokenizer *tokenizer;
    const struct helm_chat *chat; /* NULL: chat_why says why */
    char chat_why[HELM_ERR_TEXT];
    const struct call_syntax *calls; /* of its chat template; NULL: it has no tools, or calls_why */
    char calls_why[HELM_ERR_TEXT];
    const struct reasoning_tags *tags;        /* NULL without a chat template */
    bool may_think;                           /* its chat template shows thinking */
    const struct helm_vocabulary *vocabulary; /* NULL: no grammars; vocabulary_why says why */
    char vocabulary_why[HELM_ERR_TEXT];
    struct grammars *grammars;
    struct responses *responses; /* that are kept; NULL: none are */
    enum helm_pooling pooling;   /* of embeddings, unless a request says */
    char pooling_why
        [HELM_ERR_TEXT]; /* not empty: a request has to say, since the model's own is none of HELM's */
    uint32_t context, vocab;
    struct ends ends; /* tokens that end an answer, in addition to the model's own */
    struct sampling_options defaults;
    bool allow_special; /* control tokens written in messages become such tokens */
    uint32_t answer_ms; /* longest time of an answer, 0: any */
};

/* Bits: a field's row says which kinds take it. */
enum ask_kind {
    ASK_CHAT = 1,
    ASK_COMPLETION = 2,
    ASK_OLLAMA_CHAT = 4,
    ASK_OLLAMA_GENERATE = 8,
    ASK_EMBED = 16,
    ASK_OLLAMA_EMBED = 32,
    ASK_RESPONSE = 64,
    ASK_MESSAGE = 128,  /* Anthropic's */
    ASK_COUNT = 256,    /* ... whose tokens are counted */
    ASK_TEMPLATE = 512, /* a chat of which the text is wanted */
    ASK_RERANK = 1024,
};
#define ASK_CHATS     (ASK_CHAT | ASK_TEMPLATE)
#define ASK_ANTHROPIC (ASK_MESSAGE | ASK_COUNT)
#define ASK_EMBEDS    (ASK_EMBED | ASK_OLLAMA_EMBED)
#define ASK_BATCHES                                                                                          \
    (ASK_EMBEDS | ASK_RERANK) /* many prompts, for each of which there is one result and no text */

/* Who asks: whose kept responses a request sees, and its own id. */
struct ask_asker {
    const char *owner, *id;
};

struct ask_prompt {
    uint32_t *ids;
    size_t count;
    uint32_t marks[HELM_CHAT_MARKS_MAX]; /* of a conversation: ends of its messages */
    size_t mark_count;
};

struct ask_ids {
    uint32_t *data; /* owned */
    size_t count;
};

struct ask {
    enum ask_kind kind;
    const _Atomic bool *gone; /* another thread says that nobody waits for it; set before ask_read, or NULL */
    json_t *body;             /* the texts below are borrowed from it */
    struct json_numbers *numbers; /* of all that is parsed for it */
    json_t *extra;                /* chat_template_kwargs with how much is to be thought (ask_effort.c) */
    json_t *made;    /* tools as chats have them, without those that are no functions: what `tools` is */
    json_t *spaces;  /* of ASK_RESPONSE: {a function's name: {"namespace", "name"}} of those in namespaces */
    json_t *echo;    /* of ASK_RESPONSE: what the answer says of the request, an object with members */
    char *echo_text; /* that as JSON: it is long, and a stream says it three times */
    size_t echo_bytes;
    struct response *before;     /* of ASK_RESPONSE: what it goes on with, held; NULL: nothing */
    struct response_items items; /* of ASK_RESPONSE with `store`: what it says */
    bool store;                  /* the answer is kept */
    bool stream, include_usage, logprobs;
    bool load_only;       /* Ollama: no prompt; the client only wants the model to be there */
    bool conversation;    /* the prompt came through the chat template */
    enum reasoning_at at; /* where the prompt ended */
    bool one_call;        /* the answer ends with its first tool call */
    bool fills_context;   /* of ASK_MESSAGE: max_tokens did not fit, the answer has the room there is */
    uint32_t top_logprobs;
    uint32_t choices; /* for each prompt */
    uint32_t max_tokens;
    struct helm_sampling sampling;
    bool ignore_eos;
    struct helm_logit_bias bias[ASK_BIASES];
    const char *stop[ASK_STOPS];
    size_t stop_count;
    struct ask_ids prediction; /* tokens that the answer may repeat */
    struct ask_prompt *prompt; /* [prompt_count] */
    size_t prompt_count, prompt_space;
    /* of ASK_EMBEDS, whose prompts are what is embedded */
    enum helm_pooling pooling;
    bool has_pooling;      /* the request said */
    bool base64, truncate; /* truncate: what is longer than the context is cut */
    /* of ASK_RERANK; documents: borrowed from body */
    const json_t *documents;
    uint32_t top_n, judged[2]; /* judged: the tokens of "yes" and "no" */
    bool return_documents;
    const json_t *tools;          /* borrowed from body; NULL: none are parsed */
    struct kept_grammar *grammar; /* the answer's; NULL: any */
    char label[ASK_LABEL + 1];
    char ignored[512]; /* members that changed nothing, for x-helm-ignored: "store, tools.web_search" */
    char *rendered;    /* of ASK_TEMPLATE */
    size_t rendered_length;
};

/* Reads a body. false: *refusal says why; *ask is empty then. `asker` NULL: nothing is kept or found. */
bool ask_read(enum ask_kind kind, const struct ask_model *model, const struct ask_asker *asker,
              const char *text, size_t length, struct ask *ask, struct refusal *refusal);
void ask_free(struct ask *ask);
/* A body that names a model and nothing else that matters but `stream`, as Ollama's /api/show and /api/pull
 * have it. */
bool ask_read_name(const struct ask_model *model, const char *text, size_t length, bool *stream,
                   struct refusal *refusal);

/* ---- for the files that read bodies ---- */

enum ask_format { ASK_FORMAT_NONE, ASK_FORMAT_OBJECT, ASK_FORMAT_SCHEMA, ASK_FORMAT_REGEX, ASK_FORMAT_GBNF };

/* How much is to be thought: of all the fields that say it, one meaning. */
enum ask_effort {
    EFFORT_UNSAID,
    EFFORT_NONE,
    EFFORT_MINIMAL,
    EFFORT_LOW,
    EFFORT_MEDIUM,
    EFFORT_HIGH,
    EFFORT_XHIGH,
    EFFORT_MAX,
    EFFORT_ON, /* as much as the model does by itself */
};

struct ask_reader {
    const struct ask_model *model;
    const struct ask_asker *asker;
    struct ask *ask;
    struct refusal *refusal;
    const char *param;                                /* the field being read */
    const json_t *messages, *prompt, *system, *extra; /* for later */
    bool has_choice_none, forces_call;                /* tool_choice */
    const char *forced_tool;                          /* the one that is to be called; NULL: any */
    const json_t *allowed_tools;                      /* those that may be called; NULL: all */
    enum ask_format format;                           /* the answer's */
    const json_t *format_value;                       /* schema, expression or grammar */
    const char *format_param;                         /* the field that said so */
    bool raw;                                         /* Ollama: the prompt goes round the chat template */
    enum ask_effort effort;                           /* how much is to be thought */
};

/* A row of a table of fields that are read: by a function of its own, or as a plain value into a member. */
enum ask_shape {
    ASK_SHAPE_OWN,
    ASK_SHAPE_FLAG,
    ASK_SHAPE_COUNT,
    ASK_SHAPE_NUMBER,
    ASK_SHAPE_TEXT,
    ASK_SHAPE_JSON,
    ASK_SHAPE_OBJECT
};
struct ask_field {
    const char *name;
    unsigned kinds;
    bool (*take)(struct ask_reader *reader, const json_t *value);
    enum ask_shape shape;
    size_t at;                      /* of the member in struct ask; of texts and JSON in struct ask_reader */
    double min, max;                /* texts: of their bytes, min alone */
    const struct ask_fields *inner; /* of an object, whose name and a dot are before their own */
};
struct ask_fields {
    const struct ask_field *row;
    size_t count;
};
#define ASK_ROWS(rows) rows, sizeof rows / sizeof *rows

/* A row after its name and its kinds. */
#define ASK_FLAG(member)             NULL, ASK_SHAPE_FLAG, offsetof(struct ask, member)
#define ASK_WHOLE(member, min, max)  NULL, ASK_SHAPE_COUNT, offsetof(struct ask, member), min, max
#define ASK_NUMBER(member, min, max) NULL, ASK_SHAPE_NUMBER, offsetof(struct ask, member), min, max
#define ASK_SAID(member, min)        NULL, ASK_SHAPE_TEXT, offsetof(struct ask_reader, member), min
#define ASK_LATER(member)            NULL, ASK_SHAPE_JSON, offsetof(struct ask_reader, member)
#define ASK_OBJECT(fields)           NULL, ASK_SHAPE_OBJECT, 0, 0, 0, fields
#define ASK_TEMPERATURE              ASK_NUMBER(sampling.temperature, 0, 100)
#define ASK_MIN_P                    ASK_NUMBER(sampling.min_p, 0, 1)
#define ASK_REPETITION               ASK_NUMBER(sampling.repetition_penalty, ASK_ABOVE_ZERO, 100)
#define ASK_PRESENCE                 ASK_NUMBER(sampling.presence_penalty, -2, 2)
#define ASK_FREQUENCY                ASK_NUMBER(sampling.frequency_penalty, -2, 2)
#define ASK_TOP_LOGPROBS             ASK_WHOLE(top_logprobs, 0, ASK_TOP)
#define ASK_ABOVE_ZERO               ((double)FLT_MIN) /* 0 on the wire is "off" */

/* Every member of `object` through its row, or through the table of ask_members.c; null is as if it were not
 * there. `place`: "", or the object's own name and a dot. */
bool ask_take_fields(struct ask_reader *reader, const char *place, const json_t *object,
                     const struct ask_fields *fields);
/* Refused: the field that is being read is not `wanted` ("a list"). */
bool ask_wrong_type(struct ask_reader *reader, const char *wanted);

/* ask_members.c: a member that is not read. false: it is refused. */
bool ask_settle_member(struct ask_reader *reader, const char *place, const char *name, const json_t *value);
/* Something of the request that is left out, by its name. */
void ask_note_ignored(struct ask *ask, const char *name);
void ask_note_tool(struct ask *ask, const char *type);

/* ask_history.c: previous_response_id and store. */
bool ask_take_previous(struct ask_reader *reader, const json_t *value);
bool ask_take_store(struct ask_reader *reader, const json_t *value);
/* The items of the conversation that ask->before is the end of, added to a list. */
bool ask_add_history(struct ask_reader *reader, json_t *list);
/* References to items become those items. */
bool ask_resolve_items(struct ask_reader *reader, json_t *input);
/* The input's items into ask->items, if the answer is to be kept. */
bool ask_keep_input(struct ask_reader *reader);

/* false, with the refusal. */
bool ask_out_of_memory(struct ask_reader *reader);
/* Values of a JSON text, or more: counted without parsing it. */
size_t ask_count_values(const char *text, size_t length);
/* Numbers, each with its bounds. */
bool ask_take_number(struct ask_reader *reader, const json_t *value, double min, double max, float *out);
bool ask_take_count(struct ask_reader *reader, const json_t *value, uint64_t min, uint64_t max,
                    uint32_t *out);
bool ask_take_flag(struct ask_reader *reader, const json_t *value, bool *out);
/* parallel_tool_calls: whether an answer may have several calls. */
bool ask_take_parallel(struct ask_reader *reader, const json_t *value);
/* One text or a list of up to ASK_STOPS. */
bool ask_take_stop(struct ask_reader *reader, const json_t *value);
bool ask_take_model(struct ask_reader *reader, const json_t *value);
bool ask_take_seed(struct ask_reader *reader, const json_t *value);
bool ask_take_user(struct ask_reader *reader, const json_t *value);

/* sampling.*, where a bound has a meaning of its own. */
bool ask_take_top_p(struct ask_reader *reader, const json_t *value);
bool ask_take_top_k(struct ask_reader *reader, const json_t *value);
bool ask_take_tools(struct ask_reader *reader, const json_t *value);
/* Adds {"type": "function", "function": ...} to ask->made; takes `function`, whose NULL is no memory. */
bool ask_add_function(struct ask_reader *reader, json_t *function);
/* A chat's, of which a type may be missing; those of other types are a service's own: left out, and named as
 * ignored. */
bool ask_take_chat_tools(struct ask_reader *reader, const json_t *value);
bool ask_take_max_tokens(struct ask_reader *reader, const json_t *value); /* -1: as many as fit */

/* ask_effort.c: a level by its name; true or a level (Ollama). */
bool ask_take_effort(struct ask_reader *reader, const json_t *value);
/* Tokens to think with: 0 is off, any other number is a hint. */
bool ask_take_budget(struct ask_reader *reader, const json_t *value);
bool ask_take_think(struct ask_reader *reader, const json_t *value);
/* {"type": "disabled"} (chats: also a flag). */
bool ask_take_thinking(struct ask_reader *reader, const json_t *value);
extern const struct ask_fields ask_reasoning; /* {"effort", "enabled"} */
/* The template's variables: what the request gave, and what reader->effort means there. */
bool ask_effort_variables(struct ask_reader *reader);

/* ask_grammar.c: what the answer is to look like. */
bool ask_take_response_format(struct ask_reader *reader, const json_t *value);
bool ask_take_json_schema(struct ask_reader *reader, const json_t *value);
bool ask_take_grammar(struct ask_reader *reader, const json_t *value);
bool ask_take_regex(struct ask_reader *reader, const json_t *value);
bool ask_take_format(struct ask_reader *reader, const json_t *value);
bool ask_take_tool_choice(struct ask_reader *reader, const json_t *value);
/* When all fields are read: tools that the choice leaves out are no part of the request. */
bool ask_choose_tools(struct ask_reader *reader);
/* When fields and prompts are read: ask->grammar, if anything asks for one. */
bool ask_make_grammar(struct ask_reader *reader);

/* Room for one more prompt, empty; NULL: refused, there are too many, or no memory. */
struct ask_prompt *ask_new_prompt(struct ask_reader *reader);
/* One prompt: a text or a list of ids. Several: a list of these. `value` NULL: the field is missing. */
bool ask_add_prompts(struct ask_reader *reader, const json_t *value);
/* A text as one more prompt: with `special` tokens added as the tokenizer does it, or without. */
bool ask_add_text(struct ask_reader *reader, const char *text, size_t length, bool special);
/* A conversation through the chat template (ask_messages.c). */
bool ask_add_messages(struct ask_reader *reader, const json_t *messages);

/* A group of paths whose bodies have one table. `finish`: after the fields, the prompts. */
struct ask_dialect {
    unsigned kinds;
    struct ask_fields fields;
    bool (*finish)(struct ask_reader *reader);
};
extern const struct ask_dialect ask_openai, ask_ollama, ask_embed, ask_response, ask_message, ask_rerank;

/* ask_rerank.c: the text of one of the documents; NULL: it has none. */
const json_t *ask_document_text(const json_t *document);
