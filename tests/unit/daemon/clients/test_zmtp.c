/* Unit tests of daemon/clients/zmtp.c: the same messages however the bytes are cut, and the bounds of one to
 * the byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/clients/zmtp.h"

#define FRAME_MAX ((size_t)1000)
#define STREAM    ((size_t)1 << 16)

struct stream {
    uint8_t data[STREAM];
    size_t size;
};

static void put(struct stream *s, uint8_t flags, const void *data, size_t size)
{
    uint8_t *to = s->data + s->size;
    *to++ = size > 255 ? flags | 2 : flags;
    for (int i = size > 255 ? 7 : 0; i >= 0; i--) *to++ = (uint8_t)(size >> 8 * i);
    memcpy(to, data, size);
    s->size = (size_t)(to - s->data) + size;
}

static struct stream *greeted(void)
{
    struct stream *s = calloc(1, sizeof *s);
    assert_non_null(s);
    memcpy(s->data, "\xff\0\0\0\0\0\0\0\0\x7f\3\0NULL", 16);
    s->size = ZMTP_GREETING;
    put(s, 4, "\5READY\13Socket-Type\0\0\0\3REQ", 25);
    return s;
}

/* The outcome of a stream that is read `piece` bytes at a time. */
struct outcome {
    struct zmtp session;
    uint32_t messages, replies, odd; /* odd: of too many parts */
    uint64_t bytes, sum;             /* of kept frames; of all their bytes and sizes */
    size_t used;
    bool ended;
};

static struct outcome run(const struct stream *s, size_t piece)
{
    struct outcome o = {0};
    uint8_t *held = malloc(STREAM);
    size_t there = 0, at = 0;
    assert_non_null(held);
    zmtp_begin(&o.session, NULL, FRAME_MAX);
    for (;;) {
        struct zmtp_taken taken;
        const enum zmtp_event event = zmtp_take(&o.session, held, there, &taken);
        o.replies += event == ZMTP_REPLY;
        o.used += taken.used;
        if (event == ZMTP_MESSAGE) {
            o.messages++;
            o.odd += taken.too_many_parts;
            o.bytes += taken.size;
            for (size_t i = 0; i < taken.size; i++) o.sum = o.sum * 31 + taken.frame[i];
        }
        there -= taken.used;
        memmove(held, held + taken.used, there);
        o.ended = event == ZMTP_END;
        if (o.ended) break;
        if (event != ZMTP_WANTS) continue;
        const size_t n = s->size - at < piece ? s->size - at : piece;
        if (!n) break;
        memcpy(held + there, s->data + at, n);
        there += n;
        at += n;
    }
    free(held);
    return o;
}

static void messages_are_the_same_however_they_are_cut(void **state)
{
    (void)state;
    struct stream *s = greeted();
    uint8_t data[FRAME_MAX];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7);
    put(s, 0, data, 10);
    put(s, 1, data, 0);
    put(s, 0, data, FRAME_MAX);
    put(s, 4, "\4PING\0\1context", 14);
    put(s, 0, data, 0);
    put(s, 1, data, 300); /* not kept */
    put(s, 1, data, 0);
    put(s, 0, data, 300);
    put(s, 4, "\5WHAT?", 6);
    put(s, 0, data, 256);
    const struct outcome whole = run(s, STREAM);
    assert_false(whole.ended);
    assert_int_equal(whole.messages, 5);
    assert_int_equal(whole.odd, 1);
    assert_int_equal(whole.replies, 2); /* READY, PONG */
    assert_int_equal(whole.bytes, 10 + FRAME_MAX + 256);
    assert_int_equal(whole.used, s->size);
    for (size_t piece = 1; piece < 40; piece++) {
        const struct outcome cut = run(s, piece);
        assert_int_equal(cut.messages, whole.messages);
        assert_int_equal(cut.replies, whole.replies);
        assert_int_equal(cut.sum, whole.sum);
        assert_int_equal(cut.used, s->size);
    }
    free(s);
}

static void a_message_has_so_many_parts_and_bytes_and_no_more(void **state)
{
    (void)state;
    uint8_t data[FRAME_MAX + 1] = {0};
    for (int more = 0; more < 2; more++) {
        struct stream *parts = greeted(), *bytes = greeted(), *frame = greeted();
        for (int i = 0; i < ZMTP_PARTS_MAX - 1 + more; i++) put(parts, 1, data, 0);
        put(parts, 0, data, 0);
        assert_int_equal(run(parts, STREAM).ended, more);
        put(bytes, 1, data, FRAME_MAX - 100);
        put(bytes, 0, data, 100 + (size_t)more);
        assert_int_equal(run(bytes, STREAM).ended, more);
        put(frame, 0, data, FRAME_MAX + (size_t)more);
        assert_int_equal(run(frame, STREAM).ended, more);
        assert_int_equal(run(frame, STREAM).messages, !more);
        free(parts);
        free(bytes);
        free(frame);
    }
}

static void answers_have_the_form_of_their_question(void **state)
{
    (void)state;
    struct stream *s = greeted();
    uint8_t data[1000] = {9}, to[1100];
    put(s, 0, data, 1);
    struct outcome o = run(s, STREAM);
    assert_int_equal(zmtp_wrapped_size(&o.session, 255), 257);
    assert_int_equal(zmtp_wrapped_size(&o.session, 1000), 1009);
    zmtp_wrap(&o.session, data, 1000, to);
    assert_memory_equal(to, "\2\0\0\0\0\0\0\3\xe8\x09", 10);
    put(s, 1, data, 0);
    put(s, 0, data, 1);
    o = run(s, STREAM);
    assert_int_equal(zmtp_wrapped_size(&o.session, 1), 2 + 3);
    zmtp_wrap(&o.session, data, 1, to);
    assert_memory_equal(to, "\1\0\0\1\x09", 5);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_the_same_however_they_are_cut),
        cmocka_unit_test(a_message_has_so_many_parts_and_bytes_and_no_more),
        cmocka_unit_test(answers_have_the_form_of_their_question),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
