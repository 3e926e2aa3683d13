/* HTTP with the hub. See transfer.h. Owns one libcurl handle; bodies go where the caller wants them as they
 * come. */
#include "client/hub/transfer.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/units.h"

#ifndef HELM_VERSION
#define HELM_VERSION "unknown"
#endif

#define HOPS_MAX     10
#define CONNECT_S    20L
#define SILENCE_S    60L /* without a byte */
#define FAILURES_MAX 5   /* in a row, of which none brought a byte */
#define PAUSE_MS     500
#define ETAG_TEXT    80
#define ERROR_TEXT   160
#define CHUNK_BYTES  (512L << 10)

struct transfer {
    struct transfer_options options;
    CURL *curl;
    char message[CURL_ERROR_SIZE];
};

/* One answer, over all its redirects. */
struct answer {
    struct transfer *transfer;
    const struct transfer_file *asked; /* NULL: no file */
    struct transfer_file *file;        /* where `asked` goes; NULL: into text */
    char *text;
    size_t length, most;
    uint64_t from, skip; /* of a part: where it begins, and bytes that come before it */
    bool own_host, begun, full;
    uint64_t range_from;
    char etag[ETAG_TEXT], linked_etag[ETAG_TEXT], error[ERROR_TEXT]; /* of the hub's own host */
    struct helm_err err;                                             /* why a callback ended it */
};

/* ---- callbacks ---- */

static void take_header(const char *line, size_t length, const char *name, char *out, size_t size)
{
    const size_t n = strlen(name);
    if (length <= n || strncasecmp(line, name, n) != 0) return;
    line += n;
    length -= n;
    while (length && (*line == ' ' || *line == '"' || strncmp(line, "W/", 2) == 0)) line++, length--;
    while (length && strchr("\r\n \"", line[length - 1])) length--;
    snprintf(out, size, "%.*s", (int)length, line);
}

static size_t on_header(char *line, size_t size, size_t count, void *user)
{
    struct answer *a = user;
    char range[ETAG_TEXT] = "";
    const size_t length = size * count;
    take_header(line, length, "content-range: bytes", range, sizeof range);
    if (*range) a->range_from = strtoull(range, NULL, 10);
    if (!a->own_host) return length;
    take_header(line, length, "etag:", a->etag, sizeof a->etag);
    take_header(line, length, "x-linked-etag:", a->linked_etag, sizeof a->linked_etag);
    take_header(line, length, "x-error-message:", a->error, sizeof a->error);
    return length;
}

static int add_text(struct answer *a, const char *data, size_t bytes)
{
    if (a->length + bytes > a->most)
        return helm_fail(&a->err, HELM_E_LIMIT, "the hub's answer has more than %zu bytes", a->most);
    char *grown = realloc(a->text, a->length + bytes + 1);
    if (!grown) return helm_fail(&a->err, HELM_E_NOMEM, "no memory for the hub's answer");
    memcpy(grown + a->length, data, bytes);
    a->text = grown;
    a->length += bytes;
    a->text[a->length] = '\0';
    return 0;
}

/* The id in the hub's own headers must be the listed one. */
static int check_id(const struct answer *a, struct helm_err *err)
{
    const struct transfer_file *f = a->asked;
    const char *said = a->linked_etag[0] ? a->linked_etag : strlen(a->etag) == strlen(f->id) ? a->etag : "";
    if (!said[0] || strcmp(said, f->id) == 0) return 0;
    return helm_fail(err, HELM_E_MISMATCH,
                     "%s: the hub has another one than it listed (%.64s): run this again", f->name, said);
}

static int check_start(struct answer *a, long status, uint64_t from)
{
    int rc = check_id(a, &a->err);
    if (rc || status != 206 || a->range_from == from) return rc;
    return helm_fail(&a->err, HELM_E_PEER, "%s: asked for bytes from %llu on, got them from %llu on",
                     a->asked->name, (unsigned long long)from, (unsigned long long)a->range_from);
}

/* A server that knows no ranges sends all of it again. */
static int begin_file(struct answer *a, long status)
{
    struct transfer_file *f = a->file;
    a->begun = true;
    if (check_start(a, status, f->at)) return a->err.code;
    if (status == 206 || f->at == 0) return 0;
    f->at = 0;
    checksum_begin(&f->sum, f->id, f->bytes);
    return ftruncate(f->fd, 0) ? helm_fail_errno(&a->err, "%s", f->name) : 0;
}

