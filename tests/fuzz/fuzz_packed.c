/* Fuzz target: packed groups. The input's first two bytes are how many values to expect, the rest is read as
 * a packed group; what is accepted must pack again to something that reads the same. The rest is also taken
 * as values, which must come back. */
#include <stdlib.h>
#include <string.h>

#include "common/formats/packed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void *new_bytes(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p) abort();
    return p;
}

static void must_come_back(const uint16_t *value, uint32_t values)
{
    struct helm_err err = {0};
    struct packed_measure m;
    packed_measure(value, values, &m);
    uint8_t *fast = new_bytes(m.bytes), *plain = new_bytes(m.bytes);
    uint16_t *back = new_bytes(values * sizeof(*back));
    if (m.bytes > packed_group_bytes_max(values) || packed_write(&m, value, values, fast, &err) ||
        packed_write_ref(&m, value, values, plain, &err) || memcmp(fast, plain, m.bytes) != 0 ||
        packed_read(fast, m.bytes, values, back, &err) || memcmp(back, value, values * sizeof(*back)) != 0)
        abort();
    free(back);
    free(plain);
    free(fast);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct helm_err err = {0};
    if (size < 4) return 0;
    const uint32_t values = data[0] | (uint32_t)data[1] << 8;
    const size_t bytes = size - 2;
    /* exactly as large as it is, and aligned */
    uint8_t *packed = new_bytes(bytes);
    uint16_t *value = new_bytes(values * sizeof(*value));
    memcpy(packed, data + 2, bytes);
    if (packed_read(packed, bytes, values, value, &err) == HELM_OK)
        must_come_back(value, values);
    else if (err.code != HELM_E_FORMAT || err.text[0] == '\0')
        abort();
    free(value);
    value = new_bytes(bytes / 2 * sizeof(*value));
    memcpy(value, packed, bytes / 2 * sizeof(*value));
    must_come_back(value, (uint32_t)(bytes / 2));
    free(value);
    free(packed);
    return 0;
}
