/* Reading importance. See imatrix.h. */
#include "tools/quantize/imatrix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"

#define SUMS   ".in_sum2"
#define COUNTS ".counts"
/* Columns that the measured text never used have some worth in others. */
#define LEAST 1e-4f

void imatrix_free(struct imatrix *m)
{
    for (uint32_t i = 0; i < m->count; i++) free(m->entries[i].importance);
    free(m->entries);
    memset(m, 0, sizeof *m);
}

/* One entry: `sums` are `cols` numbers in the file, of any alignment; only their proportions matter. */
static int take(struct imatrix *m, const char *name, const uint8_t *sums, uint64_t cols, struct helm_err *err)
{
    double total = 0;
    for (uint32_t i = 0; i < m->count; i++)
        if (strcmp(m->entries[i].name, name) == 0)
            return helm_fail(err, HELM_E_FORMAT, "'%s' is there twice", name);
    float *importance = malloc((size_t)cols * sizeof *importance);
    if (!importance)
        return helm_fail(err, HELM_E_NOMEM, "no memory for %llu columns", (unsigned long long)cols);
    memcpy(importance, sums, (size_t)cols * sizeof *importance);
    for (uint64_t i = 0; i < cols; i++) {
        if (!(importance[i] >= 0 && isfinite(importance[i]))) {
            int rc = helm_fail(err, HELM_E_FORMAT, "'%s': column %llu has the importance %g", name,
                               (unsigned long long)i, (double)importance[i]);
            free(importance);
            return rc;
        }
        total += (double)importance[i];
    }
    if (total == 0) {
        free(importance);
        return 0;
    }
    for (uint64_t i = 0; i < cols; i++)
        importance[i] = fmaxf((float)((double)importance[i] * (double)cols / total), LEAST);
    struct imatrix_entry *entry = &m->entries[m->count++];
    *entry = (struct imatrix_entry){.importance = importance, .cols = (uint32_t)cols};
    strcpy(entry->name, name);
    return 0;
}

static int make_room(struct imatrix *m, uint64_t count, struct helm_err *err)
{
    m->entries = calloc((size_t)count + 1, sizeof *m->entries);
    return m->entries ? 0
                      : helm_fail(err, HELM_E_NOMEM, "no memory for %llu entries", (unsigned long long)count);
}

static int check_cols(const char *name, uint64_t cols, struct helm_err *err)
{
    if (cols >= 1 && cols <= IMATRIX_COLS_MAX) return 0;
    return helm_fail(err, HELM_E_LIMIT, "'%s' has %llu columns, not between 1 and %u", name,
                     (unsigned long long)cols, IMATRIX_COLS_MAX);
}

/* ---- GGUF ---- */

/* Several experts, each with its own count: one that was not called tells nothing about its columns, which
 * are alike then. */
static int take_experts(struct imatrix *m, const char *name, const uint8_t *sums, const uint8_t *counts,
                        uint64_t cols, uint64_t experts, struct helm_err *err)
{
    bool called = false;
    float *all = malloc((size_t)(cols * experts) * sizeof *all);
    if (!all)
        return helm_fail(err, HELM_E_NOMEM, "no memory for %llu columns",
                         (unsigned long long)(cols * experts));
    memcpy(all, sums, (size_t)(cols * experts) * sizeof *all);
    for (uint64_t e = 0; e < experts; e++) {
        float calls, *of = all + e * cols;
        double total = 0;
        memcpy(&calls, counts + e * sizeof calls, sizeof calls);
        for (uint64_t i = 0; i < cols; i++) total += (double)of[i];
        const bool counts_for = calls > 0 && total != 0; /* values that are no numbers are refused below */
        called |= counts_for;
        for (uint64_t i = 0; i < cols; i++)
            of[i] = counts_for ? (float)((double)of[i] * (double)cols / total) : 1;
    }
    const int rc = called ? take(m, name, (const uint8_t *)all, cols * experts, err) : 0;
    free(all);
    return rc;
}

/* NAME.in_sum2, of one matrix or of several experts, beside NAME.counts. */
static int take_tensor(struct imatrix *m, const struct gguf *header, const struct safetensors_entry *sums,
                       const uint8_t *data, struct helm_err *err)
{
    char name[GGUF_NAME_MAX], counts_name[GGUF_NAME_MAX];
    const size_t length = strlen(sums->name), tail = sizeof SUMS - 1;
    float calls;
    uint64_t experts = 1;
    if (length <= tail || strcmp(sums->name + length - tail, SUMS) != 0) return 0;
    memcpy(name, sums->name, length - tail);
    name[length - tail] = '\0';
    memcpy(counts_name, name, length - tail);
    strcpy(counts_name + length - tail, COUNTS); /* shorter than the other */
    const struct safetensors_entry *counts = gguf_find_tensor(header, counts_name);
    const uint64_t cols = sums->shape[sums->rank - 1];
    if (!counts) return helm_fail(err, HELM_E_NOT_FOUND, "'%s' has no '%s'", sums->name, counts_name);
    if (sums->format != FORMAT_F32 || counts->format != FORMAT_F32)
        return helm_fail(err, HELM_E_FORMAT, "'%s' and its counts are no F32", sums->name);
    experts = counts->bytes / sizeof calls;
    if (experts > MODEL_EXPERTS_MAX || sums->bytes != experts * cols * sizeof(float))
        return helm_fail(err, HELM_E_FORMAT, "'%s' has %llu counts, no one of each of its matrices", name,
                         (unsigned long long)experts);
    int rc = check_cols(name, cols, err);
    if (rc) return rc;
    if (experts > 1)
        return take_experts(m, name, data + sums->begin, data + counts->begin, cols, experts, err);
    memcpy(&calls, data + counts->begin, sizeof calls);
    return rc || !(calls > 0) ? rc : take(m, name, data + sums->begin, cols, err);
}

