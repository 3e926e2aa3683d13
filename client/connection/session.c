/* Sessions over the wire. See session.h. Owns nothing between calls. */
#include "client/connection/session.h"

#include <string.h>

#include "client/connection/connection.h"

static int take_shape(const Helm__V1__SessionShape *from, struct session_shape *to, struct helm_err *err)
{
    if (!from || strlen(from->kv_dtype) >= sizeof to->kv_dtype || strlen(from->weights) >= sizeof to->weights)
        return helm_fail(err, HELM_E_PEER, "the daemon says of a session what this program does not know");
    *to = (struct session_shape){.model = from->model,
                                 .layers = from->layers,
                                 .kv_heads = from->kv_heads,
                                 .head_dim = from->head_dim,
                                 .page_tokens = from->page_tokens,
                                 .origin = from->origin};
    memcpy(to->kv_dtype, from->kv_dtype, strlen(from->kv_dtype));
    memcpy(to->weights, from->weights, strlen(from->weights));
    return 0;
}

static int open_with(struct helm_client *client, Helm__V1__Request *message, int timeout_ms,
                     struct session *s, struct helm_err *err)
{
    Helm__V1__Response *answer = NULL;
    *s = (struct session){.timeout_ms = timeout_ms};
    int rc =
        connection_ask(client, message, HELM__V1__RESPONSE__BODY_SESSION_OPENED, timeout_ms, &answer, err);
    if (rc) return rc;
    const Helm__V1__SessionOpened *opened = answer->session_opened;
    rc = take_shape(opened->shape, &s->shape, err);
    s->id = opened->id;
    s->pages = opened->pages;
    s->first = opened->first;
    s->page_bytes = opened->page_bytes;
    s->piece_bytes = opened->piece_bytes;
    s->state_bytes = opened->state_bytes;
    if (!rc && (!s->page_bytes || !s->piece_bytes || !s->shape.page_tokens || s->first > session_units(s) ||
                s->piece_bytes > CONNECTION_FRAME_BYTES_MAX / 2))
        rc = helm_fail(err, HELM_E_PEER, "the daemon opened a session of pages without bytes");
    helm__v1__response__free_unpacked(answer, NULL);
    return rc;
}

int session_open_save(struct helm_client *client, const uint32_t *tokens, size_t count, int timeout_ms,
                      struct session *s, struct helm_err *err)
{
    Helm__V1__SessionSave body = HELM__V1__SESSION_SAVE__INIT;
    Helm__V1__Request message = CONNECTION_REQUEST_INIT;
    body.tokens = (uint32_t *)tokens;
    body.n_tokens = count;
    message.body_case = HELM__V1__REQUEST__BODY_SESSION_SAVE;
    message.session_save = &body;
    int rc = open_with(client, &message, timeout_ms, s, err);
    if (!rc && s->pages > count / s->shape.page_tokens)
        rc = helm_fail(err, HELM_E_PEER, "the daemon has %u pages of %zu tokens", s->pages, count);
    return rc;
}

int session_open_restore(struct helm_client *client, const struct session_shape *shape,
                         const uint32_t *tokens, size_t count, int timeout_ms, struct session *s,
                         struct helm_err *err)
{
    Helm__V1__SessionShape of = HELM__V1__SESSION_SHAPE__INIT;
    Helm__V1__SessionRestore body = HELM__V1__SESSION_RESTORE__INIT;
    Helm__V1__Request message = CONNECTION_REQUEST_INIT;
    of.model = shape->model;
    of.weights = (char *)shape->weights;
    of.kv_dtype = (char *)shape->kv_dtype;
    of.layers = shape->layers;
    of.kv_heads = shape->kv_heads;
    of.head_dim = shape->head_dim;
    of.page_tokens = shape->page_tokens;
    of.origin = shape->origin;
    body.shape = &of;
    body.tokens = (uint32_t *)tokens;
    body.n_tokens = count;
    message.body_case = HELM__V1__REQUEST__BODY_SESSION_RESTORE;
    message.session_restore = &body;
    int rc = open_with(client, &message, timeout_ms, s, err);
    if (!rc && s->pages != count / shape->page_tokens)
        rc = helm_fail(err, HELM_E_PEER, "the daemon takes %u pages of %zu tokens", s->pages, count);
    return rc;
}

