/* The checksum by which the hub names a file: SHA-256 of a large one, git's SHA-1 of a small one.
 *
 * Called by transfer.c, pull.c and probe.c; the caller owns the state. SHA-1 (FIPS 180-4) is what git's ids
 * are; it tells damage, and forgery as far as git does. */
#pragma once

#include <sodium/crypto_hash_sha256.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECKSUM_TEXT       65
#define CHECKSUM_GIT_DIGITS 40 /* of the id of a file in git */

struct checksum {
    bool git;
    crypto_hash_sha256_state sha256;
    uint32_t state[5]; /* of SHA-1, as all below */
    uint64_t bytes;
    uint8_t block[64];
};

/* `id`: as the hub says it, whose length is its kind's. `bytes`: of the whole file, which git's begins
 * with. */
void checksum_begin(struct checksum *sum, const char *id, uint64_t bytes);
void checksum_add(struct checksum *sum, const void *data, size_t bytes);
/* In lower-case hexadecimal digits. The state is used up. */
void checksum_end(struct checksum *sum, char text[CHECKSUM_TEXT]);