static int parse_gguf(const uint8_t *bytes, size_t length, struct imatrix *m, struct helm_err *err)
{
    const struct gguf_source source = {"the imatrix", bytes, length, length, false};
    struct gguf header;
    char type[32] = "imatrix";
    bool more;
    int rc = gguf_parse(&source, &header, &more, err);
    if (rc) return rc;
    rc = gguf_get_string(&header, "general.type", false, type, sizeof type, err);
    if (!rc && strcmp(type, "imatrix") != 0)
        rc = helm_fail(err, HELM_E_FORMAT, "a GGUF file of type '%s', not imatrix", type);
    if (!rc) rc = make_room(m, header.count, err);
    for (uint32_t i = 0; i < header.count && !rc; i++)
        rc = take_tensor(m, &header, &header.entries[i], bytes + header.data_offset, err);
    gguf_free(&header);
    return rc;
}

/* ---- the older kind: a count, then name, calls and sums of each; what follows is not read ---- */

struct rest {
    const uint8_t *at;
    size_t left;
    struct helm_err *err;
};

static const uint8_t *next(struct rest *r, uint64_t bytes)
{
    if (bytes > r->left) {
        helm_fail(r->err, HELM_E_FORMAT, "%llu bytes are missing at its end",
                  (unsigned long long)(bytes - r->left));
        return NULL;
    }
    r->at += bytes;
    r->left -= bytes;
    return r->at - bytes;
}

static int next_number(struct rest *r, const char *what, int32_t least, int32_t most, int32_t *number)
{
    const uint8_t *at = next(r, sizeof *number);
    if (!at) return r->err->code;
    memcpy(number, at, sizeof *number);
    if (*number >= least && *number <= most) return 0;
    return helm_fail(r->err, HELM_E_LIMIT, "%s is %d, not between %d and %d", what, *number, least, most);
}

static int take_entry(struct rest *r, struct imatrix *m)
{
    char name[GGUF_NAME_MAX];
    int32_t length, calls, cols;
    int rc = next_number(r, "the length of a name", 1, GGUF_NAME_MAX - 1, &length);
    if (rc) return rc;
    const uint8_t *at = next(r, (uint64_t)length);
    if (!at) return r->err->code;
    for (int32_t i = 0; i < length; i++)
        if (at[i] <= 0x20 || at[i] >= 0x7f)
            return helm_fail(r->err, HELM_E_FORMAT, "a name has the byte 0x%02x", at[i]);
    memcpy(name, at, (size_t)length);
    name[length] = '\0';
    rc = next_number(r, "a number of calls", 0, INT32_MAX, &calls);
    if (!rc) rc = next_number(r, "a number of columns", 1, IMATRIX_COLS_MAX, &cols);
    if (rc) return helm_err_prefix(r->err, "'%s'", name);
    at = next(r, (uint64_t)cols * sizeof(float));
    if (!at) return helm_err_prefix(r->err, "'%s'", name);
    return calls ? take(m, name, at, (uint64_t)cols, r->err) : 0;
}

static int parse_old(const uint8_t *bytes, size_t length, struct imatrix *m, struct helm_err *err)
{
    struct rest r = {bytes, length, err};
    int32_t count;
    int rc = next_number(&r, "the number of entries (no GGUF file: of the older kind)", 1,
                         IMATRIX_ENTRIES_MAX, &count);
    if (!rc) rc = make_room(m, (uint64_t)count, err);
    for (int32_t i = 0; i < count && !rc; i++) rc = take_entry(&r, m);
    return rc;
}

/* ---- the whole ---- */

int imatrix_parse(const char *what, const uint8_t *bytes, size_t length, struct imatrix *m,
                  struct helm_err *err)
{
    struct helm_err detail = {0};
    memset(m, 0, sizeof *m);
    int rc = length >= 4 && memcmp(bytes, "GGUF", 4) == 0 ? parse_gguf(bytes, length, m, &detail)
                                                          : parse_old(bytes, length, m, &detail);
    if (!rc && !m->count) rc = helm_fail(&detail, HELM_E_FORMAT, "no matrix was measured");
    if (!rc) return 0;
    helm_err_prefix(&detail, "%s", what);
    if (err) *err = detail;
    imatrix_free(m);
    return rc;
}

int imatrix_read(const char *path, struct imatrix *m, struct helm_err *err)
{
    char *bytes = NULL;
    size_t length = 0;
    memset(m, 0, sizeof *m);
    int rc = file_read(path, IMATRIX_BYTES_MAX, &bytes, &length, err);
    if (!rc) rc = imatrix_parse(path, (const uint8_t *)bytes, length, m, err);
    free(bytes);
    return rc;
}

int imatrix_find(const struct imatrix *m, const char *name, uint64_t cols, const float **importance,
                 struct helm_err *err)
{
    *importance = NULL;
    for (uint32_t i = 0; i < m->count; i++) {
        if (strcmp(m->entries[i].name, name) != 0) continue;
        if (m->entries[i].cols != cols)
            return helm_fail(err, HELM_E_MISMATCH, "'%s' has %llu columns, the imatrix %u: of another model",
                             name, (unsigned long long)cols, m->entries[i].cols);
        *importance = m->entries[i].importance;
    }
    return 0;
}
