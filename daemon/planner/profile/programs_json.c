/* Measured programs as JSON. See programs.h. Called by helm-profile, helmd and helm-plan; owns nothing. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/units.h"
#include "daemon/planner/profile/programs.h"

#define SECONDS_MAX 3600.0
#define COUNT_MAX   ((uint64_t)1 << 24)

/* A cell's numbers, in order. */
enum { TOKENS, CONTEXT, SECONDS, LOW, HIGH, BESIDE, NUMBERS };

static const char *const ways[PROGRAMS_WAYS] = {"exact",           "int8",           "packed",
                                                "invariant_exact", "invariant_int8", "invariant_packed"};
static const char *const gpu_ways[PROGRAMS_GPU_WAYS] = {"gpu", "gpu_invariant"},
                         *const gpu_begins[PROGRAMS_GPU_WAYS] = {"gpu_begin", "gpu_invariant_begin"};

static json_t *times_to_json(const struct programs_times *times)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < times->count && list; i++) {
        const struct programs_cell *c = &times->cell[i];
        json_array_append_new(list, json_pack("[i, i, f, f, f, f]", (int)c->tokens, (int)c->context,
                                              c->seconds, c->low, c->high, c->beside));
    }
    return list;
}

json_t *programs_to_json(const struct programs *programs)
{
    json_t *kinds = json_array();
    for (uint32_t k = 0; k < programs->kinds && kinds; k++) {
        const struct programs_kind *kind = &programs->kind[k];
        char signature[24];
        snprintf(signature, sizeof signature, "%016llx", (unsigned long long)kind->signature);
        json_t *one = json_pack("{s:s, s:s}", "name", kind->name, "signature", signature);
        for (int w = 0; w < PROGRAMS_WAYS && one; w++)
            if (kind->cpu[w].count) json_object_set_new(one, ways[w], times_to_json(&kind->cpu[w]));
        for (int w = 0; w < PROGRAMS_GPU_WAYS && one; w++)
            if (kind->gpu[w].count) json_object_set_new(one, gpu_ways[w], times_to_json(&kind->gpu[w]));
        json_array_append_new(kinds, one);
    }
    json_t *all = json_pack("{s:i, s:s, s:s, s:s, s:s, s:i, s:b, s:o}", "helm_programs", PROGRAMS_VERSION,
                            "fingerprint", programs->fingerprint, "key", programs->key, "made",
                            programs->made, "kv_dtype", programs->kv_dtype, "busy_percent",
                            (int)programs->busy_percent, "gpu", (int)programs->gpu_tried, "kinds", kinds);
    for (int w = 0; w < PROGRAMS_GPU_WAYS && all; w++)
        json_object_set_new(all, gpu_begins[w], times_to_json(&programs->gpu_begin[w]));
    return all;
}

/* ---- and back ---- */

static int cell_from_json(const json_t *json, struct programs_cell *cell, struct helm_err *err)
{
    double value[NUMBERS];
    bool sound = json_array_size(json) == NUMBERS;
    for (size_t i = 0; i < NUMBERS && sound; i++) {
        sound = json_is_number(json_array_get(json, i));
        value[i] = json_number_value(json_array_get(json, i));
    }
    sound = sound && value[TOKENS] >= 1 && value[TOKENS] <= COUNT_MAX &&
            value[TOKENS] == floor(value[TOKENS]) && value[CONTEXT] >= 0 && value[CONTEXT] <= COUNT_MAX &&
            value[CONTEXT] == floor(value[CONTEXT]) && value[SECONDS] > 0 && value[SECONDS] <= SECONDS_MAX &&
            value[LOW] > 0 && value[LOW] <= value[SECONDS] && value[HIGH] >= value[SECONDS] &&
            value[HIGH] <= SECONDS_MAX && value[BESIDE] >= 0 && value[BESIDE] <= SECONDS_MAX;
    if (!sound)
        return helm_fail(err, HELM_E_FORMAT,
                         "a cell is not [tokens, context, seconds, low, high, beside] with low <= seconds <= "
                         "high, all up to an hour");
    *cell = (struct programs_cell){.tokens = (uint32_t)value[TOKENS],
                                   .context = (uint32_t)value[CONTEXT],
                                   .seconds = value[SECONDS],
                                   .low = value[LOW],
                                   .high = value[HIGH],
                                   .beside = value[BESIDE]};
    return 0;
}

static int times_from_json(const json_t *json, struct programs_times *times, struct helm_err *err)
{
    const json_t *one;
    size_t i;
    int rc = 0;
    if (json_array_size(json) > PROGRAMS_CELLS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%zu cells, the limit is %d", json_array_size(json),
                         PROGRAMS_CELLS_MAX);
    json_array_foreach(json, i, one)
    {
        struct programs_cell cell;
        const uint32_t before = times->count;
        if (!rc) rc = cell_from_json(one, &cell, err);
        if (rc) break;
        programs_put(times, &cell);
        if (times->count == before)
            rc = helm_fail(err, HELM_E_FORMAT, "%u tokens in a context of %u are there twice", cell.tokens,
                           cell.context);
    }
    return rc;
}

