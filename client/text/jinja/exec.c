/* Statements, loops, macros, and the rendering of a whole template. See jinja/eval.h and jinja.h. */
#include <stdlib.h>
#include <time.h>

#include "client/text/jinja/jinja.h"
#include "client/text/jinja/eval.h"

/* A statement's order to its loop, beside going on. */
enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };
static enum flow exec(struct jinja_run *run, const struct jinja_nodes *body, struct jinja_buffer *out);

/* The same in a scope of its own. */
static enum flow exec_inside(struct jinja_run *run, const struct jinja_nodes *body, struct jinja_buffer *out)
{
    struct jinja_scope *before = jinja_scope_enter(run, run->scope);
    const enum flow flow = exec(run, body, out);
    run->scope = before;
    return flow;
}

/* ---- assigning */

static void assign(struct jinja_run *run, const struct jinja_node *target, struct jinja_value value);

static void unpack(struct jinja_run *run, const struct jinja_node *target, struct jinja_value value)
{
    const struct jinja_list *items = jinja_collect(run, value, JINJA_LIST_TUPLE);
    if (items->count != target->list.count)
        jinja_fail(run, HELM_E_FORMAT, "%zu values cannot be unpacked into %zu names", items->count,
                   target->list.count);
    for (size_t i = 0; i < items->count; i++) assign(run, target->list.item[i], items->item[i]);
}

static void assign(struct jinja_run *run, const struct jinja_node *target, struct jinja_value value)
{
    if (target->kind == JINJA_NODE_TUPLE) {
        unpack(run, target, value);
    } else if (target->kind == JINJA_NODE_NAME) {
        jinja_scope_set(run, target->value, value);
    } else {
        const struct jinja_value object = jinja_eval(run, target->a);
        if (object.type != JINJA_NAMESPACE)
            jinja_fail(run, HELM_E_FORMAT, "cannot assign attribute on non-namespace object");
        jinja_dict_set(run, object.as.dict, target->value, value);
    }
}

/* ---- loops */

/* The head's test sees the item's names, and not the loop. */
static bool passes(struct jinja_run *run, struct jinja_loop *loop, struct jinja_value item)
{
    if (!loop->node->c) return true;
    struct jinja_scope *before = jinja_scope_enter(run, loop->scope);
    assign(run, loop->node->a, item);
    const struct jinja_value holds = jinja_eval(run, loop->node->c);
    run->scope = before;
    return jinja_truth(&holds);
}

/* Takes items until `count` passed the loop's test, or there are no more. */
static void loop_fill(struct jinja_run *run, struct jinja_loop *loop, size_t count)
{
    struct jinja_value item;
    while (!loop->ended && loop->taken->count < count) {
        loop->ended = !jinja_next(run, &loop->source, &item);
        if (!loop->ended && passes(run, loop, item)) jinja_list_add(run, loop->taken, item);
    }
}

static enum flow exec_for(struct jinja_run *run, const struct jinja_node *node, struct jinja_buffer *out)
{
    struct jinja_loop *loop = jinja_alloc(run, sizeof *loop);
    const struct jinja_value name = jinja_text("loop", 4), value = {.type = JINJA_LOOP, .as.loop = loop};
    *loop = (struct jinja_loop){.node = node, .scope = run->scope, .changed.type = JINJA_ABSENT};
    loop->source = jinja_iterate(run, jinja_eval(run, node->b));
    loop->taken = jinja_list_new(run, JINJA_LIST_PLAIN, 0);
    for (loop->index0 = 0;; loop->index0++) {
        loop_fill(run, loop, loop->index0 + 1);
        if (loop->taken->count <= loop->index0) break;
        jinja_scope_enter(run, loop->scope);
        jinja_scope_set(run, name, value);
        assign(run, node->a, loop->taken->item[loop->index0]);
        const enum flow flow = exec(run, &node->list, out);
        run->scope = loop->scope;
        if (flow == FLOW_BREAK) return FLOW_NEXT;
    }
    if (loop->taken->count || !node->other.count) return FLOW_NEXT;
    return exec_inside(run, &node->other, out); /* its flow is for an outer loop */
}

enum loop_attribute {
    INDEX,
    INDEX0,
    FIRST,
    LAST,
    LENGTH,
    REVINDEX,
    REVINDEX0,
    PREVITEM,
    NEXTITEM,
    DEPTH,
    DEPTH0
};

