/* From the hub into its cache. See pull.h.
 *
 * Order: list the repository -> choose -> can it run? -> is there room? -> each file into blobs/, weights
 * last, then its name in snapshots/ -> the branch's name in refs/. Owns the descriptors while it works. */
#include "client/hub/pull.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "client/hub/choose.h"
#include "client/hub/probe.h"
#include "client/hub/transfer.h"
#include "common/base/file.h"
#include "common/base/units.h"

#define ENDPOINT        "https://huggingface.co"
#define TOKEN_MAX       1000
#define READ_BYTES      (1u << 20)
#define LOCK_MS         250
#define RIGHT_BYTES_MAX ((size_t)64 << 20)
#define PATH_TEXT       (PATH_MAX + HUB_FILE_MAX)

struct pull {
    const struct pull_request *request;
    struct transfer *transfer;
    struct listing listing;
    struct choice choice;
    char endpoint[512], token[TOKEN_MAX + 1], repo_folder[PATH_MAX];
    struct pull_progress progress;
    uint64_t before; /* bytes of the files that are done */
};

static bool go_on(void *context, uint64_t at)
{
    struct pull *p = context;
    p->progress.at = p->before + at;
    return !p->request->progress || p->request->progress(p->request->context, &p->progress);
}

/* ---- where from ---- */

static bool is_set(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value && strcmp(value, "0") != 0;
}

/* $HF_TOKEN, $HUGGING_FACE_HUB_TOKEN, the file of $HF_TOKEN_PATH, or `token` beside the cache; "" for
 * none. */
static int read_token(struct pull *p, struct helm_err *err)
{
    const char *token = getenv("HF_TOKEN"), *named = getenv("HF_TOKEN_PATH"), *home = getenv("HF_HOME");
    const char *cache = getenv("XDG_CACHE_HOME"), *user = getenv("HOME");
    char path[PATH_MAX] = "", *text = NULL;
    size_t length = 0;
    int rc = 0;
    if (!token || !*token) token = getenv("HUGGING_FACE_HUB_TOKEN");
    if (!token || !*token) {
        if (named && *named)
            snprintf(path, sizeof path, "%s", named);
        else if (home && *home)
            snprintf(path, sizeof path, "%s/token", home);
        else if (cache && *cache)
            snprintf(path, sizeof path, "%s/huggingface/token", cache);
        else if (user && *user)
            snprintf(path, sizeof path, "%s/.cache/huggingface/token", user);
        if (!*path || access(path, F_OK)) return 0;
        rc = file_read(path, TOKEN_MAX + 2, &text, &length, err);
        if (rc) return rc;
        token = text;
    }
    length = strcspn(token, "\r\n");
    for (size_t i = 0; i < length && !rc; i++)
        if (token[i] < 0x21 || token[i] > 0x7e) rc = HELM_E_FORMAT;
    if (rc || length > TOKEN_MAX)
        rc = helm_fail(err, HELM_E_FORMAT, "the hub's token%s%s is none: it has blanks or is too long",
                       *path ? " in " : "", path);
    else
        memcpy(p->token, token, length);
    free(text);
    return rc;
}

static bool is_loopback(const char *endpoint)
{
    static const char *const hosts[] = {"http://127.0.0.1", "http://localhost", "http://[::1]"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const size_t n = strlen(hosts[i]);
        if (strncmp(endpoint, hosts[i], n) == 0 && strchr(":/", endpoint[n])) return true;
    }
    return false;
}

