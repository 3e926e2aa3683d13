/* A model that exists only to be measured: how large it is, and its making, without files. See
 * profile_tool.h. Called by cpu.c, formats.c, now.c and steps.c. */
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/model/arch.h"
#include "common/model/sample.h"
#include "tools/mkmodel/mkmodel.h"
#include "tools/profile/profile_tool.h"

#define VOCAB      1024 /* the ends of the model are not measured */
#define LAYERS_MAX 64
/* Where the system does not say: more than most have. */
#define CACHES_UNKNOWN (64 * MIB)

/* Bytes of a layer's matrices, largest first. */
static const struct {
    const char *size;
    uint64_t layer_bytes;
} shapes[] = {{"8b", 385875968}, {"4b", 201850880}, {"1.7b", 100663296}, {"0.6b", 31457280}};
#define SHAPES (sizeof shapes / sizeof *shapes)

uint64_t profile_weights_past(uint64_t caches, uint32_t cpus, bool quick)
{
    uint64_t least = quick ? 256 * MIB : 1152 * MIB, enough = 8 * GIB;
    if (quick) enough = cpus < 2 ? GIB : cpus < 8 ? cpus * 512 * MIB : 4 * GIB; /* filling takes time */
    if (caches == 0) caches = CACHES_UNKNOWN;
    uint64_t wanted = (quick ? 12 : 16) * caches;
    if (wanted > enough) wanted = enough;
    if (wanted < PROFILE_CACHES_LEAST * caches) wanted = PROFILE_CACHES_LEAST * caches;
    return wanted > least ? wanted : least;
}

int profile_shape_choose(uint64_t bytes, uint64_t most, struct profile_shape *shape, struct helm_err *err)
{
    char need[UNITS_TEXT], have[UNITS_TEXT];
    if (bytes > most) bytes = most;
    for (size_t i = 0; i < SHAPES; i++) {
        uint64_t layers = (bytes + shapes[i].layer_bytes - 1) / shapes[i].layer_bytes;
        if (2 * shapes[i].layer_bytes > bytes && i + 1 < SHAPES) continue;
        if (layers < 2) layers = 2;
        if (layers > LAYERS_MAX) layers = LAYERS_MAX;
        if (layers * shapes[i].layer_bytes > most) layers--;
        if (layers < 2) break;
        *shape = (struct profile_shape){.size = shapes[i].size,
                                        .layers = (uint32_t)layers,
                                        .layer_bytes = shapes[i].layer_bytes};
        return 0;
    }
    return helm_fail(err, HELM_E_CAPACITY, "measuring needs %s of memory, %s may be used for it",
                     units_format_size(2 * shapes[SHAPES - 1].layer_bytes, need),
                     units_format_size(most, have));
}

int profile_shape_choose_formats(uint64_t bytes, uint64_t most, const enum tensor_format *format,
                                 uint32_t formats, struct profile_shape *shape, struct helm_err *err)
{
    double part = 0; /* of a layer of bf16, one layer of each */
    for (uint32_t f = 0; f < formats; f++) part += profile_format_part(format[f]);
    if (bytes > most) bytes = most;
    for (size_t i = 0; i < SHAPES; i++) {
        const uint64_t round = (uint64_t)(part * (double)shapes[i].layer_bytes);
        uint64_t rounds = (bytes + round - 1) / round;
        if (round > bytes && i + 1 < SHAPES) continue;
        if (rounds * formats > LAYERS_MAX) rounds = LAYERS_MAX / formats;
        if (rounds > 1 && rounds * round > most) rounds--;
        if (rounds * round > most) break;
        *shape = (struct profile_shape){.size = shapes[i].size,
                                        .layers = (uint32_t)rounds * formats,
                                        .layer_bytes = shapes[i].layer_bytes,
                                        .format = format,
                                        .formats = formats};
        return 0;
    }
    return helm_fail(err, HELM_E_CAPACITY, "too little memory to measure %u formats of weights", formats);
}

static int make_config(const struct profile_shape *shape, json_t **config, struct helm_err *err)
{
    const struct {
        const char *key;
        json_int_t value;
    } changes[] = {{"num_hidden_layers", shape->layers},
                   {"max_window_layers", shape->layers},
                   {"vocab_size", VOCAB},
                   {"bos_token_id", 1},
                   {"eos_token_id", 2}};
    int rc = mkmodel_preset("qwen3", shape->size, DTYPE_BF16, config, err);
    for (size_t i = 0; i < sizeof changes / sizeof *changes && !rc; i++)
        if (json_object_set_new(*config, changes[i].key, json_integer(changes[i].value)))
            rc = helm_fail(err, HELM_E_NOMEM, "no memory for a configuration");
    return rc;
}

/* Layer after layer, the formats that the shape names take turns. */
static void set_formats(const struct profile_shape *shape, struct model *model)
{
    for (uint32_t i = 0; i < model->tensor_count && shape->formats; i++) {
        struct model_tensor *t = &model->tensors[i];
        if (t->layer < 0 || arch_role_is_vector(t->role)) continue;
        t->format = shape->format[(uint32_t)t->layer % shape->formats];
        t->bytes = tensor_format_bytes(t->format, t->rows, t->cols);
    }
}

int profile_shape_make(const struct profile_shape *shape, struct model *model, struct helm_err *err)
{
    struct model_config config = {0};
    json_t *json = NULL;
    char *text = NULL;
    uint32_t layer[LAYERS_MAX];
    int rc = make_config(shape, &json, err);
    if (!rc && !(text = json_dumps(json, JSON_REAL_PRECISION(15))))
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for a configuration");
    if (!rc) rc = model_config_parse("config.json", text, strlen(text), &config, err);
    if (!rc) rc = model_from_config(&config, model, err);
    free(text);
    json_decref(json);
    model_config_free(&config);
    if (rc) return rc;
    set_formats(shape, model);
    for (uint32_t l = 0; l < shape->layers; l++) layer[l] = l;
    return model_sample(model, layer, shape->layers, err); /* lays the tensors out again */
}
