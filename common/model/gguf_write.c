/* Writing GGUF files. See gguf_write.h. */
#include "common/model/gguf_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/units.h"

/* ---- values ---- */

void gguf_values_free(struct gguf_values *v)
{
    free(v->bytes);
    memset(v, 0, sizeof *v);
}

void gguf_put_element(struct gguf_values *v, const void *bytes, size_t length)
{
    if (v->failed) return;
    if (length > v->capacity - v->length) {
        const size_t capacity = 2 * (v->length + length) + 4096;
        uint8_t *more = realloc(v->bytes, capacity);
        v->failed = !more;
        if (!more) return;
        v->bytes = more;
        v->capacity = capacity;
    }
    if (length) memcpy(v->bytes + v->length, bytes, length); /* an empty text has no bytes */
    v->length += length;
}

static void put_u32(struct gguf_values *v, uint32_t number)
{
    gguf_put_element(v, &number, sizeof number);
}

static void put_u64(struct gguf_values *v, uint64_t number)
{
    gguf_put_element(v, &number, sizeof number);
}

void gguf_put_string_element(struct gguf_values *v, const char *text, size_t length)
{
    put_u64(v, length);
    gguf_put_element(v, text, length);
}

static void put_key(struct gguf_values *v, const char *key, enum gguf_type type)
{
    gguf_put_string_element(v, key, strlen(key));
    put_u32(v, type);
    v->count++;
}

void gguf_put_string(struct gguf_values *v, const char *key, const char *text, size_t length)
{
    put_key(v, key, GGUF_STRING);
    gguf_put_string_element(v, text, length);
}

void gguf_put_text(struct gguf_values *v, const char *key, const char *text)
{
    gguf_put_string(v, key, text, strlen(text));
}

void gguf_put_u32(struct gguf_values *v, const char *key, uint32_t number)
{
    put_key(v, key, GGUF_U32);
    put_u32(v, number);
}

void gguf_put_f32(struct gguf_values *v, const char *key, float number)
{
    put_key(v, key, GGUF_F32);
    gguf_put_element(v, &number, sizeof number);
}

void gguf_put_bool(struct gguf_values *v, const char *key, bool flag)
{
    const uint8_t byte = flag;
    put_key(v, key, GGUF_BOOL);
    gguf_put_element(v, &byte, 1);
}

void gguf_put_array(struct gguf_values *v, const char *key, enum gguf_type type, uint64_t count)
{
    put_key(v, key, GGUF_ARRAY);
    put_u32(v, type);
    put_u64(v, count);
}

void gguf_put_values(struct gguf_values *values, const struct gguf_values *from)
{
    gguf_put_element(values, from->bytes, from->length);
    values->count += from->count;
    values->failed |= from->failed;
}

void gguf_put_value(struct gguf_values *v, const struct gguf_value *value)
{
    const uint8_t *at = value->data;
    uint64_t length;
    if (value->array)
        gguf_put_array(v, value->key, value->type, value->count);
    else
        put_key(v, value->key, value->type);
    if (value->type != GGUF_STRING) {
        gguf_put_element(v, at, value->count * gguf_type_bytes(value->type));
        return;
    }
    for (uint64_t i = 0; i < value->count; i++) {
        const char *text = gguf_string(&at, &length);
        gguf_put_string_element(v, text, length);
    }
}

/* ---- the file ---- */

static int describe(struct gguf_values *v, struct gguf_output_tensor *t, uint64_t *at, struct helm_err *err)
{
    const struct tensor_format_traits *traits = tensor_format_of(t->format);
    const uint32_t type = gguf_tensor_type(t->format);
    if (type == UINT32_MAX)
        return helm_fail(err, HELM_E_UNSUPPORTED, "tensor '%s': GGUF has no %s", t->name, traits->name);
    if (!tensor_format_takes(t->format, t->rows, t->cols))
        return helm_fail(err, HELM_E_UNSUPPORTED, "tensor '%s': rows of %llu values cannot be %s", t->name,
                         (unsigned long long)t->cols, traits->name);
    t->bytes = tensor_format_bytes(t->format, t->rows, t->cols);
    t->offset = *at;
    gguf_put_string_element(v, t->name, strlen(t->name));
    put_u32(v, t->vector ? 1 : t->experts ? 3 : 2);
    put_u64(v, t->cols);
    if (!t->vector) put_u64(v, t->experts ? t->rows / t->experts : t->rows);
    if (t->experts) put_u64(v, t->experts);
    put_u32(v, type);
    put_u64(v, t->offset);
    if (units_add(*at, t->bytes, at) || units_add(*at, GGUF_ALIGNMENT - 1, at))
        return helm_fail(err, HELM_E_LIMIT, "tensor '%s' ends after 2^64 bytes", t->name);
    *at = *at / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
    return 0;
}

