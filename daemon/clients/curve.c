/* CurveZMQ's boxes. See curve.h. Called by zmtp.c; owns nothing. */
#include "daemon/clients/curve.h"

#include <assert.h>
#include <sodium.h>
#include <string.h>

#define NONCE      crypto_box_NONCEBYTES /* 24: a prefix and what makes it this one's */
#define MAC        crypto_box_MACBYTES
#define NAME       8 /* of MESSAGE and WELCOME, with the byte in front that says how long it is */
#define MESSAGE_AT (NAME + 8)

/* HELLO: name, version 1.0, 72 zeros, client's short-term key, nonce, box of 64 zeros */
#define HELLO_BYTES 200
#define HELLO_KEY   80
#define HELLO_NONCE 112
#define HELLO_BOX   120
/* INITIATE: name, cookie, nonce, box of long-term key, vouch's nonce and box, metadata */
#define COOKIE         96
#define INITIATE_NONCE (9 + COOKIE)
#define INITIATE_BOX   (INITIATE_NONCE + 8)
#define VOUCH_BOX      80
#define METADATA_AT    (CURVE_KEY + 16 + VOUCH_BOX)
#define METADATA_MAX   64

static_assert(CURVE_OVERHEAD == MESSAGE_AT + MAC + 1, "what a sealed part has beside its own bytes");
static_assert(CURVE_KEY == crypto_box_PUBLICKEYBYTES && CURVE_KEY == crypto_secretbox_KEYBYTES &&
                  CURVE_KEY == crypto_box_BEFORENMBYTES,
              "all keys are of one size");

int curve_init(struct helm_err *err)
{
    return sodium_init() < 0 ? helm_fail(err, HELM_E_UNSUPPORTED, "libsodium does not start") : 0;
}

static uint64_t read_number(const uint8_t *from)
{
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value = value << 8 | from[i];
    return value;
}

static void write_number(uint8_t *to, uint64_t value)
{
    for (int i = 7; i >= 0; i--, value >>= 8) to[i] = (uint8_t)value;
}

/* Prefixes of 16 bytes have 8 of the command after them, those of 8 have 16. */
static void nonce_of(uint8_t nonce[NONCE], const char *prefix, const uint8_t *rest)
{
    const size_t n = strlen(prefix);
    memcpy(nonce, prefix, n);
    memcpy(nonce + n, rest, NONCE - n);
}

int curve_hello(struct curve_session *session, const struct curve_server *server, const uint8_t *data,
                size_t size, uint8_t welcome[CURVE_WELCOME], struct helm_err *err)
{
    uint8_t nonce[NONCE], zeros[64], cookie[2 * CURVE_KEY], inside[CURVE_KEY + COOKIE];
    if (size != HELLO_BYTES || memcmp(data, "\5HELLO\1\0", 8) != 0)
        return helm_fail(err, HELM_E_FORMAT, "no CURVE HELLO of version 1.0");
    nonce_of(nonce, "CurveZMQHELLO---", data + HELLO_NONCE);
    if (crypto_box_open_easy(zeros, data + HELLO_BOX, sizeof zeros + MAC, nonce, data + HELLO_KEY,
                             server->secret))
        return helm_fail(err, HELM_E_FORMAT, "CURVE HELLO is not for this daemon's key");
    memcpy(session->client_short, data + HELLO_KEY, CURVE_KEY);
    crypto_box_keypair(session->short_public, session->short_secret);
    randombytes_buf(session->cookie_key, CURVE_KEY);

    memcpy(inside, session->short_public, CURVE_KEY);
    randombytes_buf(inside + CURVE_KEY, 16);
    memcpy(cookie, session->client_short, CURVE_KEY);
    memcpy(cookie + CURVE_KEY, session->short_secret, CURVE_KEY);
    nonce_of(nonce, "COOKIE--", inside + CURVE_KEY);
    crypto_secretbox_easy(inside + CURVE_KEY + 16, cookie, sizeof cookie, nonce, session->cookie_key);

    memcpy(welcome, "\7WELCOME", NAME);
    randombytes_buf(welcome + NAME, 16);
    nonce_of(nonce, "WELCOME-", welcome + NAME);
    if (crypto_box_easy(welcome + NAME + 16, inside, sizeof inside, nonce, session->client_short,
                        server->secret))
        return helm_fail(err, HELM_E_FORMAT, "CURVE HELLO has a key that is none");
    return 0;
}

