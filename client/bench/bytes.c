/* Which device reads how many bytes of weights for one token, and how fast it could. See bench.h.
 *
 * From the plan as the daemon gives it: the stages' weights by home, and the head (final projection), which
 * is read for every token too and has the size of the vocabulary. A token reads the experts of a mixture that
 * it chooses; of experts in both memories the part that the plan expects in VRAM is the GPU's, of the others
 * the part that it reads directly the link's. The embedding's one row a token, norms and the KV cache are not
 * counted. */
#include <string.h>

#include "common/base/json.h"
#include "common/plan/plan.h"
#include "client/bench/bench.h"

static void device_add(struct bench_group *group, const char *name, uint64_t bytes)
{
    for (uint32_t i = 0; i < group->device_count; i++) {
        if (strcmp(group->device[i].name, name) != 0) continue;
        group->device[i].token_bytes += bytes;
        return;
    }
    if (group->device_count < BENCH_DEVICES_MAX)
        group->device[group->device_count++] = (struct bench_device){.name = name, .token_bytes = bytes};
}

/* The way by which weights of a home are read; `mixed`: by all three. Two GPUs read as one: a step is on one
 * at a time. */
static const char *device_of_home(const char *home)
{
    if (strcmp(home, "cpu") == 0) return "cpu";
    if (strcmp(home, "gpu") == 0 || strcmp(home, "gpu1") == 0) return "gpu";
    return strcmp(home, "stream") == 0 ? "link" : NULL;
}

/* Parts of a token's reads of experts in both memories. */
struct mixed_parts {
    uint64_t hit, direct; /* of 1,000 experts; of 1,000 of those that are not in VRAM */
};

static int read_mixed(const json_t *root, struct mixed_parts *parts, struct helm_err *err)
{
    const json_t *mixed = json_object_get(root, "mixed");
    int rc = json_get_u64(mixed, "hit_permille", false, 0, 1000, &parts->hit, err);
    return rc ? rc : json_get_u64(mixed, "direct_permille", false, 0, 1000, &parts->direct, err);
}

static void add_mixed(struct bench_group *group, uint64_t bytes, const struct mixed_parts *parts)
{
    const uint64_t gpu = bytes / 1000 * parts->hit, link = (bytes - gpu) / 1000 * parts->direct;
    device_add(group, "cpu", bytes - gpu - link);
    device_add(group, "gpu", gpu);
    device_add(group, "link", link);
}

static int add_stage(struct bench_group *group, const json_t *stage, const struct mixed_parts *parts,
                     const char **home, struct helm_err *err)
{
    uint64_t bytes = 0;
    int rc = json_get_string(stage, "home", true, home, err);
    if (!rc) rc = json_get_u64(stage, "bytes", true, 0, INT64_MAX, &bytes, err);
    if (!rc) rc = json_get_u64(stage, "token_bytes", false, 0, bytes, &bytes, err);
    if (rc) return rc;
    const char *device = device_of_home(*home);
    if (device)
        device_add(group, device, bytes);
    else if (strcmp(*home, "mixed") == 0)
        add_mixed(group, bytes, parts);
    else
        return helm_fail(err, HELM_E_UNSUPPORTED, "the daemon's plan has a home '%.40s'", *home);
    return 0;
}

/* The head's bytes by the plan's placements, where it says these; tied, it is the embedding. */
static uint64_t head_bytes(const struct bench_group *group, const json_t *root)
{
    static const char *const names[] = {"lm_head.weight", "model.embed_tokens.weight"};
    const uint64_t element = strcmp(group->info->dtype, "f32") == 0 ? 4 : 2;
    const json_t *place, *list = json_object_get(root, "placements");
    size_t i;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) json_array_foreach(list, i, place)
        {
            const char *name = json_string_value(json_array_get(place, 0));
            const json_int_t bytes = json_integer_value(json_array_get(place, 4));
            if (name && strcmp(name, names[n]) == 0 && bytes > 0) return (uint64_t)bytes;
        }
    return element * group->info->vocab * group->info->hidden;
}

int bytes_read_plan(struct bench_group *group, const char *plan, struct helm_err *err)
{
    json_t *root = NULL, *stage;
    const char *home = NULL, *head = NULL;
    struct mixed_parts parts = {0};
    size_t i;
    group->device_count = 0;
    int rc = json_parse_bounded("the daemon's plan", plan, strlen(plan), PLAN_TEXT_MAX, &root, err);
    if (rc < 0) return rc;
    const json_t *stages = json_object_get(root, "stages");
    if (json_is_object(stages)) stages = json_object_get(stages, "decode");
    if (json_array_size(stages) == 0) rc = helm_fail(err, HELM_E_FORMAT, "the daemon's plan has no stages");
    if (rc == 0) rc = read_mixed(root, &parts, err);
    json_array_foreach(stages, i, stage)
    {
        if (rc < 0) break;
        rc = add_stage(group, stage, &parts, &home, err);
    }
    if (rc == 0) rc = json_get_string(root, "head", false, &head, err);
    if (rc == 0) {
        /* without a word of it the head is where the last stage is computed */
        if (!head) head = strcmp(home, "cpu") == 0 ? "cpu" : "gpu";
        device_add(group, strcmp(head, "cpu") == 0 ? "cpu" : "gpu", head_bytes(group, root));
        group->stages = json_incref((json_t *)stages);
    }
    json_decref(root);
    return rc;
}

double bytes_limit(const struct bench *bench, const struct bench_device *device, double read_gb_s)
{
    if (strcmp(device->name, "cpu") == 0) return read_gb_s;
    if (strcmp(device->name, "gpu") == 0) return bench->options.vram_read_gb_s;
    return strcmp(device->name, "link") == 0 ? bench->options.link_read_gb_s : 0;
}

double bytes_bound_ms(const struct bench *bench, const struct bench_group *group, double read_gb_s)
{
    double ms = 0;
    for (uint32_t i = 0; i < group->device_count; i++) {
        double limit = bytes_limit(bench, &group->device[i], read_gb_s);
        if (!group->device[i].token_bytes) continue;
        if (limit <= 0) return 0;
        ms += (double)group->device[i].token_bytes / limit * 1e-6;
    }
    return ms;
}
