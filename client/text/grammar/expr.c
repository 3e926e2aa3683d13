/* Expressions by number. See expr.h. */
#include "client/text/grammar/expr.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/printable.h"

void exprs_free(struct exprs *x)
{
    free(x->nodes);
    free(x->ranges);
    free(x->rules);
    *x = (struct exprs){0};
}

void exprs_fail(struct exprs *x, int code, const char *fmt, ...)
{
    if (x->failed) return;
    char text[HELM_ERR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    x->failed = helm_fail(&x->err, code, "%s%s%s%s", x->place ? "schema, at #" : "", x->place ? x->place : "",
                          x->place ? ": " : "", text);
}

void exprs_charge(struct exprs *x, size_t steps)
{
    if (x->failed) return;
    if (x->stop && atomic_load_explicit(x->stop, memory_order_relaxed))
        exprs_fail(x, HELM_E_CANCELLED, "the grammar is not wanted any more");
    else if (steps > EXPR_WORK_MAX - x->work)
        exprs_fail(x, HELM_E_LIMIT, "the grammar takes more than %u steps to read", EXPR_WORK_MAX);
    else
        x->work += (uint32_t)steps;
}

/* Room for `more` entries after `count`. */
static bool reserve(struct exprs *x, void **list, uint32_t *space, size_t wanted, size_t entry, uint32_t max,
                    const char *what)
{
    if (x->failed) return false;
    if (wanted > max) {
        exprs_fail(x, HELM_E_LIMIT, "the grammar needs more than %u %s", max, what);
        return false;
    }
    if (wanted <= *space) return true;
    size_t grown = *space ? 2 * (size_t)*space : 64;
    if (grown < wanted) grown = wanted;
    void *memory = realloc(*list, grown * entry);
    if (!memory) {
        exprs_fail(x, HELM_E_NOMEM, "no memory for a grammar of %zu %s", grown, what);
        return false;
    }
    *list = memory;
    *space = (uint32_t)grown;
    return true;
}

static uint32_t new_node(struct exprs *x, struct expr node)
{
    if (!reserve(x, (void **)&x->nodes, &x->node_space, (size_t)x->node_count + 1, sizeof *x->nodes,
                 EXPR_NODES_MAX, "expressions"))
        return 0;
    node.child = node.last = node.next = EXPR_NONE;
    x->nodes[x->node_count] = node;
    return x->node_count++;
}

uint32_t expr_set(struct exprs *x, const struct expr_range *ranges, uint32_t count)
{
    if (!reserve(x, (void **)&x->ranges, &x->range_space, (size_t)x->range_count + count, sizeof *x->ranges,
                 EXPR_NODES_MAX, "character ranges"))
        return 0;
    const uint32_t first = x->range_count;
    if (count) memcpy(x->ranges + first, ranges, count * sizeof *ranges);
    const uint32_t kept = count ? ranges_normalize(x->ranges + first, count) : 0;
    x->range_count += kept;
    return new_node(x, (struct expr){.kind = EXPR_SET, .first = first, .count = kept});
}

uint32_t expr_char(struct exprs *x, uint32_t c)
{
    return expr_set(x, &(struct expr_range){c, c}, 1);
}

bool expr_next_char(const char *text, size_t length, size_t *at, uint32_t *c)
{
    enum utf8_state state;
    if (*at >= length) return false;
    const size_t step = utf8_step(text + *at, length - *at, &state);
    if (state != UTF8_VALID) return false;
    utf8_get(text + *at, c);
    *at += step;
    return true;
}

uint32_t expr_text(struct exprs *x, const char *text, size_t length)
{
    const uint32_t seq = expr_seq(x);
    for (size_t at = 0; at < length && !x->failed;) {
        uint32_t c;
        if (expr_next_char(text, length, &at, &c))
            expr_add(x, seq, expr_char(x, c));
        else
            exprs_fail(x, HELM_E_FORMAT, "a text of the grammar is not UTF-8");
    }
    return seq;
}

uint32_t expr_string(struct exprs *x, const char *text)
{
    return expr_text(x, text, strlen(text));
}

uint32_t expr_seq(struct exprs *x)
{
    return new_node(x, (struct expr){.kind = EXPR_SEQ});
}
uint32_t expr_alt(struct exprs *x)
{
    return new_node(x, (struct expr){.kind = EXPR_ALT});
}

uint32_t expr_seq_of(struct exprs *x, const uint32_t *parts, size_t count)
{
    const uint32_t seq = expr_seq(x);
    for (size_t i = 0; i < count; i++) expr_add(x, seq, parts[i]);
    return seq;
}

uint32_t expr_add(struct exprs *x, uint32_t parent, uint32_t child)
{
    if (x->failed) return parent;
    struct expr *p = &x->nodes[parent];
    if (p->child == EXPR_NONE)
        p->child = child;
    else
        x->nodes[p->last].next = child;
    p->last = child;
    return parent;
}

uint32_t expr_repeat(struct exprs *x, uint32_t child, uint32_t min, uint32_t max)
{
    if (min > EXPR_REPEAT_MAX || (max != EXPR_UNBOUNDED && max > EXPR_REPEAT_MAX))
        exprs_fail(x, HELM_E_LIMIT, "a repetition of %u times is more than %u",
                   min > EXPR_REPEAT_MAX ? min : max, EXPR_REPEAT_MAX);
    const uint32_t node = new_node(x, (struct expr){.kind = EXPR_REPEAT, .min = min, .max = max});
    return expr_add(x, node, child);
}

uint32_t expr_token(struct exprs *x, uint32_t id)
{
    return new_node(x, (struct expr){.kind = EXPR_TOKEN, .first = id});
}
uint32_t expr_rule(struct exprs *x, uint32_t rule)
{
    return new_node(x, (struct expr){.kind = EXPR_RULE, .first = rule});
}

uint32_t expr_byte(struct exprs *x, uint32_t low, uint32_t high)
{
    return new_node(x, (struct expr){.kind = EXPR_BYTE, .min = low, .max = high});
}

uint32_t exprs_new_rule(struct exprs *x)
{
    if (!reserve(x, (void **)&x->rules, &x->rule_space, (size_t)x->rule_count + 1, sizeof *x->rules,
                 EXPR_RULES_MAX, "rules"))
        return 0;
    x->rules[x->rule_count] = EXPR_NONE;
    return x->rule_count++;
}

void exprs_define(struct exprs *x, uint32_t rule, uint32_t expr)
{
    if (!x->failed) x->rules[rule] = expr;
}

/* ---- sets ---- */

static int by_low(const void *a, const void *b)
{
    const uint32_t x = ((const struct expr_range *)a)->low, y = ((const struct expr_range *)b)->low;
    return x < y ? -1 : x > y;
}

uint32_t ranges_normalize(struct expr_range *ranges, uint32_t count)
{
    uint32_t kept = 0;
    if (count > 1) qsort(ranges, count, sizeof *ranges, by_low);
    for (uint32_t i = 0; i < count; i++) {
        if (ranges[i].low > ranges[i].high) continue;
        if (kept && ranges[i].low <= ranges[kept - 1].high + 1) {
            if (ranges[i].high > ranges[kept - 1].high) ranges[kept - 1].high = ranges[i].high;
        } else {
            ranges[kept++] = ranges[i];
        }
    }
    return kept;
}

uint32_t ranges_invert(const struct expr_range *ranges, uint32_t count, struct expr_range *out)
{
    uint32_t n = 0, from = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (ranges[i].low > from) out[n++] = (struct expr_range){from, ranges[i].low - 1};
        from = ranges[i].high + 1;
    }
    if (from <= EXPR_CHAR_MAX) out[n++] = (struct expr_range){from, EXPR_CHAR_MAX};
    return n;
}