static int add_to_file(struct answer *a, const char *data, size_t bytes)
{
    struct transfer_file *f = a->file;
    if (bytes > f->bytes - f->at)
        return helm_fail(&a->err, HELM_E_MISMATCH, "%s: more than the %llu bytes that the hub lists", f->name,
                         (unsigned long long)f->bytes);
    checksum_add(&f->sum, data, bytes);
    if (!file_pwrite_all(f->fd, data, bytes, f->at)) return helm_fail_errno(&a->err, "writing %s", f->name);
    f->at += bytes;
    return 0;
}

/* A server that knows no ranges sends what is before the part, too, and any may send what follows it. */
static int add_to_part(struct answer *a, long status, const char *data, size_t bytes)
{
    if (!a->begun && check_start(a, status, a->from)) return a->err.code;
    if (!a->begun) a->skip = status == 206 ? 0 : a->from;
    a->begun = true;
    const size_t before = a->skip < bytes ? (size_t)a->skip : bytes;
    a->skip -= before;
    const size_t rest = bytes - before, part = rest < a->most - a->length ? rest : a->most - a->length;
    memcpy(a->text + a->length, data + before, part);
    a->length += part;
    a->full = part < rest;
    return a->full ? HELM_E_CANCELLED : 0;
}

static size_t on_body(char *data, size_t size, size_t count, void *user)
{
    struct answer *a = user;
    const size_t bytes = size * count;
    long status = 0;
    int rc = 0;
    curl_easy_getinfo(a->transfer->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206) return bytes; /* an error in words, which its number says as well */
    if (!a->asked) return add_text(a, data, bytes) ? 0 : bytes;
    if (!a->file) return add_to_part(a, status, data, bytes) ? 0 : bytes;
    if (!a->begun) rc = begin_file(a, status);
    if (!rc) rc = add_to_file(a, data, bytes);
    return rc ? 0 : bytes;
}

static int on_progress(void *user, curl_off_t all, curl_off_t now, curl_off_t out_all, curl_off_t out_now)
{
    struct answer *a = user;
    const struct transfer_options *o = &a->transfer->options;
    (void)all, (void)now, (void)out_all, (void)out_now;
    if (!o->go_on || o->go_on(o->context, a->file ? a->file->at : 0)) return 0;
    helm_fail(&a->err, HELM_E_CANCELLED, "ended on request");
    return 1;
}

/* ---- one request ---- */

static bool same_part(CURLU *a, CURLU *b, CURLUPart part)
{
    char *x = NULL, *y = NULL;
    const bool same = !curl_url_get(a, part, &x, CURLU_DEFAULT_PORT) &&
                      !curl_url_get(b, part, &y, CURLU_DEFAULT_PORT) && strcasecmp(x, y) == 0;
    curl_free(x);
    curl_free(y);
    return same;
}

/* Whether scheme, host and port are the hub's own, which has the token already. */
static bool is_own_host(const struct transfer *t, const char *url)
{
    CURLU *a = curl_url(), *b = curl_url();
    const bool own = a && b && !curl_url_set(a, CURLUPART_URL, t->options.endpoint, 0) &&
                     !curl_url_set(b, CURLUPART_URL, url, 0) && same_part(a, b, CURLUPART_SCHEME) &&
                     same_part(a, b, CURLUPART_HOST) && same_part(a, b, CURLUPART_PORT);
    curl_url_cleanup(a);
    curl_url_cleanup(b);
    return own;
}

/* The scheme of where it was redirected to may be as safe or safer. */
static int check_hop(const struct transfer *t, const char *url, struct helm_err *err)
{
    if (strncasecmp(url, "https://", 8) == 0) return 0;
    if (strncasecmp(url, "http://", 7) != 0)
        return helm_fail(err, HELM_E_PERMISSION, "redirected to %.200s, which is not http", url);
    if (strncasecmp(t->options.endpoint, "https://", 8) == 0)
        return helm_fail(err, HELM_E_PERMISSION, "redirected from https to %.200s", url);
    return 0;
}

/* curl's errors: what may pass by itself is HELM_E_PEER. */
static int explain_curl(const struct transfer *t, CURLcode code, const struct answer *a, struct helm_err *err)
{
    const char *why = t->message[0] ? t->message : curl_easy_strerror(code);
    if (a->err.code) {
        *err = a->err;
        return err->code;
    }
    switch (code) {
    case CURLE_OUT_OF_MEMORY:
        return helm_fail(err, HELM_E_NOMEM, "libcurl: %s", why);
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
        return helm_fail(err, HELM_E_USAGE, "%s: %s (HF_ENDPOINT)", t->options.endpoint, why);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
        return helm_fail(err, HELM_E_PERMISSION, "%s: %s (certificates: package ca-certificates)",
                         t->options.endpoint, why);
    default:
        return helm_fail(err, HELM_E_PEER, "%s: %s", t->options.endpoint, why);
    }
}

