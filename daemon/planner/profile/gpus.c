/* A profile's list of GPUs. See gpus.h. Called by profile.c, and by json.c, which knows a machine with one
 * GPU; owns nothing.
 *
 * An entry is what helm-profile says of a GPU, with its link to the host. It may have members "cpu",
 * "formats" and "kv": members that were measured with this GPU. They replace the machine's, which were
 * measured with the first GPU. Without them the rates of formats on another GPU are unknown, and the CPU is
 * taken to be as fast beside its link as beside the first's. */
#include "daemon/planner/profile/gpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const machines[] = {"cpu", "formats", "kv"};
#define MACHINES (sizeof machines / sizeof *machines)

/* Whether a GPU is the one that is named. *seen: those of its kind before it, which "cuda:N" counts. */
static bool is_named(const json_t *gpu, const char *name, uint32_t *seen)
{
    const char *kind = json_string_value(json_object_get(gpu, "device")),
               *uuid = json_string_value(json_object_get(gpu, "uuid")),
               *model = json_string_value(json_object_get(gpu, "name"));
    const size_t length = kind ? strlen(kind) : 0;
    char numbered[24];
    if ((uuid && strcmp(uuid, name) == 0) || (model && strcmp(model, name) == 0)) return true;
    if (!length || strncmp(name, kind, length) != 0) return false;
    snprintf(numbered, sizeof numbered, ":%u", (*seen)++);
    return strcmp(name + length, numbered) == 0 || (!name[length] && *seen == 1);
}

/* An entry of a list, or its length, which means none. */
static int choose(const json_t *gpus, const char *name, size_t *chosen, struct helm_err *err)
{
    char there[160] = "none";
    uint32_t seen = 0;
    *chosen = 0;
    if (!name || strcmp(name, "auto") == 0) return 0;
    if (strcmp(name, "cpu") == 0) {
        *chosen = json_array_size(gpus);
        return 0;
    }
    for (size_t used = 0; *chosen < json_array_size(gpus); (*chosen)++) {
        const json_t *gpu = json_array_get(gpus, *chosen);
        const char *model = json_string_value(json_object_get(gpu, "name"));
        if (is_named(gpu, name, &seen)) return 0;
        if (used < sizeof there)
            used += (size_t)snprintf(there + used, sizeof there - used, "%s%.60s", used ? ", " : "",
                                     model ? model : "?");
    }
    return helm_fail(err, HELM_E_NOT_FOUND, "'%.60s' is none of its GPUs, which are: %s", name, there);
}

/* `over`'s members take the place of `under`'s, `depth` objects down. -1: no memory. */
static int overlay(json_t *under, json_t *over, int depth)
{
    const char *key;
    json_t *value;
    int rc = 0;
    json_object_foreach(over, key, value)
    {
        json_t *there = json_object_get(under, key);
        if (depth && json_is_object(there) && json_is_object(value))
            rc |= overlay(there, value, depth - 1);
        else
            rc |= json_object_set(under, key, value);
    }
    return rc;
}

/* Takes the first GPU's part out of rates of formats, or of types of the cache: nothing is known of
 * another's. */
static void drop_first(json_t *family)
{
    const char *name, *key;
    json_t *rates, *value;
    void *next;
    json_object_foreach(family, name, rates)
    {
        json_object_foreach_safe(rates, next, key, value)
        {
            if (strncmp(key, "gpu_", strlen("gpu_")) == 0) json_object_del(rates, key);
        }
    }
}

