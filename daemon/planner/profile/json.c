/* Profiles as JSON, of a machine with one GPU or none. See profile.h. Called by gpus.c, for all readers and
 * writers of profiles; one list of members serves both ways. */
#include <ctype.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "daemon/planner/profile/gpus.h"

#define RATE_MAX  1e18  /* bytes or operations a second */
#define TIME_MAX  60.0  /* seconds that anything small takes */
#define X_MAX     65536 /* threads, tokens */
#define BYTES_MAX ((uint64_t)1 << 53)
#define COUNT_MAX 65536

enum kind { KIND_RATE, KIND_TIME, KIND_TABLE, KIND_TEXT, KIND_U32, KIND_U64, KIND_BOOL, KIND_DEVICE };
struct member {
    const char *name;
    enum kind kind;
    bool required;
    size_t at, size; /* in the struct; size of a text */
};
#define MEMBER(type, field, kind, required)                                                                  \
    {                                                                                                        \
#field, kind, required, offsetof(struct type, field), sizeof((struct type *)0)->field                \
    }

static const struct member top_member[] = {
    MEMBER(profile, fingerprint, KIND_TEXT, false), MEMBER(profile, machine, KIND_TEXT, true),
    MEMBER(profile, made, KIND_TEXT, false),        MEMBER(profile, quick, KIND_BOOL, false),
    MEMBER(profile, brief, KIND_BOOL, false),       MEMBER(profile, step, KIND_TIME, false),
    MEMBER(profile, host_bytes, KIND_U64, false),   MEMBER(profile, wake, KIND_TIME, false),
    MEMBER(profile, busy_percent, KIND_U32, false), MEMBER(profile, disk_read, KIND_RATE, false),
};
static const struct member cpu_member[] = {
    MEMBER(profile_cpu, name, KIND_TEXT, true),
    MEMBER(profile_cpu, threads, KIND_U32, true),
    MEMBER(profile_cpu, l3_bytes, KIND_U64, false),
    MEMBER(profile_cpu, weight_bytes, KIND_U64, false),
    MEMBER(profile_cpu, read, KIND_TABLE, false),
    MEMBER(profile_cpu, gemv, KIND_RATE, false),
    MEMBER(profile_cpu, gemv_beside, KIND_RATE, false),
    MEMBER(profile_cpu, read_beside, KIND_RATE, false),
    MEMBER(profile_cpu, linear, KIND_TABLE, false),
    MEMBER(profile_cpu, attention, KIND_RATE, false),
    MEMBER(profile_cpu, attention_flops, KIND_RATE, false),
    MEMBER(profile_cpu, attention_host, KIND_RATE, false),
    MEMBER(profile_cpu, operation, KIND_TIME, false),
    MEMBER(profile_cpu, gemv_packed, KIND_RATE, false),
    MEMBER(profile_cpu, gemv_packed_beside, KIND_RATE, false),
};
static const struct member gpu_member[] = {
    MEMBER(profile_gpu, device, KIND_DEVICE, true),
    MEMBER(profile_gpu, name, KIND_TEXT, true),
    MEMBER(profile_gpu, uuid, KIND_TEXT, false),
    MEMBER(profile_gpu, compute, KIND_TEXT, false),
    MEMBER(profile_gpu, vram_bytes, KIND_U64, true),
    MEMBER(profile_gpu, vram_free, KIND_U64, true),
    MEMBER(profile_gpu, context_bytes, KIND_U64, false),
    MEMBER(profile_gpu, read, KIND_RATE, false),
    MEMBER(profile_gpu, gemv, KIND_RATE, false),
    MEMBER(profile_gpu, linear, KIND_TABLE, false),
    MEMBER(profile_gpu, linear_operation, KIND_TABLE, false),
    MEMBER(profile_gpu, attention, KIND_RATE, false),
    MEMBER(profile_gpu, attention_flops, KIND_RATE, false),
    MEMBER(profile_gpu, attention_rows, KIND_TABLE, false),
    MEMBER(profile_gpu, expand, KIND_RATE, false),
    MEMBER(profile_gpu, gemv_packed, KIND_RATE, false),
    MEMBER(profile_gpu, operation, KIND_TIME, false),
    MEMBER(profile_gpu, launch, KIND_TIME, false),
    MEMBER(profile_gpu, begin, KIND_TIME, false),
    MEMBER(profile_gpu, begin_graph, KIND_TIME, false),
    MEMBER(profile_gpu, chain_gemv, KIND_RATE, false),
    MEMBER(profile_gpu, chain_attention, KIND_RATE, false),
    MEMBER(profile_gpu, chain_operation, KIND_TIME, false),
    MEMBER(profile_gpu, chain_attention_pair, KIND_RATE, false),
    MEMBER(profile_gpu, attention_direct, KIND_RATE, false),
};
static const struct member link_member[] = {
    MEMBER(profile_link, generation, KIND_U32, false),
    MEMBER(profile_link, width, KIND_U32, false),
    MEMBER(profile_link, h2d, KIND_RATE, false),
    MEMBER(profile_link, d2h, KIND_RATE, false),
    MEMBER(profile_link, h2d_beside, KIND_RATE, false),
    MEMBER(profile_link, h2d_beside_read, KIND_RATE, false),
    MEMBER(profile_link, direct, KIND_RATE, false),
    MEMBER(profile_link, h2d_beside_packed, KIND_RATE, false),
    MEMBER(profile_link, latency, KIND_TIME, false),
    MEMBER(profile_link, hand_over, KIND_TIME, false),
    MEMBER(profile_link, hand_over_beside, KIND_TIME, false),
};
static const struct member format_member[] = {
    MEMBER(profile_format, cpu_gemv, KIND_RATE, false),
    MEMBER(profile_format, cpu_gemv_beside, KIND_RATE, false),
    MEMBER(profile_format, cpu_linear, KIND_TABLE, false),
    MEMBER(profile_format, gpu_gemv, KIND_RATE, false),
    MEMBER(profile_format, gpu_operation, KIND_TIME, false),
    MEMBER(profile_format, gpu_chain_gemv, KIND_RATE, false),
    MEMBER(profile_format, gpu_chain_operation, KIND_TIME, false),
    MEMBER(profile_format, gpu_linear, KIND_TABLE, false),
    MEMBER(profile_format, gpu_linear_operation, KIND_TABLE, false),
    MEMBER(profile_format, gpu_expand, KIND_RATE, false),
    MEMBER(profile_format, cpu_int8_gemv, KIND_RATE, false),
    MEMBER(profile_format, cpu_int8_gemv_beside, KIND_RATE, false),
    MEMBER(profile_format, cpu_int8_linear, KIND_TABLE, false),
};
static const struct member kv_member[] = {
    MEMBER(profile_kv, cpu_attention, KIND_RATE, false),
    MEMBER(profile_kv, cpu_attention_flops, KIND_RATE, false),
    MEMBER(profile_kv, cpu_attention_host, KIND_RATE, false),
    MEMBER(profile_kv, gpu_attention, KIND_RATE, false),
    MEMBER(profile_kv, gpu_attention_flops, KIND_RATE, false),
    MEMBER(profile_kv, gpu_chain_attention, KIND_RATE, false),
    MEMBER(profile_kv, gpu_chain_attention_pair, KIND_RATE, false),
    MEMBER(profile_kv, gpu_attention_direct, KIND_RATE, false),
};
#define MEMBERS(list) list, sizeof(list) / sizeof *(list)