bool jinja_loop_attribute(struct jinja_run *run, const struct jinja_value *value,
                          const struct jinja_value *name, struct jinja_value *out)
{
    static const char *const names[] = {"index",     "index0",   "first",    "last",  "length", "revindex",
                                        "revindex0", "previtem", "nextitem", "depth", "depth0"};
    struct jinja_loop *loop = value->as.loop;
    size_t which = 0, at = loop->index0;
    while (which <= DEPTH0 && !jinja_text_is(name, names[which])) which++;
    if (which > DEPTH0) return jinja_method_find(run, value, name, out);
    /* these look ahead: one item, or all */
    loop_fill(run, loop,
              which == LAST || which == NEXTITEM      ? at + 2
              : which >= LENGTH && which <= REVINDEX0 ? SIZE_MAX
                                                      : 0);
    const struct jinja_list *taken = loop->taken;
    const size_t count = taken->count;
    if (which == FIRST || which == LAST) {
        *out = jinja_bool(which == FIRST ? at == 0 : count <= at + 1);
    } else if (which == PREVITEM) {
        *out = at ? taken->item[at - 1] : jinja_undefined(run, "there is no previous item");
    } else if (which == NEXTITEM) {
        *out = count > at + 1 ? taken->item[at + 1] : jinja_undefined(run, "there is no next item");
    } else {
        const size_t number[] = {[INDEX] = at + 1,
                                 [INDEX0] = at,
                                 [LENGTH] = count,
                                 [REVINDEX] = count - at,
                                 [REVINDEX0] = count - at - 1,
                                 [DEPTH] = 1,
                                 [DEPTH0] = 0};
        *out = jinja_int((int64_t)number[which]);
    }
    return true;
}

/* ---- macros */

/* varargs, kwargs and caller, for a macro that uses them; what it does not use may not be given. */
static void bind_rest(struct jinja_run *run, const struct jinja_node *node, const struct jinja_call *call,
                      const bool *used)
{
    struct jinja_value caller = jinja_undefined(run, "No caller defined");
    struct jinja_list *varargs = jinja_list_new(run, JINJA_LIST_TUPLE, 0);
    struct jinja_dict *kwargs = jinja_dict_new(run, 0);
    for (size_t i = node->other.count; i < call->positional_count; i++)
        jinja_list_add(run, varargs, call->positional[i]);
    for (size_t i = 0; i < call->keyword_count; i++) {
        if (used[i]) continue;
        if (jinja_text_is(&call->keyword_names[i], "caller") && (node->op & JINJA_MACRO_USES_CALLER))
            caller = call->keyword_values[i];
        else
            jinja_dict_set(run, kwargs, call->keyword_names[i], call->keyword_values[i]);
    }
    const struct jinja_value *name = &node->value;
    if (kwargs->count && !(node->op & JINJA_MACRO_USES_KWARGS))
        jinja_fail(run, HELM_E_FORMAT, "macro '%.*s' takes no keyword argument '%.*s'",
                   (int)name->as.text.bytes, name->as.text.data, (int)kwargs->key[0].as.text.bytes,
                   kwargs->key[0].as.text.data);
    if (varargs->count && !(node->op & JINJA_MACRO_USES_VARARGS))
        jinja_fail(run, HELM_E_FORMAT, "macro '%.*s' takes not more than %zu arguments",
                   (int)name->as.text.bytes, name->as.text.data, node->other.count);
    if (node->op & JINJA_MACRO_USES_VARARGS)
        jinja_scope_set(run, jinja_text("varargs", 7), jinja_list_value(varargs));
    if (node->op & JINJA_MACRO_USES_KWARGS)
        jinja_scope_set(run, jinja_text("kwargs", 6), jinja_dict_value(kwargs));
    if (node->op & JINJA_MACRO_USES_CALLER) jinja_scope_set(run, jinja_text("caller", 6), caller);
}

static void bind_parameters(struct jinja_run *run, const struct jinja_node *node,
                            const struct jinja_call *call)
{
    size_t count = node->other.count, defaults = node->args->positional.count;
    bool *used = jinja_alloc(run, call->keyword_count + 1);
    for (size_t i = 0; i < count; i++) {
        const struct jinja_value *name = &node->other.item[i]->value;
        struct jinja_value value = {.type = JINJA_ABSENT};
        if (i < call->positional_count) value = call->positional[i];
        for (size_t k = 0; k < call->keyword_count; k++) {
            if (!jinja_same_text(&call->keyword_names[k], name)) continue;
            if (i < call->positional_count || used[k]) continue; /* the rest's check reports it */
            value = call->keyword_values[k];
            used[k] = true;
        }
        if (value.type == JINJA_ABSENT && i + defaults >= count)
            value = jinja_eval(run, node->args->positional.item[i + defaults - count]);
        else if (value.type == JINJA_ABSENT)
            value = jinja_undefined(run, "parameter '%.*s' was not provided", (int)name->as.text.bytes,
                                    name->as.text.data);
        jinja_scope_set(run, *name, value);
    }
    bind_rest(run, node, call, used);
}

