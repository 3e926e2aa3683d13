/* Where the pages of a step's rows lie. See tiers.h. Called by batcher.c. */
#include "daemon/steps/tiers.h"

#include <stdlib.h>

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
