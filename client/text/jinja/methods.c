/* Methods of lists, dicts and the loop variable, and the way to those of texts (jinja/methods_text.c). See
 * jinja/eval.h. Called by jinja_getattr; the tables are at the end. Methods that would change a value are
 * refused, as transformers' sandbox does. */
#include "client/text/jinja/jinja.h"
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

static int dict_side(const struct jinja_callable *c, const struct jinja_value *side,
                     enum jinja_list_kind kind, struct jinja_value *out)
{
    struct jinja_list *list;
    int rc = jinja_list_new(c->run, kind, c->self.as.dict->count, &list);
    for (size_t i = 0; !rc && i < c->self.as.dict->count; i++) rc = jinja_list_add(c->run, list, side[i]);
    if (!rc) *out = jinja_list_value(list);
    return rc;
}

static int dict_keys(const struct jinja_callable *c, struct jinja_value *out)
{
    return dict_side(c, c->self.as.dict->key, JINJA_LIST_KEYS, out);
}

static int dict_values(const struct jinja_callable *c, struct jinja_value *out)
{
    return dict_side(c, c->self.as.dict->value, JINJA_LIST_VALUES, out);
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

/* ---- tables; a NULL function: the method exists in Python and is not offered here */

static const struct jinja_function list_methods[] = {
    {"append", NULL, {NULL}, 0, false}, {"clear", NULL, {NULL}, 0, false},
    {"copy", itself, {NULL}, 0, false}, {"count", list_count, {"value"}, 1, false},
    {"extend", NULL, {NULL}, 0, false}, {"index", list_index, {"value"}, 1, false},
    {"insert", NULL, {NULL}, 0, false}, {"pop", NULL, {NULL}, 0, false},
    {"remove", NULL, {NULL}, 0, false}, {"reverse", NULL, {NULL}, 0, false},
    {"sort", NULL, {NULL}, 0, false},   {NULL, NULL, {NULL}, 0, false},
};

static const struct jinja_function dict_methods[] = {
    {"clear", NULL, {NULL}, 0, false},         {"copy", itself, {NULL}, 0, false},
    {"fromkeys", NULL, {NULL}, 0, false},      {"get", dict_get, {"key", "default"}, 1, false},
    {"items", dict_items, {NULL}, 0, false},   {"keys", dict_keys, {NULL}, 0, false},
    {"pop", NULL, {NULL}, 0, false},           {"popitem", NULL, {NULL}, 0, false},
    {"setdefault", NULL, {NULL}, 0, false},    {"update", NULL, {NULL}, 0, false},
    {"values", dict_values, {NULL}, 0, false}, {NULL, NULL, {NULL}, 0, false},
};

static const struct jinja_function loop_methods[] = {
    {"changed", loop_changed, {NULL}, 0, true},
    {"cycle", loop_cycle, {NULL}, 0, true},
    {NULL, NULL, {NULL}, 0, false},
};

int jinja_method_find(struct jinja_run *run, const struct jinja_value *self, const struct jinja_value *name,
                      struct jinja_value *out)
{
    const struct jinja_function *table = self->type == JINJA_TEXT   ? jinja_text_methods
                                         : self->type == JINJA_DICT ? dict_methods
                                         : self->type == JINJA_LOOP ? loop_methods
                                         : self->type == JINJA_LIST && self->as.list->kind <= JINJA_LIST_RANGE
                                             ? list_methods
                                             : NULL;
    const struct jinja_function *method = table ? jinja_find_function(table, name) : NULL;
    if (!method) return 1;
    if (method->call) return jinja_bind_method(run, *self, method, out);
    /* the sandbox's way: what would change a value is not there, and says so when it is used */
    if (self->type != JINJA_TEXT)
        return jinja_undefined(run, out, "templates may not change a %s with '%s'", jinja_type_name(self),
                               method->name);
    return jinja_fail(run, HELM_E_UNSUPPORTED, "the method '%s' of a %s", method->name,
                      jinja_type_name(self));
}
