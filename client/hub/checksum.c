/* SHA-256 by libsodium, and SHA-1, which it does not have. See checksum.h. */
#include "client/hub/checksum.h"

#include <stdio.h>
#include <string.h>

static uint32_t turn(uint32_t x, int n)
{
    return x << n | x >> (32 - n);
}

static void add_block(struct checksum *sum, const uint8_t *block)
{
    static const uint32_t constant[4] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    uint32_t w[80], a = sum->state[0], b = sum->state[1], c = sum->state[2], d = sum->state[3],
                    e = sum->state[4];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 80; i++) w[i] = turn(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (int i = 0; i < 80; i++) {
        const int quarter = i / 20;
        const uint32_t choice = quarter == 0   ? (b & c) | (~b & d)
                                : quarter == 2 ? (b & c) | (b & d) | (c & d)
                                               : b ^ c ^ d;
        const uint32_t next = turn(a, 5) + choice + e + constant[quarter] + w[i];
        e = d;
        d = c;
        c = turn(b, 30);
        b = a;
        a = next;
    }
    sum->state[0] += a;
    sum->state[1] += b;
    sum->state[2] += c;
    sum->state[3] += d;
    sum->state[4] += e;
}

static void add_sha1(struct checksum *sum, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    while (bytes) {
        const size_t held = sum->bytes % sizeof sum->block;
        const size_t part = bytes < sizeof sum->block - held ? bytes : sizeof sum->block - held;
        memcpy(sum->block + held, at, part);
        sum->bytes += part;
        if (held + part == sizeof sum->block) add_block(sum, sum->block);
        at += part;
        bytes -= part;
    }
}

static void end_sha1(struct checksum *sum, uint8_t out[20])
{
    const uint64_t bits = sum->bytes * 8;
    const size_t held = sum->bytes % sizeof sum->block;
    uint8_t tail[72] = {0x80};
    const size_t zeros = (held < 56 ? 56 : 120) - held;
    for (int i = 0; i < 8; i++) tail[zeros + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    add_sha1(sum, tail, zeros + 8);
    for (int i = 0; i < 20; i++) out[i] = (uint8_t)(sum->state[i / 4] >> (24 - 8 * (i % 4)));
}

void checksum_begin(struct checksum *sum, const char *id, uint64_t bytes)
{
    static const uint32_t first[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    char head[32];
    memset(sum, 0, sizeof *sum);
    sum->git = strlen(id) == CHECKSUM_GIT_DIGITS;
    memcpy(sum->state, first, sizeof first);
    crypto_hash_sha256_init(&sum->sha256);
    const int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)bytes);
    if (sum->git) add_sha1(sum, head, (size_t)n + 1); /* with its 0 */
}

void checksum_add(struct checksum *sum, const void *data, size_t bytes)
{
    if (sum->git)
        add_sha1(sum, data, bytes);
    else
        crypto_hash_sha256_update(&sum->sha256, data, bytes);
}

void checksum_end(struct checksum *sum, char text[CHECKSUM_TEXT])
{
    uint8_t out[crypto_hash_sha256_BYTES];
    const size_t bytes = sum->git ? 20 : sizeof out;
    if (sum->git)
        end_sha1(sum, out);
    else
        crypto_hash_sha256_final(&sum->sha256, out);
    for (size_t i = 0; i < bytes; i++) snprintf(text + 2 * i, 3, "%02x", out[i]);
}
