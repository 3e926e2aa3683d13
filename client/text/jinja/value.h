/* Values of a template, with Python's meaning: truth, equality, order, membership, text, JSON.
 *
 * Called by the parser (constants) and everything that renders. Values are passed by copy; what they point to
 * lives in an arena or in the caller's variables, and does not change, except a namespace's attributes and
 * the position of a generator. */
#pragma once

#include <jansson.h>
#include <string.h>

#include "client/text/jinja/run.h"

enum jinja_type {
    JINJA_UNDEFINED, /* as.text: what is said when it is used, "'x' is undefined" */
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_WIDE, /* a whole number of JSON beyond 64 bits: as.written has its digits, as.number is about as
                   large */
    JINJA_TEXT,
    JINJA_LIST,
    JINJA_DICT,
    JINJA_NAMESPACE, /* as.dict */
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_METHOD,   /* a method of a value, not yet called */
    JINJA_FUNCTION, /* range, dict, ... */
    JINJA_ABSENT,   /* a parameter that was not given; templates never see it */
};

enum jinja_list_kind {
    JINJA_LIST_PLAIN,
    JINJA_LIST_TUPLE,
    JINJA_LIST_RANGE,
    JINJA_LIST_KEYS,
    JINJA_LIST_VALUES,
    JINJA_LIST_ITEMS,
    JINJA_LIST_GENERATOR, /* runs once, has no length: what map, select and reverse give */
};

struct jinja_list;
struct jinja_dict;
struct jinja_loop;
struct jinja_macro;
struct jinja_bound;
struct jinja_function;

struct jinja_value {
    enum jinja_type type;
    bool markup; /* a text that escape or safe has seen */
    union {
        bool boolean;
        int64_t integer;
        struct {
            double number;
            const char *written; /* as JSON had it; NULL: as Python writes it */
        };
        struct {
            const char *data; /* not NUL-terminated */
            uint32_t bytes, chars;
        } text;
        struct jinja_list *list;
        struct jinja_dict *dict;
        struct jinja_loop *loop;
        struct jinja_macro *macro;
        const struct jinja_bound *method;
        const struct jinja_function *function;
    } as;
};

struct jinja_list {
    enum jinja_list_kind kind;
    struct jinja_value *item;
    size_t count, space;
    size_t position;  /* generator: items already taken */
    int64_t range[3]; /* range: start, stop, step */
};

struct jinja_dict {
    struct jinja_value *key, *value; /* in the order they came */
    size_t count, space;
};

/* ---- making */

static inline struct jinja_value jinja_none(void)
{
    return (struct jinja_value){.type = JINJA_NONE};
}
static inline struct jinja_value jinja_bool(bool b)
{
    return (struct jinja_value){.type = JINJA_BOOL, .as.boolean = b};
}
static inline struct jinja_value jinja_int(int64_t i)
{
    return (struct jinja_value){.type = JINJA_INT, .as.integer = i};
}
static inline struct jinja_value jinja_float(double d)
{
    return (struct jinja_value){.type = JINJA_FLOAT, .as.number = d};
}
static inline struct jinja_value jinja_list_value(struct jinja_list *list)
{
    return (struct jinja_value){.type = JINJA_LIST, .as.list = list};
}
static inline struct jinja_value jinja_dict_value(struct jinja_dict *dict)
{
    return (struct jinja_value){.type = JINJA_DICT, .as.dict = dict};
}
/* `data` is borrowed: it must live as long as the run. */
struct jinja_value jinja_text(const char *data, size_t bytes);
/* A copy, made from printf's words. */
struct jinja_value jinja_undefined(struct jinja_run *run, const char *fmt, ...) HELM_PRINTF(2, 3);

struct jinja_list *jinja_list_new(struct jinja_run *run, enum jinja_list_kind kind, size_t space);
void jinja_list_add(struct jinja_run *run, struct jinja_list *list, struct jinja_value item);
struct jinja_dict *jinja_dict_new(struct jinja_run *run, size_t space);
/* Adds a key that is not there yet. Counts no step. */
void jinja_dict_append(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                       struct jinja_value value);
/* Replaces or adds. A key that Python cannot hash is an error. */
void jinja_dict_set(struct jinja_run *run, struct jinja_dict *dict, struct jinja_value key,
                    struct jinja_value value);
/* NULL: there is none. */
const struct jinja_value *jinja_dict_find(struct jinja_run *run, const struct jinja_dict *dict,
                                          struct jinja_value key);
/* A copy that counts as the template's own words. */
struct jinja_value jinja_own_text(struct jinja_run *run, const char *data, size_t bytes);
struct jinja_value jinja_from_json(struct jinja_run *run, const json_t *json);

/* ---- asking */

/* A text for "%.*s": at most 100 bytes of it. */
#define JINJA_SHOWN(value)                                                                                   \
    (int)((value)->as.text.bytes < 100 ? (value)->as.text.bytes : 100), (value)->as.text.data
