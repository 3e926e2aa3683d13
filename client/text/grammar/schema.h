/* JSON schemas as expressions. Called by grammar.c and the gateway.
 *
 *   schema.c           a schema's node: references, alternatives, types, enumerations
 *   schema_keywords.c  which keywords there are, and which say nothing
 *   schema_merge.c     several schemas of one value as one
 *   schema_object.c    objects and arrays
 *   schema_string.c    strings
 *   schema_number.c    numbers: bounds and multiples
 *   schema_values.c    literals, any JSON
 *   schema_format.c    what `format` names
 *
 * docs/grammars.md lists the keywords. Every other one is refused with its place, except for those that say
 * nothing about a value (title, description, ...; names that begin with "x-") and those whose value excludes
 * nothing. The texts that fit are some of those that JSON allows: members in the schema's order, little white
 * space, numbers of bounded length, no members that the schema does not name unless it says
 * additionalProperties. */
#pragma once

#include <jansson.h>

#include "client/text/grammar/expr.h"
#include "common/base/decimal.h"

/* From JSON text, and from a value. The expressions are the caller's, also after a failure. */
HELM_MUST_CHECK int schema_parse(struct exprs *exprs, const char *text, size_t length, uint32_t *root,
                                 struct helm_err *err);
HELM_MUST_CHECK int schema_compile(struct exprs *exprs, const json_t *schema, uint32_t *root,
                                   struct helm_err *err);

/* The value that a reference (#/$defs/NAME, by RFC 6901) names in its document; NULL: none. */
const json_t *schema_follow(const json_t *document, const char *pointer);

/* Any JSON. */
enum json_rule { ANY_SPACE, ANY_STRING, ANY_NUMBER, ANY_INTEGER, ANY_VALUE, ANY_OBJECT, ANY_ARRAY };
uint32_t json_any(struct exprs *exprs, enum json_rule which);
/* A part of JSON as it is written: a blank is white space that may be there, '$' the next expression (an
 * uint32_t), every other character (of ASCII) itself. */
uint32_t json_form(struct exprs *exprs, const char *form, ...);

/* ---- for the files of schemas ---- */

#define SCHEMA_PATH_MAX   256
#define SCHEMA_DEPTH_MAX  64
#define SCHEMA_COUNT_MAX  16384 /* longest text and list that is written where a schema allows longer ones */
#define SCHEMA_PLACES_MAX 16    /* digits after the point of a number that is written */
#define SCHEMA_NODES_MAX  20000 /* visited; references and merges can make many of few */

enum schema_type {
    SCHEMA_NULL = 1,
    SCHEMA_BOOLEAN = 2,
    SCHEMA_INTEGER = 4,
    SCHEMA_NUMBER = 8, /* and integers, too */
    SCHEMA_STRING = 16,
    SCHEMA_ARRAY = 32,
    SCHEMA_OBJECT = 64,
    SCHEMA_ALL = 127
};

struct schema {
    struct exprs *x;
    const json_t *document;
    json_t *rules; /* by address, of nodes that were visited; they may refer to each other */
    json_t *made;  /* list of merged schemas, which the rules are known by */
    uint32_t depth, visited;
    char path[SCHEMA_PATH_MAX];
};

/* How two values of a keyword are merged, where one value has both schemas. */
enum merge_kind {
    MERGE_EQUAL, /* they must be the same */
    MERGE_NOTHING,
    MERGE_LARGER,
    MERGE_SMALLER,
    MERGE_BOTH,
    MERGE_MEMBERS,
    MERGE_UNION,
    MERGE_ENUM,
    MERGE_TYPE
};
struct schema_keyword {
    const char *name;
    uint32_t types;        /* that are meant where `type` is not there; 0: it says nothing about them */
    enum merge_kind merge; /* MERGE_NOTHING: an annotation */
    unsigned neutral;      /* values that exclude nothing */
    bool refused;          /* with other values */
};
/* Its row; that of a refused one where the name is unknown. */
const struct schema_keyword *schema_keyword(const char *name);
/* Types that the keywords of one type mean without `type`: the texts that fit are some of those that would be
 * allowed. */
uint32_t schema_inferred_types(const json_t *node);
/* A fresh value that lives as long as the schema is read; takes it. NULL: refused. */
json_t *schema_keep(struct schema *s, json_t *value);
#define SCHEMA_TYPES 7
extern const char *const schema_type_names[SCHEMA_TYPES];

/* Notes a failure with the path. */
void schema_refuse(struct schema *s, int code, const char *fmt, ...) HELM_PRINTF(3, 4);
/* Whether a member of a schema says nothing about a value: an annotation, or a keyword whose value excludes
 * nothing. */
bool schema_says_nothing(const json_t *node, const char *name, const json_t *value);
/* Refuses keywords that are not supported. */
void schema_check_keywords(struct schema *s, const json_t *node);
/* exprs_charge, with the path in its error. false: failed, now or before. */
bool schema_charge(struct schema *s, size_t steps);
/* A number of the schema, exactly; its digits are charged. *out must not be copied. */
void schema_decimal(struct schema *s, const json_t *number, struct decimal *out);
/* Whether two values are the same one: numbers by what they mean. */
bool schema_same_value(struct schema *s, const json_t *a, const json_t *b);
/* Values in a value, for charging. */
size_t schema_weight(const json_t *value);
/* A value of this schema, seen from its parent by `name`. */
uint32_t schema_node(struct schema *s, const json_t *node, const char *name);
/* The node that a node's $ref leads to (itself without one); NULL: refused. */
const json_t *schema_resolve(struct schema *s, const json_t *node);
/* The types that a node's `type`, const or enum allow. */
uint32_t schema_types(struct schema *s, const json_t *node);
/* A whole, non-negative number of a keyword; `absent` where it is not there. */
uint32_t schema_count(struct schema *s, const json_t *node, const char *key, uint32_t absent);

/* One schema that says what both say; owned by s->made. NULL: refused. */
const json_t *schema_merge(struct schema *s, const json_t *a, const json_t *b);
/* Whether no value fits both, as far as can be told. */
bool schema_are_disjoint(struct schema *s, const json_t *a, const json_t *b);

uint32_t schema_object(struct schema *s, const json_t *node);
uint32_t schema_array(struct schema *s, const json_t *node);
uint32_t schema_string(struct schema *s, const json_t *node);
uint32_t schema_number(struct schema *s, const json_t *node, bool integer);
/* The text of one JSON value. */
uint32_t schema_literal(struct schema *s, const json_t *value);
/* NULL: unknown. */
const char *schema_format_pattern(const char *name);
