/* How much a model is to think: reasoning_effort, reasoning.effort, thinking.type, think and enable_thinking
 * are one thing. See ask.h. */
#include <string.h>

#include "client/gateway/ask.h"
#include "common/base/words.h"

static const char *const levels[] = {
    [EFFORT_NONE] = "none", [EFFORT_MINIMAL] = "minimal", [EFFORT_LOW] = "low", [EFFORT_MEDIUM] = "medium",
    [EFFORT_HIGH] = "high", [EFFORT_XHIGH] = "xhigh",     [EFFORT_MAX] = "max"};
#define LEVELS (sizeof levels / sizeof *levels)

static enum ask_effort level_of(const char *name, size_t length)
{
    for (size_t i = EFFORT_NONE; i < LEVELS; i++)
        if (strlen(levels[i]) == length && memcmp(levels[i], name, length) == 0) return (enum ask_effort)i;
    return EFFORT_UNSAID;
}

/* A request may say it twice: off stays off, and a level says more than on. */
static bool say(struct ask_reader *r, enum ask_effort effort)
{
    const bool says_less = r->effort == EFFORT_NONE || (r->effort != EFFORT_UNSAID && effort == EFFORT_ON);
    if (!says_less) r->effort = effort;
    return true;
}

bool ask_take_effort(struct ask_reader *r, const json_t *value)
{
    const char *name = json_string_value(value);
    const enum ask_effort effort = name ? level_of(name, strlen(name)) : EFFORT_UNSAID;
    if (effort != EFFORT_UNSAID) return say(r, effort);
    return refuse(r->refusal, 400, "invalid_value", r->param,
                  "'%s' is none of none, minimal, low, medium, high, xhigh and max", r->param);
}

bool ask_take_think(struct ask_reader *r, const json_t *value)
{
    bool think = false;
    if (json_is_string(value)) return ask_take_effort(r, value);
    return ask_take_flag(r, value, &think) && say(r, think ? EFFORT_ON : EFFORT_NONE);
}

bool ask_take_budget(struct ask_reader *r, const json_t *value)
{
    if (json_is_integer(value) && json_integer_value(value) == 0) return say(r, EFFORT_NONE);
    return ask_settle_member(r, "", r->param, value);
}

static bool take_type(struct ask_reader *r, const json_t *value)
{
    const char *type = json_string_value(value);
    if (WORD_IS(type, "disabled")) return say(r, EFFORT_NONE);
    if (WORD_IS(type, "enabled", "adaptive", "auto")) return say(r, EFFORT_ON);
    return refuse(r->refusal, 400, "invalid_value", "thinking",
                  "'thinking' has no type of enabled, adaptive and disabled");
}

bool ask_take_thinking(struct ask_reader *r, const json_t *value)
{
    static const struct ask_field rows[] = {{"type", ASK_CHATS | ASK_ANTHROPIC, take_type}};
    static const struct ask_fields fields = {ASK_ROWS(rows)};
    if (json_is_boolean(value) && r->ask->kind & ASK_CHATS) return ask_take_think(r, value);
    if (!json_is_object(value)) return ask_wrong_type(r, "an object");
    return ask_take_fields(r, "thinking.", value, &fields);
}

static const struct ask_field reasoning[] = {{"effort", ASK_CHATS | ASK_RESPONSE, ask_take_effort},
                                             {"enabled", ASK_CHATS, ask_take_think}};
const struct ask_fields ask_reasoning = {ASK_ROWS(reasoning)};

/* The level of those that the template knows that is nearest to the one asked for; *length: of its name. */
static const char *nearest(const char *known, enum ask_effort wanted, size_t *length)
{
    const char *best = NULL;
    int least = (int)LEVELS;
    for (const char *at = known; *at;) {
        const size_t n = strcspn(at, "|");
        const int away = (int)level_of(at, n) - (int)wanted, distance = away < 0 ? -away : away;
        if (distance <= least) { /* of two as near as each other the later, higher one */
            least = distance;
            best = at;
            *length = n;
        }
        at += n + (at[n] == '|');
    }
    return best;
}

/* A variable that the request does not set itself. */
static void put(json_t *variables, const char *key, json_t *value)
{
    if (json_object_get(variables, key))
        json_decref(value);
    else
        json_object_set_new(variables, key, value);
}

bool ask_effort_variables(struct ask_reader *r)
{
    static const char *const flags[] = {"enable_thinking", "thinking"}; /* Qwen's and others'; DeepSeek's */
    const struct reasoning_tags *tags = r->model->tags;
    if (r->extra && !json_is_object(r->extra))
        return refuse(r->refusal, 400, "invalid_type", "chat_template_kwargs",
                      "'chat_template_kwargs' is not an object");
    for (size_t i = 0; i < 2 && r->effort == EFFORT_UNSAID; i++) {
        const json_t *flag = json_object_get(r->extra, flags[i]);
        if (json_is_boolean(flag)) r->effort = json_is_true(flag) ? EFFORT_ON : EFFORT_NONE;
    }
    if (r->effort == EFFORT_UNSAID) return true;
    json_t *variables = r->extra ? json_copy((json_t *)r->extra) : json_object();
    if (!variables) return refuse_err(r->refusal, NULL, HELM_E_NOMEM, "no memory for the request");
    for (size_t i = 0; i < 2; i++) put(variables, flags[i], json_boolean(r->effort > EFFORT_MINIMAL));
    if (r->effort != EFFORT_ON) {
        size_t length = strlen(levels[r->effort]);
        const char *name =
            tags && tags->efforts ? nearest(tags->efforts, r->effort, &length) : levels[r->effort];
        put(variables, "reasoning_effort", json_stringn(name, length));
    }
    json_decref(r->ask->extra);
    r->extra = r->ask->extra = variables;
    return true;
}
