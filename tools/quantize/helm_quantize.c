/* helm-quantize: a checkpoint or GGUF file of single numbers becomes a GGUF file of a mixture of blocks.
 *
 * Order: options -> the model's headers -> importance -> key/values (configuration and tokenizer, or those of
 * the GGUF file) -> tensors, in threads -> the file takes its name. tools/quantize has the parts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/args.h"
#include "common/base/cpu.h"
#include "common/base/file.h"
#include "common/base/units.h"
#include "common/base/words.h"
#include "common/model/arch.h"
#include "common/model/hub.h"
#include "tools/interrupt/interrupt.h"
#include "tools/quantize/rewrite.h"
#include "tools/quantize/vocabulary.h"

#define THREADS_MAX 256

struct options {
    const char *model, *to, *out, *imatrix;
    uint64_t threads;
    const struct mixture *mixture;
};

/* ---- key/values ---- */

/* Those of a GGUF file but what is about its own tensors. */
static bool is_carried(const char *key)
{
    return !WORD_IS(key, "general.file_type", "general.quantization_version", "general.alignment") &&
           strncmp(key, "split.", 6) != 0 && strncmp(key, "quantize.", 9) != 0;
}

static int put_described(const struct options *o, const struct model *model, struct gguf_values *values,
                         struct helm_err *err)
{
    const char *slash = strrchr(o->model, '/'), *kind = NULL;
    bool interleaved;
    struct helm_err why = {0};
    int rc = gguf_put_config(values, &model->config, &interleaved, err);
    if (rc) return rc;
    gguf_put_text(values, "general.type", "model");
    gguf_put_text(values, "general.name", slash && slash[1] ? slash + 1 : o->model);
    rc = vocabulary_put(values, model->folder, &model->config, &kind, &why);
    if (rc == HELM_E_NOT_FOUND) {
        fprintf(stderr, "helm-quantize: the file has no tokenizer: %s\n", why.text);
        vocabulary_put_none(values, &model->config);
        return 0;
    }
    if (rc && err) *err = why;
    if (!rc) printf("tokenizer: %s\n", kind);
    return rc;
}

static int put_values(const struct options *o, const struct model *model, struct gguf_values *values,
                      struct helm_err *err)
{
    struct gguf header;
    int rc = gguf_open(o->model, &header, err);
    if (rc) return rc;
    if (!header.bytes) rc = put_described(o, model, values, err);
    for (uint32_t i = 0; i < header.value_count; i++)
        if (is_carried(header.values[i].key)) gguf_put_value(values, &header.values[i]);
    gguf_free(&header);
    gguf_put_mixture(values, o->mixture);
    if (o->imatrix) gguf_put_text(values, "quantize.imatrix.file", o->imatrix);
    return rc;
}

/* ---- progress ---- */

struct reporting {
    double off, all; /* sums of squares over what is in blocks */
    uint64_t values, bytes, read;
};

static bool report(void *context, const struct rewrite_tensor *t)
{
    struct reporting *sums = context;
    char size[UNITS_TEXT], shape[48], error[24] = "";
    if (t->to.vector)
        snprintf(shape, sizeof shape, "%llu", (unsigned long long)t->to.cols);
    else
        snprintf(shape, sizeof shape, "%llu x %llu", (unsigned long long)t->to.rows,
                 (unsigned long long)t->to.cols);
    if (!tensor_format_is_plain(t->to.format) && t->all > 0) {
        snprintf(error, sizeof error, "error %.5f", sqrt(t->off / t->all));
        sums->off += t->off;
        sums->all += t->all;
    }
    printf("%-32s %18s  %-7s %11s  %s%s\n", t->to.name, shape, tensor_format_name(t->to.format),
           units_format_size(t->to.bytes, size), error, t->importance ? ", by importance" : "");
    fflush(stdout);
    sums->values += t->to.rows * t->to.cols;
    sums->bytes += t->to.bytes;
    sums->read += t->from ? t->from->bytes : 0;
    return !interrupt_noted();
}

/* ---- the whole ---- */

static int check_output(const struct options *o, const struct model *model, struct helm_err *err)
{
    struct stat to, from;
    char path[4096];
    if (stat(o->out, &to)) return file_check_parent(o->out, err);
    if (!S_ISREG(to.st_mode)) return helm_fail(err, HELM_E_USAGE, "--out %s is there and no file", o->out);
    for (uint32_t i = 0; i < model->shard_count; i++) {
        snprintf(path, sizeof path, "%s/%s", model->folder, model->shards[i].file);
        if (stat(path, &from) == 0 && from.st_dev == to.st_dev && from.st_ino == to.st_ino)
            return helm_fail(err, HELM_E_USAGE, "--out %s is what is read", o->out);
    }
    return 0;
}

