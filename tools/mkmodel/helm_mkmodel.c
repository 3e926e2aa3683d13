/* helm-mkmodel: a random checkpoint in Hugging Face layout, for benchmarks and tests.
 *
 * Start order only: options, configuration, room on the disk, weights, then config.json last, so that a
 * folder that was not finished is not taken for a model. The work is in tools/mkmodel. */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/args.h"
#include "common/base/file.h"
#include "common/base/units.h"
#include "common/base/words.h"
#include "tools/interrupt/interrupt.h"
#include "tools/mkmodel/mkmodel.h"

#define JSON_STYLE      (JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15))
#define TOKENIZER_BYTES ((size_t)256 << 20)

struct options {
    const char *arch, *size, *config, *dtype, *out, *tokenizer;
    uint64_t seed, shard_bytes, threads;
    double embedding;
    bool force;
};

static int path_in(const char *folder, const char *name, char path[4096], struct helm_err *err)
{
    int n = snprintf(path, 4096, "%s/%s", folder, name);
    return n > 0 && n < 4096 ? 0 : helm_fail(err, HELM_E_LIMIT, "the path of %s is too long", name);
}

static int write_json(const char *folder, const char *name, const json_t *value, struct helm_err *err)
{
    char path[4096];
    int rc = path_in(folder, name, path, err);
    if (rc) return rc;
    char *text = value ? json_dumps(value, JSON_STYLE) : NULL;
    if (!text) return helm_fail(err, HELM_E_NOMEM, "no memory for %s", name);
    FILE *file = fopen(path, "w");
    if (!file) {
        free(text);
        return helm_fail_errno(err, "%s: cannot create", path);
    }
    bool bad = fprintf(file, "%s\n", text) < 0;
    bad |= fclose(file) != 0;
    free(text);
    return bad ? helm_fail_errno(err, "%s: cannot write", path) : 0;
}

static bool is_checkpoint_file(const char *name)
{
    static const char suffix[] = ".safetensors";
    size_t length = strlen(name), tail = sizeof suffix - 1;
    return WORD_IS(name, "config.json", "model.safetensors.index.json", "model.safetensors") ||
           (strncmp(name, "model-", 6) == 0 && length > tail && strcmp(name + length - tail, suffix) == 0);
}

enum old_files { OLD_FILES_MEASURE, OLD_FILES_REMOVE };

/* The files of an earlier checkpoint in the folder: *count and *bytes of them, or their removal. */
static int visit_old_files(const char *folder, enum old_files what, uint32_t *count, uint64_t *bytes,
                           struct helm_err *err)
{
    char path[4096];
    struct stat st;
    int rc = 0;
    DIR *dir = opendir(folder);
    *count = 0;
    *bytes = 0;
    if (!dir) return helm_fail_errno(err, "%s: cannot list", folder);
    for (struct dirent *entry; !rc && (entry = readdir(dir));) {
        if (!is_checkpoint_file(entry->d_name)) continue;
        rc = path_in(folder, entry->d_name, path, err);
        ++*count;
        if (!rc && what == OLD_FILES_MEASURE && lstat(path, &st) == 0) *bytes += (uint64_t)st.st_blocks * 512;
        if (!rc && what == OLD_FILES_REMOVE && unlink(path))
            rc = helm_fail_errno(err, "%s: cannot remove", path);
    }
    closedir(dir);
    return rc;
}

static int check_room(const char *folder, const struct model_config *config, uint64_t freed,
                      struct helm_err *err)
{
    struct statvfs fs;
    char need[UNITS_TEXT], have[UNITS_TEXT];
    uint64_t bytes;
    const int rc = mkmodel_bytes(config, &bytes, err);
    if (rc) return rc;
    if (statvfs(folder, &fs)) return helm_fail_errno(err, "%s: cannot ask for its free space", folder);
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize + freed;
    if (bytes <= room) return 0;
    return helm_fail(err, HELM_E_CAPACITY, "%s: the weights need %s, the file system has %s", folder,
                     units_format_size(bytes, need), units_format_size(room, have));
}

