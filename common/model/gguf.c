/* Parsing and checking of GGUF headers. See gguf.h. Never reads a tensor's bytes. */
#include "common/model/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/units.h"

#define GGUF_FIRST_READ (4u << 20)

static const struct {
    const char *name;
    uint32_t bytes; /* 0: it varies */
} types[GGUF_TYPES] = {[GGUF_U8] = {"u8", 1},   [GGUF_I8] = {"i8", 1},       [GGUF_U16] = {"u16", 2},
                       [GGUF_I16] = {"i16", 2}, [GGUF_U32] = {"u32", 4},     [GGUF_I32] = {"i32", 4},
                       [GGUF_F32] = {"f32", 4}, [GGUF_BOOL] = {"bool", 1},   [GGUF_STRING] = {"string", 0},
                       [GGUF_U64] = {"u64", 8}, [GGUF_ARRAY] = {"array", 0}, [GGUF_I64] = {"i64", 8},
                       [GGUF_F64] = {"f64", 8}};

/* Types of tensors by their numbers in files. */
static const char *const tensor_types[] = {
    [0] = "F32",     [1] = "F16",    [2] = "Q4_0",     [3] = "Q4_1",    [6] = "Q5_0",     [7] = "Q5_1",
    [8] = "Q8_0",    [9] = "Q8_1",   [10] = "Q2_K",    [11] = "Q3_K",   [12] = "Q4_K",    [13] = "Q5_K",
    [14] = "Q6_K",   [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S",
    [20] = "IQ4_NL", [21] = "IQ3_S", [22] = "IQ2_S",   [23] = "IQ4_XS", [24] = "I8",      [25] = "I16",
    [26] = "I32",    [27] = "I64",   [28] = "F64",     [29] = "IQ1_M",  [30] = "BF16",    [34] = "TQ1_0",
    [35] = "TQ2_0",  [39] = "MXFP4", [40] = "NVFP4",   [41] = "Q1_0"};
#define TENSOR_TYPES (sizeof tensor_types / sizeof *tensor_types)

/* Where the parser is. */
struct cursor {
    const uint8_t *at;
    uint64_t left;  /* bytes that are there */
    uint64_t after; /* bytes that the file has after those */
    uint64_t all;   /* bytes of the file */
    bool more;      /* some of them were needed */
    struct helm_err *err;
};

const char *gguf_type_name(enum gguf_type type)
{
    return (unsigned)type < GGUF_TYPES ? types[type].name : "unknown";
}

uint32_t gguf_type_bytes(enum gguf_type type)
{
    return types[type].bytes;
}

uint32_t gguf_tensor_type(enum tensor_format format)
{
    uint32_t number = 0;
    while (number < TENSOR_TYPES &&
           !(tensor_types[number] && tensor_format_of_file(tensor_types[number]) == format))
        number++;
    return number < TENSOR_TYPES ? number : UINT32_MAX;
}

static uint64_t load(const uint8_t *at, uint32_t bytes)
{
    uint64_t value = 0;
    for (uint32_t i = bytes; i-- > 0;) value = value << 8 | at[i];
    return value;
}

/* `count` things of `each` bytes; NULL: the file has no such many. */
static const uint8_t *take(struct cursor *c, uint64_t count, uint64_t each, const char *what)
{
    uint64_t bytes, end;
    const uint64_t left = c->left + c->after;
    if (units_mul(count, each, &bytes) || units_add(c->all - left, bytes, &end)) {
        helm_fail(c->err, HELM_E_FORMAT, "%s: %llu times %llu bytes, but the file ends after %llu", what,
                  (unsigned long long)count, (unsigned long long)each, (unsigned long long)left);
        return NULL;
    }
    if (bytes > left) {
        file_cut_short(what, c->all, end, true, c->err);
        return NULL;
    }
    if (bytes > c->left) {
        c->more = true;
        helm_fail(c->err, HELM_E_LIMIT, "the header has more than %u bytes", GGUF_HEADER_MAX);
        return NULL;
    }
    const uint8_t *at = c->at;
    c->at += bytes;
    c->left -= bytes;
    return at;
}

static int take_number(struct cursor *c, uint32_t bytes, const char *what, uint64_t *number)
{
    const uint8_t *at = take(c, 1, bytes, what);
    if (!at) return c->err->code;
    *number = load(at, bytes);
    return 0;
}

/* The name of a key or a tensor. Names appear in messages and on terminals: printable ASCII without blanks
 * only. */
static int take_name(struct cursor *c, const char *what, char *name, size_t size)
{
    uint64_t length = 0;
    int rc = take_number(c, 8, what, &length);
    if (rc) return rc;
    if (length == 0 || length >= size)
        return helm_fail(c->err, HELM_E_LIMIT, "%s: %llu bytes, not between 1 and %zu", what,
                         (unsigned long long)length, size - 1);
    const uint8_t *at = take(c, length, 1, what);
    if (!at) return c->err->code;
    for (uint64_t i = 0; i < length; i++)
        if (at[i] <= 0x20 || at[i] >= 0x7f)
            return helm_fail(c->err, HELM_E_FORMAT, "%s: it has the byte 0x%02x at %llu", what, at[i],
                             (unsigned long long)i);
    memcpy(name, at, length);
    name[length] = '\0';
    return 0;
}

static int take_type(struct cursor *c, const char *what, enum gguf_type *type)
{
    uint64_t number = 0;
    int rc = take_number(c, 4, what, &number);
    if (rc) return rc;
    if (number >= GGUF_TYPES)
        return helm_fail(c->err, HELM_E_FORMAT, "%s: type %llu is none of 0 to %d", what,
                         (unsigned long long)number, GGUF_TYPES - 1);
    *type = (enum gguf_type)number;
    return 0;
}

static int take_strings(struct cursor *c, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t length = 0;
        int rc = take_number(c, 8, "a string's length", &length);
        if (rc) return rc;
        if (!take(c, length, 1, "a string")) return c->err->code;
    }
    return 0;
}

