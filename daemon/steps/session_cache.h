/* The pages that the KV cache has of a session's tokens. Called by sessions.c. Owns nothing. */
#pragma once

#include "daemon/steps/sessions.h"

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
