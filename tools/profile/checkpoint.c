/* A model that exists only to be measured. See profile_tool.h. Called by cpu.c; the folder lies in the
 * system's temporary folder for as long as it takes to load it. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/model/arch.h"
#include "common/model/model.h"
#include "common/base/units.h"
#include "tools/interrupt/interrupt.h"
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

static const char *const names[] = {"config.json", "model.safetensors"};
#define NAMES (sizeof names / sizeof *names)

static void remove_when_interrupted(const char *folder)
{
    char path[NAMES][PROFILE_FOLDER_TEXT + 32];
    const char *files[NAMES];
    for (size_t i = 0; i < NAMES; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", folder, names[i]);
        files[i] = path[i];
    }
    interrupt_remove(files, folder);
}

static int make_folder(char folder[PROFILE_FOLDER_TEXT], struct helm_err *err)
{
    const char *const places[] = {getenv("TMPDIR"), "/tmp", "/dev/shm", "/var/tmp"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (!places[i] || places[i][0] != '/') continue;
        int n = snprintf(folder, PROFILE_FOLDER_TEXT, "%s/helm-profile-XXXXXX", places[i]);
        if (n >= PROFILE_FOLDER_TEXT) continue;
        if (!mkdtemp(folder)) continue;
        remove_when_interrupted(folder);
        return 0;
    }
    folder[0] = '\0';
    return helm_fail_errno(err, "no folder for temporary files (TMPDIR, /tmp, /dev/shm, /var/tmp)");
}

static int write_whole(const char *folder, const char *name, const void *data, size_t bytes, uint64_t offset,
                       uint64_t size, struct helm_err *err)
{
    char path[PROFILE_FOLDER_TEXT + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int rc = 0, fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return helm_fail_errno(err, "creating %s", path);
    if (pwrite(fd, data, bytes, (off_t)offset) != (ssize_t)bytes || (size && ftruncate(fd, (off_t)size)))
        rc = helm_fail_errno(err, "writing %s", path);
    if (close(fd) && !rc) rc = helm_fail_errno(err, "writing %s", path);
    return rc;
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

struct listing {
    const struct model_config *config;
    const struct profile_shape *shape;
    json_t *header;
    uint64_t bytes;
    uint16_t *ones;
};

/* Adds a tensor at the end of the data. */
static int list_tensor(struct listing *l, enum tensor_role role, int32_t layer, struct helm_err *err)
{
    uint64_t rows, cols;
    char name[MODEL_NAME_MAX];
    if (!model_expected_shape(l->config, role, layer, &rows, &cols)) return 0;
    model_tensor_name(l->config, role, layer, name);
    const bool other = l->shape->formats > 0 && layer >= 0 && !arch_role_is_vector(role);
    const enum tensor_format format =
        other ? l->shape->format[(uint32_t)layer % l->shape->formats] : FORMAT_BF16;
    uint64_t end = l->bytes + tensor_format_bytes(format, rows, cols);
    json_t *shape = arch_role_is_vector(role) ? json_pack("[I]", (json_int_t)cols)
                                              : json_pack("[I, I]", (json_int_t)rows, (json_int_t)cols);
    json_t *tensor = json_pack("{s:s, s:o, s:[I, I]}", "dtype", tensor_format_of(format)->file, "shape",
                               shape, "data_offsets", (json_int_t)l->bytes, (json_int_t)end);
    l->bytes = end;
    return json_object_set_new(l->header, name, tensor)
               ? helm_fail(err, HELM_E_NOMEM, "no memory for a checkpoint's header")
               : 0;
}

/* Where the tensor's data begin, as just listed. */
static uint64_t begin_of(const json_t *tensor)
{
    return (uint64_t)json_integer_value(json_array_get(json_object_get(tensor, "data_offsets"), 0));
}

/* The header, ones for every vector, and a hole for the rest. */
static int write_tensors(const char *folder, const struct listing *l, struct helm_err *err)
{
    static const char file[] = "model.safetensors";
    uint16_t one[16384];
    char *text = json_dumps(l->header, JSON_COMPACT | JSON_PRESERVE_ORDER);
    if (!text) return helm_fail(err, HELM_E_NOMEM, "no memory for a checkpoint's header");
    uint64_t length = strlen(text), data = 8 + length;
    const char *name;
    json_t *tensor;
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) one[i] = 0x3f80;
    int rc = write_whole(folder, file, &length, 8, 0, 0, err); /* little-endian, like every x86 */
    if (!rc) rc = write_whole(folder, file, text, (size_t)length, 8, data + l->bytes, err);
    json_object_foreach(l->header, name, tensor)
    {
        const json_t *shape = json_object_get(tensor, "shape");
        if (rc || json_array_size(shape) != 1) continue;
        size_t count = (size_t)json_integer_value(json_array_get(shape, 0));
        if (count > sizeof one / sizeof *one)
            rc = helm_fail(err, HELM_E_INTERNAL, "%s has %zu elements", name, count);
        else
            rc = write_whole(folder, file, one, 2 * count, data + begin_of(tensor), 0, err);
    }
    free(text);
    return rc;
}

static void remove_files(const char *folder)
{
    char path[PROFILE_FOLDER_TEXT + 32];
    for (size_t i = 0; i < NAMES; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
    interrupt_remove(NULL, NULL);
}

int profile_checkpoint_make(const struct profile_shape *shape, char folder[PROFILE_FOLDER_TEXT],
                            struct helm_err *err)
{
    struct model_config config = {0};
    struct listing l = {.config = &config, .shape = shape, .header = json_object()};
    json_t *json = NULL;
    char *text = NULL;
    folder[0] = '\0';
    interrupt_hold();
    int rc = make_config(shape, &json, err);
    if (!rc) text = json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    if (!rc && (!text || !l.header)) rc = helm_fail(err, HELM_E_NOMEM, "no memory for a configuration");
    if (!rc) rc = model_config_parse("config.json", text, strlen(text), &config, err);
    if (!rc) rc = make_folder(folder, err);
    if (!rc) rc = write_whole(folder, "config.json", text, strlen(text), 0, 0, err);
    if (!rc) rc = list_tensor(&l, TENSOR_EMBED, -1, err);
    for (uint32_t layer = 0; layer < shape->layers; layer++)
        for (int r = 0; r < TENSOR_ROLE_COUNT && !rc; r++)
            if (arch_role_per_layer((enum tensor_role)r))
                rc = list_tensor(&l, (enum tensor_role)r, (int32_t)layer, err);
    if (!rc) rc = list_tensor(&l, TENSOR_FINAL_NORM, -1, err);
    if (!rc) rc = list_tensor(&l, TENSOR_HEAD, -1, err);
    if (!rc) rc = write_tensors(folder, &l, err);
    if (rc && folder[0]) remove_files(folder);
    if (rc) folder[0] = '\0';
    interrupt_release();
    free(text);
    json_decref(json);
    json_decref(l.header);
    model_config_free(&config);
    return rc;
}

void profile_checkpoint_remove(const char *folder)
{
    interrupt_hold();
    remove_files(folder);
    interrupt_release();
}
