/* Unit tests of daemon/steps/tiers.c, by themselves and beneath a batcher whose worker keeps
 * what it is given in pages and places: every position that a step reads must be where the step says,
 * whatever came and went.
 *
 * A cell is the hash of all tokens up to its position, so a cell of another beginning is as wrong as one that
 * was never written. Whatever has no owner is overwritten at once, in VRAM and in the arena. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/unit/daemon/steps/batcher_parts.h"

enum { PAGE_TOKENS = 4, CONTEXT = 64, STEP_TOKENS = 16, SLOTS = 4, PAGES = 40, LEAST = 12, PLACES = 16 };
/* Chunks of more tokens than PLACES have room for. */
enum { LONG_STEP = 40 };
enum { POISON = 0xdeadbeef };

#define OPERATIONS 100000

/* ---- places alone ---- */

static void places_wait_for_steps_in_flight(void **state)
{
    (void)state;
    struct kv_places places;
    struct helm_err err = {0};
    uint32_t row[2][16] = {{0}};
    assert_int_equal(kv_places_init(&places, 11, &err), 0);
    assert_int_equal(kv_places_grow(&places, 0, row[0], 6), 0);
    assert_int_equal(kv_places_grow(&places, 1, row[1], 6), HELM_E_BUSY);
    assert_int_equal(places.slot[1].end, 0); /* all or nothing */
    assert_int_equal(kv_places_grow(&places, 1, row[1], 4), 0);
    for (int i = 0; i < 6; i++) assert_int_equal(row[0][i], i);
    kv_places_rung(&places, 7);
    kv_places_move_out(&places, 0, row[0], 2);
    assert_int_equal(places.free_count, 1);
    assert_int_equal(kv_places_used(&places), 8);
    assert_int_equal(kv_places_fetch(&places, 0, row[0]), HELM_E_BUSY); /* step 7 may read row[0][1] */
    assert_int_equal(row[0][1], 1);
    kv_places_rung(&places, 8);
    kv_places_begin(&places, 1, row[1], 0);
    kv_places_done(&places, 7);
    assert_int_equal(places.free_count, 3);
    assert_int_equal(kv_places_fetch(&places, 0, row[0]), 0);
    assert_int_equal(places.slot[0].host, 1);
    assert_int_equal(row[0][1], 0); /* the lowest that is free */
    kv_places_done(&places, 8);
    assert_int_equal(places.free_count, 6);
    assert_int_equal(places.moved_out, 2);
    assert_int_equal(places.fetched, 1);
    kv_places_reset(&places);
    assert_int_equal(places.free_count, 11);
    kv_places_free(&places);
}

/* A slot whose next step appends in the arena: its places are free when that step is done, and one comes back
 * then. */
static void places_are_left_to_the_next_step(void **state)
{
    (void)state;
    struct kv_places places;
    struct helm_err err = {0};
    uint32_t row[16] = {0};
    assert_int_equal(kv_places_init(&places, 5, &err), 0);
    assert_int_equal(kv_places_grow(&places, 0, row, 3), 0);
    kv_places_leave(&places, 0, row, 9);
    assert_int_equal(places.free_count, 2); /* no step is in flight, but that one reads them */
    assert_int_equal(places.moved_out, 3);
    assert_int_equal(kv_places_grow(&places, 0, row, 10), 0);
    assert_int_equal(row[9], 3);
    assert_int_equal(kv_places_used(&places), 1);
    assert_int_equal(kv_places_fetch(&places, 0, row), HELM_E_BUSY);
    kv_places_rung(&places, 1);
    assert_int_equal(kv_places_fetch(&places, 0, row), HELM_E_BUSY);
    kv_places_done(&places, 1);
    assert_int_equal(places.free_count, 4);
    assert_int_equal(kv_places_fetch(&places, 0, row), 0);
    assert_int_equal(places.slot[0].host, 8);
    kv_places_free(&places);
}

/* ---- beneath a batcher ---- */

struct stage {
    struct batcher_parts on;
    uint64_t now_us, random;
    uint32_t epoch, executed; /* the last step that was, of this epoch */
    uint32_t vram[PLACES][PAGE_TOKENS], host[PAGES][PAGE_TOKENS];
    uint32_t done, direct_rows, assisted_steps, fetched, host_rows, arena_rows;
};