/* The objects of a profile. */
struct part {
    const char *name;
    const struct member *member;
    size_t count, at; /* of members; in struct profile */
    bool of_device;   /* null without one */
};
static const struct part top = {"", MEMBERS(top_member), 0, false};
static const struct part parts[] = {{"cpu", MEMBERS(cpu_member), offsetof(struct profile, cpu), false},
                                    {"gpu", MEMBERS(gpu_member), offsetof(struct profile, gpu), true},
                                    {"link", MEMBERS(link_member), offsetof(struct profile, link), true}};
#define PARTS (sizeof parts / sizeof *parts)
/* Objects by name in an object: one a format of weights, or a type of cache, that has rates of its own. */
struct family {
    const char *name;
    struct part part; /* at: of the first one */
    size_t size;
    int count;
    const char *(*name_of)(int which);
    bool (*has)(int which);
};
static const char *format_name(int which)
{
    return tensor_format_name((enum tensor_format)which);
}
static bool format_has(int which)
{
    return profile_format_has_rates((enum tensor_format)which);
}
static const char *kv_name(int which)
{
    return kv_dtype_name((enum kv_dtype)which);
}
static bool kv_has(int which)
{
    return !kv_dtype_is_plain((uint32_t)which);
}
static const struct family families[] = {
    {"formats",
     {"", MEMBERS(format_member), offsetof(struct profile, format), false},
     sizeof(struct profile_format),
     FORMAT_COUNT,
     format_name,
     format_has},
    {"kv",
     {"", MEMBERS(kv_member), offsetof(struct profile, kv), false},
     sizeof(struct profile_kv),
     KV_DTYPE_COUNT,
     kv_name,
     kv_has},
};
#define FAMILIES (sizeof families / sizeof *families)

