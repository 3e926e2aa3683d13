/* Command lines, table-driven: one table of options says what is parsed and what --help prints.
 *
 * Called by every program's main. The table's `target` pointers are the caller's variables, filled in as
 * options are met; strings are borrowed from argv. Nothing is allocated and no state is kept between calls.
 *
 *   --name VALUE, --name=VALUE, -n VALUE, --flag; "--" ends the options; "-" is an operand.
 *   A value may start with "-" (a negative number) but not with "--": write --name=--value for that.
 *   --help (-h), --version, --print-man and --print-options are always known and never listed in a table.
 *
 * A program with sub-commands parses its global options with `stop_at_operand`, looks the command up in
 * argv[parsed.next], then parses (argc - parsed.next, argv + parsed.next) with the command's own spec, whose
 * `parent` is the global one, so that global options may also stand after the command.
 *
 *   const char *model = NULL;
 *   uint64_t ctx = 0;
 *   const struct args_option options[] = {
 *       {"model", 0, ARGS_TEXT, "DIR", "folder of the checkpoint", .target = &model},
 *       {"ctx", 0, ARGS_U64, "TOKENS", "longest sequence", .target = &ctx, .min = 1, .max = 1 << 26},
 *   };
 *   const struct args_spec spec = {.program = "helmd", .usage = "--model DIR [options]", .about = "...",
 *                                  .options = options, .option_count = 2};
 *   rc = args_parse(&spec, argc, argv, &parsed, &err);      (or args_parse_main, which also prints and exits)
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "common/base/err.h"

#define ARGS_LIST_MAX    64 /* values of one repeated option, or operands */
#define ARGS_OPTIONS_MAX 64 /* options of one table */

struct args_list {
    const char *item[ARGS_LIST_MAX];
    uint32_t count;
};

enum args_kind {
    ARGS_FLAG,   /* no value;  target: bool *, set to true */
    ARGS_TEXT,   /* any text;  target: const char ** */
    ARGS_LIST,   /* repeated;  target: struct args_list * */
    ARGS_CHOICE, /* one word of `choices`, which '|' divides, or any text after one with '='; target: const
                    char ** */
    ARGS_SIZE,   /* 8GiB;      target: uint64_t * */
    ARGS_U64,    /* in [min, max]; target: uint64_t *; of a value called TOKENS also 4k */
    ARGS_DOUBLE, /* in [min, max]; target: double * */
};

struct args_option {
    const char *name; /* without "--" */
    char letter;      /* one-letter form, or 0 */
    enum args_kind kind;
    const char *value;   /* how --help calls the value; NULL for a flag */
    const char *help;    /* one line or several ('\n'); --help breaks what exceeds 100 columns */
    void *target;        /* keeps what the caller put there (its default) while the option is absent */
    double min, max;     /* U64 and DOUBLE; both 0: no bound. U64 beyond 2^53: use 0, 0. SIZE: the least */
    const char *choices; /* CHOICE: "bf16|fp16" */
    bool *given;         /* may be NULL; set to true when the option is met */
};

struct args_spec {
    const char *program; /* "helm-cli", or "helm-cli generate" for a command */
    const char *usage;   /* usage after the program in its line; several lines: one usage line each */
    const char *about;   /* text under the usage lines; may be NULL */
    const struct args_option *options;
    uint32_t option_count;
    const struct args_command *commands; /* listed under the options; may be NULL */
    uint32_t command_count;
    const char *epilogue;                /* text under all that (exit status); may be NULL */
    uint32_t min_operands, max_operands; /* ignored with stop_at_operand */
    bool stop_at_operand;                /* the first operand and all that follows is left to the caller */
    const struct args_spec *parent;      /* its options are accepted too; may be NULL */
};

/* A spec's table of options, an array. */
#define ARGS_TABLE(table) .options = (table), .option_count = sizeof(table) / sizeof *(table)

/* A sub-command, for --help and what is made of it. */
struct args_command {
    const char *name, *operands, *help; /* "run", "[PROMPT|-]", "text in, text streamed out" */
};

/* Questions of --help, --version and, for manual pages and shells' completion, --print-man and
 * --print-options. */
enum args_question { ARGS_NOTHING, ARGS_HELP, ARGS_VERSION, ARGS_MAN, ARGS_OPTIONS };

struct args_parsed {
    enum args_question asked; /* the rest of the line was not looked at, required operands not checked */
    struct args_list operand; /* empty with stop_at_operand */
    int next;                 /* index of the first argument not parsed; argc when all were */
};

/* HELM_E_USAGE names the option or operand that is wrong. An option that is not repeatable given twice is an
 * error. */
HELM_MUST_CHECK int args_parse(const struct args_spec *spec, int argc, char *const argv[],
                               struct args_parsed *parsed, struct helm_err *err);

void args_print_help(const struct args_spec *spec, FILE *out);
/* The same as a page for man(1), in roff. */
void args_print_man(const struct args_spec *spec, FILE *out);
/* One line an option or command, for shells: "--name", a value's name or its choices ("-" of a flag), help,
 * with tabs. */
void args_print_options(const struct args_spec *spec, FILE *out);
/* Prints what was asked for; false: nothing was. */
bool args_answer(const struct args_spec *spec, const struct args_parsed *parsed);

/* args_parse for main: prints --help or --version ("helmd 0.1.0") and the like to stdout and exits 0; prints
 * an error with a pointer to --help to stderr and exits 2. Returns only when there is work to do. Unless the
 * spec has a parent, SIGPIPE ends the program from here on, in silence; main may say otherwise. */
void args_parse_main(const struct args_spec *spec, int argc, char *const argv[], struct args_parsed *parsed);

/* For errors found after parsing: "PROGRAM: text" and "try 'PROGRAM --help'" on stderr; returns 2, the exit
 * status. */
int args_usage_error(const struct args_spec *spec, const struct helm_err *err);
