/* Which pages of a running sequence have a place in VRAM. See kv_places.h. Called by tiers.c; owns the stack
 * of free places and the ring of those that wait.
 *
 * The stack starts with the lowest place on top, so that a lightly used pool touches only its beginning. */
#include "daemon/steps/kv_places.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

static void kv_places_broken(const char *what, uint32_t slot, uint32_t place)
{
    log_error("kv places: %s (slot %u, place %u): aborting", what, slot, place);
    abort();
}

int kv_places_init(struct kv_places *places, uint32_t count, struct helm_err *err)
{
    memset(places, 0, sizeof *places);
    if (count == 0) return 0;
    places->stack = malloc((size_t)count * sizeof *places->stack);
    places->used = calloc(count, sizeof *places->used);
    places->waiting = calloc(count, sizeof *places->waiting);
    if (!places->stack || !places->used || !places->waiting) {
        kv_places_free(places);
        return helm_fail(err, HELM_E_NOMEM, "no memory to track %u places of KV pages", count);
    }
    places->count = count;
    kv_places_reset(places);
    return 0;
}

void kv_places_free(struct kv_places *places)
{
    free(places->stack);
    free(places->used);
    free(places->waiting);
    memset(places, 0, sizeof *places);
}

void kv_places_reset(struct kv_places *places)
{
    for (uint32_t i = 0; i < places->count; i++) {
        places->stack[i] = places->count - 1 - i;
        places->used[i] = false;
    }
    places->free_count = places->count;
    places->waiting_first = places->waiting_count = 0;
    places->rung = places->done = 0;
    memset(places->slot, 0, sizeof places->slot);
}

/* ---- places ---- */

static void push(struct kv_places *places, uint32_t place)
{
    places->used[place] = false;
    places->stack[places->free_count++] = place;
}

static uint32_t pop(struct kv_places *places, uint32_t slot)
{
    const uint32_t place = places->stack[--places->free_count];
    if (place >= places->count || places->used[place])
        kv_places_broken("a free place has an owner", slot, place);
    places->used[place] = true;
    return place;
}

/* A slot gives it away: it is free when step `serial` is done. */
static void give_away(struct kv_places *places, uint32_t slot, uint32_t place, uint32_t serial)
{
    if (place >= places->count || !places->used[place])
        kv_places_broken("a place that is given away has no owner", slot, place);
    if (serial == places->done) {
        push(places, place);
        return;
    }
    const uint32_t at = (places->waiting_first + places->waiting_count++) % places->count;
    places->waiting[at].place = place;
    places->waiting[at].serial = serial;
}

void kv_places_rung(struct kv_places *places, uint32_t serial)
{
    places->rung = serial;
}

void kv_places_done(struct kv_places *places, uint32_t serial)
{
    places->done = serial;
    while (places->waiting_count && step_reached(serial, places->waiting[places->waiting_first].serial)) {
        push(places, places->waiting[places->waiting_first].place);
        places->waiting_first = (places->waiting_first + 1) % places->count;
        places->waiting_count--;
    }
}

/* ---- a slot's ---- */

/* From the last on, so that a stack gives them out in their order again. */
static void give_away_run(struct kv_places *places, uint32_t slot, const uint32_t *row, uint32_t from,
                          uint32_t to)
{
    while (to > from) give_away(places, slot, row[--to], places->rung);
}

void kv_places_begin(struct kv_places *places, uint32_t slot, const uint32_t *row, uint32_t host)
{
    struct kv_places_slot *s = &places->slot[slot];
    give_away_run(places, slot, row, s->host, s->end);
    s->host = s->end = host;
    s->moved = places->done; /* steps in flight with this slot there are none */
}

int kv_places_grow(struct kv_places *places, uint32_t slot, uint32_t *row, uint32_t end)
{
    struct kv_places_slot *s = &places->slot[slot];
    if (end <= s->end) return 0;
    if (end - s->end > places->free_count) return HELM_E_BUSY;
    while (s->end < end) row[s->end++] = pop(places, slot);
    return 0;
}

void kv_places_move_out(struct kv_places *places, uint32_t slot, const uint32_t *row, uint32_t host)
{
    struct kv_places_slot *s = &places->slot[slot];
    if (host > s->end) kv_places_broken("a page without a place is moved out", slot, host);
    if (host <= s->host) return;
    give_away_run(places, slot, row, s->host, host);
    places->moved_out += host - s->host;
    s->host = host;
    s->moved = places->rung;
}

void kv_places_leave(struct kv_places *places, uint32_t slot, const uint32_t *row, uint32_t to)
{
    struct kv_places_slot *s = &places->slot[slot];
    const uint32_t next = places->rung + 1;
    if (to < s->host) kv_places_broken("a page that has no place is to keep it", slot, to);
    for (uint32_t i = s->end; i > s->host; i--) give_away(places, slot, row[i - 1], next);
    places->moved_out += s->end - s->host;
    s->host = s->end = to;
    s->moved = next;
}

int kv_places_fetch(struct kv_places *places, uint32_t slot, uint32_t *row)
{
    struct kv_places_slot *s = &places->slot[slot];
    if (!s->host || !places->free_count || !step_reached(places->done, s->moved)) return HELM_E_BUSY;
    row[--s->host] = pop(places, slot);
    places->fetched++;
    return 0;
}
