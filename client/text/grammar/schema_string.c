/* Strings of a schema: lengths, patterns, formats, and several of these at once. See schema.h.
 *
 * Several are put together as an automaton: each of its states is a pair of the pattern's and the format's
 * and the number of characters so far. It becomes a rule a state, over the bytes of the JSON text. A pattern
 * that regex.c does not take (look-around) is left out where a known format says as much. */
#include <stdlib.h>
#include <string.h>

#include "client/text/grammar/json_text.h"
#include "client/text/grammar/regex.h"
#include "client/text/grammar/schema.h"
#include "client/text/grammar/states.h"

#define PRODUCT_MAX   16384 /* states */
#define PRODUCT_STEPS 64    /* charged for one */
#define SIDES         2

/* The state after some bytes. inside: bytes of an escape that are left, or INSIDE_ESCAPE after a
 * backslash. */
struct point {
    uint32_t set[SIDES], chars, inside;
};
#define INSIDE_ESCAPE 9u

struct side {
    struct nfa nfa;
    struct states states;
    bool open;
};

struct product {
    struct schema *s;
    struct side side[SIDES]; /* those that are not open say nothing */
    uint32_t min, max;
    struct point *point;
    uint32_t *rule, count;
    uint32_t *table; /* [2 * PRODUCT_MAX] of numbers plus one, by hash */
    struct helm_err err;
};

static int side_open(struct side *side, const char *pattern, size_t length, uint32_t *begin,
                     struct helm_err *err)
{
    struct exprs x = {0};
    const uint32_t root = regex_parse(&x, pattern, length, REGEX_JSON_SEARCH);
    int rc = x.failed ? helm_fail(err, x.failed, "%s", x.err.text) : 0;
    if (!rc) rc = nfa_compile(&x, root, 0, &side->nfa, err);
    exprs_free(&x);
    if (rc) return rc;
    side->open = true;
    rc = states_open(&side->nfa, &side->states, err);
    return rc ? rc : states_of(&side->states, &side->nfa.begin[side->nfa.root], 1, begin, err);
}

static void side_close(struct side *side)
{
    if (!side->open) return;
    states_close(&side->states);
    nfa_free(&side->nfa);
}

/* The number of a point; PRODUCT_MAX: there is no room for it. */
static uint32_t number_of(struct product *p, const struct point *point)
{
    uint64_t h = 0;
    const uint32_t word[] = {point->set[0], point->set[1], point->chars, point->inside};
    for (int i = 0; i < 4; i++) h = (h ^ word[i]) * 0x9e3779b97f4a7c15u;
    uint32_t at = (uint32_t)(h >> 32) & (2 * PRODUCT_MAX - 1);
    for (; p->table[at]; at = (at + 1) & (2 * PRODUCT_MAX - 1))
        if (memcmp(&p->point[p->table[at] - 1], point, sizeof *point) == 0) return p->table[at] - 1;
    if (p->count == PRODUCT_MAX) return PRODUCT_MAX;
    p->point[p->count] = *point;
    p->rule[p->count] = exprs_new_rule(p->s->x);
    p->table[at] = p->count + 1;
    return p->count++;
}

/* The point after a byte. false: it is not read there. */
static bool step(struct product *p, const struct point *from, uint8_t byte, struct point *to)
{
    *to = *from;
    for (int i = 0; i < SIDES; i++) {
        if (!p->side[i].open) continue;
        if (states_step(&p->side[i].states, from->set[i], byte, &to->set[i], &p->err)) {
            schema_refuse(p->s, p->err.code, "%s", p->err.text);
            return false;
        }
        if (to->set[i] == STATES_NONE) return false;
    }
    if (from->inside == INSIDE_ESCAPE) {
        to->inside = byte == 'u' ? 4 : 0;
    } else if (from->inside) {
        to->inside--;
    } else if (byte < 0x80 || byte >= 0xc0) {
        const uint32_t most = p->max == EXPR_UNBOUNDED ? p->min : p->max;
        if (p->max != EXPR_UNBOUNDED && from->chars == p->max) return false;
        if (from->chars < most) to->chars++;
        if (byte == '\\') to->inside = INSIDE_ESCAPE;
    }
    return true;
}

static bool may_end(const struct product *p, const struct point *at)
{
    bool ends = at->chars >= p->min && !at->inside;
    for (int i = 0; i < SIDES; i++)
        ends = ends && (!p->side[i].open || p->side[i].states.item[at->set[i]].ends);
    return ends;
}