static void *family_object(const struct family *f, struct profile *profile, int which)
{
    return (char *)profile + f->part.at + (size_t)which * f->size;
}

static const char *const source_name[] = {"unknown", "measured", "text", "sheet", "estimate"};
#define SOURCE_COUNT (sizeof source_name / sizeof *source_name)

const char *profile_source_name(enum profile_source source)
{
    return (size_t)source < SOURCE_COUNT ? source_name[source] : "unknown";
}

static const char *device_name(enum profile_device device)
{
    return device == PROFILE_DEVICE_CUDA ? "cuda" : "emulated";
}

static bool is_measured(enum kind kind)
{
    return kind == KIND_RATE || kind == KIND_TIME || kind == KIND_TABLE;
}

/* The member of an object of this part; NULL: no such name, or nothing that is measured. */
static void *find_member(const struct part *part, const char *name, void *object, bool *table)
{
    for (const struct member *m = part->member; m < part->member + part->count; m++) {
        if (!is_measured(m->kind) || strcmp(m->name, name) != 0) continue;
        *table = m->kind == KIND_TABLE;
        return (char *)object + m->at;
    }
    return NULL;
}

/* NAME.MEMBER of a family. */
static void *find_in_family(const struct family *f, struct profile *profile, const char *name, bool *table)
{
    for (int i = 0; i < f->count; i++) {
        const size_t length = strlen(f->name_of(i));
        if (f->has(i) && strncmp(name, f->name_of(i), length) == 0 && name[length] == '.')
            return find_member(&f->part, name + length + 1, family_object(f, profile, i), table);
    }
    return NULL;
}

void *profile_find(struct profile *profile, const char *name, bool *table)
{
    for (const struct family *f = families; f < families + FAMILIES; f++) {
        const size_t length = strlen(f->name);
        if (strncmp(name, f->name, length) == 0 && name[length] == '.')
            return find_in_family(f, profile, name + length + 1, table);
    }
    for (const struct part *part = parts; part < parts + PARTS; part++) {
        const size_t length = strlen(part->name);
        if (!part->of_device || strncmp(name, part->name, length) != 0 || name[length] != '.') continue;
        return find_member(part, name + length + 1, (char *)profile + part->at, table);
    }
    return NULL;
}

/* ---- out ---- */

static json_t *value_to_json(const struct profile_value *value)
{
    return json_pack("{s:f, s:f, s:f, s:s}", "value", value->value, "low", value->low, "high", value->high,
                     "source", profile_source_name(value->source));
}

static json_t *table_to_json(const struct profile_table *table)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < table->count; i++) {
        json_t *point = value_to_json(&table->point[i].y);
        json_object_set_new(point, "x", json_integer(table->point[i].x));
        json_array_append_new(array, point);
    }
    return array;
}

static json_t *member_to_json(const struct member *m, const void *object)
{
    const char *at = (const char *)object + m->at;
    switch (m->kind) {
    case KIND_RATE:
    case KIND_TIME:
        return value_to_json((const void *)at);
    case KIND_TABLE:
        return table_to_json((const void *)at);
    case KIND_TEXT:
        return json_string(at);
    case KIND_U32:
        return json_integer(*(const uint32_t *)(const void *)at);
    case KIND_U64:
        return json_integer((json_int_t) * (const uint64_t *)(const void *)at);
    case KIND_BOOL:
        return json_boolean(*(const bool *)(const void *)at);
    case KIND_DEVICE:
        return json_string(device_name(*(const enum profile_device *)(const void *)at));
    }
    return NULL;
}

