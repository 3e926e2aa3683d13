/* Commands that may be typed in a chat beside messages: one table. See chat.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/chat.h"
#include "common/base/suggest.h"

struct chat_command {
    const char *name, *arguments, *help;
    bool (*run)(struct chat *chat, const char *argument); /* false: the conversation ends */
};

static bool run_help(struct chat *chat, const char *argument);

static bool run_exit(struct chat *chat, const char *argument)
{
    (void)chat, (void)argument;
    return false;
}

static bool run_clear(struct chat *chat, const char *argument)
{
    (void)argument;
    chat_clear(&chat->history);
    return true;
}

/* Reports a failure, which has changed nothing; the chat goes on either way. */
static bool go_on(int rc, const struct helm_err *err)
{
    if (rc) cli_complain(err->text);
    return true;
}

static bool run_system(struct chat *chat, const char *argument)
{
    struct helm_err err = {0};
    const char *now = chat_system(&chat->history);
    if (!*argument) {
        struct cli_text shown = {0};
        cli_text_shown(&shown, now ? now : "no system message", strlen(now ? now : "no system message"));
        fprintf(stderr, "%s\n", shown.data ? shown.data : "");
        cli_text_free(&shown);
        return true;
    }
    return go_on(chat_set_system(&chat->history, strcmp(argument, "-") == 0 ? NULL : argument, &err), &err);
}

/* "~/notes.json" as a shell has it; malloc'd. */
static char *whole_path(const char *path)
{
    char *whole = NULL;
    const char *home = getenv("HOME");
    if (strncmp(path, "~/", 2) != 0 || !home) return strdup(path);
    return asprintf(&whole, "%s%s", home, path + 1) < 0 ? NULL : whole;
}

static bool run_file(struct chat *chat, const char *argument, bool save)
{
    struct helm_err err = {0};
    char *path = whole_path(argument);
    int rc = !*argument ? helm_fail(&err, HELM_E_USAGE, "no file named")
             : !path    ? helm_fail(&err, HELM_E_NOMEM, "no memory for a path")
             : save     ? chat_save(&chat->history, path, &err)
                        : chat_load(&chat->history, path, &err);
    if (!rc) fprintf(stderr, "%zu messages %s %s\n", chat->history.count, save ? "in" : "from", path);
    free(path);
    return go_on(rc, &err);
}

static bool run_save(struct chat *chat, const char *argument)
{
    return run_file(chat, argument, true);
}

static bool run_load(struct chat *chat, const char *argument)
{
    return run_file(chat, argument, false);
}

/* ---- /set: the command line's options that are numbers ---- */

static bool may_be_set(const struct args_option *option)
{
    return (option->kind == ARGS_U64 || option->kind == ARGS_DOUBLE) && strcmp(option->name, "logprobs") != 0;
}

static void print_settings(struct chat *chat)
{
    struct args_option table[SAMPLING_OPTION_COUNT];
    sampling_fill_table(&chat->sampling, table);
    for (size_t i = 0; i < SAMPLING_OPTION_COUNT; i++) {
        const struct args_option *o = &table[i];
        if (!may_be_set(o)) continue;
        if (o->kind == ARGS_DOUBLE)
            fprintf(stderr, "  %-20s %-8g %s\n", o->name, *(const double *)o->target, o->help);
        else if (strcmp(o->name, "seed") == 0 && !chat->sampling.has_seed)
            fprintf(stderr, "  %-20s %-8s %s\n", o->name, "another", o->help);
        else
            fprintf(stderr, "  %-20s %-8llu %s\n", o->name, (unsigned long long)*(const uint64_t *)o->target,
                    o->help);
    }
}

