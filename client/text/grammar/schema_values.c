/* Literals and any JSON. See schema.h. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/gbnf.h"
#include "client/text/grammar/json_text.h"
#include "client/text/grammar/schema.h"
#include "common/base/json.h"

#define LITERAL_MAX 65536

/* ---- any JSON ---- */

/* Ten levels of two blanks after a line end; an integer fits 64 bits; SCHEMA_PLACES_MAX digits after a
 * point. */
_Static_assert(SCHEMA_PLACES_MAX == 16, "as many as the rule of numbers below has");
static const char json_grammar[] =
    "space   ::= [ ]? | [\n] [ \t]{0,20}\n"
    "string  ::= [\"] ([^\"\\\\\\x00-\\x1f] | [\\\\] [\"\\\\bfnrt])* [\"]\n"
    "number  ::= [-]? (\"0\" | [1-9] [0-9]{0,15}) ([.] [0-9]{1,16})? ([eE] [+-]? [0-9]{1,2})?\n"
    "integer ::= [-]? (\"0\" | [1-9] [0-9]{0,17})\n"
    "value   ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "member  ::= string [:] space value\n"
    "object  ::= [{] space (member ([,] space member)* space)? [}]\n"
    "array   ::= \"[\" space (value ([,] space value)* space)? \"]\"\n";

uint32_t json_any(struct exprs *x, enum json_rule which)
{
    static const char *const names[] = {"space", "string", "number", "integer", "value", "object", "array"};
    if (!x->has_json_rules)
        gbnf_rules(x, json_grammar, sizeof json_grammar - 1, names, x->json_rule,
                   sizeof names / sizeof *names);
    x->has_json_rules = true;
    return expr_rule(x, x->json_rule[which]);
}

uint32_t json_form(struct exprs *x, const char *form, ...)
{
    const uint32_t seq = expr_seq(x);
    va_list ap;
    va_start(ap, form);
    for (; *form; form++)
        expr_add(x, seq,
                 *form == '$'   ? va_arg(ap, uint32_t)
                 : *form == ' ' ? json_any(x, ANY_SPACE)
                                : expr_char(x, (unsigned char)*form));
    va_end(ap);
    return seq;
}

/* ---- literals ---- */

uint32_t schema_literal(struct schema *s, const json_t *value)
{
    struct exprs *x = s->x;
    if (json_is_string(value))
        return json_form(x, "\"$\"", json_text_of(x, json_string_value(value), json_string_length(value)));
    char *dumped = json_dump_numbers(value, JSON_COMPACT | JSON_ENCODE_ANY, x->numbers);
    if (!dumped || strlen(dumped) > LITERAL_MAX) {
        schema_refuse(s, HELM_E_LIMIT, "a constant has more than %d bytes", LITERAL_MAX);
        free(dumped);
        return 0;
    }
    const uint32_t e = expr_string(x, dumped);
    free(dumped);
    return e;
}
