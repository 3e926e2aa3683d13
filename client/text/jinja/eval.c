/* Expressions, calls and lookups. See jinja/eval.h. Called by jinja/exec.c. */
#include "client/text/jinja/eval.h"

#include <stdio.h>

#include "client/text/jinja/jinja.h"

/* ---- scopes */

int jinja_scope_new(struct jinja_run *run, struct jinja_scope *outer, struct jinja_scope **out)
{
    struct jinja_scope *scope = jinja_alloc(run, sizeof *scope);
    if (!scope) return run->code;
    scope->outer = outer;
    *out = scope;
    return 0;
}

static struct jinja_value *scope_find(const struct jinja_scope *scope, const struct jinja_value *name)
{
    for (size_t i = 0; i < scope->names.count; i++)
        if (scope->names.key[i].as.text.bytes == name->as.text.bytes &&
            memcmp(scope->names.key[i].as.text.data, name->as.text.data, name->as.text.bytes) == 0)
            return &scope->names.value[i];
    return NULL;
}

int jinja_scope_set(struct jinja_run *run, struct jinja_scope *scope, struct jinja_value name,
                    struct jinja_value value)
{
    struct jinja_value *old = scope_find(scope, &name);
    int rc = old ? 0 : jinja_dict_append(run, &scope->names, name, value);
    if (old) *old = value;
    return rc ? rc : jinja_step(run, scope->names.count / 16 + name.as.text.bytes / 64);
}

