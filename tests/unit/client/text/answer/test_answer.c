/* Every row of the tables of syntaxes, whole and cut anywhere: thinking, text and calls are the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/answer/answer.h"

#define BAR  "\xEF\xBD\x9C"
#define LOW  "\xE2\x96\x81"
#define DSML BAR "DSML" BAR

/* Templates as short as rows tell them apart. */
#define HERMES   "tools <tool_call>"
#define CODER    "tools <tool_call><function="
#define GLM      "tools <tool_call><arg_key>"
#define MISTRAL  "tools [TOOL_CALLS] [THINK]"
#define LLAMA    "tools <|start_header_id|>"
#define HARMONY  "tools <|channel|><|message|>"
#define GEMMA    "tools <|tool_call> <|channel>"
#define KIMI     "tools <|tool_call_begin|>"
#define MINIMAX  "tools <minimax:tool_call>"
#define DEEPSEEK "tools <" BAR "tool" LOW "call" LOW "begin" BAR ">"
#define DEEP(a)  "<" BAR "tool" LOW a BAR ">"
#define NEMOTRON "tools <TOOLCALL> <|start_header_id|>"
#define GRANITE  "tools <|tool_call|>"
#define SEED     "tools <seed:tool_call><function= <seed:think>"
#define OLMO     "tools <function_calls>"
#define GLM4     "tools <|observation|> metadata"
#define NO_TOOLS "<think>"

#define CALL "{\"name\": \"f\", \"arguments\": {\"x\": \"}\"}}"
#define NESTED                                                                                               \
    "{\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": "        \
    "\"}\"}}}"
#define LCALL "{\"name\": \"f\", \"parameters\": {\"x\": \"}\"}}"
#define X     "f{\"x\":\"}\"}" /* the same as text */

