/* The tables of tool-call syntaxes and of reasoning tags. See syntax.h. */
#include "client/text/answer/syntax.h"
#include "common/base/words.h"

#include <stdio.h>
#include <string.h>

/* Parts of a row: texts of a template that show it, and what stands around calls, names, keys and values. */
#define FAMILY(called, how)       .family = (called), .form = (how)
#define SHOWN(...)                SHOWN_(__VA_ARGS__, NULL, NULL)
#define SHOWN_(sign, too, ...)    .shown = (sign), .shown_too = (too)
#define AROUND(before, after)     .open = (before), .close = (after)
#define CALL(before, name, after) .call_open = (before), .name_end = (name), .call_close = (after)
#define KEY(before, after)        .key_open = (before), .key_end = (after)

/* DeepSeek's markers have U+FF5C and U+2581 in them. */
#define BAR                "\xEF\xBD\x9C"
#define LOW                "\xE2\x96\x81"
#define DEEPSEEK(a, b, c)  "<" BAR a LOW b LOW c BAR ">"
#define DEEPSEEK_CALLS     AROUND(DEEPSEEK("tool", "calls", "begin"), DEEPSEEK("tool", "calls", "end"))
#define DEEPSEEK_BEGIN     DEEPSEEK("tool", "call", "begin")
#define DEEPSEEK_END       DEEPSEEK("tool", "call", "end")
#define DEEPSEEK_SEPARATOR "<" BAR "tool" LOW "sep" BAR ">"
#define DSML               BAR "DSML" BAR
#define DEEPSEEK_XML(called, name)                                                                           \
    FAMILY(called, CALL_PARAMETERS), SHOWN(DSML, name), AROUND("<" DSML name ">", "</" DSML name ">"),       \
        CALL("<" DSML "invoke name=\"", "\"", "</" DSML "invoke>"), KEY("<" DSML "parameter name=\"", "\""), \
        .value_close = "</" DSML "parameter>", .tags = true, .kinds = true, .begins = true

/* The first row whose texts a template has is its syntax: a row stands before those whose sign it has,
 * too. */
static const struct call_syntax calls[] = {
    {FAMILY("harmony", CALL_CHANNEL), SHOWN(HARMONY_CHANNEL, HARMONY_MESSAGE)},
    {FAMILY("harmony", CALL_CHANNEL), SHOWN(HARMONY_MESSAGE, "analysis")},
    {FAMILY("Gemma 4", CALL_BARE), SHOWN("<|tool_call>"), AROUND("<|tool_call>", "<tool_call|>"),
     CALL("call:", "{", NULL)},
    {FAMILY("Kimi", CALL_NAMED), SHOWN("<|tool_call_begin|>"),
     AROUND("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
     CALL("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"), .begins = true,
     .counted = true},
    {DEEPSEEK_XML("DeepSeek V4", "tool_calls")},
    {DEEPSEEK_XML("DeepSeek V3.2", "function_calls")},
    {FAMILY("DeepSeek V3", CALL_NAMED), SHOWN(DEEPSEEK_BEGIN, "```json"), DEEPSEEK_CALLS,
     CALL(DEEPSEEK_BEGIN "function" DEEPSEEK_SEPARATOR, "\n```json\n", "```" DEEPSEEK_END), .begins = true},
    {FAMILY("DeepSeek V3.1", CALL_NAMED), SHOWN(DEEPSEEK_BEGIN), DEEPSEEK_CALLS,
     CALL(DEEPSEEK_BEGIN, DEEPSEEK_SEPARATOR, DEEPSEEK_END), .begins = true},
    {FAMILY("MiniMax", CALL_PARAMETERS), SHOWN("minimax:tool_call"),
     AROUND("<minimax:tool_call>", "</minimax:tool_call>"), CALL("<invoke name=\"", "\"", "</invoke>"),
     KEY("<parameter name=\"", "\""), .value_close = "</parameter>", .tags = true},
    {FAMILY("GLM", CALL_PARAMETERS), SHOWN("<arg_key>"), AROUND("<tool_call>", "</tool_call>"),
     KEY("<arg_key>", "</arg_key>"), .value_open = "<arg_value>", .value_close = "</arg_value>"},
    {FAMILY("Seed-OSS", CALL_PARAMETERS), SHOWN("<seed:tool_call>"),
     AROUND("<seed:tool_call>", "</seed:tool_call>"), CALL("<function=", ">", "</function>"),
     KEY("<parameter=", ">"), .value_close = "</parameter>", .begins = true},
    {FAMILY("Qwen3-Coder", CALL_PARAMETERS), SHOWN("<function="), AROUND("<tool_call>", "</tool_call>"),
     CALL("<function=", ">", "</function>"), KEY("<parameter=", ">"), .value_close = "</parameter>",
     .begins = true, .lines = true},
    {FAMILY("OLMo 3", CALL_PYTHON), SHOWN("<function_calls>"),
     AROUND("<function_calls>", "</function_calls>"), CALL(NULL, "(", NULL)},
    {FAMILY("Hermes", CALL_OBJECT), SHOWN("<tool_call>"), AROUND("<tool_call>", "</tool_call>"),
     .key = "arguments"},
    {FAMILY("Mistral", CALL_LISTED), SHOWN("[TOOL_CALLS]"), AROUND("[TOOL_CALLS]", NULL), .key = "arguments"},
    {FAMILY("Nemotron", CALL_LISTED), SHOWN("<TOOLCALL>"), AROUND("<TOOLCALL>", "</TOOLCALL>"),
     .key = "arguments"},
    {FAMILY("Granite 3", CALL_LISTED), SHOWN("<|tool_call|>"), AROUND("<|tool_call|>", "<|/tool_call|>"),
     .key = "arguments", .may_end = true},
    {FAMILY("GLM-4", CALL_LINED), SHOWN("<|observation|>", "metadata"), CALL(NULL, "\n", NULL),
     .apart = true},
    {FAMILY("Llama 3", CALL_WHOLE), SHOWN("<|start_header_id|>"), .key = "parameters"},
};

#define HARMONY_TAGS          .family = "harmony", .efforts = "low|medium|high", .member = "thinking"
#define TAGS(called, member_) .family = (called), .member = (member_)
static const struct reasoning_tags reasoning[] = {
    {HARMONY_TAGS, SHOWN(HARMONY_CHANNEL, HARMONY_MESSAGE)},
    {HARMONY_TAGS, SHOWN(HARMONY_MESSAGE, "analysis")},
    {TAGS("Gemma 4", "reasoning_content"), SHOWN("<|channel>"), AROUND("<|channel>thought", "<channel|>"),
     .anywhere = true},
    {TAGS("Mistral", "reasoning_content"), SHOWN("[THINK]"), AROUND("[THINK]", "[/THINK]"), .anywhere = true,
     .efforts = "none|high"},
    {TAGS("Seed-OSS", "reasoning_content"), SHOWN("<seed:think>"), AROUND("<seed:think>", "</seed:think>")},
    {TAGS("<think>", "reasoning_content"), SHOWN("think>"), AROUND("<think>", "</think>")},
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

static bool is_harmony(const char *token)
{
    return WORD_IS(token, HARMONY_START, HARMONY_CHANNEL, HARMONY_MESSAGE, HARMONY_END, "<|return|>",
                   "<|call|>", "<|constrain|>");
}

bool call_syntax_has_token(const struct call_syntax *s, const char *token)
{
    if (!s || !*token) return false;
    if (s->form == CALL_CHANNEL) return is_harmony(token);
    if (s->form == CALL_LISTED)
        return WORD_IS(token, "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]") || holds(s->open, token) ||
               holds(s->close, token);
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
