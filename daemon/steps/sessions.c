/* Sessions. See sessions.h. Called from the one loop; owns the open sessions. */
#include "daemon/steps/sessions.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/plan/schedule.h"
#include "common/plan/state.h"
#include "daemon/steps/session_page.h"
#include "daemon/steps/session_windows.h"

static_assert(SESSIONS_MAX <= PLAN_SESSION_PAGES, "pools of windows have room for what sessions move");

int sessions_init(struct sessions *all, struct batcher *batcher, const struct workers *workers,
                  uint64_t identity, const struct sessions_sink *sink, struct helm_err *err)
{
    const struct plan *plan = batcher->with.plan;
    *all = (struct sessions){.batcher = batcher, .workers = workers, .sink = *sink, .next_id = 1};
    int rc = session_page_init(&all->cells, plan, batcher->with.arena, STATE_PAGES, err);
    if (!rc) rc = session_page_init(&all->windows, plan, batcher->with.arena, STATE_WINDOW, err);
    if (rc) return rc;
    const struct kv_layout *kv = &all->cells.kv;
    all->snapshot_bytes = arena_header_of(batcher->with.arena)->state.snapshot_bytes;
    all->state_bytes = all->snapshot_bytes + session_windows_bytes(all);
    all->shape = (struct request_shape){.model = identity,
                                        .layers = kv->layers,
                                        .kv_heads = kv->kv_heads,
                                        .head_dim = kv->head_dim,
                                        .page_tokens = kv->page_tokens};
    snprintf(all->shape.weights, sizeof all->shape.weights, "%s",
             plan->weights ? mixture_name(plan->weights) : "");
    snprintf(all->shape.kv_dtype, sizeof all->shape.kv_dtype, "%s", kv_dtype_name((enum kv_dtype)kv->dtype));
    return 0;
}

static struct kv_pages *pages_of(const struct sessions *all)
{
    return &all->batcher->pages;
}

/* Whether its pages are through, and the state after them is what comes. */
static bool at_state(const struct sessions *all, const struct session *s)
{
    return all->state_bytes && s->page == s->pages;
}

static uint64_t unit_bytes(const struct sessions *all, const struct session *s)
{
    return at_state(all, s) ? all->state_bytes : all->cells.bytes;
}

/* Whether nothing comes any more. */
static bool is_through(const struct sessions *all, const struct session *s)
{
    return s->page == s->pages + (all->state_bytes > 0);
}

/* Pages that lie in front of what comes. */
static uint32_t pages_through(const struct session *s)
{
    return s->page < s->pages ? s->page : s->pages;
}

static const uint32_t *tokens_of(const struct sessions *all, const struct session *s, uint32_t page)
{
    return s->tokens + (size_t)page * all->shape.page_tokens;
}

static void HELM_PRINTF(4, 5) refuse(const struct sessions *all, const struct asker *asker,
                                     Helm__V1__ErrorCode code, const char *fmt, ...)
{
    char text[HELM_ERR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    all->sink.refuse(all->sink.context, asker, code, text);
}

/* ---- opening and closing ---- */

static void close_session(struct sessions *all, struct session *s)
{
    const uint64_t client = s->asker.client;
    /* a step in flight may still read or write the page: it is held until that is done */
    if (s->moves) {
        log_error("sessions: session %llu is closed under a move: aborting", (unsigned long long)s->id);
        abort();
    }
    if (s->move & STEP_KV_WINDOW)
        windows_let(&pages_of(all)->windows, s->held, false);
    else if (s->move)
        kv_pages_leave(pages_of(all), s->held, s->front);
    free(s->tokens);
    free(s->bytes);
    free(s->tail);
    *s = (struct session){0};
    all->sink.closed(all->sink.context, client);
}

/* The move of a client that left ends first. */
static void leave_session(struct sessions *all, struct session *s)
{
    if (s->moves)
        s->asker.request_id = 0;
    else
        close_session(all, s);
}

void sessions_free(struct sessions *all)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        free(all->session[i].tokens);
        free(all->session[i].bytes);
        free(all->session[i].tail);
    }
    *all = (struct sessions){0};
}

