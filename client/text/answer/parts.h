/* Shared by the files of the parser of answers. See answer.h.
 *
 *   answer.c      events, the order of the parts     thinking.c    tags around what it thinks
 *   harmony.c     channels                           calls.c       calls between markers, as a state machine
 *   call_head.c   where a call begins, and its name  parameters.c  arguments in tags or with bare keys
 *   json_copy.c   JSON text as it comes              value_type.c  what a tool's schema says of a parameter
 *
 * Text waits in `rest`. A step looks at its beginning, tells events, drops what it used, and is called again
 * until it needs more. */
#pragma once

#include "client/text/answer/answer.h"

#define ANSWER_NAME_MAX   256          /* bytes of a name or a key; longer ones are none */
#define ANSWER_HEAD_MAX   (256u << 10) /* of a call that is not certain yet; longer ones are text */
#define ANSWER_HEADER_MAX 1024         /* of a harmony message's header */

/* Where in a JSON value a text is. */
struct json_at {
    bool in_string, escaped;
    size_t depth;
};

/* JSON text that is copied without the white space between its parts. */
struct json_copy {
    struct json_at in;
    bool begun, done;
};

/* How far a JSON value was looked at that has not come whole: nothing is looked at twice. */
struct json_skip {
    struct json_at in;
    size_t from, at;
    bool begun;
};

enum thinking_state { THINKING_BEGIN, THINKING_INSIDE, THINKING_AFTER, THINKING_OVER };

enum call_state {
    CALL_TEXT,       /* no call; a marker may come */
    CALL_HEAD,       /* a marker came: is it a call? */
    CALL_JSON,       /* its arguments, as JSON */
    CALL_REST,       /* arguments are over, the object around them is not */
    CALL_KEYS,       /* its parameters: the next one's key, or the end */
    CALL_VALUE,      /* a parameter's value */
    CALL_BARE_VALUE, /* an object with bare keys */
    CALL_BETWEEN,    /* the call is over: another one, the end of all, or text */
    CALL_PLAIN,      /* nothing but text follows */
};

/* Types that a value of a parameter may have. */
enum value_type {
    VALUE_STRING = 1,
    VALUE_NUMBER = 2,
    VALUE_BOOLEAN = 4,
    VALUE_NULL = 8,
    VALUE_OBJECT = 16,
    VALUE_ARRAY = 32,
};

enum harmony_state { HARMONY_HEADER, HARMONY_BODY };

struct answer {
    struct answer_wish wish;
    answer_take *take;
    void *user;
    bool failed, ending, last; /* ending: the answer is over; last: no more text comes to the step at hand */

    enum thinking_state thinking;
    struct cli_text held; /* text that thinking.c is not sure of */
    bool thought;         /* something was */

    enum harmony_state harmony;
    enum answer_event target; /* of the message's body */
    bool begun;               /* this body has text */
    bool said[2];             /* ANSWER_THOUGHT, ANSWER_TEXT: there was some */

    const struct call_syntax *calls; /* of the call at hand: wish.calls, or one with the same marker */
    enum call_state state;
    struct cli_text rest;
    size_t marker;    /* CALL_HEAD: bytes that are text if it is no call */
    size_t searched;  /* CALL_VALUE: bytes of rest without the value's end */
    bool at_name;     /* CALL_HEAD: the marker was call_open itself */
    bool bare;        /* CALL_HEAD: there was no marker, the answer begins with it */
    bool spoke;       /* some of it is text */
    bool in_list;     /* several objects in [] */
    unsigned wrapped; /* objects around the arguments */
    bool first;       /* CALL_KEYS: no parameter came yet */
    bool value_begun; /* CALL_VALUE: its first byte was looked at */
    unsigned types;   /* of the value */
    size_t count;
    char name[ANSWER_NAME_MAX + 1];
    struct json_copy copy;
    struct json_skip skip;
    bool comma;       /* CALL_BARE_VALUE: one came that is not told yet: in Python it may be the last sign */
    char quote;       /* ... of the string at hand, in Python */
    uint64_t objects; /* CALL_BARE_VALUE: which of the innermost 64 levels are objects */
    size_t depth;
    bool quoted, plain_quotes, escaped; /* ... inside a string; between '"'; after a backslash */
    struct cli_text piece;              /* arguments that are told when the step ends */
};

/* A beginning of a call, as call_head.c finds it. */
struct call_head {
    const struct call_syntax *calls;
    char name[ANSWER_NAME_MAX + 1];
    size_t used;          /* bytes of rest before its arguments, or of all of it */
    enum call_state next; /* how its arguments come */
    unsigned wrapped;
    bool in_list;
    char *arguments; /* CALL_BETWEEN: all of them, malloc'd */
};
enum call_found { CALL_MORE, CALL_NONE, CALL_FOUND };

/* ---- answer.c ---- */

void answer_tell(struct answer *a, enum answer_event event, const char *data, size_t length);
void answer_drop(struct cli_text *text, size_t count);
bool answer_is_blank(char c);
size_t answer_blanks(const struct cli_text *text, size_t at);
/* How many bytes at the end of text could begin `marker`. */
size_t answer_partial(const struct cli_text *text, const char *marker);
/* Whether `literal` is at text[at]. CALL_MORE: as far as there is text. */
enum call_found answer_literal(const struct answer *a, size_t at, const char *literal);
const char *answer_tool_name(const json_t *tool); /* NULL: it has none */

/* ---- thinking.c, harmony.c, calls.c: more text; a->last: the end ---- */

void answer_think(struct answer *a, const char *data, size_t length);
void answer_harmony(struct answer *a, const char *data, size_t length);
void answer_calls(struct answer *a, const char *data, size_t length);

/* ---- call_head.c ---- */

/* The call that may begin at rest[at]. */
enum call_found call_head_find(struct answer *a, size_t at, struct call_head *head);

/* ---- calls.c ---- */

void calls_begin(struct answer *a, const char *name);
void calls_end(struct answer *a);

/* ---- parameters.c: false: more has to come ---- */

bool parameters_keys(struct answer *a);
bool parameters_value(struct answer *a);
bool parameters_bare(struct answer *a);

/* ---- json_copy.c ---- */

/* Copies to `out` up to the end of the value; returns the bytes that were used. */
size_t json_copy_add(struct json_copy *copy, struct cli_text *out, const char *data, size_t length);
/* The end of the value at text[from], or SIZE_MAX: not there yet. */
size_t json_skip_value(struct json_skip *skip, const struct cli_text *text, size_t from);
/* data as it stands inside a JSON string. */
void json_add_escaped(struct cli_text *out, const char *data, size_t length);

/* ---- value_type.c ---- */

/* The types that the tool's schema gives a parameter; 0: none. */
unsigned value_types(const json_t *tools, const char *tool, const char *key);
/* A parameter's text as JSON. */
void value_add(struct cli_text *out, unsigned types, const char *text, size_t length);
bool value_is_literal(const char *text, size_t length);
