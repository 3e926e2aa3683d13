/* Files of sessions. See file.h. Owns nothing between calls. */
#include "client/session/file.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/formats/kv_dtype.h"
#include "common/model/content.h"
#include "common/shared/kv_layout.h"

enum { MAGIC_BYTES = 8 };
static const char magic[] = "HELMKV\r\n", end_magic[] = "\r\nVKMLEH";

/* The head in front of the tokens, as it lies in the file: no padding. */
struct fixed {
    char magic[MAGIC_BYTES];
    uint32_t version, head_bytes;
    uint64_t model;
    uint32_t layers, kv_heads, head_dim, page_tokens;
    char kv_dtype[SESSION_KV_DTYPE_MAX], weights[SESSION_WEIGHTS_MAX];
    uint32_t tokens, pages;
    uint64_t page_bytes, origin;
    uint64_t state_bytes; /* of version SESSION_FILE_STATES alone */
};
_Static_assert(sizeof(struct fixed) == 112, "as file.h says");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the file's order is the machine's");

#define CHECKSUM sizeof(uint64_t)
#define TRAILER  ((size_t)MAGIC_BYTES + CHECKSUM)

void session_head_free(struct session_head *head)
{
    free(head->tokens);
    *head = (struct session_head){0};
}

/* Bytes of the part in front of the tokens. */
static size_t fixed_bytes(bool states)
{
    return states ? sizeof(struct fixed) : offsetof(struct fixed, state_bytes);
}

uint64_t session_file_head_bytes(const struct session_head *head)
{
    return fixed_bytes(head->state_bytes) + (uint64_t)head->token_count * sizeof(uint32_t) + CHECKSUM;
}

uint64_t session_file_bytes(const struct session_head *head)
{
    const uint64_t state = head->state_bytes ? head->state_bytes + CHECKSUM : 0;
    return session_file_head_bytes(head) + head->pages * (head->page_bytes + CHECKSUM) + state + TRAILER;
}

/* The checksum of fixed part and tokens. */
static uint64_t head_checksum(const struct fixed *fixed, const uint32_t *tokens)
{
    return content_of(tokens, fixed->tokens * sizeof *tokens,
                      content_of(fixed, fixed_bytes(fixed->state_bytes), 0));
}

/* ---- reading ---- */

static int take(FILE *from, void *to, size_t bytes, struct helm_err *err)
{
    if (fread(to, 1, bytes, from) == bytes) return 0;
    return ferror(from) ? helm_fail_errno(err, "reading")
                        : helm_fail(err, HELM_E_FORMAT, "the file ends too early");
}

/* Whether text fills its field with zeros, and what is in front of them is printable. */
static bool is_text(const char *field, size_t room)
{
    const size_t length = strnlen(field, room);
    for (size_t i = 0; i < length; i++)
        if (field[i] < 0x20 || field[i] > 0x7e) return false;
    for (size_t i = length; i < room; i++)
        if (field[i]) return false;
    return length < room;
}

