/* The beginnings of a model's files, read as a model. See probe.h.
 *
 * Order: config.json and generation_config.json whole, or of each GGUF file as many bytes as its header has
 * -> into a folder -> model_read_headers. A file that the cache has is read there. */
#include "client/hub/probe.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/model/gguf.h"
#include "common/model/checkpoint.h"

#define FIRST_BYTES ((uint64_t)1 << 20) /* of a GGUF file; twice as many while its header goes on */
#define CONFIG_MAX  ((uint64_t)1 << 20)
#define FOLDER_TEXT 200
#define CONFIG_FILE "config.json"

/* The beginning of one file. */
struct piece {
    const struct listing_file *file;
    char *path; /* at the hub */
    int fd;     /* of its blob; -1: the cache does not have it */
    char *bytes;
    uint64_t length;
};

static int open_piece(const struct probe *p, const struct listing_file *file, struct piece *piece,
                      struct helm_err *err)
{
    char blob[PATH_MAX];
    struct stat st;
    *piece = (struct piece){.file = file, .fd = -1};
    piece->path = transfer_file_path(p->repo, p->listing->commit, file->name);
    if (!piece->path) return helm_fail(err, HELM_E_NOMEM, "no memory for a URL");
    if (snprintf(blob, sizeof blob, "%s/%s", p->blobs, file->id) >= (int)sizeof blob) return 0;
    piece->fd = open(blob, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (piece->fd < 0 ||
        (!fstat(piece->fd, &st) && S_ISREG(st.st_mode) && (uint64_t)st.st_size == file->bytes))
        return 0;
    close(piece->fd);
    piece->fd = -1;
    return 0;
}

static void close_piece(struct piece *piece)
{
    if (piece->fd >= 0) close(piece->fd);
    free(piece->path);
    free(piece->bytes);
    *piece = (struct piece){.fd = -1};
}

/* Until it has so many bytes. */
static int read_on(const struct probe *p, struct piece *piece, uint64_t length, struct helm_err *err)
{
    const struct transfer_file file = {.path = piece->path, .name = piece->file->name, .id = piece->file->id};
    const size_t more = (size_t)(length - piece->length);
    char *grown = realloc(piece->bytes, (size_t)length + 1), *to = grown ? grown + piece->length : NULL;
    if (!grown)
        return helm_fail(err, HELM_E_NOMEM, "%s: no memory for %llu bytes", file.name,
                         (unsigned long long)length);
    piece->bytes = grown;
    int rc = piece->fd >= 0 ? file_pread_all(piece->fd, to, more, piece->length, file.name, err)
                            : transfer_part(p->transfer, &file, piece->length, more, to, err);
    if (!rc) piece->length = length;
    return rc;
}

static int keep(const struct piece *piece, const char *folder, struct helm_err *err)
{
    char path[FOLDER_TEXT + HUB_FILE_MAX];
    const char *slash = strrchr(piece->file->name, '/');
    snprintf(path, sizeof path, "%s/%s", folder, slash ? slash + 1 : piece->file->name);
    FILE *file = fopen(path, "wxe");
    if (!file) return helm_fail_errno(err, "%s", path);
    const bool bad = fwrite(piece->bytes, 1, (size_t)piece->length, file) != piece->length;
    return fclose(file) || bad ? helm_fail_errno(err, "writing %s", path) : 0;
}

/* ---- a checkpoint ---- */

static bool is_as_listed(const struct piece *piece)
{
    struct checksum sum;
    char text[CHECKSUM_TEXT];
    checksum_begin(&sum, piece->file->id, piece->file->bytes);
    checksum_add(&sum, piece->bytes, (size_t)piece->length);
    checksum_end(&sum, text);
    return strcmp(text, piece->file->id) == 0;
}

static int read_whole(const struct probe *p, struct piece *piece, struct helm_err *err)
{
    const struct listing_file *f = piece->file;
    if (f->bytes > CONFIG_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%s has %llu bytes, the limit is %llu", f->name,
                         (unsigned long long)f->bytes, (unsigned long long)CONFIG_MAX);
    int rc = read_on(p, piece, f->bytes, err);
    if (!rc && piece->fd >= 0 && !is_as_listed(piece)) { /* the cache's is wrong, and is fetched anew */
        close(piece->fd);
        piece->fd = -1;
        piece->length = 0;
        rc = read_on(p, piece, f->bytes, err);
    }
    if (rc || is_as_listed(piece)) return rc;
    return helm_fail(err, HELM_E_MISMATCH,
                     "%s: the hub sends other bytes than its checksum %s says: run this again", f->name,
                     f->id);
}

static int probe_configuration(const struct probe *p, const char *folder, struct helm_err *err)
{
    static const char *const names[] = {CONFIG_FILE, "generation_config.json"};
    int rc = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !rc; i++) {
        struct piece piece;
        const struct listing_file *file = listing_find(p->listing, names[i]);
        if (!file && i) continue;
        if (!file)
            return helm_fail(err, HELM_E_NOT_FOUND,
                             "%s has no " CONFIG_FILE ", which says what its weights are", p->repo);
        rc = open_piece(p, file, &piece, err);
        if (!rc) rc = read_whole(p, &piece, err);
        if (!rc) rc = keep(&piece, folder, err);
        close_piece(&piece);
    }
    return rc;
}

