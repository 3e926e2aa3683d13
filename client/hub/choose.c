/* The files that make a model. See choose.h. */
#include "client/hub/choose.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "common/base/words.h"
#include "common/model/checkpoint.h"

#define FILES_SAID 100

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), tail = strlen(end);
    return length > tail && strcmp(text + length - tail, end) == 0;
}

/* Files that readers of checkpoints and tokenizers open, and shards as the index names them. */
static bool is_of_checkpoint(const char *name)
{
    if (WORD_IS(name, "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                "special_tokens_map.json", "chat_template.jinja", "chat_template.json",
                "model.safetensors.index.json"))
        return true;
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

/* All GGUF models of a list, by name; `name` is the caller's to free. */
static int list_ggufs(const struct listing *listing, struct hub_files *files, struct helm_err *err)
{
    files->count = 0;
    files->name = calloc(listing->count + 1, sizeof *files->name);
    if (!files->name) return helm_fail(err, HELM_E_NOMEM, "no memory for the list of files");
    for (size_t i = 0; i < listing->count; i++)
        if (hub_file_is_gguf(listing->file[i].name)) files->name[files->count++] = listing->file[i].name;
    return 0;
}

static void say_files(const struct listing *listing, const struct hub_files *files,
                      void (*say)(void *context, const char *line), void *context)
{
    for (size_t i = 0; i < files->count && i < FILES_SAID; i++) {
        char line[HUB_FILE_MAX + HUB_TAG_MAX + UNITS_TEXT + 8], size[UNITS_TEXT], tag[HUB_TAG_MAX];
        hub_tag_of(files, i, tag);
        snprintf(line, sizeof line, "%10s  %s%-12s  %s",
                 units_format_size(choose_with_parts(listing, files->name[i], NULL), size), *tag ? ":" : " ",
                 tag, files->name[i]);
        say(context, line);
    }
    if (files->count > FILES_SAID) say(context, "            ... and others");
}

static int fail_without_model(const struct listing *listing, const struct hub_name *name,
                              struct helm_err *err)
{
    bool pickled = false;
    for (size_t i = 0; i < listing->count; i++)
        pickled =
            pickled || ends_with(listing->file[i].name, ".bin") || ends_with(listing->file[i].name, ".pth");
    return helm_fail(err, HELM_E_UNSUPPORTED, "%s has no model.safetensors and no GGUF file%s", name->repo,
                     pickled ? ": HELM does not read PyTorch's .bin files, which are programs" : "");
}

static int choose_gguf(const struct listing *listing, const struct hub_name *name,
                       const struct hub_files *files, struct choice *choice, struct helm_err *err)
{
    size_t which = 0;
    int rc = 0;
    if (name->tag[0] && !files->count)
        return helm_fail(err, HELM_E_NOT_FOUND, "%s has no GGUF file, which a tag such as :%s names",
                         name->repo, name->tag);
    if (!files->count) return fail_without_model(listing, name, err);
    if (name->tag[0])
        rc = hub_tag_find(files, name, &which, err);
    else if (files->count > 1)
        rc = helm_fail(err, HELM_E_USAGE,
                       "%s has %zu GGUF files: name one by its tag, `helm-cli pull %s:TAG`, or `%s/FILE`",
                       name->repo, files->count, name->repo, name->repo);
    if (rc) return rc;
    choice->model = files->name[which];
    choose_with_parts(listing, choice->model, choice->chosen);
    return 0;
}

static int choose_file(const struct listing *listing, const struct hub_name *name, struct choice *choice,
                       struct helm_err *err)
{
    if (!listing_find(listing, name->file))
        return helm_fail(err, HELM_E_NOT_FOUND, "%s has no file %s", name->repo, name->file);
    choose_with_parts(listing, name->file, choice->chosen);
    for (size_t i = 0; i < listing->count; i++)
        if (choice->chosen[i] && hub_file_is_gguf(listing->file[i].name))
            choice->model = listing->file[i].name;
    return 0;
}

int choose_files(const struct listing *listing, const struct hub_name *name, struct choice *choice,
                 void (*say)(void *context, const char *line), void *context, struct helm_err *err)
{
    struct hub_files files;
    choice->model = NULL;
    choice->checkpoint = false;
    if (name->file[0]) return choose_file(listing, name, choice, err);
    if (!name->tag[0] && (listing_find(listing, "model.safetensors") ||
                          listing_find(listing, "model.safetensors.index.json"))) {
        for (size_t i = 0; i < listing->count; i++)
            choice->chosen[i] = is_of_checkpoint(listing->file[i].name);
        choice->checkpoint = true;
        return 0;
    }
    int rc = list_ggufs(listing, &files, err);
    if (rc) return rc;
    rc = choose_gguf(listing, name, &files, choice, err);
    if (rc) say_files(listing, &files, say, context);
    free(files.name);
    return rc;
}
