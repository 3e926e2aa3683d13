/* Command lines as people and shells read them: --help, manual pages, lists for completion. See args.h. No
 * state. */
#include <stdio.h>
#include <string.h>

#include "common/base/args.h"

#ifndef HELM_VERSION
#define HELM_VERSION "unknown"
#endif

#define HELP_COLUMN    28
#define COMMAND_COLUMN 25
#define WIDTH          100 /* columns of --help; longer lines go on below */

static const struct args_option standard[] = {
    {.name = "help", .letter = 'h', .kind = ARGS_FLAG, .help = "this text"},
    {.name = "version", .kind = ARGS_FLAG, .help = "the version"},
};
#define STANDARD (sizeof standard / sizeof *standard)

static const char *value_of(const struct args_option *option)
{
    return option->kind == ARGS_FLAG ? NULL : option->kind == ARGS_CHOICE ? option->choices : option->value;
}

static bool ends_line(char c)
{
    return c == '\n' || c == '\0';
}

static bool exceeds(const char *text, size_t room)
{
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n')
        if (strcspn(text, "\n") > room) return true;
    return false;
}

/* Up to an empty line or the end. */
static size_t paragraph(const char *text)
{
    size_t length = 0;
    while (text[length] && !(text[length] == '\n' && ends_line(text[length + 1]))) length++;
    return length;
}

/* Bytes of the first part that fits in `room` columns: it ends before a blank, but not between an option and
 * its value nor inside of brackets, as a usage line has them. */
static size_t fitting(const char *text, size_t length, size_t room)
{
    size_t fits = 0, word = 0;
    int depth = 0;
    if (length <= room) return length;
    for (size_t i = 0; i < length && (i <= room || !fits); i++) {
        depth += (text[i] == '[') - (text[i] == ']');
        if (text[i] != ' ' && text[i] != '\n') continue;
        const bool option = text[word] == '-' && i > word + 1;
        word = i + 1;
        if (depth <= 0 && !option) fits = i;
    }
    return fits ? fits : length;
}

/* The cursor is at column `indent`, where further lines begin, too. A text with a line that is too long is
 * broken anew, paragraph by paragraph. */
static void print_indented(FILE *out, const char *text, int indent)
{
    const size_t room = (size_t)(WIDTH - indent);
    const bool anew = exceeds(text, room);
    while (*text) {
        const size_t line = *text == '\n' ? 0
                            : anew        ? paragraph(text)
                                          : strcspn(text, "\n"),
                     length = anew ? fitting(text, line, room) : line;
        for (size_t i = 0; i < length; i++) fputc(text[i] == '\n' ? ' ' : text[i], out);
        fputc('\n', out);
        text += length + (text[length] != '\0'); /* with the blank or the end of the line */
        if (!ends_line(*text)) fprintf(out, "%*s", indent, "");
    }
}

static void print_left(FILE *out, const char *left, int column)
{
    if (strlen(left) >= (size_t)column)
        fprintf(out, "%s\n%*s", left, column, "");
    else
        fprintf(out, "%-*s", column, left);
}

static void print_option(FILE *out, const struct args_option *option)
{
    char left[120];
    int n = option->letter ? snprintf(left, sizeof left, "  -%c, --%s", option->letter, option->name)
                           : snprintf(left, sizeof left, "      --%s", option->name);
    const char *value = value_of(option);
    if (value && n > 0 && (size_t)n < sizeof left)
        snprintf(left + n, sizeof left - (size_t)n, " %s%s", value, option->kind == ARGS_LIST ? "..." : "");
    print_left(out, left, HELP_COLUMN);
    print_indented(out, option->help, HELP_COLUMN);
}

/* Whether a command's own option of this name goes before its parent's. */
static bool is_replaced(const struct args_spec *spec, const struct args_option *of_parent)
{
    for (uint32_t i = 0; i < spec->option_count; i++)
        if (strcmp(spec->options[i].name, of_parent->name) == 0) return true;
    return false;
}

void args_print_help(const struct args_spec *spec, FILE *out)
{
    fprintf(out, "usage: ");
    for (const char *line = spec->usage;;) {
        const size_t length = strcspn(line, "\n");
        char text[400];
        snprintf(text, sizeof text, "%.*s", (int)length, line);
        fprintf(out, "%s%s", spec->program, length ? " " : "\n");
        print_indented(out, text, (int)(sizeof "usage: " + strlen(spec->program)));
        if (!line[length]) break;
        line += length + 1;
        fprintf(out, "       ");
    }
    if (spec->about) fputc('\n', out);
    if (spec->about) print_indented(out, spec->about, 0);
    fprintf(out, "\noptions:\n");
    for (uint32_t i = 0; i < spec->option_count; i++) print_option(out, &spec->options[i]);
    for (size_t i = 0; i < STANDARD; i++) print_option(out, &standard[i]);
    if (spec->parent) {
        fprintf(out, "\noptions of %s, also accepted here:\n", spec->parent->program);
        for (uint32_t i = 0; i < spec->parent->option_count; i++)
            if (!is_replaced(spec, &spec->parent->options[i])) print_option(out, &spec->parent->options[i]);
    }
    if (spec->command_count) fprintf(out, "\ncommands:\n");
    for (uint32_t i = 0; i < spec->command_count; i++) {
        char left[120];
        snprintf(left, sizeof left, "  %s %s", spec->commands[i].name, spec->commands[i].operands);
        print_left(out, left, COMMAND_COLUMN);
        print_indented(out, spec->commands[i].help, COMMAND_COLUMN);
    }
    if (spec->epilogue) fputc('\n', out);
    if (spec->epilogue) print_indented(out, spec->epilogue, 0);
}

