/* Unit tests of common/experts/slots.c: what is present is what came, each expert and slot once; hit rates
 * over generated traces of choices, with and without order in them.
 *
 * A trace with order is drawn by how recently an expert was used: a layer's experts stand in a list, the last
 * used in front, and a choice takes the one at a depth that is distributed as in published traces, where an
 * eighth of the experts, kept by recency, has 67 % of what comes and a quarter 81 %. In between it is linear,
 * half of all within the last token's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "common/experts/slots.h"

#define LAYERS  6
#define EXPERTS 128
#define CHOSEN  8

static uint64_t state;
static double random_part(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) / 9007199254740992.0;
}

struct trace {
    bool sticky;
    uint32_t recent[LAYERS][EXPERTS];
};

static void trace_begin(struct trace *t, bool sticky)
{
    state = 20261125;
    t->sticky = sticky;
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t e = 0; e < EXPERTS; e++) t->recent[l][e] = e;
}

/* A depth of the list, 0 the last used. */
static uint32_t depth_of(bool sticky)
{
    static const double until[] = {0, 8, 16, 32, 128}, part[] = {0, 0.5, 0.67, 0.81, 1};
    const double u = random_part();
    uint32_t i = 1;
    if (!sticky) return (uint32_t)(u * EXPERTS);
    while (u >= part[i]) i++;
    return (uint32_t)(until[i - 1] + (u - part[i - 1]) / (part[i] - part[i - 1]) * (until[i] - until[i - 1]));
}

/* A token's choice in a layer: CHOSEN different ones, all at depths of the list as it was before. */
static void choose(struct trace *t, uint32_t layer, uint32_t id[CHOSEN])
{
    uint32_t *list = t->recent[layer], before[EXPERTS];
    bool taken[EXPERTS] = {false};
    memcpy(before, list, sizeof before);
    for (uint32_t k = 0; k < CHOSEN; k++) {
        uint32_t d;
        do d = depth_of(t->sticky);
        while (taken[d]);
        taken[d] = true;
        id[k] = before[d];
    }
    uint32_t n = 0;
    for (uint32_t k = 0; k < CHOSEN; k++) list[n++] = id[k];
    for (uint32_t d = 0; d < EXPERTS; d++)
        if (!taken[d]) list[n++] = before[d];
}

/* No slot is said of two experts, and none that is not there. */
static void check_tables(const struct expert_slots *s, uint32_t slots)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        bool used[EXPERTS] = {false};
        const uint32_t *table = expert_slots_table(s, l);
        for (uint32_t e = 0; e < EXPERTS; e++) {
            if (table[e] == EXPERT_SLOT_NONE) continue;
            assert_true(table[e] < slots);
            assert_false(used[table[e]]);
            used[table[e]] = true;
        }
    }
}

struct run {
    bool sticky, still;
    uint32_t slots;  /* of a layer */
    uint32_t budget; /* moves a step, of all layers */
    bool late;       /* experts come a step later than they could: as in the worker */
    double cost;     /* 0: EXPERT_COST */
};
/* Results after the first 300 steps. */
struct found {
    double part, foretold, filled; /* present; as the policy has them at the end */
    double moves;                  /* a step */
};

static struct found hits(const struct run *run)
{
    static struct trace trace;
    struct expert_slots *s;
    struct helm_err err;
    struct expert_move move[2][LAYERS * CHOSEN];
    uint32_t count[2] = {0}, id[CHOSEN];
    const struct expert_slots_case size = {LAYERS, EXPERTS, run->slots, EXPERT_HALF_LIFE,
                                           run->cost > 0 ? run->cost : EXPERT_COST};
    assert_int_equal(expert_slots_create(&size, &s, &err), 0);
    expert_slots_fill(s, NULL);
    trace_begin(&trace, run->sticky);
    struct expert_slots_seen before = {0};
    for (uint32_t step = 0; step < 1500; step++) {
        const uint32_t now = step % 2, due = run->late ? 1 - now : now;
        if (step == 300) before = expert_slots_seen(s);
        count[now] = 0;
        for (uint32_t i = 0; i < LAYERS; i++) {
            const uint32_t l = (i + step) % LAYERS; /* a budget that is too small serves all layers in turn */
            choose(&trace, l, id);
            expert_slots_used(s, l, id, CHOSEN);
            const uint32_t left = run->budget - count[now], most = left < CHOSEN ? left : CHOSEN;
            count[now] += expert_slots_moves(s, l, move[now] + count[now], run->still ? 0 : most);
        }
        for (uint32_t i = 0; i < count[due]; i++) expert_slots_arrived(s, &move[due][i]);
        expert_slots_step(s);
        if (step % 97 == 0) check_tables(s, run->slots);
    }
    const struct expert_slots_seen seen = expert_slots_seen(s);
    assert_int_equal(seen.used, 1500 * LAYERS * CHOSEN);
    const struct found found = {(double)(seen.present - before.present) / (double)(seen.used - before.used),
                                seen.foretold, seen.filled, (double)(seen.moved - before.moved) / 1200};
    expert_slots_free(s);
    return found;
}

