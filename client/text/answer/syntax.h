/* How families of models write calls of tools and what they think, as two tables.
 *
 * Called by the gateway and helm-cli when a model is opened, and by the parser of answers (answer.h). A
 * family is a row: its chat template's text tells which one it is. docs/tool-calls.md shows the rows. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum call_form {
    CALL_OBJECT,     /* {"name": NAME, KEY: ARGUMENTS}, between markers */
    CALL_WHOLE,      /* the same as the whole answer, without markers */
    CALL_LISTED,     /* a list of them, or NAME and ARGUMENTS with markers of their own */
    CALL_NAMED,      /* NAME, then ARGUMENTS as JSON */
    CALL_PARAMETERS, /* NAME, then each parameter in a tag: values are typed by the tool's schema */
    CALL_BARE,       /* NAME, then an object with bare keys and quotes of its own */
    CALL_CHANNEL,    /* a channel of harmony */
    CALL_LINED,      /* a tool's name on a line, then ARGUMENTS as JSON: the whole answer, without markers */
    CALL_PYTHON,     /* NAME(KEY=VALUE, ...), a call after the other between markers */
};

struct call_syntax {
    const char *family; /* for people */
    enum call_form form;
    const char *shown, *shown_too; /* texts of a template that has it; shown_too NULL: one is enough */
    const char *key;               /* CALL_OBJECT, CALL_WHOLE, CALL_LISTED: the arguments' key */
    const char *open, *close;      /* around calls; NULL: none */
    /* CALL_NAMED, CALL_PARAMETERS, CALL_BARE, CALL_LINED, CALL_PYTHON: before the name; after it (NULL: a
     * blank or a tag ends it, and stays); after the arguments. NULL or "": nothing */
    const char *call_open, *name_end, *call_close;
    bool may_end; /* CALL_LISTED: `close` may be missing */
    bool begins;  /* calls are also written without `open`: call_open begins one */
    /* CALL_PARAMETERS: before the key, after it, before the value, after it */
    const char *key_open, *key_end, *value_open, *value_close;
    bool tags;    /* name_end and key_end close a quote: the rest of the tag follows them, up to '>' */
    bool kinds;   /* a key's tag says whether its value is text: string="true" or "false" */
    bool counted; /* a name is functions.NAME:NUMBER */
    /* in a conversation a call is a message of its own, with the name as its `metadata`, and a result has the
     * role `observation` */
    bool apart;
    bool lines; /* a value stands on lines of its own: one newline on each side is not part of it */
};

/* The syntax that a template shows, or NULL: none, or one that no row has. */
const struct call_syntax *call_syntax_of(const char *chat_template);
/* The rows in order; NULL after the last. */
const struct call_syntax *call_syntax_row(size_t index);
/* The families' names with commas between them, for an error. */
void call_syntax_families(char *text, size_t size);
/* Whether a special token begins, divides or ends calls of this syntax: it belongs to the answer's text
 * then. */
bool call_syntax_has_token(const struct call_syntax *syntax, const char *token);

struct reasoning_tags {
    const char *family;
    const char *shown, *shown_too;
    const char *open, *close; /* NULL: channels of harmony */
    bool anywhere;            /* the tags are special tokens: they may come again after text */
    const char
        *efforts; /* what the template's reasoning_effort may be, in rising order; NULL: whatever was asked */
    const char *member; /* of a message, for what it thought */
};

/* The tags that a template shows; without a sign of any they are <think>'s, which templates of older models
 * leave out. */
const struct reasoning_tags *reasoning_tags_of(const char *chat_template);
const struct reasoning_tags *reasoning_tags_row(size_t index);
bool reasoning_has_token(const struct reasoning_tags *tags, const char *token);
/* Whether the template's text has a sign of thinking at all. */
bool reasoning_is_shown(const char *chat_template);

/* Where a prompt leaves thinking. */
enum reasoning_at {
    REASONING_FREE,   /* the answer may begin with it */
    REASONING_INSIDE, /* the prompt has opened it */
    REASONING_CLOSED, /* the prompt has closed it */
};
enum reasoning_at reasoning_after(const struct reasoning_tags *tags, const char *prompt, size_t length);

/* ---- harmony ---- */

#define HARMONY_START   "<|start|>"
#define HARMONY_CHANNEL "<|channel|>"
#define HARMONY_MESSAGE "<|message|>"
#define HARMONY_END     "<|end|>"