static int kind_from_json(const json_t *json, struct programs_kind *kind, struct helm_err *err)
{
    const char *name = "", *signature = "";
    int length = 0;
    int rc = json_get_string(json, "name", true, &name, err);
    if (!rc) rc = json_get_string(json, "signature", true, &signature, err);
    if (rc) return rc;
    if (sscanf(signature, "%16" SCNx64 "%n", &kind->signature, &length) != 1 || signature[length])
        return helm_fail(err, HELM_E_FORMAT, "'signature' is '%.40s', no hexadecimal number", signature);
    snprintf(kind->name, sizeof kind->name, "%.63s", name);
    for (int w = 0; w < PROGRAMS_WAYS && !rc; w++)
        rc = times_from_json(json_object_get(json, ways[w]), &kind->cpu[w], err);
    for (int w = 0; w < PROGRAMS_GPU_WAYS && !rc; w++)
        rc = times_from_json(json_object_get(json, gpu_ways[w]), &kind->gpu[w], err);
    return rc ? helm_err_prefix(err, "%.63s", name) : 0;
}

static int text_from_json(const json_t *json, const char *key, char *text, size_t size, struct helm_err *err)
{
    const char *value = "";
    int rc = json_get_string(json, key, true, &value, err);
    if (!rc && strlen(value) >= size)
        rc = helm_fail(err, HELM_E_LIMIT, "'%s' has %zu characters, the limit is %zu", key, strlen(value),
                       size - 1);
    if (!rc) memcpy(text, value, strlen(value) + 1);
    return rc;
}

int programs_from_json(const json_t *json, struct programs *p, struct helm_err *err)
{
    uint64_t version = 0, busy = 0;
    const json_t *kinds = json_object_get(json, "kinds");
    *p = (struct programs){.kinds = 0};
    int rc = json_is_object(json) ? 0 : helm_fail(err, HELM_E_FORMAT, "not an object");
    if (!rc)
        rc = json_get_u64(json, "helm_programs", true, PROGRAMS_VERSION, PROGRAMS_VERSION, &version, err);
    if (!rc) rc = text_from_json(json, "fingerprint", p->fingerprint, sizeof p->fingerprint, err);
    if (!rc) rc = text_from_json(json, "key", p->key, sizeof p->key, err);
    if (!rc) rc = text_from_json(json, "made", p->made, sizeof p->made, err);
    if (!rc) rc = text_from_json(json, "kv_dtype", p->kv_dtype, sizeof p->kv_dtype, err);
    if (!rc) rc = json_get_u64(json, "busy_percent", true, 0, PERCENT, &busy, err);
    if (!rc && (!json_is_array(kinds) || json_array_size(kinds) > PROGRAMS_KINDS_MAX))
        rc = helm_fail(err, HELM_E_FORMAT, "'kinds' is not an array of up to %d", PROGRAMS_KINDS_MAX);
    p->busy_percent = (uint32_t)busy;
    p->gpu_tried = json_is_true(json_object_get(json, "gpu"));
    for (int w = 0; w < PROGRAMS_GPU_WAYS && !rc; w++)
        rc = times_from_json(json_object_get(json, gpu_begins[w]), &p->gpu_begin[w], err);
    for (size_t k = 0; !rc && k < json_array_size(kinds); k++)
        rc = kind_from_json(json_array_get(kinds, k), &p->kind[p->kinds++], err);
    if (rc) *p = (struct programs){.kinds = 0};
    return rc;
}

int programs_parse(const char *what, const char *text, size_t bytes, struct programs *programs,
                   struct helm_err *err)
{
    json_t *json = NULL;
    *programs = (struct programs){.kinds = 0};
    int rc = json_parse_bounded(what, text, bytes, PROGRAMS_BYTES_MAX, &json, err);
    if (!rc) rc = programs_from_json(json, programs, err);
    if (rc && json) rc = helm_err_prefix(err, "%s", what);
    json_decref(json);
    return rc;
}

int programs_read(const char *path, struct programs *programs, struct helm_err *err)
{
    json_t *json = NULL;
    struct programs *read = malloc(sizeof *read);
    int rc = read ? json_read_file(path, PROGRAMS_BYTES_MAX, &json, err)
                  : helm_fail(err, HELM_E_NOMEM, "no memory for measured programs");
    if (!rc) rc = programs_from_json(json, read, err);
    if (!rc &&
        (strcmp(read->key, programs->key) != 0 || strcmp(read->fingerprint, programs->fingerprint) != 0))
        rc = helm_fail(err, HELM_E_MISMATCH, "it is of another machine or of other shapes");
    if (!rc) *programs = *read;
    json_decref(json);
    free(read);
    return rc == HELM_E_NOT_FOUND || !rc ? rc : helm_err_prefix(err, "%s", path);
}

int programs_kept(const struct model *model, const char *fingerprint, const char *kv_dtype,
                  struct programs *programs, char *path, size_t size, struct helm_err *err)
{
    *path = '\0';
    programs_list(model, programs);
    programs_key(fingerprint, kv_dtype, programs);
    if (!*fingerprint)
        return helm_fail(err, HELM_E_NOT_FOUND, "programs of a machine that is described are not kept");
    const int rc = programs_path(programs, path, size, err);
    return rc ? rc : programs_read(path, programs, err);
}