bool jinja_text_is(const struct jinja_value *value, const char *text);
bool jinja_same_text(const struct jinja_value *a, const struct jinja_value *b); /* of two texts */
/* "str", "NoneType", ...: for messages. */
const char *jinja_type_name(const struct jinja_value *value);
bool jinja_truth(const struct jinja_value *value);
static inline bool
jinja_list_holds(const struct jinja_list *list) /* items of its own: no view, no generator */
{
    return list->kind == JINJA_LIST_PLAIN || list->kind == JINJA_LIST_TUPLE;
}
static inline bool jinja_is_sequence_kind(const struct jinja_value *v) /* has a length and subscripts */
{
    return v->type == JINJA_LIST && (jinja_list_holds(v->as.list) || v->as.list->kind == JINJA_LIST_RANGE);
}
static inline bool jinja_is_number(const struct jinja_value *v)
{
    return v->type >= JINJA_BOOL && v->type <= JINJA_WIDE;
}
static inline bool jinja_is_whole(const struct jinja_value *v) /* int or bool */
{
    return v->type == JINJA_BOOL || v->type == JINJA_INT;
}
/* Says that Python could compute it. */
_Noreturn void jinja_fail_wide(struct jinja_run *run);
int64_t jinja_whole(const struct jinja_value *v); /* of one that jinja_is_whole */
double jinja_number(const struct jinja_value *v); /* of one that jinja_is_number */

bool jinja_equal(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *b);
/* < 0, 0, > 0, or 2 where a NaN makes every comparison false. Types without an order are an error. */
int jinja_order(struct jinja_run *run, const struct jinja_value *a, const struct jinja_value *b,
                const char *op);
bool jinja_contains(struct jinja_run *run, const struct jinja_value *item,
                    const struct jinja_value *container);
size_t jinja_length(struct jinja_run *run, const struct jinja_value *value);

/* Items of anything a loop runs over: lists, keys of a dict, characters of a text; nothing of undefined. */
struct jinja_iterator {
    struct jinja_value source;
    size_t at;
};
struct jinja_iterator jinja_iterate(struct jinja_run *run, struct jinja_value source);
/* Whether there is a next one. */
bool jinja_next(struct jinja_run *run, struct jinja_iterator *iterator, struct jinja_value *item);
/* All items in a fresh list. */
struct jinja_list *jinja_collect(struct jinja_run *run, struct jinja_value source, enum jinja_list_kind kind);

/* ---- text: jinja/text.c */

/* As str() and as repr() print it. */
void jinja_print(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *value);
void jinja_repr(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *value);
/* The value itself if it is a text, else a fresh text of what jinja_print says. */
struct jinja_value jinja_to_text(struct jinja_run *run, struct jinja_value value);
static inline struct jinja_value jinja_buffer_text(const struct jinja_buffer *buffer)
{
    return jinja_text(buffer->data ? buffer->data : "", buffer->length);
}
/* As float.__repr__ prints it. */
void jinja_float_text(double number, char text[40]);

struct jinja_json_style {
    bool ascii, sort_keys;
    struct jinja_value indent;                        /* none, a number of spaces, or a text */
    struct jinja_value item_separator, key_separator; /* texts */
};
void jinja_json(struct jinja_run *run, struct jinja_buffer *buffer, const struct jinja_value *value,
                const struct jinja_json_style *style, int level);

/* ---- operators: jinja/ops.c */

/* As templates spell it. `text` holds those of one character. */
const char *jinja_op_text(char op, char text[2]);
/* Fails with what an undefined value says. */
_Noreturn void jinja_fail_undefined(struct jinja_run *run, const struct jinja_value *undefined);

struct jinja_value jinja_binary(struct jinja_run *run, char op, const struct jinja_value *a,
                                const struct jinja_value *b);
bool jinja_compare(struct jinja_run *run, char op, const struct jinja_value *a, const struct jinja_value *b);
struct jinja_value jinja_negate(struct jinja_run *run, const struct jinja_value *a, bool minus);
/* a.name; a method is looked for before a dict's key, as in Python's templates. */
struct jinja_value jinja_getattr(struct jinja_run *run, const struct jinja_value *a,
                                 const struct jinja_value *name);
struct jinja_value jinja_getitem(struct jinja_run *run, const struct jinja_value *a,
                                 const struct jinja_value *index);
/* a[b:c:d]; none for what is not given. */
struct jinja_value jinja_slice(struct jinja_run *run, const struct jinja_value *a,
                               const struct jinja_value bounds[3]);
/* "text" % arguments */
struct jinja_value jinja_format(struct jinja_run *run, const struct jinja_value *format,
                                const struct jinja_value *arguments);
/* Bytes before character `index` of a text. */
size_t jinja_text_offset(const struct jinja_value *text, size_t index);
