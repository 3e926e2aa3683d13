/* Counted uses of experts in slots, as a file. See found.h. */
#include "daemon/planner/profile/found.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/base/log.h"
#include "common/model/content.h"

#define VERSION   1
#define PATH_TEXT 4096

static int path_of(uint64_t model, char path[PATH_TEXT], struct helm_err *err)
{
    char name[48];
    snprintf(name, sizeof name, "experts-%016" PRIx64, model);
    return profile_cache_file(name, path, PATH_TEXT, err);
}

static int from_json(const json_t *json, struct profile_found *found, struct helm_err *err)
{
    uint64_t version = 0, slots = 0, experts = 0;
    if (!json_is_object(json)) return helm_fail(err, HELM_E_FORMAT, "not an object");
    int rc = json_get_u64(json, "helm_experts", true, VERSION, VERSION, &version, err);
    if (!rc) rc = json_get_u64(json, "experts", true, 2, MODEL_EXPERTS_MAX, &experts, err);
    if (!rc) rc = json_get_u64(json, "slots", true, 1, experts - 1, &slots, err);
    if (!rc) rc = json_get_u64(json, "uses", true, 1, INT64_MAX, &found->uses, err);
    if (!rc) rc = json_get_u64(json, "found", true, 1, found->uses, &found->found, err);
    found->slots = (uint32_t)slots;
    found->experts = (uint32_t)experts;
    return rc;
}

int found_read(const struct model *model, struct profile *profile, struct helm_err *err)
{
    char path[PATH_TEXT];
    json_t *json = NULL;
    struct profile_found read = {0};
    profile->found = (struct profile_found){0};
    int rc = model_identity(model, &profile->found.of, err);
    if (!rc) rc = path_of(profile->found.of, path, err);
    if (rc) return rc;
    if (access(path, F_OK)) return helm_fail(err, HELM_E_NOT_FOUND, "there is no %s", path);
    read.of = profile->found.of;
    rc = json_read_file(path, PROFILE_SMALL_BYTES_MAX, &json, err);
    if (!rc && (rc = from_json(json, &read, err))) helm_err_prefix(err, "%s", path);
    json_decref(json);
    if (!rc) profile->found = read;
    return rc;
}

void found_look(const struct model *model, struct profile *profile)
{
    struct helm_err why = {0};
    if (profile->disk_read.value > 0 && found_read(model, profile, &why) && why.code != HELM_E_NOT_FOUND)
        log_warn("experts are taken to be chosen alike: %s", why.text);
}

void found_add(struct profile_found *counted, const struct profile_found *run)
{
    struct profile_found sum = *run;
    if (counted->uses && counted->experts == run->experts) {
        sum.uses += counted->uses;
        sum.found += (uint64_t)llround((double)counted->uses * found_part(counted, run->slots, run->experts));
    }
    const double kept = fmin(1, (double)FOUND_USES_MOST / (double)sum.uses);
    sum.uses = (uint64_t)llround(kept * (double)sum.uses);
    sum.found = (uint64_t)fmax(1, round(kept * (double)sum.found));
    *counted = sum;
}

int found_write(const struct profile_found *found, struct helm_err *err)
{
    char path[PATH_TEXT];
    int rc = path_of(found->of, path, err);
    if (!rc) rc = profile_cache_make(path, err);
    return rc ? rc
              : profile_write_json(path,
                                   json_pack("{s:i, s:i, s:i, s:I, s:I}", "helm_experts", VERSION, "experts",
                                             (int)found->experts, "slots", (int)found->slots, "uses",
                                             (json_int_t)found->uses, "found", (json_int_t)found->found),
                                   err);
}

double found_part(const struct profile_found *found, uint32_t slots, uint32_t experts)
{
    const double even = experts ? (double)slots / experts : 0;
    if (!found->uses || found->experts != experts || even <= 0) return even;
    const double a =
        log((double)found->found / (double)found->uses) / log((double)found->slots / found->experts);
    return pow(even, fmin(fmax(a, FOUND_LEAST), 1));
}
