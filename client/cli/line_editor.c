/* libedit, and pastes of any length. See line_editor.h. */
#include "client/cli/line_editor.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_LINES 500
#define PASTE_MS      30  /* lines of one paste arrive together; typing a line takes longer */
#define SHORT_PASTE   200 /* bytes of one line that are put into the line as if typed */
#define BRACKET_END   "\033[201~"
#define END_KEYS      "\030\015" /* Ctrl-X Enter */

struct paste {
    char *name, *text; /* as the line shows it, what it stands for */
};

struct line_editor {
    struct cli *cli;
    EditLine *el;
    History *history;
    FILE *out;
    const char *prompt;
    bool brackets; /* the terminal is asked to mark pastes */
    char buffer[4096];
    size_t at, used; /* of the buffer: read and not yet taken */
    int signal_number;
    bool failed;         /* no memory for a paste */
    struct paste *paste; /* of the whole conversation: history may bring them back */
    size_t pastes;
};

/* ---- bytes ---- */

/* 1 there are bytes, 0 none within wait_ms (-1: until there are), -1 a signal or an error. */
static int fill(struct line_editor *e, int wait_ms)
{
    if (e->at < e->used) return 1;
    for (;;) {
        struct pollfd p[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                              {.fd = e->cli->signal_fd, .events = POLLIN}};
        const int n = poll(p, 2, wait_ms);
        if (n < 0 && errno != EINTR) return -1;
        if (n > 0 && p[1].revents && (e->signal_number = cli_take_signal(e->cli)) != 0) return -1;
        if (n > 0 && p[0].revents) {
            const ssize_t got = read(STDIN_FILENO, e->buffer, sizeof e->buffer);
            if (got < 0 && errno == EINTR) continue;
            e->at = 0;
            e->used = got > 0 ? (size_t)got : 0;
            return got > 0 ? 1 : got == 0 ? 0 : -1;
        }
        if (wait_ms >= 0) return 0;
    }
}

/* libedit's way to a character. 1, 0 at the end, -1. Bytes that are not UTF-8 are dropped. */
static int get_character(EditLine *el, wchar_t *out)
{
    struct line_editor *e;
    mbstate_t state = {0};
    el_get(el, EL_CLIENTDATA, &e);
    for (;;) {
        const int rc = fill(e, -1);
        if (rc <= 0) return rc;
        const size_t n = mbrtowc(out, &e->buffer[e->at++], 1, &state);
        if (n == (size_t)-1) {
            state = (mbstate_t){0};
            continue;
        }
        if (n != (size_t)-2) return 1;
    }
}

/* ---- pastes ---- */

/* Keeps a text aside and puts its name into the line. A short one of one line is the line's. */
static void put_paste(struct line_editor *e, EditLine *el, const struct cli_text *text)
{
    size_t lines = 1;
    for (size_t i = 0; i < text->length; i++) lines += text->data[i] == '\n';
    if (text->length == 0) return;
    if (lines == 1 && text->length <= SHORT_PASTE) {
        el_insertstr(el, text->data);
        return;
    }
    struct paste *grown = realloc(e->paste, (e->pastes + 1) * sizeof *e->paste);
    if (grown) e->paste = grown;
    struct paste *p = grown ? &grown[e->pastes] : NULL;
    char *copy = strndup(text->data, text->length);
    if (!p || !copy ||
        asprintf(&p->name, "[paste %zu: %zu lines, %zu bytes]", e->pastes + 1, lines, text->length) < 0) {
        free(copy);
        e->failed = true;
        return;
    }
    p->text = copy;
    e->pastes++;
    el_insertstr(el, p->name);
}

/* Ends of lines as files have them; other control characters are none of a message. */
static void add_pasted(struct cli_text *text, char c)
{
    if (c == '\r') c = '\n';
    if ((unsigned char)c >= 0x20 || c == '\n' || c == '\t') cli_text_add(text, &c, 1);
}

/* Between the terminal's brackets; their beginning is what called this. */
static unsigned char on_bracket(EditLine *el, int key)
{
    struct line_editor *e;
    struct cli_text text = {0};
    size_t matched = 0;
    (void)key;
    el_get(el, EL_CLIENTDATA, &e);
    while (matched < sizeof BRACKET_END - 1 && fill(e, -1) > 0) {
        const char c = e->buffer[e->at++];
        if (c == BRACKET_END[matched]) {
            matched++;
            continue;
        }
        for (size_t i = 0; i < matched; i++) add_pasted(&text, BRACKET_END[i]);
        matched = c == BRACKET_END[0];
        if (!matched) add_pasted(&text, c);
    }
    if (text.failed || text.length > CLI_TEXT_MAX) e->failed = true;
    if (!e->failed) put_paste(e, el, &text);
    cli_text_free(&text);
    return e->signal_number || e->failed ? CC_EOF : CC_REFRESH;
}

/* libedit's own end of a line, by the keys that it is bound to. */
static unsigned char end_line(EditLine *el)
{
    el_push(el, END_KEYS);
    return CC_REFRESH;
}

/* Enter, unless more is there already: then it is a paste of a terminal without brackets, which ends when
 * nothing follows, and with it the message if a newline was its last. */