static int write_model(const struct options *o, const struct model *model, const struct imatrix *imatrix,
                       struct helm_err *err)
{
    struct gguf_values values = {0};
    struct rewrite rewrite = {0};
    struct reporting sums = {0};
    const struct rewrite_run run = {(uint32_t)o->threads, report, &sums, interrupt_noted};
    const uint64_t begin = units_now_ns();
    char size[UNITS_TEXT];
    const bool interleaved = arch_of(&model->config)->gguf_interleaved;
    if (model->config.delta.value_heads)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "%s: files with gated delta nets are read, and not written yet",
                         model->config.architecture);
    int rc = check_output(o, model, err);
    if (!rc) rc = put_values(o, model, &values, err);
    if (!rc) rc = rewrite_plan(model, o->mixture, interleaved, o->imatrix ? imatrix : NULL, &rewrite, err);
    if (!rc && o->imatrix)
        printf("imatrix: importance of %u of %u matrices\n", rewrite.measured, rewrite.quantized);
    if (!rc && o->imatrix && !rewrite.measured)
        rc = helm_fail(err, HELM_E_MISMATCH, "%s names no matrix of this model", o->imatrix);
    if (!rc) rc = rewrite_file(&rewrite, o->out, &values, &run, err);
    if (!rc) {
        const double took = (double)(units_now_ns() - begin) * 1e-9;
        printf("%s: %s, %.2f bits a weight%s", o->out, units_format_size(sums.bytes, size),
               8 * (double)sums.bytes / (double)sums.values, sums.all > 0 ? ", error " : "");
        if (sums.all > 0) printf("%.5f", sqrt(sums.off / sums.all));
        printf("; %.1f s, %.0f MB/s\n", took, 1e-6 * (double)sums.read / took);
    }
    rewrite_free(&rewrite);
    gguf_values_free(&values);
    return rc;
}

static int check_options(struct options *o, struct helm_err *err)
{
    char names[300] = "";
    if (!o->model || !o->to || !o->out)
        return helm_fail(err, HELM_E_USAGE, "--model, --to and --out are required");
    if ((o->mixture = mixture_named(o->to))) return 0;
    for (uint32_t i = 0; mixture_at(i); i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
                 mixture_name(mixture_at(i)));
    return helm_fail(err, HELM_E_USAGE, "--to %s: there are %s", o->to, names);
}

int main(int argc, char **argv)
{
    struct options o = {0};
    struct args_parsed parsed;
    const struct args_option table[] = {
        {"model", 0, ARGS_TEXT, "DIR|FILE", "checkpoint folder, or GGUF file of bf16, fp16 or fp32",
         .target = &o.model},
        {"to", 0, ARGS_TEXT, "MIXTURE",
         "Q4_K_M, Q4_K_S, Q5_K_M, Q6_K, Q8_0, Q4_0, Q3_K_M, Q2_K, IQ4_XS, IQ4_NL,\n"
         "MXFP4, F16, BF16 and others",
         .target = &o.to},
        {"out", 0, ARGS_TEXT, "FILE.gguf", "the file to write; it gets this name when it is whole",
         .target = &o.out},
        {"imatrix", 0, ARGS_TEXT, "FILE", "importance of columns, as llama.cpp's imatrix tool writes it",
         .target = &o.imatrix},
        {"threads", 0, ARGS_U64, "N", "threads (default: one a core)", .target = &o.threads, .min = 1,
         .max = THREADS_MAX},
    };
    const struct args_spec spec = {.program = "helm-quantize",
                                   .usage = "--model DIR|FILE --to MIXTURE --out FILE.gguf [--imatrix FILE]",
                                   .about = "Writes a model's weights in blocks of few bits, as a GGUF file, "
                                            "and says what is lost: the relative\n"
                                            "RMS error of each tensor.",
                                   ARGS_TABLE(table),
                                   .epilogue = "exit status: 0 written, 1 not, 2 usage"};
    args_parse_main(&spec, argc, argv, &parsed);

    struct helm_err err = {0};
    struct model model = {0};
    struct imatrix imatrix = {0};
    struct cpu_set cpus;
    char *path = NULL;
    int rc = check_options(&o, &err);
    if (rc) return args_usage_error(&spec, &err);
    if (!o.threads) o.threads = cpu_usable(-1, &cpus, &err) ? 1 : (uint64_t)cpus.suggested;
    interrupt_note();
    rc = hub_locate(o.model, &path, &err);
    o.model = path;
    if (!rc) rc = model_read(path, &model, &err);
    if (!rc && o.imatrix) rc = imatrix_read(o.imatrix, &imatrix, &err);
    if (!rc) rc = write_model(&o, &model, &imatrix, &err);
    if (!rc && (fflush(stdout) || ferror(stdout))) rc = helm_fail_errno(&err, "standard output");
    imatrix_free(&imatrix);
    model_free(&model);
    free(path);
    if (rc && !interrupt_noted()) fprintf(stderr, "helm-quantize: %s\n", err.text);
    return interrupt_end(rc == 0 ? 0 : rc == HELM_E_USAGE ? 2 : 1);
}
