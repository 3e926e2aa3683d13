/* Plans as texts for the tests of plans: one that is good, changes of it, and refusals. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/plan/plan.h"

static const char good_text[] =
    "{'layers':28,'context_tokens':4096,'step_tokens':512,'slots':8,'page_tokens':32,'page_count':1024,"
    "'kv_dtype':'bf16','strategies':[{'name':'all-cpu'}],"
    "'ring_bytes':64,'stages':[{'layers':[0,9],'home':'gpu','bytes':100,'ms':1.5},{'layers':[10,10],'home':'"
    "stream','bytes':"
    "0},"
    "{'layers':[11,27],'home':'cpu','bytes':5000000000}],"
    "'host':{'limit':6000000000,'lines':[{'what':'weights','bytes':5000000000},{'what':'KV "
    "pages','bytes':7}],"
    "'total':5000000007},"
    "'vram':{'limit':null,'lines':[],'total':0}}";

/* JSON with ' for ". */
static inline json_t *json_of(const char *text)
{
    char copy[4096];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *at = copy; *at; at++) *at = *at == '\'' ? '"' : *at;
    json_t *json;
    struct helm_err err = {0};
    if (json_parse_bounded("test", copy, strlen(copy), sizeof copy, &json, &err)) fail_msg("%s", err.text);
    return json;
}

/* Replaces the member at "a/0/b" by `text`, or removes it when that is NULL. */
static inline void edit(json_t *json, const char *path, const char *text)
{
    char copy[128], *save = NULL;
    snprintf(copy, sizeof copy, "%s", path);
    char *key = strtok_r(copy, "/", &save), *next;
    for (; (next = strtok_r(NULL, "/", &save)); key = next)
        json =
            json_is_array(json) ? json_array_get(json, strtoul(key, NULL, 10)) : json_object_get(json, key);
    int rc;
    if (json_is_array(json)) {
        size_t index = strtoul(key, NULL, 10);
        rc = text ? json_array_set_new(json, index, json_of(text)) : json_array_remove(json, index);
    } else {
        rc = text ? json_object_set_new(json, key, json_of(text)) : json_object_del(json, key);
    }
    assert_int_equal(rc, 0);
}

static inline void refuses(json_t *json, int code, const char *text)
{
    struct plan plan;
    struct helm_err err = {0};
    assert_int_equal(plan_from_json(json, &plan, &err), code);
    if (!strstr(err.text, text)) fail_msg("'%s' does not say '%s'", err.text, text);
}