/* False: no memory (or a text that is no UTF-8). */
static bool members_to_json(const struct part *part, const void *object, json_t *json)
{
    for (const struct member *m = part->member; m < part->member + part->count; m++)
        if (json_object_set_new(json, m->name, member_to_json(m, object))) return false;
    return true;
}

/* All 0: no value of it was measured. */
static bool is_unknown(const void *object, size_t size)
{
    const char *at = object;
    for (size_t i = 0; i < size; i++)
        if (at[i]) return false;
    return true;
}

/* Without any there is no such member. */
static bool family_to_json(const struct family *f, const struct profile *profile, json_t *json)
{
    json_t *all = NULL;
    for (int i = 0; i < f->count; i++) {
        const void *rates = family_object(f, (struct profile *)profile, i);
        if (is_unknown(rates, f->size)) continue;
        json_t *object = json_object();
        if (!all) all = json_object();
        const bool ok = object && members_to_json(&f->part, rates, object);
        if (json_object_set_new(all, f->name_of(i), object) || !ok) {
            json_decref(all);
            return false;
        }
    }
    return !all || json_object_set_new(json, f->name, all) == 0;
}

json_t *profile_one_to_json(const struct profile *profile)
{
    json_t *json = json_pack("{s:i}", "helm_profile", PROFILE_VERSION);
    bool ok = json && members_to_json(&top, profile, json);
    for (const struct family *f = families; f < families + FAMILIES && ok; f++)
        ok = family_to_json(f, profile, json);
    for (const struct part *part = parts; part < parts + PARTS && ok; part++) {
        const bool there = !part->of_device || profile->gpu.device != PROFILE_DEVICE_NONE;
        json_t *object = there ? json_object() : json_null();
        ok = object && (!there || members_to_json(part, (const char *)profile + part->at, object));
        if (json_object_set_new(json, part->name, object)) ok = false; /* takes it, also when it fails */
    }
    if (ok) return json;
    json_decref(json);
    return NULL;
}

/* ---- in ---- */

/* Earlier versions measured these, and no forecast goes by them any more: profiles that have them are read
 * all the same. */
static const char *const former[] = {"wake",
                                     "disk",
                                     "issue",
                                     "linear_beside",
                                     "linear_packed",
                                     "together",
                                     "h2d_beside_chunk",
                                     "link_beside",
                                     "gpu_experts",
                                     "cpu_int8_link_beside",
                                     "gpu_experts_few",
                                     "gpu_experts_few_operation"};

/* Unknown members are refused. `extra`: names that are known beside the part's, which may be NULL. */
static int check_names(const json_t *json, const struct part *part, const char *const *extra,
                       struct helm_err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value)
    {
        bool known = strcmp(key, "note") == 0;
        for (size_t i = 0; part && i < part->count && !known; i++)
            known = strcmp(key, part->member[i].name) == 0;
        for (size_t i = 0; extra && extra[i] && !known; i++) known = strcmp(key, extra[i]) == 0;
        for (size_t i = 0; i < sizeof former / sizeof *former && !known; i++)
            known = strcmp(key, former[i]) == 0;
        if (!known) return helm_fail(err, HELM_E_FORMAT, "'%.40s' is no member of a profile", key);
        if (strcmp(key, "note") == 0 && !json_is_string(value))
            return helm_fail(err, HELM_E_FORMAT, "'note' is not a string");
    }
    return 0;
}