/* ---- manual pages ---- */

/* roff takes a backslash, a dash and a line's first dot or quote for its own. */
static void print_roff(FILE *out, const char *text)
{
    bool begins = true;
    for (; *text; text++) {
        if (begins && (*text == '.' || *text == '\'')) fputs("\\&", out);
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text, out);
        begins = *text == '\n';
    }
}

static void print_paragraph(FILE *out, const char *text)
{
    if (!text) return;
    fputs(".PP\n.nf\n", out);
    print_roff(out, text);
    fputs("\n.fi\n", out);
}

static void print_man_option(FILE *out, const struct args_option *option)
{
    const char *value = value_of(option);
    fputs(".TP\n.B ", out);
    if (option->letter) fprintf(out, "\\-%c, ", option->letter);
    fputs("\\-\\-", out);
    print_roff(out, option->name);
    fputs(value ? " \\fI" : "", out);
    if (value) print_roff(out, value);
    fputs(value ? "\\fR\n" : "\n", out);
    print_roff(out, option->help);
    fputc('\n', out);
}

void args_print_man(const struct args_spec *spec, FILE *out)
{
    char name[80];
    snprintf(name, sizeof name, "%s", spec->program);
    for (char *c = name; *c; c++)
        if (*c == ' ') *c = '-';
    fprintf(out, ".TH \"%s\" 1 \"\" \"HELM %s\"\n.SH NAME\n", name, HELM_VERSION);
    print_roff(out, name);
    fputs(" \\- ", out);
    const char *about = spec->about ? spec->about : "";
    char first[160];
    snprintf(first, sizeof first, "%.*s", (int)strcspn(about, "."), about);
    for (char *c = first; *c; c++)
        if (*c == '\n') *c = ' ';
    print_roff(out, first);
    fputs("\n.SH SYNOPSIS\n.nf\n", out);
    for (const char *line = spec->usage; *line || line == spec->usage;) {
        const size_t length = strcspn(line, "\n");
        char text[400];
        snprintf(text, sizeof text, "%s %.*s\n", spec->program, (int)length, line);
        print_roff(out, text);
        line += length + (line[length] == '\n');
        if (!*line) break;
    }
    fputs(".fi\n.SH DESCRIPTION\n", out);
    print_paragraph(out, spec->about);
    if (spec->command_count) fputs(".SH COMMANDS\n", out);
    for (uint32_t i = 0; i < spec->command_count; i++) {
        fprintf(out, ".TP\n.B %s ", spec->commands[i].name);
        print_roff(out, spec->commands[i].operands);
        fputc('\n', out);
        print_roff(out, spec->commands[i].help);
        fputc('\n', out);
    }
    fputs(".SH OPTIONS\n", out);
    for (uint32_t i = 0; i < spec->option_count; i++) print_man_option(out, &spec->options[i]);
    for (size_t i = 0; i < STANDARD; i++) print_man_option(out, &standard[i]);
    if (spec->parent) {
        fputs(".SH SEE ALSO\n", out);
        print_roff(out, spec->parent->program);
        fputs("(1), whose options are accepted here, too\n", out);
    }
    if (spec->epilogue) fputs(".SH NOTES\n", out);
    print_paragraph(out, spec->epilogue);
}

/* ---- for shells ---- */

static void print_row(FILE *out, const char *dashes, const char *name, const char *value, const char *help)
{
    fprintf(out, "%s%s\t%s\t%.*s\n", dashes, name, value && *value ? value : "-", (int)strcspn(help, "\n"),
            help);
}

void args_print_options(const struct args_spec *spec, FILE *out)
{
    for (const struct args_spec *of = spec; of; of = of->parent)
        for (uint32_t i = 0; i < of->option_count; i++)
            if (of == spec || !is_replaced(spec, &of->options[i]))
                print_row(out, "--", of->options[i].name, value_of(&of->options[i]), of->options[i].help);
    for (size_t i = 0; i < STANDARD; i++) print_row(out, "--", standard[i].name, NULL, standard[i].help);
    for (uint32_t i = 0; i < spec->command_count; i++)
        print_row(out, "", spec->commands[i].name, spec->commands[i].operands, spec->commands[i].help);
}

bool args_answer(const struct args_spec *spec, const struct args_parsed *parsed)
{
    const size_t word = strcspn(spec->program, " "); /* a command's version is its program's */
    switch (parsed->asked) {
    case ARGS_NOTHING:
        return false;
    case ARGS_HELP:
        args_print_help(spec, stdout);
        break;
    case ARGS_VERSION:
        printf("%.*s %s\n", (int)word, spec->program, HELM_VERSION);
        break;
    case ARGS_MAN:
        args_print_man(spec, stdout);
        break;
    case ARGS_OPTIONS:
        args_print_options(spec, stdout);
        break;
    }
    return true;
}