static struct session *find(struct sessions *all, const struct asker *asker, uint64_t id)
{
    for (uint32_t i = 0; i < SESSIONS_MAX && id; i++) {
        struct session *s = &all->session[i];
        if (s->id == id && s->asker.client == asker->client && s->asker.peer == asker->peer &&
            s->asker.request_id)
            return s;
    }
    refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_NOT_FOUND, "no session %llu is open on this connection",
           (unsigned long long)id);
    return NULL;
}

/* An entry with a page's bytes; NULL: refused. */
static struct session *open_session(struct sessions *all, const struct asker *asker,
                                    struct request_session *request, uint64_t now_us)
{
    struct session *s = NULL;
    uint32_t open = 0;
    if (!all->batcher->worker_ready) {
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_NOT_READY, "workers are being started again");
        return NULL;
    }
    if (all->batcher->with.sharing == PREFIX_OFF) {
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_NOT_FOUND,
               "this daemon keeps no pages: --prefix-cache is off");
        return NULL;
    }
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *at = &all->session[i];
        open += at->id && at->asker.peer == asker->peer;
        if (!at->id) s = at;
    }
    if (open || !s) {
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_BUSY,
               open ? "a session of yours is being saved or restored: one at a time"
                    : "%d sessions are being saved or restored already",
               SESSIONS_MAX);
        return NULL;
    }
    const uint64_t room = all->cells.bytes > all->state_bytes ? all->cells.bytes : all->state_bytes;
    unsigned char *bytes = malloc((size_t)room);
    struct session_tail *tail = calloc(pages_of(all)->windows.kept + 1, sizeof *tail);
    if (!bytes || !tail) {
        free(bytes);
        free(tail);
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_FAILED, "no memory for a page of %llu bytes",
               (unsigned long long)room);
        return NULL;
    }
    *s = (struct session){.id = all->next_id++,
                          .asker = *asker,
                          .tokens = request->tokens,
                          .pages = request->token_count / all->shape.page_tokens,
                          .front = PREFIX_NO_PAGE,
                          .bytes = bytes,
                          .tail = tail,
                          .heard_us = now_us};
    s->asker.user = NULL; /* was borrowed for the call */
    request->tokens = NULL;
    return s;
}

static void set_list(const struct sessions *all, struct session *s, uint32_t list)
{
    s->list = list;
    s->origin = session_origin_of(all->batcher->with.plan, all->workers, list, all->batcher->exact);
}

const struct session *sessions_save(struct sessions *all, const struct asker *asker,
                                    struct request_session *request, uint64_t now_us)
{
    struct session *s = open_session(all, asker, request, now_us);
    const uint32_t whole = s ? s->pages : 0;
    uint64_t scope[2], end;
    uint32_t last = PREFIX_NO_PAGE;
    if (!s) return NULL;
    s->saves = true;
    const struct plan *plan = all->batcher->with.plan;
    set_list(all, s, plan->invariant ? plan_prompt_list(plan, request->token_count) : 0);
    session_cache_scopes(all, asker, s->list, scope);
    s->scope = s->before = end = session_cache_better(all, s, whole, scope);
    s->pages = session_cache_reached(all, s, whole);
    if (s->pages && session_cache_touch(all, s, s->pages, &end, &last)) return s;
    refuse(all, asker, s->pages ? HELM__V1__ERROR_CODE__ERROR_FAILED : HELM__V1__ERROR_CODE__ERROR_NOT_FOUND,
           s->pages ? "no memory for a session of %u pages"
                    : "the KV cache has none of the %u whole pages of these tokens",
           whole);
    s->asker.client = 0; /* it was never opened */
    close_session(all, s);
    return NULL;
}

/* ---- restoring: shape and origin ---- */

