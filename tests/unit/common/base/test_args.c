/* Command lines: every kind of option, both spellings, commands with inherited options, and each error's
 * text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/args.h"

struct values {
    bool flag, size_given;
    const char *model, *device;
    struct args_list listen;
    uint64_t size, count;
    double ratio;
};

static struct values values;
static const struct args_option table[] = {
    {.name = "flag", .letter = 'f', .kind = ARGS_FLAG, .help = "a flag", .target = &values.flag},
    {.name = "model",
     .kind = ARGS_TEXT,
     .value = "DIR",
     .help = "folder\nof the checkpoint",
     .target = &values.model},
    {.name = "device",
     .kind = ARGS_CHOICE,
     .choices = "auto|cpu|cuda",
     .help = "device",
     .target = &values.device},
    {.name = "listen", .kind = ARGS_LIST, .value = "ENDPOINT", .help = "endpoint", .target = &values.listen},
    {.name = "vram",
     .kind = ARGS_SIZE,
     .value = "SIZE",
     .help = "memory",
     .target = &values.size,
     .given = &values.size_given},
    {.name = "count",
     .letter = 'n',
     .kind = ARGS_U64,
     .value = "N",
     .help = "tokens",
     .target = &values.count,
     .min = 1,
     .max = 100},
    {.name = "ratio",
     .kind = ARGS_DOUBLE,
     .value = "R",
     .help = "ratio",
     .target = &values.ratio,
     .min = -2,
     .max = 2},
};
static const struct args_spec spec = {.program = "prog",
                                      .usage = "[options] FILE\n--check",
                                      .about = "About.",
                                      .options = table,
                                      .option_count = sizeof table / sizeof *table,
                                      .epilogue = "Epilogue.",
                                      .min_operands = 0,
                                      .max_operands = 2};

#define ARGS(...) ((char *[]){(char *)"prog", __VA_ARGS__, NULL})
static int parse_with(const struct args_spec *with, char *const argv[], struct args_parsed *parsed,
                      struct helm_err *err)
{
    int argc = 0;
    while (argv[argc]) argc++;
    memset(&values, 0, sizeof values);
    return args_parse(with, argc, argv, parsed, err);
}

static void test_every_kind(void **state)
{
    (void)state;
    struct args_parsed parsed;
    struct helm_err err = {0};
    int rc = parse_with(&spec,
                        ARGS("--flag", "--model", "/m", "--device=cpu", "--listen", "a", "x", "--listen=b=c",
                             "--vram", "8GiB", "-n", "7", "--ratio", "-0.5", "-"),
                        &parsed, &err);
    if (rc) fail_msg("%s", err.text);
    assert_true(values.flag && values.size_given);
    assert_string_equal(values.model, "/m");
    assert_string_equal(values.device, "cpu");
    assert_int_equal(values.listen.count, 2);
    assert_string_equal(values.listen.item[1], "b=c");
    assert_int_equal(values.size, (uint64_t)8 << 30);
    assert_int_equal(values.count, 7);
    assert_true(values.ratio == -0.5);
    assert_int_equal(parsed.operand.count, 2);
    assert_string_equal(parsed.operand.item[0], "x");
    assert_string_equal(parsed.operand.item[1], "-");
    assert_int_equal(parsed.next, 16);
}

static void test_defaults_stay(void **state)
{
    (void)state;
    const char *text = "default";
    struct args_parsed parsed;
    struct helm_err err = {0};
    const struct args_option option = {.name = "t", .kind = ARGS_TEXT, .help = "", .target = &text};
    const struct args_spec one = {.program = "p", .usage = "", .options = &option, .option_count = 1};
    assert_int_equal(parse_with(&one, (char *[]){(char *)"p", NULL}, &parsed, &err), 0);
    assert_string_equal(text, "default");
    assert_int_equal(parse_with(&one, ARGS("--t="), &parsed, &err), 0);
    assert_string_equal(text, "");
}

static void test_double_dash(void **state)
{
    (void)state;
    struct args_parsed parsed;
    struct helm_err err = {0};
    assert_int_equal(parse_with(&spec, ARGS("--", "--flag", "--help"), &parsed, &err), 0);
    assert_int_equal(parsed.operand.count, 2);
    assert_string_equal(parsed.operand.item[0], "--flag");
    assert_false(values.flag);
    assert_int_equal(parsed.asked, ARGS_NOTHING);
}

static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *words[4];
        const char *text;
    } cases[] = {
        {{"--nope"}, "unknown option '--nope'"},
        {{"--nope=1"}, "unknown option '--nope'"},
        {{"--mode", "x"},
         "unknown option '--mode'"}, /* no abbreviations: a new option must not break a script */
        {{"-x"}, "unknown option '-x'"},
        {{"-fn"}, "unknown option '-fn'"},
        {{"--flag=1"}, "--flag takes no value"},
        {{"--flag", "-f"}, "-f given twice"},
        {{"--model"}, "--model needs a value (DIR)"},
        {{"--model", "--flag"}, "--model needs a value (DIR)"},
        {{"--model", "a", "--model=b"}, "--model given twice"},
        {{"--device", "tpu"}, "--device: 'tpu' is none of auto|cpu|cuda"},
        {{"--device", "cp"}, "--device: 'cp' is none of"},
        {{"--device="}, "--device: '' is none of"},
        {{"--vram", "8 apples"}, "--vram: '8 apples' has an unknown unit"},
        {{"-n", "0"}, "-n: 0 is not between 1 and 100"},
        {{"--count", "x"}, "--count: 'x' is not a whole number"},
        {{"--ratio", "3"}, "--ratio: 3 is not between -2 and 2"},
        {{"a", "b", "c"}, "unexpected argument 'c'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct args_parsed parsed;
        struct helm_err err = {0};
        char *argv[6] = {(char *)"prog"};
        for (int w = 0; w < 4 && cases[i].words[w]; w++) argv[w + 1] = (char *)cases[i].words[w];
        int rc = parse_with(&spec, argv, &parsed, &err);
        if (rc != HELM_E_USAGE || !strstr(err.text, cases[i].text))
            fail_msg("case %zu: code %d, '%s'; expected '%s'", i, rc, err.text, cases[i].text);
    }
}

