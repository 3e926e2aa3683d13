/* The tables of tool-call syntaxes and of reasoning tags. See syntax.h. */
#include "client/text/answer/syntax.h"

#include <stdio.h>
#include <string.h>

/* DeepSeek's markers have U+FF5C and U+2581 in them. */
#define BAR                "\xEF\xBD\x9C"
#define LOW                "\xE2\x96\x81"
#define DEEPSEEK(a, b, c)  "<" BAR a LOW b LOW c BAR ">"
#define DEEPSEEK_SEPARATOR "<" BAR "tool" LOW "sep" BAR ">"
#define DSML               BAR "DSML" BAR
#define DEEPSEEK_XML(name)                                                                                   \
    .form = CALL_PARAMETERS, .open = "<" DSML name ">", .close = "</" DSML name ">",                         \
    .call_open = "<" DSML "invoke name=\"", .name_end = "\"", .call_close = "</" DSML "invoke>",             \
    .key_open = "<" DSML "parameter name=\"", .key_end = "\"", .value_close = "</" DSML "parameter>",        \
    .tags = true, .kinds = true, .begins = true

/* The first row whose texts a template has is its syntax: a row stands before those whose sign it has, too. */
static const struct call_syntax calls[] = {
    {.family = "harmony", .form = CALL_CHANNEL, .shown = HARMONY_CHANNEL, .shown_too = HARMONY_MESSAGE},
    {.family = "harmony", .form = CALL_CHANNEL, .shown = HARMONY_MESSAGE, .shown_too = "analysis"},
    {.family = "Gemma 4",
     .form = CALL_BARE,
     .shown = "<|tool_call>",
     .open = "<|tool_call>",
     .close = "<tool_call|>",
     .call_open = "call:",
     .name_end = "{"},
    {.family = "Kimi",
     .form = CALL_NAMED,
     .shown = "<|tool_call_begin|>",
     .open = "<|tool_calls_section_begin|>",
     .close = "<|tool_calls_section_end|>",
     .call_open = "<|tool_call_begin|>",
     .name_end = "<|tool_call_argument_begin|>",
     .call_close = "<|tool_call_end|>",
     .begins = true,
     .counted = true},
    {.family = "DeepSeek V4", .shown = DSML, .shown_too = "tool_calls", DEEPSEEK_XML("tool_calls")},
    {.family = "DeepSeek V3.2", .shown = DSML, .shown_too = "function_calls", DEEPSEEK_XML("function_calls")},
    {.family = "DeepSeek V3",
     .form = CALL_NAMED,
     .shown = DEEPSEEK("tool", "call", "begin"),
     .shown_too = "```json",
     .open = DEEPSEEK("tool", "calls", "begin"),
     .close = DEEPSEEK("tool", "calls", "end"),
     .call_open = DEEPSEEK("tool", "call", "begin") "function" DEEPSEEK_SEPARATOR,
     .name_end = "\n```json\n",
     .call_close = "```" DEEPSEEK("tool", "call", "end"),
     .begins = true},
    {.family = "DeepSeek V3.1",
     .form = CALL_NAMED,
     .shown = DEEPSEEK("tool", "call", "begin"),
     .open = DEEPSEEK("tool", "calls", "begin"),
     .close = DEEPSEEK("tool", "calls", "end"),
     .call_open = DEEPSEEK("tool", "call", "begin"),
     .name_end = DEEPSEEK_SEPARATOR,
     .call_close = DEEPSEEK("tool", "call", "end"),
     .begins = true},
    {.family = "MiniMax",
     .form = CALL_PARAMETERS,
     .shown = "minimax:tool_call",
     .open = "<minimax:tool_call>",
     .close = "</minimax:tool_call>",
     .call_open = "<invoke name=\"",
     .name_end = "\"",
     .call_close = "</invoke>",
     .key_open = "<parameter name=\"",
     .key_end = "\"",
     .value_close = "</parameter>",
     .tags = true},
    {.family = "GLM",
     .form = CALL_PARAMETERS,
     .shown = "<arg_key>",
     .open = "<tool_call>",
     .close = "</tool_call>",
     .key_open = "<arg_key>",
     .key_end = "</arg_key>",
     .value_open = "<arg_value>",
     .value_close = "</arg_value>"},
    {.family = "Qwen3-Coder",
     .form = CALL_PARAMETERS,
     .shown = "<function=",
     .open = "<tool_call>",
     .close = "</tool_call>",
     .call_open = "<function=",
     .name_end = ">",
     .call_close = "</function>",
     .key_open = "<parameter=",
     .key_end = ">",
     .value_close = "</parameter>",
     .begins = true,
     .lines = true},
    {.family = "Hermes",
     .form = CALL_OBJECT,
     .shown = "<tool_call>",
     .key = "arguments",
     .open = "<tool_call>",
     .close = "</tool_call>"},
    {.family = "Mistral",
     .form = CALL_LISTED,
     .shown = "[TOOL_CALLS]",
     .key = "arguments",
     .open = "[TOOL_CALLS]"},
    {.family = "Llama 3", .form = CALL_WHOLE, .shown = "<|start_header_id|>", .key = "parameters"},
};