/* As for experts on disk: each that is missing is brought at once, into a slot that the step does not use, if
 * there is one. */
static double hits_admitted(bool sticky, uint32_t slots)
{
    static struct trace trace;
    struct expert_slots *s;
    struct helm_err err;
    uint32_t id[CHOSEN], passed = 0;
    const struct expert_slots_case size = {LAYERS, EXPERTS, slots, EXPERT_HALF_LIFE, 0};
    assert_int_equal(expert_slots_create(&size, &s, &err), 0);
    trace_begin(&trace, sticky);
    struct expert_slots_seen before = {0};
    for (uint32_t step = 0; step < 1500; step++) {
        if (step == 300) before = expert_slots_seen(s);
        for (uint32_t l = 0; l < LAYERS; l++) {
            const uint32_t *table = expert_slots_table(s, l);
            choose(&trace, l, id);
            expert_slots_used(s, l, id, CHOSEN);
            for (uint32_t i = 0; i < CHOSEN; i++) {
                struct expert_move move;
                const bool there = table[id[i]] != EXPERT_SLOT_NONE;
                if (!expert_slots_admit(s, l, id[i], &move)) {
                    passed += !there;
                    continue;
                }
                assert_false(there);
                assert_true(move.layer == l && move.expert == id[i] && move.slot < slots);
                for (uint32_t k = 0; k < CHOSEN; k++) assert_true(move.evicted != id[k]);
                assert_false(expert_slots_admit(s, l, id[i], &move)); /* it is under way */
                expert_slots_arrived(s, &move);
            }
        }
        expert_slots_step(s);
        if (step % 97 == 0) check_tables(s, slots);
    }
    assert_true((passed > 0) == (slots < CHOSEN));
    const struct expert_slots_seen seen = expert_slots_seen(s);
    expert_slots_free(s);
    return (double)(seen.present - before.present) / (double)(seen.used - before.used);
}

static void missing_experts_are_admitted(void **unused)
{
    (void)unused;
    const double eighth = hits_admitted(true, 16), quarter = hits_admitted(true, 32),
                 even = hits_admitted(false, 32), few = hits_admitted(true, 3);
    print_message("admitted: an eighth of the experts %.3f, a quarter %.3f; without order %.3f; three %.3f\n",
                  eighth, quarter, even, few);
    assert_true(eighth > 0.60 && eighth < 0.70);
    assert_true(quarter > 0.76 && quarter < 0.84);
    assert_true(even > 0.23 && even < 0.27);
    assert_true(few > 0.02 && few < eighth);
}

static void sticky_routing_is_followed(void **unused)
{
    (void)unused;
    const uint32_t all = LAYERS * CHOSEN;
    const struct found eighth = hits(&(struct run){.sticky = true, .slots = 16, .budget = all, .cost = 0.4}),
                       quarter = hits(&(struct run){.sticky = true, .slots = 32, .budget = all}),
                       late = hits(&(struct run){.sticky = true, .slots = 32, .budget = all, .late = true}),
                       few = hits(&(struct run){.sticky = true, .slots = 32, .budget = LAYERS}),
                       still = hits(&(struct run){.sticky = true, .slots = 32, .still = true});
    print_message("an eighth of the experts: %.3f present, %.1f moves a step; a quarter: %.3f, %.1f\n",
                  eighth.part, eighth.moves, quarter.part, quarter.moves);
    print_message("a step late: %.3f, %.1f, foretold %.3f; one move a layer: %.3f; held still: %.3f\n",
                  late.part, late.moves, late.foretold, few.part, still.part);
    /* as recency in the published traces, 0.67 and 0.81, less what a token cannot choose twice */
    assert_true(eighth.part > 0.60 && eighth.part < 0.70);
    assert_true(quarter.part > 0.76 && quarter.part < 0.84);
    assert_true(still.moves == 0 && still.part > 0.2 && still.part < 0.3);
    assert_true(late.part > 0.6 && late.part < quarter.part);
    assert_true(few.part > 0.5 && few.part < quarter.part);
    /* The foretold part is the part that moves in the worker find, also where none move, and so is the part
     * that the slots had. */
    assert_true(late.foretold > late.part - 0.03 && late.foretold < late.part + 0.03);
    assert_true(still.foretold > late.foretold - 0.03 && still.foretold < late.foretold + 0.03);
    assert_true(late.filled > still.part - 0.03 && late.filled < still.part + 0.03);
    /* as the planner counts them (daemon/planner/experts_moves.c) */
    assert_true(late.moves > 0.6 * all * (1 - late.part) && late.moves < 0.8 * all * (1 - late.part));
}