static void test_missing_operand(void **state)
{
    (void)state;
    struct args_spec needs = spec;
    struct args_parsed parsed;
    struct helm_err err = {0};
    needs.min_operands = 1;
    assert_int_equal(parse_with(&needs, ARGS("--flag"), &parsed, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "an argument is missing"));
    assert_int_equal(parse_with(&needs, ARGS("--flag", "--help"), &parsed, &err), 0);
    assert_int_equal(parsed.asked, ARGS_HELP);
}

static void test_too_many_in_a_list(void **state)
{
    (void)state;
    struct args_parsed parsed;
    struct helm_err err = {0};
    char *argv[2 * ARGS_LIST_MAX + 4] = {(char *)"prog"};
    int argc = 1;
    for (int i = 0; i < ARGS_LIST_MAX; i++) {
        argv[argc++] = (char *)"--listen";
        argv[argc++] = (char *)"e";
    }
    assert_int_equal(parse_with(&spec, argv, &parsed, &err), 0);
    argv[argc++] = (char *)"--listen=e";
    assert_int_equal(parse_with(&spec, argv, &parsed, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "--listen given more than 64 times"));
}

static void test_commands(void **state)
{
    (void)state;
    bool json = false;
    struct args_parsed parsed;
    struct helm_err err = {0};
    struct args_spec global = spec;
    const struct args_option own[] = {{.name = "json", .kind = ARGS_FLAG, .help = "JSON", .target = &json}};
    const struct args_spec command = {.program = "prog run",
                                      .usage = "[PROMPT]",
                                      .options = own,
                                      .option_count = 1,
                                      .max_operands = 1,
                                      .parent = &global};
    global.stop_at_operand = true;
    char **argv = ARGS("--flag", "run", "--json", "--model", "/m", "hello");
    assert_int_equal(parse_with(&global, argv, &parsed, &err), 0);
    assert_int_equal(parsed.next, 2);
    assert_string_equal(argv[parsed.next], "run");
    assert_int_equal(args_parse(&command, 7 - parsed.next, argv + parsed.next, &parsed, &err), 0);
    assert_true(json && values.flag);
    assert_string_equal(values.model, "/m");
    assert_string_equal(parsed.operand.item[0], "hello");
    /* Given before and after the command: found through `given`. */
    argv = ARGS("--vram", "1", "run", "--vram", "2");
    assert_int_equal(parse_with(&global, argv, &parsed, &err), 0);
    assert_int_equal(args_parse(&command, 6 - parsed.next, argv + parsed.next, &parsed, &err), HELM_E_USAGE);
    assert_non_null(strstr(err.text, "--vram given twice"));
}

