/* Statements, loops, macros, and the rendering of a whole template. See jinja/eval.h and jinja.h. */
#include <stdlib.h>
#include <time.h>

#include "client/text/jinja/jinja.h"
#include "client/text/jinja/eval.h"

/* ---- assigning */

static int unpack(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *target,
                  struct jinja_value value)
{
    struct jinja_list *items;
    int rc = jinja_collect(run, value, JINJA_LIST_TUPLE, &items);
    if (rc) return rc;
    if (items->count != target->list.count)
        return jinja_fail(run, HELM_E_FORMAT, "%zu values cannot be unpacked into %zu names", items->count,
                          target->list.count);
    for (size_t i = 0; !rc && i < items->count; i++)
        rc = jinja_assign(run, scope, target->list.item[i], items->item[i]);
    return rc;
}

int jinja_assign(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *target,
                 struct jinja_value value)
{
    if (target->kind == JINJA_NODE_TUPLE) return unpack(run, scope, target, value);
    if (target->kind == JINJA_NODE_NAME) return jinja_scope_set(run, scope, target->value, value);
    struct jinja_value object;
    int rc = jinja_eval(run, scope, target->a, &object);
    if (rc) return rc;
    if (object.type != JINJA_NAMESPACE)
        return jinja_fail(run, HELM_E_FORMAT, "cannot assign attribute on non-namespace object");
    return jinja_dict_set(run, object.as.dict, target->value, value);
}

/* ---- loops */

int jinja_loop_fill(struct jinja_run *run, struct jinja_loop *loop, size_t count)
{
    struct jinja_value item, holds = jinja_bool(true);
    int rc = 0;
    while (!rc && !loop->ended && loop->taken->count < count) {
        rc = jinja_next(run, &loop->source, &item);
        if (rc <= 0) {
            loop->ended = true;
            return rc;
        }
        rc = 0;
        if (loop->node->c) { /* the head's test sees the item's names, and not the loop */
            struct jinja_scope *scope;
            rc = jinja_scope_new(run, loop->scope, &scope);
            if (!rc) rc = jinja_assign(run, scope, loop->node->a, item);
            if (!rc) rc = jinja_eval(run, scope, loop->node->c, &holds);
        }
        if (!rc && jinja_truth(&holds)) rc = jinja_list_add(run, loop->taken, item);
    }
    return rc;
}

static int exec_loop(struct jinja_run *run, struct jinja_loop *loop, struct jinja_buffer *out, bool *ran)
{
    const struct jinja_node *node = loop->node;
    const struct jinja_value name = jinja_text("loop", 4), value = {.type = JINJA_LOOP, .as.loop = loop};
    for (loop->index0 = 0;; loop->index0++) {
        struct jinja_scope *scope;
        int rc = jinja_loop_fill(run, loop, loop->index0 + 1);
        if (rc || loop->taken->count <= loop->index0) return rc;
        *ran = true;
        rc = jinja_scope_new(run, loop->scope, &scope);
        if (!rc) rc = jinja_scope_set(run, scope, name, value);
        if (!rc) rc = jinja_assign(run, scope, node->a, loop->taken->item[loop->index0]);
        if (!rc) rc = jinja_exec(run, scope, &node->list, out);
        if (rc < 0) return rc;
        if (rc == JINJA_FLOW_BREAK) return 0;
    }
}

