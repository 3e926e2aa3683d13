/* Sessions over the wire: KV pages out of the daemon and into it (proto/helm.proto, SessionSave and what
 * follows).
 *
 * Called by cli/command_session.c. Part of libhelm's inside, not of its API. A client has one session at a
 * time; every call waits for its answer. Owns nothing. */
#pragma once

#include "client/helm.h"

#define SESSION_KV_DTYPE_MAX 8
#define SESSION_WEIGHTS_MAX  32

/* The model and the cache that pages are of: texts end with a zero and are filled with zeros. */
struct session_shape {
    uint64_t model;
    char kv_dtype[SESSION_KV_DTYPE_MAX], weights[SESSION_WEIGHTS_MAX];
    uint32_t layers, kv_heads, head_dim, page_tokens;
    uint64_t origin; /* of an invariant plan, what decides the pages' bits; else 0 */
};

struct session {
    uint64_t id;
    struct session_shape shape; /* the daemon's */
    uint32_t pages;             /* saving: that can be read; restoring: of the tokens */
    uint32_t first;             /* restoring: pages in front of this one are there already */
    uint64_t page_bytes;
    uint64_t state_bytes; /* of what comes after the pages as one more: fixed states at their end; 0: nothing
                             does */
    uint32_t piece_bytes;
    int timeout_ms;
};

/* HELM_E_NOT_FOUND: the cache has no page of the tokens. HELM_E_FORMAT: the session is not of what this
 * daemon serves. HELM_E_BUSY: another one is open. */
HELM_MUST_CHECK int session_open_save(struct helm_client *client, const uint32_t *tokens, size_t count,
                                      int timeout_ms, struct session *s, struct helm_err *err);
HELM_MUST_CHECK int session_open_restore(struct helm_client *client, const struct session_shape *shape,
                                         const uint32_t *tokens, size_t count, int timeout_ms,
                                         struct session *s, struct helm_err *err);
/* Pages, and the state after them. */
static inline uint32_t session_units(const struct session *s)
{
    return s->pages + (s->state_bytes > 0);
}
static inline uint64_t session_unit_bytes(const struct session *s, uint32_t page)
{
    return page == s->pages ? s->state_bytes : s->page_bytes;
}
/* Page after page: session_unit_bytes of each. HELM_E_NOT_FOUND: others were given this page meanwhile. */
HELM_MUST_CHECK int session_read_page(struct helm_client *client, const struct session *s, uint32_t page,
                                      unsigned char *bytes, struct helm_err *err);
/* From s->first on. *full: the cache has no room for the page; *pages are there, and the session is over. */
HELM_MUST_CHECK int session_write_page(struct helm_client *client, const struct session *s, uint32_t page,
                                       const unsigned char *bytes, bool *full, uint32_t *pages,
                                       struct helm_err *err);
HELM_MUST_CHECK int session_close(struct helm_client *client, const struct session *s, struct helm_err *err);
