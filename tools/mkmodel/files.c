/* Shards, headers and the index of a made checkpoint; weights written by all threads at once. See mkmodel.h.
 *
 * Called by the tool's main. Every thread claims chunks of tensors in order from one counter, fills a buffer
 * that fits its cache and writes it where it belongs; the first error stops all. */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/model/arch.h"
#include "common/base/file.h"
#include "common/base/units.h"
#include "common/model/fused.h"
#include "tools/mkmodel/mkmodel.h"

#define CHUNK_ELEMENTS                                                                                       \
    ((uint64_t)128 << 10) /* 256 KiB: generated, then copied by the kernel, out of the L2 cache */
#define THREADS_MAX 256
#define BIAS_SPREAD 0.02
#define NORM_SPREAD 0.05

/* A tensor's 16-bit words: values of a normal distribution around 1 or 0, or bytes of MXFP4. */
enum made_values { MADE_NORM, MADE_BIAS, MADE_MATRIX, MADE_EMBEDDING, MADE_BLOCKS, MADE_SCALES };
struct made_tensor {
    char name[MODEL_NAME_MAX];
    enum made_values values;
    uint32_t rank;
    uint64_t shape[4];    /* in the file */
    uint64_t words, cols; /* cols: of the matrix */
    uint32_t shard;
    uint64_t begin; /* in the shard's data */
    uint64_t first_chunk;
};
struct made_shard {
    char file[64];
    int fd;
    uint64_t data_offset, data_bytes;
};
struct job {
    const struct mkmodel_request *request;
    struct made_tensor *tensors;
    uint32_t tensor_count;
    struct made_shard *shards;
    uint32_t shard_count;
    uint64_t chunk_count;
    struct mkmodel_normal normal;
    _Atomic uint64_t next_chunk;
    _Atomic bool failed;
    pthread_mutex_t lock; /* guards err */
    struct helm_err err;
};

static enum made_values values_of(enum tensor_role role)
{
    switch (role) {
    case TENSOR_Q_BIAS:
    case TENSOR_K_BIAS:
    case TENSOR_V_BIAS:
    case TENSOR_O_BIAS:
    case TENSOR_SINKS:
    case TENSOR_GATE_BIAS:
    case TENSOR_UP_BIAS:
    case TENSOR_DOWN_BIAS:
    case TENSOR_ROUTER_BIAS:
        return MADE_BIAS;
    case TENSOR_EMBED:
        return MADE_EMBEDDING;
    default:
        return arch_role_rank(role, false) == 1 ? MADE_NORM : MADE_MATRIX;
    }
}

