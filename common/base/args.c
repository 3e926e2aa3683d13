/* Table-driven command lines: what they mean. See args.h; args_print.c prints them. Called by every main; no
 * state. */
#include "common/base/args.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/suggest.h"
#include "common/base/units.h"

/* One table's options that were met, so that a repeated one is found. Parent tables have their own. */
struct seen {
    bool own[ARGS_OPTIONS_MAX];
    bool parent[ARGS_OPTIONS_MAX];
};

static const struct args_option *find_in(const struct args_spec *spec, const char *name, size_t length,
                                         char letter, bool *seen, bool **mark)
{
    for (uint32_t i = 0; i < spec->option_count && i < ARGS_OPTIONS_MAX; i++) {
        const struct args_option *option = &spec->options[i];
        bool match = letter ? option->letter == letter
                            : strlen(option->name) == length && memcmp(option->name, name, length) == 0;
        if (!match) continue;
        *mark = &seen[i];
        return option;
    }
    return NULL;
}

static const struct args_option *find_option(const struct args_spec *spec, const char *name, size_t length,
                                             char letter, struct seen *seen, bool **mark)
{
    const struct args_option *option = find_in(spec, name, length, letter, seen->own, mark);
    if (!option && spec->parent) option = find_in(spec->parent, name, length, letter, seen->parent, mark);
    return option;
}

static int list_add(struct args_list *list, const char *what, const char *text, struct helm_err *err)
{
    if (list->count >= ARGS_LIST_MAX)
        return helm_fail(err, HELM_E_USAGE, "%s given more than %d times", what, ARGS_LIST_MAX);
    list->item[list->count++] = text;
    return 0;
}

static int check_choice(const char *what, const char *choices, const char *text, struct helm_err *err)
{
    char head[32];
    const char *equals = strchr(text, '=');
    if (equals) snprintf(head, sizeof head, "%.*s", (int)(equals + 1 - text), text);
    if (suggest_knows(choices, '|', text) || (equals && suggest_knows(choices, '|', head))) return 0;
    return helm_fail(err, HELM_E_USAGE, "%s: '%.60s' is none of %s", what, text, choices);
}

static int store(const struct args_option *option, const char *what, const char *text, struct helm_err *err)
{
    bool bounded = option->min != 0 || option->max != 0;
    int rc;
    switch (option->kind) {
    case ARGS_FLAG:
        *(bool *)option->target = true;
        return 0;
    case ARGS_TEXT:
        *(const char **)option->target = text;
        return 0;
    case ARGS_LIST:
        return list_add(option->target, what, text, err);
    case ARGS_CHOICE:
        rc = check_choice(what, option->choices, text, err);
        if (!rc) *(const char **)option->target = text;
        return rc;
    case ARGS_SIZE:
        rc = units_parse_size(what, text, option->target, err);
        if (!rc && (double)*(const uint64_t *)option->target < option->min)
            rc = helm_fail(err, HELM_E_USAGE, "%s: '%.60s' is not at least %.0f", what, text, option->min);
        return rc;
    case ARGS_U64:
        if (option->value && strcmp(option->value, "TOKENS") == 0)
            return units_parse_tokens(what, text, bounded ? (uint64_t)option->min : 0,
                                      bounded ? (uint64_t)option->max : UINT64_MAX, option->target, err);
        return units_parse_u64(what, text, bounded ? (uint64_t)option->min : 0,
                               bounded ? (uint64_t)option->max : UINT64_MAX, option->target, err);
    case ARGS_DOUBLE:
        return units_parse_double(what, text, bounded ? option->min : -1e308, bounded ? option->max : 1e308,
                                  option->target, err);
    }
    return helm_fail(err, HELM_E_INTERNAL, "%s: unknown kind of option", what);
}

static int unknown_option(const struct args_spec *spec, const char *what, struct helm_err *err)
{
    struct suggest near;
    const size_t dashes = strspn(what, "-");
    suggest_begin(&near, what + dashes, strlen(what) - dashes);
    for (const struct args_spec *of = spec; of; of = of->parent)
        for (uint32_t i = 0; i < of->option_count; i++) suggest_try(&near, of->options[i].name);
    if (!near.best) return helm_fail(err, HELM_E_USAGE, "unknown option '%s'", what);
    return helm_fail(err, HELM_E_USAGE, "unknown option '%s': is '--%s' meant?", what, near.best);
}