static int value_from_json(const json_t *json, double max, bool point, struct profile_value *value,
                           struct helm_err *err)
{
    static const char *const value_names[] = {"value", "low", "high", "source", NULL, NULL};
    static const char *const point_names[] = {"value", "low", "high", "source", "x", NULL};
    const char *source = NULL;
    if (!json_is_object(json))
        return helm_fail(err, HELM_E_FORMAT, "not an object with 'value' and 'source'");
    int rc = check_names(json, NULL, point ? point_names : value_names, err);
    if (!rc) rc = json_get_double(json, "value", true, 0, max, &value->value, err);
    value->low = value->high = value->value;
    if (!rc) rc = json_get_double(json, "low", false, 0, max, &value->low, err);
    if (!rc) rc = json_get_double(json, "high", false, 0, max, &value->high, err);
    if (!rc) rc = json_get_string(json, "source", true, &source, err);
    if (rc) return rc;
    for (size_t i = 0; i < SOURCE_COUNT; i++) {
        if (strcmp(source, source_name[i])) continue;
        value->source = (enum profile_source)i;
        if (value->low > value->value || value->high < value->value)
            return helm_fail(err, HELM_E_MISMATCH, "'value' %g is not between 'low' %g and 'high' %g",
                             value->value, value->low, value->high);
        if (value->source == PROFILE_UNKNOWN && value->high > 0)
            return helm_fail(err, HELM_E_MISMATCH, "'value' is %g although its source is unknown",
                             value->value);
        return 0;
    }
    return helm_fail(err, HELM_E_FORMAT, "source '%.40s' is none of measured, text, sheet, estimate, unknown",
                     source);
}