static int set_one(struct chat *chat, const char *name, size_t length, const char *value,
                   struct helm_err *err)
{
    struct args_option table[SAMPLING_OPTION_COUNT];
    struct args_parsed parsed;
    struct suggest near;
    char *word = NULL;
    sampling_fill_table(&chat->sampling, table);
    suggest_begin(&near, name, length);
    for (size_t i = 0; i < SAMPLING_OPTION_COUNT; i++) {
        struct args_option one = table[i];
        if (!may_be_set(&one)) continue;
        suggest_try(&near, one.name);
        if (strlen(one.name) != length || memcmp(one.name, name, length) != 0) continue;
        one.given = NULL; /* may be set again and again */
        const struct args_spec spec = {.program = "/set", .usage = "", .options = &one, .option_count = 1};
        if (asprintf(&word, "--%s=%s", one.name, value) < 0) return helm_fail(err, HELM_E_NOMEM, "no memory");
        int rc = args_parse(&spec, 2, (char *const[]){(char *)"/set", word, NULL}, &parsed, err);
        free(word);
        if (!rc && table[i].given) *table[i].given = true;
        return rc;
    }
    return helm_fail(err, HELM_E_USAGE, "nothing is called '%.*s' here%s%s%s: /set lists what is",
                     (int)length, name, near.best ? " (" : "", near.best ? near.best : "",
                     near.best ? "?)" : "");
}

static bool run_set(struct chat *chat, const char *argument)
{
    struct helm_err err = {0};
    const size_t length = strcspn(argument, " ");
    const char *value = argument + length + strspn(argument + length, " ");
    if (*argument && *value) return go_on(set_one(chat, argument, length, value, &err), &err);
    if (*argument) return go_on(helm_fail(&err, HELM_E_USAGE, "/set NAME VALUE: no value"), &err);
    print_settings(chat);
    return true;
}

static bool run_stats(struct chat *chat, const char *argument)
{
    (void)argument;
    if (chat->last.finish)
        stream_print_stats(&chat->last);
    else
        fputs("nothing was answered yet\n", stderr);
    return true;
}

static const struct chat_command commands[] = {
    {"help", "", "this", run_help},
    {"exit", "", "leave (so do /bye and Ctrl-D)", run_exit},
    {"bye", NULL, NULL, run_exit},
    {"clear", "", "forget the conversation, but for the system message", run_clear},
    {"reset", NULL, NULL, run_clear},
    {"system", "[TEXT]", "the system message from now on; -: none; alone: show it", run_system},
    {"save", "FILE", "write the conversation to a file", run_save},
    {"load", "FILE", "go on with one from a file", run_load},
    {"set", "[NAME VALUE]", "temperature, top-p, seed, ...; alone: show them all", run_set},
    {"stats", "", "how fast the last answer was", run_stats},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static bool run_help(struct chat *chat, const char *argument)
{
    (void)chat, (void)argument;
    for (size_t i = 0; i < COMMANDS; i++)
        if (commands[i].help)
            fprintf(stderr, "  /%-7s %-13s %s\n", commands[i].name, commands[i].arguments, commands[i].help);
    fputs("Ctrl-C stops an answer. What is pasted is one message, however long. A message that begins with\n"
          "a slash is sent with a blank before it.\n",
          stderr);
    return true;
}

bool chat_is_command(const char *text)
{
    const size_t letters =
        strspn(text + (text[0] == '/'), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ?-_");
    const char end = text[0] == '/' ? text[1 + letters] : '/';
    return (end == '\0' || end == ' ') && !strchr(text, '\n');
}

bool chat_command(struct chat *chat, char *text)
{
    struct suggest near;
    const char *name = text + 1;
    const size_t length = strcspn(name, " ");
    char *argument = text + 1 + length;
    argument += strspn(argument, " ");
    for (size_t end = strlen(argument); end && argument[end - 1] == ' ';) argument[--end] = '\0';
    suggest_begin(&near, name, length);
    for (size_t i = 0; i < COMMANDS; i++) {
        suggest_try(&near, commands[i].name);
        if (strlen(commands[i].name) == length && memcmp(commands[i].name, name, length) == 0)
            return commands[i].run(chat, argument);
    }
    fprintf(stderr, "no command /%.*s%s%s%s: /help lists them; with a blank before it this is a message\n",
            (int)(length > 40 ? 40 : length), name, near.best ? " (/" : "", near.best ? near.best : "",
            near.best ? "?)" : "");
    return true;
}
