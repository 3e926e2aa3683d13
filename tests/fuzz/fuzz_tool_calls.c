/* Any bytes as an answer that may hold thinking and calls of tools: the parts are the same however the answer
 * is cut, and arguments that are whole and begin as an object are JSON text, unless the model's own JSON is
 * wrong. Byte 0 picks the family and where the prompt left thinking. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/answer/answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct got {
    struct cli_text parts[3]; /* thought, text, calls with their arguments */
    bool open;
};

static void take(void *user, enum answer_event event, const char *data, size_t length)
{
    struct got *got = user;
    if (got->open != (event == ANSWER_ARGUMENTS || event == ANSWER_CALL_END)) abort();
    cli_text_add(&got->parts[event == ANSWER_THOUGHT ? 0 : event == ANSWER_TEXT ? 1 : 2], data, length);
    if (event == ANSWER_CALL || event == ANSWER_CALL_END) {
        got->open = event == ANSWER_CALL;
        cli_text_add(&got->parts[2], "\n", 1);
    }
}

static bool same(const struct cli_text *a, const struct cli_text *b)
{
    return a->length == b->length && (!a->length || memcmp(a->data, b->data, a->length) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char listed[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                                 "\"properties\":{\"x\":{\"type\":\"string\"},"
                                 "\"n\":{\"type\":[\"number\",\"null\"]}}}}}]";
    static const size_t steps[] = {SIZE_MAX / 4, 1, 7};
    struct got got[3] = {0};
    size_t families = 0, reasonings = 0;
    if (size == 0) return 0;
    while (call_syntax_row(families)) families++;
    while (reasoning_tags_row(reasonings)) reasonings++;
    json_t *tools = json_loads(listed, 0, NULL);
    const struct call_syntax *calls = call_syntax_row(data[0] % (families + 1));
    const bool channels = calls && calls->form == CALL_CHANNEL;
    const struct answer_wish wish = {.calls = calls,
                                     .tags = reasoning_tags_row(channels ? 0 : data[0] % reasonings),
                                     .tools = tools,
                                     .at = (enum reasoning_at)(data[0] / 64 % 3)};
    for (int i = 0; i < 3; i++) {
        struct answer *answer = answer_open(&wish, take, &got[i]);
        for (size_t at = 1; at < size; at += steps[i])
            answer_push(answer, (const char *)data + at, size - at < steps[i] ? size - at : steps[i]);
        answer_finish(answer);
        answer_close(answer);
        for (int k = 0; k < 3; k++)
            if (!same(&got[i].parts[k], &got[0].parts[k]) || got[i].open != got[0].open) abort();
    }
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) cli_text_free(&got[i].parts[k]);
    json_decref(tools);
    return 0;
}
