/* Values of a GGUF file's keys: numbers and strings by key, with errors that name the key. See gguf.h. */
#include <stdlib.h>
#include <string.h>

#include "common/model/gguf.h"

static int compare_key(const void *key, const void *value)
{
    return strcmp(key, ((const struct gguf_value *)value)->key);
}

const struct gguf_value *gguf_find(const struct gguf *header, const char *key)
{
    if (!header->value_count) return NULL;
    return bsearch(key, header->values, header->value_count, sizeof *header->values, compare_key);
}

/* The key's value; NULL and 0 in *rc: it is absent, as it may be. */
static const struct gguf_value *find(const struct gguf *header, const char *key, bool required, int *rc,
                                     struct helm_err *err)
{
    const struct gguf_value *value = gguf_find(header, key);
    *rc = value || !required ? 0 : helm_fail(err, HELM_E_NOT_FOUND, "key '%s' is missing", key);
    return value;
}

static bool is_whole(enum gguf_type type)
{
    return type != GGUF_F32 && type != GGUF_F64 && type != GGUF_BOOL && type != GGUF_STRING;
}

uint64_t gguf_whole(const struct gguf_value *value, uint64_t index, bool *negative)
{
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64 = 0;
    const bool sign = value->type == GGUF_I8 || value->type == GGUF_I16 || value->type == GGUF_I32 ||
                      value->type == GGUF_I64;
    switch (value->type) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL:
        memcpy(&u8, value->data + index, 1);
        u64 = sign ? (uint64_t)(int8_t)u8 : u8;
        break;
    case GGUF_U16:
    case GGUF_I16:
        memcpy(&u16, value->data + index * 2, 2);
        u64 = sign ? (uint64_t)(int16_t)u16 : u16;
        break;
    case GGUF_U32:
    case GGUF_I32:
        memcpy(&u32, value->data + index * 4, 4);
        u64 = sign ? (uint64_t)(int32_t)u32 : u32;
        break;
    case GGUF_U64:
    case GGUF_I64:
        memcpy(&u64, value->data + index * 8, 8);
        break;
    case GGUF_F32:
    case GGUF_F64:
    case GGUF_STRING:
    case GGUF_ARRAY:
    case GGUF_TYPES:
        break;
    }
    *negative = sign && u64 > INT64_MAX;
    return u64;
}

double gguf_number(const struct gguf_value *value, uint64_t index)
{
    float f;
    double d;
    bool negative;
    if (value->type == GGUF_F32) {
        memcpy(&f, value->data + index * 4, 4);
        return (double)f;
    }
    if (value->type == GGUF_F64) {
        memcpy(&d, value->data + index * 8, 8);
        return d;
    }
    const uint64_t whole = gguf_whole(value, index, &negative);
    return negative ? (double)(int64_t)whole : (double)whole;
}

const char *gguf_string(const uint8_t **at, uint64_t *length)
{
    memcpy(length, *at, 8);
    const char *text = (const char *)*at + 8;
    *at += 8 + *length;
    return text;
}

static int wrong_type(const struct gguf_value *value, const char *wanted, struct helm_err *err)
{
    return helm_fail(err, HELM_E_FORMAT, "key '%s' is %s%s, not %s", value->key,
                     value->array ? "an array of " : "", gguf_type_name(value->type), wanted);
}

int gguf_get_u64(const struct gguf *header, const char *key, bool required, uint64_t min, uint64_t max,
                 uint64_t *out, struct helm_err *err)
{
    int rc;
    const struct gguf_value *value = find(header, key, required, &rc, err);
    bool negative;
    if (!value) return rc;
    if (!is_whole(value->type) || value->count == 0) return wrong_type(value, "a whole number", err);
    const uint64_t number = gguf_whole(value, 0, &negative);
    for (uint64_t i = 1; i < value->count; i++)
        if (gguf_whole(value, i, &negative) != number)
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "key '%s' differs from layer to layer (at %llu), which is not supported", key,
                             (unsigned long long)i);
    if (negative || number < min || number > max)
        return helm_fail(err, HELM_E_LIMIT, "key '%s' is %s%llu, not between %llu and %llu", key,
                         negative ? "-" : "", (unsigned long long)(negative ? -number : number),
                         (unsigned long long)min, (unsigned long long)max);
    *out = number;
    return 0;
}

int gguf_get_double(const struct gguf *header, const char *key, bool required, double min, double max,
                    double *out, struct helm_err *err)
{
    int rc;
    const struct gguf_value *value = find(header, key, required, &rc, err);
    if (!value) return rc;
    if (value->array || value->type == GGUF_STRING || value->type == GGUF_BOOL)
        return wrong_type(value, "a number", err);
    const double number = gguf_number(value, 0);
    if (!(number >= min && number <= max))
        return helm_fail(err, HELM_E_LIMIT, "key '%s' is %g, not between %g and %g", key, number, min, max);
    *out = number;
    return 0;
}

int gguf_get_bool(const struct gguf *header, const char *key, bool required, bool *out, struct helm_err *err)
{
    int rc;
    const struct gguf_value *value = find(header, key, required, &rc, err);
    if (!value) return rc;
    if (value->array || value->type != GGUF_BOOL) return wrong_type(value, "true or false", err);
    *out = *(const uint8_t *)value->data != 0;
    return 0;
}

int gguf_get_string(const struct gguf *header, const char *key, bool required, char *text, size_t size,
                    struct helm_err *err)
{
    int rc;
    const struct gguf_value *value = find(header, key, required, &rc, err);
    if (!value) return rc;
    if (value->array || value->type != GGUF_STRING) return wrong_type(value, "a string", err);
    const uint8_t *at = value->data;
    uint64_t length;
    const char *found = gguf_string(&at, &length);
    if (length >= size)
        return helm_fail(err, HELM_E_LIMIT, "key '%s': a string of %llu bytes, the limit is %zu", key,
                         (unsigned long long)length, size - 1);
    if (memchr(found, 0, length)) return helm_fail(err, HELM_E_FORMAT, "key '%s': a NUL in its string", key);
    memcpy(text, found, length);
    text[length] = '\0';
    return 0;
}