/* Parses the option at argv[*at]; leaves *at on its last word. */
static int parse_option(const struct args_spec *spec, int argc, char *const argv[], int *at,
                        struct seen *seen, struct helm_err *err)
{
    const char *word = argv[*at], *value = NULL;
    const struct args_option *option;
    bool *mark = NULL;
    char what[80];
    if (word[1] == '-') {
        const char *equals = strchr(word, '=');
        size_t length = equals ? (size_t)(equals - word) - 2 : strlen(word) - 2;
        snprintf(what, sizeof what, "%.*s", (int)(length > 70 ? 70 : length) + 2, word);
        option = find_option(spec, word + 2, length, 0, seen, &mark);
        if (equals) value = equals + 1;
    } else {
        snprintf(what, sizeof what, "%.70s", word);
        option = word[2] ? NULL : find_option(spec, NULL, 0, word[1], seen, &mark);
    }
    if (!option) return unknown_option(spec, what, err);
    if (option->kind != ARGS_LIST && (*mark || (option->given && *option->given)))
        return helm_fail(err, HELM_E_USAGE, "%s given twice", what);
    if (option->kind == ARGS_FLAG && value) return helm_fail(err, HELM_E_USAGE, "%s takes no value", what);
    if (option->kind != ARGS_FLAG && !value) {
        const char *next = *at + 1 < argc ? argv[*at + 1] : NULL;
        if (!next || strncmp(next, "--", 2) == 0)
            return helm_fail(err, HELM_E_USAGE, "%s needs a value (%s)", what,
                             option->value ? option->value : "VALUE");
        value = next;
        ++*at;
    }
    int rc = store(option, what, value, err);
    if (rc) return rc;
    *mark = true;
    if (option->given) *option->given = true;
    return 0;
}

static enum args_question question_of(const char *word)
{
    static const struct {
        const char *word;
        enum args_question question;
    } words[] = {{"--help", ARGS_HELP},
                 {"-h", ARGS_HELP},
                 {"--version", ARGS_VERSION},
                 {"--print-man", ARGS_MAN},
                 {"--print-options", ARGS_OPTIONS}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i].word) == 0) return words[i].question;
    return ARGS_NOTHING;
}

int args_parse(const struct args_spec *spec, int argc, char *const argv[], struct args_parsed *parsed,
               struct helm_err *err)
{
    struct seen seen = {0};
    bool options_ended = false;
    memset(parsed, 0, sizeof *parsed);
    int i;
    for (i = 1; i < argc; i++) {
        const char *word = argv[i];
        bool is_option = !options_ended && word[0] == '-' && word[1] != '\0';
        if (is_option && strcmp(word, "--") == 0) {
            options_ended = true;
            continue;
        }
        if (!is_option) {
            if (spec->stop_at_operand) break;
            if (parsed->operand.count >= spec->max_operands)
                return helm_fail(err, HELM_E_USAGE, "unexpected argument '%.100s'", word);
            int rc = list_add(&parsed->operand, "arguments", word, err);
            if (rc) return rc;
            continue;
        }
        parsed->asked = question_of(word);
        if (parsed->asked) {
            parsed->next = argc;
            return 0;
        }
        int rc = parse_option(spec, argc, argv, &i, &seen, err);
        if (rc) return rc;
    }
    parsed->next = i;
    if (!spec->stop_at_operand && parsed->operand.count < spec->min_operands)
        return helm_fail(err, HELM_E_USAGE, "an argument is missing (%s)", spec->usage);
    return 0;
}

int args_usage_error(const struct args_spec *spec, const struct helm_err *err)
{
    fprintf(stderr, "%s: %s\ntry '%s --help'\n", spec->program, err->text, spec->program);
    return 2;
}

void args_parse_main(const struct args_spec *spec, int argc, char *const argv[], struct args_parsed *parsed)
{
    struct helm_err err = {0};
    /* Some callers leave it ignored: `| head` would be a failed write, and reported. A command's main has
     * decided. */
    if (!spec->parent) signal(SIGPIPE, SIG_DFL);
    if (args_parse(spec, argc, argv, parsed, &err)) exit(args_usage_error(spec, &err));
    if (args_answer(spec, parsed)) exit(0);
}
