/* Thinking apart from what is said, however the answer is cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "client/gateway/thinking.h"

static const struct {
    enum thinking_state state;
    const char *answer, *thought, *said;
} cases[] = {
    {THINKING_BEGIN, "plain", "", "plain"},
    {THINKING_BEGIN, " \n plain ", "", " \n plain "},
    {THINKING_BEGIN, "", "", ""},
    {THINKING_BEGIN, "<thi", "", "<thi"},
    {THINKING_BEGIN, "<think>\n a < b </thin \n</think>\n\nyes\n", "a < b </thin", "yes\n"},
    {THINKING_BEGIN, "\n<think></think>yes", "", "yes"},
    {THINKING_BEGIN, "<think>a", "a", ""},
    {THINKING_BEGIN, "<think>a\n</think>\n", "a", ""},
    {THINKING_BEGIN, "no <think>a</think>", "", "no <think>a</think>"},
    {THINKING_BEGIN, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"},
    {THINKING_INSIDE, "\na</think>b", "a", "b"},
    {THINKING_INSIDE, "a  \n", "a", ""},
    {THINKING_OVER, "<think>a</think>", "", "<think>a</think>"},
};

static void test_thinking_is_found_however_the_answer_is_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t length = strlen(cases[i].answer);
        for (size_t step = 1; step <= length + 1; step++) {
            struct cli_text thought = {0}, said = {0};
            struct thinking thinking = {.state = cases[i].state, .thought = &thought};
            cli_text_add(&thought, "", 0);
            cli_text_add(&said, "", 0);
            for (size_t at = 0; at < length; at += step)
                thinking_push(&thinking, cases[i].answer + at, length - at < step ? length - at : step,
                              &said);
            thinking_finish(&thinking, &said);
            assert_string_equal(thought.data, cases[i].thought);
            assert_string_equal(said.data, cases[i].said);
            cli_text_free(&thinking.held);
            cli_text_free(&thought);
            cli_text_free(&said);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_thinking_is_found_however_the_answer_is_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
