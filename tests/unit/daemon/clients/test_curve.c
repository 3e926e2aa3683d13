/* Unit tests of daemon/clients/curve.c, against a client's half that is written here after the RFC: a client
 * without a key of its own, or with a changed bit, is refused. (test_helmd.py shows that libzmq's clients are
 * accepted.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sodium.h>
#include <stdbool.h>
#include <string.h>

#include "daemon/clients/curve.h"

#define MAC 16

struct pair {
    uint8_t public[CURVE_KEY], secret[CURVE_KEY];
};

struct talk {
    struct curve_server server;
    struct pair client, brief; /* long-term, short-term */
    struct curve_session session;
    uint8_t server_brief[CURVE_KEY], cookie[96];
    uint64_t sent;
};

static void nonce_of(uint8_t nonce[24], const char *prefix, const uint8_t *rest)
{
    memset(nonce, 0, 24);
    memcpy(nonce, prefix, strlen(prefix));
    memcpy(nonce + strlen(prefix), rest, 24 - strlen(prefix));
}

static void number_to(uint8_t *to, uint64_t n)
{
    for (int i = 7; i >= 0; i--, n >>= 8) to[i] = (uint8_t)n;
}

static void begin(struct talk *t)
{
    struct helm_err err = {0};
    memset(t, 0, sizeof *t);
    assert_int_equal(curve_init(&err), 0);
    crypto_box_keypair(t->server.public, t->server.secret);
    crypto_box_keypair(t->client.public, t->client.secret);
    crypto_box_keypair(t->brief.public, t->brief.secret);
}

static void hello(struct talk *t, uint8_t data[200])
{
    uint8_t nonce[24], zeros[64] = {0};
    memset(data, 0, 200);
    memcpy(data, "\5HELLO\1\0", 8);
    memcpy(data + 80, t->brief.public, CURVE_KEY);
    number_to(data + 112, ++t->sent);
    nonce_of(nonce, "CurveZMQHELLO---", data + 112);
    assert_int_equal(crypto_box_easy(data + 120, zeros, sizeof zeros, nonce, t->server.public,
                                     t->brief.secret),
                     0);
}

static void take_welcome(struct talk *t, const uint8_t welcome[CURVE_WELCOME])
{
    uint8_t nonce[24], inside[128];
    assert_memory_equal(welcome, "\7WELCOME", 8);
    nonce_of(nonce, "WELCOME-", welcome + 8);
    assert_int_equal(crypto_box_open_easy(inside, welcome + 24, 144, nonce, t->server.public,
                                          t->brief.secret),
                     0);
    memcpy(t->server_brief, inside, CURVE_KEY);
    memcpy(t->cookie, inside + CURVE_KEY, sizeof t->cookie);
}

enum { METADATA = 23, INITIATE = 113 + MAC + 128 + METADATA };

/* `vouches_for`: the short-term key that the long-term one vouches for; `server`: the server it is meant
 * for. */
static void initiate(struct talk *t, const uint8_t *vouches_for, const uint8_t *server,
                     uint8_t data[INITIATE])
{
    uint8_t nonce[24], vouch[2 * CURVE_KEY], inside[128 + METADATA];
    memcpy(data, "\10INITIATE", 9);
    memcpy(data + 9, t->cookie, sizeof t->cookie);
    number_to(data + 105, ++t->sent);
    memcpy(inside, t->client.public, CURVE_KEY);
    randombytes_buf(inside + CURVE_KEY, 16);
    memcpy(vouch, vouches_for, CURVE_KEY);
    memcpy(vouch + CURVE_KEY, server, CURVE_KEY);
    nonce_of(nonce, "VOUCH---", inside + CURVE_KEY);
    assert_int_equal(crypto_box_easy(inside + 48, vouch, sizeof vouch, nonce, t->server_brief,
                                     t->client.secret),
                     0);
    memcpy(inside + 128, "\13Socket-Type\0\0\0\6DEALER", METADATA - 1);
    inside[128 + METADATA - 1] = 0;
    nonce_of(nonce, "CurveZMQINITIATE", data + 105);
    assert_int_equal(crypto_box_easy(data + 113, inside, sizeof inside, nonce, t->server_brief,
                                     t->brief.secret),
                     0);
}

static int enter(struct talk *t, uint8_t *data, struct helm_err *err)
{
    const uint8_t *metadata;
    size_t size;
    const int rc = curve_initiate(&t->session, &t->server, data, INITIATE, &metadata, &size, err);
    if (rc) return rc;
    assert_int_equal(size, METADATA);
    assert_memory_equal(metadata, "\13Socket-Type", 12);
    return 0;
}

/* Up to the cookie. */
static void begin_welcomed(struct talk *t)
{
    struct helm_err err = {0};
    uint8_t data[200], welcome[CURVE_WELCOME];
    begin(t);
    hello(t, data);
    if (curve_hello(&t->session, &t->server, data, sizeof data, welcome, &err)) fail_msg("%s", err.text);
    take_welcome(t, welcome);
}

static void begin_open(struct talk *t)
{
    struct helm_err err = {0};
    uint8_t data[INITIATE];
    begin_welcomed(t);
    initiate(t, t->brief.public, t->server.public, data);
    if (enter(t, data, &err)) fail_msg("%s", err.text);
    assert_memory_equal(t->session.client, t->client.public, CURVE_KEY);
}

