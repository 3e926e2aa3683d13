/* Steps that move a page between VRAM and the arena's session region. See batcher.h. Called by sessions.c,
 * which asks for one, and by batcher.c, which says when it is its turn; owns nothing. */
#include "daemon/steps/batcher_private.h"

bool batcher_move(struct batcher *batcher, uint32_t flags, uint32_t page)
{
    if (batcher->move.flags || !batcher->worker_ready) return false;
    batcher->move.flags = flags;
    batcher->move.page = page;
    return true;
}

void batcher_ring_move(struct batcher *batcher, uint64_t now_us)
{
    struct step *step = &batcher_flight_of(batcher, batcher->serial + 1)->step;
    step->row_count = step->token_count = step->fetch_count = step->draft_count = 0;
    step->flags = batcher->move.flags;
    step->page = batcher->move.page;
    batcher->move.rung = true;
    batcher_ring(batcher, now_us);
}

void batcher_end_move(struct batcher *batcher, uint64_t now_us)
{
    batcher->done_us = now_us;
    batcher->move.flags = 0;
    batcher->move.rung = false;
    batcher->move.yields = true;
    batcher->with.sink.moved(batcher->with.sink.context);
}
