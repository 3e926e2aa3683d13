/* Printing programs and devices. See engine.h. */
#include "worker-gpu/engine.h"

#include <jansson.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/plan/state.h"
#include "common/worker/engine.h"
#include "worker-gpu/program/ring.h"
#include "worker-gpu/program/program.h"

#define PRINT_STEP_TOKENS 512
#define PRINT_CONTEXT     4096
#define PRINT_DEVICES_MAX 16

struct pretence {
    struct model model;
    struct plan plan;
    struct arena arena;
    struct device *device;
    struct gpu_weights weights;
    struct gpu_buffers buffers;
    struct ring_schedule ring[PLAN_PHASES_MAX], home;
    struct gpu_expand expand;
    struct gpu_slots slots;
    char *space; /* addresses without memory */
    uint64_t space_bytes;
};

/* The first device that the plan uses. */
static enum plan_processor device_of(const struct plan *plan)
{
    int p = 0;
    while (p + 1 < PLAN_PROCESSORS &&
           !(plan_processor_has_memory((enum plan_processor)p) && plan_uses(plan, (enum plan_processor)p)))
        p++;
    return (enum plan_processor)p;
}

/* Sizes that a plan leaves open, as a daemon might choose them. */
static int pretend_arena(struct pretence *p, struct helm_err *err)
{
    const struct model_config *c = &p->model.config;
    const struct plan *plan = &p->plan;
    struct arena_spec spec = plan_arena_spec(plan, c);
    if (!plan->slots) spec.slots = GPUK_BATCH_MAX;
    if (!plan->context_tokens) spec.context_tokens = PRINT_CONTEXT;
    if (!plan->step_tokens) spec.step_tokens = PRINT_STEP_TOKENS;
    if (!plan->page_tokens) spec.kv.page_tokens = KV_PAGE_TOKENS_DEFAULT;
    if (!*plan->kv_dtype) spec.kv.dtype = KV_F16;
    spec.lanes[ARENA_LANE_STEP] = PLAN_LINKS;
    spec.page_count = 1;
    spec.window_page_count = plan->window_page_count ? 1 : 0;
    spec.vram_page_count = plan_kv_tiered(plan) ? 1 : 0;
    spec.state = (struct state_layout){0};
    spec.snapshot_count = 0;
    return arena_create(&spec, &p->arena, err);
}

static int pretend(struct pretence *p, const char *folder, const struct plan *plan, struct gpu_source *source,
                   struct helm_err *err)
{
    const struct device_options options = {.name = "emulated"};
    int rc = engine_read_model(folder, plan, &p->model, err);
    if (rc) return rc;
    const struct model_config *c = &p->model.config;
    const enum plan_processor gpu = plan_home_processor(PLAN_HOME_GPU);
    p->plan = (struct plan){.layers = c->layers, .embed = gpu, .head = gpu};
    rc = plan ? plan_copy(plan, &p->plan, err) : plan_make_units(&p->plan, PLAN_HOME_GPU, err);
    if (!rc && !plan) plan_take_states(&p->plan, &p->model);
    if (!rc) rc = engine_check_plan(&p->plan, c, err);
    if (!rc) rc = gpu_program_check_phases(&p->plan, err);
    if (!rc && !p->plan.placement) rc = placement_make(&p->model, NULL, &p->plan, err);
    if (!rc) rc = pretend_arena(p, err);
    if (!rc) rc = device_open(&options, &p->device, err);
    if (rc) return rc;
    const struct arena_header *h = arena_header_of(&p->arena);
    const enum plan_processor self = device_of(&p->plan);
    rc = gpu_weights_plan(&p->model, &p->plan, self, arena_region_ptr(&p->arena, ARENA_REGION_WEIGHTS),
                          h->region[ARENA_REGION_WEIGHTS].bytes, &p->weights, err);
    for (uint32_t i = 0; i < plan_phase_count(&p->plan) && !rc; i++)
        rc = ring_plan(&p->weights, &p->plan, i, i ? &p->ring[0] : NULL, &p->ring[i], err);
    if (!rc) rc = ring_plan_home(&p->weights, &p->plan, &p->home, err);
    if (!rc) rc = gpu_slots_plan(&p->weights, &p->plan, &p->slots, err);
    if (rc) return rc;
    gpu_expand_plan(&p->model, &p->plan, self, &p->expand);
    gpu_buffers_place(&p->model, &p->plan, self, h, p->device, &p->buffers);
    p->space_bytes = p->weights.bytes + p->buffers.work.bytes + p->plan.device[self].ring_bytes +
                     p->slots.place.bytes + p->expand.bytes + 4096;
    p->space =
        mmap(NULL, (size_t)p->space_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p->space == MAP_FAILED) {
        p->space = NULL;
        return helm_fail_errno(err, "cannot reserve address space");
    }
    gpu_weights_fill_tables(&p->weights, p->space);
    gpu_expand_pretend(&p->expand, &p->weights, p->space + p->space_bytes - 4096 - p->expand.bytes);
    p->buffers.memory = p->space + p->weights.bytes;
    p->slots.memory = p->buffers.memory + p->buffers.work.bytes + p->plan.device[self].ring_bytes;
    *source = (struct gpu_source){.model = &p->model,
                                  .plan = &p->plan,
                                  .self = self,
                                  .weights = &p->weights,
                                  .buffers = &p->buffers,
                                  .arena = &p->arena,
                                  .device = p->device,
                                  .kv = h->kv,
                                  .ring = p->ring,
                                  .home = &p->home,
                                  .slots = &p->slots,
                                  .events = gpu_events_place(&p->plan, self, p->ring),
                                  .ring_memory = p->space + p->weights.bytes + p->buffers.work.bytes,
                                  .expanded = p->expand.memory};
    source->kv.layers = plan_layers_of(&p->plan, self);
    source->window_kv = arena_window_layout(&p->arena);
    source->window_kv.layers = plan_window_layers(&p->plan, self);
    return 0;
}

