/* The state of a session: a snapshot of fixed states, and windows. See session_windows.h. Called by
 * sessions.c; owns nothing. */
#include "daemon/steps/session_windows.h"

#include <stdlib.h>
#include <string.h>

static struct windows *windows_of(const struct sessions *all)
{
    return &all->batcher->pages.windows;
}

/* How many the session has: fewer than a window needs if it is shorter. */
static uint32_t count_of(const struct sessions *all, const struct session *s)
{
    const uint32_t kept = windows_of(all)->kept;
    return s->pages < kept ? s->pages : kept;
}

uint64_t session_windows_bytes(const struct sessions *all)
{
    return windows_of(all)->on ? windows_of(all)->kept * all->windows.bytes : 0;
}

void session_windows_note(const struct sessions *all, struct session *s, uint32_t index, uint32_t page)
{
    const uint32_t first = s->pages - count_of(all, s);
    if (!windows_of(all)->on || index < first) return;
    s->tail[index - first] =
        (struct session_tail){.page = page, .number = prefix_index_number(&all->batcher->pages.known, page)};
}

/* Whether the page is still the one that was noted. */
static bool is_known(const struct sessions *all, const struct session_tail *tail)
{
    return tail->number && prefix_index_number(&all->batcher->pages.known, tail->page) == tail->number;
}

unsigned char *session_windows_place(const struct sessions *all, const struct session *s)
{
    const uint32_t missing = windows_of(all)->kept - count_of(all, s);
    return s->bytes + all->snapshot_bytes + (missing + s->window) * all->windows.bytes;
}

/* The next one is held. False: it is gone, or there is no room for it. */
static bool take(struct windows *w, const struct session *s, uint32_t page, uint32_t *held)
{
    if (s->saves && !windows_has(w, page)) return false;
    *held = s->saves ? windows_hold(w, page) : windows_take_empty(w);
    return *held != WINDOWS_NONE;
}

void session_windows_moved(struct sessions *all, struct session *s)
{
    struct windows *w = windows_of(all);
    const struct session_tail *tail = &s->tail[s->window];
    if (s->saves)
        session_page_read(&all->windows, s->held, session_windows_place(all, s));
    else if (is_known(all, tail) && !windows_has(w, tail->page))
        windows_attach(w, s->held, tail->page);
    windows_let(w, s->held, true);
    s->window++;
}

enum session_windows_end session_windows_go_on(struct sessions *all, struct session *s)
{
    struct windows *w = windows_of(all);
    while (w->on && s->window < count_of(all, s)) {
        const struct session_tail *tail = &s->tail[s->window];
        if (!is_known(all, tail)) return SESSION_WINDOWS_GONE;
        if (!s->saves && windows_has(w, tail->page)) { /* another sequence was quicker */
            s->window++;
            continue;
        }
        if (!take(w, s, tail->page, &s->held)) return SESSION_WINDOWS_GONE;
        if (all->windows.moves) {
            s->move = (s->saves ? STEP_KV_OUT : STEP_KV_IN) | STEP_KV_WINDOW;
            return SESSION_WINDOWS_WAIT;
        }
        if (!s->saves) session_page_write(&all->windows, s->held, session_windows_place(all, s));
        session_windows_moved(all, s);
    }
    return SESSION_WINDOWS_THROUGH;
}

/* ---- the whole state ---- */

static bool has_snapshot(const struct sessions *all, const struct session *s, uint32_t *snapshot)
{
    *snapshot = snapshots_find(&all->batcher->snapshots, s->before);
    return !all->snapshot_bytes || *snapshot != STATE_NO_SNAPSHOT;
}

static bool windows_there(const struct sessions *all, const struct session *s)
{
    for (uint32_t i = 0; windows_of(all)->on && i < count_of(all, s); i++)
        if (!is_known(all, &s->tail[i]) || !windows_has(windows_of(all), s->tail[i].page)) return false;
    return true;
}

bool session_state_there(const struct sessions *all, const struct session *s)
{
    uint32_t ignored;
    return windows_there(all, s) && has_snapshot(all, s, &ignored);
}

/* Snapshots that are known lie in the arena, whole. */
enum session_windows_end session_state_load(struct sessions *all, struct session *s)
{
    uint32_t snapshot;
    if (!has_snapshot(all, s, &snapshot)) return SESSION_WINDOWS_GONE;
    memset(s->bytes, 0, (size_t)all->state_bytes);
    if (all->snapshot_bytes)
        memcpy(s->bytes, arena_snapshot_of(all->batcher->with.arena, snapshot), (size_t)all->snapshot_bytes);
    s->window = 0;
    return session_windows_go_on(all, s);
}

bool session_state_sound(const struct sessions *all, const struct session *s)
{
    uint32_t layer;
    bool finite = session_state_is_finite(s->bytes, all->snapshot_bytes);
    for (uint64_t at = all->snapshot_bytes; at < all->state_bytes; at += all->windows.bytes)
        finite = finite && session_page_is_finite(&all->windows, s->bytes + at, &layer);
    return finite;
}

enum session_windows_end session_state_store(struct sessions *all, struct session *s)
{
    struct snapshots *snapshots = &all->batcher->snapshots;
    if (prefix_index_number(&all->batcher->pages.known, s->front) != s->before) return SESSION_WINDOWS_GONE;
    if (all->snapshot_bytes) {
        const uint32_t snapshot = snapshots_take_empty(snapshots);
        if (snapshot == STATE_NO_SNAPSHOT) return SESSION_WINDOWS_GONE;
        memcpy(arena_snapshot_of(all->batcher->with.arena, snapshot), s->bytes, (size_t)all->snapshot_bytes);
        snapshots_make_known(snapshots, snapshot, s->before, s->pages * all->shape.page_tokens);
    }
    s->window = 0;
    return session_windows_go_on(all, s);
}

/* ---- the pages that the KV cache has of a session's tokens ---- */

void session_cache_scopes(const struct sessions *all, const struct asker *asker, uint32_t list,
                          uint64_t scope[2])
{
    scope[0] = prefix_scope(all->batcher->with.sharing, asker->peer, list);
    scope[1] = prefix_restored_scope(all->batcher->with.sharing, asker->peer, list);
}

static struct prefix_run run_of(const struct session *s, uint32_t count)
{
    return (struct prefix_run){.tokens = s->tokens, .count = count, .edge = UINT32_MAX};
}

uint64_t session_cache_better(const struct sessions *all, const struct session *s, uint32_t count,
                              const uint64_t scope[2])
{
    const struct prefix_run run = run_of(s, count);
    return prefix_better_scope(&all->batcher->pages, &all->batcher->snapshots, &run, scope);
}

uint32_t session_cache_reached(const struct sessions *all, const struct session *s, uint32_t count)
{
    const struct prefix_run run = run_of(s, count);
    uint32_t ignored;
    return prefix_reached(&all->batcher->pages, &all->batcher->snapshots, &run, s->scope, &ignored);
}

bool session_cache_touch(struct sessions *all, struct session *s, uint32_t count, uint64_t *end,
                         uint32_t *last)
{
    struct kv_pages *pages = &all->batcher->pages;
    uint32_t held = 0, *row = malloc((count + 1) * sizeof *row);
    if (!row) return false;
    kv_pages_take_known(pages, row, &held, count, s->tokens, end);
    if (held) *last = row[held - 1];
    for (uint32_t i = 0; i < held; i++) session_windows_note(all, s, i, row[i]);
    kv_pages_shrink(pages, row, &held, 0);
    free(row);
    return true;
}
