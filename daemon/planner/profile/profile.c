/* Profiles: tables, what makes one good enough to plan with, files. See profile.h. */
#include "daemon/planner/profile/profile.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/units.h"

#define PATH_TEXT       4096
#define DISTURBANCE_MAX 0.75

struct profile_value profile_table_at(const struct profile_table *table, uint32_t x)
{
    const struct profile_point *point = table->point;
    uint32_t i = 0;
    if (table->count == 0) return (struct profile_value){0};
    while (i < table->count && point[i].x < x) i++;
    if (i == table->count) return point[i - 1].y;
    if (i == 0 || point[i].x == x) return point[i].y;
    const struct profile_value *a = &point[i - 1].y, *b = &point[i].y;
    double t = log((double)x / point[i - 1].x) / log((double)point[i].x / point[i - 1].x);
    return (struct profile_value){.value = a->value + t * (b->value - a->value),
                                  .low = a->low + t * (b->low - a->low),
                                  .high = a->high + t * (b->high - a->high),
                                  .source = a->source == b->source ? a->source : PROFILE_ESTIMATE};
}

static bool known(const struct profile_value *value)
{
    return value->source != PROFILE_UNKNOWN && value->value > 0;
}

/* A value that cannot be much faster than another, in the whole profile or in each of its formats. */
struct order {
    const char *fast, *limit;
    size_t fast_at, limit_at; /* in struct profile, or in struct profile_format */
    bool beside;              /* limit_at is in the format, too */
};
#define READ_OF_ALL SIZE_MAX /* as limit_at: cpu.read of all threads */
#define ORDER(fast, limit)                                                                                   \
    {                                                                                                        \
#fast, #limit, offsetof(struct profile, fast), offsetof(struct profile, limit)                       \
    }
#define BELOW_READ(type, fast)                                                                               \
    {                                                                                                        \
#fast, "cpu.read of all threads", offsetof(struct type, fast), READ_OF_ALL                           \
    }
static const struct order orders[] = {
    BELOW_READ(profile, cpu.gemv),    BELOW_READ(profile, cpu.gemv_packed),
    ORDER(gpu.gemv, gpu.read),        ORDER(gpu.chain_gemv, gpu.read),
    ORDER(link.h2d_beside, link.h2d), ORDER(link.h2d_beside_packed, link.h2d),
    ORDER(cpu.gemv_beside, cpu.gemv), ORDER(cpu.gemv_packed_beside, cpu.gemv_packed),
};
/* Rates of bytes as stored: no format's are read faster than memory is. */
#define OF_FORMAT(fast, limit)                                                                               \
    {                                                                                                        \
#fast, #limit, offsetof(struct profile_format, fast), offsetof(struct profile, limit)                \
    }
static const struct order format_orders[] = {
    BELOW_READ(profile_format, cpu_gemv),
    BELOW_READ(profile_format, cpu_int8_gemv),
    OF_FORMAT(gpu_gemv, gpu.read),
    OF_FORMAT(gpu_chain_gemv, gpu.read),
    {.fast = "cpu_gemv_beside",
     .limit = "cpu_gemv",
     .fast_at = offsetof(struct profile_format, cpu_gemv_beside),
     .limit_at = offsetof(struct profile_format, cpu_gemv),
     .beside = true},
};
#define COUNT(list) (sizeof(list) / sizeof *(list))

static const struct profile_value *value_at(const void *base, size_t at)
{
    return (const struct profile_value *)((const char *)base + at);
}

static bool in_order(const struct profile_value *fast, const struct profile_value *limit)
{
    return !known(fast) || !known(limit) || fast->value <= PROFILE_SLACK * limit->value;
}

static int check_order(const struct profile_value *fast, const char *fast_name,
                       const struct profile_value *limit, const char *limit_name, struct helm_err *err)
{
    if (in_order(fast, limit)) return 0;
    return helm_fail(err, HELM_E_FORMAT,
                     "profile: %s (%.3g a second) contradicts %s (%.3g): it cannot be faster", fast_name,
                     fast->value, limit_name, limit->value);
}

/* The limit of a value of `base`, which is the profile or one of its formats. */
static struct profile_value limit_of(const struct profile *profile, const void *base, const struct order *at)
{
    if (at->limit_at == READ_OF_ALL) return profile_table_at(&profile->cpu.read, profile->cpu.threads);
    return *value_at(at->beside ? base : profile, at->limit_at);
}

