/* Sampling options of run, chat and generate: one table, and the defaults of a checkpoint.
 *
 * Called by those commands. */
#pragma once

#include "client/shared/cli.h"

struct sampling_options {
    uint64_t max_tokens; /* 0: to the end of sequence or of the context */
    bool has_max_tokens;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    bool has_temperature, has_top_k, has_top_p, has_min_p, has_repetition_penalty;
    uint64_t top_k, seed, logprobs;
    bool has_seed, ignore_eos, show_special;
    const char *speculate; /* NULL: not given */
    struct args_list stop;
};

#define SAMPLING_OPTION_COUNT 14

/* Writes the table's rows, which fill in *options. */
void sampling_fill_table(struct sampling_options *options, struct args_option table[SAMPLING_OPTION_COUNT]);

/* The option for a request. */
enum helm_speculate sampling_speculate(const struct sampling_options *options);

/* Takes temperature, top-k, top-p, min-p and repetition penalty from the generation_config.json or GGUF file
 * at `path` where the command line did not give them: as published, sampling with do_sample true, greedy
 * otherwise (the repetition penalty either way). No such file: greedy. */
HELM_MUST_CHECK int sampling_apply_checkpoint(const char *path, struct sampling_options *options,
                                              struct helm_err *err);
