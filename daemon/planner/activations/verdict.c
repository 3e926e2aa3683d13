/* Verdicts as files. See verdict.h. */
#include "daemon/planner/activations/verdict.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/units.h"
#include "common/model/mixture.h"
#include "daemon/planner/profile/profile.h"

#define VERSION   1 /* of the file, and of how is measured */
#define PATH_TEXT 4096
#define SAMPLES   16 /* of a file, evenly spread */

double verdict_kl(const struct verdict *v)
{
    return fmax(v->one_token, v->tokens);
}

bool verdict_passes(const struct verdict *v)
{
    return verdict_kl(v) <= VERDICT_KL_MAX;
}

bool verdict_says_enough(const struct verdict *v)
{
    return v->positions >= VERDICT_LEAST;
}

bool verdict_holds(const struct verdict *v, uint32_t units)
{
    if (!verdict_says_enough(v)) return false;
    return verdict_passes(v) ? units <= v->units : units >= v->units;
}

/* ---- what it is of ---- */

static void add_text(struct digest *digest, const char *text)
{
    digest_add(digest, text, strlen(text) + 1);
}

static int add_shard(const struct model *model, const struct model_shard *shard, struct digest *digest,
                     struct helm_err *err)
{
    unsigned char sample[4096];
    struct stat st;
    uint64_t bytes = 0;
    int fd = -1;
    int rc = file_open_inside(model->folder, shard->file, &fd, &bytes, err);
    if (rc) return rc;
    if (fstat(fd, &st)) rc = helm_fail_errno(err, "%s", shard->file);
    add_text(digest, shard->file);
    digest_add(digest, &bytes, sizeof bytes);
    if (!rc) digest_add(digest, &st.st_mtim, sizeof st.st_mtim);
    for (uint64_t i = 0; i < SAMPLES && bytes >= sizeof sample && !rc; i++) {
        rc = file_pread_all(fd, sample, sizeof sample, (bytes - sizeof sample) / (SAMPLES - 1) * i,
                            shard->file, err);
        if (!rc) digest_add(digest, sample, sizeof sample);
    }
    close(fd);
    return rc;
}

int verdict_key(const struct model *model, const char *kernels, char key[DIGEST_TEXT], struct helm_err *err)
{
    struct digest digest = digest_begin();
    char version[64];
    key[0] = '\0';
    if (!model->shard_count)
        return helm_fail(err, HELM_E_NOT_FOUND, "a model without files has nothing to be named by");
    snprintf(version, sizeof version, "helm " HELM_VERSION ", check %d, method %d", VERSION, PROFILE_METHOD);
    add_text(&digest, version);
    add_text(&digest, kernels);
    add_text(&digest, model->laid ? mixture_name(model->laid) : "stored");
    for (uint32_t s = 0; s < model->shard_count; s++) {
        int rc = add_shard(model, &model->shards[s], &digest, err);
        if (rc) return rc;
    }
    digest_text(&digest, key);
    return 0;
}

/* ---- the file ---- */

static int path_of(const char *key, char path[PATH_TEXT], struct helm_err *err)
{
    char name[DIGEST_TEXT + 16];
    snprintf(name, sizeof name, "activations-%s", key);
    return profile_cache_file(name, path, PATH_TEXT, err);
}

static int get_u32(const json_t *json, const char *name, uint64_t min, uint64_t max, uint32_t *out,
                   struct helm_err *err)
{
    uint64_t value = 0;
    int rc = json_get_u64(json, name, true, min, max, &value, err);
    *out = (uint32_t)value;
    return rc;
}

static int from_json(const json_t *json, const char *key, struct verdict *v, struct helm_err *err)
{
    const char *of = "";
    uint64_t version = 0;
    if (!json_is_object(json)) return helm_fail(err, HELM_E_FORMAT, "not an object");
    int rc = json_get_u64(json, "helm_activations", true, VERSION, VERSION, &version, err);
    if (!rc) rc = json_get_string(json, "key", true, &of, err);
    if (!rc && strcmp(of, key) != 0) rc = helm_fail(err, HELM_E_MISMATCH, "it is of something else");
    if (!rc) rc = get_u32(json, "positions", 1, VERDICT_POSITIONS, &v->positions, err);
    if (!rc) rc = get_u32(json, "one_token_positions", 1, v->positions, &v->one_positions, err);
    if (!rc) rc = json_get_double(json, "one_token_kl", true, 0, VERDICT_KL_HUGE, &v->one_token, err);
    if (!rc) rc = json_get_double(json, "tokens_kl", true, 0, VERDICT_KL_HUGE, &v->tokens, err);
    if (!rc) rc = get_u32(json, "units", 1, UINT32_MAX, &v->units, err);
    return rc;
}

int verdict_read(const char *key, struct verdict *v, struct helm_err *err)
{
    char path[PATH_TEXT];
    json_t *json = NULL;
    memset(v, 0, sizeof *v);
    int rc = path_of(key, path, err);
    if (rc) return rc;
    if (access(path, F_OK)) return helm_fail(err, HELM_E_NOT_FOUND, "there is no %s", path);
    rc = json_read_file(path, PROFILE_SMALL_BYTES_MAX, &json, err);
    if (!rc && (rc = from_json(json, key, v, err))) helm_err_prefix(err, "%s", path);
    json_decref(json);
    if (rc) memset(v, 0, sizeof *v);
    return rc;
}

int verdict_write(const char *key, const struct verdict *v, struct helm_err *err)
{
    char path[PATH_TEXT];
    int rc = path_of(key, path, err);
    if (!rc) rc = profile_cache_make(path, err);
    if (rc) return rc;
    return profile_write_json(path,
                              json_pack("{s:i, s:s, s:I, s:I, s:f, s:f, s:I}", "helm_activations", VERSION,
                                        "key", key, "positions", (json_int_t)v->positions,
                                        "one_token_positions", (json_int_t)v->one_positions, "one_token_kl",
                                        v->one_token, "tokens_kl", v->tokens, "units", (json_int_t)v->units),
                              err);
}