static uint32_t draw(struct stage *s, uint32_t below)
{
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((s->random >> 33) % below);
}

static int on_token(void *context, const struct sequence *seq, uint32_t index,
                    const struct sampling_result *sampled)
{
    (void)context, (void)seq, (void)index, (void)sampled;
    return 0;
}

static void on_done(void *context, const struct sequence *seq)
{
    struct stage *s = context;
    (void)seq;
    s->done++;
}

struct shape {
    uint32_t places, permille;
    enum prefix_sharing sharing;
    uint32_t step_tokens; /* 0: STEP_TOKENS */
    uint32_t positions;   /* kv_direct_positions */
};

static struct stage *stage_open(const struct shape *shape)
{
    struct stage *s = calloc(1, sizeof *s);
    assert_non_null(s);
    batcher_parts_open(&s->on,
                       &(struct batcher_parts_case){
                           .slots = SLOTS,
                           .context_tokens = CONTEXT,
                           .step_tokens = shape->step_tokens ? shape->step_tokens : STEP_TOKENS,
                           .page_tokens = PAGE_TOKENS,
                           .pages = PAGES,
                           .places = shape->places,
                           .direct_permille = shape->permille,
                           .direct_positions = shape->positions,
                           .free_places = shape->places == LEAST ? 0 : plan_free_places(SLOTS, PAGE_TOKENS),
                           .queue = 8,
                           .sharing = shape->sharing,
                           .sink = {.context = s, .token = on_token, .done = on_done}});
    assert_int_equal(plan_vram_pages_least(&s->on.lists), LEAST);
    assert_int_equal(plan_appends_in_arena(&s->on.lists), shape->step_tokens == LONG_STEP);
    memset(s->vram, 0xa5, sizeof s->vram);
    memset(s->host, 0xa5, sizeof s->host);
    s->random = 7;
    batcher_prepare_worker(&s->on.batcher, ++s->epoch);
    batcher_worker_ready(&s->on.batcher);
    return s;
}

static void stage_close(struct stage *s)
{
    batcher_parts_close(&s->on);
    free(s);
}

static uint32_t hash_on(uint32_t hash, uint32_t token)
{
    return (hash ^ token) * 16777619u + 1;
}

/* ---- the worker ---- */

/* Where a step that appends in the arena has a position: its page begun is in VRAM, until the step brings it
 * down. */
static uint32_t *cell(struct stage *s, const struct step *step, const struct step_row *row, uint32_t position)
{
    const uint32_t begun = row->start / PAGE_TOKENS * PAGE_TOKENS;
    const uint32_t page = arena_page_table_of(&s->on.arena, row->slot)[position / PAGE_TOKENS],
                   place = arena_vram_table_of(&s->on.arena, row->slot)[position / PAGE_TOKENS];
    assert_true(page < PAGES);
    const bool in_arena = step->flags & STEP_KV_ARENA;
    if (in_arena ? position < begun || position >= row->start : position < row->host_tokens)
        return &s->host[page][position % PAGE_TOKENS];
    assert_true(place < s->on.batcher.tiers.places.count);
    return &s->vram[place][position % PAGE_TOKENS];
}

/* A step that appended in the arena leaves there what was in VRAM of the page that it went on with, and in
 * VRAM what the next step goes on with. */
static void bring_back(struct stage *s, const struct step_row *row)
{
    const uint32_t *pages = arena_page_table_of(&s->on.arena, row->slot),
                   *places = arena_vram_table_of(&s->on.arena, row->slot);
    const uint32_t begun = row->start / PAGE_TOKENS, end = row->start + row->count;
    for (uint32_t t = 0; t < row->start % PAGE_TOKENS; t++)
        s->host[pages[begun]][t] = s->vram[places[begun]][t];
    for (uint32_t p = plan_placed_from(PAGE_TOKENS, row->start, row->count); p * PAGE_TOKENS < end; p++) {
        assert_true(places[p] < s->on.batcher.tiers.places.count);
        memcpy(s->vram[places[p]], s->host[pages[p]], sizeof s->vram[0]);
    }
    s->arena_rows++;
}