static int check_orders(const struct profile *profile, const void *base, const struct order *list,
                        size_t count, struct helm_err *err)
{
    int rc = 0;
    for (const struct order *at = list; at < list + count && !rc; at++) {
        const struct profile_value limit = limit_of(profile, base, at);
        rc = check_order(value_at(base, at->fast_at), at->fast, &limit, at->limit, err);
    }
    return rc;
}

static bool settle_value(struct profile_value *fast, const struct profile_value *limit)
{
    if (in_order(fast, limit)) return false;
    *fast = *limit;
    return true;
}

static bool settle_orders(const struct profile *profile, void *base, const struct order *list, size_t count)
{
    bool changed = false;
    for (const struct order *at = list; at < list + count; at++) {
        const struct profile_value limit = limit_of(profile, base, at);
        changed |= settle_value((struct profile_value *)((char *)base + at->fast_at), &limit);
    }
    return changed;
}

bool profile_settle(struct profile *profile)
{
    bool changed = settle_orders(profile, profile, orders, COUNT(orders));
    for (int f = 0; f < FORMAT_COUNT; f++) {
        changed |= settle_orders(profile, &profile->format[f], format_orders, COUNT(format_orders));
    }
    if (changed && profile->busy_percent < PROFILE_BUSY) profile->busy_percent = PROFILE_BUSY;
    return changed;
}

static int check_gpu(const struct profile *profile, struct helm_err *err)
{
    const struct profile_gpu *gpu = &profile->gpu;
    if (gpu->vram_bytes == 0) return helm_fail(err, HELM_E_FORMAT, "profile: gpu.vram_bytes is 0");
    if (gpu->vram_free > gpu->vram_bytes)
        return helm_fail(err, HELM_E_FORMAT,
                         "profile: gpu.vram_free is %llu bytes, more than the %llu there are",
                         (unsigned long long)gpu->vram_free, (unsigned long long)gpu->vram_bytes);
    if (known(&gpu->chain_gemv) != known(&gpu->chain_attention))
        return helm_fail(err, HELM_E_FORMAT,
                         "profile: of gpu.chain_gemv and gpu.chain_attention one is known and one is not");
    return 0;
}

bool profile_format_has_rates(enum tensor_format format)
{
    return format != FORMAT_BF16 && !tensor_format_of(format)->variable;
}

unsigned profile_formats_lacking(const struct profile *profile, unsigned formats)
{
    unsigned lacking = 0;
    for (int f = 0; f < FORMAT_COUNT; f++) {
        const struct profile_format *format = &profile->format[f];
        const bool there =
            known(&format->cpu_gemv) && (profile->gpu.device == PROFILE_DEVICE_NONE ||
                                         known(&format->gpu_gemv) || known(&format->gpu_expand));
        if (!there && profile_format_has_rates((enum tensor_format)f))
            lacking |= formats & format_bit((enum tensor_format)f);
    }
    return lacking;
}

void profile_formats_text(unsigned formats, char text[PROFILE_FORMATS_TEXT])
{
    size_t used = 0;
    text[0] = '\0';
    for (int f = 0; f < FORMAT_COUNT; f++)
        if (formats & format_bit((enum tensor_format)f) && used < PROFILE_FORMATS_TEXT)
            used += (size_t)snprintf(text + used, PROFILE_FORMATS_TEXT - used, "%s%s", used ? "," : "",
                                     tensor_format_name((enum tensor_format)f));
}

int profile_formats_read(const char *names, unsigned *formats, struct helm_err *err)
{
    *formats = 0;
    while (*names) {
        const size_t length = strcspn(names, ",");
        char name[24], known[PROFILE_FORMATS_TEXT];
        snprintf(name, sizeof name, "%.*s", (int)length, names);
        const enum tensor_format format = tensor_format_named(name);
        if (format == FORMAT_COUNT || !profile_format_has_rates(format)) {
            profile_formats_text(profile_formats_lacking(&(struct profile){.quick = false}, ~0u), known);
            return helm_fail(err, HELM_E_USAGE, "'%s' is none of %s", name, known);
        }
        *formats |= format_bit(format);
        names += length + (names[length] == ',');
    }
    return 0;
}