static const struct reasoning_tags reasoning[] = {
    {.family = "harmony",
     .shown = HARMONY_CHANNEL,
     .shown_too = HARMONY_MESSAGE,
     .efforts = "low|medium|high",
     .member = "thinking"},
    {.family = "harmony",
     .shown = HARMONY_MESSAGE,
     .shown_too = "analysis",
     .efforts = "low|medium|high",
     .member = "thinking"},
    {.family = "Gemma 4",
     .shown = "<|channel>",
     .open = "<|channel>thought",
     .close = "<channel|>",
     .anywhere = true,
     .member = "reasoning_content"},
    {.family = "Mistral",
     .shown = "[THINK]",
     .open = "[THINK]",
     .close = "[/THINK]",
     .anywhere = true,
     .efforts = "none|high",
     .member = "reasoning_content"},
    {.family = "<think>",
     .shown = "think>",
     .open = "<think>",
     .close = "</think>",
     .member = "reasoning_content"},
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

static bool shows(const char *text, const char *sign, const char *too)
{
    return strstr(text, sign) && (!too || strstr(text, too));
}

const struct call_syntax *call_syntax_of(const char *text)
{
    if (!text || !strstr(text, "tools")) return NULL;
    for (size_t i = 0; i < COUNT(calls); i++)
        if (shows(text, calls[i].shown, calls[i].shown_too)) return &calls[i];
    return NULL;
}

const struct call_syntax *call_syntax_row(size_t index)
{
    return index < COUNT(calls) ? &calls[index] : NULL;
}

void call_syntax_families(char *text, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < COUNT(calls) && used < size; i++)
        if (i == 0 || strcmp(calls[i].family, calls[i - 1].family) != 0)
            used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", calls[i].family);
}

/* Whether `token` is in `marker`: markers may hold several tokens. */
static bool holds(const char *marker, const char *token)
{
    return marker && strstr(marker, token);
}

static bool is_one_of(const char *const *names, size_t count, const char *token)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], token) == 0) return true;
    return false;
}

static bool is_harmony(const char *token)
{
    static const char *const names[] = {HARMONY_START, HARMONY_CHANNEL, HARMONY_MESSAGE, HARMONY_END,
                                        "<|return|>",  "<|call|>",      "<|constrain|>"};
    return is_one_of(names, COUNT(names), token);
}

bool call_syntax_has_token(const struct call_syntax *s, const char *token)
{
    static const char *const listed[] = {"[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"};
    if (!s || !*token) return false;
    if (s->form == CALL_CHANNEL) return is_harmony(token);
    if (s->form == CALL_LISTED) return is_one_of(listed, COUNT(listed), token);
    if (s->form == CALL_WHOLE) return strcmp(token, "<|python_tag|>") == 0;
    if (s->form == CALL_BARE && strcmp(token, "<|\"|>") == 0) return true;
    return holds(s->open, token) || holds(s->close, token) || holds(s->call_open, token) ||
           holds(s->name_end, token) || holds(s->call_close, token) || holds(s->key_open, token) ||
           holds(s->key_end, token) || holds(s->value_open, token) || holds(s->value_close, token);
}

const struct reasoning_tags *reasoning_tags_row(size_t index)
{
    return index < COUNT(reasoning) ? &reasoning[index] : NULL;
}

const struct reasoning_tags *reasoning_tags_of(const char *text)
{
    for (size_t i = 0; text && i < COUNT(reasoning); i++)
        if (shows(text, reasoning[i].shown, reasoning[i].shown_too)) return &reasoning[i];
    return &reasoning[COUNT(reasoning) - 1];
}

bool reasoning_is_shown(const char *text)
{
    const struct reasoning_tags *tags = reasoning_tags_of(text);
    return text && (!tags->open || strstr(text, tags->shown));
}

bool reasoning_has_token(const struct reasoning_tags *tags, const char *token)
{
    if (!*token) return false;
    return tags->open ? holds(tags->open, token) || strcmp(tags->close, token) == 0 : is_harmony(token);
}

static bool ends_with(const char *text, size_t length, const char *end)
{
    const size_t bytes = strlen(end);
    return length >= bytes && memcmp(text + length - bytes, end, bytes) == 0;
}

/* The message that a harmony prompt has begun. */
static const char *harmony_tail(const char *prompt, size_t length)
{
    static const char start[] = HARMONY_START;
    const size_t bytes = sizeof start - 1;
    for (size_t at = length; at >= bytes; at--)
        if (memcmp(prompt + at - bytes, start, bytes) == 0) return prompt + at;
    return prompt + length;
}

enum reasoning_at reasoning_after(const struct reasoning_tags *tags, const char *prompt, size_t length)
{
    if (!tags->open) {
        const char *tail = harmony_tail(prompt, length);
        const size_t bytes = (size_t)(prompt + length - tail);
        if (!memmem(tail, bytes, HARMONY_MESSAGE, strlen(HARMONY_MESSAGE))) return REASONING_FREE;
        return memmem(tail, bytes, "analysis", 8) ? REASONING_INSIDE : REASONING_CLOSED;
    }
    while (length && strchr(" \t\r\n", prompt[length - 1])) length--;
    if (ends_with(prompt, length, tags->open)) return REASONING_INSIDE;
    return ends_with(prompt, length, tags->close) ? REASONING_CLOSED : REASONING_FREE;
}
