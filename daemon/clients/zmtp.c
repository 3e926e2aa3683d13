/* One connection's ZMTP. See zmtp.h. Called by connection.c; owns nothing. */
#include "daemon/clients/zmtp.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { FLAG_MORE = 1, FLAG_LONG = 2, FLAG_COMMAND = 4 };

#define MECHANISM_AT    12
#define MECHANISM_BYTES 20
#define AS_SERVER_AT    32
#define PING_CONTEXT    16
#define HEAD_SHORT      2
#define HEAD_LONG       9

struct head {
    uint8_t flags;
    size_t bytes; /* of the head; 0: there is more of it to come */
    uint64_t size;
};

static const uint8_t METADATA[] = "\13Socket-Type\0\0\0\6ROUTER"; /* and a NUL that is not sent */

/* ---- frames ------------------------------------------------------------------------------------------- */

static struct head head_read(const uint8_t *data, size_t size)
{
    struct head h = {0};
    if (size < HEAD_SHORT) return h;
    h.flags = data[0];
    if (!(h.flags & FLAG_LONG)) {
        h.bytes = HEAD_SHORT;
        h.size = data[1];
    } else if (size >= HEAD_LONG) {
        h.bytes = HEAD_LONG;
        for (int i = 1; i < HEAD_LONG; i++) h.size = h.size << 8 | data[i];
    }
    return h;
}

static size_t head_bytes(uint64_t size)
{
    return size > UINT8_MAX ? HEAD_LONG : HEAD_SHORT;
}

static size_t head_write(uint8_t *to, uint8_t flags, uint64_t size)
{
    if (size <= UINT8_MAX) {
        to[0] = flags;
        to[1] = (uint8_t)size;
        return HEAD_SHORT;
    }
    to[0] = flags | FLAG_LONG;
    for (int i = 8; i > 0; i--, size >>= 8) to[i] = (uint8_t)size;
    return HEAD_LONG;
}

/* ---- before messages ---------------------------------------------------------------------------------- */

void zmtp_begin(struct zmtp *session, const struct zmtp_door *door, size_t frame_max)
{
    memset(session, 0, sizeof *session);
    session->door = door;
    session->frame_max = frame_max;
}

static const char *mechanism_of(const struct zmtp *session)
{
    return session->door ? "CURVE" : "NULL";
}

void zmtp_greet(const struct zmtp *session, uint8_t greeting[ZMTP_GREETING])
{
    const char *mechanism = mechanism_of(session);
    memset(greeting, 0, ZMTP_GREETING);
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[11] = 1;
    memcpy(greeting + MECHANISM_AT, mechanism, strlen(mechanism));
    greeting[AS_SERVER_AT] = session->door != NULL;
}

static enum zmtp_event end(struct zmtp *session, const char *why)
{
    session->state = ZMTP_ENDED;
    snprintf(session->why, sizeof session->why, "%s", why);
    return ZMTP_END;
}

static enum zmtp_event take_greeting(struct zmtp *session, const uint8_t *data)
{
    char mechanism[MECHANISM_BYTES + 1] = "";
    memcpy(mechanism, data + MECHANISM_AT, MECHANISM_BYTES);
    if (data[0] != 0xff || data[9] != 0x7f || data[10] < 3) return end(session, "does not speak ZMTP 3");
    if (strcmp(mechanism, mechanism_of(session)) != 0)
        return end(session, session->door ? "has no CURVE keys" : "wants keys where there are none");
    session->state = session->door ? ZMTP_HELLO : ZMTP_SHAKES;
    return ZMTP_WANTS;
}

static void reply(struct zmtp *session, uint8_t flags, const void *data, size_t size)
{
    const size_t head = head_write(session->reply, flags, size);
    memcpy(session->reply + head, data, size);
    session->reply_size = head + size;
}

/* Properties: a length and a name, a length of four bytes and a value. */
static bool metadata_is_of_a_client(const uint8_t *data, size_t size)
{
    static const char *const types[] = {"DEALER", "REQ", "ROUTER"};
    bool found = false;
    while (size > 0) {
        const size_t name = data[0];
        if (size < 1 + name + 4) return false;
        const uint8_t *length = data + 1 + name, *value = length + 4;
        const size_t bytes =
            (size_t)length[0] << 24 | (size_t)length[1] << 16 | (size_t)length[2] << 8 | length[3];
        if (size - 1 - name - 4 < bytes) return false;
        if (name == 11 && strncasecmp((const char *)data + 1, "Socket-Type", 11) == 0)
            for (size_t i = 0; i < sizeof types / sizeof *types; i++)
                if (bytes == strlen(types[i]) && memcmp(value, types[i], bytes) == 0) found = true;
        size -= 1 + name + 4 + bytes;
        data = value + bytes;
    }
    return found;
}