static int explain_status(const struct transfer *t, long status, const struct answer *a, struct helm_err *err)
{
    const char *said = a->error[0] ? a->error : "";
    const char *mark = a->error[0] ? ": " : "";
    switch (status) {
    case 401:
        return helm_fail(
            err, HELM_E_PERMISSION,
            "the hub %s (401%s%s): there is no such repository, or it is private or gated, for which "
            "HF_TOKEN or `hf auth login` is needed",
            t->options.token ? "refuses this token" : "wants a token", mark, said);
    case 403:
        return helm_fail(err, HELM_E_PERMISSION,
                         "the hub refuses (403%s%s): a gated repository's terms are accepted on its page",
                         mark, said);
    case 404:
        return helm_fail(err, HELM_E_NOT_FOUND, "the hub has no such repository, revision or file (404%s%s)",
                         mark, said);
    default:
        return helm_fail(err, status == 429 || status >= 500 ? HELM_E_PEER : HELM_E_UNSUPPORTED,
                         "the hub answers with status %ld%s%s", status, mark, said);
    }
}

static CURLcode send_to(struct transfer *t, const char *url, const char *range, struct answer *a)
{
    char line[1200];
    struct curl_slist *headers = NULL;
    a->own_host = is_own_host(t, url);
    if (t->options.token && a->own_host) {
        snprintf(line, sizeof line, "Authorization: Bearer %.1000s", t->options.token);
        headers = curl_slist_append(NULL, line);
        explicit_bzero(line, sizeof line);
        if (!headers) return CURLE_OUT_OF_MEMORY;
    }
    t->message[0] = '\0';
    curl_easy_setopt(t->curl, CURLOPT_URL, url);
    curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(t->curl, CURLOPT_RANGE, range);
    curl_easy_setopt(t->curl, CURLOPT_HEADERDATA, a);
    curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(t->curl, CURLOPT_XFERINFODATA, a);
    const CURLcode code = curl_easy_perform(t->curl);
    curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    return code;
}

static int request(struct transfer *t, const char *path, const char *range, struct answer *a,
                   struct helm_err *err)
{
    char *url = NULL, *next = NULL;
    long status = 0;
    int rc = asprintf(&url, "%s%s", t->options.endpoint, path) < 0
                 ? helm_fail(err, HELM_E_NOMEM, "no memory for a URL")
                 : 0;
    a->transfer = t;
    for (int hop = 0; !rc; hop++) {
        const CURLcode code = send_to(t, url, range, a);
        if (code && !a->full) {
            rc = explain_curl(t, code, a, err);
            break;
        }
        curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_getinfo(t->curl, CURLINFO_REDIRECT_URL, &next);
        if (status < 300 || status >= 400 || !next) break;
        if (a->asked) rc = check_id(a, err);
        if (!rc) rc = check_hop(t, next, err);
        if (!rc && hop == HOPS_MAX)
            rc = helm_fail(err, HELM_E_UNSUPPORTED, "more than %d redirects", HOPS_MAX);
        free(url);
        url = rc ? NULL : strdup(next); /* curl's own is gone with the next request */
        if (!rc && !url) rc = helm_fail(err, HELM_E_NOMEM, "no memory for a URL");
    }
    free(url);
    if (!rc && status != 200 && status != 206) rc = explain_status(t, status, a, err);
    if (!rc && a->asked) rc = check_id(a, err);
    return rc;
}

/* ---- for pull.c ---- */

int transfer_text(struct transfer *t, const char *path, size_t most, char **text, size_t *length,
                  struct helm_err *err)
{
    struct answer a = {.most = most};
    *text = NULL;
    *length = 0;
    for (int failures = 1;; failures++) {
        int rc = request(t, path, NULL, &a, err);
        if (rc) free(a.text);
        if (rc != HELM_E_PEER || failures == 2) {
            if (rc) return rc;
            break;
        }
        a = (struct answer){.most = most};
        units_sleep_ms(PAUSE_MS);
    }
    *text = a.text ? a.text : strdup("");
    *length = a.length;
    return *text ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for the hub's answer");
}

static int pause_before(struct transfer *t, int failures, uint64_t at, struct helm_err *err)
{
    for (int i = 0; i < 1 << failures; i++) {
        if (t->options.go_on && !t->options.go_on(t->options.context, at))
            return helm_fail(err, HELM_E_CANCELLED, "ended on request");
        units_sleep_ms(PAUSE_MS / 2);
    }
    return 0;
}

