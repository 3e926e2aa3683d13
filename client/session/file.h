/* Files of sessions: KV pages of a token sequence, as `helm-cli session save` writes them.
 *
 * Called by cli/command_session.c, and by tests/fuzz/fuzz_session.c with bytes from strangers. Owns nothing
 * but what session_head holds. Numbers are little-endian.
 *
 *   bytes            what
 *   8                "HELMKV\r\n"
 *   4, 4             version (2; 3: with states of fixed size), bytes of the head
 *   8                digest of the model
 *   4 x 4            layers, KV heads, head_dim, tokens of a page
 *   8, 32            type of the KV cache, mixture of the weights: text, filled with zeros
 *   4, 4             tokens, pages
 *   8                bytes of a page
 *   8                of an invariant plan: what decides the pages' bits; else 0
 *   8                version 3: bytes of the state
 *   4 x tokens       token ids
 *   8                checksum of all so far
 *   pages x          a page's bytes, and 8: their checksum, of which the page's number is part
 *   state, 8         version 3: states of fixed size at the end of the last page, and their checksum, as one
 *                    page more
 *   8                "\r\nVKMLEH"
 *   8                checksum of the head's checksum and every page's, in order
 *
 * and nothing after that. Checksums are XXH3 of 64 bits (https://xxhash.com): against damage, not against
 * forgers. helmd believes nothing that a file says either. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "client/connection/session.h"
#include "common/base/err.h"

#define SESSION_FILE_VERSION    2
#define SESSION_FILE_STATES     3 /* the version of files with a state after the pages */
#define SESSION_FILE_TOKENS_MAX ((uint32_t)1 << 21)
#define SESSION_FILE_PAGE_MAX   ((uint64_t)1 << 30) /* bytes */

struct session_head {
    struct session_shape shape;
    uint32_t token_count, pages;      /* pages: whole ones, of the first tokens */
    uint64_t page_bytes, state_bytes; /* the latter 0: no state comes after the pages */
    uint32_t *tokens;                 /* owned */
};
void session_head_free(struct session_head *head);

/* The file as far as it was read or written. */
struct session_file {
    FILE *stream;    /* the caller's, read or written in order */
    uint32_t page;   /* that is next */
    uint64_t digest; /* of all checksums */
};

/* `size`: bytes of the whole file, which must be what the head makes it. HELM_E_FORMAT, HELM_E_LIMIT,
 * HELM_E_UNSUPPORTED (another version): the text names what is wrong. On failure *head is empty. */
HELM_MUST_CHECK int session_file_open(struct session_file *file, FILE *stream, uint64_t size,
                                      struct session_head *head, struct helm_err *err);
/* Pages, and the state after them. */
static inline uint32_t session_file_units(const struct session_head *head)
{
    return head->pages + (head->state_bytes > 0);
}
/* Bytes of the larger of both. */
static inline uint64_t session_file_unit_most(const struct session_head *head)
{
    return head->state_bytes > head->page_bytes ? head->state_bytes : head->page_bytes;
}
/* The next page, or the state after them, into `bytes`. */
HELM_MUST_CHECK int session_file_read_page(struct session_file *file, const struct session_head *head,
                                           void *bytes, struct helm_err *err);
/* After the last page. */
HELM_MUST_CHECK int session_file_read_end(struct session_file *file, struct helm_err *err);

/* The same written. */
HELM_MUST_CHECK int session_file_create(struct session_file *file, FILE *stream,
                                        const struct session_head *head, struct helm_err *err);
HELM_MUST_CHECK int session_file_write_page(struct session_file *file, const struct session_head *head,
                                            const void *bytes, struct helm_err *err);
HELM_MUST_CHECK int session_file_write_end(struct session_file *file, struct helm_err *err);

/* Bytes of the head, its checksum included, and of the whole file. */
uint64_t session_file_head_bytes(const struct session_head *head);
uint64_t session_file_bytes(const struct session_head *head);