static enum zmtp_event take_hello(struct zmtp *session, const uint8_t *data, size_t size)
{
    struct helm_err err = {0};
    uint8_t welcome[CURVE_WELCOME];
    if (curve_hello(&session->curve, &session->door->server, data, size, welcome, &err))
        return end(session, err.text);
    reply(session, FLAG_COMMAND, welcome, sizeof welcome);
    session->state = ZMTP_SHAKES;
    return ZMTP_REPLY;
}

static enum zmtp_event take_initiate(struct zmtp *session, uint8_t *data, size_t size)
{
    struct helm_err err = {0};
    const struct zmtp_door *door = session->door;
    const uint8_t *metadata;
    size_t metadata_size;
    uint8_t ready[CURVE_READY_MAX];
    if (curve_initiate(&session->curve, &door->server, data, size, &metadata, &metadata_size, &err))
        return end(session, err.text);
    if (!door->lets_in(door->context, session->curve.client)) {
        reply(session, FLAG_COMMAND, "\5ERROR\003400", 10);
        return end(session, "its public key is not in curve-clients-file");
    }
    if (!metadata_is_of_a_client(metadata, metadata_size)) return end(session, "is no DEALER or REQ socket");
    reply(session, FLAG_COMMAND, ready, curve_ready(&session->curve, METADATA, sizeof METADATA - 1, ready));
    session->state = ZMTP_OPEN;
    return ZMTP_REPLY;
}

static enum zmtp_event take_ready(struct zmtp *session, const uint8_t *data, size_t size)
{
    uint8_t ready[6 + sizeof METADATA] = "\5READY";
    if (size < 6 || memcmp(data, "\5READY", 6) != 0) return end(session, "does not begin with READY");
    if (!metadata_is_of_a_client(data + 6, size - 6)) return end(session, "is no DEALER or REQ socket");
    memcpy(ready + 6, METADATA, sizeof METADATA - 1);
    reply(session, FLAG_COMMAND, ready, 6 + sizeof METADATA - 1);
    session->state = ZMTP_OPEN;
    return ZMTP_REPLY;
}

static enum zmtp_event take_handshake(struct zmtp *session, uint8_t *data, size_t size)
{
    if (session->state == ZMTP_HELLO) return take_hello(session, data, size);
    return session->door ? take_initiate(session, data, size) : take_ready(session, data, size);
}

/* ---- messages ----------------------------------------------------------------------------------------- */

/* PING, time to live, context is answered by PONG, context; other commands are of no concern to a ROUTER. */
static enum zmtp_event take_command(struct zmtp *session, const uint8_t *data, size_t size)
{
    uint8_t pong[5 + PING_CONTEXT + CURVE_OVERHEAD] = "\4PONG";
    if (size < 7 || size > 7 + PING_CONTEXT || memcmp(data, "\4PING", 5) != 0) return ZMTP_WANTS;
    memcpy(pong + 5, data + 7, size - 7);
    size_t bytes = 5 + size - 7;
    if (session->door) {
        uint8_t sealed[sizeof pong + CURVE_OVERHEAD];
        curve_seal(&session->curve, CURVE_FLAG_ORDER, pong, bytes, sealed);
        reply(session, 0, sealed, bytes + CURVE_OVERHEAD);
    } else {
        reply(session, FLAG_COMMAND, pong, bytes);
    }
    return ZMTP_REPLY;
}

/* Whether a further part of `size` bytes is within the bounds of a message. */
static bool part_fits(const struct zmtp *session, uint64_t size)
{
    return size <= session->frame_max && session->bytes + size <= session->frame_max &&
           session->opened + session->parts < ZMTP_PARTS_MAX;
}

static void count_part(struct zmtp *session, uint64_t size, bool more)
{
    if (!session->opened && !session->parts && more && size == 0)
        session->opened = true;
    else
        session->parts++;
    session->bytes += size;
}

static enum zmtp_event end_message(struct zmtp *session, uint8_t *data, size_t size, struct zmtp_taken *taken)
{
    taken->too_many_parts = session->parts != 1;
    taken->frame = taken->too_many_parts ? NULL : data;
    taken->size = taken->too_many_parts ? 0 : size;
    taken->bytes = (size_t)session->bytes;
    session->delimiter = session->opened;
    session->opened = false;
    session->parts = 0;
    session->bytes = 0;
    return ZMTP_MESSAGE;
}

