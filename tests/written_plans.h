/* Plans that tests write, as letters or as homes: their units lie in memory of the test, an array of
 * WRITTEN_UNITS. */
#pragma once

#include <string.h>

#include "common/plan/stages.h"

#define WRITTEN_UNITS(layers) (UNIT_PARTS * (layers) + 2)

static inline enum plan_home home_of_letter(char letter)
{
    return letter == 'g'   ? PLAN_HOME_GPU
           : letter == 's' ? PLAN_HOME_STREAM
           : letter == 'm' ? PLAN_HOME_MIXED
           : letter == 'h' ? PLAN_HOME_SHARED
           : letter == 'd' ? PLAN_HOME_DISK
                           : PLAN_HOME_CPU;
}

/* All at one home, as stored. Returns `unit`. */
static inline struct plan_unit *units_all(struct plan_unit *unit, uint32_t layers, enum plan_home home)
{
    struct plan plan = {.layers = layers, .unit = unit};
    memset(unit, 0, WRITTEN_UNITS(layers) * sizeof *unit);
    for (uint32_t u = 0; u < unit_count(layers); u++) unit[u].home[0] = home;
    plan_formats_clear(&plan);
    return unit;
}

/* A home for each unit. */
static inline struct plan_unit *units_of_homes(struct plan_unit *unit, uint32_t layers,
                                               const enum plan_home *home)
{
    units_all(unit, layers, PLAN_HOME_CPU);
    for (uint32_t u = 0; u < unit_count(layers); u++) unit[u].home[0] = home[u];
    return unit;
}

/* A letter for each unit, over and over: c(pu), g(pu), s(tream), m(ixed), (s)h(ared), d(isk). */
static inline struct plan_unit *units_of_letters(struct plan_unit *unit, uint32_t layers, const char *letters,
                                                 size_t count)
{
    units_all(unit, layers, PLAN_HOME_CPU);
    for (uint32_t u = 0; u < unit_count(layers); u++) unit[u].home[0] = home_of_letter(letters[u % count]);
    return unit;
}

/* Stages of a list. */
static inline uint32_t plan_stage_count(const struct plan *plan, uint32_t phase)
{
    struct plan_stage stage;
    uint32_t count = 0;
    for (uint32_t u = 0; u < unit_count(plan->layers); count++) u = plan_stage_at(plan, phase, u, &stage);
    return count;
}

/* Adds a list for steps of `from` tokens and more. */
static inline void add_list(struct plan *plan, uint32_t from, const enum plan_home *home)
{
    plan->prefill_from[plan->prefill_count++] = from;
    plan_set_homes(plan, plan->prefill_count, home);
}

static inline void add_letters(struct plan *plan, uint32_t from, const char *letters)
{
    const size_t count = strlen(letters);
    plan->prefill_from[plan->prefill_count++] = from;
    for (uint32_t u = 0; u < unit_count(plan->layers); u++)
        plan->unit[u].home[plan->prefill_count] = home_of_letter(letters[u % count]);
}