/* Takes its place after those that are there. */
static void place_tensor(struct job *job, const struct made_tensor *tensor)
{
    struct made_tensor *to = &job->tensors[job->tensor_count++];
    *to = *tensor;
    to->first_chunk = job->chunk_count;
    job->chunk_count += (to->words + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS;
}

/* Adds the tensor that the file has instead of a role's, and which is entered with the first of its roles.
 * *is_part: the role is one. */
static int add_fused(struct job *job, enum tensor_role role, int32_t layer, bool *is_part,
                     struct helm_err *err)
{
    static const enum made_values values[] = {
        [FUSED_BLOCKS] = MADE_BLOCKS, [FUSED_SCALES] = MADE_SCALES, [FUSED_COLUMNS] = MADE_MATRIX,
        [FUSED_IN_TURN] = MADE_BIAS,  [FUSED_ROWS] = MADE_MATRIX,   [FUSED_RUNS] = MADE_MATRIX,
        [FUSED_HEADS] = MADE_MATRIX};
    const struct model_config *config = job->request->config;
    const struct fused_tensor *fused;
    *is_part = false;
    for (uint32_t i = 0; (fused = fused_of(config, i)); i++) {
        for (uint32_t k = 0; k < fused->roles; k++) *is_part |= fused->role[k] == role;
        if (fused->role[0] != role) continue;
        struct made_tensor tensor = {.values = values[fused->part]};
        uint64_t rows;
        const bool bytes = fused->part == FUSED_BLOCKS || fused->part == FUSED_SCALES;
        tensor.rank = fused_shape(config, fused, tensor.shape);
        (void)model_expected_shape(config, role, layer, &rows, &tensor.cols);
        tensor.words = 1;
        for (uint32_t d = 0; d < tensor.rank; d++) tensor.words *= tensor.shape[d];
        snprintf(tensor.name, sizeof tensor.name, "model.layers.%d.%s", layer, fused->name);
        if (bytes && tensor.words % 2)
            return helm_fail(err, HELM_E_UNSUPPORTED, "%s of %llu bytes, an odd number", tensor.name,
                             (unsigned long long)tensor.words);
        if (bytes) tensor.words /= 2;
        place_tensor(job, &tensor);
    }
    return 0;
}

/* Experts' matrices are added one for each expert. */
static int add_tensor(struct job *job, uint32_t capacity, enum tensor_role role, int32_t layer,
                      struct helm_err *err)
{
    const struct model_config *config = job->request->config;
    const uint32_t parts = model_tensor_parts(config, role);
    uint64_t rows, cols;
    if (!model_expects(config, role, layer) || !model_expected_shape(config, role, layer, &rows, &cols))
        return 0;
    if (job->tensor_count + parts > capacity)
        return helm_fail(err, HELM_E_INTERNAL, "more tensors than counted");
    bool is_part;
    const int rc = add_fused(job, role, layer, &is_part, err);
    if (rc || is_part) return rc;
    for (uint32_t i = 0; i < parts; i++) {
        const bool vector = arch_role_rank(role, false) == 1;
        struct made_tensor tensor = {.values = values_of(role),
                                     .rank = vector ? 1 : 2,
                                     .shape = {vector ? cols : rows / parts, cols},
                                     .words = rows / parts * cols,
                                     .cols = cols};
        model_part_name(config, role, layer, i, tensor.name);
        place_tensor(job, &tensor);
    }
    return 0;
}

/* The order of the file: embedding, layers from the first to the last, final norm, head. */
static int list_tensors(struct job *job, struct helm_err *err)
{
    const struct model_config *config = job->request->config;
    uint32_t capacity = (config->layers + 1) * (TENSOR_ROLE_COUNT + 3 * config->router.experts);
    job->tensors = calloc(capacity, sizeof *job->tensors);
    if (!job->tensors) return helm_fail(err, HELM_E_NOMEM, "no memory for %u tensors", capacity);
    int rc = add_tensor(job, capacity, TENSOR_EMBED, -1, err);
    if (!rc) rc = add_tensor(job, capacity, TENSOR_POSITIONS, -1, err);
    for (uint32_t layer = 0; layer < config->layers; layer++)
        for (int r = 0; r < TENSOR_ROLE_COUNT && !rc; r++)
            if (arch_role_per_layer((enum tensor_role)r))
                rc = add_tensor(job, capacity, (enum tensor_role)r, (int32_t)layer, err);
    if (!rc) rc = add_tensor(job, capacity, TENSOR_FINAL_NORM, -1, err);
    if (!rc) rc = add_tensor(job, capacity, TENSOR_FINAL_NORM_BIAS, -1, err);
    if (!rc) rc = add_tensor(job, capacity, TENSOR_HEAD, -1, err);
    return rc;
}

int mkmodel_bytes(const struct model_config *config, uint64_t *bytes, struct helm_err *err)
{
    const struct mkmodel_request request = {.config = config};
    struct job job = {.request = &request};
    const int rc = list_tensors(&job, err);
    *bytes = 0;
    for (uint32_t i = 0; i < job.tensor_count; i++) *bytes += 2 * job.tensors[i].words;
    free(job.tensors);
    return rc;
}

static int assign_shards(struct job *job, struct helm_err *err)
{
    uint64_t used = 0;
    uint32_t shard = 0;
    for (uint32_t i = 0; i < job->tensor_count; i++) {
        struct made_tensor *tensor = &job->tensors[i];
        uint64_t bytes = tensor->words * 2;
        if (used && used + bytes > job->request->shard_bytes) {
            shard++;
            used = 0;
        }
        tensor->shard = shard;
        tensor->begin = used;
        used += bytes;
    }
    job->shard_count = shard + 1;
    if (job->shard_count > MODEL_SHARDS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%u shards, the limit is %d", job->shard_count, MODEL_SHARDS_MAX);
    job->shards = calloc(job->shard_count, sizeof *job->shards);
    if (!job->shards) return helm_fail(err, HELM_E_NOMEM, "no memory for %u shards", job->shard_count);
    for (uint32_t s = 0; s < job->shard_count; s++) {
        job->shards[s].fd = -1;
        if (job->shard_count == 1)
            strcpy(job->shards[s].file, "model.safetensors");
        else
            snprintf(job->shards[s].file, sizeof job->shards[s].file, "model-%05u-of-%05u.safetensors", s + 1,
                     job->shard_count);
    }
    for (uint32_t i = 0; i < job->tensor_count; i++) {
        const struct made_tensor *tensor = &job->tensors[i];
        job->shards[tensor->shard].data_bytes = tensor->begin + tensor->words * 2;
    }
    return 0;
}

/* The JSON header of one shard, padded with blanks so that the data begin at a multiple of 8. */
static char *header_text(const struct job *job, uint32_t shard, size_t *length)
{
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    char *text = NULL, *padded = NULL;
    const char *dtype = job->request->dtype == DTYPE_F16 ? "F16" : "BF16";
    for (uint32_t i = 0; root && i < job->tensor_count; i++) {
        const struct made_tensor *t = &job->tensors[i];
        if (t->shard != shard) continue;
        json_int_t end = (json_int_t)(t->begin + t->words * 2);
        const bool bytes = t->values == MADE_BLOCKS || t->values == MADE_SCALES;
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->rank; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_t *info = json_pack("{s:s, s:o, s:[I, I]}", "dtype", bytes ? "U8" : dtype, "shape", shape,
                                 "data_offsets", (json_int_t)t->begin, end);
        if (json_object_set_new(root, t->name, info)) goto out;
    }
    text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    if (!text) goto out;
    size_t plain = strlen(text);
    *length = (plain + 7) / 8 * 8;
    padded = malloc(*length + 8);
    if (!padded) goto out;
    memset(padded + 8, ' ', *length);
    memcpy(padded + 8, text, plain);
    for (int i = 0; i < 8; i++) padded[i] = (char)((uint64_t)*length >> (8 * i));
    *length += 8;
out:
    free(text);
    json_decref(root);
    return padded;
}

static int open_shards(struct job *job, struct helm_err *err)
{
    for (uint32_t s = 0; s < job->shard_count; s++) {
        struct made_shard *shard = &job->shards[s];
        char path[4096];
        size_t length = 0;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", job->request->folder, shard->file) >= sizeof path)
            return helm_fail(err, HELM_E_LIMIT, "the path of the folder is too long");
        shard->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (shard->fd < 0) return helm_fail_errno(err, "%s: cannot create", path);
        char *header = header_text(job, s, &length);
        if (!header) return helm_fail(err, HELM_E_NOMEM, "no memory for the header of %s", shard->file);
        const bool written = file_pwrite_all(shard->fd, header, length, 0);
        free(header);
        if (!written) return helm_fail_errno(err, "writing %s", path);
        shard->data_offset = length;
        if (ftruncate(shard->fd, (off_t)(length + shard->data_bytes)))
            return helm_fail_errno(err, "%s: cannot set its size", path);
    }
    return 0;
}

static int write_index(const struct job *job, uint64_t bytes, struct helm_err *err)
{
    char path[4096];
    json_t *map = json_object();
    bool bad = !map;
    for (uint32_t i = 0; !bad && i < job->tensor_count; i++)
        bad = json_object_set_new(map, job->tensors[i].name,
                                  json_string(job->shards[job->tensors[i].shard].file));
    json_t *root =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    if (bad || !root) {
        json_decref(root);
        return helm_fail(err, HELM_E_NOMEM, "no memory for the index");
    }
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", job->request->folder);
    int rc = json_dump_file(root, path, JSON_INDENT(2) | JSON_SORT_KEYS)
                 ? helm_fail_errno(err, "%s: cannot write", path)
                 : 0;
    json_decref(root);
    return rc;
}

/* Spread of a tensor's values: what keeps every activation near 1, so that logits differ and nothing
 * overflows. */
static void start_values(const struct job *job, const struct made_tensor *tensor,
                         struct mkmodel_values *values)
{
    const double each = 1 / sqrt((double)tensor->cols), embedding = job->request->embedding;
    const double spread[] = {[MADE_NORM] = NORM_SPREAD, [MADE_BIAS] = BIAS_SPREAD,
                             [MADE_MATRIX] = each,      [MADE_EMBEDDING] = embedding > 0 ? embedding : each,
                             [MADE_BLOCKS] = each,      [MADE_SCALES] = each};
    mkmodel_values_init(values, &job->normal, job->request->seed, tensor->name, job->request->dtype,
                        tensor->values == MADE_NORM ? 1 : 0, spread[tensor->values]);
    if (tensor->values == MADE_BLOCKS) mkmodel_values_any(values);
    if (tensor->values == MADE_SCALES) mkmodel_values_scales(values, each);
}

static void *write_chunks(void *argument)
{
    struct job *job = argument;
    struct helm_err err = {0};
    struct mkmodel_values values;
    uint32_t at = 0, ready = UINT32_MAX;
    int rc = 0;
    uint16_t *buffer = malloc(CHUNK_ELEMENTS * sizeof *buffer);
    if (!buffer) rc = helm_fail(&err, HELM_E_NOMEM, "no memory for a buffer");
    while (!rc && !atomic_load(&job->failed)) {
        if (job->request->stopped && job->request->stopped()) {
            rc = helm_fail(&err, HELM_E_CANCELLED, "stopped");
            break;
        }
        uint64_t chunk = atomic_fetch_add(&job->next_chunk, 1);
        if (chunk >= job->chunk_count) break;
        while (at + 1 < job->tensor_count && job->tensors[at + 1].first_chunk <= chunk) at++;
        const struct made_tensor *tensor = &job->tensors[at];
        if (ready != at) start_values(job, tensor, &values);
        ready = at;
        uint64_t first = (chunk - tensor->first_chunk) * CHUNK_ELEMENTS, count = tensor->words - first;
        if (count > CHUNK_ELEMENTS) count = CHUNK_ELEMENTS;
        mkmodel_values_fill(&values, first, count, buffer);
        const struct made_shard *shard = &job->shards[tensor->shard];
        if (!file_pwrite_all(shard->fd, buffer, count * sizeof *buffer,
                             shard->data_offset + tensor->begin + first * 2))
            rc = helm_fail_errno(&err, "writing %s", shard->file);
    }
    free(buffer);
    if (rc) {
        pthread_mutex_lock(&job->lock);
        if (!atomic_exchange(&job->failed, true)) job->err = err;
        pthread_mutex_unlock(&job->lock);
    }
    return NULL;
}

static int run_threads(struct job *job, struct helm_err *err)
{
    pthread_t thread[THREADS_MAX];
    uint32_t wanted = job->request->threads, started = 0;
    if (wanted > THREADS_MAX) wanted = THREADS_MAX;
    /* The caller's thread is one of them; a thread that cannot be made only leaves more for the others. */
    while (started + 1 < wanted && pthread_create(&thread[started], NULL, write_chunks, job) == 0) started++;
    write_chunks(job);
    for (uint32_t i = 0; i < started; i++) pthread_join(thread[i], NULL);
    if (!atomic_load(&job->failed)) return 0;
    if (err) *err = job->err;
    return job->err.code;
}

int mkmodel_write(const struct mkmodel_request *request, struct mkmodel_result *result, struct helm_err *err)
{
    struct job job = {.request = request};
    memset(result, 0, sizeof *result);
    pthread_mutex_init(&job.lock, NULL);
    mkmodel_normal_init(&job.normal);
    int rc = list_tensors(&job, err);
    if (!rc) rc = assign_shards(&job, err);
    uint64_t start = units_now_ns();
    if (!rc) rc = open_shards(&job, err);
    if (!rc) rc = run_threads(&job, err);
    for (uint32_t s = 0; s < job.shard_count && job.shards; s++) {
        if (!rc) result->bytes += job.shards[s].data_bytes;
        if (job.shards[s].fd >= 0 && close(job.shards[s].fd) && !rc)
            rc = helm_fail_errno(err, "%s: close failed", job.shards[s].file);
    }
    result->seconds = (double)(units_now_ns() - start) / 1e9;
    result->tensors = job.tensor_count;
    result->shards = job.shard_count;
    if (!rc && job.shard_count > 1) rc = write_index(&job, result->bytes, err);
    pthread_mutex_destroy(&job.lock);
    free(job.tensors);
    free(job.shards);
    return rc;
}
