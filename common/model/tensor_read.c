/* A tensor's bytes out of its file, in the order of its rows. See model.h; called by loaders. */
#include "common/base/file.h"
#include "common/model/model.h"

int model_tensor_read(const struct model_tensor *t, int fd, uint64_t from, uint64_t bytes, void *to,
                      struct helm_err *err)
{
    if (!t->interleaved_heads) return file_pread_all(fd, to, (size_t)bytes, t->offset + from, t->name, err);
    const uint64_t rows = t->rows > 1 ? t->rows : t->cols, row_bytes = t->bytes / rows;
    const uint64_t head = rows / t->interleaved_heads;
    int rc = 0;
    for (uint64_t at = from, part; at < from + bytes && !rc; at += part) {
        const uint64_t row = at / row_bytes, i = row % head, inside = at % row_bytes;
        const uint64_t there = row - i + (i < head / 2 ? 2 * i : 2 * (i - head / 2) + 1);
        part = row_bytes - inside;
        if (part > from + bytes - at) part = from + bytes - at;
        rc = file_pread_all(fd, (char *)to + (at - from), (size_t)part,
                            t->offset + there * row_bytes + inside, t->name, err);
    }
    return rc;
}