static int table_from_json(const json_t *json, struct profile_table *table, struct helm_err *err)
{
    if (!json_is_array(json)) return helm_fail(err, HELM_E_FORMAT, "not an array of points");
    size_t count = json_array_size(json);
    if (count > PROFILE_POINTS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%zu points, more than %d", count, PROFILE_POINTS_MAX);
    for (size_t i = 0; i < count; i++) {
        const json_t *entry = json_array_get(json, i);
        struct profile_point *point = &table->point[i];
        uint64_t x = 0;
        int rc = value_from_json(entry, RATE_MAX, true, &point->y, err);
        if (!rc) rc = json_get_u64(entry, "x", true, 1, X_MAX, &x, err);
        if (!rc && i > 0 && x <= table->point[i - 1].x)
            rc = helm_fail(err, HELM_E_FORMAT, "'x' is %u after %u: points rise", (unsigned)x,
                           table->point[i - 1].x);
        if (!rc && point->y.value <= 0) rc = helm_fail(err, HELM_E_LIMIT, "'value' is 0");
        if (rc) return helm_err_prefix(err, "point %zu", i), rc;
        point->x = (uint32_t)x;
    }
    table->count = (uint32_t)count;
    return 0;
}

/* Text that is printed later: no NUL inside, no control character. */
static int text_from_json(const json_t *json, char *out, size_t size, struct helm_err *err)
{
    if (!json_is_string(json)) return helm_fail(err, HELM_E_FORMAT, "not a string");
    const char *text = json_string_value(json);
    size_t length = json_string_length(json);
    if (length >= size)
        return helm_fail(err, HELM_E_LIMIT, "%zu bytes long, more than %zu", length, size - 1);
    for (size_t i = 0; i < length; i++) {
        if (iscntrl((unsigned char)text[i]))
            return helm_fail(err, HELM_E_FORMAT, "contains a control character");
    }
    memcpy(out, text, length + 1);
    return 0;
}

static int device_from_json(const json_t *json, enum profile_device *device, struct helm_err *err)
{
    const char *text = json_is_string(json) ? json_string_value(json) : "";
    for (int i = PROFILE_DEVICE_CUDA; i <= PROFILE_DEVICE_EMULATED; i++) {
        *device = (enum profile_device)i;
        if (strcmp(text, device_name(*device)) == 0) return 0;
    }
    return helm_fail(err, HELM_E_FORMAT, "'%.40s' is neither cuda nor emulated", text);
}

static int number_from_json(const json_t *json, uint64_t max, uint64_t *out, struct helm_err *err)
{
    if (!json_is_integer(json)) return helm_fail(err, HELM_E_FORMAT, "not a whole number");
    json_int_t value = json_integer_value(json);
    if (value < 0 || (uint64_t)value > max)
        return helm_fail(err, HELM_E_LIMIT, "%lld is not between 0 and %llu", (long long)value,
                         (unsigned long long)max);
    *out = (uint64_t)value;
    return 0;
}

static int member_from_json(const struct member *m, const json_t *json, void *object, struct helm_err *err)
{
    char *at = (char *)object + m->at;
    uint64_t number = 0;
    int rc = 0;
    switch (m->kind) {
    case KIND_RATE:
    case KIND_TIME:
        return value_from_json(json, m->kind == KIND_RATE ? RATE_MAX : TIME_MAX, false, (void *)at, err);
    case KIND_TABLE:
        return table_from_json(json, (void *)at, err);
    case KIND_TEXT:
        return text_from_json(json, at, m->size, err);
    case KIND_U32:
        rc = number_from_json(json, COUNT_MAX, &number, err);
        *(uint32_t *)(void *)at = (uint32_t)number;
        return rc;
    case KIND_U64:
        return number_from_json(json, BYTES_MAX, (void *)at, err);
    case KIND_BOOL:
        if (!json_is_boolean(json)) return helm_fail(err, HELM_E_FORMAT, "not true or false");
        *(bool *)(void *)at = json_is_true(json);
        return 0;
    case KIND_DEVICE:
        return device_from_json(json, (void *)at, err);
    }
    return HELM_E_INTERNAL;
}

static int part_from_json(const json_t *json, const struct part *part, const char *const *extra, void *object,
                          struct helm_err *err)
{
    int rc = json_is_object(json) ? check_names(json, part, extra, err)
                                  : helm_fail(err, HELM_E_FORMAT, "missing or not an object");
    for (const struct member *m = part->member; m < part->member + part->count && !rc; m++) {
        const json_t *value = json_object_get(json, m->name);
        if (!value && !m->required) continue;
        rc = value ? member_from_json(m, value, object, err) : helm_fail(err, HELM_E_FORMAT, "missing");
        if (rc) helm_err_prefix(err, "%s", m->name);
    }
    if (rc && *part->name) helm_err_prefix(err, "%s", part->name);
    return rc;
}

static int family_from_json(const struct family *f, const json_t *json, struct profile *profile,
                            struct helm_err *err)
{
    const char *name;
    json_t *object;
    int rc = !json || json_is_object(json) ? 0 : helm_fail(err, HELM_E_FORMAT, "not an object");
    json_object_foreach((json_t *)json, name, object)
    {
        int i = 0;
        if (rc) break;
        if (strcmp(name, "note") == 0) continue;
        while (i < f->count && (!f->has(i) || strcmp(name, f->name_of(i)) != 0)) i++;
        if (i == f->count)
            rc = helm_fail(err, HELM_E_FORMAT, "'%.40s' is no format that has rates of its own", name);
        else
            rc = part_from_json(object, &f->part, NULL, family_object(f, profile, i), err);
        if (rc) helm_err_prefix(err, "%.40s", name);
    }
    return rc ? helm_err_prefix(err, "%s", f->name) : 0;
}

int profile_one_from_json(const json_t *json, struct profile *profile, struct helm_err *err)
{
    static const char *const extra[] = {"helm_profile", "cpu", "gpu", "link", "formats", "kv", NULL};
    const json_t *gpu = json_object_get(json, "gpu"), *link = json_object_get(json, "link");
    const bool has_gpu = gpu && !json_is_null(gpu), has_link = link && !json_is_null(link);
    uint64_t version = 0;
    memset(profile, 0, sizeof *profile);
    int rc = json_is_object(json) ? 0 : helm_fail(err, HELM_E_FORMAT, "not an object");
    if (!rc) rc = json_get_u64(json, "helm_profile", true, 1, INT32_MAX, &version, err);
    if (!rc && version != PROFILE_VERSION)
        rc = helm_fail(err, HELM_E_UNSUPPORTED, "of version %llu; this HELM reads version %d",
                       (unsigned long long)version, PROFILE_VERSION);
    if (!rc) rc = part_from_json(json, &top, extra, profile, err);
    for (const struct family *f = families; f < families + FAMILIES && !rc; f++)
        rc = family_from_json(f, json_object_get(json, f->name), profile, err);
    if (!rc && has_gpu != has_link)
        rc = helm_fail(err, HELM_E_MISMATCH, "'%s' is there and '%s' is not", has_gpu ? "gpu" : "link",
                       has_gpu ? "link" : "gpu");
    for (const struct part *part = parts; part < parts + PARTS && !rc; part++)
        if (!part->of_device || has_gpu)
            rc = part_from_json(json_object_get(json, part->name), part, NULL, (char *)profile + part->at,
                                err);
    if (rc) {
        memset(profile, 0, sizeof *profile);
        helm_err_prefix(err, "profile");
    }
    return rc;
}