/* A frame that is there as a whole. */
static enum zmtp_event take_frame(struct zmtp *session, uint8_t flags, uint8_t *data, size_t size,
                                  struct zmtp_taken *taken)
{
    struct helm_err err = {0};
    bool more = flags & FLAG_MORE, command = flags & FLAG_COMMAND;
    if (session->state != ZMTP_OPEN) return take_handshake(session, data, size);
    if (session->door) {
        uint8_t inside, *plain;
        size_t plain_size;
        if (curve_open(&session->curve, data, size, &inside, &plain, &plain_size, &err))
            return end(session, err.text);
        more = inside & CURVE_FLAG_MORE;
        command = inside & CURVE_FLAG_ORDER;
        data = plain;
        size = plain_size;
    }
    if (command) return take_command(session, data, size);
    if (!part_fits(session, size)) return end(session, "sends a message of too many parts or bytes");
    count_part(session, size, more);
    return more ? ZMTP_WANTS : end_message(session, data, size, taken);
}

/* The rest of a part that is not kept. */
static enum zmtp_event take_skipped(struct zmtp *session, size_t left, struct zmtp_taken *taken)
{
    const size_t n = session->skip < left ? (size_t)session->skip : left;
    taken->used += n;
    session->skip -= n;
    return session->skip || session->more ? ZMTP_WANTS : end_message(session, NULL, 0, taken);
}

/* Among frames that are never opened, only a first part that is also the last is kept. */
static bool is_skipped(const struct zmtp *session, const struct head *h)
{
    return session->state == ZMTP_OPEN && !session->door && !(h->flags & FLAG_COMMAND) &&
           (session->parts || (h->flags & FLAG_MORE));
}

static uint64_t frame_bound(const struct zmtp *session, const struct head *h)
{
    if (session->state != ZMTP_OPEN || (h->flags & FLAG_COMMAND && !session->door)) return ZMTP_COMMAND_MAX;
    return session->frame_max + (session->door ? CURVE_OVERHEAD : 0);
}

enum zmtp_event zmtp_take(struct zmtp *session, uint8_t *data, size_t size, struct zmtp_taken *taken)
{
    enum zmtp_event event = ZMTP_WANTS;
    *taken = (struct zmtp_taken){0};
    session->reply_size = 0;
    if (session->state == ZMTP_ENDED) return ZMTP_END;
    if (session->state == ZMTP_GREETS) {
        taken->wants = ZMTP_GREETING;
        if (size < ZMTP_GREETING) return ZMTP_WANTS;
        taken->used = ZMTP_GREETING;
        event = take_greeting(session, data);
    }
    while (event == ZMTP_WANTS) {
        const size_t left = size - taken->used;
        if (session->skip) {
            event = take_skipped(session, left, taken);
            taken->wants = 1;
            if (session->skip) return ZMTP_WANTS;
            continue;
        }
        const struct head h = head_read(data + taken->used, left);
        taken->wants = h.bytes ? h.bytes + (size_t)h.size : left < HEAD_SHORT ? HEAD_SHORT : HEAD_LONG;
        if (!h.bytes) return ZMTP_WANTS;
        if (h.size > frame_bound(session, &h)) return end(session, "sends a frame beyond all bounds");
        if (is_skipped(session, &h)) {
            if (!part_fits(session, h.size))
                return end(session, "sends a message of too many parts or bytes");
            count_part(session, h.size, h.flags & FLAG_MORE);
            session->more = h.flags & FLAG_MORE;
            session->skip = h.size;
            taken->used += h.bytes;
            if (!h.size && !session->more) event = end_message(session, NULL, 0, taken);
            continue;
        }
        if (left < taken->wants) return ZMTP_WANTS;
        event = take_frame(session, h.flags, data + taken->used + h.bytes, (size_t)h.size, taken);
        taken->used += h.bytes + (size_t)h.size;
    }
    return event;
}

/* ---- answers ------------------------------------------------------------------------------------------ */

static size_t part_size(const struct zmtp *session, size_t size)
{
    if (session->door) size += CURVE_OVERHEAD;
    return head_bytes(size) + size;
}

size_t zmtp_wrapped_size(const struct zmtp *session, size_t size)
{
    return (session->delimiter ? part_size(session, 0) : 0) + part_size(session, size);
}

static size_t part_write(struct zmtp *session, bool more, const uint8_t *data, size_t size, uint8_t *to)
{
    if (!session->door) {
        const size_t head = head_write(to, more ? FLAG_MORE : 0, size);
        if (size) memcpy(to + head, data, size);
        return head + size;
    }
    const size_t head = head_write(to, 0, size + CURVE_OVERHEAD);
    curve_seal(&session->curve, more ? CURVE_FLAG_MORE : 0, data, size, to + head);
    return head + size + CURVE_OVERHEAD;
}

void zmtp_wrap(struct zmtp *session, const uint8_t *data, size_t size, uint8_t *to)
{
    if (session->delimiter) to += part_write(session, true, (const uint8_t *)"", 0, to);
    part_write(session, false, data, size, to);
}