static int check_formats(const struct profile *profile, struct helm_err *err)
{
    int rc = 0;
    for (int f = 0; f < FORMAT_COUNT && !rc; f++) {
        const struct profile_format *format = &profile->format[f];
        rc = check_orders(profile, format, format_orders, COUNT(format_orders), err);
        if (!rc && known(&format->gpu_chain_gemv) && !known(&format->gpu_gemv))
            rc = helm_fail(err, HELM_E_FORMAT, "profile: gpu_chain_gemv is known and gpu_gemv is not");
        if (rc) helm_err_prefix(err, "formats.%s", tensor_format_name((enum tensor_format)f));
    }
    return rc;
}

double profile_disturbance(const struct profile *profile)
{
    const double taken = profile->busy_percent / (double)PERCENT;
    return profile->busy_percent < PROFILE_BUSY ? 0 : fmin(DISTURBANCE_MAX, taken / (1 - taken));
}

int profile_check(const struct profile *profile, struct helm_err *err)
{
    const struct profile_cpu *cpu = &profile->cpu;
    const struct profile_gpu *gpu = &profile->gpu;
    const struct profile_link *link = &profile->link;
    bool device = gpu->device != PROFILE_DEVICE_NONE;
    const struct {
        const char *name;
        bool needed, there;
    } list[] = {
        {"cpu.threads", true, cpu->threads > 0},
        {"cpu.read", true, cpu->read.count > 0},
        {"cpu.gemv", true, known(&cpu->gemv)},
        {"cpu.linear", true, cpu->linear.count > 0},
        {"cpu.attention", true, known(&cpu->attention)},
        {"cpu.attention_flops", true, known(&cpu->attention_flops)},
        {"cpu.gemv_beside", device, known(&cpu->gemv_beside)},
        {"gpu.read", device, known(&gpu->read)},
        {"gpu.gemv", device, known(&gpu->gemv)},
        {"gpu.linear", device, gpu->linear.count > 0},
        {"gpu.attention", device, known(&gpu->attention)},
        {"gpu.attention_flops", device, known(&gpu->attention_flops)},
        {"link.h2d", device, known(&link->h2d)},
        {"link.d2h", device, known(&link->d2h)},
        {"link.h2d_beside", device, known(&link->h2d_beside)},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (list[i].needed && !list[i].there)
            return helm_fail(err, HELM_E_FORMAT,
                             "profile: %s is unknown or 0; the planner cannot do without it", list[i].name);
    }
    int rc = check_orders(profile, profile, orders, COUNT(orders), err);
    if (!rc && device) rc = check_gpu(profile, err);
    return rc ? rc : check_formats(profile, err);
}

static int take_json(const char *what, const json_t *json, const char *gpu, struct profile *profile,
                     struct helm_err *err)
{
    int rc = profile_from_json(json, gpu, profile, err);
    if (!rc) rc = profile_check(profile, err);
    if (!rc) return 0;
    memset(profile, 0, sizeof *profile);
    return helm_err_prefix(err, "%s", what), rc;
}

int profile_parse(const char *what, const char *text, size_t bytes, struct profile *profile,
                  struct helm_err *err)
{
    json_t *json = NULL;
    memset(profile, 0, sizeof *profile);
    int rc = json_parse_bounded(what, text, bytes, PROFILE_BYTES_MAX, &json, err);
    if (!rc) rc = take_json(what, json, NULL, profile, err);
    json_decref(json);
    return rc;
}

int profile_read(const char *path, const char *gpu, struct profile *profile, struct helm_err *err)
{
    json_t *json = NULL;
    memset(profile, 0, sizeof *profile);
    int rc = json_read_file(path, PROFILE_BYTES_MAX, &json, err);
    if (!rc) rc = take_json(path, json, gpu, profile, err);
    json_decref(json);
    return rc;
}

static int write_all(int fd, const char *text, size_t length, const char *path, struct helm_err *err)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, text + done, length - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return helm_fail_errno(err, "writing %s", path);
        done += (size_t)n;
    }
    return 0;
}

/* A fresh file beside `path`, which takes its place when it is whole. */
static int open_beside(const char *path, char beside[PATH_TEXT], int *fd, struct helm_err *err)
{
    *fd = -1;
    if (snprintf(beside, PATH_TEXT, "%s.XXXXXX", path) >= PATH_TEXT)
        return helm_fail(err, HELM_E_LIMIT, "the profile's path is longer than %zu bytes",
                         PATH_TEXT - sizeof ".XXXXXX");
    *fd = mkstemp(beside);
    return *fd < 0 ? helm_fail_errno(err, "creating %s", beside) : 0;
}

