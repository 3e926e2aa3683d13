/* Rendering: scopes, loops, macros, calls, and the tables of what templates may call.
 *
 * Called by jinja/exec.c's jinja_render and the files named in jinja.h. A scope's names are looked up from
 * the innermost outwards; a macro sees the scope that it was defined in. */
#pragma once

#include "client/text/jinja/ast.h"

struct jinja_template {
    struct jinja_arena arena;
    struct jinja_nodes body;
};

struct jinja_scope {
    struct jinja_scope *outer;
    struct jinja_dict names; /* keys are texts */
};

struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_scope *scope;
};

/* The loop variable. Items are taken from the source as they are needed, as Jinja does: a test in the loop's
 * head is evaluated just before its item's turn, or when loop.last or loop.length asks. */
struct jinja_loop {
    const struct jinja_node *node;
    struct jinja_scope *scope; /* around the loop */
    struct jinja_iterator source;
    struct jinja_list *taken; /* items that passed the test so far */
    size_t index0;
    bool ended;
    struct jinja_value changed; /* arguments of the last loop.changed() */
};

struct jinja_call {
    const char *name; /* of what is called, for messages */
    const struct jinja_value *positional;
    size_t positional_count;
    const struct jinja_value *keyword_names, *keyword_values;
    size_t keyword_count;
};

#define JINJA_PARAMETERS_MAX 6

/* A filter, test, method or function: its parameters by name (NULL ends them; those not given become
 * JINJA_ABSENT), or, with `raw`, the call as it stands. `self`: what it is applied to. */
struct jinja_callable {
    struct jinja_run *run;
    const char *name;
    int which;
    struct jinja_value self;
    const struct jinja_value *a; /* JINJA_PARAMETERS_MAX of them */
    const struct jinja_call *raw;
};
struct jinja_function {
    const char *name;
    struct jinja_value (*call)(const struct jinja_callable *c);
    int which; /* of those that share `call`: whatever tells it them apart */
    const char *parameters[JINJA_PARAMETERS_MAX];
    int required; /* of the parameters */
    bool raw;
};
struct jinja_bound {
    struct jinja_value self;
    const struct jinja_function *function;
};

/* The end of each table is a NULL name. */
/* "text".format(...): jinja/format.c */
struct jinja_value jinja_format_fields(const struct jinja_callable *c);

extern const struct jinja_function jinja_text_filters[], jinja_sequence_filters[], jinja_text_methods[],
    jinja_test_table[], jinja_global_table[];

/* NULL: there is none. */
const struct jinja_function *jinja_find_function(const struct jinja_function *table,
                                                 const struct jinja_value *name);
/* By name; one that does not exist is HELM_E_UNSUPPORTED. */
struct jinja_value jinja_apply_filter(struct jinja_run *run, const struct jinja_value *name,
                                      struct jinja_value input, const struct jinja_call *call);
bool jinja_apply_test(struct jinja_run *run, const struct jinja_value *name, struct jinja_value input,
                      const struct jinja_call *call);
struct jinja_value jinja_call_value(struct jinja_run *run, const struct jinja_value *callee,
                                    const struct jinja_call *call);

struct jinja_value jinja_eval(struct jinja_run *run, const struct jinja_node *node);
/* The filters of a filter or set block, over the text that its body made. */
struct jinja_value jinja_eval_piped(struct jinja_run *run, const struct jinja_node *node,
                                    struct jinja_value piped);
struct jinja_call jinja_eval_arguments(struct jinja_run *run, const struct jinja_arguments *args);

/* The text that a macro's body makes. */
struct jinja_value jinja_call_macro(struct jinja_run *run, const struct jinja_macro *macro,
                                    const struct jinja_call *call);

/* A new innermost scope in `outer`. Returns the one before, which becomes run->scope again. */
struct jinja_scope *jinja_scope_enter(struct jinja_run *run, struct jinja_scope *outer);
/* In the innermost scope. */
void jinja_scope_set(struct jinja_run *run, struct jinja_value name, struct jinja_value value);

/* false: the loop variable has no such attribute. */
bool jinja_loop_attribute(struct jinja_run *run, const struct jinja_value *loop,
                          const struct jinja_value *name, struct jinja_value *out);
/* false: the value has no method of that name. One that is refused is an error. */
bool jinja_method_find(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *name,
                       struct jinja_value *out);

/* ---- shared by filters and methods */

/* The value of a parameter, or `fallback` if it was not given; another type is an error that names it. */
int64_t jinja_parameter_whole(const struct jinja_callable *c, int index, int64_t fallback);
struct jinja_value jinja_parameter_text(const struct jinja_callable *c, int index, const char *fallback);
bool jinja_parameter_truth(const struct jinja_callable *c, int index, bool fallback);
struct jinja_value jinja_escape(struct jinja_run *run, struct jinja_value in);
/* All positional arguments of a call, as a tuple. */
struct jinja_value jinja_given(struct jinja_run *run, const struct jinja_call *call);

enum jinja_case { JINJA_CASE_UPPER, JINJA_CASE_LOWER, JINJA_CASE_TITLE, JINJA_CASE_CAPITALIZE };
struct jinja_value jinja_change_case(struct jinja_run *run, struct jinja_value text, enum jinja_case to);
/* Cuts white space, or the characters of `set`, off the ends. */
struct jinja_value jinja_strip(struct jinja_run *run, struct jinja_value text, const struct jinja_value *set,
                               bool left, bool right);
struct jinja_value jinja_replace(struct jinja_run *run, struct jinja_value text, struct jinja_value old,
                                 struct jinja_value fresh, int64_t count);
struct jinja_list *jinja_split_lines(struct jinja_run *run, struct jinja_value text, bool keep_ends);
struct jinja_value jinja_join(struct jinja_run *run, struct jinja_value items, struct jinja_value between,
                              bool strict);
/* Every (key, value) of a dict, as tuples. */
struct jinja_list *jinja_dict_items(struct jinja_run *run, const struct jinja_dict *dict,
                                    enum jinja_list_kind kind);
