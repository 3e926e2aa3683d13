/* Weights into a GGUF file. See rewrite.h. Threads take runs of rows in the order of the file; the thread
 * that finishes a tensor's last run wakes the thread that reports. */
#include "tools/quantize/rewrite.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/formats/quantize.h"
#include "common/model/arch.h"

#define RUN_BYTES (1u << 20) /* of a run's rows as they are stored, about */

/* ---- the list ---- */

/* RoPE's factors as a tensor: what each inverse frequency is divided by. */
static int take_factors(struct rewrite *r, struct helm_err *err)
{
    const struct model_config *c = &r->model->config;
    const uint32_t count = c->head_dim / 2;
    if (c->rope[0].kind != ROPE_LLAMA3 && c->rope[0].kind != ROPE_FACTORS) return 0;
    struct model_config plain = *c;
    float *scaled = malloc(2 * count * sizeof *scaled), *unscaled = scaled + count, one;
    r->factors = malloc(count * sizeof *r->factors);
    if (!scaled || !r->factors) {
        free(scaled);
        return helm_fail(err, HELM_E_NOMEM, "no memory for %u factors", count);
    }
    plain.rope[0].kind = ROPE_DEFAULT;
    rope_inv_freq(c, 0, 0, scaled, &one);
    rope_inv_freq(&plain, 0, 0, unscaled, &one);
    for (uint32_t i = 0; i < count; i++)
        r->factors[i] = c->rope[0].kind == ROPE_FACTORS ? c->rope[0].factors[i] : unscaled[i] / scaled[i];
    free(scaled);
    struct rewrite_tensor *t = &r->tensors[r->count++];
    *t = (struct rewrite_tensor){
        .to = {.name = ARCH_ROPE_FACTORS, .format = FORMAT_F32, .rows = 1, .cols = count, .vector = true},
        .values = r->factors};
    return 0;
}

static int take_tensor(struct rewrite *r, const struct model_tensor *from, const struct mixture *mixture,
                       bool interleaved, const struct imatrix *imatrix, struct helm_err *err)
{
    struct model_config named = {.gguf = true};
    const struct model_config *c = &r->model->config;
    struct rewrite_tensor *t = &r->tensors[r->count++];
    const bool vector = arch_role_is_vector(from->role),
               q = from->role == TENSOR_Q || from->role == TENSOR_Q_BIAS,
               k = from->role == TENSOR_K || from->role == TENSOR_K_BIAS;
    const enum tensor_format format = vector ? FORMAT_F32
                                      : from->format == FORMAT_MXFP4
                                          ? FORMAT_MXFP4 /* as published: nothing is gained by another loss */
                                          : mixture_format(mixture, r->model, from, imatrix != NULL);
    char name[MODEL_NAME_MAX];
    strcpy(named.architecture, c->architecture);
    model_tensor_name(&named, from->role, from->layer, name);
    *t = (struct rewrite_tensor){.to = {.format = format,
                                        .rows = from->rows,
                                        .cols = from->cols,
                                        .vector = arch_role_rank(from->role, true) == 1,
                                        .experts = arch_role_of_experts(from->role) ? c->router.experts : 0},
                                 .from = from,
                                 .interleaved_heads = !interleaved ? 0
                                                      : q          ? c->heads
                                                      : k          ? c->kv_heads
                                                                   : 0};
    memcpy(t->to.name, name, sizeof t->to.name);
    t->to.name[sizeof t->to.name - 1] = '\0';
    if (from->format == t->to.format) return 0;
    const bool grid = quantize_grid_writes(t->to.format) && tensor_format_is_plain(from->format);
    if (!grid && !tensor_format_converts(from->format, t->to.format))
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "%s is %s already: to quantise again loses more; begin with bf16, fp16 or fp32",
                         from->name, tensor_format_name(from->format));
    if (tensor_format_is_plain(t->to.format)) return 0;
    const float *importance = NULL;
    r->quantized++;
    const uint64_t measured = from->cols * (t->to.experts ? t->to.experts : 1);
    int rc = imatrix ? imatrix_find(imatrix, t->to.name, measured, &importance, err) : 0;
    r->measured += importance != NULL;
    if (t->to.format != FORMAT_Q8_0) t->importance = importance; /* whose scale is the largest value's */
    if (rc || !grid) return rc;
    if (!importance && quantize_grid_needs_importance(t->to.format))
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s would be %s, which is of use with importance only: %s",
                         t->to.name, tensor_format_name(t->to.format),
                         imatrix ? "the imatrix has none of it" : "--imatrix is missing");
    struct quantize_grid **table = &r->grid[t->to.format];
    if (!*table) *table = quantize_grid_make(t->to.format);
    return *table ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for the grid of %s", t->to.name);
}