/* Bytes of the piece of a page at `offset`. */
static size_t piece_at(const struct session *s, uint32_t page, uint64_t offset)
{
    const uint64_t left = session_unit_bytes(s, page) - offset;
    return left < s->piece_bytes ? (size_t)left : s->piece_bytes;
}

int session_read_page(struct helm_client *client, const struct session *s, uint32_t page,
                      unsigned char *bytes, struct helm_err *err)
{
    int rc = 0;
    for (uint64_t offset = 0; offset < session_unit_bytes(s, page) && !rc; offset += s->piece_bytes) {
        Helm__V1__SessionRead body = HELM__V1__SESSION_READ__INIT;
        Helm__V1__Request message = CONNECTION_REQUEST_INIT;
        Helm__V1__Response *answer = NULL;
        body.id = s->id;
        message.body_case = HELM__V1__REQUEST__BODY_SESSION_READ;
        message.session_read = &body;
        rc = connection_ask(client, &message, HELM__V1__RESPONSE__BODY_SESSION_PIECE, s->timeout_ms, &answer,
                            err);
        if (rc) break;
        const Helm__V1__SessionPiece *piece = answer->session_piece;
        if (piece->page != page || piece->offset != offset || piece->data.len != piece_at(s, page, offset))
            rc = helm_fail(err, HELM_E_PEER, "the daemon sent %zu bytes of page %u, not %zu of page %u",
                           piece->data.len, piece->page, piece_at(s, page, offset), page);
        else
            memcpy(bytes + offset, piece->data.data, piece->data.len);
        helm__v1__response__free_unpacked(answer, NULL);
    }
    return rc;
}

int session_write_page(struct helm_client *client, const struct session *s, uint32_t page,
                       const unsigned char *bytes, bool *full, uint32_t *pages, struct helm_err *err)
{
    int rc = 0;
    *full = false;
    for (uint64_t offset = 0; offset < session_unit_bytes(s, page) && !rc && !*full;
         offset += s->piece_bytes) {
        Helm__V1__SessionWrite body = HELM__V1__SESSION_WRITE__INIT;
        Helm__V1__Request message = CONNECTION_REQUEST_INIT;
        Helm__V1__Response *answer = NULL;
        body.id = s->id;
        body.page = page;
        body.offset = offset;
        body.data.data = (unsigned char *)bytes + offset;
        body.data.len = piece_at(s, page, offset);
        message.body_case = HELM__V1__REQUEST__BODY_SESSION_WRITE;
        message.session_write = &body;
        rc = connection_ask(client, &message, HELM__V1__RESPONSE__BODY_SESSION_STORED, s->timeout_ms, &answer,
                            err);
        if (rc) break;
        *full = answer->session_stored->full;
        *pages = answer->session_stored->pages;
        helm__v1__response__free_unpacked(answer, NULL);
    }
    return rc;
}

int session_close(struct helm_client *client, const struct session *s, struct helm_err *err)
{
    Helm__V1__SessionEnd body = HELM__V1__SESSION_END__INIT;
    Helm__V1__Request message = CONNECTION_REQUEST_INIT;
    Helm__V1__Response *answer = NULL;
    body.id = s->id;
    message.body_case = HELM__V1__REQUEST__BODY_SESSION_END;
    message.session_end = &body;
    int rc = connection_ask(client, &message, HELM__V1__RESPONSE__BODY_SESSION_STORED, s->timeout_ms, &answer,
                            err);
    if (!rc) helm__v1__response__free_unpacked(answer, NULL);
    return rc;
}
