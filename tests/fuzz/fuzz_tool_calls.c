/* Any bytes as an answer that may hold thinking and calls of tools: thinking, text and calls are the same however the answer
 * is cut, arguments are JSON objects. Byte 0 picks the style and where the answer begins. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/thinking.h"
#include "client/gateway/tool_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void hand_on(struct tool_parser *parser, struct cli_text *said)
{
    if (said->length) tool_parser_push(parser, said->data, said->length);
    said->length = 0;
}

static void parse(struct thinking *thinking, struct tool_parser *parser, const char *data, size_t length,
                  size_t step)
{
    struct cli_text said = {0};
    for (size_t at = 0; at < length; at += step) {
        thinking_push(thinking, data + at, length - at < step ? length - at : step, &said);
        hand_on(parser, &said);
    }
    thinking_finish(thinking, &said);
    hand_on(parser, &said);
    tool_parser_finish(parser);
    cli_text_free(&said);
}

static bool same(const struct cli_text *a, const struct cli_text *b)
{
    return a->length == b->length && memcmp(a->data, b->data, a->length) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char listed[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    static const size_t steps[] = {SIZE_MAX / 4, 1, 7};
    struct tool_parser parser[3] = {0};
    struct thinking thinking[3] = {0};
    struct cli_text text[3] = {0}, thought[3] = {0};
    if (size == 0) return 0;
    json_t *tools = json_loads(listed, 0, NULL);
    for (int i = 0; i < 3; i++) {
        parser[i].style = (enum tool_style)(data[0] % 4);
        parser[i].tools = tools;
        parser[i].text = &text[i];
        cli_text_add(&text[i], "", 0);
        cli_text_add(&thought[i], "", 0);
        thinking[i].state = (enum thinking_state)(data[0] >> 2 & 1 ? THINKING_INSIDE : THINKING_BEGIN);
        thinking[i].thought = &thought[i];
        parse(&thinking[i], &parser[i], (const char *)data + 1, size - 1, steps[i]);
        if (!same(&text[i], &text[0]) || !same(&thought[i], &thought[0])) abort();
        if (parser[i].count != parser[0].count) abort();
        for (size_t k = 0; k < parser[i].count; k++) {
            json_t *arguments = json_loads(parser[i].calls[k].arguments, 0, NULL);
            if (!json_is_object(arguments) || strcmp(parser[i].calls[k].name, parser[0].calls[k].name) != 0)
                abort();
            json_decref(arguments);
        }
    }
    for (int i = 0; i < 3; i++) {
        tool_parser_free(&parser[i]);
        cli_text_free(&text[i]);
        cli_text_free(&thought[i]);
        cli_text_free(&thinking[i].held);
    }
    json_decref(tools);
    return 0;
}
