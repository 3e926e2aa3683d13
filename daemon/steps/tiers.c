/* Where the pages of a step's rows lie. See tiers.h. Called by batcher.c. */
#include "daemon/steps/tiers.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

int tiers_init(struct tiers *tiers, const struct plan *plan, const struct arena *arena, struct helm_err *err)
{
    *tiers = (struct tiers){.plan = plan, .arena = arena};
    tiers->watermark = plan_places_filled(plan);
    return kv_places_init(&tiers->places, arena_header_of(arena)->vram_page_count, err);
}

void tiers_free(struct tiers *tiers)
{
    kv_places_free(&tiers->places);
}

static bool tiered(const struct tiers *tiers)
{
    return tiers->places.count != 0;
}

static uint32_t *row_of(const struct tiers *tiers, uint32_t slot)
{
    return arena_vram_table_of(tiers->arena, slot);
}

void tiers_begin(struct tiers *tiers, uint32_t slot, uint32_t whole)
{
    if (tiered(tiers)) kv_places_begin(&tiers->places, slot, row_of(tiers, slot), whole);
}

/* ---- room ---- */

/* Moves `pages` pages out, or as many as there are, the youngest sequence's first. */
static void move_out(struct tiers *tiers, const struct tiers_member *member, uint32_t count, uint32_t pages)
{
    for (uint32_t i = count; i-- > 0 && pages > 0;) {
        const uint32_t slot = member[i].slot, host = tiers->places.slot[slot].host;
        if (member[i].whole <= host) continue;
        const uint32_t part = member[i].whole - host < pages ? member[i].whole - host : pages;
        kv_places_move_out(&tiers->places, slot, row_of(tiers, slot), host + part);
        pages -= part;
    }
}

bool tiers_make_room(struct tiers *tiers, const struct tiers_member *member, uint32_t count)
{
    struct kv_places *places = &tiers->places;
    uint32_t need = 0;
    if (!tiered(tiers)) return true;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t end = places->slot[member[i].slot].end,
                       from = member[i].placed > end ? member[i].placed : end;
        if (member[i].end > from) need += member[i].end - from;
    }
    const uint64_t used = (uint64_t)kv_places_used(places) + need;
    if (need && used > tiers->watermark) move_out(tiers, member, count, (uint32_t)(used - tiers->watermark));
    if (need > places->free_count && places->rung == places->done) {
        log_error(
            "tiers: a step needs %u of %u places, %u are free (plan_check allows no such plan): aborting",
            need, places->count, places->free_count);
        abort();
    }
    if (need > places->free_count) return false;
    for (uint32_t i = 0; i < count; i++) {
        const struct tiers_member *m = &member[i];
        if (m->placed > m->begin) kv_places_leave(places, m->slot, row_of(tiers, m->slot), m->placed);
        if (kv_places_grow(places, m->slot, row_of(tiers, m->slot), m->end)) abort();
    }
    return true;
}

/* ---- rows ---- */

/* A row's pages that have no place in a step. */
static uint32_t host_pages(const struct tiers *tiers, const struct step *step, const struct step_row *row)
{
    const uint32_t host = tiers->places.slot[row->slot].host,
                   before = row->start / arena_header_of(tiers->arena)->kv.page_tokens;
    return step->flags & STEP_KV_ARENA && host > before ? before : host;
}

/* How many of `host` pages the CPU attends to, from the first on. */
static uint32_t assisted_pages(uint32_t host, uint32_t direct_permille)
{
    return host - (uint32_t)(((uint64_t)host * direct_permille + 500) / 1000);
}

/* Pages that a step brings to VRAM at most: as many bytes whatever a page's size. */
static uint32_t fetched_most(uint32_t page_tokens)
{
    const uint32_t pages = ARENA_STEP_FETCH * KV_PAGE_TOKENS_DEFAULT / page_tokens;
    return pages < 1 ? 1 : pages > ARENA_STEP_FETCH ? ARENA_STEP_FETCH : pages;
}

static void fetch(struct tiers *tiers, struct step *step, uint32_t slot)
{
    struct kv_places *places = &tiers->places;
    uint32_t *row = row_of(tiers, slot);
    const uint32_t most = fetched_most(arena_header_of(tiers->arena)->kv.page_tokens);
    while (step->fetch_count < most && kv_places_used(places) < tiers->watermark &&
           !kv_places_fetch(places, slot, row)) {
        const uint32_t page = places->slot[slot].host;
        step->fetch[step->fetch_count++] =
            (struct step_fetch){.page = arena_page_table_of(tiers->arena, slot)[page], .place = row[page]};
    }
}

void tiers_fill(struct tiers *tiers, bool decode, struct step *step)
{
    const uint32_t page_tokens = arena_header_of(tiers->arena)->kv.page_tokens;
    if (!tiered(tiers)) return;
    const bool in_arena = step->flags & STEP_KV_ARENA;
    const bool assists = decode && step->token_count == step->row_count &&
                         step->token_count <= ARENA_KV_TOKENS && plan_kv_assisted(tiers->plan);
    uint64_t pages = 0;
    for (uint32_t i = 0; i < step->row_count; i++) pages += host_pages(tiers, step, &step->row[i]);
    const uint32_t direct = plan_direct_permille(tiers->plan, pages * page_tokens);
    for (uint32_t i = 0; i < step->row_count; i++) {
        struct step_row *row = &step->row[i];
        const uint32_t host = host_pages(tiers, step, row);
        row->host_tokens = host * page_tokens;
        row->direct_from = assists ? assisted_pages(host, direct) * page_tokens : 0;
        if (row->direct_from) step->flags |= STEP_KV_ASSISTED;
    }
    for (uint32_t i = 0; i < step->row_count && !in_arena; i++) fetch(tiers, step, step->row[i].slot);
}

/* ---- steps ---- */

void tiers_rung(struct tiers *tiers, uint32_t serial)
{
    kv_places_rung(&tiers->places, serial);
}

void tiers_done(struct tiers *tiers, uint32_t serial)
{
    kv_places_done(&tiers->places, serial);
}

void tiers_lost(struct tiers *tiers)
{
    kv_places_reset(&tiers->places);
}

uint32_t tiers_host_pages(const struct tiers *tiers)
{
    uint32_t pages = 0;
    for (uint32_t i = 0; i < ARENA_SLOTS_MAX; i++) pages += tiers->places.slot[i].host;
    return pages;
}

/* ---- places in VRAM ---- */

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