static int check_fixed(const struct fixed *f, uint64_t size, struct helm_err *err)
{
    if (memcmp(f->magic, magic, MAGIC_BYTES) != 0)
        return helm_fail(err, HELM_E_FORMAT, "this is no file of a session");
    const struct session_head sizes = {.token_count = f->tokens,
                                       .pages = f->pages,
                                       .page_bytes = f->page_bytes,
                                       .state_bytes = f->state_bytes};
    if (f->version != (f->state_bytes ? SESSION_FILE_STATES : SESSION_FILE_VERSION))
        return helm_fail(err, HELM_E_UNSUPPORTED, "version %u of session files, this program knows %d and %d",
                         f->version, SESSION_FILE_VERSION, SESSION_FILE_STATES);
    const struct {
        const char *what;
        uint64_t value, least, most;
    } bounds[] = {{"layers", f->layers, 1, 1024},
                  {"KV heads", f->kv_heads, 1, 65536},
                  {"head_dim", f->head_dim, 1, 65536},
                  {"tokens of a page", f->page_tokens, 1, 65536},
                  {"tokens", f->tokens, 1, SESSION_FILE_TOKENS_MAX},
                  {"pages", f->pages, 1, f->page_tokens ? f->tokens / f->page_tokens : 0},
                  {"bytes of a page", f->page_bytes, 1, SESSION_FILE_PAGE_MAX},
                  {"bytes of the state", f->state_bytes, 0, SESSION_FILE_PAGE_MAX},
                  {"bytes of the head", f->head_bytes, session_file_head_bytes(&sizes),
                   session_file_head_bytes(&sizes)}};
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].value < bounds[i].least || bounds[i].value > bounds[i].most)
            return helm_fail(err, HELM_E_LIMIT, "%s: %" PRIu64 ", not between %" PRIu64 " and %" PRIu64,
                             bounds[i].what, bounds[i].value, bounds[i].least, bounds[i].most);
    if (!is_text(f->kv_dtype, sizeof f->kv_dtype) || !is_text(f->weights, sizeof f->weights))
        return helm_fail(err, HELM_E_FORMAT, "the names of KV cache and weights are no text");
    const enum kv_dtype dtype = kv_dtype_named(f->kv_dtype);
    if (dtype == KV_DTYPE_COUNT || !kv_dtype_takes(dtype, f->head_dim))
        return helm_fail(err, HELM_E_UNSUPPORTED, "a KV cache of '%s' with head_dim %u", f->kv_dtype,
                         f->head_dim);
    struct kv_layout kv = {f->layers, f->kv_heads, f->head_dim, f->page_tokens, (uint32_t)dtype, 0};
    /* the bounds above keep heads within 2^34 bytes and a page within 2^61; of latent attention it has no
     * rows of values */
    if (f->kv_heads == 1 && kv_page_bytes(&kv) == 2 * f->page_bytes) kv.latent = f->head_dim;
    if (kv_page_bytes(&kv) != f->page_bytes)
        return helm_fail(err, HELM_E_FORMAT,
                         "a page is %" PRIu64 " bytes, its layers and heads take %" PRIu64, f->page_bytes,
                         kv_page_bytes(&kv));
    if (session_file_bytes(&sizes) != size)
        return helm_fail(err, HELM_E_FORMAT,
                         "the file has %" PRIu64 " bytes, %u pages and %u tokens take %" PRIu64, size,
                         f->pages, f->tokens, session_file_bytes(&sizes));
    return 0;
}

int session_file_open(struct session_file *file, FILE *stream, uint64_t size, struct session_head *head,
                      struct helm_err *err)
{
    struct fixed f = {.state_bytes = 0};
    uint64_t checksum;
    *head = (struct session_head){0};
    *file = (struct session_file){.stream = stream};
    if (size < sizeof f) return helm_fail(err, HELM_E_FORMAT, "this is no file of a session");
    int rc = take(stream, &f, fixed_bytes(false), err);
    if (!rc && f.version == SESSION_FILE_STATES) rc = take(stream, &f.state_bytes, sizeof f.state_bytes, err);
    if (!rc) rc = check_fixed(&f, size, err);
    if (rc) return rc;
    head->tokens = malloc(f.tokens * sizeof *head->tokens);
    if (!head->tokens) return helm_fail(err, HELM_E_NOMEM, "no memory for %u tokens", f.tokens);
    rc = take(stream, head->tokens, f.tokens * sizeof *head->tokens, err);
    if (!rc) rc = take(stream, &checksum, sizeof checksum, err);
    if (!rc && checksum != head_checksum(&f, head->tokens))
        rc = helm_fail(err, HELM_E_FORMAT, "the head is damaged: its checksum is another one");
    if (rc) {
        session_head_free(head);
        return rc;
    }
    head->token_count = f.tokens;
    head->pages = f.pages;
    head->page_bytes = f.page_bytes;
    head->state_bytes = f.state_bytes;
    head->shape = (struct session_shape){.model = f.model,
                                         .layers = f.layers,
                                         .kv_heads = f.kv_heads,
                                         .head_dim = f.head_dim,
                                         .page_tokens = f.page_tokens,
                                         .origin = f.origin};
    memcpy(head->shape.kv_dtype, f.kv_dtype, sizeof f.kv_dtype);
    memcpy(head->shape.weights, f.weights, sizeof f.weights);
    file->digest = checksum;
    return 0;
}

