/* The windows of a session: cells of layers that keep a window, of the last pages of its tokens
 * (docs/state.md). They are a part of the state that comes after the session's pages, after the snapshot of
 * fixed states.
 *
 * Called by sessions.c. A session notes its last pages as they pass. At its end their pages of windows are
 * read or written, one after another; where a part of them lies in VRAM alone, each by a step of
 * STEP_KV_WINDOW. Owns nothing. */
#pragma once

#include "daemon/steps/sessions.h"

/* In a session's state, which has room for a whole window: bytes; 0: no layer keeps one. */
uint64_t session_windows_bytes(const struct sessions *all);
/* The session's page `index` is this one of the KV pool, and known. */
void session_windows_note(const struct sessions *all, struct session *s, uint32_t index, uint32_t page);

enum session_windows_end {
    SESSION_WINDOWS_THROUGH,
    SESSION_WINDOWS_WAIT, /* s->move and s->held say for which step */
    SESSION_WINDOWS_GONE, /* saving: a page was given to others; restoring: that, or there is no room */
};
/* Begins with the session's first one if s->window is 0, and goes on from there: to s->bytes, or from
 * there. */
enum session_windows_end session_windows_go_on(struct sessions *all, struct session *s);
/* Its bytes of the one that is moved, for the step; that step is done. */
unsigned char *session_windows_place(const struct sessions *all, const struct session *s);
void session_windows_moved(struct sessions *all, struct session *s);

/* The whole state: a snapshot of fixed states, then windows. Whether the cache has it. */
bool session_state_there(const struct sessions *all, const struct session *s);
/* Reads that of the session's last page to s->bytes, or begins to. */
enum session_windows_end session_state_load(struct sessions *all, struct session *s);
/* Whether all numbers in s->bytes are finite. */
bool session_state_sound(const struct sessions *all, const struct session *s);
/* s->bytes becomes known by the number of the session's last page, or begins to. */
enum session_windows_end session_state_store(struct sessions *all, struct session *s);

/* ---- the pages that the KV cache has of a session's tokens ---- */

/* The scopes that requests of the asker find pages in, whose prompts are of this list. */
void session_cache_scopes(const struct sessions *all, const struct asker *asker, uint32_t list,
                          uint64_t scope[2]);
/* The one of two scopes in which more of the first `count` pages of its tokens is reached. */
uint64_t session_cache_better(const struct sessions *all, const struct session *s, uint32_t count,
                              const uint64_t scope[2]);
/* How many of the first `count` pages of its tokens a session can have: with fixed states those up to the
 * last snapshot, with windows up to the last page before which all windows are there. */
uint32_t session_cache_reached(const struct sessions *all, const struct session *s, uint32_t count);
/* The first `count` pages of its tokens were used just now. *end: the number of the last one; *last: that
 * page. False: no memory. */
bool session_cache_touch(struct sessions *all, struct session *s, uint32_t count, uint64_t *end,
                         uint32_t *last);
