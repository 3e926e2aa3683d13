/* Shared by helm-cli, helm-bench and helm-gateway: a client with options, perhaps with a daemon of its own.
 *
 * session.c connects, starts a private daemon if --model asks for one, and opens tokenizers; signals.c
 * watches signals; output.c prints and reads. Everything hangs on one struct cli that the program's main
 * owns. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/text/answer/answer.h"
#include "client/text/answer/ends.h"
#include "client/text/chat.h"
#include "client/text/growing_text.h"
#include "client/helm.h"
#include "client/text/tokenizer/tokenizer.h"
#include "common/base/args.h"
#include "common/base/err.h"

enum cli_exit {
    CLI_EXIT_DONE = 0,
    CLI_EXIT_USAGE = 2,
    CLI_EXIT_NO_DAEMON = 3,
    CLI_EXIT_REFUSED = 4, /* nothing was begun: bad field, busy, does not fit, no such thing */
    CLI_EXIT_FAILED = 5,  /* it began, and did not end well */
    CLI_EXIT_SIGNAL = 128 /* plus the signal's number */
};

#define CLI_ANSWER_MS     10000               /* a question to a daemon that is alive */
#define CLI_TEXT_MAX      ((size_t)256 << 20) /* of a prompt or a line read from a file or standard input */
#define CLI_TOKENIZER_MAX ((size_t)64 << 20)  /* of a tokenizer.json named by --tokenizer */

struct private_daemon;

struct cli {
    const struct args_spec *global; /* parent of every command's options */
    /* options as given */
    const char *connect, *model, *tokenizer;
    const char *daemon_key_file, *secret_key_file;
    const char *device, *plan, *profile, *strategy, *config, *kv_dtype, *kernels, *log_level, *activations;
    uint64_t vram_bytes, host_memory_bytes, ctx_tokens, threads;
    bool has_vram, has_host_memory, has_ctx, has_threads, exact;
    bool raw;                                 /* a model's control characters go to a terminal as they are */
    bool allow_special;                       /* control tokens written in a message become such tokens */
    const struct args_list *daemon_arguments; /* more of helmd's, handed on as they are; may be NULL */
    /* opened on demand by session.c */
    struct private_daemon *daemon;
    struct helm_client *client;
    struct helm_tokenizer *tok;
    struct helm_chat *chat;
    const struct reasoning_tags *tags;       /* of the chat template; NULL without one */
    struct ends ends;                        /* tokens that end an answer or a text */
    char *located_model, *located_tokenizer; /* `model` and `tokenizer` point to these then */
    int signal_fd;                           /* -1: signals act as usual */
};

/* ---- session.c ---- */

/* --model and --tokenizer mean paths from here on (common/model/hub.h). Once is enough; the others here
 * do it. */
HELM_MUST_CHECK int cli_locate(struct cli *cli, struct helm_err *err);
/* Connects (starting the private daemon first with --model). Prints what is wrong; CLI_EXIT_DONE or another
 * status. */
int cli_open(struct cli *cli);
/* The connection alone, made anew after it was lost; prints nothing. HELM_E_USAGE: keys. */
HELM_MUST_CHECK int cli_connect(struct cli *cli, struct helm_err *err);
/* Adds to the text that no daemon is there: how to have one. */
void cli_advise(const struct cli *cli, struct helm_err *err);
/* Whether an option was given that is for a private daemon alone. */
bool cli_has_daemon_option(const struct cli *cli);
/* Ends everything cli_open and its like began. */
void cli_close(struct cli *cli);

/* The folder or GGUF file of what turns text into tokens and back: tokenizer, chat template, sampling
 * defaults. It is --tokenizer if that is no tokenizer.json, else --model, else the daemon's model folder;
 * malloc'd. Needs cli_open where neither option is given. HELM_E_NOT_FOUND: the daemon's folder cannot be
 * opened on this machine. */