static int lookup(struct jinja_run *run, const struct jinja_scope *scope, const struct jinja_value *name,
                  struct jinja_value *out)
{
    static const char *const known[] = {"cycler", "joiner", "lipsum", "self"};
    for (const struct jinja_scope *s = scope; s; s = s->outer) {
        const struct jinja_value *found = scope_find(s, name);
        int rc = jinja_step(run, s->names.count / 16 + name->as.text.bytes / 64);
        if (rc) return rc;
        if (!found) continue;
        *out = *found;
        return 0;
    }
    const struct jinja_function *function = jinja_find_function(jinja_global_table, name);
    if (function) {
        *out = (struct jinja_value){.type = JINJA_FUNCTION, .as.function = function};
        return 0;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (jinja_text_is(name, known[i])) return jinja_fail(run, HELM_E_UNSUPPORTED, "'%s'", known[i]);
    return jinja_undefined(run, out, "'%.*s' is undefined",
                           (int)(name->as.text.bytes < 100 ? name->as.text.bytes : 100), name->as.text.data);
}

/* ---- functions with named parameters */

const struct jinja_function *jinja_find_function(const struct jinja_function *table,
                                                 const struct jinja_value *name)
{
    for (; table->name; table++)
        if (jinja_text_is(name, table->name)) return table;
    return NULL;
}

static int parameter_index(const struct jinja_function *function, const struct jinja_value *name)
{
    for (int i = 0; i < JINJA_PARAMETERS_MAX && function->parameters[i]; i++)
        if (jinja_text_is(name, function->parameters[i])) return i;
    return -1;
}

int jinja_invoke(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_function *function,
                 struct jinja_value self, const struct jinja_call *call, struct jinja_value *out)
{
    static const struct jinja_call no_call = {0};
    struct jinja_value a[JINJA_PARAMETERS_MAX];
    if (!call) call = &no_call;
    struct jinja_callable c = {run, scope, function->name, function->which, self, a, call};
    int known = 0;
    for (int i = 0; i < JINJA_PARAMETERS_MAX; i++) {
        a[i] = (struct jinja_value){.type = JINJA_ABSENT};
        known += function->parameters[i] != NULL;
    }
    *out = jinja_none();
    if (!function->raw) {
        if (call->positional_count > (size_t)known)
            return jinja_fail(run, HELM_E_FORMAT, "'%s' takes at most %d arguments, not %zu", function->name,
                              known, call->positional_count);
        for (size_t i = 0; i < call->positional_count; i++) a[i] = call->positional[i];
        for (size_t i = 0; i < call->keyword_count; i++) {
            const struct jinja_value *name = &call->keyword_names[i];
            int at = parameter_index(function, name);
            if (at < 0 || a[at].type != JINJA_ABSENT)
                return jinja_fail(run, HELM_E_FORMAT, "'%s' got %s argument '%.*s'", function->name,
                                  at < 0 ? "an unknown" : "twice the",
                                  (int)(name->as.text.bytes < 100 ? name->as.text.bytes : 100),
                                  name->as.text.data);
            a[at] = call->keyword_values[i];
        }
        for (int i = 0; i < function->required; i++)
            if (a[i].type == JINJA_ABSENT)
                return jinja_fail(run, HELM_E_FORMAT, "'%s' needs the argument '%s'", function->name,
                                  function->parameters[i]);
    }
    return function->call(&c, out);
}

int jinja_parameter_whole(const struct jinja_callable *c, int index, int64_t fallback, int64_t *out)
{
    const struct jinja_value *v = &c->a[index];
    *out = fallback;
    if (v->type == JINJA_ABSENT || v->type == JINJA_NONE) return 0;
    if (!jinja_is_whole(v))
        return jinja_fail(c->run, HELM_E_FORMAT, "'%s': argument %d is a '%s', not a whole number", c->name,
                          index + 1, jinja_type_name(v));
    *out = jinja_whole(v);
    return 0;
}

int jinja_parameter_text(const struct jinja_callable *c, int index, const char *fallback,
                         struct jinja_value *out)
{
    const struct jinja_value *v = &c->a[index];
    *out = fallback ? jinja_text(fallback, strlen(fallback)) : jinja_none();
    if (v->type == JINJA_ABSENT) return 0;
    if (v->type != JINJA_TEXT)
        return jinja_fail(c->run, HELM_E_FORMAT, "'%s': argument %d is a '%s', not a text", c->name,
                          index + 1, jinja_type_name(v));
    *out = *v;
    return 0;
}

bool jinja_parameter_truth(const struct jinja_callable *c, int index, bool fallback)
{
    return c->a[index].type == JINJA_ABSENT ? fallback : jinja_truth(&c->a[index]);
}

int jinja_bind_method(struct jinja_run *run, struct jinja_value self, const struct jinja_function *function,
                      struct jinja_value *out)
{
    struct jinja_bound *bound = jinja_alloc(run, sizeof *bound);
    if (!bound) return run->code;
    *bound = (struct jinja_bound){self, function};
    *out = (struct jinja_value){.type = JINJA_METHOD, .as.method = bound};
    return 0;
}

int jinja_apply_filter(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_value *name,
                       struct jinja_value input, const struct jinja_call *call, struct jinja_value *out)
{
    const struct jinja_function *function = jinja_find_function(jinja_text_filters, name);
    if (!function) function = jinja_find_function(jinja_sequence_filters, name);
    if (function) return jinja_invoke(run, scope, function, input, call, out);
    return jinja_fail(run, HELM_E_UNSUPPORTED, "the filter '%.*s'",
                      (int)(name->as.text.bytes < 100 ? name->as.text.bytes : 100), name->as.text.data);
}

int jinja_apply_test(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_value *name,
                     struct jinja_value input, const struct jinja_call *call, bool *out)
{
    struct jinja_value result;
    const struct jinja_function *function = jinja_find_function(jinja_test_table, name);
    *out = false;
    if (!function)
        return jinja_fail(run, HELM_E_UNSUPPORTED, "the test '%.*s'",
                          (int)(name->as.text.bytes < 100 ? name->as.text.bytes : 100), name->as.text.data);
    int rc = jinja_invoke(run, scope, function, input, call, &result);
    if (!rc) *out = jinja_truth(&result);
    return rc;
}

int jinja_call_value(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_value *callee,
                     const struct jinja_call *call, struct jinja_value *out)
{
    switch (callee->type) {
    case JINJA_FUNCTION:
        return jinja_invoke(run, scope, callee->as.function, jinja_none(), call, out);
    case JINJA_METHOD:
        return jinja_invoke(run, scope, callee->as.method->function, callee->as.method->self, call, out);
    case JINJA_MACRO:
        return jinja_call_macro(run, callee->as.macro, call, out);
    case JINJA_UNDEFINED:
        return jinja_fail_undefined(run, callee);
    case JINJA_LOOP:
        return jinja_fail(run, HELM_E_UNSUPPORTED, "a recursive loop ('loop()')");
    default:
        return jinja_fail(run, HELM_E_FORMAT, "a '%s' cannot be called", jinja_type_name(callee));
    }
}

/* ---- expressions */

int jinja_eval_arguments(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_arguments *args,
                         struct jinja_call *out)
{
    *out = (struct jinja_call){0};
    if (!args) return 0;
    size_t positional = args->positional.count, keyword = args->keyword_values.count;
    /* one more: the call block's caller goes there */
    struct jinja_value *values = jinja_alloc(run, (positional + keyword + 1) * sizeof *values);
    if (!values) return run->code;
    int rc = 0;
    for (size_t i = 0; !rc && i < positional; i++)
        rc = jinja_eval(run, scope, args->positional.item[i], &values[i]);
    for (size_t i = 0; !rc && i < keyword; i++)
        rc = jinja_eval(run, scope, args->keyword_values.item[i], &values[positional + i]);
    out->positional = values;
    out->positional_count = positional;
    out->keyword_names = args->keyword_names;
    out->keyword_values = values + positional;
    out->keyword_count = keyword;
    return rc;
}

static int eval_items(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                      struct jinja_value *out)
{
    struct jinja_list *list;
    struct jinja_value item;
    int rc = jinja_list_new(run, node->kind == JINJA_NODE_LIST ? JINJA_LIST_PLAIN : JINJA_LIST_TUPLE,
                            node->list.count, &list);
    for (size_t i = 0; !rc && i < node->list.count; i++) {
        rc = jinja_eval(run, scope, node->list.item[i], &item);
        if (!rc) rc = jinja_list_add(run, list, item);
    }
    if (!rc) *out = jinja_list_value(list);
    return rc;
}

static int eval_dict(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                     struct jinja_value *out)
{
    struct jinja_dict *dict;
    struct jinja_value key, value;
    int rc = jinja_dict_new(run, node->list.count / 2, &dict);
    for (size_t i = 0; !rc && i + 1 < node->list.count; i += 2) {
        rc = jinja_eval(run, scope, node->list.item[i], &key);
        if (!rc) rc = jinja_eval(run, scope, node->list.item[i + 1], &value);
        if (!rc) rc = jinja_dict_set(run, dict, key, value);
    }
    if (!rc) *out = jinja_dict_value(dict);
    return rc;
}

static int eval_concat(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                       struct jinja_value *out)
{
    struct jinja_buffer buffer = {0};
    struct jinja_value part;
    int rc = 0;
    for (size_t i = 0; !rc && i < node->list.count; i++) {
        rc = jinja_eval(run, scope, node->list.item[i], &part);
        if (!rc) rc = jinja_print(run, &buffer, &part);
    }
    *out = jinja_buffer_text(&buffer);
    return rc;
}

static int eval_compare(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                        struct jinja_value *out)
{
    struct jinja_value left, right;
    bool holds = true;
    int rc = jinja_eval(run, scope, node->a, &left);
    for (size_t i = 0; !rc && holds && i < node->list.count; i++) {
        const struct jinja_node *step = node->list.item[i];
        rc = jinja_eval(run, scope, step->a, &right);
        if (!rc) rc = jinja_compare(run, step->op, &left, &right, &holds);
        left = right;
    }
    *out = jinja_bool(holds);
    return rc;
}

static int eval_condition(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                          struct jinja_value *out)
{
    int rc = jinja_eval(run, scope, node->b, out);
    if (rc) return rc;
    if (jinja_truth(out)) return jinja_eval(run, scope, node->a, out);
    if (node->c) return jinja_eval(run, scope, node->c, out);
    return jinja_undefined(run, out,
                           "the inline if-expression on line %u evaluated to false and no else section "
                           "was defined",
                           node->line);
}

static int eval_slice(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                      struct jinja_value *out)
{
    const struct jinja_node *const part[3] = {node->b, node->c, node->d};
    struct jinja_value object, bounds[3];
    int rc = jinja_eval(run, scope, node->a, &object);
    for (int i = 0; !rc && i < 3; i++) {
        bounds[i] = jinja_none();
        if (part[i]) rc = jinja_eval(run, scope, part[i], &bounds[i]);
    }
    return rc ? rc : jinja_slice(run, &object, bounds, out);
}

/* A call, a filter or a test: `a` with its arguments. */
static int eval_applied(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                        struct jinja_value *out)
{
    struct jinja_value input;
    struct jinja_call call;
    bool holds = false;
    int rc = jinja_eval(run, scope, node->a, &input);
    if (!rc) rc = jinja_eval_arguments(run, scope, node->args, &call);
    run->line = node->line;
    if (rc) return rc;
    if (node->kind == JINJA_NODE_CALL) return jinja_call_value(run, scope, &input, &call, out);
    if (node->kind == JINJA_NODE_FILTER)
        return jinja_apply_filter(run, scope, &node->value, input, &call, out);
    rc = jinja_apply_test(run, scope, &node->value, input, &call, &holds);
    *out = jinja_bool(holds != (node->op == 'n'));
    return rc;
}

static int eval_pair(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                     struct jinja_value *out)
{
    struct jinja_value a, b;
    int rc = jinja_eval(run, scope, node->a, &a);
    if (!rc) rc = jinja_eval(run, scope, node->b, &b);
    run->line = node->line;
    if (rc) return rc;
    return node->kind == JINJA_NODE_BINARY ? jinja_binary(run, node->op, &a, &b, out)
                                           : jinja_getitem(run, &a, &b, out);
}

static int eval_node(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                     struct jinja_value *out)
{
    struct jinja_value a;
    int rc;
    switch (node->kind) {
    case JINJA_NODE_CONST:
        *out = node->value;
        return 0;
    case JINJA_NODE_NAME:
        return lookup(run, scope, &node->value, out);
    case JINJA_NODE_PIPED:
        *out = *run->piped;
        return 0;
    case JINJA_NODE_LIST:
    case JINJA_NODE_TUPLE:
        return eval_items(run, scope, node, out);
    case JINJA_NODE_DICT:
        return eval_dict(run, scope, node, out);
    case JINJA_NODE_NEG:
    case JINJA_NODE_POS:
        rc = jinja_eval(run, scope, node->a, &a);
        return rc ? rc : jinja_negate(run, &a, node->kind == JINJA_NODE_NEG, out);
    case JINJA_NODE_NOT:
        rc = jinja_eval(run, scope, node->a, &a);
        *out = jinja_bool(rc ? false : !jinja_truth(&a));
        return rc;
    case JINJA_NODE_AND:
    case JINJA_NODE_OR:
        rc = jinja_eval(run, scope, node->a, out);
        if (rc || jinja_truth(out) != (node->kind == JINJA_NODE_AND)) return rc;
        return jinja_eval(run, scope, node->b, out);
    case JINJA_NODE_BINARY:
    case JINJA_NODE_GETITEM:
        return eval_pair(run, scope, node, out);
    case JINJA_NODE_CONCAT:
        return eval_concat(run, scope, node, out);
    case JINJA_NODE_COMPARE:
        return eval_compare(run, scope, node, out);
    case JINJA_NODE_COND:
        return eval_condition(run, scope, node, out);
    case JINJA_NODE_GETATTR:
        rc = jinja_eval(run, scope, node->a, &a);
        run->line = node->line;
        return rc ? rc : jinja_getattr(run, &a, &node->value, out);
    case JINJA_NODE_SLICE:
        return eval_slice(run, scope, node, out);
    case JINJA_NODE_CALL:
    case JINJA_NODE_FILTER:
    case JINJA_NODE_TEST:
        return eval_applied(run, scope, node, out);
    default:
        return jinja_fail(run, HELM_E_INTERNAL, "a statement where an expression should be");
    }
}

int jinja_eval(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
               struct jinja_value *out)
{
    *out = jinja_none();
    run->line = node->line;
    int rc = jinja_step(run, 1);
    if (rc) return rc;
    if (++run->depth > JINJA_EVAL_DEPTH_MAX)
        return jinja_fail(run, HELM_E_LIMIT, "expressions are nested deeper than %d", JINJA_EVAL_DEPTH_MAX);
    rc = eval_node(run, scope, node, out);
    run->depth--;
    return rc;
}

int jinja_eval_piped(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                     struct jinja_value piped, struct jinja_value *out)
{
    run->piped = &piped; /* the innermost filter takes it before anything else is evaluated */
    return jinja_eval(run, scope, node, out);
}
