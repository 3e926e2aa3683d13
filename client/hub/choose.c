/* The files that make a model. See choose.h. */
#include "client/hub/choose.h"

#include <stdio.h>
#include <string.h>

#include "common/base/units.h"
#include "common/model/gguf_model.h"

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), tail = strlen(end);
    return length > tail && strcmp(text + length - tail, end) == 0;
}

/* What readers of checkpoints and tokenizers open, and shards as the index names them. */
static bool is_of_checkpoint(const char *name)
{
    static const char *const names[] = {
        "config.json",           "generation_config.json",      "tokenizer.json",
        "tokenizer_config.json", "special_tokens_map.json",     "chat_template.jinja",
        "chat_template.json",    "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return !strchr(name, '/') && strncmp(name, "model", 5) == 0 && ends_with(name, ".safetensors");
}

/* Parts of one file have all but their number in common. */
static bool is_same_split(const char *a, const char *b)
{
    uint32_t number, count, other;
    const size_t stem = strlen(a) - (sizeof GGUF_PART_SUFFIX - 1);
    return gguf_is_part(a, &number, &count) && gguf_is_part(b, &number, &other) && count == other &&
           strlen(a) == strlen(b) && strncmp(a, b, stem) == 0;
}

static uint64_t choose_with_parts(const struct listing *listing, const char *name, bool *chosen)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < listing->count; i++) {
        const struct listing_file *f = &listing->file[i];
        if (strcmp(f->name, name) != 0 && !is_same_split(f->name, name)) continue;
        if (chosen) chosen[i] = true;
        bytes += f->bytes;
    }
    return bytes;
}

/* A model on its own: not a projector, nor a later part. */
static bool is_gguf_model(const char *name)
{
    const char *slash = strrchr(name, '/'), *file = slash ? slash + 1 : name;
    uint32_t number = 1, count = 1;
    return ends_with(name, ".gguf") && strncmp(file, "mmproj", 6) != 0 &&
           (!gguf_is_part(name, &number, &count) || number == 1);
}

static int choose_gguf(const struct listing *listing, const struct hub_name *name, bool *chosen,
                       void (*say)(void *context, const char *line), void *context, struct helm_err *err)
{
    const char *only = NULL;
    bool pickled = false;
    size_t models = 0;
    for (size_t i = 0; i < listing->count; i++) {
        const char *file = listing->file[i].name;
        pickled = pickled || ends_with(file, ".bin") || ends_with(file, ".pth");
        if (!is_gguf_model(file)) continue;
        only = file;
        models++;
    }
    if (models == 1) {
        choose_with_parts(listing, only, chosen);
        return 0;
    }
    if (!models)
        return helm_fail(err, HELM_E_UNSUPPORTED, "%s has no model.safetensors and no GGUF file%s",
                         name->repo,
                         pickled ? ": HELM does not read PyTorch's .bin files, which are programs" : "");
    for (size_t i = 0; i < listing->count; i++) {
        const char *file = listing->file[i].name;
        char line[HUB_FILE_MAX + UNITS_TEXT], size[UNITS_TEXT];
        if (!is_gguf_model(file)) continue;
        snprintf(line, sizeof line, "%10s  %s",
                 units_format_size(choose_with_parts(listing, file, NULL), size), file);
        say(context, line);
    }
    return helm_fail(err, HELM_E_USAGE, "%s has %zu GGUF files: name one, `helm-cli pull %s/FILE`",
                     name->repo, models, name->repo);
}

int choose_files(const struct listing *listing, const struct hub_name *name, bool *chosen,
                 void (*say)(void *context, const char *line), void *context, struct helm_err *err)
{
    if (name->file[0] && !listing_find(listing, name->file))
        return helm_fail(err, HELM_E_NOT_FOUND, "%s has no file %s", name->repo, name->file);
    if (name->file[0]) {
        choose_with_parts(listing, name->file, chosen);
        return 0;
    }
    if (!listing_find(listing, "model.safetensors") && !listing_find(listing, "model.safetensors.index.json"))
        return choose_gguf(listing, name, chosen, say, context, err);
    for (size_t i = 0; i < listing->count; i++) chosen[i] = is_of_checkpoint(listing->file[i].name);
    return 0;
}