static int take_elements(struct cursor *c, struct gguf_value *value)
{
    value->data = c->at;
    if (value->type == GGUF_STRING) return take_strings(c, value->count);
    if (!take(c, value->count, types[value->type].bytes, "its value")) return c->err->code;
    for (uint64_t i = 0; value->type == GGUF_BOOL && i < value->count; i++)
        if (value->data[i] > 1)
            return helm_fail(c->err, HELM_E_FORMAT, "a bool is %u, neither 0 nor 1", value->data[i]);
    return 0;
}

static int take_value(struct cursor *c, struct gguf_value *value)
{
    int rc = take_name(c, "a key", value->key, sizeof value->key);
    if (rc) return rc;
    value->count = 1;
    rc = take_type(c, "its value", &value->type);
    value->array = !rc && value->type == GGUF_ARRAY;
    if (value->array) {
        rc = take_type(c, "an array's elements", &value->type);
        if (!rc && value->type == GGUF_ARRAY)
            rc = helm_fail(c->err, HELM_E_UNSUPPORTED, "an array of arrays");
        if (!rc) rc = take_number(c, 8, "an array's length", &value->count);
    }
    if (!rc) rc = take_elements(c, value);
    if (rc) helm_err_prefix(c->err, "key '%s'", value->key);
    return rc;
}

/* FORMAT_COUNT: of a type that is not supported, whose number is then `bytes`. */
static int take_tensor_type(struct cursor *c, struct safetensors_entry *entry)
{
    uint64_t number = 0;
    int rc = take_number(c, 4, "its type", &number);
    if (rc) return rc;
    entry->dtype_text = number < TENSOR_TYPES && tensor_types[number] ? tensor_types[number] : "unknown";
    entry->format = tensor_format_of_file(entry->dtype_text);
    entry->bytes = number;
    return 0;
}

#define TYPES_NAMED 3 /* tensors of a message, and of the others their count */

