/* SHA-256 (FIPS 180-4), which the hub states of large files. Called by transfer.c and pull.c; the caller owns the state. */
#ifndef HELM_CLIENT_HUB_SHA256_H
#define HELM_CLIENT_HUB_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
};

#define SHA256_TEXT 65

void sha256_begin(struct sha256 *sum);
void sha256_add(struct sha256 *sum, const void *data, size_t bytes);
/* In lower-case hexadecimal digits. The state is used up. */
void sha256_end(struct sha256 *sum, char text[SHA256_TEXT]);

#endif
