/* Methods of lists, dicts and the loop variable, and the way to those of texts (jinja/methods_text.c). See
 * jinja/eval.h. Called by jinja_getattr; the tables are at the end. Methods that would change a value are
 * refused, as transformers' sandbox does. */
#include "client/text/jinja/eval.h"

/* ---- lists */

static int list_count(const struct jinja_callable *c, struct jinja_value *out)
{
    int64_t count = 0;
    int rc = 0;
    for (size_t i = 0; !rc && i < c->self.as.list->count; i++) {
        bool same;
        rc = jinja_equal(c->run, &c->self.as.list->item[i], &c->a[0], &same);
        count += same;
    }
    *out = jinja_int(count);
    return rc;
}

static int list_index(const struct jinja_callable *c, struct jinja_value *out)
{
    for (size_t i = 0; i < c->self.as.list->count; i++) {
        bool same;
        int rc = jinja_equal(c->run, &c->self.as.list->item[i], &c->a[0], &same);
        *out = jinja_int((int64_t)i);
        if (rc || same) return rc;
    }
    return jinja_fail(c->run, HELM_E_FORMAT, "'index': the item is not in the list");
}

/* ---- dicts */

static int dict_get(const struct jinja_callable *c, struct jinja_value *out)
{
    const struct jinja_value *found;
    int rc = jinja_dict_find(c->run, c->self.as.dict, c->a[0], &found);
    *out = found ? *found : c->a[1].type == JINJA_ABSENT ? jinja_none() : c->a[1];
    return rc;
}

static int dict_items(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_list *list;
    int rc = jinja_dict_items(c->run, c->self.as.dict, JINJA_LIST_ITEMS, &list);
    if (!rc) *out = jinja_list_value(list);
    return rc;
}

static int dict_side(const struct jinja_callable *c, struct jinja_value *out)
{
    enum jinja_list_kind kind = (enum jinja_list_kind)c->which;
    const struct jinja_dict *dict = c->self.as.dict;
    struct jinja_list *list;
    int rc = jinja_list_new(c->run, kind, dict->count, &list);
    for (size_t i = 0; !rc && i < dict->count; i++)
        rc = jinja_list_add(c->run, list, kind == JINJA_LIST_KEYS ? dict->key[i] : dict->value[i]);
    if (!rc) *out = jinja_list_value(list);
    return rc;
}

static int itself(const struct jinja_callable *c, struct jinja_value *out)
{
    *out = c->self; /* values do not change, so a copy is the same */
    return 0;
}

/* ---- the loop variable */

static int loop_cycle(const struct jinja_callable *c, struct jinja_value *out)
{
    if (!c->raw->positional_count) return jinja_fail(c->run, HELM_E_FORMAT, "no items for cycling given");
    *out = c->raw->positional[c->self.as.loop->index0 % c->raw->positional_count];
    return 0;
}

static int loop_changed(const struct jinja_callable *c, struct jinja_value *out)
{
    struct jinja_list *now;
    struct jinja_value *last = &c->self.as.loop->changed, given;
    bool same = false;
    int rc = jinja_list_new(c->run, JINJA_LIST_TUPLE, c->raw->positional_count, &now);
    for (size_t i = 0; !rc && i < c->raw->positional_count; i++)
        rc = jinja_list_add(c->run, now, c->raw->positional[i]);
    if (rc) return rc;
    given = jinja_list_value(now);
    if (last->type != JINJA_ABSENT) rc = jinja_equal(c->run, last, &given, &same);
    *last = given;
    *out = jinja_bool(!same);
    return rc;
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

int jinja_method_find(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *name,
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
    if (!methods) return 1;
    const struct jinja_function *method = jinja_find_function(methods->offered, name);
    if (method) return jinja_bind_method(run, *self, method, out);
    const char *const *refused = methods->refused;
    while (*refused && !jinja_text_is(name, *refused)) refused++;
    if (!*refused) return 1;
    /* the sandbox's way: what would change a value is not there, and says so when it is used */
    if (self->type != JINJA_TEXT)
        return jinja_undefined(run, out, "templates may not change a %s with '%s'", jinja_type_name(self),
                               *refused);
    return jinja_fail(run, HELM_E_UNSUPPORTED, "the method '%s' of a %s", *refused, jinja_type_name(self));
}