/* The embedding, the end, then layer by layer. */
int rewrite_plan(const struct model *model, const struct mixture *mixture, bool interleaved,
                 const struct imatrix *imatrix, struct rewrite *r, struct helm_err *err)
{
    *r = (struct rewrite){.model = model};
    r->tensors = calloc((size_t)model->tensor_count + 1, sizeof *r->tensors);
    int rc = r->tensors ? take_factors(r, err)
                        : helm_fail(err, HELM_E_NOMEM, "no memory for %u tensors", model->tensor_count);
    for (int32_t layer = -1; layer < (int32_t)model->config.layers && !rc; layer++)
        for (int role = 0; role < TENSOR_ROLE_COUNT && !rc; role++) {
            const struct model_tensor *t = model_find(model, (enum tensor_role)role, layer);
            if (t && t->role == (enum tensor_role)role && t->layer == layer)
                rc = take_tensor(r, t, mixture, interleaved, imatrix, err);
        }
    if (rc) rewrite_free(r);
    return rc;
}

void rewrite_free(struct rewrite *r)
{
    for (int f = 0; f < FORMAT_COUNT; f++) quantize_grid_free(r->grid[f]);
    free(r->tensors);
    free(r->factors);
    memset(r, 0, sizeof *r);
}

/* ---- runs of rows ---- */

struct writing {
    struct rewrite *r;
    const struct rewrite_run *run;
    struct model_shards shards;
    struct gguf_output output;
    pthread_mutex_t lock;
    pthread_cond_t done; /* a tensor, or everything by an error */
    uint32_t tensor;     /* whose row `row` is the next to be taken */
    uint64_t row;
    uint64_t *left; /* [count]: rows of each that are not written */
    struct helm_err err;
    bool stop;
};

struct run {
    struct rewrite_tensor *t;
    uint64_t row;
    uint32_t rows;
};