static const struct {
    const char *template, *said, *thought, *text, *calls; /* calls: NAME and arguments, one after the other */
} cases[] = {
    /* thinking */
    {NO_TOOLS, "plain", "", "plain", ""},
    {NO_TOOLS, " \n plain ", "", " \n plain ", ""},
    {NO_TOOLS, "", "", "", ""},
    {NO_TOOLS, "<thi", "", "<thi", ""},
    {NO_TOOLS, "<think>\n a < b </thin \n</think>\n\nyes\n", "a < b </thin", "yes\n", ""},
    {NO_TOOLS, "\n<think></think>yes", "", "yes", ""},
    {NO_TOOLS, "<think>a\n</think>\n", "a", "", ""},
    {NO_TOOLS, "no <think>a</think>", "", "no <think>a</think>", ""},
    {NO_TOOLS, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>", ""},
    {NO_TOOLS, "<tool_call>" CALL "</tool_call>", "", "<tool_call>" CALL "</tool_call>", ""},
    {MISTRAL, "[THINK]a[/THINK]b[THINK]c[/THINK]d", "ac", "bd", ""},
    {GEMMA, "<|channel>thought\nwhy\n<channel|>because", "why", "because", ""},
    {GEMMA, "<|channel>thought\n<channel|>because", "", "because", ""},
    {HARMONY, "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>so",
     "why", "so", ""},
    {HARMONY, "<|channel|>final<|message|>so < a<|return|>", "", "so < a", ""},
    {HARMONY, "<|channel|>final <|constrain|>json<|message|>{\"a\": 1}", "", "{\"a\": 1}", ""},
    {HARMONY, "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>so",
     "", "I look.\n\nso", ""},
    {HARMONY, "Hello", "", "Hello", ""},
    {HARMONY, "<|channel|>fin", "", "", ""},
    /* Hermes */
    {HERMES, "<tool_call>" CALL "</tool_call>", "", "", X},
    {HERMES, "So: \n\n<tool_call>\n" CALL "\n</tool_call>\n<tool_call>" CALL "</tool_call>\n", "",
     "So:", X X},
    {HERMES, "<think>Hm.</think>\n<tool_call>" CALL, "Hm.", "", X},
    {HERMES, "<tool_call>{}</tool_call> x", "", "<tool_call>{}</tool_call> x", ""},
    {HERMES, "a <tool_", "", "a <tool_", ""},
    {HERMES, "a <tool_call>b", "", "a <tool_call>b", ""},
    {HERMES, "<tool_call>{\"name\": </tool_call> so", "", "<tool_call>{\"name\": </tool_call> so", ""},
    {HERMES, "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>", "",
     "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>", ""},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", "",
     "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>", ""},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {oops}}</tool_call>", "",
     "<tool_call>{\"name\": \"f\", \"arguments\": {oops}}</tool_call>", ""},
    {HERMES, "<tool_call>{\"arguments\": {\"x\": \"}\"}, \"name\": \"f\"}</tool_call>", "", "", X},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"}\"}, \"id\": \"}\"}</tool_call> end", "",
     " end", X},
    {HERMES, "<tool_call>{\"name\": \"f\"}</tool_call>", "", "", "f{}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "", "", "f{}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": \"\"}</tool_call>", "", "", "f{}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": \\\"}\\\"}\"}</tool_call>", "", "",
     X},
    {HERMES,
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 19.99, \"y\": 1e2, \"z\": "
     "123456789012345678901}}</tool_call>",
     "", "", "f{\"x\":19.99,\"y\":1e2,\"z\":123456789012345678901}"},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"a\nb\"}}</tool_call>", "", "",
     "f{\"x\":\"a\\nb\"}"},
    {HERMES, "<tool_call>" CALL " " CALL "</tool_call>", "", "", X X},
    /* ... as a list, and as OpenAI writes calls */
    {HERMES, "<tool_call>[" CALL "]</tool_call>", "", "", X},
    {HERMES, "<tool_call>\n[" CALL ",\n " CALL "\n]\n</tool_call> so", "", " so", X X},
    {HERMES, "<tool_call>[" CALL "]</tool_call>\n<tool_call>[" CALL ", " CALL "]</tool_call>", "", "", X X X},
    {HERMES, "<tool_call>[" CALL, "", "", X},
    {HERMES, "<tool_call>[]</tool_call>", "", "<tool_call>[]</tool_call>", ""},
    {HERMES, "<tool_call>[1]</tool_call>", "", "<tool_call>[1]</tool_call>", ""},
    {HERMES, "<tool_call>[{\"x\": 1}]</tool_call>", "", "<tool_call>[{\"x\": 1}]</tool_call>", ""},
    {HERMES, "<tool_call>" NESTED "</tool_call>", "", "", X},
    {HERMES, "<tool_call>[" NESTED ", " CALL ", " NESTED "]</tool_call>!", "", "!", X X X},
    {HERMES,
     "<tool_call>{\"function\": {\"arguments\": {\"x\": \"}\"}, \"name\": \"f\"}, \"id\": \"}\"}</tool_call>",
     "", "", X},
    {HERMES, "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\"}}</tool_call>", "", "",
     "f{}"},
    {HERMES,
     "<tool_call>{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": \\\"}\\\"}\"}}</tool_call>",
     "", "", X},
    {HERMES, "<tool_call>{\"function\": \"f\", \"parameters\": {\"x\": \"}\"}}</tool_call>", "", "", X},
    {HERMES, "<tool_call>{\"function\": {}}</tool_call>", "", "<tool_call>{\"function\": {}}</tool_call>",
     ""},
    {HERMES, "<tool_call>{\"function\": {\"function\": {\"name\": \"f\"}}}</tool_call>", "",
     "<tool_call>{\"function\": {\"function\": {\"name\": \"f\"}}}</tool_call>", ""},
    /* ... with slips that models make */
    {HERMES, "<tool_call>" CALL "}</tool_call> so", "", " so", X},
    {HERMES, "<tool_call>\n```json\n" CALL "\n```\n</tool_call>", "", "", X},
    {HERMES, "<tool_call>```\n[" CALL "]\n```</tool_call>", "", "", X},
    {HERMES, "<tool_call>```json " CALL "</tool_call>", "", "<tool_call>```json " CALL "</tool_call>", ""},
    {HERMES, "<tool_call>{\"tool\": \"f\", \"args\": {\"x\": \"}\"}}</tool_call>", "", "", X},
    {HERMES, "<tool_call>{\"tool_name\": \"f\", \"input\": {\"x\": \"}\"}}</tool_call>", "", "", X},
    /* ... without markers, if the tool is known */
    {HERMES, CALL, "", "", X},
    {HERMES, " \n" CALL "\n" CALL "\n", "", "", X X},
    {HERMES, "[" CALL ", " NESTED "]", "", "", X X},
    {HERMES, NESTED " so", "", "so", X},
    {HERMES, "<think>Hm.</think>\n\n[" CALL "]", "Hm.", "", X},
    {HERMES, CALL "\n</tool_call>", "", "", X},
    {HERMES, CALL "\n<tool_call>" CALL "</tool_call>", "", "", X X},
    {HERMES, "{\"name\": \"nobody\", \"arguments\": {}}", "", "{\"name\": \"nobody\", \"arguments\": {}}",
     ""},
    {HERMES, "{\"name\": \"nobody\", \"age\": 3} <tool_call>" CALL "</tool_call>", "",
     "{\"name\": \"nobody\", \"age\": 3}", X},
    {HERMES, "{\"title\": \"f\", \"name\": \"f\"}", "", "{\"title\": \"f\", \"name\": \"f\"}", ""},
    {HERMES, "[1, 2]", "", "[1, 2]", ""},
    {HERMES, "so " CALL, "", "so " CALL, ""},
    {CODER, CALL, "", CALL, ""},
    {CODER, "<tool_call>[" CALL "]</tool_call>", "", "", X},
    {GLM, "<tool_call>" NESTED "</tool_call>", "", "", X},
    {HERMES, "<tool_call>\n<function=f>\n<parameter=x>\n}\n</parameter>\n</function>\n</tool_call>", "", "",
     X},
    {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"cu", "", "", "f{\"x\":\"cu..."},
    /* Qwen3-Coder */
    {CODER, "I look.\n\n<tool_call>\n<function=f>\n<parameter=x>\n}\n</parameter>\n</function>\n</tool_call>",
     "", "I look.", X},
    {CODER, "<function=f>\n<parameter=x>\n}\n</parameter>\n</function>\n</tool_call>", "", "", X},
    {CODER, "<tool_call><function=g></function></tool_call>", "", "", "g{}"},
    {CODER,
     "<tool_call>\n<function=g>\n<parameter=n>\n19.990\n</parameter>\n<parameter=b>True</parameter>\n"
     "<parameter=o>\n{\"a\": [1, 2]}\n</parameter>\n<parameter=e>none</parameter>\n<parameter=s>\n\n "
     "5\n\n</parameter>\n"
     "<parameter=u>7</parameter><parameter=m>7</parameter><parameter=r>7</parameter>\n</function>\n</"
     "tool_call>",
     "", "",
     "g{\"n\":19.990,\"b\":true,\"o\":{\"a\":[1,2]},\"e\":null,\"s\":\"\\n "
     "5\\n\",\"u\":7,\"m\":\"7\",\"r\":7}"},
    {CODER, "<tool_call>\n<function=g>\n<parameter=n>\nmany\n</parameter>\n</function>\n", "", "",
     "g{\"n\":\"many\"}"},
    {CODER, "a <function", "", "a <function", ""},
    {CODER, "<tool_call>\n<function=g>\n<parameter=s>\ncu", "", "", "g{\"s\":\"cu..."},
    {CODER, "<tool_call>" CALL "</tool_call>", "", "", X},
    /* GLM */
    {GLM, "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>}</arg_value>\n</tool_call>", "", "", X},
    {GLM,
     "ok<tool_call>g<arg_key>n</arg_key><arg_value>3</arg_value><arg_key>s</arg_key><arg_value>\n</"
     "arg_value></tool_call>\n",
     "", "ok", "g{\"n\":3,\"s\":\"\\n\"}"},
    {GLM, "<tool_call>g</tool_call>", "", "", "g{}"},
    {GLM, "<tool_call>so it is", "", "<tool_call>so it is", ""},
    /* OLMo 3 */
    {OLMO, "<function_calls>f(x=\"}\")</function_calls>", "", "", X},
    {OLMO, "<think>Hm.</think>I look.\n<function_calls>\nf(x='}')\nf(x=\"}\")\n</function_calls> so", "Hm.",
     "I look. so", X X},
    {OLMO,
     "<function_calls>g(n = -19.990, b=True, o={'a': [1, (2, None)], \"b\": {}}, e=null, "
     "s='a\\'\"\\n\\x41\\d\n', "
     "u=123456789012345678901,)</function_calls>",
     "", "",
     "g{\"n\":-19.990,\"b\":true,\"o\":{\"a\":[1,[2,null]],\"b\":{}},\"e\":null,\"s\":\"a'"
     "\\\"\\n\\u0041\\\\d\\n\","
     "\"u\":123456789012345678901}"},
    {OLMO, "<function_calls>g(s='\\xZ\\u12\\/\\u00e9', n=1)</function_calls>", "", "",
     "g{\"s\":\"\\\\xZ\\\\u12\\\\/\\u00e9\",\"n\":1}"},
    {OLMO, "<function_calls>g()\ng( )", "", "", "g{}g{}"},
    {OLMO, "<function_calls>g(s=\"a=(b), [c]\", m=[])</function_calls>", "", "",
     "g{\"s\":\"a=(b), [c]\",\"m\":[]}"},
    {OLMO, "<function_calls>f(\"}\")</function_calls>", "", "<function_calls>f(\"}\")</function_calls>", ""},
    {OLMO, "<function_calls>f(x)</function_calls>", "", "<function_calls>f(x)</function_calls>", ""},
    {OLMO, "<function_calls>see there (x=1)", "", "<function_calls>see there (x=1)", ""},
    {OLMO, "call f(x=1) <function", "", "call f(x=1) <function", ""},
    {OLMO, "<function_calls>f(x=\"cu", "", "", "f{\"x\":\"cu..."},
    /* GLM-4 */
    {GLM4, "f\n{\"x\": \"}\"}", "", "", X},
    {GLM4, "\n f \n\n{\"x\": \"}\"}\nf\n{\"x\": \"}\"}\n", "", "", X X},
    {GLM4, "<think>Hm.</think>\nf\n{\"x\": \"}\"}", "Hm.", "", X},
    {GLM4, "f\n{\"x\": \"}\"}\nso", "", "so", X},
    {GLM4, "f\n[1]", "", "f\n[1]", ""},
    {GLM4, "f is {\"x\": 1}", "", "f is {\"x\": 1}", ""},
    {GLM4, "\nHello\n{\"x\": 1}", "", "\nHello\n{\"x\": 1}", ""},
    {GLM4, "h\n{\"x\": 1}", "", "h\n{\"x\": 1}", ""},
    {GLM4, "So:\nf\n{\"x\": \"}\"}", "", "So:\nf\n{\"x\": \"}\"}", ""},
    {GLM4, "f", "", "f", ""},
    {GLM4, "f\n{\"x\": \"cu", "", "", "f{\"x\":\"cu..."},
    /* Mistral */
    {MISTRAL, "[TOOL_CALLS] [" CALL ", " CALL "]", "", "", X X},
    {MISTRAL, "[TOOL_CALLS]f[ARGS]{\"x\":\"}\"}[TOOL_CALLS]f{\"x\":\"}\"}", "", "", X X},
    {MISTRAL, "So.[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{\"x\": \"}\"}", "", "So.", X},
    {MISTRAL, "[TOOL_CALLS] " CALL, "", "", X},
    {MISTRAL, "[TOOL_CALLS]{\"a\": 1} and", "", "[TOOL_CALLS]{\"a\": 1} and", ""},
    {MISTRAL, "[TOOL_CALLS] [1] and", "", "[TOOL_CALLS] [1] and", ""},
    {MISTRAL, "[TOOL_CALLS]", "", "[TOOL_CALLS]", ""},
    {MISTRAL, "[THINK]a[/THINK][TOOL_CALLS]f[ARGS]{}", "a", "", "f{}"},
    /* Llama 3 */
    {NEMOTRON, "<TOOLCALL>[" CALL "]</TOOLCALL>", "", "", X},
    {NEMOTRON, "So:\n<TOOLCALL>[" CALL ", " CALL "]</TOOLCALL> end", "", "So: end", X X},
    {NEMOTRON, "<TOOLCALL>[1]</TOOLCALL>", "", "<TOOLCALL>[1]</TOOLCALL>", ""},
    {GRANITE, "<|tool_call|>[" CALL "]", "", "", X},
    {GRANITE, "<|tool_call|>" NESTED "<|/tool_call|>", "", "", X},
    {SEED,
     "<seed:think>Hm.</seed:think><seed:tool_call>\n<function=f>\n<parameter=x>}</parameter>\n</function>\n</"
     "seed:tool_call>",
     "Hm.", "", X},
    {SEED, "I look.\n<seed:tool_call><function=g></function></seed:tool_call>", "", "I look.", "g{}"},
    {LLAMA, "[" LCALL ", " LCALL "]", "", "", X X},
    {LLAMA, "<|python_tag|>[" LCALL "]; " LCALL, "", "", X X},
    {LLAMA, NESTED, "", "", X},
    {LLAMA, "[1, 2]", "", "[1, 2]", ""},
    {MISTRAL, "[TOOL_CALLS][" NESTED ", " CALL "]", "", "", X X},
    {LLAMA, LCALL, "", "", X},
    {LLAMA, " <|python_tag|>" LCALL "; " LCALL "\n", "", "", X X},
    {LLAMA, "{\"name\": \"h\", \"parameters\": {}}", "", "{\"name\": \"h\", \"parameters\": {}}", ""},
    {LLAMA, "It {is}", "", "It {is}", ""},
    {LLAMA, "", "", "", ""},
    /* harmony */
    {HARMONY,
     "<|channel|>analysis<|message|>A tool.<|end|><|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{\"x\": \"}\"}<|call|>",
     "A tool.", "", X},
    {HARMONY, "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"x\": \"}\"}", "", "",
     X},
    {HARMONY, "<|channel|>commentary to=functions.f<|message|>", "", "", "f{}"},
    {HARMONY, "<|channel|>commentary to=functions.f<|message|>{\"x\": 1", "", "", "f{\"x\":1..."},
    {HARMONY, "<|channel|>commentary to=other<|message|>{}", "", "{}", ""},
    /* Gemma 4 */
    {GEMMA, "<|tool_call>call:f{x:<|\"|>}<|\"|>}<tool_call|>", "", "", X},
    {GEMMA,
     "I look.<|tool_call>call:g{n:19.99,b:true,s:<|\"|>a \"q\"\n<|\"|>,o:{k:[1,<|\"|>z<|\"|>]},w:a "
     "b}<tool_call|>"
     "<|tool_call>call:f{}<tool_call|>",
     "", "I look.",
     "g{\"n\":19.99,\"b\":true,\"s\":\"a \\\"q\\\"\\n\",\"o\":{\"k\":[1,\"z\"]},\"w\":\"a b\"}f{}"},
    {GEMMA, "<|tool_call>call:g{s:\"a\\\"b\"}<tool_call|>", "", "", "g{\"s\":\"a\\\"b\"}"},
    {GEMMA, "<|tool_call>call:g{s:<|\"|><|channel>thought<|\"|>}<tool_call|>", "", "",
     "g{\"s\":\"<|channel>thought\"}"},
    {GEMMA, "<|tool_call>no", "", "<|tool_call>no", ""},
    /* Kimi */
    {KIMI,
     "Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"x\": "
     "\"}\"}"
     "<|tool_call_end|><|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
     "<|tool_calls_section_end|>",
     "", "Hm.", X "f{}"},
    {KIMI, "<|tool_call_begin|>f<|tool_call_argument_begin|>{}<|tool_call_end|>", "", "", "f{}"},
    /* MiniMax */
    {MINIMAX,
     "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"x\">}</parameter>\n</invoke>\n<invoke "
     "name=\"g\">\n"
     "<parameter name=\"n\">3</parameter>\n</invoke>\n</minimax:tool_call>",
     "", "", X "g{\"n\":3}"},
    /* DeepSeek */
    {DEEPSEEK,
     "Yes." DEEP("calls" LOW "begin")
         DEEP("call" LOW "begin") "f" DEEP("sep") "{\"x\": \"}\"}" DEEP("call" LOW "end")
             DEEP("call" LOW "begin") "g" DEEP("sep") "{}" DEEP("call" LOW "end") DEEP("calls" LOW "end"),
     "", "Yes.", X "g{}"},
    {DEEPSEEK " ```json",
     DEEP("calls" LOW "begin")
         DEEP("call" LOW "begin") "function" DEEP("sep") "f\n```json\n{\"x\": \"}\"}\n```" DEEP(
             "call" LOW
             "end") "\n" DEEP("call" LOW "begin") "function" DEEP("sep") "g\n```json\n{}\n```" DEEP("call" LOW
                                                                                                    "end")
             DEEP("calls" LOW "end"),
     "", "", X "g{}"},
    {"tools " DSML " tool_calls",
     "<" DSML "tool_calls>\n<" DSML "invoke name=\"f\">\n<" DSML
     "parameter name=\"x\" string=\"true\">}</" DSML "parameter>\n</" DSML "invoke>\n<" DSML
     "invoke name=\"g\">\n<" DSML "parameter name=\"n\" string=\"false\">5</" DSML "parameter>\n<" DSML
     "parameter name=\"q\" string=\"true\">5</" DSML "parameter>\n</" DSML "invoke>\n</" DSML "tool_calls>",
     "", "", X "g{\"n\":5,\"q\":\"5\"}"},
    {"tools " DSML " function_calls",
     "<" DSML "function_calls><" DSML "invoke name=\"g\"></" DSML "invoke></" DSML "function_calls>", "", "",
     "g{}"},
};