static int exec_for(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                    struct jinja_buffer *out)
{
    struct jinja_value source;
    bool ran = false;
    struct jinja_loop *loop = jinja_alloc(run, sizeof *loop);
    if (!loop) return run->code;
    loop->node = node;
    loop->scope = scope;
    loop->changed.type = JINJA_ABSENT;
    int rc = jinja_eval(run, scope, node->b, &source);
    if (!rc) rc = jinja_iterate(run, source, &loop->source);
    if (!rc) rc = jinja_list_new(run, JINJA_LIST_PLAIN, 0, &loop->taken);
    if (!rc) rc = exec_loop(run, loop, out, &ran);
    if (rc || ran || !node->other.count) return rc;
    struct jinja_scope *inner;
    rc = jinja_scope_new(run, scope, &inner);
    return rc ? rc : jinja_exec(run, inner, &node->other, out);
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

int jinja_loop_attribute(struct jinja_run *run, const struct jinja_value *value,
                         const struct jinja_value *name, struct jinja_value *out)
{
    static const char *const names[] = {"index",     "index0",   "first",    "last",  "length", "revindex",
                                        "revindex0", "previtem", "nextitem", "depth", "depth0"};
    struct jinja_loop *loop = value->as.loop;
    size_t which = 0, at = loop->index0, ahead;
    while (which <= DEPTH0 && !jinja_text_is(name, names[which])) which++;
    if (which > DEPTH0) return jinja_method_find(run, value, name, out);
    /* these look ahead: one item, or all */
    ahead = which == LAST || which == NEXTITEM      ? at + 2
            : which >= LENGTH && which <= REVINDEX0 ? SIZE_MAX
                                                    : 0;
    int rc = jinja_loop_fill(run, loop, ahead);
    if (rc) return rc;
    const struct jinja_list *taken = loop->taken;
    const size_t count = taken->count;
    if (which == FIRST || which == LAST) {
        *out = jinja_bool(which == FIRST ? at == 0 : count <= at + 1);
    } else if (which == PREVITEM || which == NEXTITEM) {
        if (which == PREVITEM && at == 0) return jinja_undefined(run, out, "there is no previous item");
        if (which == NEXTITEM && count <= at + 1) return jinja_undefined(run, out, "there is no next item");
        *out = taken->item[which == PREVITEM ? at - 1 : at + 1];
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
    return 0;
}

/* ---- macros */

/* varargs, kwargs and caller, for a macro that uses them; what it does not use may not be given. */
static int bind_rest(struct jinja_run *run, const struct jinja_node *node, struct jinja_scope *scope,
                     const struct jinja_call *call, const bool *used)
{
    struct jinja_list *varargs;
    struct jinja_dict *kwargs;
    struct jinja_value caller;
    int rc = jinja_undefined(run, &caller, "No caller defined");
    if (!rc) rc = jinja_list_new(run, JINJA_LIST_TUPLE, 0, &varargs);
    if (!rc) rc = jinja_dict_new(run, 0, &kwargs);
    for (size_t i = node->other.count; !rc && i < call->positional_count; i++)
        rc = jinja_list_add(run, varargs, call->positional[i]);
    for (size_t i = 0; !rc && i < call->keyword_count; i++) {
        if (used[i]) continue;
        if (jinja_text_is(&call->keyword_names[i], "caller") && (node->op & JINJA_MACRO_USES_CALLER))
            caller = call->keyword_values[i];
        else
            rc = jinja_dict_set(run, kwargs, call->keyword_names[i], call->keyword_values[i]);
    }
    if (rc) return rc;
    const struct jinja_value *name = &node->value;
    if (kwargs->count && !(node->op & JINJA_MACRO_USES_KWARGS))
        return jinja_fail(run, HELM_E_FORMAT, "macro '%.*s' takes no keyword argument '%.*s'",
                          (int)name->as.text.bytes, name->as.text.data, (int)kwargs->key[0].as.text.bytes,
                          kwargs->key[0].as.text.data);
    if (varargs->count && !(node->op & JINJA_MACRO_USES_VARARGS))
        return jinja_fail(run, HELM_E_FORMAT, "macro '%.*s' takes not more than %zu arguments",
                          (int)name->as.text.bytes, name->as.text.data, node->other.count);
    if (node->op & JINJA_MACRO_USES_VARARGS)
        rc = jinja_scope_set(run, scope, jinja_text("varargs", 7), jinja_list_value(varargs));
    if (!rc && (node->op & JINJA_MACRO_USES_KWARGS))
        rc = jinja_scope_set(run, scope, jinja_text("kwargs", 6), jinja_dict_value(kwargs));
    if (!rc && (node->op & JINJA_MACRO_USES_CALLER))
        rc = jinja_scope_set(run, scope, jinja_text("caller", 6), caller);
    return rc;
}

static int bind_parameters(struct jinja_run *run, const struct jinja_node *node, struct jinja_scope *scope,
                           const struct jinja_call *call)
{
    size_t count = node->other.count, defaults = node->args->positional.count;
    bool *used = jinja_alloc(run, call->keyword_count + 1);
    if (!used) return run->code;
    int rc = 0;
    for (size_t i = 0; !rc && i < count; i++) {
        const struct jinja_value *name = &node->other.item[i]->value;
        struct jinja_value value = {.type = JINJA_ABSENT};
        if (i < call->positional_count) value = call->positional[i];
        for (size_t k = 0; k < call->keyword_count; k++) {
            const struct jinja_value *keyword = &call->keyword_names[k];
            if (keyword->as.text.bytes != name->as.text.bytes ||
                memcmp(keyword->as.text.data, name->as.text.data, name->as.text.bytes) != 0)
                continue;
            if (i < call->positional_count || used[k]) continue; /* the rest's check reports it */
            value = call->keyword_values[k];
            used[k] = true;
        }
        if (value.type == JINJA_ABSENT && i + defaults >= count)
            rc = jinja_eval(run, scope, node->args->positional.item[i + defaults - count], &value);
        else if (value.type == JINJA_ABSENT)
            rc = jinja_undefined(run, &value, "parameter '%.*s' was not provided", (int)name->as.text.bytes,
                                 name->as.text.data);
        if (!rc) rc = jinja_scope_set(run, scope, *name, value);
    }
    return rc ? rc : bind_rest(run, node, scope, call, used);
}

int jinja_call_macro(struct jinja_run *run, const struct jinja_macro *macro, const struct jinja_call *call,
                     struct jinja_value *out)
{
    struct jinja_scope *scope;
    struct jinja_buffer buffer = {0};
    if (++run->macro_depth > JINJA_NESTING_MAX)
        return jinja_fail(run, HELM_E_LIMIT, "macros call each other deeper than %d", JINJA_NESTING_MAX);
    int rc = jinja_scope_new(run, macro->scope, &scope);
    if (!rc) rc = bind_parameters(run, macro->node, scope, call);
    if (!rc) rc = jinja_exec(run, scope, &macro->node->list, &buffer);
    run->macro_depth--;
    *out = jinja_buffer_text(&buffer);
    return rc;
}

static int make_macro(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                      struct jinja_value *out)
{
    struct jinja_macro *macro = jinja_alloc(run, sizeof *macro);
    if (!macro) return run->code;
    *macro = (struct jinja_macro){node, scope};
    *out = (struct jinja_value){.type = JINJA_MACRO, .as.macro = macro};
    return 0;
}

static int exec_call_block(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                           struct jinja_buffer *out)
{
    struct jinja_value callee, caller, result;
    struct jinja_call call;
    int rc = jinja_eval(run, scope, node->a->a, &callee);
    if (!rc) rc = jinja_eval_arguments(run, scope, node->a->args, &call);
    if (!rc) rc = make_macro(run, scope, node->b, &caller);
    if (rc) return rc;
    size_t count = call.keyword_count;
    struct jinja_value *names = jinja_alloc(run, 2 * (count + 1) * sizeof *names),
                       *values = names + count + 1;
    if (!names) return run->code;
    for (size_t i = 0; i < count; i++) {
        names[i] = call.keyword_names[i];
        values[i] = call.keyword_values[i];
    }
    names[count] = jinja_text("caller", 6);
    values[count] = caller;
    call.keyword_names = names;
    call.keyword_values = values;
    call.keyword_count = count + 1;
    rc = jinja_call_value(run, scope, &callee, &call, &result);
    return rc ? rc : jinja_print(run, out, &result);
}

/* ---- the other statements */

static int exec_if(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                   struct jinja_buffer *out)
{
    for (size_t i = 0; i < node->list.count; i++) {
        const struct jinja_node *branch = node->list.item[i];
        struct jinja_value holds = jinja_bool(true);
        int rc = branch->a ? jinja_eval(run, scope, branch->a, &holds) : 0;
        if (rc) return rc;
        if (jinja_truth(&holds)) return jinja_exec(run, scope, &branch->list, out);
    }
    return 0;
}

/* A body's text, and the filters over it. */
static int capture(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                   struct jinja_value *out)
{
    struct jinja_scope *inner;
    struct jinja_buffer buffer = {0};
    int rc = jinja_scope_new(run, scope, &inner);
    if (!rc) rc = jinja_exec(run, inner, &node->list, &buffer);
    *out = jinja_buffer_text(&buffer);
    return rc || !node->b ? rc : jinja_eval_piped(run, scope, node->b, *out, out);
}

static int exec_with(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                     struct jinja_buffer *out)
{
    struct jinja_scope *inner;
    struct jinja_value value;
    int rc = jinja_scope_new(run, scope, &inner);
    /* values are evaluated outside: one does not see another's name */
    for (size_t i = 0; !rc && i + 1 < node->other.count; i += 2) {
        rc = jinja_eval(run, scope, node->other.item[i + 1], &value);
        if (!rc) rc = jinja_assign(run, inner, node->other.item[i], value);
    }
    return rc ? rc : jinja_exec(run, inner, &node->list, out);
}

static int exec_node(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_node *node,
                     struct jinja_buffer *out)
{
    struct jinja_value value;
    int rc;
    switch (node->kind) {
    case JINJA_NODE_DATA:
        return jinja_buffer_add(run, out, node->value.as.text.data, node->value.as.text.bytes);
    case JINJA_NODE_PRINT:
        rc = jinja_eval(run, scope, node->a, &value);
        return rc ? rc : jinja_print(run, out, &value);
    case JINJA_NODE_IF:
        return exec_if(run, scope, node, out);
    case JINJA_NODE_FOR:
        return exec_for(run, scope, node, out);
    case JINJA_NODE_SET:
        rc = jinja_eval(run, scope, node->b, &value);
        return rc ? rc : jinja_assign(run, scope, node->a, value);
    case JINJA_NODE_SETBLOCK:
        rc = capture(run, scope, node, &value);
        return rc ? rc : jinja_assign(run, scope, node->a, value);
    case JINJA_NODE_FILTERED:
        rc = capture(run, scope, node, &value);
        return rc ? rc : jinja_print(run, out, &value);
    case JINJA_NODE_WITH:
        return exec_with(run, scope, node, out);
    case JINJA_NODE_MACRO:
        rc = make_macro(run, scope, node, &value);
        return rc ? rc : jinja_scope_set(run, scope, node->value, value);
    case JINJA_NODE_CALLBLOCK:
        return exec_call_block(run, scope, node, out);
    case JINJA_NODE_SCOPELESS:
        return jinja_exec(run, scope, &node->list, out);
    case JINJA_NODE_BREAK:
        return JINJA_FLOW_BREAK;
    case JINJA_NODE_CONTINUE:
        return JINJA_FLOW_CONTINUE;
    default:
        return jinja_fail(run, HELM_E_INTERNAL, "an expression where a statement should be");
    }
}

int jinja_exec(struct jinja_run *run, struct jinja_scope *scope, const struct jinja_nodes *body,
               struct jinja_buffer *out)
{
    if (++run->depth > JINJA_EVAL_DEPTH_MAX)
        return jinja_fail(run, HELM_E_LIMIT, "nested deeper than %d", JINJA_EVAL_DEPTH_MAX);
    int rc = 0;
    for (size_t i = 0; !rc && i < body->count; i++) {
        run->line = body->item[i]->line;
        rc = jinja_step(run, 1);
        if (!rc) rc = exec_node(run, scope, body->item[i], out);
    }
    run->depth--;
    return rc;
}

static int set_variables(struct jinja_run *run, const struct jinja_input *input, struct jinja_scope *scope)
{
    struct jinja_value variables = jinja_none(), text;
    const char *name;
    json_t *value;
    int rc = 0;
    json_object_foreach((json_t *)input->own, name, value)
    {
        rc = jinja_own_text(run, json_string_value(value), json_string_length(value), &text);
        if (!rc) rc = jinja_scope_set(run, scope, jinja_text(name, strlen(name)), text);
        if (rc) return rc;
    }
    run->numbers = input->numbers;
    rc = jinja_from_json(run, input->variables, &variables);
    if (!rc && variables.type != JINJA_DICT)
        rc = jinja_fail(run, HELM_E_INTERNAL, "the variables are no object");
    for (size_t i = 0; !rc && i < variables.as.dict->count; i++)
        rc = jinja_scope_set(run, scope, variables.as.dict->key[i], variables.as.dict->value[i]);
    return rc;
}

/* What was rendered as the caller's own memory. */
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
    if (own) jinja_read_marks(run, buffer->data, buffer->length, *own);
    return 0;
}

static int render(const struct jinja_template *template, const struct jinja_input *input, char **text,
                  size_t *length, unsigned char **own, struct helm_err *err)
{
    struct jinja_run run = {.err = err,
                            .marks = own != NULL,
                            .own = &template->arena,
                            .own_key = input->own_key,
                            .arena.marked = own != NULL};
    struct jinja_buffer buffer = {0};
    struct jinja_scope *scope;
    *text = NULL;
    *length = 0;
    if (own) *own = NULL;
    run.arena.bytes_max = input->memory_bytes_max ? input->memory_bytes_max : JINJA_MEMORY_BYTES_MAX;
    run.output_max = input->output_bytes_max ? input->output_bytes_max : JINJA_OUTPUT_BYTES_MAX;
    run.now_s = input->now_s ? input->now_s : (int64_t)time(NULL);
    run.steps_max = UINT64_MAX; /* steps count what the template does, not the size of what it is given */
    int rc = jinja_scope_new(&run, NULL, &scope);
    if (!rc) rc = set_variables(&run, input, scope);
    run.steps = 0;
    run.steps_max = input->steps_max ? input->steps_max : JINJA_STEPS_MAX;
    if (!rc) rc = jinja_scope_new(&run, scope, &scope); /* a macro sees these; a set does not change them */
    if (!rc) rc = jinja_exec(&run, scope, &template->body, &buffer);
    if (!rc) rc = hand_out(&run, &buffer, text, own, err);
    if (!rc) *length = buffer.length;
    jinja_arena_free(&run.arena);
    return rc;
}

int jinja_render(const struct jinja_template *template, const struct jinja_input *input, char **text,
                 size_t *length, struct helm_err *err)
{
    return render(template, input, text, length, NULL, err);
}

int jinja_render_marked(const struct jinja_template *template, const struct jinja_input *input, char **text,
                        size_t *length, unsigned char **own, struct helm_err *err)
{
    return render(template, input, text, length, own, err);
}