const struct session *sessions_restore(struct sessions *all, const struct asker *asker,
                                       struct request_session *request, uint64_t now_us)
{
    char text[HELM_ERR_TEXT];
    uint64_t scope[2];
    uint32_t list = 0;
    const uint32_t page_tokens = all->shape.page_tokens;
    if (session_shape_differs(&request->shape, &all->shape, text, sizeof text)) {
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_MALFORMED, "%s", text);
        return NULL;
    }
    if (request->token_count % page_tokens) {
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_MALFORMED,
               "%u tokens to restore are not whole pages of %u", request->token_count, page_tokens);
        return NULL;
    }
    if (all->batcher->worker_ready &&
        !session_origin_list(all->batcher->with.plan, all->workers, request->shape.origin,
                             all->batcher->exact, &list)) {
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_MALFORMED,
               "this daemon's plan is invariant, and the session %s: its pages would show in answers",
               request->shape.origin ? "is of another plan, or of other kernels"
                                     : "is of a plan that is not");
        return NULL;
    }
    session_cache_scopes(all, asker, list, scope);
    if (scope[1] == SEQUENCE_NO_SCOPE && all->batcher->with.sharing != PREFIX_OFF) {
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_FAILED, "nobody knows whose this session would be");
        return NULL;
    }
    struct session *s = open_session(all, asker, request, now_us);
    if (!s) return NULL;
    set_list(all, s, list);
    const bool there = scope[0] != SEQUENCE_NO_SCOPE &&
                       kv_pages_known(pages_of(all), s->pages, s->tokens, scope[0]) == s->pages;
    s->scope = s->before = there ? scope[0] : scope[1];
    s->first = kv_pages_known(pages_of(all), s->pages, s->tokens, s->scope);
    if (session_cache_touch(all, s, s->first, &s->before, &s->front)) {
        s->page = s->first;
        if (at_state(all, s) && session_state_there(all, s)) s->page = ++s->first;
        return s;
    }
    refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_FAILED, "no memory for a session of %u pages", s->pages);
    s->asker.client = 0;
    close_session(all, s);
    return NULL;
}

/* ---- moves ---- */

/* Starts the move of the next session that waits for one, if none is under way. */
static void move_next(struct sessions *all)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        if (all->session[i].moves) return;
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        const uint32_t at = (all->turn + i) % SESSIONS_MAX;
        struct session *s = &all->session[at];
        if (!s->move) continue;
        if (s->move == (STEP_KV_IN | STEP_KV_WINDOW))
            session_page_write(&all->windows, s->held, session_windows_place(all, s));
        if (s->move == STEP_KV_IN) session_page_write(&all->cells, s->held, s->bytes);
        s->moves = batcher_move(all->batcher, s->move, s->held);
        all->turn = at + 1;
        return;
    }
}

/* ---- saving ---- */

static void send_piece(struct sessions *all, struct session *s)
{
    const uint64_t left = unit_bytes(all, s) - s->offset;
    const uint32_t bytes = left < REQUEST_PIECE ? (uint32_t)left : REQUEST_PIECE;
    all->sink.piece(all->sink.context, &s->asker, s, bytes);
    s->offset += bytes;
    if (s->offset < unit_bytes(all, s)) return;
    s->offset = 0;
    s->loaded = false;
    s->page++;
}

/* Its bytes are in s->bytes: the next one lies after it. */
static void end_load(struct sessions *all, struct session *s, uint32_t page)
{
    session_page_read(&all->cells, page, s->bytes);
    session_windows_note(all, s, s->page, page);
    kv_pages_leave(pages_of(all), page, s->front);
    s->front = page;
    s->loaded = true;
}

/* Its state is read as far as `end` says; false: a part was given up meanwhile. */
static bool go_on_loading(struct sessions *all, struct session *s, enum session_windows_end end)
{
    s->loaded = end == SESSION_WINDOWS_THROUGH;
    if (end == SESSION_WINDOWS_WAIT) move_next(all);
    return end != SESSION_WINDOWS_GONE;
}

static bool load_state(struct sessions *all, struct session *s)
{
    return go_on_loading(all, s, session_state_load(all, s));
}

/* Takes the next page; false: it is not in the cache any more. */
static bool load_page(struct sessions *all, struct session *s)
{
    uint32_t page, held = 0;
    kv_pages_take_known(pages_of(all), &page, &held, 1, tokens_of(all, s, s->page), &s->before);
    if (!held) return false;
    if (s->front != PREFIX_NO_PAGE && !prefix_index_number(&pages_of(all)->known, s->front))
        s->front = PREFIX_NO_PAGE; /* given to others: they may use it */
    if (!all->cells.moves) {
        end_load(all, s, page);
        return true;
    }
    s->move = STEP_KV_OUT;
    s->held = page;
    move_next(all);
    return true;
}