/* Vectors are taken whole, as one row. */
static bool take_run(struct writing *w, struct run *run)
{
    pthread_mutex_lock(&w->lock);
    const bool more = !w->stop && w->tensor < w->r->count;
    if (more) {
        struct rewrite_tensor *t = &w->r->tensors[w->tensor];
        const uint64_t row_bytes =
                           t->to.cols * (t->from ? t->from->bytes / (t->from->rows * t->from->cols) + 1 : 4),
                       rows = RUN_BYTES / row_bytes + 1, left = t->to.rows - w->row;
        *run = (struct run){t, w->row, (uint32_t)(rows < left ? rows : left)};
        w->row += run->rows;
        if (w->row == t->to.rows) {
            w->tensor++;
            w->row = 0;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return more;
}

static void end_run(struct writing *w, const struct run *run, double off, double all)
{
    pthread_mutex_lock(&w->lock);
    run->t->off += off;
    run->t->all += all;
    uint64_t *left = &w->left[run->t - w->r->tensors];
    *left -= run->rows;
    if (!*left) pthread_cond_broadcast(&w->done);
    pthread_mutex_unlock(&w->lock);
}

static void fail(struct writing *w, const struct helm_err *err)
{
    pthread_mutex_lock(&w->lock);
    if (!w->stop) w->err = *err;
    w->stop = true;
    pthread_cond_broadcast(&w->done);
    pthread_mutex_unlock(&w->lock);
}

/* Which row of the model is row `row` of the file, of heads whose rows are written interleaved: 2i is i, 2i +
 * 1 is i + half. */
static uint64_t source_row(const struct rewrite_tensor *t, uint64_t rows, uint64_t row)
{
    const uint64_t head = rows / t->interleaved_heads, i = row % head;
    return row - i + i / 2 + (i % 2 ? head / 2 : 0);
}

/* The run's rows in the order of the file, as they are stored; of a vector its values. */
static int read_rows(const struct writing *w, const struct run *run, void *to, struct helm_err *err)
{
    const struct model_tensor *from = run->t->from;
    struct model_rows what = {from, (uint32_t)run->row, run->rows, from->format};
    if (!run->t->interleaved_heads) return model_shards_read_rows(&w->shards, &what, to, err);
    const uint64_t unit = from->bytes / (run->t->to.vector ? from->cols : from->rows);
    if (run->t->to.vector) {
        char *values = malloc((size_t)from->bytes);
        if (!values) return helm_fail(err, HELM_E_NOMEM, "no memory for %s", from->name);
        int rc = model_shards_read_rows(&w->shards, &what, values, err);
        for (uint64_t i = 0; i < from->cols && !rc; i++)
            memcpy((char *)to + i * unit, values + source_row(run->t, from->cols, i) * unit, unit);
        free(values);
        return rc;
    }
    int rc = 0;
    what.rows = 1;
    for (uint32_t i = 0; i < run->rows && !rc; i++) {
        what.row = (uint32_t)source_row(run->t, from->rows, run->row + i);
        rc = model_shards_read_rows(&w->shards, &what, (char *)to + i * unit, err);
    }
    return rc;
}

static int convert(const struct rewrite *r, const struct run *run, const void *stored, void *made,
                   struct helm_err *err)
{
    const struct rewrite_tensor *t = run->t;
    const struct quantize_grid *grid = t->from->format == t->to.format ? NULL : r->grid[t->to.format];
    const uint32_t cols = (uint32_t)t->to.cols;
    const uint64_t each = t->to.experts ? t->to.rows / t->to.experts
                                        : t->to.rows, /* rows that importance is of */
        from_bytes = tensor_format_row_bytes(t->from->format, cols),
                   bytes = tensor_format_row_bytes(t->to.format, cols);
    int rc = 0;
    for (uint32_t done = 0, part; done < run->rows && !rc; done += part) {
        const uint64_t row = run->row + done, left = t->importance ? each - row % each : run->rows;
        part = left < run->rows - done ? (uint32_t)left : run->rows - done;
        const struct tensor_rows rows = {t->from->format, t->to.format, part, cols,
                                         (const char *)stored + done * from_bytes};
        char *to = (char *)made + done * bytes;
        const float *importance = t->importance ? t->importance + row / each * cols : NULL;
        rc = grid         ? quantize_grid_rows(grid, &rows, importance, to, err)
             : importance ? quantize_rows(&rows, importance, to, err)
                          : tensor_format_convert(&rows, to, err);
    }
    if (rc) helm_err_prefix(err, "%s, rows from %llu on", t->to.name, (unsigned long long)run->row);
    return rc;
}

typedef float eight_floats __attribute__((vector_size(32)));
typedef double eight_doubles __attribute__((vector_size(64)));

/* Sums of squares over a row of y - x, and of x. */
static void add_squares(const float *x, const float *y, uint32_t cols, double *off, double *all)
{
    eight_doubles off8 = {0}, all8 = {0};
    uint32_t c = 0;
    for (; c + 8 <= cols; c += 8) {
        eight_floats a, b;
        memcpy(&a, x + c, sizeof a);
        memcpy(&b, y + c, sizeof b);
        const eight_doubles value = __builtin_convertvector(a, eight_doubles),
                            d = __builtin_convertvector(b, eight_doubles) - value;
        off8 += d * d;
        all8 += value * value;
    }
    for (; c < cols; c++) {
        const double value = (double)x[c], d = (double)y[c] - value;
        off8[c % 8] += d * d;
        all8[c % 8] += value * value;
    }
    for (int i = 0; i < 8; i++) *off += off8[i], *all += all8[i];
}

/* Sums of squares over the run. */
static int compare(const struct run *run, const void *stored, const void *made, double *off, double *all,
                   struct helm_err *err)
{
    const uint32_t cols = (uint32_t)run->t->to.cols;
    const enum tensor_format from = run->t->from->format, to = run->t->to.format;
    const struct tensor_matrix a = {from, stored, tensor_format_bytes(from, run->rows, cols), run->rows,
                                    cols},
                               b = {to, made, tensor_format_bytes(to, run->rows, cols), run->rows, cols};
    float *x = malloc(2 * (size_t)cols * sizeof *x), *y = x + cols;
    int rc = x ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for two rows of %u", cols);
    for (uint32_t r = 0; r < run->rows && !rc; r++) {
        rc = tensor_format_read_row(&a, r, x, err);
        if (!rc) rc = tensor_format_read_row(&b, r, y, err);
        if (!rc) add_squares(x, y, cols, off, all);
    }
    free(x);
    if (!rc && !isfinite(*off))
        rc =
            helm_fail(err, HELM_E_FORMAT, "%s, rows from %llu on: a value is not finite, or too large for %s",
                      run->t->to.name, (unsigned long long)run->row, tensor_format_name(to));
    return rc;
}

static int write_run(struct writing *w, const struct run *run, struct helm_err *err)
{
    const struct rewrite_tensor *t = run->t;
    const uint64_t row_bytes = tensor_format_row_bytes(t->to.format, t->to.cols);
    double off = 0, all = 0;
    if (!t->from) {
        int rc = gguf_output_write(&w->output, &t->to, 0, t->values, t->to.bytes, err);
        if (!rc) end_run(w, run, 0, 0);
        return rc;
    }
    void *stored = malloc((size_t)tensor_format_bytes(t->from->format, run->rows, t->to.cols)),
         *made = malloc((size_t)(run->rows * row_bytes));
    int rc = stored && made
                 ? read_rows(w, run, stored, err)
                 : helm_fail(err, HELM_E_NOMEM, "no memory for %u rows of %s", run->rows, t->to.name);
    if (!rc) rc = convert(w->r, run, stored, made, err);
    if (!rc && t->from->format != t->to.format) rc = compare(run, stored, made, &off, &all, err);
    if (!rc)
        rc = gguf_output_write(&w->output, &t->to, run->row * row_bytes, made, run->rows * row_bytes, err);
    if (!rc) end_run(w, run, off, all);
    free(stored);
    free(made);
    return rc;
}

static const struct helm_err stopped = {.code = HELM_E_CANCELLED, .text = "stopped"};

static void *write_runs(void *argument)
{
    struct writing *w = argument;
    struct run run;
    while (take_run(w, &run)) {
        struct helm_err err = {0};
        if (write_run(w, &run, &err)) fail(w, &err);
        if (w->run->stopped && w->run->stopped()) fail(w, &stopped);
    }
    return NULL;
}

/* Tensor by tensor, as they are done. */
static void report(struct writing *w, const struct rewrite_run *run)
{
    for (uint32_t i = 0; i < w->r->count; i++) {
        pthread_mutex_lock(&w->lock);
        while (w->left[i] && !w->stop) pthread_cond_wait(&w->done, &w->lock);
        const bool stop = w->stop;
        pthread_mutex_unlock(&w->lock);
        if (stop) return;
        if (!run->progress(run->context, &w->r->tensors[i])) fail(w, &stopped);
    }
}

/* With fewer threads than asked for where the system has no more. */
static int run_threads(struct writing *w, const struct rewrite_run *run, struct helm_err *err)
{
    pthread_t *thread = calloc(run->threads, sizeof *thread);
    uint32_t started = 0;
    w->left = calloc((size_t)w->r->count + 1, sizeof *w->left);
    int rc = thread && w->left ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for %u threads", run->threads);
    for (uint32_t i = 0; i < w->r->count && !rc; i++) w->left[i] = w->r->tensors[i].to.rows;
    while (!rc && started < run->threads && !pthread_create(&thread[started], NULL, write_runs, w)) started++;
    if (!rc && !started) rc = helm_fail(err, HELM_E_NOMEM, "no thread can be started");
    if (!rc) report(w, run);
    for (uint32_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
    free(thread);
    free(w->left);
    if (rc || !w->stop) return rc;
    if (err) *err = w->err;
    return w->err.code;
}

int rewrite_file(struct rewrite *r, const char *path, const struct gguf_values *values,
                 const struct rewrite_run *run, struct helm_err *err)
{
    struct writing w = {.r = r,
                        .run = run,
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .done = PTHREAD_COND_INITIALIZER};
    struct gguf_output_tensor *to = calloc((size_t)r->count + 1, sizeof *to);
    if (!to) return helm_fail(err, HELM_E_NOMEM, "no memory for %u tensors", r->count);
    for (uint32_t i = 0; i < r->count; i++) to[i] = r->tensors[i].to;
    int rc = model_shards_open(r->model, &w.shards, err);
    if (!rc) {
        rc = gguf_output_open(path, values, to, r->count, &w.output, err);
        for (uint32_t i = 0; i < r->count; i++) r->tensors[i].to = to[i];
        if (!rc && !(rc = run_threads(&w, run, err))) rc = gguf_output_finish(&w.output, err);
        if (rc) gguf_output_abandon(&w.output);
        model_shards_close(&w.shards);
    }
    free(to);
    return rc;
}
