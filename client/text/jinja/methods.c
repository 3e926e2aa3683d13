/* Methods of lists, dicts and the loop variable, and the way to those of texts (jinja/methods_text.c). See
 * jinja/eval.h. Called by jinja_getattr; the tables are at the end. Methods that would change a value are
 * refused, as transformers' sandbox does. */
#include "client/text/jinja/eval.h"

/* ---- lists */

static struct jinja_value list_count(const struct jinja_callable *c)
{
    int64_t count = 0;
    for (size_t i = 0; i < c->self.as.list->count; i++)
        count += jinja_equal(c->run, &c->self.as.list->item[i], &c->a[0]);
    return jinja_int(count);
}

static struct jinja_value list_index(const struct jinja_callable *c)
{
    for (size_t i = 0; i < c->self.as.list->count; i++)
        if (jinja_equal(c->run, &c->self.as.list->item[i], &c->a[0])) return jinja_int((int64_t)i);
    jinja_fail(c->run, HELM_E_FORMAT, "'index': the item is not in the list");
}

/* ---- dicts */

static struct jinja_value dict_get(const struct jinja_callable *c)
{
    const struct jinja_value *found = jinja_dict_find(c->run, c->self.as.dict, c->a[0]);
    return found ? *found : c->a[1].type == JINJA_ABSENT ? jinja_none() : c->a[1];
}

static struct jinja_value dict_items(const struct jinja_callable *c)
{
    return jinja_list_value(jinja_dict_items(c->run, c->self.as.dict, JINJA_LIST_ITEMS));
}

static struct jinja_value dict_side(const struct jinja_callable *c)
{
    enum jinja_list_kind kind = (enum jinja_list_kind)c->which;
    const struct jinja_dict *dict = c->self.as.dict;
    struct jinja_list *list = jinja_list_new(c->run, kind, dict->count);
    for (size_t i = 0; i < dict->count; i++)
        jinja_list_add(c->run, list, kind == JINJA_LIST_KEYS ? dict->key[i] : dict->value[i]);
    return jinja_list_value(list);
}

static struct jinja_value itself(const struct jinja_callable *c)
{
    return c->self; /* values do not change, so a copy is the same */
}

/* ---- the loop variable */

static struct jinja_value loop_cycle(const struct jinja_callable *c)
{
    if (!c->raw->positional_count) jinja_fail(c->run, HELM_E_FORMAT, "no items for cycling given");
    return c->raw->positional[c->self.as.loop->index0 % c->raw->positional_count];
}

static struct jinja_value loop_changed(const struct jinja_callable *c)
{
    struct jinja_value *last = &c->self.as.loop->changed;
    const struct jinja_value before = *last;
    *last = jinja_given(c->run, c->raw);
    return jinja_bool(before.type == JINJA_ABSENT || !jinja_equal(c->run, &before, last));
}

/* ---- tables, and the names of methods that exist in Python and are not offered here */

static const char *const refused_of_list[] = {"append", "clear",   "extend", "insert", "pop",
                                              "remove", "reverse", "sort",   NULL};
static const char *const refused_of_dict[] = {"clear",      "fromkeys", "pop", "popitem",
                                              "setdefault", "update",   NULL};
static const char *const refused_of_text[] = {"casefold",   "center",      "encode",    "expandtabs",
                                              "format_map", "isascii",     "isdecimal", "isidentifier",
                                              "isnumeric",  "isprintable", "istitle",   "ljust",
                                              "maketrans",  "rindex",      "rjust",     "swapcase",
                                              "translate",  "zfill",       NULL};

static const struct jinja_function list_methods[] = {
    {.name = "copy", .call = itself},
    {.name = "count", .call = list_count, .parameters = {"value"}, .required = 1},
    {.name = "index", .call = list_index, .parameters = {"value"}, .required = 1},
    {.name = NULL},
};

static const struct jinja_function dict_methods[] = {
    {.name = "copy", .call = itself},
    {.name = "get", .call = dict_get, .parameters = {"key", "default"}, .required = 1},
    {.name = "items", .call = dict_items},
    {.name = "keys", .call = dict_side, .which = JINJA_LIST_KEYS},
    {.name = "values", .call = dict_side, .which = JINJA_LIST_VALUES},
    {.name = NULL},
};

static const struct jinja_function loop_methods[] = {
    {.name = "changed", .call = loop_changed, .raw = true},
    {.name = "cycle", .call = loop_cycle, .raw = true},
    {.name = NULL},
};

struct methods {
    const struct jinja_function *offered;
    const char *const *refused;
};

bool jinja_method_find(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *name,
                       struct jinja_value *out)
{
    static const char *const none[] = {NULL};
    static const struct methods of_text = {jinja_text_methods, refused_of_text},
                                of_dict = {dict_methods, refused_of_dict},
                                of_list = {list_methods, refused_of_list}, of_loop = {loop_methods, none};
    const struct methods *methods = self->type == JINJA_TEXT       ? &of_text
                                    : self->type == JINJA_DICT     ? &of_dict
                                    : self->type == JINJA_LOOP     ? &of_loop
                                    : jinja_is_sequence_kind(self) ? &of_list
                                                                   : NULL;
    if (!methods) return false;
    const struct jinja_function *method = jinja_find_function(methods->offered, name);
    if (method) {
        struct jinja_bound *bound = jinja_alloc(run, sizeof *bound);
        *bound = (struct jinja_bound){*self, method};
        *out = (struct jinja_value){.type = JINJA_METHOD, .as.method = bound};
        return true;
    }
    const char *const *refused = methods->refused;
    while (*refused && !jinja_text_is(name, *refused)) refused++;
    if (!*refused) return false;
    if (self->type == JINJA_TEXT)
        jinja_fail(run, HELM_E_UNSUPPORTED, "the method '%s' of a %s", *refused, jinja_type_name(self));
    /* the sandbox's way: what would change a value is not there, and says so when it is used */
    *out = jinja_undefined(run, "templates may not change a %s with '%s'", jinja_type_name(self), *refused);
    return true;
}