static const char listed[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": "
                             "{\"properties\": {\"x\": {\"type\": \"string\"}}}}},"
                             "{\"type\": \"function\", \"function\": {\"name\": \"g\", \"parameters\": "
                             "{\"$defs\": {\"o\": {\"type\": \"object\"}}, \"properties\":"
                             "{\"n\": {\"type\": \"number\"}, \"b\": {\"type\": \"boolean\"}, \"o\": "
                             "{\"$ref\": \"#/$defs/o\"}, \"s\": {\"type\": \"string\"},"
                             "\"e\": {\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"null\"}]}, \"m\": "
                             "{\"enum\": [\"7\", \"8\"]}, \"r\": {\"$ref\": \"\"}}}}}]";

struct got {
    struct cli_text thought, text, calls;
    bool open;
};

static void take(void *user, enum answer_event event, const char *data, size_t length)
{
    struct got *got = user;
    assert_true(got->open == (event == ANSWER_ARGUMENTS || event == ANSWER_CALL_END));
    cli_text_add(event == ANSWER_THOUGHT ? &got->thought
                 : event == ANSWER_TEXT  ? &got->text
                                         : &got->calls,
                 data, length);
    if (event == ANSWER_CALL) got->open = true;
    if (event == ANSWER_CALL_END) got->open = false;
}

/* Said in pieces: the first of `first` bytes, further ones of `step`. */
static void check(size_t i, const json_t *tools, size_t first, size_t step)
{
    const char *said = cases[i].said;
    const size_t length = strlen(said);
    struct got got = {0};
    const struct answer_wish wish = {.tags = reasoning_tags_of(cases[i].template),
                                     .calls = call_syntax_of(cases[i].template),
                                     .tools = tools};
    struct answer *answer = answer_open(&wish, take, &got);
    assert_non_null(answer);
    cli_text_add(&got.thought, "", 0);
    cli_text_add(&got.text, "", 0);
    cli_text_add(&got.calls, "", 0);
    for (size_t at = 0, n = first; at < length; at += n, n = step)
        answer_push(answer, said + at, length - at < n ? length - at : n);
    answer_finish(answer);
    if (got.open) cli_text_add(&got.calls, "...", 3);
    assert_false(answer_failed(answer));
    answer_close(answer);
    if (strcmp(got.calls.data, cases[i].calls) != 0 || strcmp(got.text.data, cases[i].text) != 0)
        print_message("case %zu, '%s' cut at %zu and every %zu\n", i, said, first, step);
    assert_string_equal(got.thought.data, cases[i].thought);
    assert_string_equal(got.text.data, cases[i].text);
    assert_string_equal(got.calls.data, cases[i].calls);
    cli_text_free(&got.thought);
    cli_text_free(&got.text);
    cli_text_free(&got.calls);
}

static void test_parts_are_the_same_however_the_answer_is_cut(void **state)
{
    (void)state;
    json_t *tools = json_loads(listed, 0, NULL);
    assert_non_null(tools);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t length = strlen(cases[i].said) + 1;
        check(i, tools, length, length);
        for (size_t at = 1; at < length; at++) check(i, tools, at, length);
        for (size_t step = 1; step < 4; step++) check(i, tools, step, step);
    }
    json_decref(tools);
}

