/* Reads requests byte by byte, as strictly as the RFC says, beside libmicrohttpd. See framing.h. */
#include "client/gateway/framing.h"

#include <string.h>
#include <strings.h>
#include <sys/socket.h>

static struct framing *watched[FRAMING_SOCKETS];
static _Thread_local bool reading;

/* Headers that say where a request ends, or whose it is. */
enum known { KNOWN_NONE, KNOWN_LENGTH, KNOWN_ENCODING, KNOWN_HOST };

static bool fail(struct framing *f, const char *fault)
{
    f->fault = fault;
    return false;
}

static bool is_token(char c)
{
    static const char marks[] = "!#$%&'*+-.^_`|~";
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr(marks, c));
}

static bool is_control(char c)
{
    return ((unsigned char)c < 32 && c != '\t') || c == 127;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static void begin_text(struct framing *f)
{
    f->length = 0;
    memset(f->text, 0, sizeof f->text);
}

/* Keeps its beginning. */
static void add_text(struct framing *f, char c)
{
    if (f->length < sizeof f->text - 1) f->text[f->length] = c;
    f->length++;
}

/* ---- the head --------------------------------------------------------------------------------------- */

static void begin_request(struct framing *f)
{
    const struct framing next = {.at = FRAMING_BEFORE,
                                 .requests = f->requests + 1,
                                 .begun = f->begun,
                                 .bytes = f->bytes};
    *f = next;
}

static void begin_name(struct framing *f, enum framing_at at)
{
    f->at = at;
    f->cr = false;
    begin_text(f);
}

/* A byte of the first line: a method, a target and a version with one blank between them. */
static bool take_line(struct framing *f, char c)
{
    if (f->cr) {
        f->is_1_0 = strcmp(f->text, "HTTP/1.0") == 0;
        if (f->blanks != 2 || (!f->is_1_0 && strcmp(f->text, "HTTP/1.1") != 0))
            return fail(f, "the request line is not METHOD TARGET HTTP/1.0 or HTTP/1.1");
        if (c != '\n') return fail(f, "the request line holds CR");
        begin_name(f, FRAMING_NAME);
        return true;
    }
    f->cr = c == '\r';
    if (f->cr) return true;
    if (is_control(c) || c == '\t')
        return fail(f, "the request line holds a control character, or ends in bare LF");
    if (c == ' ' && (f->length == 0 || ++f->blanks > 2))
        return fail(f, "the request line has a blank too many");
    if (f->blanks == 0 && !is_token(c)) return fail(f, "the method is no word");
    if (c == ' ') {
        begin_text(f);
        return true;
    }
    if (f->blanks == 1) { /* of the target the last three bytes */
        memmove(f->text, f->text + 1, 2);
        f->text[2] = c;
        f->length++;
        if (memcmp(f->text, "%00", 3) == 0) return fail(f, "the path or query holds NUL");
        return true;
    }
    add_text(f, c);
    return true;
}

static enum known known_name(const struct framing *f)
{
    static const char *const names[] = {
        [KNOWN_LENGTH] = "content-length", [KNOWN_ENCODING] = "transfer-encoding", [KNOWN_HOST] = "host"};
    for (int i = KNOWN_LENGTH; i <= KNOWN_HOST; i++)
        if (f->length == strlen(names[i]) && strcmp(f->text, names[i]) == 0) return (enum known)i;
    return KNOWN_NONE;
}

/* A byte of a header's name, or of the empty line that ends headers; FRAMING_END and _VALUE follow `at` in
 * the enum. */
static bool take_name(struct framing *f, char c)
{
    if (f->length == 0 && c == '\r') {
        f->at = f->at == FRAMING_NAME ? FRAMING_END : FRAMING_TRAILER_END;
        return true;
    }
    if (f->length == 0 && (c == ' ' || c == '\t'))
        return fail(f, "a header's line begins with a blank, as lines do that go on with the one before");
    if (c == ':' && f->length) {
        f->known = known_name(f);
        if (f->known && f->at == FRAMING_TRAILER)
            return fail(f, "Content-Length, Transfer-Encoding or Host comes after the body");
        f->at = f->at == FRAMING_NAME ? FRAMING_VALUE : FRAMING_TRAILER_VALUE;
        begin_text(f);
        return true;
    }
    if (!is_token(c))
        return fail(f, "a header's name holds a blank or another character that names do not have");
    add_text(f, lower(c));
    return true;
}

static bool end_length(struct framing *f)
{
    if (f->lengths++) return fail(f, "Content-Length comes twice");
    if (!f->length || f->length > 18 || strspn(f->text, "0123456789") != f->length)
        return fail(f, "Content-Length is no number of bytes");
    for (const char *c = f->text; *c; c++) f->body = f->body * 10 + (uint64_t)(*c - '0');
    return true;
}

/* Blanks after a value that decides are refused: not all readers cut them. */
static bool end_value(struct framing *f)
{
    if (f->known == KNOWN_LENGTH) return end_length(f);
    if (f->known == KNOWN_HOST && f->hosts++) return fail(f, "Host comes twice");
    if (f->known != KNOWN_ENCODING) return true;
    if (f->encodings++) return fail(f, "Transfer-Encoding comes twice");
    return strcmp(f->text, "chunked") == 0 || fail(f, "Transfer-Encoding is not 'chunked'");
}

static bool take_value(struct framing *f, char c)
{
    if (f->cr) {
        if (c != '\n') return fail(f, "a header holds CR");
        const enum framing_at next = f->at == FRAMING_VALUE ? FRAMING_NAME : FRAMING_TRAILER;
        if (!end_value(f)) return false;
        begin_name(f, next);
        return true;
    }
    f->cr = c == '\r';
    if (f->cr || (f->length == 0 && (c == ' ' || c == '\t'))) return true;
    if (is_control(c)) return fail(f, "a header holds NUL or another control character, or ends in bare LF");
    add_text(f, lower(c));
    return true;
}

static bool end_head(struct framing *f, char c)
{
    if (c != '\n') return fail(f, "a header holds CR");
    if (f->lengths && f->encodings) return fail(f, "Content-Length and Transfer-Encoding come together");
    if (f->encodings && f->is_1_0) return fail(f, "HTTP/1.0 has no Transfer-Encoding");
    if (!f->hosts && !f->is_1_0) return fail(f, "Host is missing");
    f->left = f->body;
    if (f->encodings) {
        f->at = FRAMING_SIZE;
        f->digits = 0;
    } else if (f->left) {
        f->at = FRAMING_BODY;
    } else {
        begin_request(f);
    }
    return true;
}

/* ---- bodies ----------------------------------------------------------------------------------------- */

static bool take_size(struct framing *f, char c)
{
    static const char hex[] = "0123456789abcdef";
    const char *digit = c && !f->cr ? strchr(hex, lower(c)) : NULL;
    if (f->cr) {
        if (c != '\n') return fail(f, "the line of a chunk's size holds CR");
        f->cr = false;
        f->digits = 0;
        if (f->left)
            f->at = FRAMING_CHUNK;
        else
            begin_name(f, FRAMING_TRAILER);
        return true;
    }
    if (f->at == FRAMING_EXTENSION || (f->digits && c == ';')) {
        f->at = FRAMING_EXTENSION;
        f->cr = c == '\r';
        return f->cr || !is_control(c) ||
               fail(f, "the line of a chunk's size holds a control character, or ends in bare LF");
    }
    f->cr = c == '\r' && f->digits;
    if (f->cr) return true;
    if (!digit) return fail(f, "a chunk's size is no number of base 16, or its line ends in bare LF");
    if (f->left >> 56) return fail(f, "a chunk's size is too large");
    f->left = f->left << 4 | (uint64_t)(digit - hex);
    f->digits = 1;
    return true;
}

static bool take_after_chunk(struct framing *f, char c)
{
    if (c != (f->cr ? '\n' : '\r')) return fail(f, "a chunk is longer than its size, or ends in bare LF");
    if (f->cr) f->at = FRAMING_SIZE;
    f->cr = !f->cr;
    return true;
}

static bool take_before(struct framing *f, char c)
{
    if (f->cr && c != '\n') return fail(f, "CR without LF comes before a request");
    if (f->cr || c == '\r') {
        f->cr = !f->cr;
        return true;
    }
    f->at = FRAMING_LINE;
    begin_text(f);
    return take_line(f, c);
}

/* ---- all of it -------------------------------------------------------------------------------------- */

static bool take(struct framing *f, char c)
{
    switch (f->at) {
    case FRAMING_BEFORE:
        return take_before(f, c);
    case FRAMING_LINE:
        return take_line(f, c);
    case FRAMING_NAME:
    case FRAMING_TRAILER:
        return take_name(f, c);
    case FRAMING_VALUE:
    case FRAMING_TRAILER_VALUE:
        return take_value(f, c);
    case FRAMING_END:
        return end_head(f, c);
    case FRAMING_TRAILER_END:
        if (c != '\n') return fail(f, "a header holds CR");
        begin_request(f);
        return true;
    case FRAMING_SIZE:
    case FRAMING_EXTENSION:
        return take_size(f, c);
    case FRAMING_AFTER_CHUNK:
        return take_after_chunk(f, c);
    case FRAMING_BODY:
    case FRAMING_CHUNK:
        break;
    }
    return true;
}

static void look_at(struct framing *f, const char *data, size_t length)
{
    f->bytes |= length > 0;
    for (size_t i = 0; i < length && !f->fault;) {
        if (f->at != FRAMING_BODY && f->at != FRAMING_CHUNK) {
            (void)take(f, data[i++]);
            continue;
        }
        const size_t here = length - i, part = f->left < here ? (size_t)f->left : here;
        i += part;
        f->left -= part;
        if (f->left) continue;
        if (f->at == FRAMING_BODY)
            begin_request(f);
        else
            f->at = FRAMING_AFTER_CHUNK;
    }
}

/* In the place of libc's: the linker has libmicrohttpd call this one. */
ssize_t recv(int fd, void *data, size_t length, int flags)
{
    const ssize_t n = recvfrom(fd, data, length, flags, NULL, NULL);
    if (n > 0 && reading && !(flags & MSG_PEEK) && fd >= 0 && fd < FRAMING_SOCKETS && watched[fd])
        look_at(watched[fd], data, (size_t)n);
    return n;
}

bool framing_watch(int fd, struct framing *framing)
{
    if (fd < 0 || fd >= FRAMING_SOCKETS) return false;
    watched[fd] = framing;
    return true;
}

void framing_reads(bool on)
{
    reading = on;
}

const char *framing_fault(const struct framing *f)
{
    if (!f->bytes) return "this gateway cannot see what its HTTP library reads";
    return f->fault && f->begun > f->requests ? f->fault : NULL;
}

const char *framing_path(const char *target, const char *host)
{
    static const char scheme[] = "http://";
    const size_t bytes = sizeof scheme - 1;
    if (strncasecmp(target, scheme, bytes) != 0) return target;
    const size_t length = strcspn(target + bytes, "/?");
    if (!host || strlen(host) != length || strncasecmp(target + bytes, host, length) != 0) return NULL;
    return target[bytes + length] ? target + bytes + length : "/";
}