static void define(struct product *p, uint32_t number)
{
    struct exprs *x = p->s->x;
    const struct point at = p->point[number];
    const uint32_t alt = expr_alt(x);
    if (may_end(p, &at)) expr_add(x, alt, expr_seq(x));
    exprs_charge(x, PRODUCT_STEPS);
    for (uint32_t byte = 0, first = 0; byte < 256 && !x->failed; byte = first) {
        struct point to, next;
        const bool reads = step(p, &at, (uint8_t)byte, &to);
        for (first = byte + 1; first < 256; first++) {
            const bool also = step(p, &at, (uint8_t)first, &next);
            if (also != reads || (reads && memcmp(&to, &next, sizeof to) != 0)) break;
        }
        if (!reads) continue;
        const uint32_t target = number_of(p, &to);
        if (target == PRODUCT_MAX) {
            schema_refuse(p->s, HELM_E_LIMIT,
                          "'pattern', 'format' and lengths of one string need more than %d states",
                          PRODUCT_MAX);
            return;
        }
        expr_add(x, alt, EXPR_SEQ(x, expr_byte(x, byte, first - 1), expr_rule(x, p->rule[target])));
    }
    exprs_define(x, p->rule[number], alt);
}

struct text {
    const char *data; /* NULL: none */
    size_t length;
};

static uint32_t together(struct schema *s, const struct text *pattern, uint32_t min, uint32_t max)
{
    struct product p = {.s = s, .min = min, .max = max};
    struct point begin;
    memset(&begin, 0, sizeof begin);
    p.point = malloc(PRODUCT_MAX * sizeof *p.point);
    p.rule = malloc(PRODUCT_MAX * sizeof *p.rule);
    p.table = calloc(2 * PRODUCT_MAX, sizeof *p.table);
    if (!p.point || !p.rule || !p.table) exprs_fail(s->x, HELM_E_NOMEM, "no memory for a schema");
    for (int i = 0; i < SIDES && !s->x->failed; i++)
        if (pattern[i].data &&
            side_open(&p.side[i], pattern[i].data, pattern[i].length, &begin.set[i], &p.err))
            schema_refuse(s, p.err.code, "%s", p.err.text);
    if (!s->x->failed) number_of(&p, &begin);
    for (uint32_t i = 0; i < p.count && !s->x->failed; i++) define(&p, i);
    const uint32_t out = s->x->failed ? 0 : expr_rule(s->x, p.rule[0]);
    for (int i = 0; i < SIDES; i++) side_close(&p.side[i]);
    free(p.point);
    free(p.rule);
    free(p.table);
    return out;
}

/* Whether regex.c takes a pattern. Otherwise a known format stands for it, or the schema is refused. */
static bool takes_pattern(struct schema *s, const struct text *pattern, bool has_format)
{
    struct exprs x = {0};
    regex_parse(&x, pattern->data, pattern->length, REGEX_JSON_SEARCH);
    const bool good = !x.failed;
    if (x.failed && !(has_format && x.failed == HELM_E_UNSUPPORTED))
        schema_refuse(s, x.failed, "%s", x.err.text);
    exprs_free(&x);
    return good;
}

uint32_t schema_string(struct schema *s, const json_t *node)
{
    struct exprs *x = s->x;
    const json_t *pattern = json_object_get(node, "pattern"), *format = json_object_get(node, "format");
    const uint32_t min = schema_count(s, node, "minLength", 0),
                   max = schema_count(s, node, "maxLength", EXPR_UNBOUNDED);
    const bool bounded = min > 0 || max != EXPR_UNBOUNDED;
    struct text part[SIDES] = {{.data = json_string_value(pattern), .length = json_string_length(pattern)}};
    if (pattern && !part[0].data) schema_refuse(s, HELM_E_FORMAT, "'pattern' is not a text");
    if (format && !json_is_string(format)) schema_refuse(s, HELM_E_FORMAT, "'format' is not a text");
    if (max < min) schema_refuse(s, HELM_E_FORMAT, "'maxLength' is less than 'minLength'");
    if (x->failed) return 0;
    part[1].data = format ? schema_format_pattern(json_string_value(format)) : NULL;
    part[1].length = part[1].data ? strlen(part[1].data) : 0;
    if (part[0].data && !takes_pattern(s, &part[0], part[1].data != NULL)) part[0].data = NULL;
    const uint32_t patterns = (part[0].data != NULL) + (part[1].data != NULL);
    const struct text *one = part[0].data ? &part[0] : &part[1];
    uint32_t inner;
    if (patterns + bounded > 1)
        inner = together(s, part, min, max);
    else if (patterns)
        inner = regex_parse(x, one->data, one->length, REGEX_JSON_SEARCH);
    else if (bounded)
        inner = expr_repeat(x, json_text_any(x), min, max);
    else
        return json_any(x, ANY_STRING);
    return json_form(x, "\"$\"", inner);
}
