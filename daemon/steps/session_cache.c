/* The pages of the KV cache that hold a session's tokens. See session_cache.h. Called by sessions.c; owns
 * nothing. */
#include "daemon/steps/session_cache.h"

#include <stdlib.h>

#include "daemon/steps/session_windows.h"

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