/* ---- GGUF files ---- */

/* As much as its header has, of at most *room bytes, which become fewer. */
static int read_header(const struct probe *p, struct piece *piece, uint64_t *room, struct helm_err *err)
{
    const struct listing_file *f = piece->file;
    const uint64_t most = f->bytes < *room ? f->bytes : *room;
    bool more = true;
    int rc = 0;
    for (uint64_t length = FIRST_BYTES; more; length *= 2) {
        struct gguf header;
        if (length > most) length = most;
        rc = read_on(p, piece, length, err);
        if (rc) return rc;
        const struct gguf_source source = {.what = f->name,
                                           .bytes = (const uint8_t *)piece->bytes,
                                           .length = length,
                                           .file_bytes = f->bytes};
        rc = gguf_parse(&source, &header, &more, err);
        if (!rc) gguf_free(&header);
        if (length == most) break;
    }
    *room -= piece->length;
    return rc ? helm_err_prefix(err, "%s is not downloaded, as HELM cannot run it", p->repo) : 0;
}

static int probe_headers(const struct probe *p, const char *folder, struct helm_err *err)
{
    uint32_t number, count = 1, found = 0;
    uint64_t room = GGUF_HEADER_MAX;
    int rc = 0;
    (void)gguf_is_part(p->model, &number, &count);
    for (size_t i = 0; i < p->listing->count; i++) found += p->chosen[i];
    if (found != count)
        return helm_fail(err, HELM_E_NOT_FOUND, "%s is one of %u parts, of which %s has %u", p->model, count,
                         p->repo, found);
    for (size_t i = 0; i < p->listing->count && !rc; i++) {
        struct piece piece;
        if (!p->chosen[i]) continue;
        rc = open_piece(p, &p->listing->file[i], &piece, err);
        if (!rc) rc = read_header(p, &piece, &room, err);
        if (!rc) rc = keep(&piece, folder, err);
        close_piece(&piece);
    }
    return rc;
}

/* ---- the folder ---- */

static int make_folder(char folder[FOLDER_TEXT], struct helm_err *err)
{
    const char *place = getenv("TMPDIR");
    if (!place || !*place) place = "/tmp";
    if (snprintf(folder, FOLDER_TEXT, "%s/helm-pull-XXXXXX", place) >= FOLDER_TEXT)
        return helm_fail(err, HELM_E_LIMIT, "$TMPDIR is too long");
    return mkdtemp(folder) ? 0 : helm_fail_errno(err, "making the folder %s", folder);
}

static void drop_folder(const struct probe *p, const char *folder)
{
    char path[FOLDER_TEXT + HUB_FILE_MAX];
    for (size_t i = 0; i < p->listing->count; i++) {
        const char *name = p->listing->file[i].name, *slash = strrchr(name, '/');
        if (!p->chosen[i]) continue;
        snprintf(path, sizeof path, "%s/%s", folder, slash ? slash + 1 : name);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

/* The error without the folder, which the user does not know. */
static void leave_out(const char *folder, struct helm_err *err)
{
    const size_t n = strlen(folder);
    for (char *at; (at = strstr(err->text, folder));) {
        const size_t skip = n + (at[n] == '/' ? 1 : at[n] == ':' && at[n + 1] == ' ' ? 2 : 0);
        memmove(at, at + skip, strlen(at + skip) + 1);
    }
}

static int judge(const struct probe *p, const char *folder, struct helm_err *err)
{
    char path[FOLDER_TEXT + HUB_FILE_MAX];
    struct model model;
    bool derived;
    const char *slash = p->model ? strrchr(p->model, '/') : NULL;
    snprintf(path, sizeof path, "%s%s%s", folder, p->model ? "/" : "",
             slash      ? slash + 1
             : p->model ? p->model
                        : "");
    int rc = model_read_headers(path, &model, &derived, err);
    if (!rc) {
        model_free(&model);
        return 0;
    }
    leave_out(folder, err);
    if (p->model && !strstr(err->text, ".gguf")) helm_err_prefix(err, "%s", p->model);
    return helm_err_prefix(err, "%s is not downloaded, as HELM cannot run it", p->repo);
}

int probe_model(const struct probe *p, struct helm_err *err)
{
    char folder[FOLDER_TEXT];
    int rc = make_folder(folder, err);
    if (rc) return rc;
    rc = (p->model ? probe_headers : probe_configuration)(p, folder, err);
    if (!rc) rc = judge(p, folder, err);
    drop_folder(p, folder);
    return rc;
}