/* Where moves cost more than they save, nothing moves, though routing has order: at this price 0.68 foretold
 * hits are worth (0.68 - 0.25) / (1 - 0.68) = 1.3. */
static void moves_that_cost_too_much_are_not_made(void **unused)
{
    (void)unused;
    const struct run run = {.sticky = true, .slots = 32, .budget = LAYERS * CHOSEN, .late = true, .cost = 2};
    const struct found found = hits(&run);
    assert_true(found.moves == 0 && found.part > 0.2 && found.part < 0.3);
}

static void routing_without_order_moves_nothing(void **unused)
{
    (void)unused;
    const struct found found = hits(&(struct run){.slots = 32, .budget = LAYERS * CHOSEN});
    assert_true(found.part > 0.23 && found.part < 0.27);
    assert_true(found.moves == 0);
}

/* A histogram of an earlier run says what to begin with; moves are what the header says. */
static void filled_by_uses(void **unused)
{
    (void)unused;
    static uint64_t uses[LAYERS * EXPERTS];
    struct expert_slots *s;
    struct helm_err err;
    struct expert_move move[4];
    for (uint32_t l = 0; l < LAYERS; l++) uses[l * EXPERTS + 100 + l] = 5, uses[l * EXPERTS + 7] = 9;
    assert_int_equal(expert_slots_create(&(struct expert_slots_case){LAYERS, EXPERTS, 2, 8, 0}, &s, &err), 0);
    expert_slots_fill(s, uses);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const uint32_t *table = expert_slots_table(s, l);
        assert_true(table[7] != EXPERT_SLOT_NONE && table[100 + l] != EXPERT_SLOT_NONE);
        assert_true(table[8] == EXPERT_SLOT_NONE);
    }
    /* Expert 8 is used again and again: once that is foretold, after two steps, it moves in. The evicted one
     * is absent at once. */
    const uint32_t id = 8, *table = expert_slots_table(s, 2);
    for (uint32_t step = 0; step < 3; step++) {
        assert_int_equal(expert_slots_moves(s, 2, move, 4), 0);
        expert_slots_used(s, 2, &id, 1);
        expert_slots_step(s);
        assert_int_equal(expert_slots_seen(s).moving, step == 2);
    }
    assert_int_equal(expert_slots_moves(s, 2, move, 4), 1);
    assert_int_equal(move[0].layer, 2);
    assert_int_equal(move[0].expert, 8);
    assert_true(move[0].evicted == 7 || move[0].evicted == 102);
    assert_true(table[8] == EXPERT_SLOT_NONE && table[move[0].evicted] == EXPERT_SLOT_NONE);
    assert_int_equal(expert_slots_moves(s, 2, move + 1, 3), 0); /* it comes only once */
    expert_slots_arrived(s, move);
    assert_int_equal(table[8], move[0].slot);
    assert_int_equal(expert_slots_uses(s)[2 * EXPERTS + 8], 3);
    assert_int_equal(expert_slots_seen(s).present, 0);
    expert_slots_used(s, 2, &id, 1);
    assert_int_equal(expert_slots_seen(s).present, 1);
    expert_slots_free(s);
}

static void sizes_are_bounded(void **unused)
{
    (void)unused;
    struct expert_slots *s;
    struct helm_err err;
    const struct expert_slots_case refused[] = {
        {4, 8, 9, 8, 0}, {1 << 16, 1 << 10, 1, 8, 0}, {0, 8, 0, 8, 0}, {4, 8, 4, 0, 0}, {4, 8, 4, 8, -1}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        assert_int_equal(expert_slots_create(&refused[i], &s, &err), HELM_E_LIMIT);
    assert_int_equal(expert_slots_create(&refused[0], &s, &err), HELM_E_LIMIT);
    assert_non_null(strstr(err.text, "9 slots for the 8 experts"));
    /* ids that no expert has, and layers that are none, change nothing; no slots are a pool, too */
    const uint32_t id = 8, first = 0;
    struct expert_move move;
    assert_int_equal(expert_slots_create(&(struct expert_slots_case){4, 8, 0, 8, 0}, &s, &err), 0);
    expert_slots_fill(s, NULL);
    expert_slots_used(s, 0, &id, 1), expert_slots_used(s, 4, &first, 1);
    assert_int_equal(expert_slots_seen(s).used, 0);
    for (int i = 0; i < 3; i++) expert_slots_used(s, 0, &first, 1), expert_slots_step(s);
    assert_int_equal(expert_slots_moves(s, 0, &move, 1), 0);
    expert_slots_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_experts_are_admitted),
        cmocka_unit_test(sticky_routing_is_followed),
        cmocka_unit_test(moves_that_cost_too_much_are_not_made),
        cmocka_unit_test(routing_without_order_moves_nothing),
        cmocka_unit_test(filled_by_uses),
        cmocka_unit_test(sizes_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