/* The machine with one of its GPUs, as json.c takes it; `which` past the last: with none. NULL: no memory. */
static json_t *with_gpu(const json_t *json, const json_t *gpus, size_t which)
{
    json_t *one = json_deep_copy(json), *gpu = json_deep_copy(json_array_get(gpus, which));
    int rc = one ? 0 : -1;
    if (json_is_object(gpu)) {
        json_t *link = json_incref(json_object_get(gpu, "link"));
        for (size_t i = 0; i < MACHINES; i++) {
            json_t *over = json_object_get(gpu, machines[i]), *there = json_object_get(one, machines[i]);
            if (which && i > 0) drop_first(there);
            if (json_is_object(over) && json_is_object(there))
                rc |= overlay(there, over, i > 0);
            else if (over)
                rc |= json_object_set(one, machines[i], over);
            json_object_del(gpu, machines[i]);
        }
        json_object_del(gpu, "link");
        rc |= json_object_set_new(one, "link", link ? link : json_null());
    } else
        rc |= json_object_set_new(one, "link", json_null());
    json_object_del(one, "gpus");
    rc |= json_object_set_new(one, "gpu", gpu ? gpu : json_null());
    if (which && json_object_get(one, "fingerprint")) /* of the machine with the first */
        rc |= json_object_set_new(one, "fingerprint", json_string(""));
    if (!rc) return one;
    json_decref(one);
    return NULL;
}

/* Entries that are not chosen are checked as well. */
static int check_entry(const json_t *json, const json_t *gpus, size_t which, struct helm_err *err)
{
    struct profile *profile = malloc(sizeof *profile);
    json_t *one = with_gpu(json, gpus, which);
    int rc = profile && one ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a profile");
    if (!rc && !json_is_object(json_array_get(gpus, which)))
        rc = helm_fail(err, HELM_E_FORMAT, "profile: not an object");
    if (!rc) rc = profile_one_from_json(one, profile, err);
    if (rc) helm_err_prefix(err, "gpus[%zu]", which);
    json_decref(one);
    free(profile);
    return rc;
}

static int check_list(const json_t *json, const json_t *gpus, struct helm_err *err)
{
    int rc = 0;
    if (json_object_get(json, "gpu") || json_object_get(json, "link"))
        return helm_fail(err, HELM_E_MISMATCH, "profile: 'gpus' is there, and so is 'gpu' or 'link'");
    if (!json_is_array(gpus) || json_array_size(gpus) > PROFILE_GPUS_MAX)
        return helm_fail(err, HELM_E_FORMAT, "profile: 'gpus' is no list of up to %d", PROFILE_GPUS_MAX);
    for (size_t i = 0; i < json_array_size(gpus) && !rc; i++) rc = check_entry(json, gpus, i, err);
    return rc;
}

int profile_from_json(const json_t *json, const char *gpu, struct profile *profile, struct helm_err *err)
{
    const json_t *alone = json_object_get(json, "gpu"), *listed = json_object_get(json, "gpus");
    json_t *gpus = json_is_object(alone) ? json_pack("[O]", alone) : json_array(), *one = NULL;
    size_t chosen = 0;
    memset(profile, 0, sizeof *profile);
    int rc = gpus ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a profile");
    if (!rc && listed) rc = check_list(json, listed, err);
    if (!rc) rc = choose(listed ? listed : gpus, gpu, &chosen, err);
    if (!rc && (listed || chosen)) one = with_gpu(json, listed ? listed : gpus, chosen);
    if (!rc && !one && (listed || chosen)) rc = helm_fail(err, HELM_E_NOMEM, "no memory for a profile");
    if (!rc) rc = profile_one_from_json(one ? one : json, profile, err);
    json_decref(one);
    json_decref(gpus);
    return rc;
}

json_t *profile_to_json(const struct profile *profile)
{
    json_t *json = profile_one_to_json(profile), *gpu = json_object_get(json, "gpu"),
           *gpus = json_is_null(gpu) ? json_array() : json_pack("[O]", gpu);
    int rc = json && gpus ? 0 : -1;
    if (json_is_object(gpu)) rc |= json_object_set(gpu, "link", json_object_get(json, "link"));
    json_object_del(json, "gpu");
    json_object_del(json, "link");
    rc |= json_object_set_new(json, "gpus", gpus);
    if (!rc) return json;
    json_decref(json);
    return NULL;
}
