/* Fuzz target: files of sessions (client/session/file.h). An accepted file, written again, is the same file;
 * a refused one has a reason. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/session/file.h"

static int read_all(FILE *from, size_t size, struct session_head *head, uint8_t **pages, struct helm_err *err)
{
    struct session_file file;
    int rc = session_file_open(&file, from, size, head, err);
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
    char *copy = NULL;
    size_t written = 0;
    FILE *from = fmemopen((void *)data, size, "r"), *to = open_memstream(&copy, &written);
    struct session_head head;
    struct session_file file;
    struct helm_err err = {0};
    uint8_t *pages = NULL;
    if (read_all(from, size, &head, &pages, &err)) {
        if (!err.code || !*err.text) abort();
    } else {
        int rc = session_file_create(&file, to, &head, &err);
        for (uint32_t p = 0; p < session_file_units(&head) && !rc; p++)
            rc = session_file_write_page(&file, &head, pages + p * head.page_bytes, &err);
        if (!rc) rc = session_file_write_end(&file, &err);
        if (rc || fflush(to) || written != size || memcmp(copy, data, size) != 0) abort();
    }
    session_head_free(&head);
    free(pages);
    fclose(from);
    fclose(to);
    free(copy);
    return 0;
}