/* Fails where tensors have types that are not supported. */
static int check_types(struct cursor *c, const struct gguf *header)
{
    char known[256] = "", named[TYPES_NAMED * (GGUF_NAME_MAX + 32) + 32] = "";
    size_t used = 0;
    uint32_t count = 0;
    const struct safetensors_entry *first = NULL;
    for (uint32_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (entry->format != FORMAT_COUNT) continue;
        if (!first) first = entry;
        if (count++ < TYPES_NAMED)
            used += (size_t)snprintf(named + used, sizeof named - used, "%s'%s' %s (%llu)", used ? ", " : "",
                                     entry->name, entry->dtype_text, (unsigned long long)entry->bytes);
    }
    if (count == 0) return 0;
    if (count > TYPES_NAMED) snprintf(named + used, sizeof named - used, " and %u more", count - TYPES_NAMED);
    used = 0;
    for (size_t i = 0; i < TENSOR_TYPES; i++)
        if (tensor_types[i] && tensor_format_of_file(tensor_types[i]) != FORMAT_COUNT && used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "",
                                     tensor_types[i]);
    if (count == 1)
        return helm_fail(c->err, HELM_E_UNSUPPORTED,
                         "tensor '%s': type %s (%llu) is not supported (supported: %s)", first->name,
                         first->dtype_text, (unsigned long long)first->bytes, known);
    return helm_fail(c->err, HELM_E_UNSUPPORTED,
                     "%u tensors have types that are not supported: %s (supported: %s)", count, named, known);
}

/* Files name the dimension along a row first, checkpoints last. */
static int take_shape(struct cursor *c, struct safetensors_entry *entry)
{
    uint64_t rank = 0;
    int rc = take_number(c, 4, "its shape", &rank);
    if (rc) return rc;
    if (rank == 0 || rank > GGUF_RANK_MAX)
        return helm_fail(c->err, HELM_E_LIMIT, "%llu dimensions, not between 1 and %d",
                         (unsigned long long)rank, GGUF_RANK_MAX);
    entry->rank = (uint32_t)rank;
    for (uint32_t i = 0; i < rank && !rc; i++) {
        uint64_t *dimension = &entry->shape[rank - 1 - i];
        rc = take_number(c, 8, "its shape", dimension);
        if (!rc && (*dimension == 0 || *dimension > INT64_MAX))
            rc = helm_fail(c->err, HELM_E_FORMAT, "dimension %u is %lld", i, (long long)*dimension);
    }
    return rc;
}

static int measure(struct cursor *c, struct safetensors_entry *entry)
{
    const struct tensor_format_traits *traits = tensor_format_of(entry->format);
    const uint64_t row = entry->shape[entry->rank - 1];
    const uint32_t values = traits->file_values ? traits->file_values : traits->block_values,
                   bytes = traits->file_values ? traits->file_bytes : traits->block_bytes;
    if (row % values)
        return helm_fail(c->err, HELM_E_FORMAT, "rows of %llu values are no whole blocks of %u, as %s needs",
                         (unsigned long long)row, values, entry->dtype_text);
    bool over = units_mul(row / values, bytes, &entry->bytes) != 0;
    for (uint32_t i = 0; i + 1 < entry->rank && !over; i++)
        over = units_mul(entry->bytes, entry->shape[i], &entry->bytes) != 0;
    if (over) return helm_fail(c->err, HELM_E_LIMIT, "the product of its dimensions overflows 64 bits");
    return 0;
}

static int take_tensor(struct cursor *c, char name[GGUF_NAME_MAX], struct safetensors_entry *entry)
{
    int rc = take_name(c, "a tensor's name", name, GGUF_NAME_MAX);
    if (rc) return rc;
    entry->name = name;
    rc = take_shape(c, entry);
    if (!rc) rc = take_tensor_type(c, entry);
    if (!rc && entry->format != FORMAT_COUNT) rc = measure(c, entry);
    if (!rc) rc = take_number(c, 8, "its offset", &entry->begin);
    if (rc) helm_err_prefix(c->err, "tensor '%s'", name);
    return rc;
}

