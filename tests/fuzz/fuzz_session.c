/* Fuzz target: files of sessions (client/session/file.h). An accepted file, written again, is the same file;
 * a refused one has a reason. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/session/file.h"

struct memory {
    const uint8_t *data;
    uint8_t *copy;
    size_t size, at;
};

static int take(void *context, void *to, size_t bytes, struct helm_err *err)
{
    struct memory *m = context;
    if (bytes > m->size - m->at) return helm_fail(err, HELM_E_FORMAT, "the file ends too early");
    memcpy(to, m->data + m->at, bytes);
    m->at += bytes;
    return 0;
}

static int put(void *context, const void *from, size_t bytes, struct helm_err *err)
{
    struct memory *m = context;
    (void)err;
    if (bytes > m->size - m->at) abort();
    memcpy(m->copy + m->at, from, bytes);
    m->at += bytes;
    return 0;
}

static int read_all(struct memory *m, struct session_head *head, uint8_t **pages, struct helm_err *err)
{
    const struct session_stream stream = {.context = m, .read = take};
    struct session_file file;
    int rc = session_file_open(&file, &stream, m->size, head, err);
    if (rc) return rc;
    *pages = malloc(
        (size_t)(head->pages * head->page_bytes + head->state_bytes)); /* as long as the file at most */
    for (uint32_t p = 0; p < session_file_units(head) && !rc; p++)
        rc = session_file_read_page(&file, head, *pages + p * head->page_bytes, err);
    return rc ? rc : session_file_read_end(&file, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct memory from = {.data = data, .size = size}, to = {.copy = malloc(size + 1), .size = size};
    const struct session_stream stream = {.context = &to, .write = put};
    struct session_head head;
    struct session_file file;
    struct helm_err err = {0};
    uint8_t *pages = NULL;
    if (read_all(&from, &head, &pages, &err)) {
        if (!err.code || !*err.text) abort();
    } else {
        int rc = session_file_create(&file, &stream, &head, &err);
        for (uint32_t p = 0; p < session_file_units(&head) && !rc; p++)
            rc = session_file_write_page(&file, &head, pages + p * head.page_bytes, &err);
        if (!rc) rc = session_file_write_end(&file, &err);
        if (rc || to.at != size || memcmp(to.copy, data, size) != 0) abort();
    }
    session_head_free(&head);
    free(pages);
    free(to.copy);
    return 0;
}
