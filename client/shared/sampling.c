/* Sampling options and the checkpoint's defaults for them. See sampling.h. Keeps no state. */
#include "client/shared/sampling.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/model/gguf.h"

#define GENERATION_CONFIG_MAX ((size_t)1 << 20)
#define SPECULATE_CHOICES     "off|ngram|auto|mtp|draft"

/* On the wire these are floats, and 0 says that they are not given: "off", the opposite of what a tiny value
 * means. */
#define ABOVE_ZERO ((double)FLT_MIN)

void sampling_fill_table(struct sampling_options *options, struct args_option table[SAMPLING_OPTION_COUNT])
{
    const struct args_option rows[SAMPLING_OPTION_COUNT] = {
        {"max-tokens", 'n', ARGS_U64, "N", "tokens to generate; 0: to the end of sequence or of the context",
         .target = &options->max_tokens, .min = 0, .max = UINT32_MAX, .given = &options->has_max_tokens},
        {"temperature", 0, ARGS_DOUBLE, "T", "0 is greedy", .target = &options->temperature, .min = 0,
         .max = 100, .given = &options->has_temperature},
        {"top-k", 0, ARGS_U64, "K", "the K likeliest tokens only; 0: off", .target = &options->top_k,
         .min = 0, .max = UINT32_MAX, .given = &options->has_top_k},
        {"top-p", 0, ARGS_DOUBLE, "P", "the likeliest tokens that together reach P, above 0; 1: off",
         .target = &options->top_p, .min = ABOVE_ZERO, .max = 1, .given = &options->has_top_p},
        {"min-p", 0, ARGS_DOUBLE, "P", "tokens at least P times as likely as the likeliest; 0: off",
         .target = &options->min_p, .min = 0, .max = 1, .given = &options->has_min_p},
        {"repetition-penalty", 0, ARGS_DOUBLE, "R",
         "divides the logits of tokens that came before, above 0; 1: off",
         .target = &options->repetition_penalty, .min = ABOVE_ZERO, .max = 100,
         .given = &options->has_repetition_penalty},
        {"presence-penalty", 0, ARGS_DOUBLE, "P", "taken off tokens of the output; -2 to 2",
         .target = &options->presence_penalty, .min = -2, .max = 2},
        {"frequency-penalty", 0, ARGS_DOUBLE, "P", "the same, times how often they came; -2 to 2",
         .target = &options->frequency_penalty, .min = -2, .max = 2},
        {"seed", 0, ARGS_U64, "S", "same seed, same tokens", .target = &options->seed,
         .given = &options->has_seed},
        {"stop", 0, ARGS_LIST, "TEXT", "ends the output before this text; may be repeated",
         .target = &options->stop},
        {"logprobs", 0, ARGS_U64, "N", "report the N likeliest tokens of each step (with --json), up to 20",
         .target = &options->logprobs, .min = 0, .max = 20},
        {"ignore-eos", 0, ARGS_FLAG, NULL, "go on after the model's end of sequence",
         .target = &options->ignore_eos},
        {"show-special", 0, ARGS_FLAG, NULL, "keep special tokens such as <|im_end|> in the text",
         .target = &options->show_special},
        {"speculate", 0, ARGS_CHOICE, SPECULATE_CHOICES,
         "try tokens that the text said before, and keep those that fit;\n"
         "auto: as many as make the answer faster (default: as helmd does)",
         .target = &options->speculate, .choices = SPECULATE_CHOICES},
    };
    memcpy(table, rows, sizeof rows);
}

enum helm_speculate sampling_speculate(const struct sampling_options *options)
{
    static const char *const names[] = {[HELM_SPECULATE_OFF] = "off",
                                        [HELM_SPECULATE_NGRAM] = "ngram",
                                        [HELM_SPECULATE_AUTO] = "auto",
                                        [HELM_SPECULATE_MTP] = "mtp",
                                        [HELM_SPECULATE_DRAFT] = "draft"};
    for (int i = HELM_SPECULATE_OFF; options->speculate && i < (int)(sizeof names / sizeof *names); i++)
        if (strcmp(options->speculate, names[i]) == 0) return (enum helm_speculate)i;
    return HELM_SPECULATE_DEFAULT;
}