void sessions_read(struct sessions *all, const struct asker *asker, uint64_t id, uint64_t now_us)
{
    struct session *s = find(all, asker, id);
    if (!s) return;
    s->heard_us = now_us;
    if (!s->saves || s->move || (is_through(all, s) && !s->loaded)) {
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_MALFORMED,
               !s->saves ? "session %llu is one to write"
               : s->move ? "session %llu has a request without its answer yet"
                         : "session %llu has no more pages",
               (unsigned long long)id);
        return;
    }
    s->asker.request_id = asker->request_id;
    if (!s->loaded && !(at_state(all, s) ? load_state : load_page)(all, s)) {
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_NOT_FOUND,
               "page %u of the session was given to others meanwhile", s->page);
        close_session(all, s);
        return;
    }
    if (s->loaded) send_piece(all, s);
}

/* ---- restoring ---- */

/* The page lies in the cache, as `page`; further ones lie after it. */
static void end_store(struct sessions *all, struct session *s)
{
    s->page++;
    const uint32_t pages = pages_through(s);
    const struct asker asker = s->asker;
    s->offset = 0;
    all->sink.stored(all->sink.context, &asker, pages, false);
}

static void make_known(struct sessions *all, struct session *s, uint32_t page)
{
    const uint32_t *tokens = tokens_of(all, s, s->page);
    const uint64_t before = s->before;
    s->before = kv_pages_make_known(pages_of(all), page, before, tokens);
    kv_pages_leave(pages_of(all), page, s->front);
    s->front = prefix_index_find(&pages_of(all)->known, before, tokens);
    session_windows_note(all, s, s->page, s->front);
}

/* The cache has no room for this page, or has reused one in front of it: restoring ends. */
static void end_full(struct sessions *all, struct session *s)
{
    const uint32_t there = session_cache_reached(all, s, s->pages);
    const struct asker asker = s->asker;
    all->sink.stored(all->sink.context, &asker, there, true);
    close_session(all, s);
}

/* Its state is stored as far as `end` says. */
static void go_on_storing(struct sessions *all, struct session *s, enum session_windows_end end)
{
    if (end == SESSION_WINDOWS_WAIT)
        move_next(all);
    else if (end == SESSION_WINDOWS_GONE)
        end_full(all, s);
    else
        end_store(all, s);
}

/* s->bytes is a whole state. */
static void store_state(struct sessions *all, struct session *s)
{
    if (session_state_sound(all, s)) {
        go_on_storing(all, s, session_state_store(all, s));
        return;
    }
    refuse(all, &s->asker, HELM__V1__ERROR_CODE__ERROR_MALFORMED,
           "the session's state after its pages has a number that is not finite");
    close_session(all, s);
}

/* s->bytes is whole. */
static void store_page(struct sessions *all, struct session *s)
{
    struct kv_pages *pages = pages_of(all);
    const uint32_t *tokens = tokens_of(all, s, s->page),
                   there = prefix_index_find(&pages->known, s->before, tokens);
    const bool chained =
        s->front == PREFIX_NO_PAGE ? s->page == 0 : prefix_index_number(&pages->known, s->front) == s->before;
    uint32_t layer, page = PREFIX_NO_PAGE;
    if (!session_page_is_finite(&all->cells, s->bytes, &layer)) {
        refuse(all, &s->asker, HELM__V1__ERROR_CODE__ERROR_MALFORMED,
               "page %u of the session has a number in layer %u that is not finite, or a negative scale",
               s->page, layer);
        close_session(all, s);
        return;
    }
    if (there != PREFIX_NO_PAGE) { /* another sequence was quicker */
        s->before = prefix_index_number(&pages->known, there);
        s->front = there;
        session_windows_note(all, s, s->page, there);
        end_store(all, s);
        return;
    }
    if (chained) page = kv_pages_take_empty(pages, s->front);
    if (page == PREFIX_NO_PAGE) {
        end_full(all, s);
        return;
    }
    s->held = page;
    if (all->cells.moves) {
        s->move = STEP_KV_IN;
        move_next(all);
        return;
    }
    session_page_write(&all->cells, page, s->bytes);
    make_known(all, s, page);
    end_store(all, s);
}

