/* Expressions, calls and lookups. See jinja/eval.h. Called by jinja/exec.c. */
#include "client/text/jinja/eval.h"

#include <stdio.h>

#include "client/text/jinja/jinja.h"

/* ---- scopes */

struct jinja_scope *jinja_scope_enter(struct jinja_run *run, struct jinja_scope *outer)
{
    struct jinja_scope *before = run->scope;
    run->scope = jinja_alloc(run, sizeof *run->scope);
    run->scope->outer = outer;
    return before;
}

static struct jinja_value *scope_find(const struct jinja_scope *scope, const struct jinja_value *name)
{
    for (size_t i = 0; i < scope->names.count; i++)
        if (jinja_same_text(&scope->names.key[i], name)) return &scope->names.value[i];
    return NULL;
}

void jinja_scope_set(struct jinja_run *run, struct jinja_value name, struct jinja_value value)
{
    struct jinja_scope *scope = run->scope;
    struct jinja_value *old = scope_find(scope, &name);
    if (old)
        *old = value;
    else
        jinja_dict_append(run, &scope->names, name, value);
    jinja_step(run, scope->names.count / 16 + name.as.text.bytes / 64);
}

static struct jinja_value lookup(struct jinja_run *run, const struct jinja_value *name)
{
    static const char *const known[] = {"cycler", "joiner", "lipsum", "self"};
    for (const struct jinja_scope *s = run->scope; s; s = s->outer) {
        const struct jinja_value *found = scope_find(s, name);
        jinja_step(run, s->names.count / 16 + name->as.text.bytes / 64);
        if (found) return *found;
    }
    const struct jinja_function *function = jinja_find_function(jinja_global_table, name);
    if (function) return (struct jinja_value){.type = JINJA_FUNCTION, .as.function = function};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (jinja_text_is(name, known[i])) jinja_fail(run, HELM_E_UNSUPPORTED, "'%s'", known[i]);
    return jinja_undefined(run, "'%.*s' is undefined", JINJA_SHOWN(name));
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

/* The call's arguments as the function's parameters. */
static void bind(struct jinja_run *run, const struct jinja_function *function, const struct jinja_call *call,
                 struct jinja_value a[JINJA_PARAMETERS_MAX])
{
    int known = 0;
    while (known < JINJA_PARAMETERS_MAX && function->parameters[known]) known++;
    if (call->positional_count > (size_t)known)
        jinja_fail(run, HELM_E_FORMAT, "'%s' takes at most %d arguments, not %zu", function->name, known,
                   call->positional_count);
    for (size_t i = 0; i < call->positional_count; i++) a[i] = call->positional[i];
    for (size_t i = 0; i < call->keyword_count; i++) {
        const struct jinja_value *name = &call->keyword_names[i];
        int at = parameter_index(function, name);
        if (at < 0 || a[at].type != JINJA_ABSENT)
            jinja_fail(run, HELM_E_FORMAT, "'%s' got %s argument '%.*s'", function->name,
                       at < 0 ? "an unknown" : "twice the", JINJA_SHOWN(name));
        a[at] = call->keyword_values[i];
    }
    for (int i = 0; i < function->required; i++)
        if (a[i].type == JINJA_ABSENT)
            jinja_fail(run, HELM_E_FORMAT, "'%s' needs the argument '%s'", function->name,
                       function->parameters[i]);
}

/* Calls `function` with its parameters bound and checked. */
static struct jinja_value invoke(struct jinja_run *run, const struct jinja_function *function,
                                 struct jinja_value self, const struct jinja_call *call)
{
    static const struct jinja_call no_call = {0};
    struct jinja_value a[JINJA_PARAMETERS_MAX];
    if (!call) call = &no_call;
    const struct jinja_callable c = {run, function->name, function->which, self, a, call};
    for (int i = 0; i < JINJA_PARAMETERS_MAX; i++) a[i] = (struct jinja_value){.type = JINJA_ABSENT};
    if (!function->raw) bind(run, function, call, a);
    return function->call(&c);
}

int64_t jinja_parameter_whole(const struct jinja_callable *c, int index, int64_t fallback)
{
    const struct jinja_value *v = &c->a[index];
    if (v->type == JINJA_ABSENT || v->type == JINJA_NONE) return fallback;
    if (!jinja_is_whole(v))
        jinja_fail(c->run, HELM_E_FORMAT, "'%s': argument %d is a '%s', not a whole number", c->name,
                   index + 1, jinja_type_name(v));
    return jinja_whole(v);
}

struct jinja_value jinja_parameter_text(const struct jinja_callable *c, int index, const char *fallback)
{
    const struct jinja_value *v = &c->a[index];
    if (v->type == JINJA_ABSENT) return fallback ? jinja_text(fallback, strlen(fallback)) : jinja_none();
    if (v->type != JINJA_TEXT)
        jinja_fail(c->run, HELM_E_FORMAT, "'%s': argument %d is a '%s', not a text", c->name, index + 1,
                   jinja_type_name(v));
    return *v;
}

bool jinja_parameter_truth(const struct jinja_callable *c, int index, bool fallback)
{
    return c->a[index].type == JINJA_ABSENT ? fallback : jinja_truth(&c->a[index]);
}

struct jinja_value jinja_given(struct jinja_run *run, const struct jinja_call *call)
{
    struct jinja_list *list = jinja_list_new(run, JINJA_LIST_TUPLE, call->positional_count);
    for (size_t i = 0; i < call->positional_count; i++) jinja_list_add(run, list, call->positional[i]);
    return jinja_list_value(list);
}

struct jinja_value jinja_apply_filter(struct jinja_run *run, const struct jinja_value *name,
                                      struct jinja_value input, const struct jinja_call *call)
{
    const struct jinja_function *function = jinja_find_function(jinja_text_filters, name);
    if (!function) function = jinja_find_function(jinja_sequence_filters, name);
    if (!function) jinja_fail(run, HELM_E_UNSUPPORTED, "the filter '%.*s'", JINJA_SHOWN(name));
    return invoke(run, function, input, call);
}

bool jinja_apply_test(struct jinja_run *run, const struct jinja_value *name, struct jinja_value input,
                      const struct jinja_call *call)
{
    const struct jinja_function *function = jinja_find_function(jinja_test_table, name);
    if (!function) jinja_fail(run, HELM_E_UNSUPPORTED, "the test '%.*s'", JINJA_SHOWN(name));
    const struct jinja_value result = invoke(run, function, input, call);
    return jinja_truth(&result);
}

struct jinja_value jinja_call_value(struct jinja_run *run, const struct jinja_value *callee,
                                    const struct jinja_call *call)
{
    switch (callee->type) {
    case JINJA_FUNCTION:
        return invoke(run, callee->as.function, jinja_none(), call);
    case JINJA_METHOD:
        return invoke(run, callee->as.method->function, callee->as.method->self, call);
    case JINJA_MACRO:
        return jinja_call_macro(run, callee->as.macro, call);
    case JINJA_UNDEFINED:
        jinja_fail_undefined(run, callee);
    case JINJA_LOOP:
        jinja_fail(run, HELM_E_UNSUPPORTED, "a recursive loop ('loop()')");
    default:
        jinja_fail(run, HELM_E_FORMAT, "a '%s' cannot be called", jinja_type_name(callee));
    }
}

/* ---- expressions */

struct jinja_call jinja_eval_arguments(struct jinja_run *run, const struct jinja_arguments *args)
{
    if (!args) return (struct jinja_call){0};
    size_t positional = args->positional.count, keyword = args->keyword_values.count;
    /* one more: the call block's caller goes there */
    struct jinja_value *values = jinja_alloc(run, (positional + keyword + 1) * sizeof *values);
    for (size_t i = 0; i < positional; i++) values[i] = jinja_eval(run, args->positional.item[i]);
    for (size_t i = 0; i < keyword; i++)
        values[positional + i] = jinja_eval(run, args->keyword_values.item[i]);
    return (struct jinja_call){.positional = values,
                               .positional_count = positional,
                               .keyword_names = args->keyword_names,
                               .keyword_values = values + positional,
                               .keyword_count = keyword};
}

static struct jinja_value eval_items(struct jinja_run *run, const struct jinja_node *node)
{
    const bool tuple = node->kind == JINJA_NODE_TUPLE;
    struct jinja_list *list =
        jinja_list_new(run, tuple ? JINJA_LIST_TUPLE : JINJA_LIST_PLAIN, node->list.count);
    for (size_t i = 0; i < node->list.count; i++)
        jinja_list_add(run, list, jinja_eval(run, node->list.item[i]));
    return jinja_list_value(list);
}

static struct jinja_value eval_dict(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_dict *dict = jinja_dict_new(run, node->list.count / 2);
    for (size_t i = 0; i + 1 < node->list.count; i += 2) {
        const struct jinja_value key = jinja_eval(run, node->list.item[i]);
        jinja_dict_set(run, dict, key, jinja_eval(run, node->list.item[i + 1]));
    }
    return jinja_dict_value(dict);
}

static struct jinja_value eval_concat(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_buffer buffer = {0};
    for (size_t i = 0; i < node->list.count; i++) {
        const struct jinja_value part = jinja_eval(run, node->list.item[i]);
        jinja_print(run, &buffer, &part);
    }
    return jinja_buffer_text(&buffer);
}

static bool eval_compare(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_value left = jinja_eval(run, node->a);
    for (size_t i = 0; i < node->list.count; i++) {
        const struct jinja_node *step = node->list.item[i];
        const struct jinja_value right = jinja_eval(run, step->a);
        if (!jinja_compare(run, step->op, &left, &right)) return false;
        left = right;
    }
    return true;
}

static struct jinja_value eval_condition(struct jinja_run *run, const struct jinja_node *node)
{
    const struct jinja_value condition = jinja_eval(run, node->b);
    if (jinja_truth(&condition)) return jinja_eval(run, node->a);
    if (node->c) return jinja_eval(run, node->c);
    return jinja_undefined(run,
                           "the inline if-expression on line %u evaluated to false and no else section "
                           "was defined",
                           node->line);
}

static struct jinja_value eval_slice(struct jinja_run *run, const struct jinja_node *node)
{
    const struct jinja_node *const part[3] = {node->b, node->c, node->d};
    const struct jinja_value object = jinja_eval(run, node->a);
    struct jinja_value bounds[3];
    for (int i = 0; i < 3; i++) bounds[i] = part[i] ? jinja_eval(run, part[i]) : jinja_none();
    return jinja_slice(run, &object, bounds);
}

/* A call, a filter or a test: `a` with its arguments. */
static struct jinja_value eval_applied(struct jinja_run *run, const struct jinja_node *node)
{
    const struct jinja_value input = jinja_eval(run, node->a);
    const struct jinja_call call = jinja_eval_arguments(run, node->args);
    run->line = node->line;
    if (node->kind == JINJA_NODE_CALL) return jinja_call_value(run, &input, &call);
    if (node->kind == JINJA_NODE_FILTER) return jinja_apply_filter(run, &node->value, input, &call);
    return jinja_bool(jinja_apply_test(run, &node->value, input, &call) != (node->op == 'n'));
}

static struct jinja_value eval_pair(struct jinja_run *run, const struct jinja_node *node)
{
    const struct jinja_value a = jinja_eval(run, node->a), b = jinja_eval(run, node->b);
    run->line = node->line;
    return node->kind == JINJA_NODE_BINARY ? jinja_binary(run, node->op, &a, &b) : jinja_getitem(run, &a, &b);
}

static struct jinja_value eval_node(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_value a;
    switch (node->kind) {
    case JINJA_NODE_CONST:
        return node->value;
    case JINJA_NODE_NAME:
        return lookup(run, &node->value);
    case JINJA_NODE_PIPED:
        return *run->piped;
    case JINJA_NODE_LIST:
    case JINJA_NODE_TUPLE:
        return eval_items(run, node);
    case JINJA_NODE_DICT:
        return eval_dict(run, node);
    case JINJA_NODE_NEG:
    case JINJA_NODE_POS:
        a = jinja_eval(run, node->a);
        return jinja_negate(run, &a, node->kind == JINJA_NODE_NEG);
    case JINJA_NODE_NOT:
        a = jinja_eval(run, node->a);
        return jinja_bool(!jinja_truth(&a));
    case JINJA_NODE_AND:
    case JINJA_NODE_OR:
        a = jinja_eval(run, node->a);
        return jinja_truth(&a) == (node->kind == JINJA_NODE_AND) ? jinja_eval(run, node->b) : a;
    case JINJA_NODE_BINARY:
    case JINJA_NODE_GETITEM:
        return eval_pair(run, node);
    case JINJA_NODE_CONCAT:
        return eval_concat(run, node);
    case JINJA_NODE_COMPARE:
        return jinja_bool(eval_compare(run, node));
    case JINJA_NODE_COND:
        return eval_condition(run, node);
    case JINJA_NODE_GETATTR:
        a = jinja_eval(run, node->a);
        run->line = node->line;
        return jinja_getattr(run, &a, &node->value);
    case JINJA_NODE_SLICE:
        return eval_slice(run, node);
    case JINJA_NODE_CALL:
    case JINJA_NODE_FILTER:
    case JINJA_NODE_TEST:
        return eval_applied(run, node);
    default:
        jinja_fail(run, HELM_E_INTERNAL, "a statement where an expression should be");
    }
}

struct jinja_value jinja_eval(struct jinja_run *run, const struct jinja_node *node)
{
    run->line = node->line;
    jinja_step(run, 1);
    if (++run->depth > JINJA_EVAL_DEPTH_MAX)
        jinja_fail(run, HELM_E_LIMIT, "expressions are nested deeper than %d", JINJA_EVAL_DEPTH_MAX);
    const struct jinja_value value = eval_node(run, node);
    run->depth--;
    return value;
}

struct jinja_value jinja_eval_piped(struct jinja_run *run, const struct jinja_node *node,
                                    struct jinja_value piped)
{
    run->piped = &piped; /* the innermost filter takes it before anything else is evaluated */
    return jinja_eval(run, node);
}