/* A checkpoint's defaults of sampling: bounds, and the value that means "off". */
enum { TEMPERATURE, TOP_P, MIN_P, REPETITION, TOP_K, DEFAULTS };
static const struct {
    const char *name;
    double min, max, off;
} rows[DEFAULTS] = {[TEMPERATURE] = {"temperature", 0, 100, 1},
                    [TOP_P] = {"top_p", 0, 1, 1},
                    [MIN_P] = {"min_p", 0, 1, 0},
                    [REPETITION] = {"repetition_penalty", ABOVE_ZERO, 100, 1},
                    [TOP_K] = {"top_k", 0, UINT32_MAX, 0}};

/* A default that is out of its range is off, and said to be. */
static int read_defaults(const json_t *object, const char *where, double values[DEFAULTS],
                         struct helm_err *err)
{
    for (int i = 0; i < DEFAULTS; i++) {
        double number = values[i] = rows[i].off;
        const int rc = json_get_double(object, rows[i].name, false, -DBL_MAX, DBL_MAX, &number, err);
        if (rc < 0) return rc;
        const bool off = number == rows[i].off; /* which may lie outside */
        if (off ||
            (number >= rows[i].min && number <= rows[i].max && (i != TOP_K || number == floor(number)))) {
            values[i] = number;
            continue;
        }
        char text[HELM_ERR_TEXT];
        snprintf(text, sizeof text, "%.300s: '%s' is %g, which is no value for it: it is off", where,
                 rows[i].name, number);
        cli_complain(text);
    }
    return 0;
}

static int apply_object(const json_t *object, const char *where, struct sampling_options *options,
                        struct helm_err *err)
{
    bool sample = false;
    double values[DEFAULTS];
    int rc = json_get_bool(object, "do_sample", false, &sample, err);
    if (rc == 0) rc = read_defaults(object, where, values, err);
    if (rc < 0) return rc;
    if (!options->has_repetition_penalty) options->repetition_penalty = values[REPETITION];
    if (!sample) return 0; /* greedy, unless the command line says otherwise */
    if (!options->has_temperature) options->temperature = values[TEMPERATURE];
    if (!options->has_top_p) options->top_p = fmax(values[TOP_P], ABOVE_ZERO); /* 0: the likeliest */
    if (!options->has_min_p) options->min_p = values[MIN_P];
    if (!options->has_top_k) options->top_k = (uint64_t)values[TOP_K];
    return 0;
}

/* Takes a GGUF file's defaults of sampling, by generation_config.json's names. */
static int apply_gguf(const char *path, struct sampling_options *options, struct helm_err *err)
{
    static const struct {
        const char *key, *name;
    } keys[] = {{"general.sampling.temp", "temperature"},
                {"general.sampling.top_p", "top_p"},
                {"general.sampling.min_p", "min_p"},
                {"general.sampling.top_k", "top_k"},
                {"general.sampling.penalty_repeat", "repetition_penalty"}};
    struct gguf header;
    json_t *object = json_object();
    int rc = gguf_open(path, &header, err);
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !rc; i++) {
        double number = NAN;
        rc = gguf_get_double(&header, keys[i].key, false, -DBL_MAX, DBL_MAX, &number, err);
        if (rc || isnan(number)) continue;
        const bool whole = strcmp(keys[i].name, "top_k") == 0;
        json_object_set_new(object, keys[i].name,
                            whole ? json_integer((json_int_t)number) : json_real(number));
        if (strcmp(keys[i].name, "repetition_penalty") != 0)
            json_object_set_new(object, "do_sample", json_true());
    }
    if (!rc) rc = apply_object(object, path, options, err);
    if (rc < 0) rc = helm_err_prefix(err, "%s", path);
    json_decref(object);
    gguf_free(&header);
    return rc;
}

int sampling_apply_checkpoint(const char *path, struct sampling_options *options, struct helm_err *err)
{
    static const char name[] = "generation_config.json";
    char *text = NULL;
    size_t length = 0;
    json_t *object = NULL;
    if (!file_is_folder(path)) return apply_gguf(path, options, err);
    int rc = file_read_inside(path, name, GENERATION_CONFIG_MAX, &text, &length, err);
    if (rc == HELM_E_NOT_FOUND) return apply_gguf(path, options, err);
    if (rc == 0) rc = json_parse_python(name, text, length, GENERATION_CONFIG_MAX, &object, err);
    if (rc == 0) rc = apply_object(object, name, options, err);
    if (rc < 0 && !strstr(err->text, name)) rc = helm_err_prefix(err, "%s/%s", path, name);
    json_decref(object);
    free(text);
    return rc;
}