static void run_row(struct stage *s, const struct step *step, uint32_t r)
{
    const struct step_row *row = &step->row[r];
    uint32_t *history = arena_history_of(&s->on.arena, row->slot), hash = 1;
    if (row->flags & STEP_ROW_FOLLOWS) {
        const struct step_result *before =
            &arena_control_of(&s->on.arena)->result[(step->serial - 1) % ARENA_STEP_RING];
        uint32_t i = 0;
        while (i < before->row_count && before->row[i].slot != row->slot) i++;
        assert_true(i < before->row_count && before->serial == step->serial - 1);
        history[row->start] = before->row[i].sampled.token;
    }
    for (uint32_t p = 0; p < row->start + row->count; p++) {
        hash = hash_on(hash, history[p]);
        if (p >= row->start)
            *cell(s, step, row, p) = hash;
        else if (*cell(s, step, row, p) != hash)
            fail_msg("step %u slot %u position %u of %u + %u (%u in the arena) holds %08x, not %08x",
                     step->serial, row->slot, p, row->start, row->count, row->host_tokens,
                     *cell(s, step, row, p), hash);
    }
    if (step->flags & STEP_KV_ARENA) {
        bring_back(s, row);
        return;
    }
    for (uint32_t page = row->start / PAGE_TOKENS; (page + 1) * PAGE_TOKENS <= row->start + row->count;
         page++)
        for (uint32_t t = 0; t < PAGE_TOKENS; t++)
            s->host[arena_page_table_of(&s->on.arena, row->slot)[page]][t] =
                *cell(s, step, row, page * PAGE_TOKENS + t);
}

/* Everything of a step but its bell. */
static void run_step(struct stage *s, const struct step *step)
{
    struct step_result *result = &arena_control_of(&s->on.arena)->result[step->serial % ARENA_STEP_RING];
    *result =
        (struct step_result){.serial = step->serial, .epoch = step->epoch, .row_count = step->row_count};
    for (uint32_t r = 0; r < step->row_count; r++) {
        run_row(s, step, r);
        result->row[r].slot = step->row[r].slot;
        result->row[r].sampled.token = 3 + draw(s, 2);
    }
    for (uint32_t i = 0; i < step->fetch_count; i++)
        memcpy(s->vram[step->fetch[i].place], s->host[step->fetch[i].page], sizeof s->vram[0]);
    s->executed = step->serial;
}

static void answer(struct stage *s)
{
    const struct step *oldest = &batcher_oldest(&s->on.batcher)->step;
    struct helm_err err = {0};
    bool taken = false;
    s->now_us += 1000;
    if (s->executed != oldest->serial) run_step(s, oldest);
    doorbell_ring(&arena_control_of(&s->on.arena)->done[0].bell, oldest->serial);
    if (batcher_take_result(&s->on.batcher, s->now_us, &taken, &err)) fail_msg("%s", err.text);
    assert_true(taken);
}

/* ---- what a step says ---- */

static void check_row(struct stage *s, const struct step *step, const struct step_row *row)
{
    uint32_t positions = 0;
    for (uint32_t r = 0; r < step->row_count; r++) positions += step->row[r].host_tokens;
    const uint32_t permille =
                       positions <= s->on.lists.kv_direct_positions ? 1000 : s->on.lists.kv_direct_permille,
                   host = row->host_tokens / PAGE_TOKENS;
    const bool decode = step->token_count == step->row_count && step->token_count <= ARENA_KV_TOKENS;
    assert_int_equal(row->host_tokens % PAGE_TOKENS, 0);
    assert_int_equal(row->direct_from % PAGE_TOKENS, 0);
    assert_true(row->host_tokens <= row->start);
    assert_true(row->direct_from <= row->host_tokens);
    if (!decode || permille == 1000) assert_int_equal(row->direct_from, 0);
    if (decode && permille == 0) assert_int_equal(row->direct_from, row->host_tokens);
    if (decode && permille == 500) assert_in_range(row->direct_from / PAGE_TOKENS, host / 2, (host + 1) / 2);
    s->host_rows += host > 0;
    s->direct_rows += row->direct_from < row->host_tokens;
}

/* Places that a step writes are no other's, and no step in flight in front of it uses them for another
 * page. */