static int print_each(const struct gpu_source *source, uint32_t phase, enum gpu_attending attending,
                      FILE *out, struct helm_err *err)
{
    static const char *const tier_name[GPU_TIER_COUNT] = {"1 token",        "2 tokens",
                                                          "3 to 4 tokens",  "5 to 8 tokens",
                                                          "9 to 16 tokens", "a chunk of tokens"};
    static const char *const attends[GPU_ATTENDING_COUNT] = {"", ", a long context",
                                                             ", the CPU attends to a part of the cache"};
    int rc = 0;
    for (int t = 0; t < (attending ? GPU_TIER_CHUNK : GPU_TIER_COUNT) && !rc; t++) {
        const struct gpu_program_kind kind = {phase, (enum gpu_tier)t, attending};
        struct gpu_program program;
        char title[96];
        if (!gpu_program_wanted(source, &kind)) continue;
        if (attending) {
            const struct gpu_program_kind usual = {phase, (enum gpu_tier)t, GPU_ATTENDS_USUALLY};
            rc = gpu_program_lower(source, &usual, &program, err);
            if (rc) break;
            const bool repeats = gpu_program_repeats(source->plan, &program, attending);
            gpu_program_free(&program, source->device);
            if (repeats) continue;
        }
        rc = gpu_program_lower(source, &kind, &program, err);
        if (rc) break;
        snprintf(title, sizeof title, "%s%s", tier_name[t], attends[attending]);
        if (phase)
            snprintf(title, sizeof title, "%s, prefill from %u tokens on", tier_name[t],
                     plan_phase_from(source->plan, phase));
        gpu_program_print(source, &program, title, out);
        gpu_program_free(&program, source->device);
    }
    return rc;
}

int gpu_print_plan(const char *folder, const struct plan *plan, uint32_t threads, const char *kernels,
                   FILE *out, struct helm_err *err)
{
    (void)threads, (void)kernels;
    struct gpu_source source;
    struct pretence *p = calloc(1, sizeof *p);
    if (!p) return helm_fail(err, HELM_E_NOMEM, "no memory");
    p->arena.fd = -1;
    int rc = pretend(p, folder, plan, &source, err);
    for (uint32_t i = 0; !rc && i < plan_phase_count(&p->plan); i++)
        rc = print_each(&source, i, GPU_ATTENDS_USUALLY, out, err);
    for (int a = GPU_ATTENDS_APART; !rc && a < GPU_ATTENDING_COUNT; a++)
        rc = print_each(&source, 0, (enum gpu_attending)a, out, err);
    p->slots.memory = NULL; /* pretended, too */
    gpu_slots_close(&p->slots);
    gpu_weights_free(&p->weights);
    for (uint32_t i = 0; i < PLAN_PHASES_MAX; i++) ring_free(&p->ring[i]);
    ring_free(&p->home);
    if (p->space) munmap(p->space, (size_t)p->space_bytes);
    device_close(p->device);
    arena_close(&p->arena);
    plan_free(&p->plan);
    model_free(&p->model);
    free(p);
    return rc;
}

void gpu_print_devices(FILE *out)
{
    struct device_info info[PRINT_DEVICES_MAX];
    uint32_t count = 0;
    struct helm_err err = {0};
    int rc = device_cuda_list(info, PRINT_DEVICES_MAX, &count, &err);
    json_t *json = json_object(), *list = json_array();
    for (uint32_t i = 0; i < count; i++) {
        json_t *one = json_pack("{s:s, s:s, s:s, s:I, s:I, s:i}", "name", info[i].name, "uuid", info[i].uuid,
                                "compute", info[i].compute, "vram_bytes", (json_int_t)info[i].vram_bytes,
                                "vram_free", (json_int_t)info[i].vram_free, "numa_node", info[i].numa_node);
        if (one && info[i].context_bytes)
            json_object_set_new(one, "context_bytes", json_integer((json_int_t)info[i].context_bytes));
        if (one && info[i].driver[0]) json_object_set_new(one, "driver", json_string(info[i].driver));
        if (one && info[i].link_generation) {
            json_object_set_new(one, "link_generation", json_integer((json_int_t)info[i].link_generation));
            json_object_set_new(one, "link_width", json_integer((json_int_t)info[i].link_width));
        }
        json_array_append_new(list, one);
    }
    json_object_set_new(json, "devices", list);
    if (rc) json_object_set_new(json, rc == HELM_E_NOT_FOUND ? "error" : "unusable", json_string(err.text));
    json_dumpf(json, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(json);
}