static int open_hub(struct pull *p, struct helm_err *err)
{
    const char *named = getenv("HF_ENDPOINT");
    if (is_set("HF_HUB_OFFLINE"))
        return helm_fail(err, HELM_E_PERMISSION, "HF_HUB_OFFLINE is set: nothing is fetched");
    if (!named || !*named) named = ENDPOINT;
    if ((strncmp(named, "https://", 8) != 0 && strncmp(named, "http://", 7) != 0) ||
        strlen(named) >= sizeof p->endpoint)
        return helm_fail(err, HELM_E_USAGE, "HF_ENDPOINT is no http:// or https:// address: %.200s", named);
    snprintf(p->endpoint, sizeof p->endpoint, "%s", named);
    for (size_t n = strlen(p->endpoint); n && p->endpoint[n - 1] == '/';) p->endpoint[--n] = '\0';
    int rc = read_token(p, err);
    if (rc) return rc;
    if (p->token[0] && strncmp(p->endpoint, "http://", 7) == 0 && !is_loopback(p->endpoint)) {
        p->request->say(p->request->context, "the token is not sent: HF_ENDPOINT is not https");
        p->token[0] = '\0';
    }
    const struct transfer_options options = {.endpoint = p->endpoint,
                                             .token = p->token[0] ? p->token : NULL,
                                             .go_on = go_on,
                                             .context = p};
    return transfer_open(&options, &p->transfer, err);
}

/* ---- the cache ---- */

static int make_folders(const char *path, struct helm_err *err)
{
    char text[PATH_TEXT];
    snprintf(text, sizeof text, "%s", path);
    for (char *at = text + 1;; at++) {
        if (*at && *at != '/') continue;
        const char saved = *at;
        *at = '\0';
        if (mkdir(text, 0777) && errno != EEXIST) return helm_fail_errno(err, "making the folder %s", text);
        *at = saved;
        if (!saved) return 0;
    }
}

/* The folders that a file's path needs. */
static int make_parents(const char *path, struct helm_err *err)
{
    char text[PATH_TEXT];
    snprintf(text, sizeof text, "%s", path);
    *strrchr(text, '/') = '\0';
    return make_folders(text, err);
}

/* Written beside and renamed, so that readers see either the old one or the new one. */
static int replace(const char *path, int (*make)(const char *beside, const char *what), const char *what,
                   struct helm_err *err)
{
    char beside[PATH_TEXT + 16];
    int rc = make_parents(path, err);
    if (rc) return rc;
    snprintf(beside, sizeof beside, "%s.%ld~", path, (long)getpid());
    unlink(beside);
    if (make(beside, what) == 0 && rename(beside, path) == 0) return 0;
    rc = helm_fail_errno(err, "writing %s", path);
    unlink(beside);
    return rc;
}

static int make_link(const char *beside, const char *target)
{
    return symlink(target, beside);
}

static int make_text(const char *beside, const char *text)
{
    FILE *file = fopen(beside, "wxe");
    if (!file) return -1;
    const bool bad = fputs(text, file) < 0;
    return fclose(file) || bad ? -1 : 0;
}

/* snapshots/COMMIT/FOLDER/FILE -> ../../../blobs/ID */
static int link_file(const struct pull *p, const struct listing_file *f, struct helm_err *err)
{
    char path[PATH_TEXT], target[PATH_TEXT], old[PATH_TEXT];
    size_t used = (size_t)snprintf(target, sizeof target, "../../");
    snprintf(path, sizeof path, "%.3000s/snapshots/%s/%s", p->repo_folder, p->listing.commit, f->name);
    for (const char *c = f->name; *c; c++)
        if (*c == '/') used += (size_t)snprintf(target + used, sizeof target - used, "../");
    snprintf(target + used, sizeof target - used, "blobs/%s", f->id);
    const ssize_t n = readlink(path, old, sizeof old - 1);
    if (n > 0 && (size_t)n == strlen(target) && memcmp(old, target, (size_t)n) == 0) return 0;
    return replace(path, make_link, target, err);
}

/* As the hub's own programs lock it, so that they wait for each other. */
static int lock_blob(struct pull *p, const char *id, int *fd, struct helm_err *err)
{
    char path[PATH_TEXT];
    const char *name = strrchr(p->repo_folder, '/');
    bool said = false;
    snprintf(path, sizeof path, "%.*s/.locks%s/%s.lock", (int)(name - p->repo_folder), p->repo_folder, name,
             id);
    int rc = make_parents(path, err);
    if (rc) return rc;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) return helm_fail_errno(err, "%s", path);
    while (flock(*fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR) return helm_fail_errno(err, "locking %s", path);
        if (!said)
            p->request->say(p->request->context, "another program is fetching this file: waiting for it");
        said = true;
        if (!go_on(p, 0)) return helm_fail(err, HELM_E_CANCELLED, "ended on request");
        units_sleep_ms(LOCK_MS);
    }
    return 0;
}

