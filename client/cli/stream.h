/* One generation as helm-cli shows it: text as it comes, stop texts, Ctrl-C.
 *
 * Called by run, chat and generate. Text is held back while it could still be the beginning of a stop text,
 * so that nothing is printed that the result does not hold. */
#pragma once

#include "client/shared/cli.h"
#include "client/cli/present.h"
#include "client/shared/sampling.h"
#include "client/text/answer/ends.h"

enum stream_print {
    STREAM_PRINT_NOTHING, /* the caller prints the result */
    STREAM_PRINT_TEXT,    /* as it comes; ids where there is no tokenizer */
};

struct stream_request {
    const uint32_t *prompt;
    size_t prompt_count;
    const uint32_t *marks; /* of a conversation: ends of its messages */
    size_t mark_count;
    const struct sampling_options *options;
    struct helm_grammar *grammar; /* NULL: any text */
    const struct ends *ends;      /* tokens that end the answer, in addition to the model's own; NULL: none */
    /* of a conversation; NULL: the text is shown as it is */
    const struct reasoning_tags *tags;
    enum reasoning_at at; /* where the prompt leaves thinking */
    enum stream_print print;
    struct present *present; /* text goes through this one; NULL: as it is */
    const char *label;
};

struct stream_result {
    uint64_t id;
    uint32_t *tokens;
    size_t token_count, token_space;
    struct cli_text text;
    /* where thinking has other marks than <think>, `text` has these, and `said` is the answer without it */
    bool has_parts;
    struct cli_text said;
    struct helm_logprob *logprobs; /* `logprob_counts[i]` of token i, one after the other */
    size_t logprob_count, logprob_space;
    uint32_t *logprob_counts; /* as long as tokens */
    const char *finish;       /* "eos", "stop", "length", "cancelled", "error" */
    bool reported;            /* the daemon said how it ended: prompt_tokens and timings are its own */
    uint32_t prompt_tokens, cached_tokens;
    uint64_t drafted_tokens, accepted_tokens;
    double draft_gain;
    struct helm_timings timings;
    int signal_number; /* that ended it, or 0 */
};

/* Runs it to its end. 0: the result says how it ended. HELM_E_...: refused, lost, or standard output failed;
 * `text` and `tokens` hold what had come, and `finish` is "error". stream_free either way. */
HELM_MUST_CHECK int stream_run(struct cli *cli, const struct stream_request *request,
                               struct stream_result *result, struct helm_err *err);
void stream_free(struct stream_result *result);

/* The object of `generate --json`, one line. */
HELM_MUST_CHECK int stream_print_json(const struct stream_result *result, struct helm_err *err);

/* How fast it was: one line for people, on standard error. */
void stream_print_stats(const struct stream_result *result);

/* How a finished generation ends the program: done, by a signal, or failed (cancelled by others, error). */
int stream_exit(const struct stream_result *result);
