/* Calls of tools in a model's answer: text in as it comes, text and calls out.
 *
 * Called by choice.c for requests with tools. Each family of models writes calls its own way (enum tool_style), which its
 * chat template shows. Text that could be the beginning of a call is held back until that is decided; what began as a call
 * and is none is text after all. Pure; bounded by the answer's own length. */
#ifndef HELM_CLIENT_GATEWAY_TOOL_CALLS_H
#define HELM_CLIENT_GATEWAY_TOOL_CALLS_H

#include <jansson.h>
#include <stdbool.h>

#include "client/shared/cli.h"

enum tool_style {
    TOOLS_NONE,   /* the template knows no tools */
    TOOLS_TAGGED, /* Qwen: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, among text */
    TOOLS_OBJECT, /* Llama 3: the whole answer is {"name": ..., "parameters": {...}}, perhaps behind <|python_tag|> */
    TOOLS_LISTED, /* Mistral: [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...], or NAME[ARGS]{...} */
};

/* The style of a chat template's text; NULL is a template without tools. */
enum tool_style tool_style_of(const char *chat_template);

struct tool_call {
    char *name;
    char *arguments; /* JSON text of an object */
};

#define TOOL_CALLS_MAX 64 /* of one answer; further ones are text */

/* How far a JSON value was looked at. */
struct tool_scan {
    bool begun, in_string, escaped, too_deep;
    size_t from, at, depth;
};

struct tool_parser {
    enum tool_style style; /* TOOLS_NONE: all is text */
    const json_t *tools;   /* as the request listed them: TOOLS_OBJECT believes known names only */
    bool inside;           /* past the marker of a call */
    bool decided;          /* TOOLS_OBJECT: the answer is text */
    struct cli_text held;
    size_t searched; /* of held, for the end of a call */
    struct tool_scan scan;
    struct cli_text *text; /* where text goes */
    struct tool_call calls[TOOL_CALLS_MAX];
    size_t count;
};

/* Takes more of the answer; appends to *parser->text and parser->calls. */
void tool_parser_push(struct tool_parser *parser, const char *data, size_t length);
/* The answer is over. */
void tool_parser_finish(struct tool_parser *parser);
void tool_parser_free(struct tool_parser *parser);

/* A special token that begins or divides calls, which belongs to the text though special tokens are left out of it. */
bool tool_calls_is_marker(enum tool_style style, const char *token);

#endif
