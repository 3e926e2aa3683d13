/* llama_file: an installed llama.cpp (libllama v0.5.0) quantizes a GGUF file, or says what it computes from
 * one.
 *
 *   llama_file quantize FROM.gguf TO.gguf TYPE          TYPE: a number of enum llama_ftype
 *   llama_file logits FILE.gguf BACKENDS IDS            BACKENDS: the folder with libggml-*.so; IDS: 1,2,3
 *   cc -std=c11 -O2 -o llama_file llama_file.c -lllama -lggml -lggml-base -lm
 *
 * Started by llama_agrees.py, which compares with HELM. `logits` computes the ids one by one, with an fp32
 * cache and without flash attention, and prints a line for each: the ten likeliest next tokens, as
 * token:logprob. Exit status: 0, 2 usage, 5 an error. */
#include <ggml-backend.h>
#include <llama.h>
#include <math.h>

#include "common/base/std.h"

#define IDS_MOST 1024
#define TOP      10

static int fail(const char *what, const char *detail)
{
    fprintf(stderr, "llama_file: %s: %s\n", what, detail);
    return 5;
}

static void say_errors(enum ggml_log_level level, const char *text, void *context)
{
    (void)context;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static void print_likeliest(const float *logits, int32_t vocabulary)
{
    double most = -INFINITY, sum = 0, below = INFINITY;
    for (int32_t i = 0; i < vocabulary; i++) most = fmax(most, (double)logits[i]);
    for (int32_t i = 0; i < vocabulary; i++) sum += exp((double)logits[i] - most);
    for (int n = 0, last = -1; n < TOP && n < vocabulary; n++) {
        int32_t best = -1;
        for (int32_t i = 0; i < vocabulary; i++) { /* after the one before: lower, or as high and later */
            const double v = (double)logits[i];
            if (v > below || (v == below && i <= last)) continue;
            if (best < 0 || v > (double)logits[best]) best = i;
        }
        if (best < 0) break;
        below = (double)logits[best];
        last = best;
        printf("%s%d:%.6f", n ? " " : "", best, below - most - log(sum));
    }
    putchar('\n');
}

static int logits(const char *file, const char *backends, const char *text)
{
    llama_token ids[IDS_MOST];
    int32_t count = 0;
    char *end;
    for (; *text && count < IDS_MOST; text = *end ? end + 1 : end) {
        ids[count++] = (llama_token)strtol(text, &end, 10);
        if (end == text) return fail("not ids", text);
    }
    ggml_backend_load_all_from_path(backends);
    struct llama_model_params model_params = llama_model_default_params();
    struct llama_model *model = llama_model_load_from_file(file, model_params);
    if (!model) return fail("not loaded", file);
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = IDS_MOST;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32;
    struct llama_context *context = llama_init_from_model(model, params);
    if (!context) return fail("no context", file);
    const int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int32_t i = 0; i < count; i++) {
        if (llama_decode(context, llama_batch_get_one(&ids[i], 1))) return fail("decoding failed", file);
        print_likeliest(llama_get_logits_ith(context, -1), vocabulary);
    }
    llama_free(context);
    llama_model_free(model);
    return 0;
}

int main(int argc, char **argv)
{
    llama_log_set(say_errors, NULL);
    if (argc == 5 && strcmp(argv[1], "quantize") == 0) {
        struct llama_model_quantize_params params = llama_model_quantize_default_params();
        params.ftype = (enum llama_ftype)atoi(argv[4]);
        params.nthread = 1;
        return llama_model_quantize(argv[2], argv[3], &params) ? fail("not quantized", argv[2]) : 0;
    }
    if (argc == 5 && strcmp(argv[1], "logits") == 0) return logits(argv[2], argv[3], argv[4]);
    fprintf(stderr, "usage: llama_file quantize FROM.gguf TO.gguf TYPE\n"
                    "       llama_file logits FILE.gguf BACKENDS IDS\n");
    return 2;
}
