/* Printing programs and devices. See print.h. */
#include "worker-gpu/print.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "worker-gpu/program.h"

#define PRINT_STEP_TOKENS 512
#define PRINT_CONTEXT     4096
#define PRINT_DEVICES_MAX 16

struct pretence {
    struct model model;
    struct plan_stage stage;
    struct plan plan;
    struct arena arena;
    struct device *device;
    struct gpu_weights weights;
    struct gpu_buffers buffers;
    char *space; /* addresses that nothing is behind */
    uint64_t space_bytes;
};

static int pretend(struct pretence *p, const char *folder, struct gpu_source *source, struct helm_err *err)
{
    const struct device_options options = {.name = "emulated"};
    int rc = model_read(folder, &p->model, err);
    if (rc) return rc;
    const struct model_config *c = &p->model.config;
    p->stage = (struct plan_stage){.last = c->layers - 1, .home = PLAN_HOME_GPU};
    p->plan = (struct plan){.layers = c->layers,
                            .stages = &p->stage,
                            .stage_count = 1,
                            .embed = PLAN_HOME_GPU,
                            .head = PLAN_HOME_GPU};
    const struct arena_spec spec = {.slots = GPUK_BATCH_MAX,
                                    .context_tokens = PRINT_CONTEXT,
                                    .step_tokens = PRINT_STEP_TOKENS,
                                    .hidden = c->hidden,
                                    .vocab = c->vocab,
                                    .kv = {.kv_heads = c->kv_heads,
                                           .head_dim = c->head_dim,
                                           .page_tokens = KV_PAGE_TOKENS_DEFAULT,
                                           .dtype = DTYPE_F16,
                                           .elem_bytes = 2},
                                    .page_count = 1};
    rc = arena_create(&spec, &p->arena, err);
    if (!rc) rc = device_open(&options, &p->device, err);
    if (!rc) rc = gpu_weights_plan(&p->model, &p->plan, &p->weights, err);
    if (rc) return rc;
    const struct arena_header *h = arena_header_of(&p->arena);
    gpu_buffers_place(c, &p->plan, h, DTYPE_F16, &p->device->kernels, &p->buffers);
    p->space_bytes = p->weights.bytes + p->buffers.bytes + 4096;
    p->space =
        mmap(NULL, (size_t)p->space_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p->space == MAP_FAILED) {
        p->space = NULL;
        return helm_fail_errno(err, "cannot reserve address space");
    }
    gpu_weights_pretend(&p->weights, p->space);
    p->buffers.memory = p->space + p->weights.bytes;
    gpu_buffers_place(c, &p->plan, h, DTYPE_F16, &p->device->kernels, &p->buffers);
    *source = (struct gpu_source){.model = &p->model,
                                  .plan = &p->plan,
                                  .weights = &p->weights,
                                  .buffers = &p->buffers,
                                  .arena = &p->arena,
                                  .device = p->device,
                                  .kv = spec.kv};
    source->kv.layers = c->layers;
    return 0;
}

int gpu_print_programs(const char *folder, uint32_t threads, const char *kernels, FILE *out,
                       struct helm_err *err)
{
    static const char *const title[GPU_TIER_COUNT] = {"1 token",       "2 tokens",       "3 to 4 tokens",
                                                      "5 to 8 tokens", "9 to 16 tokens", "a chunk of tokens"};
    (void)threads, (void)kernels;
    struct gpu_source source;
    struct gpu_program program;
    struct pretence *p = calloc(1, sizeof *p);
    if (!p) return helm_fail(err, HELM_E_NOMEM, "no memory");
    p->arena.fd = -1;
    int rc = pretend(p, folder, &source, err);
    for (int t = 0; t < GPU_TIER_COUNT && !rc; t++) {
        rc = gpu_program_lower(&source, (enum gpu_tier)t, &program, err);
        if (rc) break;
        gpu_program_print(&program, title[t], out);
        gpu_program_free(&program, p->device);
    }
    gpu_weights_free(&p->weights);
    if (p->space) munmap(p->space, (size_t)p->space_bytes);
    device_close(p->device);
    arena_close(&p->arena);
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
        json_array_append_new(list, one);
    }
    json_object_set_new(json, "devices", list);
    if (rc) json_object_set_new(json, "error", json_string(err.text));
    json_dumpf(json, out, JSON_COMPACT);
    fputc('\n', out);
    json_decref(json);
}