/* ---- texts around a marker: the automaton of Knuth, Morris and Pratt (1977), a rule for each of its states
 * ---- */

/* How much of `marker` is matched when `c` follows its first `state` characters. */
static size_t advance(const char *marker, size_t state, char c)
{
    for (size_t n = state + 1; n > 0; n--)
        if (marker[n - 1] == c && memcmp(marker, marker + state + 1 - n, n - 1) == 0) return n;
    return 0;
}

/* without: the text may end in every state, and the whole marker never comes. */
static uint32_t make_marker(struct exprs *x, const char *marker, bool without)
{
    const size_t length = strlen(marker);
    uint32_t first = x->rule_count;
    for (size_t s = 0; s < length; s++) exprs_new_rule(x);
    for (size_t s = 0; s < length && !x->failed; s++) {
        struct expr_range seen[64], others[66];
        uint32_t seen_count = 0;
        const uint32_t alt = expr_alt(x);
        for (size_t i = 0; i < length; i++) {
            const unsigned char c = (unsigned char)marker[i];
            if (memchr(marker, c, i)) continue;
            seen[seen_count++] = (struct expr_range){c, c};
            const size_t to = advance(marker, s, marker[i]);
            if (to == length && without) continue;
            const uint32_t seq = expr_add(x, expr_seq(x), expr_char(x, c));
            if (to < length) expr_add(x, seq, expr_rule(x, first + (uint32_t)to));
            expr_add(x, alt, seq);
        }
        seen_count = ranges_normalize(seen, seen_count);
        const uint32_t other_count = ranges_invert(seen, seen_count, others);
        expr_add(x, alt, EXPR_SEQ(x, expr_set(x, others, other_count), expr_rule(x, first)));
        if (without) expr_add(x, alt, expr_seq(x));
        exprs_define(x, first + (uint32_t)s, alt);
    }
    return expr_rule(x, first);
}

uint32_t expr_until(struct exprs *x, const char *marker)
{
    return make_marker(x, marker, false);
}

uint32_t expr_without(struct exprs *x, const char *marker)
{
    return make_marker(x, marker, true);
}
