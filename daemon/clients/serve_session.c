/* Requests about sessions and the answers to them. See serve.h. Called from the one loop. */
#include "daemon/clients/serve.h"

#include "common/base/units.h"

/* ---- answers ---- */

static void send_piece(void *context, const struct asker *asker, const struct session *s, uint32_t bytes)
{
    Helm__V1__SessionPiece piece = HELM__V1__SESSION_PIECE__INIT;
    piece.page = s->page;
    piece.offset = s->offset;
    piece.data.data = s->bytes + s->offset;
    piece.data.len = bytes;
    serve_answer(context, *asker, HELM__V1__RESPONSE__BODY_SESSION_PIECE, &piece);
}

static void send_stored(void *context, const struct asker *asker, uint32_t pages, bool full)
{
    Helm__V1__SessionStored stored = HELM__V1__SESSION_STORED__INIT;
    stored.pages = pages;
    stored.full = full;
    serve_answer(context, *asker, HELM__V1__RESPONSE__BODY_SESSION_STORED, &stored);
}

static void send_refusal(void *context, const struct asker *asker, Helm__V1__ErrorCode code, const char *text)
{
    serve_error(context, *asker, code, text);
}

static void on_closed(void *context, uint64_t client)
{
    struct serve *serve = context;
    if (client) client_socket_release(serve->clients, client);
}

struct sessions_sink serve_session_sink(struct serve *serve)
{
    return (struct sessions_sink){.context = serve,
                                  .piece = send_piece,
                                  .stored = send_stored,
                                  .refuse = send_refusal,
                                  .closed = on_closed};
}

/* ---- handlers ---- */

static void send_opened(struct serve *serve, struct asker asker, const struct session *s)
{
    const struct request_shape *own = &serve->sessions->shape;
    Helm__V1__SessionShape shape = HELM__V1__SESSION_SHAPE__INIT;
    Helm__V1__SessionOpened opened = HELM__V1__SESSION_OPENED__INIT;
    shape.model = own->model;
    shape.weights = (char *)own->weights;
    shape.kv_dtype = (char *)own->kv_dtype;
    shape.layers = own->layers;
    shape.kv_heads = own->kv_heads;
    shape.head_dim = own->head_dim;
    shape.page_tokens = own->page_tokens;
    shape.origin = s->origin;
    opened.id = s->id;
    opened.shape = &shape;
    opened.pages = s->pages;
    opened.first = s->first;
    opened.page_bytes = serve->sessions->cells.bytes;
    opened.piece_bytes = REQUEST_PIECE;
    opened.state_bytes = serve->sessions->state_bytes;
    client_socket_retain(serve->clients, asker.client);
    serve_answer(serve, asker, HELM__V1__RESPONSE__BODY_SESSION_OPENED, &opened);
}

void serve_session_save(struct serve *serve, struct asker asker, struct request *request)
{
    if (!serve_is_open(serve, asker)) return;
    const struct session *s = sessions_save(serve->sessions, &asker, &request->session, units_now_us());
    if (s) send_opened(serve, asker, s);
}

void serve_session_restore(struct serve *serve, struct asker asker, struct request *request)
{
    if (!serve_is_open(serve, asker)) return;
    const struct session *s = sessions_restore(serve->sessions, &asker, &request->session, units_now_us());
    if (s) send_opened(serve, asker, s);
}

void serve_session_read(struct serve *serve, struct asker asker, struct request *request)
{
    sessions_read(serve->sessions, &asker, request->session.id, units_now_us());
}

void serve_session_write(struct serve *serve, struct asker asker, struct request *request)
{
    sessions_write(serve->sessions, &asker, &request->session, units_now_us());
}

void serve_session_end(struct serve *serve, struct asker asker, struct request *request)
{
    sessions_end(serve->sessions, &asker, request->session.id);
}
