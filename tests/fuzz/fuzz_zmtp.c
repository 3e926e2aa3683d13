/* Fuzz target: zmtp_take over whatever a connection sends, cut into pieces as a socket cuts it. The first
 * byte says where, and whether there are keys. Its memory must stay within the bounds, whatever the frames
 * claim. */
#include <stdlib.h>
#include <string.h>

#include "daemon/clients/zmtp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FRAME_MAX 4096

static void require(bool kept)
{
    if (!kept) abort();
}

static bool lets_in(void *context, const uint8_t key[CURVE_KEY])
{
    (void)context;
    return key[0] & 1;
}

static void answer(struct zmtp *session, const uint8_t *data, size_t size)
{
    const size_t bytes = zmtp_wrapped_size(session, size);
    uint8_t *to = malloc(bytes);
    require(to != NULL && bytes >= size + 2);
    zmtp_wrap(session, data, size, to);
    free(to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct helm_err err = {0};
    struct zmtp_door door = {.lets_in = lets_in};
    struct zmtp session;
    uint8_t greeting[ZMTP_GREETING];
    if (size == 0 || curve_init(&err)) return 0;
    const bool keys = data[0] & 1;
    const size_t piece = 1 + (data[0] >> 1);
    zmtp_begin(&session, keys ? &door : NULL, FRAME_MAX);
    zmtp_greet(&session, greeting);
    /* a buffer of its own, so that a sanitizer sees what is read after its end */
    uint8_t *held = NULL;
    size_t there = 0, at = 1;
    for (enum zmtp_event event = ZMTP_WANTS; event != ZMTP_END;) {
        struct zmtp_taken taken;
        event = zmtp_take(&session, held, there, &taken);
        require(taken.used <= there && session.parts <= ZMTP_PARTS_MAX && session.bytes <= FRAME_MAX);
        require(event != ZMTP_REPLY || (session.reply_size > 0 && session.reply_size <= ZMTP_REPLY_MAX));
        require(event != ZMTP_END || session.why[0]);
        if (event == ZMTP_MESSAGE) {
            require(taken.bytes <= FRAME_MAX && taken.too_many_parts == (taken.frame == NULL));
            require(!taken.frame || (taken.frame >= held && taken.frame + taken.size <= held + taken.used));
            answer(&session, taken.frame ? taken.frame : greeting, taken.frame ? taken.size : 0);
        }
        there -= taken.used;
        if (there) memmove(held, held + taken.used, there);
        if (event != ZMTP_WANTS) continue;
        require(there <= FRAME_MAX + CURVE_OVERHEAD + 9 && taken.wants > there);
        require(taken.wants <= FRAME_MAX + CURVE_OVERHEAD + 9);
        const size_t n = size - at < piece ? size - at : piece;
        if (n == 0) break;
        uint8_t *more = malloc(there + n);
        require(more != NULL);
        if (there) memcpy(more, held, there);
        memcpy(more + there, data + at, n);
        free(held);
        held = more;
        there += n;
        at += n;
    }
    free(held);
    return 0;
}