static void check_places(struct stage *s, const struct step *step)
{
    uint32_t owner[PLACES];
    memset(owner, 0xff, sizeof owner);
    const struct step *before = step->serial == batcher_oldest(&s->on.batcher)->step.serial
                                    ? NULL
                                    : &s->on.batcher.flight[(step->serial - 1) % ARENA_STEP_RING].step;
    const struct step *steps[2] = {before, step};
    for (int i = 0; i < 2; i++)
        for (uint32_t r = 0; steps[i] && r < steps[i]->row_count; r++) {
            const struct step_row *row = &steps[i]->row[r];
            const uint32_t *places = arena_vram_table_of(&s->on.arena, row->slot);
            const bool in_arena = steps[i]->flags & STEP_KV_ARENA;
            const uint32_t begun = row->start / PAGE_TOKENS,
                           from = in_arena ? plan_placed_from(PAGE_TOKENS, row->start, row->count)
                                           : row->host_tokens / PAGE_TOKENS;
            if (in_arena && row->start % PAGE_TOKENS && begun < from) {
                assert_true(owner[places[begun]] == UINT32_MAX);
                owner[places[begun]] = row->slot * 256 + begun;
            }
            for (uint32_t p = from; p <= (row->start + row->count - 1) / PAGE_TOKENS; p++) {
                const uint32_t id = row->slot * 256 + p;
                assert_true(owner[places[p]] == UINT32_MAX || owner[places[p]] == id);
                owner[places[p]] = id;
            }
        }
    for (uint32_t i = 0; i < step->fetch_count; i++) {
        assert_true(owner[step->fetch[i].place] == UINT32_MAX);
        owner[step->fetch[i].place] = 0;
    }
}

static void check_step(struct stage *s, const struct step *step)
{
    bool assisted = false;
    for (uint32_t r = 0; r < step->row_count; r++) {
        check_row(s, step, &step->row[r]);
        assisted |= step->row[r].direct_from > 0;
    }
    assert_int_equal(step->flags & STEP_KV_ASSISTED ? 1 : 0, assisted);
    assert_int_equal(step->flags & STEP_KV_ARENA ? 1 : 0,
                     plan_appends_in_arena(&s->on.lists) && step->token_count > ENGINE_FEW_TOKENS);
    s->assisted_steps += assisted;
    s->fetched += step->fetch_count;
    check_places(s, step);
}

static void poison(struct stage *s)
{
    for (uint32_t i = 0; i < s->on.batcher.tiers.places.count; i++)
        for (uint32_t t = 0; !s->on.batcher.tiers.places.used[i] && t < PAGE_TOKENS; t++)
            s->vram[i][t] = POISON;
    for (uint32_t i = 0; i < PAGES; i++)
        for (uint32_t t = 0; !kv_pages_holders(&s->on.batcher.pages, i) &&
                             !prefix_index_number(&s->on.batcher.pages.known, i) && t < PAGE_TOKENS;
             t++)
            s->host[i][t] = POISON;
}

static void pump(struct stage *s)
{
    uint32_t serial = s->on.batcher.serial;
    batcher_pump(&s->on.batcher, s->now_us);
    while (serial != s->on.batcher.serial)
        check_step(s, &s->on.batcher.flight[++serial % ARENA_STEP_RING].step);
    poison(s);
}

/* ---- requests ---- */

/* A prompt of one of a few beginnings, that goes on in one of two ways at each token. 0: busy. */
static uint64_t submit(struct stage *s, uint32_t prompt, uint32_t most)
{
    static uint64_t number;
    struct request_generate request = {.prompt = malloc(prompt * sizeof(uint32_t)),
                                       .prompt_count = prompt,
                                       .max_tokens = most};
    const struct sequence *seq;
    struct helm_err err = {0};
    const uint32_t fork = draw(s, prompt + 1), kind = draw(s, 3);
    assert_non_null(request.prompt);
    request.ignore_eos = request.has_seed = true;
    for (uint32_t i = 0; i < prompt; i++)
        request.prompt[i] = i < fork ? 10 + (kind * 7 + i) % 11 : 3 + draw(s, 2);
    const struct asker asker = {.client = 1 + draw(s, 3), .request_id = ++number, .peer = 1};
    int rc = batcher_submit(&s->on.batcher, &request, &asker, s->now_us, &seq, &err);
    free(request.prompt);
    return rc ? 0 : seq->id;
}