static unsigned char on_enter(EditLine *el, int key)
{
    struct line_editor *e;
    struct cli_text text = {0};
    (void)key;
    el_get(el, EL_CLIENTDATA, &e);
    if (fill(e, PASTE_MS) <= 0) return e->signal_number ? CC_EOF : end_line(el);
    const LineInfo *line = el_line(el);
    if (line->lastchar > line->cursor) el_cursor(el, (int)(line->lastchar - line->cursor));
    cli_text_add(&text, "\n", 1);
    while (fill(e, PASTE_MS) > 0) add_pasted(&text, e->buffer[e->at++]);
    const bool ended = text.length && text.data[text.length - 1] == '\n';
    while (text.length && text.data[text.length - 1] == '\n') text.length--;
    if (text.failed || text.length > CLI_TEXT_MAX) e->failed = true;
    if (!e->failed) put_paste(e, el, &text);
    cli_text_free(&text);
    return e->signal_number || e->failed ? CC_EOF : ended ? end_line(el) : CC_REFRESH;
}

/* The line with what its pastes stand for. */
static char *expand(const struct line_editor *e, const char *line)
{
    struct cli_text text = {0};
    while (*line) {
        const struct paste *found = NULL;
        for (size_t i = 0; *line == '[' && i < e->pastes && !found; i++)
            if (strncmp(line, e->paste[i].name, strlen(e->paste[i].name)) == 0) found = &e->paste[i];
        if (found)
            cli_text_add(&text, found->text, strlen(found->text));
        else
            cli_text_add(&text, line, 1);
        line += found ? strlen(found->name) : 1;
    }
    cli_text_add(&text, "", 0);
    if (!text.failed && text.data) return text.data;
    free(text.data);
    return text.failed ? NULL : strdup("");
}

/* ---- for the chat ---- */

static char *prompt_of(EditLine *el)
{
    struct line_editor *e;
    el_get(el, EL_CLIENTDATA, &e);
    return (char *)e->prompt;
}

/* Between lines, too, the terminal gives every byte, and shows none of them. */
static void hold(struct line_editor *e)
{
    el_set(e->el, EL_PREP_TERM, 1);
}

int line_editor_open(struct cli *cli, const char *prompt, struct line_editor **editor, struct helm_err *err)
{
    struct line_editor *e = calloc(1, sizeof *e);
    const char *kind = getenv("TERM");
    HistEvent event;
    *editor = e;
    if (!e) return helm_fail(err, HELM_E_NOMEM, "no memory for the line editor");
    e->cli = cli;
    e->prompt = prompt;
    e->brackets = kind && *kind && strcmp(kind, "dumb") != 0;
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    const int out = dup(STDERR_FILENO);
    e->out = out < 0 ? NULL : fdopen(out, "w");
    e->history = history_init();
    e->el = e->out ? el_init("helm-cli", stdin, e->out, e->out) : NULL;
    if (!e->el || !e->history) {
        line_editor_close(e);
        *editor = NULL;
        return helm_fail(err, HELM_E_NOMEM, "the line editor cannot start");
    }
    history(e->history, &event, H_SETSIZE, HISTORY_LINES);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_SIGNAL, 1); /* of the window's size; those that end are blocked, and read in fill */
    el_set(e->el, EL_HIST, history, e->history);
    el_set(e->el, EL_PROMPT, prompt_of);
    el_set(e->el, EL_GETCFN, get_character);
    /* libedit keeps these strings; of narrow ones it would keep copies that it never frees */
    el_wset(e->el, EL_ADDFN, L"helm-paste", L"takes what is pasted", on_bracket);
    el_wset(e->el, EL_ADDFN, L"helm-enter", L"ends the message", on_enter);
    el_source(e->el, NULL); /* ~/.editrc */
    el_set(e->el, EL_BIND, "\\e[200~", "helm-paste", NULL);
    el_set(e->el, EL_BIND, END_KEYS, "ed-newline", NULL);
    el_set(e->el, EL_BIND, "^M", "helm-enter", NULL);
    el_set(e->el, EL_BIND, "^J", "helm-enter", NULL);
    hold(e);
    return 0;
}

void line_editor_close(struct line_editor *e)
{
    if (!e) return;
    if (e->el) el_end(e->el); /* the terminal is as it was */
    if (e->history) history_end(e->history);
    if (e->out) fclose(e->out);
    for (size_t i = 0; i < e->pastes; i++) {
        free(e->paste[i].name);
        free(e->paste[i].text);
    }
    free(e->paste);
    free(e);
}

static void ask_brackets(struct line_editor *e, bool on)
{
    if (!e->brackets) return;
    fputs(on ? "\033[?2004h" : "\033[?2004l", e->out);
    fflush(e->out);
}

int line_editor_read(struct line_editor *e, char **text, struct helm_err *err)
{
    int count = 0;
    HistEvent event;
    *text = NULL;
    e->signal_number = 0;
    ask_brackets(e, true);
    el_resize(e->el);
    const char *line = el_gets(e->el, &count);
    hold(e);
    ask_brackets(e, false);
    if (e->signal_number) return -e->signal_number;
    if (e->failed) {
        helm_fail(err, HELM_E_LIMIT, "a message is longer than %zu bytes, or there is no memory for it",
                  CLI_TEXT_MAX);
        return LINE_EDITOR_ERROR;
    }
    if (!line || count <= 0) return 0;
    char *own = strndup(line, strcspn(line, "\n"));
    if (own && *own) history(e->history, &event, H_ENTER, own);
    *text = own ? expand(e, own) : NULL;
    free(own);
    if (*text) return 1;
    helm_fail(err, HELM_E_NOMEM, "no memory for a message");
    return LINE_EDITOR_ERROR;
}
