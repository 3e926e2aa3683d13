/* Digests. See digest.h. */
#include "common/base/digest.h"

#include <stdio.h>

struct digest digest_begin(void)
{
    return (struct digest){.high = 0x6c62272e07bb0142u, .low = 0x62b821756295c58du};
}

void digest_add(struct digest *digest, const void *bytes, size_t count)
{
    const unsigned __int128 prime = ((unsigned __int128)1 << 88) + 0x13b;
    const unsigned char *at = bytes;
    unsigned __int128 sum = (unsigned __int128)digest->high << 64 | digest->low;
    for (size_t i = 0; i < count; i++) sum = (sum ^ at[i]) * prime;
    digest->high = (uint64_t)(sum >> 64);
    digest->low = (uint64_t)sum;
}

void digest_text(const struct digest *digest, char text[DIGEST_TEXT])
{
    snprintf(text, DIGEST_TEXT, "%016llx%016llx", (unsigned long long)digest->high,
             (unsigned long long)digest->low);
}