/* A folder with an earlier checkpoint is refused, or with --force emptied of what would mix with the new one:
 * but only once it is known that the new one fits. */
static int prepare_folder(const struct options *options, const struct model_config *config, bool *made,
                          struct helm_err *err)
{
    uint32_t count;
    uint64_t bytes;
    *made = mkdir(options->out, 0755) == 0;
    if (!*made && errno != EEXIST) return helm_fail_errno(err, "%s: cannot create", options->out);
    int rc = visit_old_files(options->out, OLD_FILES_MEASURE, &count, &bytes, err);
    if (rc) return rc;
    if (count && !options->force)
        return helm_fail(err, HELM_E_USAGE, "%s holds a checkpoint already; --force replaces it",
                         options->out);
    rc = check_room(options->out, config, bytes, err);
    return rc || !count ? rc : visit_old_files(options->out, OLD_FILES_REMOVE, &count, &bytes, err);
}

/* Removes the files of a run that did not end well. The folder goes where it is empty then, and was made by
 * this run. */
static void remove_unfinished(const struct options *options, bool made, bool copied)
{
    const char *const names[] = {"generation_config.json", "tokenizer.json"};
    uint32_t count;
    uint64_t bytes;
    char path[4096];
    struct helm_err none = {0};
    (void)!visit_old_files(options->out, OLD_FILES_REMOVE, &count, &bytes, &none);
    for (size_t i = 0; i < 2 && copied; i++)
        if ((i == 0 || options->tokenizer) && !path_in(options->out, names[i], path, &none)) unlink(path);
    if (made) rmdir(options->out);
}

static int copy_tokenizer(const char *from, const char *folder, struct helm_err *err)
{
    char path[4096], *text = NULL;
    size_t length = 0;
    int rc = path_in(folder, "tokenizer.json", path, err);
    if (!rc) rc = file_read(from, TOKENIZER_BYTES, &text, &length, err);
    if (rc) return rc;
    FILE *file = fopen(path, "w");
    bool bad = !file || fwrite(text, 1, length, file) != length;
    if (file) bad |= fclose(file) != 0;
    free(text);
    return bad ? helm_fail_errno(err, "%s: cannot write", path) : 0;
}

static uint32_t usable_cpus(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count > 0 ? (uint32_t)count : 1;
}

static int make_model(const struct options *options, struct helm_err *err)
{
    struct model_config config = {0};
    struct mkmodel_result made;
    json_t *root = NULL, *generation = NULL;
    char *text = NULL, size_text[UNITS_TEXT];
    bool folder_made = false;
    enum dtype dtype = strcmp(options->dtype, "fp16") == 0 ? DTYPE_F16 : DTYPE_BF16;
    int rc = options->config ? mkmodel_config_file(options->config, dtype, &root, err)
                             : mkmodel_preset(options->arch, options->size, dtype, &root, err);
    if (rc) return rc;
    text = json_dumps(root, JSON_STYLE);
    rc = text ? model_config_parse(options->config ? options->config : "config.json", text, strlen(text),
                                   &config, err)
              : helm_fail(err, HELM_E_NOMEM, "no memory for the configuration");
    if (!rc) rc = prepare_folder(options, &config, &folder_made, err);
    if (rc && folder_made) rmdir(options->out);
    if (rc) goto out;
    struct mkmodel_request request = {.config = &config,
                                      .folder = options->out,
                                      .dtype = dtype,
                                      .seed = options->seed,
                                      .shard_bytes = options->shard_bytes,
                                      .embedding = options->embedding,
                                      .stopped = interrupt_noted,
                                      .threads =
                                          options->threads ? (uint32_t)options->threads : usable_cpus()};
    rc = mkmodel_write(&request, &made, err);
    const bool weights = rc == 0;
    if (!rc && options->tokenizer) rc = copy_tokenizer(options->tokenizer, options->out, err);
    generation = mkmodel_generation(root);
    if (!rc) rc = write_json(options->out, "generation_config.json", generation, err);
    if (!rc) rc = write_json(options->out, "config.json", root, err);
    if (rc) remove_unfinished(options, folder_made, weights);
    if (rc) goto out;
    printf("%s: %s, %llu tensors in %llu file%s, %s in %.2f s (%.2f GB/s)\n", options->out,
           config.architecture, (unsigned long long)made.tensors, (unsigned long long)made.shards,
           made.shards == 1 ? "" : "s", units_format_size(made.bytes, size_text), made.seconds,
           (double)made.bytes / 1e9 / made.seconds);
out:
    free(text);
    json_decref(root);
    json_decref(generation);
    model_config_free(&config);
    return rc;
}

