/* The KV pool's memory after the first answers. See kv_pages.h. */
#include "worker-cpu/kv_pages.h"

#include <sched.h>
#include <sys/resource.h>

#include "common/base/cpu.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/cpu/pin.h"

#define KV_PAGES_FIRST (256 * MIB)
#define KV_PAGES_PIECE ARENA_HUGE_PAGE /* between looks at `stop` */

uint64_t kv_pages_first_bytes(uint64_t bytes)
{
    return bytes < KV_PAGES_FIRST ? bytes : KV_PAGES_FIRST;
}

static void *fill(void *arg)
{
    struct kv_filler *filler = arg;
    uint64_t huge = 0, small = 0, start_us = units_now_us();
    char text[UNITS_TEXT], small_text[UNITS_TEXT];
    cpu_run_anywhere();
    setpriority(PRIO_PROCESS, 0, 19);
    for (uint64_t at = 0; at < filler->bytes; at += KV_PAGES_PIECE) {
        if (atomic_load_explicit(&filler->stop, memory_order_relaxed)) return NULL;
        uint64_t left = filler->bytes - at;
        arena_populate(filler->arena, filler->offset + at, left < KV_PAGES_PIECE ? left : KV_PAGES_PIECE,
                       &huge, &small);
    }
    log_debug("KV pool: the other %s are there, %s of them on small pages, %.1f s after READY",
              units_format_size(filler->bytes, text), units_format_size(small, small_text),
              (double)(units_now_us() - start_us) * 1e-6);
    if (small > ARENA_HUGE_PAGE)
        log_warn("KV pool: small pages: %s of the arena", units_format_size(small, small_text));
    return NULL;
}

int kv_filler_start(struct kv_filler *filler, const struct arena *arena, uint64_t offset, uint64_t bytes,
                    struct helm_err *err)
{
    if (!bytes) return 0;
    filler->arena = arena;
    filler->offset = offset;
    filler->bytes = bytes;
    int rc = pin_create_thread(&filler->thread, -1, fill, filler, err);
    if (rc) return rc;
    pthread_setname_np(filler->thread, "kv pages");
    filler->started = true;
    return 0;
}

void kv_filler_stop(struct kv_filler *filler)
{
    if (!filler->started) return;
    atomic_store(&filler->stop, true);
    pthread_join(filler->thread, NULL);
    filler->started = false;
}