struct jinja_value jinja_call_macro(struct jinja_run *run, const struct jinja_macro *macro,
                                    const struct jinja_call *call)
{
    struct jinja_buffer buffer = {0};
    if (++run->macro_depth > JINJA_NESTING_MAX)
        jinja_fail(run, HELM_E_LIMIT, "macros call each other deeper than %d", JINJA_NESTING_MAX);
    struct jinja_scope *before = jinja_scope_enter(run, macro->scope);
    bind_parameters(run, macro->node, call);
    (void)exec(run, &macro->node->list, &buffer);
    run->scope = before;
    run->macro_depth--;
    return jinja_buffer_text(&buffer);
}

static struct jinja_value make_macro(struct jinja_run *run, const struct jinja_node *node)
{
    struct jinja_macro *macro = jinja_alloc(run, sizeof *macro);
    *macro = (struct jinja_macro){node, run->scope};
    return (struct jinja_value){.type = JINJA_MACRO, .as.macro = macro};
}

static void exec_call_block(struct jinja_run *run, const struct jinja_node *node, struct jinja_buffer *out)
{
    const struct jinja_value callee = jinja_eval(run, node->a->a);
    struct jinja_call call = jinja_eval_arguments(run, node->a->args);
    size_t count = call.keyword_count;
    struct jinja_value *names = jinja_alloc(run, 2 * (count + 1) * sizeof *names),
                       *values = names + count + 1;
    for (size_t i = 0; i < count; i++) {
        names[i] = call.keyword_names[i];
        values[i] = call.keyword_values[i];
    }
    names[count] = jinja_text("caller", 6);
    values[count] = make_macro(run, node->b);
    call.keyword_names = names;
    call.keyword_values = values;
    call.keyword_count = count + 1;
    const struct jinja_value result = jinja_call_value(run, &callee, &call);
    jinja_print(run, out, &result);
}

/* ---- the other statements */

static enum flow exec_if(struct jinja_run *run, const struct jinja_node *node, struct jinja_buffer *out)
{
    for (size_t i = 0; i < node->list.count; i++) {
        const struct jinja_node *branch = node->list.item[i];
        const struct jinja_value holds = branch->a ? jinja_eval(run, branch->a) : jinja_bool(true);
        if (jinja_truth(&holds)) return exec(run, &branch->list, out);
    }
    return FLOW_NEXT;
}

/* A body's text, and the filters over it. */
static enum flow capture(struct jinja_run *run, const struct jinja_node *node, struct jinja_value *out)
{
    struct jinja_buffer buffer = {0};
    const enum flow flow = exec_inside(run, &node->list, &buffer);
    *out = jinja_buffer_text(&buffer);
    if (!flow && node->b) *out = jinja_eval_piped(run, node->b, *out);
    return flow;
}

static enum flow exec_with(struct jinja_run *run, const struct jinja_node *node, struct jinja_buffer *out)
{
    struct jinja_scope *outer = jinja_scope_enter(run, run->scope), *inner = run->scope;
    /* values are evaluated outside: one does not see another's name */
    for (size_t i = 0; i + 1 < node->other.count; i += 2) {
        run->scope = outer;
        const struct jinja_value value = jinja_eval(run, node->other.item[i + 1]);
        run->scope = inner;
        assign(run, node->other.item[i], value);
    }
    const enum flow flow = exec(run, &node->list, out);
    run->scope = outer;
    return flow;
}

static enum flow exec_node(struct jinja_run *run, const struct jinja_node *node, struct jinja_buffer *out)
{
    struct jinja_value value;
    enum flow flow = FLOW_NEXT;
    switch (node->kind) {
    case JINJA_NODE_DATA:
        jinja_print(run, out, &node->value);
        break;
    case JINJA_NODE_PRINT:
        value = jinja_eval(run, node->a);
        jinja_print(run, out, &value);
        break;
    case JINJA_NODE_IF:
        return exec_if(run, node, out);
    case JINJA_NODE_FOR:
        return exec_for(run, node, out);
    case JINJA_NODE_SET:
        assign(run, node->a, jinja_eval(run, node->b));
        break;
    case JINJA_NODE_SETBLOCK:
        flow = capture(run, node, &value);
        if (!flow) assign(run, node->a, value);
        break;
    case JINJA_NODE_FILTERED:
        flow = capture(run, node, &value);
        if (!flow) jinja_print(run, out, &value);
        break;
    case JINJA_NODE_WITH:
        return exec_with(run, node, out);
    case JINJA_NODE_MACRO:
        jinja_scope_set(run, node->value, make_macro(run, node));
        break;
    case JINJA_NODE_CALLBLOCK:
        exec_call_block(run, node, out);
        break;
    case JINJA_NODE_SCOPELESS:
        return exec(run, &node->list, out);
    case JINJA_NODE_BREAK:
        return FLOW_BREAK;
    case JINJA_NODE_CONTINUE:
        return FLOW_CONTINUE;
    default:
        jinja_fail(run, HELM_E_INTERNAL, "an expression where a statement should be");
    }
    return flow;
}