int profile_write_check(const char *path, struct helm_err *err)
{
    char beside[PATH_TEXT];
    struct stat st;
    int fd;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return helm_fail(err, HELM_E_IO, "%s is a folder", path);
    int rc = file_check_parent(path, err);
    if (!rc) rc = open_beside(path, beside, &fd, err);
    if (rc) return rc;
    close(fd);
    unlink(beside);
    return 0;
}

int profile_write_json(const char *path, json_t *json, struct helm_err *err)
{
    char beside[PATH_TEXT];
    int fd = -1, rc = 0;
    char *text = NULL;
    if (json)
        text = json_dumps(json, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(FLT_DECIMAL_DIG));
    json_decref(json);
    if (!text) return helm_fail(err, HELM_E_NOMEM, "no memory to print %s", path);
    rc = open_beside(path, beside, &fd, err);
    if (rc) goto out;
    rc = write_all(fd, text, strlen(text), beside, err);
    if (!rc) rc = write_all(fd, "\n", 1, beside, err);
    if (!rc &&
        fchmod(fd, S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH)) /* nothing secret; mkstemp: the owner's alone */
        rc = helm_fail_errno(err, "%s", beside);
    if (close(fd) && !rc) rc = helm_fail_errno(err, "writing %s", beside);
    if (!rc && rename(beside, path)) rc = helm_fail_errno(err, "renaming %s to %s", beside, path);
    if (rc) unlink(beside);
out:
    free(text);
    return rc;
}

int profile_write(const char *path, const struct profile *profile, struct helm_err *err)
{
    return profile_write_json(path, profile_to_json(profile), err);
}

/* mkdir -p, with the rights that the caller's umask leaves. */
static int make_folders(char *path, struct helm_err *err)
{
    for (char *at = path + 1;; at++) {
        if (*at && *at != '/') continue;
        char saved = *at;
        *at = '\0';
        if (mkdir(path, ACCESSPERMS) && errno != EEXIST)
            return helm_fail_errno(err, "making the folder %s", path);
        *at = saved;
        if (!saved) return 0;
    }
}

int profile_cache_path(const char *fingerprint, char *path, size_t size, struct helm_err *err)
{
    if (size) path[0] = '\0';
    if (!*fingerprint || fingerprint[strspn(fingerprint, "0123456789abcdef")])
        return helm_fail(err, HELM_E_FORMAT, "'%.40s' is no fingerprint", fingerprint);
    return profile_cache_file(fingerprint, path, size, err);
}

int profile_cache_file(const char *name, char *path, size_t size, struct helm_err *err)
{
    const char *state = getenv("STATE_DIRECTORY"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[PATH_TEXT];
    struct stat st;
    int n;
    if (size) path[0] = '\0';
    if (state && *state == '/') /* systemd's list, the first folder of it */
        n = snprintf(folder, sizeof folder, "%.*s/profiles", (int)strcspn(state, ":"), state);
    else if (cache && *cache == '/')
        n = snprintf(folder, sizeof folder, "%s/helm/profiles", cache);
    else if (home && *home == '/' && (stat(home, &st) || !S_ISDIR(st.st_mode)))
        return helm_fail(err, HELM_E_NOT_FOUND,
                         "there is no place for profiles: HOME is %s, which is no folder", home);
    else if (home && *home == '/')
        n = snprintf(folder, sizeof folder, "%s/.cache/helm/profiles", home);
    else
        return helm_fail(err, HELM_E_NOT_FOUND,
                         "none of STATE_DIRECTORY, XDG_CACHE_HOME and HOME says where to keep profiles");
    if (n < 0 || (size_t)n >= sizeof folder ||
        snprintf(path, size, "%s/%s.json", folder, name) >= (int)size) {
        if (size) path[0] = '\0';
        return helm_fail(err, HELM_E_LIMIT, "the profile's path is longer than %zu bytes", size);
    }
    return 0;
}

int profile_cache_make(const char *path, struct helm_err *err)
{
    char folder[PATH_TEXT];
    const char *end = strrchr(path, '/');
    if (!end || end == path) return 0;
    if ((size_t)(end - path) >= sizeof folder)
        return helm_fail(err, HELM_E_LIMIT, "the profile's path is longer than %d bytes", PATH_TEXT);
    snprintf(folder, sizeof folder, "%.*s", (int)(end - path), path);
    return make_folders(folder, err);
}
