/* Any bytes as an answer that may hold calls of tools: text and calls are the same however the answer is cut, arguments are
 * JSON objects. Byte 0 picks the style. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/tool_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse(struct tool_parser *parser, const char *data, size_t length, size_t step)
{
    for (size_t at = 0; at < length; at += step)
        tool_parser_push(parser, data + at, length - at < step ? length - at : step);
    tool_parser_finish(parser);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char listed[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    static const size_t steps[] = {SIZE_MAX / 4, 1, 7};
    struct tool_parser parser[3] = {0};
    struct cli_text text[3] = {0};
    if (size == 0) return 0;
    json_t *tools = json_loads(listed, 0, NULL);
    for (int i = 0; i < 3; i++) {
        parser[i].style = (enum tool_style)(data[0] % 4);
        parser[i].tools = tools;
        parser[i].text = &text[i];
        cli_text_add(&text[i], "", 0);
        parse(&parser[i], (const char *)data + 1, size - 1, steps[i]);
        if (text[i].length != text[0].length || memcmp(text[i].data, text[0].data, text[0].length) != 0)
            abort();
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
    }
    json_decref(tools);
    return 0;
}