static void test_help(void **state)
{
    (void)state;
    char *text = NULL;
    size_t length = 0;
    const struct args_spec command = {.program = "prog run", .usage = "", .parent = &spec};
    FILE *out = open_memstream(&text, &length);
    args_print_help(&spec, out);
    fclose(out);
    static const char *const parts[] = {
        "usage: prog [options] FILE\n       prog --check\n\nAbout.\n",
        "  -f, --flag                a flag\n",
        "      --model DIR           folder\n                            of the checkpoint\n",
        "      --device auto|cpu|cuda\n                            device\n",
        "      --listen ENDPOINT...  endpoint\n",
        "  -h, --help ",
        "--version",
        "\nEpilogue.\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(text, parts[i])) fail_msg("help lacks '%s':\n%s", parts[i], text);
    free(text);
    out = open_memstream(&text, &length);
    args_print_help(&command, out);
    fclose(out);
    assert_non_null(strstr(text, "usage: prog run\n"));
    assert_non_null(strstr(text, "options of prog, also accepted here:\n  -f, --flag"));
    free(text);
}

/* A text with a line beyond 100 columns is broken anew; other texts, and what brackets hold, stay
 * together. */
static void test_help_width(void **state)
{
    (void)state;
    static bool flag;
    static const char words[] = "one two three four five six seven eight nine ten eleven twelve thirteen\n"
                                "and more of the same, up to --option VALUE, and then the end of this text";
    const struct args_option two[] = {
        {.name = "long", .kind = ARGS_FLAG, .help = words, .target = &flag},
        {.name = "word", .kind = ARGS_FLAG, .help = "short\nlines stay", .target = &flag}};
    const struct args_spec wide = {
        .program = "prog",
        .usage = "[--alpha NUMBER] [--beta NUMBER] [--gamma NUMBER] [--delta NUMBER] "
                 "[--epsilon NUMBER [more]] FILE",
        .about = "Short.\n\nAnother paragraph, with a line that is much longer than the "
                 "hundred columns of --help, and another line\nafter it.\n\nThird.",
        .options = two,
        .option_count = 2};
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    args_print_help(&wide, out);
    fclose(out);
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") > 100) fail_msg("a line of %zu columns:\n%s", strcspn(line, "\n"), text);
    static const char *const parts[] = {"[--delta NUMBER]\n            [--epsilon NUMBER [more]] FILE\n",
                                        "\n\nShort.\n\nAnother paragraph,",
                                        "another\nline after it.\n\nThird.\n\noptions:\n",
                                        "eleven twelve thirteen\n                            and more",
                                        " --option VALUE, and",
                                        "short\n                            lines stay\n"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(text, parts[i])) fail_msg("help lacks '%s':\n%s", parts[i], text);
    free(text);
}

/* Everything that --help has, and nothing that roff would take for its own. */
static void test_manual_and_list(void **state)
{
    (void)state;
    static const struct args_command commands[] = {{"run", "[PROMPT|-]", "runs"}};
    struct args_spec with = spec;
    struct args_parsed parsed;
    struct helm_err err = {0};
    char *text = NULL;
    size_t length = 0;
    with.commands = commands;
    with.command_count = 1;
    with.epilogue = ".begins with a dot\\";
    assert_int_equal(parse_with(&spec, ARGS("--print-man"), &parsed, &err), 0);
    assert_int_equal(parsed.asked, ARGS_MAN);
    assert_int_equal(parse_with(&spec, ARGS("--print-options"), &parsed, &err), 0);
    assert_int_equal(parsed.asked, ARGS_OPTIONS);
    FILE *out = open_memstream(&text, &length);
    args_print_man(&with, out);
    fclose(out);
    assert_non_null(strstr(text, ".TH \"prog\" 1"));
    assert_non_null(strstr(text, ".B \\-n, \\-\\-count \\fIN\\fR\ntokens\n"));
    assert_non_null(strstr(text, ".B run [PROMPT|\\-]\nruns\n"));
    assert_non_null(strstr(text, "\n\\&.begins with a dot\\e\n"));
    free(text);
    out = open_memstream(&text, &length);
    args_print_options(&with, out);
    fclose(out);
    assert_non_null(strstr(text, "--flag\t-\ta flag\n"));
    assert_non_null(strstr(text, "--device\tauto|cpu|cuda\tdevice\n"));
    assert_non_null(strstr(text, "--model\tDIR\tfolder\n"));
    assert_non_null(strstr(text, "run\t[PROMPT|-]\truns\n"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_manual_and_list),
        cmocka_unit_test(test_every_kind),
        cmocka_unit_test(test_defaults_stay),
        cmocka_unit_test(test_double_dash),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_missing_operand),
        cmocka_unit_test(test_too_many_in_a_list),
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_help_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