static int compare_values(const void *left, const void *right)
{
    return strcmp(((const struct gguf_value *)left)->key, ((const struct gguf_value *)right)->key);
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const struct safetensors_entry *)left)->name,
                  ((const struct safetensors_entry *)right)->name);
}

static int compare_places(const void *left, const void *right)
{
    const struct safetensors_entry *a = left, *b = right;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

/* The tensors tile the data: each begins where the one before it ended, padded. */
static int check_tiling(const struct gguf *header, uint64_t file_bytes, uint64_t data_bytes,
                        struct helm_err *err)
{
    uint64_t at = 0, end = 0;
    const char *before = "the header";
    for (uint32_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (entry->begin != at)
            return helm_fail(err, HELM_E_FORMAT,
                             "tensor '%s' begins at %llu of the data, not at %llu, after %s and its padding",
                             entry->name, (unsigned long long)entry->begin, (unsigned long long)at, before);
        if (units_add(at, entry->bytes, &end) || units_add(end, header->alignment - 1, &at))
            return helm_fail(err, HELM_E_LIMIT, "tensor '%s' ends at %llu", entry->name,
                             (unsigned long long)end);
        at = at / header->alignment * header->alignment;
        before = entry->name;
    }
    if (end > data_bytes)
        return file_cut_short("the file is cut short", file_bytes, header->data_offset + end, false, err);
    if (data_bytes != SAFETENSORS_BYTES_UNKNOWN && data_bytes > at)
        return helm_fail(err, HELM_E_FORMAT, "%llu bytes follow the last tensor",
                         (unsigned long long)(data_bytes - at));
    return 0;
}

static int take_values(struct cursor *c, struct gguf *header, uint64_t count)
{
    if (count > GGUF_KEYS_MAX)
        return helm_fail(c->err, HELM_E_LIMIT, "%llu key/values, the limit is %d", (unsigned long long)count,
                         GGUF_KEYS_MAX);
    header->values = calloc(count + 1, sizeof *header->values);
    if (!header->values)
        return helm_fail(c->err, HELM_E_NOMEM, "no memory for %llu key/values", (unsigned long long)count);
    while (header->value_count < count) {
        int rc = take_value(c, &header->values[header->value_count]);
        if (rc) return rc;
        header->value_count++;
    }
    qsort(header->values, header->value_count, sizeof *header->values, compare_values);
    for (uint32_t i = 1; i < header->value_count; i++)
        if (compare_values(&header->values[i - 1], &header->values[i]) == 0)
            return helm_fail(c->err, HELM_E_FORMAT, "key '%s' is there twice", header->values[i].key);
    header->alignment = GGUF_ALIGNMENT;
    int rc =
        gguf_get_u64(header, "general.alignment", false, 1, GGUF_ALIGNMENT_MAX, &header->alignment, c->err);
    if (!rc && (header->alignment & (header->alignment - 1)))
        rc = helm_fail(c->err, HELM_E_FORMAT, "'general.alignment' is %llu, no power of two",
                       (unsigned long long)header->alignment);
    return rc;
}

static int take_tensors(struct cursor *c, struct gguf *header, uint64_t count)
{
    if (count > MODEL_TENSORS_MAX)
        return helm_fail(c->err, HELM_E_LIMIT, "%llu tensors, the limit is %u", (unsigned long long)count,
                         MODEL_TENSORS_MAX);
    header->entries = calloc(count + 1, sizeof *header->entries);
    header->names = calloc(count + 1, sizeof *header->names);
    if (!header->entries || !header->names)
        return helm_fail(c->err, HELM_E_NOMEM, "no memory for %llu tensors", (unsigned long long)count);
    for (; header->count < count; header->count++) {
        int rc = take_tensor(c, header->names[header->count], &header->entries[header->count]);
        if (rc) return rc;
    }
    int rc = check_types(c, header);
    if (rc) return rc;
    qsort(header->entries, header->count, sizeof *header->entries, compare_names);
    for (uint32_t i = 1; i < header->count; i++)
        if (compare_names(&header->entries[i - 1], &header->entries[i]) == 0)
            return helm_fail(c->err, HELM_E_FORMAT, "tensor '%s' is there twice", header->entries[i].name);
    qsort(header->entries, header->count, sizeof *header->entries, compare_places);
    return 0;
}

static int take_all(struct cursor *c, const struct gguf_source *source, struct gguf *header)
{
    uint64_t version = 0, tensors = 0, values = 0;
    const uint8_t *magic = take(c, 4, 1, "the first word");
    if (!magic) return c->err->code;
    if (memcmp(magic, "GGUF", 4) != 0) return helm_fail(c->err, HELM_E_FORMAT, "no GGUF file");
    int rc = take_number(c, 4, "the version", &version);
    if (!rc && version != 2 && version != 3)
        rc = helm_fail(c->err, HELM_E_UNSUPPORTED,
                       "GGUF version %llu is not supported (supported: 2 and 3, little-endian)",
                       (unsigned long long)version);
    if (!rc) rc = take_number(c, 8, "the number of tensors", &tensors);
    if (!rc) rc = take_number(c, 8, "the number of key/values", &values);
    if (!rc) rc = take_values(c, header, values);
    if (!rc) rc = take_tensors(c, header, tensors);
    if (rc) return rc;
    const uint64_t end = source->length - c->left, file_bytes = source->file_bytes;
    header->data_offset = round_up(end, header->alignment);
    uint64_t data_bytes = file_bytes > header->data_offset ? file_bytes - header->data_offset : 0;
    return check_tiling(header, file_bytes, source->headers ? SAFETENSORS_BYTES_UNKNOWN : data_bytes, c->err);
}

int gguf_parse(const struct gguf_source *source, struct gguf *header, bool *more, struct helm_err *err)
{
    struct helm_err detail = {0};
    struct cursor c = {.at = source->bytes,
                       .left = source->length,
                       .after = source->file_bytes - source->length,
                       .all = source->file_bytes,
                       .err = &detail};
    memset(header, 0, sizeof *header);
    int rc = take_all(&c, source, header);
    *more = c.more;
    if (!rc) return 0;
    helm_err_prefix(&detail, "%s", source->what);
    if (err) *err = detail;
    gguf_free(header);
    return rc;
}

/* The header says nowhere how long it is, so more and more is read. */
int gguf_read(int fd, uint64_t bytes, const char *what, bool headers, struct gguf *header,
              struct helm_err *err)
{
    memset(header, 0, sizeof *header);
    for (uint64_t length = GGUF_FIRST_READ;; length *= 4) {
        if (length > bytes) length = bytes;
        uint8_t *text = malloc((size_t)length + 1);
        if (!text)
            return helm_fail(err, HELM_E_NOMEM, "%s: no memory for a header of %llu bytes", what,
                             (unsigned long long)length);
        const struct gguf_source source = {what, text, length, bytes, headers};
        bool more = false;
        int rc = file_pread_all(fd, text, (size_t)length, 0, what, err);
        if (!rc) rc = gguf_parse(&source, header, &more, err);
        header->bytes = rc ? NULL : text;
        if (!rc) return 0;
        free(text);
        if (!more || length >= GGUF_HEADER_MAX) return rc;
    }
}

void gguf_free(struct gguf *header)
{
    free(header->values);
    free(header->entries);
    free(header->names);
    free(header->bytes);
    memset(header, 0, sizeof *header);
}

const struct safetensors_entry *gguf_find_tensor(const struct gguf *header, const char *name)
{
    for (uint32_t i = 0; i < header->count; i++)
        if (strcmp(header->entries[i].name, name) == 0) return &header->entries[i];
    return NULL;
}