/* The vouch proves that the owner of the long-term key made the short-term one, for this server. */
static int check_vouch(const struct curve_session *session, const struct curve_server *server,
                       const uint8_t *inside, struct helm_err *err)
{
    uint8_t nonce[NONCE], keys[2 * CURVE_KEY];
    nonce_of(nonce, "VOUCH---", inside + CURVE_KEY);
    if (crypto_box_open_easy(keys, inside + CURVE_KEY + 16, VOUCH_BOX, nonce, inside,
                             session->short_secret) ||
        sodium_memcmp(keys, session->client_short, CURVE_KEY) != 0 ||
        sodium_memcmp(keys + CURVE_KEY, server->public, CURVE_KEY) != 0)
        return helm_fail(err, HELM_E_FORMAT, "CURVE INITIATE: its vouch is not its client's");
    return 0;
}

int curve_initiate(struct curve_session *session, const struct curve_server *server, uint8_t *data,
                   size_t size, const uint8_t **metadata, size_t *metadata_size, struct helm_err *err)
{
    uint8_t nonce[NONCE], cookie[2 * CURVE_KEY];
    *metadata = NULL;
    *metadata_size = 0;
    if (size < INITIATE_BOX + MAC + METADATA_AT || memcmp(data, "\10INITIATE", 9) != 0)
        return helm_fail(err, HELM_E_FORMAT, "no CURVE INITIATE");
    nonce_of(nonce, "COOKIE--", data + 9);
    if (crypto_secretbox_open_easy(cookie, data + 9 + 16, COOKIE - 16, nonce, session->cookie_key) ||
        sodium_memcmp(cookie, session->client_short, CURVE_KEY) != 0 ||
        sodium_memcmp(cookie + CURVE_KEY, session->short_secret, CURVE_KEY) != 0)
        return helm_fail(err, HELM_E_FORMAT, "CURVE INITIATE: its cookie is not this connection's");
    nonce_of(nonce, "CurveZMQINITIATE", data + INITIATE_NONCE);
    uint8_t *inside = data + INITIATE_BOX;
    const size_t box = size - INITIATE_BOX;
    if (crypto_box_open_easy(inside, inside, box, nonce, session->client_short, session->short_secret))
        return helm_fail(err, HELM_E_FORMAT, "CURVE INITIATE cannot be opened");
    const int rc = check_vouch(session, server, inside, err);
    if (rc) return rc;
    if (crypto_box_beforenm(session->shared, session->client_short, session->short_secret))
        return helm_fail(err, HELM_E_FORMAT, "CURVE INITIATE: its key is none");
    memcpy(session->client, inside, CURVE_KEY);
    session->received = read_number(data + INITIATE_NONCE);
    *metadata = inside + METADATA_AT;
    *metadata_size = box - MAC - METADATA_AT;
    return 0;
}

size_t curve_ready(struct curve_session *session, const uint8_t *metadata, size_t size,
                   uint8_t ready[CURVE_READY_MAX])
{
    uint8_t nonce[NONCE];
    static_assert(6 + 8 + MAC + METADATA_MAX <= CURVE_READY_MAX, "READY has room");
    if (size > METADATA_MAX) size = METADATA_MAX;
    memcpy(ready, "\5READY", 6);
    write_number(ready + 6, ++session->sent);
    nonce_of(nonce, "CurveZMQREADY---", ready + 6);
    crypto_box_easy_afternm(ready + 14, metadata, size, nonce, session->shared);
    return 14 + MAC + size;
}

int curve_open(struct curve_session *session, uint8_t *data, size_t size, uint8_t *flags, uint8_t **plain,
               size_t *plain_size, struct helm_err *err)
{
    uint8_t nonce[NONCE];
    if (size < CURVE_OVERHEAD || memcmp(data, "\7MESSAGE", NAME) != 0)
        return helm_fail(err, HELM_E_FORMAT, "no CURVE MESSAGE");
    const uint64_t number = read_number(data + NAME);
    if (number <= session->received) return helm_fail(err, HELM_E_FORMAT, "a CURVE MESSAGE comes twice");
    session->received = number;
    nonce_of(nonce, "CurveZMQMESSAGEC", data + NAME);
    uint8_t *inside = data + MESSAGE_AT;
    if (crypto_box_open_easy_afternm(inside, inside, size - MESSAGE_AT, nonce, session->shared))
        return helm_fail(err, HELM_E_FORMAT, "a CURVE MESSAGE cannot be opened");
    *flags = inside[0];
    *plain = inside + 1;
    *plain_size = size - CURVE_OVERHEAD;
    return 0;
}

void curve_seal(struct curve_session *session, uint8_t flags, const uint8_t *data, size_t size, uint8_t *to)
{
    uint8_t nonce[NONCE], *inside = to + MESSAGE_AT;
    memcpy(to, "\7MESSAGE", NAME);
    write_number(to + NAME, ++session->sent);
    nonce_of(nonce, "CurveZMQMESSAGES", to + NAME);
    memmove(inside + 1, data, size);
    inside[0] = flags;
    crypto_box_easy_afternm(inside, inside, size + 1, nonce, session->shared);
}