int transfer_file(struct transfer *t, struct transfer_file *f, struct helm_err *err)
{
    int failures = 0, rc = 0;
    while (f->at < f->bytes) {
        char range[32];
        struct answer a = {.asked = f, .file = f};
        const uint64_t before = f->at;
        snprintf(range, sizeof range, "%llu-", (unsigned long long)f->at);
        rc = request(t, f->path, f->at ? range : NULL, &a, err);
        if (!rc && f->at < f->bytes)
            rc = helm_fail(err, HELM_E_PEER, "%s ends after %llu of %llu bytes", f->name,
                           (unsigned long long)f->at, (unsigned long long)f->bytes);
        failures = f->at > before ? 1 : failures + 1;
        if (rc && (rc != HELM_E_PEER || failures > FAILURES_MAX)) break;
        if (rc && (rc = pause_before(t, failures, f->at, err))) break;
    }
    return rc;
}

int transfer_part(struct transfer *t, const struct transfer_file *f, uint64_t from, size_t bytes, char *to,
                  struct helm_err *err)
{
    char range[48];
    int rc = 0;
    snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)from,
             (unsigned long long)(from + bytes - 1));
    for (int failures = 0; bytes;) {
        struct answer a = {.asked = f, .text = to, .most = bytes, .from = from};
        rc = request(t, f->path, range, &a, err);
        if (!rc && a.length == bytes) break;
        if (!rc)
            rc = helm_fail(err, HELM_E_PEER, "%s ends after %llu bytes", f->name,
                           (unsigned long long)(from + a.length));
        if (rc != HELM_E_PEER || ++failures > FAILURES_MAX) break;
        if ((rc = pause_before(t, failures, 0, err))) break;
    }
    return rc;
}

char *transfer_file_path(const char *repo, const char *commit, const char *file)
{
    char *name = transfer_escape(file, true), *path = NULL;
    if (name && asprintf(&path, "/%s/resolve/%s/%s", repo, commit, name) < 0) path = NULL;
    free(name);
    return path;
}

char *transfer_escape(const char *text, bool slash)
{
    static const char digits[] = "0123456789ABCDEF";
    char *out = calloc(1, 3 * strlen(text) + 1), *to = out;
    for (const char *c = text; out && *c; c++) {
        const bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') ||
                           strchr("-._~", *c) || (slash && *c == '/');
        if (!plain) *to++ = '%';
        if (!plain) *to++ = digits[(unsigned char)*c >> 4];
        *to++ = plain ? *c : digits[*c & 15];
    }
    return out;
}

/* A bundle's libcurl looks for certificates where the machine that built it has them. */
static void choose_certificates(CURL *curl)
{
    static const char *const files[] = {"/etc/ssl/certs/ca-certificates.crt",
                                        "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
                                        "/etc/ssl/cert.pem"};
    const char *named = getenv("CURL_CA_BUNDLE");
    if (!named || !*named) named = getenv("SSL_CERT_FILE");
    for (size_t i = 0; i < sizeof files / sizeof *files && (!named || !*named); i++)
        if (access(files[i], R_OK) == 0) named = files[i];
    if (named && *named) curl_easy_setopt(curl, CURLOPT_CAINFO, named);
}

int transfer_open(const struct transfer_options *options, struct transfer **transfer, struct helm_err *err)
{
    struct transfer *t = calloc(1, sizeof *t);
    *transfer = NULL;
    if (t) t->options = *options;
    if (t && !curl_global_init(CURL_GLOBAL_DEFAULT)) t->curl = curl_easy_init();
    if (!t || !t->curl) {
        free(t);
        return helm_fail(err, HELM_E_NOMEM, "libcurl cannot start");
    }
    curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, t->message);
    curl_easy_setopt(t->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(t->curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(t->curl, CURLOPT_USERAGENT, "helm-cli/" HELM_VERSION);
    curl_easy_setopt(t->curl, CURLOPT_CONNECTTIMEOUT, CONNECT_S);
    curl_easy_setopt(t->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(t->curl, CURLOPT_LOW_SPEED_TIME, SILENCE_S);
    curl_easy_setopt(t->curl, CURLOPT_BUFFERSIZE, CHUNK_BYTES);
    curl_easy_setopt(t->curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(t->curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(t->curl, CURLOPT_NOPROGRESS, 0L);
    choose_certificates(t->curl);
    *transfer = t;
    return 0;
}

void transfer_close(struct transfer *t)
{
    if (!t) return;
    curl_easy_cleanup(t->curl);
    curl_global_cleanup();
    free(t);
}