void sessions_write(struct sessions *all, const struct asker *asker, const struct request_session *request,
                    uint64_t now_us)
{
    struct session *s = find(all, asker, request->id);
    if (!s) return;
    s->heard_us = now_us;
    if (s->saves || s->move || is_through(all, s)) {
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_MALFORMED,
               s->saves  ? "session %llu is one to read"
               : s->move ? "session %llu has a request without its answer yet"
                         : "session %llu has all its pages",
               (unsigned long long)request->id);
        return;
    }
    const uint64_t left = unit_bytes(all, s) - s->offset;
    const uint32_t due = left < REQUEST_PIECE ? (uint32_t)left : REQUEST_PIECE;
    if (request->page != s->page || request->offset != s->offset || request->bytes != due) {
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_MALFORMED,
               "a piece of %u bytes at %llu of page %u came while %u at %llu of page %u were due",
               request->bytes, (unsigned long long)request->offset, request->page, due,
               (unsigned long long)s->offset, s->page);
        close_session(all, s);
        return;
    }
    s->asker.request_id = asker->request_id;
    memcpy(s->bytes + s->offset, request->data, due);
    s->offset += due;
    if (s->offset == unit_bytes(all, s))
        (at_state(all, s) ? store_state : store_page)(all, s);
    else
        all->sink.stored(all->sink.context, asker, pages_through(s), false);
}

void sessions_end(struct sessions *all, const struct asker *asker, uint64_t id)
{
    struct session *s = find(all, asker, id);
    if (!s) return;
    if (s->move) {
        refuse(all, asker, HELM__V1__ERROR_CODE__ERROR_MALFORMED,
               "session %llu has a request without its answer yet", (unsigned long long)id);
        return;
    }
    const uint32_t pages = pages_through(s);
    close_session(all, s);
    all->sink.stored(all->sink.context, asker, pages, false);
}

/* ---- other events ---- */

/* A page of windows was moved: the next one, or the answer. */
static void windows_go_on(struct sessions *all, struct session *s)
{
    const struct asker asker = s->asker;
    if (!s->saves) {
        go_on_storing(all, s, session_windows_go_on(all, s));
    } else if (!go_on_loading(all, s, session_windows_go_on(all, s))) {
        refuse(all, &asker, HELM__V1__ERROR_CODE__ERROR_NOT_FOUND,
               "a window of the session was given to others meanwhile");
        close_session(all, s);
    } else if (s->loaded) {
        send_piece(all, s);
    }
}

void sessions_moved(struct sessions *all, uint64_t now_us)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *s = &all->session[i];
        if (!s->moves) continue;
        const bool gone = !s->asker.request_id, window = s->move & STEP_KV_WINDOW;
        s->move = 0;
        s->moves = false;
        s->heard_us = now_us;
        if (window)
            session_windows_moved(all, s);
        else if (s->saves)
            end_load(all, s, s->held);
        else
            make_known(all, s, s->held);
        if (gone)
            close_session(all, s);
        else if (window)
            windows_go_on(all, s);
        else if (s->saves)
            send_piece(all, s);
        else
            end_store(all, s);
        break;
    }
    move_next(all);
}

void sessions_lost(struct sessions *all, const char *why)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *s = &all->session[i];
        if (!s->id) continue;
        if (s->move && s->asker.request_id)
            refuse(all, &s->asker, HELM__V1__ERROR_CODE__ERROR_FAILED, "a worker was lost: %.400s", why);
        s->moves = false;
        close_session(all, s);
    }
}

bool sessions_open(const struct sessions *all)
{
    for (int i = 0; i < SESSIONS_MAX; i++)
        if (all->session[i].id) return true;
    return false;
}

void sessions_client_gone(struct sessions *all, uint64_t client)
{
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *s = &all->session[i];
        if (s->id && s->asker.client == client) leave_session(all, s);
    }
}

uint64_t sessions_apply_deadlines(struct sessions *all, uint64_t now_us)
{
    uint64_t next = 0;
    for (uint32_t i = 0; i < SESSIONS_MAX; i++) {
        struct session *s = &all->session[i];
        if (!s->id || s->move) continue;
        const uint64_t end_us = s->heard_us + SESSIONS_IDLE_US;
        if (end_us <= now_us) {
            log_debug("session %llu ends: its client has been silent for 10 s", (unsigned long long)s->id);
            close_session(all, s);
        } else if (!next || end_us < next) {
            next = end_us;
        }
    }
    return next;
}