/* Every family of both tables has a case above. */
static void test_no_row_is_left_out(void **state)
{
    (void)state;
    for (size_t row = 0; call_syntax_row(row); row++) {
        bool found = false;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const struct call_syntax *s = call_syntax_of(cases[i].template);
            found |= s && *cases[i].calls && strcmp(s->family, call_syntax_row(row)->family) == 0;
        }
        if (!found) print_message("no case of %s\n", call_syntax_row(row)->family);
        assert_true(found);
    }
    for (size_t row = 0; reasoning_tags_row(row); row++) {
        bool found = false;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            found |= *cases[i].thought && strcmp(reasoning_tags_of(cases[i].template)->family,
                                                 reasoning_tags_row(row)->family) == 0;
        assert_true(found);
    }
}

static void test_a_template_shows_its_syntax(void **state)
{
    (void)state;
    assert_null(call_syntax_of(NULL));
    assert_null(call_syntax_of("{{ messages }}<tool_call>"));
    assert_null(call_syntax_of("{% if tools %}<action>"));
    assert_string_equal(call_syntax_of("{% if tools %}<tool_call>")->family, "Hermes");
    assert_string_equal(call_syntax_of("{% if tools %}<tool_call>\n<function=x>")->family, "Qwen3-Coder");
}

static void test_a_call_is_told_as_it_comes(void **state)
{
    (void)state;
    struct got got = {0};
    const struct answer_wish wish = {.calls = call_syntax_of(HERMES)};
    struct answer *answer = answer_open(&wish, take, &got);
    static const char begin[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"";
    answer_push(answer, begin, sizeof begin - 1);
    assert_true(got.open);
    assert_string_equal(got.calls.data, "f{\"");
    answer_push(answer, "x\": 1", 5);
    assert_string_equal(got.calls.data, "f{\"x\":1");
    answer_close(answer);
    cli_text_free(&got.calls);
}

/* A strict tool's arguments fit its schema, which nothing keeps outside of the markers. */
static void test_a_strict_tool_needs_its_marker(void **state)
{
    (void)state;
    json_t *tools = json_loads("[{\"function\": {\"name\": \"f\", \"strict\": true}}]", 0, NULL);
    static const char *const bare[][2] = {{HERMES, CALL}, {HERMES, "[" CALL "]"}, {LLAMA, "[" LCALL "]"}};
    for (size_t i = 0; i < sizeof bare / sizeof *bare; i++) {
        struct got got = {0};
        const struct answer_wish wish = {.calls = call_syntax_of(bare[i][0]), .tools = tools};
        struct answer *answer = answer_open(&wish, take, &got);
        answer_push(answer, bare[i][1], strlen(bare[i][1]));
        answer_finish(answer);
        answer_close(answer);
        assert_string_equal(got.text.data, bare[i][1]);
        assert_null(got.calls.data);
        cli_text_free(&got.text);
    }
    json_decref(tools);
}

static void test_where_a_prompt_leaves_thinking(void **state)
{
    (void)state;
    static const struct {
        const char *template, *prompt;
        enum reasoning_at at;
    } prompts[] = {{"<think>", "assistant\n<think>\n", REASONING_INSIDE},
                   {"<think>", "assistant\n<think>\n\n</think>\n\n", REASONING_CLOSED},
                   {"<think>", "assistant\n", REASONING_FREE},
                   {"[THINK]", "[/INST][THINK]", REASONING_INSIDE},
                   {"<|channel>", "<|turn>model\n<|channel>thought\n<channel|>", REASONING_CLOSED},
                   {HARMONY, "<|start|>assistant", REASONING_FREE},
                   {HARMONY, "<|start|>assistant<|channel|>analysis<|message|>", REASONING_INSIDE},
                   {HARMONY, "<|start|>assistant<|channel|>final<|message|>", REASONING_CLOSED}};
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++)
        assert_int_equal(reasoning_after(reasoning_tags_of(prompts[i].template), prompts[i].prompt,
                                         strlen(prompts[i].prompt)),
                         prompts[i].at);
}