/* A file of another name in the same folder, that only its owner may read until it is whole. */
static int create(const char *path, struct gguf_output *o, struct helm_err *err)
{
    *o = (struct gguf_output){.fd = -1, .path = strdup(path)};
    if (!o->path || asprintf(&o->temporary, "%s.XXXXXX", path) < 0) {
        o->temporary = NULL;
        return helm_fail(err, HELM_E_NOMEM, "no memory for a path");
    }
    o->fd = mkostemp(o->temporary, O_CLOEXEC);
    if (o->fd >= 0) return 0;
    int rc = helm_fail_errno(err, "%s", o->temporary);
    free(o->temporary);
    o->temporary = NULL;
    return rc;
}

int gguf_output_open(const char *path, const struct gguf_values *values, struct gguf_output_tensor *tensors,
                     uint32_t count, struct gguf_output *o, struct helm_err *err)
{
    struct gguf_values header = {0};
    uint64_t data = 0;
    int rc = create(path, o, err);
    gguf_put_element(&header, "GGUF", 4);
    put_u32(&header, 3);
    put_u64(&header, count);
    put_u64(&header, values->count);
    gguf_put_element(&header, values->bytes, values->length);
    for (uint32_t i = 0; i < count && !rc; i++) rc = describe(&header, &tensors[i], &data, err);
    if (!rc && (header.failed || values->failed))
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for the header of %s", path);
    if (!rc && header.length > GGUF_HEADER_MAX)
        rc = helm_fail(err, HELM_E_LIMIT, "%s: a header of %zu bytes, the limit is %u", path, header.length,
                       GGUF_HEADER_MAX);
    const uint64_t begin = round_up(header.length, GGUF_ALIGNMENT);
    for (uint32_t i = 0; i < count; i++) tensors[i].offset += begin;
    o->bytes = begin + data;
    if (!rc && !file_pwrite_all(o->fd, header.bytes, header.length, 0)) rc = helm_fail_errno(err, "%s", path);
    if (!rc && (errno = posix_fallocate(o->fd, 0, (off_t)o->bytes))) {
        char size[UNITS_TEXT];
        rc = helm_fail_errno(err, "%s: room for %s", path, units_format_size(o->bytes, size));
    }
    gguf_values_free(&header);
    if (rc) gguf_output_abandon(o);
    return rc;
}

int gguf_output_write(const struct gguf_output *o, const struct gguf_output_tensor *t, uint64_t from,
                      const void *bytes, uint64_t length, struct helm_err *err)
{
    if (from > t->bytes || length > t->bytes - from)
        return helm_fail(err, HELM_E_INTERNAL, "tensor '%s': %llu bytes from %llu on, it has %llu", t->name,
                         (unsigned long long)length, (unsigned long long)from, (unsigned long long)t->bytes);
    if (!file_pwrite_all(o->fd, bytes, length, t->offset + from)) return helm_fail_errno(err, "%s", o->path);
    return 0;
}

int gguf_output_finish(struct gguf_output *o, struct helm_err *err)
{
    const mode_t mask = umask(0);
    umask(mask);
    int rc = fchmod(o->fd, 0666 & ~mask) || fsync(o->fd) ? helm_fail_errno(err, "%s", o->path) : 0;
    if (close(o->fd) && !rc) rc = helm_fail_errno(err, "%s", o->path);
    o->fd = -1;
    if (!rc && rename(o->temporary, o->path)) rc = helm_fail_errno(err, "%s", o->path);
    if (!rc) { /* it is no longer there to be removed */
        free(o->temporary);
        o->temporary = NULL;
    }
    gguf_output_abandon(o);
    return rc;
}

void gguf_output_abandon(struct gguf_output *o)
{
    if (o->temporary) {
        unlink(o->temporary);
        if (o->fd >= 0) close(o->fd);
    } else if (o->path && o->fd >= 0) {
        close(o->fd);
    }
    free(o->path);
    free(o->temporary);
    *o = (struct gguf_output){.fd = -1};
}