/* Bytes of the page that is next, or of the state after the last. */
static size_t next_bytes(const struct session_file *file, const struct session_head *head)
{
    return (size_t)(file->page == head->pages ? head->state_bytes : head->page_bytes);
}

static void add_checksum(struct session_file *file, uint64_t checksum)
{
    file->digest = content_of(&checksum, sizeof checksum, file->digest);
}

int session_file_read_page(struct session_file *file, const struct session_head *head, void *bytes,
                           struct helm_err *err)
{
    uint64_t checksum;
    int rc = take(file->stream, bytes, next_bytes(file, head), err);
    if (!rc) rc = take(file->stream, &checksum, sizeof checksum, err);
    if (rc) return rc;
    if (checksum != content_of(bytes, next_bytes(file, head), file->page + UINT64_C(1)))
        return helm_fail(err, HELM_E_FORMAT, "page %u is damaged: its checksum is another one", file->page);
    file->page++;
    add_checksum(file, checksum);
    return 0;
}

int session_file_read_end(struct session_file *file, struct helm_err *err)
{
    char found[(size_t)MAGIC_BYTES];
    uint64_t checksum;
    int rc = take(file->stream, found, sizeof found, err);
    if (!rc) rc = take(file->stream, &checksum, sizeof checksum, err);
    if (rc) return rc;
    if (memcmp(found, end_magic, sizeof found) != 0 || checksum != file->digest)
        return helm_fail(err, HELM_E_FORMAT, "the end is damaged: the checksum of the whole is another one");
    return 0;
}

/* ---- writing ---- */

static int put(FILE *to, const void *from, size_t bytes, struct helm_err *err)
{
    return fwrite(from, 1, bytes, to) == bytes ? 0 : helm_fail_errno(err, "writing");
}

int session_file_create(struct session_file *file, FILE *stream, const struct session_head *head,
                        struct helm_err *err)
{
    struct fixed f = {.version = head->state_bytes ? SESSION_FILE_STATES : SESSION_FILE_VERSION,
                      .head_bytes = (uint32_t)session_file_head_bytes(head),
                      .model = head->shape.model,
                      .layers = head->shape.layers,
                      .kv_heads = head->shape.kv_heads,
                      .head_dim = head->shape.head_dim,
                      .page_tokens = head->shape.page_tokens,
                      .tokens = head->token_count,
                      .pages = head->pages,
                      .page_bytes = head->page_bytes,
                      .origin = head->shape.origin,
                      .state_bytes = head->state_bytes};
    memcpy(f.magic, magic, MAGIC_BYTES);
    memcpy(f.kv_dtype, head->shape.kv_dtype, sizeof f.kv_dtype);
    memcpy(f.weights, head->shape.weights, sizeof f.weights);
    *file = (struct session_file){.stream = stream, .digest = head_checksum(&f, head->tokens)};
    int rc = check_fixed(&f, session_file_bytes(head), err);
    if (!rc) rc = put(stream, &f, fixed_bytes(f.state_bytes), err);
    if (!rc) rc = put(stream, head->tokens, f.tokens * sizeof *head->tokens, err);
    return rc ? rc : put(stream, &file->digest, sizeof file->digest, err);
}

int session_file_write_page(struct session_file *file, const struct session_head *head, const void *bytes,
                            struct helm_err *err)
{
    const uint64_t checksum = content_of(bytes, next_bytes(file, head), file->page + UINT64_C(1));
    int rc = put(file->stream, bytes, next_bytes(file, head), err);
    if (!rc) rc = put(file->stream, &checksum, sizeof checksum, err);
    if (rc) return rc;
    file->page++;
    add_checksum(file, checksum);
    return 0;
}

int session_file_write_end(struct session_file *file, struct helm_err *err)
{
    int rc = put(file->stream, end_magic, (size_t)MAGIC_BYTES, err);
    return rc ? rc : put(file->stream, &file->digest, sizeof file->digest, err);
}
