/* A checkpoint's chat template, rendered; part of libhelm's public, stable C API.
 *
 * Called by helm-cli's chat command and by programs that link libhelm. A template is read from the
 * checkpoint's folder (chat_template.jinja, else chat_template in tokenizer_config.json), or from its GGUF
 * file (tokenizer.chat_template), and parsed once; rendering turns a list of messages into the text that the
 * model was trained on, and helm_chat_encode into its tokens: what the text of a message spells never becomes
 * a control token. (A rendered text that is encoded by helm_tokenizer_encode has lost that difference.) A
 * construct that is not implemented is HELM_E_UNSUPPORTED and named; depth, steps and output are limited
 * (HELM_E_LIMIT).
 *
 * A struct helm_chat is immutable once open: any number of threads may render with one at the same time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "client/text/tokenizer/tokenizer.h"
#include "common/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

struct helm_chat; /* opaque */

/* One message of a conversation. Both strings are UTF-8, NUL-terminated and borrowed for the call. */
struct helm_chat_message {
    const char *role; /* "system", "user", "assistant", ... whatever the template knows */
    const char *content;
};

/* Reads and parses the template of the checkpoint at `path`, a folder or a GGUF file. HELM_E_NOT_FOUND: it
 * has none. */
HELM_MUST_CHECK int helm_chat_open(const char *path, struct helm_chat **out, struct helm_err *err);

/* Renders `count` messages, oldest first. With add_generation_prompt the text ends where the assistant's
 * answer begins. *text is malloc'd (free() it), NUL-terminated, *length bytes. A conversation that the
 * template itself refuses (raise_exception) is HELM_E_MISMATCH with the template's words. */
HELM_MUST_CHECK int helm_chat_render(const struct helm_chat *chat, const struct helm_chat_message *messages,
                                     size_t count, int add_generation_prompt, char **text, size_t *length,
                                     struct helm_err *err);

/* Everything a template may be given, as JSON texts (each at most 64 MiB, nested at most 64 deep). */
struct helm_chat_input {
    /* A list of messages; each may hold whatever the template knows: content as a text or a list of parts,
     * tool_calls, reasoning_content, ... */
    const char *messages;
    const char *tools; /* a list of tools in JSON-schema form, or NULL: the template sees `tools` as none */
    const char *extra; /* an object of further variables, for example {"enable_thinking": false}, or NULL */
    int add_generation_prompt;
    int64_t
        now_s; /* the template's strftime_now() takes it for the current time, in seconds since 1970, in the
                      process's time zone; 0: the clock */
};
/* The same with all of that. Beside it the template sees documents (none), and the checkpoint's special
 * tokens (bos_token, eos_token, pad_token, unk_token, ...), which `extra` may replace. With tools, a
 * checkpoint that has a template named "tool_use" is rendered with that one. */
HELM_MUST_CHECK int helm_chat_render_json(const struct helm_chat *chat, const struct helm_chat_input *input,
                                          char **text, size_t *length, struct helm_err *err);

#define HELM_CHAT_MARKS_MAX 64

/* A conversation as the model's prompt. Free it with helm_chat_prompt_free. */
struct helm_chat_prompt {
    char *text; /* NUL-terminated, `length` bytes: what helm_chat_render gives */
    size_t length;
    uint32_t *ids;
    size_t count;
    /* Ends of messages: tokens in front of each, rising. A conversation with another ending begins with the
     * same tokens up to one of them. They are helm_generate_request.marks; of more than HELM_CHAT_MARKS_MAX
     * the first and the last are here. */
    uint32_t marks[HELM_CHAT_MARKS_MAX];
    size_t mark_count;
};
enum helm_chat_encode_flag {
    HELM_CHAT_TEXT_IS_TEXT = 0,
    HELM_CHAT_ALLOW_SPECIAL =
        1, /* control tokens written in messages become such tokens: for texts that one trusts */
    HELM_CHAT_GENERATION_PROMPT = 2, /* of helm_chat_encode: as add_generation_prompt */
};
/* As helm_chat_render and helm_chat_render_json, with the tokens. Control tokens come of the template alone,
 * and of the checkpoint's own special tokens that it writes; what messages, tools and `extra` spell is text.
 * A message's role counts as the template's where it is a word, since templates write the rest of a token
 * around it. Control tokens are those marked special, those that begin with "<|", and those that the template
 * spells ("<tool_call>"). */
HELM_MUST_CHECK int helm_chat_encode(const struct helm_chat *chat, const struct helm_tokenizer *tokenizer,
                                     const struct helm_chat_message *messages, size_t count, unsigned flags,
                                     struct helm_chat_prompt *out, struct helm_err *err);
HELM_MUST_CHECK int helm_chat_encode_json(const struct helm_chat *chat,
                                          const struct helm_tokenizer *tokenizer,
                                          const struct helm_chat_input *input, unsigned flags,
                                          struct helm_chat_prompt *out, struct helm_err *err);
/* Clears it, too. */
void helm_chat_prompt_free(struct helm_chat_prompt *prompt);

/* Frees it and clears *chat; a NULL *chat is allowed. */
void helm_chat_close(struct helm_chat **chat);

#ifdef __cplusplus
}
#endif