static size_t message(struct talk *t, uint8_t flags, const char *text, uint8_t *data)
{
    uint8_t nonce[24], inside[256];
    const size_t size = strlen(text);
    memcpy(data, "\7MESSAGE", 8);
    number_to(data + 8, ++t->sent);
    nonce_of(nonce, "CurveZMQMESSAGEC", data + 8);
    inside[0] = flags;
    memcpy(inside + 1, text, size);
    assert_int_equal(crypto_box_easy(data + 16, inside, size + 1, nonce, t->server_brief, t->brief.secret),
                     0);
    return size + CURVE_OVERHEAD;
}

static void a_client_with_its_key_comes_in_and_talks(void **state)
{
    (void)state;
    struct talk t;
    struct helm_err err = {0};
    uint8_t data[256], ready[CURVE_READY_MAX], nonce[24], inside[256], flags, *plain;
    size_t plain_size;
    begin_open(&t);
    const size_t size = curve_ready(&t.session, (const uint8_t *)"abc", 3, ready);
    assert_memory_equal(ready, "\5READY", 6);
    nonce_of(nonce, "CurveZMQREADY---", ready + 6);
    assert_int_equal(crypto_box_open_easy(inside, ready + 14, size - 14, nonce, t.server_brief,
                                          t.brief.secret),
                     0);
    assert_memory_equal(inside, "abc", 3);
    const size_t sent = message(&t, CURVE_FLAG_MORE, "hello", data);
    assert_int_equal(curve_open(&t.session, data, sent, &flags, &plain, &plain_size, &err), 0);
    assert_int_equal(flags, CURVE_FLAG_MORE);
    assert_int_equal(plain_size, 5);
    assert_memory_equal(plain, "hello", 5);
    curve_seal(&t.session, 0, (const uint8_t *)"answer", 6, data);
    nonce_of(nonce, "CurveZMQMESSAGES", data + 8);
    assert_int_equal(crypto_box_open_easy(inside, data + 16, 6 + 1 + MAC, nonce, t.server_brief,
                                          t.brief.secret),
                     0);
    assert_memory_equal(inside, "\0answer", 7);
    assert_true(memcmp(data + 8, ready + 6, 8) > 0); /* a nonce is never used twice */
}

static void no_bit_of_a_handshake_may_be_another(void **state)
{
    (void)state;
    struct helm_err err = {0};
    for (size_t at = 0; at < 200; at += at < 8 || at >= 80 ? 1 : 8) {
        struct talk t;
        uint8_t data[200], welcome[CURVE_WELCOME];
        begin(&t);
        hello(&t, data);
        data[at] ^= 1;
        const bool padding = at >= 8 && at < 80;
        assert_int_equal(curve_hello(&t.session, &t.server, data, sizeof data, welcome, &err) == 0, padding);
    }
    for (size_t at = 0; at < INITIATE; at++) {
        struct talk t;
        uint8_t data[INITIATE];
        begin_welcomed(&t);
        initiate(&t, t.brief.public, t.server.public, data);
        data[at] ^= 1;
        assert_int_equal(enter(&t, data, &err), HELM_E_FORMAT);
    }
}

static void nobody_enters_with_anothers_name(void **state)
{
    (void)state;
    struct talk t, other;
    struct helm_err err = {0};
    uint8_t data[INITIATE], key[CURVE_KEY];
    begin_welcomed(&t); /* a vouch for another client's connection */
    begin(&other);
    initiate(&t, other.brief.public, t.server.public, data);
    assert_int_equal(enter(&t, data, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "vouch"));
    begin_welcomed(&t); /* one that was given to another server */
    initiate(&t, t.brief.public, other.server.public, data);
    assert_int_equal(enter(&t, data, &err), HELM_E_FORMAT);
    begin_welcomed(&t); /* a public key whose secret one is not there */
    memcpy(t.client.public, other.client.public, CURVE_KEY);
    initiate(&t, t.brief.public, t.server.public, data);
    assert_int_equal(enter(&t, data, &err), HELM_E_FORMAT);
    begin_welcomed(&t); /* a cookie of another connection */
    memcpy(key, t.cookie, sizeof key);
    begin_welcomed(&other);
    memcpy(t.cookie, other.cookie, sizeof t.cookie);
    initiate(&t, t.brief.public, t.server.public, data);
    assert_int_equal(enter(&t, data, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "cookie"));
}

static void a_message_counts_once_and_whole(void **state)
{
    (void)state;
    struct talk t;
    struct helm_err err = {0};
    uint8_t data[256], copy[256], flags, *plain;
    size_t plain_size;
    begin_open(&t);
    const size_t size = message(&t, 0, "hello", data);
    for (size_t cut = 0; cut < size; cut++) {
        memcpy(copy, data, size);
        struct curve_session session = t.session;
        assert_int_equal(curve_open(&session, copy, cut, &flags, &plain, &plain_size, &err), HELM_E_FORMAT);
        session = t.session;
        memcpy(copy, data, size);
        copy[cut] ^= 1;
        assert_int_equal(curve_open(&session, copy, size, &flags, &plain, &plain_size, &err), HELM_E_FORMAT);
    }
    memcpy(copy, data, size);
    assert_int_equal(curve_open(&t.session, copy, size, &flags, &plain, &plain_size, &err), 0);
    assert_int_equal(curve_open(&t.session, data, size, &flags, &plain, &plain_size, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "twice"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_with_its_key_comes_in_and_talks),
        cmocka_unit_test(no_bit_of_a_handshake_may_be_another),
        cmocka_unit_test(nobody_enters_with_anothers_name),
        cmocka_unit_test(a_message_counts_once_and_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