static void cancel_any(struct stage *s)
{
    if (!s->on.batcher.seq_count) return;
    const struct sequence *seq = s->on.batcher.seq[draw(s, s->on.batcher.seq_count)];
    assert_int_equal(batcher_cancel(&s->on.batcher, seq->id, "enough"), 0);
}

/* Workers that die, perhaps in the middle of a step, which then may have written everything but its bell. */
static void kill_workers(struct stage *s, bool intact)
{
    const struct workers_loss loss = {.kv_intact = intact, .outside = true, .why = "killed"};
    if (s->on.batcher.in_flight && draw(s, 2)) run_step(s, &batcher_oldest(&s->on.batcher)->step);
    batcher_worker_lost(&s->on.batcher, &loss);
    memset(s->vram, 0xa5, sizeof s->vram);
    if (!intact) memset(s->host, 0xa5, sizeof s->host);
    batcher_prepare_worker(&s->on.batcher, ++s->epoch);
    s->executed = 0;
    batcher_worker_ready(&s->on.batcher);
}

static void nothing_is_left(struct stage *s)
{
    const struct kv_places *places = &s->on.batcher.tiers.places;
    batcher_cancel_client(&s->on.batcher, 1, "over");
    batcher_cancel_client(&s->on.batcher, 2, "over");
    batcher_cancel_client(&s->on.batcher, 3, "over");
    pump(s);
    while (s->on.batcher.in_flight) {
        answer(s);
        pump(s);
    }
    assert_int_equal(s->on.batcher.seq_count, 0);
    assert_int_equal(s->on.batcher.pages.free_count, PAGES);
    assert_int_equal(places->free_count, places->count);
    assert_int_equal(kv_places_used(places), 0);
}

static void random_lives(const struct shape *shape, uint32_t operations)
{
    struct stage *s = stage_open(shape);
    for (uint32_t i = 0; i < operations; i++) {
        const uint32_t what = draw(s, 100);
        if (what < 6) {
            const uint32_t prompt = 1 + draw(s, CONTEXT - 2);
            submit(s, prompt, 1 + draw(s, CONTEXT - prompt));
        } else if (what < 8) {
            cancel_any(s);
        } else if (what == 8 && draw(s, 8) == 0) {
            kill_workers(s, draw(s, 3) != 0);
        } else if (s->on.batcher.in_flight) {
            answer(s);
        }
        if (draw(s, 4)) pump(s);
    }
    assert_true(s->host_rows > operations / 100);
    if (shape->permille < 1000) assert_true(s->assisted_steps > operations / 500);
    if (shape->permille > 0) assert_true(s->direct_rows > operations / 500);
    assert_true(s->fetched > operations / 2000);
    assert_true(s->done > operations / 50);
    assert_true(shape->step_tokens != LONG_STEP || s->arena_rows > operations / 100);
    nothing_is_left(s);
    stage_close(s);
}