static void test_thinking_that_the_prompt_began(void **state)
{
    (void)state;
    static const struct {
        const char *template;
        enum reasoning_at at;
        const char *said, *thought, *text;
    } begun[] = {{"<think>", REASONING_INSIDE, "\na</think>b", "a", "b"},
                 {"<think>", REASONING_INSIDE, "a  \n", "a", ""},
                 {HARMONY, REASONING_INSIDE, " me<|end|>", " me", ""},
                 {HARMONY, REASONING_CLOSED, "so", "", "so"}};
    for (size_t i = 0; i < sizeof begun / sizeof *begun; i++) {
        struct got got = {0};
        const struct answer_wish wish = {.tags = reasoning_tags_of(begun[i].template), .at = begun[i].at};
        struct answer *answer = answer_open(&wish, take, &got);
        answer_push(answer, begun[i].said, strlen(begun[i].said));
        answer_finish(answer);
        answer_close(answer);
        assert_string_equal(got.thought.data ? got.thought.data : "", begun[i].thought);
        assert_string_equal(got.text.data ? got.text.data : "", begun[i].text);
        cli_text_free(&got.thought);
        cli_text_free(&got.text);
    }
}

/* Text that goes on without an end neither stops the parser nor is looked at again and again: 500 KB take a
 * moment. */
