/* A page between VRAM and the session region. See session.h. Called by step.c; owns nothing.
 *
 * The copy goes through the compute queue, so it is after whatever the steps before it still write. The
 * region lies in front of the KV pool, in what engine.c has registered with the device. */
#include "worker-gpu/session.h"

#include "common/plan/state.h"

int gpu_session_move(struct gpu_engine *g, const struct step *step, struct helm_err *err)
{
    const struct arena *arena = g->base.arena;
    const bool window = step->flags & STEP_KV_WINDOW;
    const struct kv_layout *kv = window ? &g->window_kv : &g->kv;
    const uint32_t before = window ? plan_session_window_layer(&g->plan, g->base.self)
                                   : plan_session_layer(&g->plan, g->base.self);
    const uint64_t bytes = kv_page_bytes(kv), at = before * kv_layer_bytes(kv),
                   room = arena_header_of(arena)->region[ARENA_REGION_SESSION].bytes;
    if (!bytes) return 0; /* no layer's cache is the GPU's */
    if (room < at + bytes)
        return helm_fail(err, HELM_E_MISMATCH,
                         "step %u moves a page of %llu bytes, the arena's region for that has %llu",
                         step->serial, (unsigned long long)(at + bytes), (unsigned long long)room);
    char *there = (char *)arena_region_ptr(arena, ARENA_REGION_SESSION) + at;
    char *here = (char *)g->kv_pool + (window ? g->window_at : 0) + step->page * bytes;
    const bool out = (step->flags & STEP_KV_OUT) != 0;
    atomic_store_explicit(g->source.moved, 0, memory_order_release);
    int rc = device_copy(g->device, DEVICE_COMPUTE, out ? DEVICE_TO_HOST : DEVICE_TO_DEVICE,
                         out ? there : here, out ? here : there, bytes, err);
    if (!rc) rc = device_word_write(g->device, g->source.moved, 1, err);
    return rc ? rc : device_word_poll(g->device, g->source.moved, 1, g->wait_ms, err);
}