static bool is_there(const char *path, uint64_t bytes)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == bytes;
}

/* ---- one file ---- */

/* Takes up the bytes that an earlier run left, counted again: a checksum is of all bytes. */
static int take_up(struct pull *p, struct transfer_file *t, struct helm_err *err)
{
    struct stat st;
    checksum_begin(&t->sum, t->id, t->bytes);
    if (fstat(t->fd, &st)) return helm_fail_errno(err, "%s", t->name);
    const uint64_t there = (uint64_t)st.st_size > t->bytes ? 0 : (uint64_t)st.st_size;
    if (there != (uint64_t)st.st_size && ftruncate(t->fd, 0)) return helm_fail_errno(err, "%s", t->name);
    char *buffer = there ? malloc(READ_BYTES) : NULL;
    int rc = there && !buffer ? helm_fail(err, HELM_E_NOMEM, "no memory to read %s", t->name) : 0;
    while (!rc && t->at < there) {
        const size_t part = there - t->at < READ_BYTES ? (size_t)(there - t->at) : READ_BYTES;
        rc = file_pread_all(t->fd, buffer, part, t->at, t->name, err);
        if (!rc) checksum_add(&t->sum, buffer, part);
        t->at += part;
        if (!rc && !go_on(p, t->at)) rc = helm_fail(err, HELM_E_CANCELLED, "ended on request");
    }
    free(buffer);
    return rc;
}

static int check_sum(struct transfer_file *t, uint64_t left, struct helm_err *err)
{
    char text[CHECKSUM_TEXT], size[UNITS_TEXT];
    checksum_end(&t->sum, text);
    if (strcmp(text, t->id) == 0) return 0;
    if (left)
        return helm_fail(
            err, HELM_E_MISMATCH,
            "%s: its checksum is %s, the hub lists %s: the %s that an earlier run left were wrong, "
            "or what came since is; all of it is removed, run this again",
            t->name, text, t->id, units_format_size(left, size));
    return helm_fail(
        err, HELM_E_MISMATCH,
        "%s: what came has the checksum %s, the hub lists %s: nothing of it is kept, run this again", t->name,
        text, t->id);
}

/* *right: the cache has what the hub lists. A file of more than RIGHT_BYTES_MAX was compared when it came,
 * and is not read again. */
static int look_for(const char *blob, const struct listing_file *f, bool *there, bool *right,
                    struct helm_err *err)
{
    struct checksum sum;
    char text[CHECKSUM_TEXT], *data = NULL;
    size_t length = 0;
    *there = *right = is_there(blob, f->bytes);
    if (!*there || f->bytes > RIGHT_BYTES_MAX) return 0;
    int rc = file_read(blob, RIGHT_BYTES_MAX, &data, &length, err);
    if (rc) return rc;
    checksum_begin(&sum, f->id, length);
    checksum_add(&sum, data, length);
    checksum_end(&sum, text);
    free(data);
    *right = strcmp(text, f->id) == 0;
    return 0;
}