static int check_options(const struct options *options, struct helm_err *err)
{
    if (!options->out) return helm_fail(err, HELM_E_USAGE, "--out DIR is missing");
    if (options->config && (options->arch || options->size))
        return helm_fail(err, HELM_E_USAGE, "--config excludes --arch and --size");
    if (!options->config && (!options->arch || !options->size))
        return helm_fail(err, HELM_E_USAGE, "give --arch and --size, or --config FILE");
    return 0;
}

int main(int argc, char **argv)
{
    struct options options = {.dtype = "bf16", .shard_bytes = 4 * GIB};
    struct args_parsed parsed;
    struct helm_err err = {0};
    const struct args_option table[] = {
        {"arch", 0, ARGS_CHOICE, NULL, "architecture", .choices = MKMODEL_ARCHS, .target = &options.arch},
        {"size", 0, ARGS_CHOICE, NULL, "shape: that of the Qwen3 model of this size",
         .choices = MKMODEL_SIZES, .target = &options.size},
        {"config", 0, ARGS_TEXT, "FILE", "a config.json of your own, in place of both",
         .target = &options.config},
        {"dtype", 0, ARGS_CHOICE, NULL, "type of the weights (bf16)", .choices = "bf16|fp16",
         .target = &options.dtype},
        {"seed", 0, ARGS_U64, "S", "same seed, same weights (0)", .target = &options.seed},
        {"out", 0, ARGS_TEXT, "DIR", "folder to write; created if it does not exist", .target = &options.out},
        {"tokenizer", 0, ARGS_TEXT, "FILE", "copied to DIR/tokenizer.json", .target = &options.tokenizer},
        {"shard-size", 0, ARGS_SIZE, "SIZE", "largest file of weights (4GiB)",
         .target = &options.shard_bytes},
        {"threads", 0, ARGS_U64, "N", "threads that write (one a usable CPU)", .target = &options.threads,
         .min = 1, .max = 256},
        {"embedding", 0, ARGS_DOUBLE, "SIZE",
         "root mean square of embeddings (as other matrices': 1 / sqrt(columns)); with 16 layers add little\n"
         "to them, so that a mixture's tokens choose their experts evenly",
         .target = &options.embedding, .min = 0, .max = 1000},
        {"force", 0, ARGS_FLAG, NULL, "replace a checkpoint that is already in DIR",
         .target = &options.force},
    };
    const struct args_spec spec = {
        .program = "helm-mkmodel",
        .usage = "--arch ARCH --size SIZE --out DIR [options]\n--config FILE --out DIR [options]",
        .about = "Writes a checkpoint with random weights in Hugging Face layout.",
        ARGS_TABLE(table),
        .epilogue = "exit status: 0 done, 1 failed, 2 usage"};
    args_parse_main(&spec, argc, argv, &parsed);
    if (check_options(&options, &err)) return args_usage_error(&spec, &err);
    interrupt_note();
    const int rc = make_model(&options, &err);
    if (rc && !interrupt_noted()) fprintf(stderr, "helm-mkmodel: %s\n", err.text);
    return interrupt_end(rc == 0 ? 0 : rc == HELM_E_USAGE ? 2 : 1);
}
