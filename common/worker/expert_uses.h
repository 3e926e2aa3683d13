/* Counts of experts in slots that status shows (struct arena_experts), which go on over a worker's lives.
 *
 * Called by both workers, each for the slots that it has. Pure but for the arena. */
#pragma once

#include "common/experts/slots.h"
#include "common/shared/arena.h"

/* The counts of the lives before this one. */
static inline struct expert_slots_seen expert_uses_before(const struct arena *arena)
{
    const struct arena_experts *all = arena_experts_of(arena);
    return (struct expert_slots_seen){.steps = atomic_load(&all->steps),
                                      .used = atomic_load(&all->used),
                                      .present = atomic_load(&all->present),
                                      .moved = atomic_load(&all->moved)};
}

static inline void expert_uses_write(const struct arena *arena, const struct expert_slots_seen *before,
                                     const struct expert_slots_seen *now)
{
    struct arena_experts *all = arena_experts_of(arena);
    atomic_store_explicit(&all->steps, before->steps + now->steps, memory_order_relaxed);
    atomic_store_explicit(&all->used, before->used + now->used, memory_order_relaxed);
    atomic_store_explicit(&all->present, before->present + now->present, memory_order_relaxed);
    atomic_store_explicit(&all->moved, before->moved + now->moved, memory_order_relaxed);
}