static int fetch_blob(struct pull *p, const struct listing_file *f, const char *blob, struct helm_err *err)
{
    char part[PATH_TEXT], *path = transfer_file_path(p->request->name.repo, p->listing.commit, f->name);
    struct transfer_file t = {.name = f->name, .id = f->id, .bytes = f->bytes, .path = path};
    int rc = path ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a URL");
    snprintf(part, sizeof part, "%s.incomplete", blob);
    t.fd = rc ? -1 : open(part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (!rc && t.fd < 0) rc = helm_fail_errno(err, "%s", part);
    if (!rc) rc = take_up(p, &t, err);
    const uint64_t left = t.at;
    if (!rc) rc = transfer_file(p->transfer, &t, err);
    if (!rc) rc = check_sum(&t, left, err);
    if (!rc && fdatasync(t.fd)) rc = helm_fail_errno(err, "writing %s", part);
    if (!rc && rename(part, blob)) rc = helm_fail_errno(err, "renaming %s", part);
    if (rc == HELM_E_MISMATCH) unlink(part);
    if (t.fd >= 0) close(t.fd);
    free(path);
    return rc;
}

/* Fetches a blob that is not there, or whose bytes are wrong. */
static int have_blob(struct pull *p, const struct listing_file *f, struct helm_err *err)
{
    char blob[PATH_TEXT], line[HUB_FILE_MAX + 80];
    int lock = -1;
    bool there, right;
    snprintf(blob, sizeof blob, "%.3000s/blobs/%s", p->repo_folder, f->id);
    int rc = look_for(blob, f, &there, &right, err);
    if (rc || right) return rc;
    rc = lock_blob(p, f->id, &lock, err);
    if (!rc) rc = look_for(blob, f, &there, &right, err);
    if (!rc && there && !right) {
        snprintf(line, sizeof line, "%s: the cache has wrong bytes of it, which are fetched again", f->name);
        p->request->say(p->request->context, line);
        if (unlink(blob)) rc = helm_fail_errno(err, "removing %s", blob);
    }
    if (!rc && !right) rc = fetch_blob(p, f, blob, err);
    if (lock >= 0) close(lock);
    return rc;
}

static int fetch_file(struct pull *p, const struct listing_file *f, struct helm_err *err)
{
    p->progress.file = f->name;
    p->progress.bytes = f->bytes;
    p->progress.done = false;
    p->progress.number++;
    int rc = have_blob(p, f, err);
    if (!rc) rc = link_file(p, f, err);
    if (rc) return rc;
    p->progress.done = true;
    (void)go_on(p, f->bytes);
    p->before += f->bytes;
    return 0;
}

/* ---- all of them ---- */

static int list(struct pull *p, struct helm_err *err)
{
    char *text = NULL, *path = NULL, *revision = transfer_escape(p->request->revision, false);
    size_t length = 0;
    int rc = revision && asprintf(&path, "/api/models/%s/revision/%s?blobs=true", p->request->name.repo,
                                  revision) >= 0
                 ? 0
                 : helm_fail(err, HELM_E_NOMEM, "no memory for a URL");
    if (!rc) rc = transfer_text(p->transfer, path, LISTING_BYTES_MAX, &text, &length, err);
    if (!rc) rc = listing_parse(text, length, &p->listing, err);
    if (rc) helm_err_prefix(err, "%s", p->request->name.repo);
    free(text);
    free(path);
    free(revision);
    return rc;
}

/* Each of the chosen has a name in blobs/, which is its checksum. */
static int check_ids(const struct pull *p, struct helm_err *err)
{
    for (size_t i = 0; i < p->listing.count; i++)
        if (p->choice.chosen[i] && !p->listing.file[i].id[0])
            return helm_fail(err, HELM_E_UNSUPPORTED,
                             "the hub does not say which blob %s is: without a checksum nothing is kept",
                             p->listing.file[i].name);
    return 0;
}

static int check_room(struct pull *p, struct helm_err *err)
{
    struct statvfs disk;
    char blob[PATH_TEXT], needed_text[UNITS_TEXT], free_text[UNITS_TEXT];
    uint64_t needed = 0;
    for (size_t i = 0; i < p->listing.count; i++) {
        const struct listing_file *f = &p->listing.file[i];
        struct stat st;
        if (!p->choice.chosen[i]) continue;
        p->progress.all += f->bytes;
        p->progress.count++;
        snprintf(blob, sizeof blob, "%.3000s/blobs/%s", p->repo_folder, f->id);
        if (is_there(blob, f->bytes)) continue;
        snprintf(blob, sizeof blob, "%.3000s/blobs/%s.incomplete", p->repo_folder, f->id);
        needed +=
            f->bytes - (stat(blob, &st) == 0 && (uint64_t)st.st_size <= f->bytes ? (uint64_t)st.st_size : 0);
    }
    if (statvfs(p->repo_folder, &disk)) return helm_fail_errno(err, "%s", p->repo_folder);
    const uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (needed <= room) return 0;
    return helm_fail(err, HELM_E_CAPACITY, "%s: needs %s, %s is free (HF_HOME names another place)",
                     p->repo_folder, units_format_size(needed, needed_text),
                     units_format_size(room, free_text));
}

static bool is_of_weights(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (strcmp(dot, ".safetensors") == 0 || strcmp(dot, ".gguf") == 0);
}

/* Small files, which say what the rest is, come first. */
static int fetch_chosen(struct pull *p, struct helm_err *err)
{
    int rc = 0;
    for (int weights = 0; weights < 2; weights++)
        for (size_t i = 0; i < p->listing.count && !rc; i++)
            if (p->choice.chosen[i] && is_of_weights(p->listing.file[i].name) == weights)
                rc = fetch_file(p, &p->listing.file[i], err);
    return rc;
}

static int fetch_all(struct pull *p, struct helm_err *err)
{
    const struct pull_request *r = p->request;
    char text[PATH_TEXT];
    snprintf(text, sizeof text, "%.3000s/blobs", p->repo_folder);
    int rc = make_folders(text, err);
    if (!rc) rc = check_room(p, err);
    if (!rc) rc = fetch_chosen(p, err);
    snprintf(text, sizeof text, "%.3000s/refs/%s", p->repo_folder, r->revision);
    if (!rc && strcmp(r->revision, p->listing.commit) != 0)
        rc = replace(text, make_text, p->listing.commit, err);
    return rc;
}

/* Whether HELM runs it; a file that is named and is no model is fetched for other programs. */
static int check_model(struct pull *p, struct helm_err *err)
{
    char blobs[PATH_TEXT];
    const struct probe probe = {.transfer = p->transfer,
                                .listing = &p->listing,
                                .chosen = p->choice.chosen,
                                .repo = p->request->name.repo,
                                .blobs = blobs,
                                .model = p->choice.model};
    int rc = hub_repo_folder(&p->request->name, p->repo_folder, err);
    if (rc) return rc;
    if (strlen(p->repo_folder) > 3000) return helm_fail(err, HELM_E_LIMIT, "the cache has too long a path");
    snprintf(blobs, sizeof blobs, "%.3000s/blobs", p->repo_folder);
    return p->choice.model || p->choice.checkpoint ? probe_model(&probe, err) : 0;
}

int pull_model(const struct pull_request *request, struct pulled *pulled, struct helm_err *err)
{
    struct pull p = {.request = request};
    const struct hub_name *name = &request->name;
    if (!hub_file_is_safe(request->revision))
        return helm_fail(err, HELM_E_USAGE, "'%.100s' is no revision", request->revision);
    int rc = open_hub(&p, err);
    if (!rc) rc = list(&p, err);
    if (!rc && !(p.choice.chosen = calloc(p.listing.count + 1, sizeof *p.choice.chosen)))
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for the list of files");
    if (!rc) rc = choose_files(&p.listing, name, &p.choice, request->say, request->context, err);
    if (!rc) rc = check_ids(&p, err);
    if (!rc) rc = check_model(&p, err);
    if (!rc) rc = fetch_all(&p, err);
    const char *file = p.choice.model ? p.choice.model : name->file;
    pulled->model = p.choice.model || p.choice.checkpoint;
    snprintf(pulled->path, sizeof pulled->path, "%.3000s/snapshots/%s%s%.600s", p.repo_folder,
             p.listing.commit, *file ? "/" : "", file);
    transfer_close(p.transfer);
    listing_free(&p.listing);
    free(p.choice.chosen);
    explicit_bzero(p.token, sizeof p.token);
    return rc;
}