static void test_long_parts(void **state)
{
    (void)state;
    static const struct {
        const char *template, *begin, *unit, *calls;
        bool text;
    } parts[] = {{HARMONY, "<|channel|>", "word ", "", true},
                 {HARMONY, "<|start|>assistant to=", "x", "", true},
                 {HARMONY, "<|channel|>commentary to=functions.f<|message|>{\"x\": \"", "word ", "f", false},
                 {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"", "word ", "f", false},
                 {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": \"", "word ", "", true},
                 {HERMES, "<tool_call>{\"arguments\": {\"x\": \"", "word ", "", true},
                 {HERMES, "<tool_call>{", "\"a\":1,", "", true},
                 {CODER, "<tool_call><function=g><parameter=s>", "word ", "g", false},
                 {CODER, "<tool_call><function=g><parameter=n>", "word ", "g", false},
                 {GEMMA, "<|tool_call>call:g{s:<|\"|>", "word ", "g", false},
                 {KIMI, "<|tool_call_begin|>", "word", "", true},
                 {MISTRAL, "[TOOL_CALLS]", "word", "", true}};
    json_t *tools = json_loads(listed, 0, NULL);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct got got = {0};
        const struct answer_wish wish = {.tags = reasoning_tags_of(parts[i].template),
                                         .calls = call_syntax_of(parts[i].template),
                                         .tools = tools};
        struct answer *answer = answer_open(&wish, take, &got);
        answer_push(answer, parts[i].begin, strlen(parts[i].begin));
        for (size_t k = 0; k < 100000; k++) answer_push(answer, parts[i].unit, strlen(parts[i].unit));
        answer_finish(answer);
        answer_close(answer);
        assert_int_equal(got.open, !parts[i].text);
        if (parts[i].text) assert_true(got.text.length > 90000);
        assert_memory_equal(got.calls.data ? got.calls.data : "", parts[i].calls, strlen(parts[i].calls));
        cli_text_free(&got.thought);
        cli_text_free(&got.text);
        cli_text_free(&got.calls);
    }
    json_decref(tools);
}

static void test_no_more_calls_than_fit(void **state)
{
    (void)state;
    static const char one[] = "<tool_call>" CALL "</tool_call>";
    struct got got = {0};
    const struct answer_wish wish = {.calls = call_syntax_of(HERMES)};
    struct answer *answer = answer_open(&wish, take, &got);
    for (int i = 0; i < ANSWER_CALLS_MAX + 1; i++) answer_push(answer, one, strlen(one));
    answer_finish(answer);
    answer_close(answer);
    assert_int_equal(got.calls.length, ANSWER_CALLS_MAX * strlen(X));
    assert_string_equal(got.text.data, one);
    cli_text_free(&got.text);
    cli_text_free(&got.calls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_are_the_same_however_the_answer_is_cut),
        cmocka_unit_test(test_no_row_is_left_out),
        cmocka_unit_test(test_a_template_shows_its_syntax),
        cmocka_unit_test(test_a_call_is_told_as_it_comes),
        cmocka_unit_test(test_a_strict_tool_needs_its_marker),
        cmocka_unit_test(test_where_a_prompt_leaves_thinking),
        cmocka_unit_test(test_thinking_that_the_prompt_began),
        cmocka_unit_test(test_long_parts),
        cmocka_unit_test(test_no_more_calls_than_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