static enum flow exec(struct jinja_run *run, const struct jinja_nodes *body, struct jinja_buffer *out)
{
    enum flow flow = FLOW_NEXT;
    if (++run->depth > JINJA_EVAL_DEPTH_MAX)
        jinja_fail(run, HELM_E_LIMIT, "nested deeper than %d", JINJA_EVAL_DEPTH_MAX);
    for (size_t i = 0; flow == FLOW_NEXT && i < body->count; i++) {
        run->line = body->item[i]->line;
        jinja_step(run, 1);
        flow = exec_node(run, body->item[i], out);
    }
    run->depth--;
    return flow;
}

/* ---- the whole */

struct rendering {
    const struct jinja_template *template;
    const struct jinja_input *input;
    struct jinja_buffer text;
};

static void set_variables(struct jinja_run *run, const struct jinja_input *input)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)input->own, name, value)
        jinja_scope_set(run, jinja_text(name, strlen(name)),
                        jinja_own_text(run, json_string_value(value), json_string_length(value)));
    run->numbers = input->numbers;
    const struct jinja_value variables = jinja_from_json(run, input->variables);
    if (variables.type != JINJA_DICT) jinja_fail(run, HELM_E_INTERNAL, "the variables are no object");
    for (size_t i = 0; i < variables.as.dict->count; i++)
        jinja_scope_set(run, variables.as.dict->key[i], variables.as.dict->value[i]);
}

static void render_all(struct jinja_run *run, void *what)
{
    struct rendering *r = what;
    run->steps_max = UINT64_MAX; /* steps count what the template does, not the size of what it is given */
    jinja_scope_enter(run, NULL);
    set_variables(run, r->input);
    run->steps = 0;
    run->steps_max = r->input->steps_max ? r->input->steps_max : JINJA_STEPS_MAX;
    /* a macro sees these; a set does not change them */
    (void)exec_inside(run, &r->template->body, &r->text);
}

/* The rendered text as the caller's own memory. */
static int hand_out(const struct jinja_run *run, const struct jinja_buffer *buffer, char **text,
                    unsigned char **own, struct helm_err *err)
{
    *text = malloc(buffer->length + 1);
    if (own) *own = calloc(buffer->length / 8 + 1, 1);
    if (!*text || (own && !*own)) {
        free(*text);
        *text = NULL;
        if (own) free(*own), *own = NULL;
        return helm_fail(err, HELM_E_NOMEM, "no memory for the rendered text");
    }
    if (buffer->length) memcpy(*text, buffer->data, buffer->length);
    (*text)[buffer->length] = '\0';
    if (own) jinja_read_marks(run, buffer->data, buffer->length, *own, 0);
    return 0;
}

int jinja_render_marked(const struct jinja_template *template, const struct jinja_input *input, char **text,
                        size_t *length, unsigned char **own, struct helm_err *err)
{
    struct jinja_run run = {.err = err,
                            .marks = own != NULL,
                            .own = &template->arena,
                            .own_key = input->own_key,
                            .arena.marked = own != NULL};
    struct rendering rendering = {.template = template, .input = input};
    *text = NULL;
    *length = 0;
    if (own) *own = NULL;
    run.arena.bytes_max = input->memory_bytes_max ? input->memory_bytes_max : JINJA_MEMORY_BYTES_MAX;
    run.output_max = input->output_bytes_max ? input->output_bytes_max : JINJA_OUTPUT_BYTES_MAX;
    run.now_s = input->now_s ? input->now_s : (int64_t)time(NULL);
    int rc = jinja_try(&run, render_all, &rendering);
    if (!rc) rc = hand_out(&run, &rendering.text, text, own, err);
    if (!rc) *length = rendering.text.length;
    jinja_arena_free(&run.arena);
    return rc;
}

int jinja_render(const struct jinja_template *template, const struct jinja_input *input, char **text,
                 size_t *length, struct helm_err *err)
{
    return jinja_render_marked(template, input, text, length, NULL, err);
}