HELM_MUST_CHECK int cli_text_folder(struct cli *cli, char **folder, struct helm_err *err);
/* A model's name by its path: "…/models--ORG--NAME/snapshots/REVISION" is ORG/NAME, as in Hugging Face's
 * cache; else the last part of the path, without .gguf. */
void cli_name_model(const char *path, char *name, size_t size);
/* Opens cli->tok from the file that --tokenizer names, else from cli_text_folder. HELM_E_NOT_FOUND: there is
 * no tokenizer.json, or no folder. */
HELM_MUST_CHECK int cli_open_tokenizer(struct cli *cli, struct helm_err *err);
/* Opens the chat template in cli_text_folder into cli->chat. */
HELM_MUST_CHECK int cli_open_chat(struct cli *cli, struct helm_err *err);
/* Fills cli->ends: needs cli->tok; a chat template shows one of them, where there is any. */
void cli_find_ends(struct cli *cli);
/* The conversation as the model's prompt, ending where the answer begins; helm_chat_prompt_free. Needs
 * cli->chat and cli->tok. *at: where the prompt leaves thinking. */
HELM_MUST_CHECK int cli_encode_chat(const struct cli *cli, const struct helm_chat_message *messages,
                                    size_t count, struct helm_chat_prompt *prompt, enum reasoning_at *at,
                                    struct helm_err *err);

/* ---- signals.c ---- */

/* From here on SIGINT, SIGTERM and SIGHUP are read from cli->signal_fd, so that what was begun can be ended.
 */
HELM_MUST_CHECK int cli_catch_signals(struct cli *cli, struct helm_err *err);
/* The signal that came, 0 if none. Does not wait. */
int cli_take_signal(struct cli *cli);

/* ---- output.c ---- */

/* "helm-cli: TEXT" on standard error, control characters escaped: the text may come from a daemon or a file.
 * Nothing where there is no text. */
void cli_complain(const char *text);
/* Prints err and picks the status: no daemon, refused or failed midway. `begun`: tokens were
 * there already. */
int cli_fail(const struct helm_err *err, bool begun);
/* Prints "TEXT" and "try 'PROGRAM --help'"; returns CLI_EXIT_USAGE. */
int cli_usage(const struct args_spec *spec, const char *fmt, ...) HELM_PRINTF(2, 3);

/* write(2) all of it to standard output. HELM_E_IO without a text: the reader (`| head`) has gone, which is
 * no news. */
HELM_MUST_CHECK int cli_write(const void *data, size_t bytes, struct helm_err *err);
/* The same of what a model wrote or a checkpoint holds: on a terminal, unless `raw`, each control character
 * but tab and newline, and each byte that is no UTF-8, is \xNN. */
HELM_MUST_CHECK int cli_show(const char *data, size_t length, bool raw, struct helm_err *err);
/* Reads a descriptor to its end; *text is malloc'd and NUL-terminated. */
HELM_MUST_CHECK int cli_read_all(int fd, const char *what, char **text, size_t *length, struct helm_err *err);
/* A copy of an operand, or all of standard input for "-" and for NULL. prompt: less one final newline, which
 * echo and editors add. */
HELM_MUST_CHECK int cli_read_operand(const char *operand, bool prompt, char **text, size_t *length,
                                     struct helm_err *err);
/* Ids separated by commas or white space, with or without [ ]; *ids is malloc'd. */
HELM_MUST_CHECK int cli_parse_ids(const char *what, const char *text, size_t length, uint32_t **ids,
                                  size_t *count, struct helm_err *err);
/* Those of --tokens, or of the file of --tokens-file; the other one is NULL. */
HELM_MUST_CHECK int cli_read_ids(const char *tokens, const char *tokens_file, uint32_t **ids, size_t *count,
                                 struct helm_err *err);
/* Checks text that client/text/growing_text.h grows. */
HELM_MUST_CHECK int cli_text_check(const struct cli_text *text, struct helm_err *err);
/* cli_write of all of it. */
HELM_MUST_CHECK int cli_text_write(const struct cli_text *text, struct helm_err *err);