static void each_position_is_where_its_step_says(void **state)
{
    (void)state;
    static const struct shape shapes[] = {{LEAST, 0, PREFIX_ON, 0, 0},
                                          {LEAST, 1000, PREFIX_ON, 0, 0},
                                          {PLACES, 500, PREFIX_ON, 0, 24},
                                          {PLACES, 300, PREFIX_OFF, 0, 0},
                                          {LEAST, 500, PREFIX_ON, LONG_STEP, 8},
                                          {PLACES, 300, PREFIX_OFF, LONG_STEP, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) random_lives(&shapes[i], OPERATIONS / 6);
}

static void step_once(struct stage *s)
{
    if (s->on.batcher.in_flight) answer(s);
    pump(s);
}

static const struct sequence *find(const struct stage *s, uint64_t id)
{
    for (uint32_t i = 0; i < s->on.batcher.seq_count; i++)
        if (s->on.batcher.seq[i]->id == id) return s->on.batcher.seq[i];
    return NULL;
}

/* With two sequences the younger one's pages are moved out first; once it has gone, the older one's come
 * back, the newest first, up to the watermark. */
static void the_youngest_gives_first(void **state)
{
    (void)state;
    struct stage *s = stage_open(&(struct shape){PLACES, 0, PREFIX_OFF, 0, 0}); /* 16: 2 stay free */
    const uint64_t old = submit(s, 28, 36), young = submit(s, 28, 36);
    const struct kv_places *places = &s->on.batcher.tiers.places;
    for (int i = 0; i < 12; i++) step_once(s);
    assert_true(places->slot[find(s, young)->slot].host > 0);
    assert_int_equal(places->slot[find(s, old)->slot].host, 0);
    for (int i = 0; i < 20; i++) step_once(s);
    const uint32_t slot = find(s, old)->slot, host = places->slot[slot].host;
    assert_true(host > 0);
    assert_int_equal(tiers_host_pages(&s->on.batcher.tiers), host + places->slot[find(s, young)->slot].host);
    assert_true(kv_places_used(places) <= PLACES);
    assert_int_equal(places->fetched, 0);
    assert_int_equal(batcher_cancel(&s->on.batcher, young, "enough"), 0);
    for (int i = 0; i < 4; i++) step_once(s);
    assert_true(places->fetched > 0);
    assert_true(places->slot[slot].host < host);
    assert_int_equal(s->on.batcher.tiers.watermark, PLACES - 2);
    assert_int_equal(kv_places_used(places), PLACES - 2);
    nothing_is_left(s);
    stage_close(s);
}

/* Killed from outside: whole pages are there, and no more is computed than each sequence's last page.
 * Otherwise all. */
static void whole_pages_outlive_workers(void **state)
{
    (void)state;
    for (int intact = 0; intact < 2; intact++) {
        struct stage *s = stage_open(&(struct shape){LEAST, 500, PREFIX_OFF, 0, 0});
        const uint64_t first = submit(s, 30, 20), second = submit(s, 20, 20);
        for (int i = 0; i < 14; i++) step_once(s);
        const uint32_t known[2] = {find(s, first)->cached, find(s, second)->cached};
        assert_true(known[0] > 32 && known[1] > 22);
        kill_workers(s, intact);
        pump(s);
        const struct step *step = &batcher_oldest(&s->on.batcher)->step;
        const struct sequence *seq[2] = {find(s, first), find(s, second)};
        for (uint32_t r = 0; r < step->row_count; r++) {
            const int i = step->row[r].slot == seq[1]->slot;
            const uint32_t whole = intact ? known[i] / PAGE_TOKENS * PAGE_TOKENS : 0;
            assert_int_equal(step->row[r].start, whole);
            assert_int_equal(step->row[r].host_tokens, whole);
        }
        while (s->done < 2) step_once(s);
        nothing_is_left(s);
        stage_close(s);
    }
}

/* Pages found by their tokens are read in the arena, also those that another sequence has in VRAM. */
static void found_pages_are_in_the_arena(void **state)
{
    (void)state;
    struct stage *s = stage_open(&(struct shape){PLACES, 0, PREFIX_ON, 0, 0});
    struct request_generate request = {.has_seed = true, .ignore_eos = true, .max_tokens = 10};
    const struct sequence *seq[2];
    struct helm_err err = {0};
    for (int i = 0; i < 2; i++) {
        const struct asker asker = {.client = 1, .request_id = 100000 + (uint64_t)i, .peer = 1};
        request.prompt = calloc(13, sizeof(uint32_t));
        request.prompt_count = 13;
        for (uint32_t t = 0; t < 13; t++) request.prompt[t] = 20 + t;
        assert_int_equal(batcher_submit(&s->on.batcher, &request, &asker, s->now_us, &seq[i], &err), 0);
        for (int k = 0; k < 2; k++) step_once(s);
    }
    const struct kv_places *places = &s->on.batcher.tiers.places;
    assert_int_equal(seq[1]->found, 12);
    assert_int_equal(places->slot[seq[0]->slot].host, 0);
    assert_int_equal(places->fetched, 3); /* there was room for them again */
    assert_int_equal(arena_page_table_of(&s->on.arena, seq[0]->slot)[2],
                     arena_page_table_of(&s->on.arena, seq[1]->slot)[2]);
    while (s->done < 2) step_once(s);
    nothing_is_left(s);
    stage_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_wait_for_steps_in_flight),
        cmocka_unit_test(places_are_left_to_the_next_step),
        cmocka_unit_test(each_position_is_where_its_step_says),
        cmocka_unit_test(the_youngest_gives_first),
        cmocka_unit_test(whole_pages_outlive_workers),
        cmocka_unit_test(found_pages_are_in_the_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
