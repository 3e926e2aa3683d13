/* Opening and closing of what experts on disk need. See disk.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/model/content.h"
#include "worker-cpu/disk/private.h"

/* The files again, for reads past the page cache. */
static int open_files(struct disk *d, struct helm_err *err)
{
    int rc = model_shards_open(d->model, &d->shards, err);
    d->file = calloc(d->model->shard_count + 1, sizeof *d->file);
    if (!rc && !d->file) rc = helm_fail(err, HELM_E_NOMEM, "no memory for a list of files");
    for (uint32_t i = 0; i < d->shards.count && !rc; i++) {
        const char *name = d->model->shards[i].file;
        rc = disk_reader_direct(d->shards.fd[i], name, err);
        if (rc) break;
        if (fstat(d->shards.fd[i], &d->file[i]))
            rc = helm_fail_errno(err, "%s: cannot stat", name);
        else if ((uint64_t)d->file[i].st_size != d->model->shards[i].bytes)
            rc = helm_fail(err, HELM_E_MISMATCH, "%s changed its size while it was read", name);
    }
    return rc;
}

static int open_reader(struct disk *d, char reduced[DISK_REDUCED_TEXT], struct helm_err *err)
{
    struct helm_err refused;
    const int rc = disk_reader_open_usual(&d->reader, &refused, err);
    *reduced = 0;
    if (!rc && refused.code)
        snprintf(reduced, DISK_REDUCED_TEXT, "experts on disk are read by %d threads: %.80s", DISK_DEPTH,
                 refused.text);
    return rc;
}

#define PIECE_BYTES (64 * MIB) /* of memory whose pages one thread brings at a time */

/* The kernel's zeros are enough; before Linux 5.14 writing brings the pages. */
static void bring_piece(void *ctx, uint32_t piece, uint32_t thread)
{
    struct disk *d = ctx;
    const uint64_t at = piece * PIECE_BYTES, left = d->memory_bytes - at,
                   bytes = left < PIECE_BYTES ? left : PIECE_BYTES;
    (void)thread;
    if (madvise(d->memory + at, bytes, MADV_POPULATE_WRITE)) memset(d->memory + at, 0, bytes);
}

/* Slots and cells, all of whose pages are there from the start. */
static int take_memory(struct disk *d, struct pool *pool, struct helm_err *err)
{
    char text[UNITS_TEXT];
    d->memory_bytes = round_up(d->room.bytes, ARENA_HUGE_PAGE);
    d->memory = aligned_alloc(ARENA_HUGE_PAGE, d->memory_bytes);
    if (!d->memory)
        return helm_fail(err, HELM_E_NOMEM, "no memory for slots of experts (%s)",
                         units_format_size(d->memory_bytes, text));
    madvise(d->memory, d->memory_bytes, MADV_HUGEPAGE);
    pool_run_region(pool, bring_piece, d, (uint32_t)(round_up(d->memory_bytes, PIECE_BYTES) / PIECE_BYTES));
    char *at = d->memory;
    for (uint32_t u = 0; u < d->room.units; u++) {
        d->slots[u] = at;
        at += d->room.slots * d->room.unit[u].slot_bytes;
    }
    for (uint32_t c = 0; c < d->room.cells; c++, at += d->room.cell_bytes)
        d->cell[c] = (struct disk_cell){.memory = at, .need = DISK_NONE};
    return 0;
}

static int take_tables(struct disk *d, struct helm_err *err)
{
    const uint64_t roles = (uint64_t)d->room.units * SLOT_ROLES,
                   reads = (d->room.slots + d->room.cells) * SLOT_ROLES;
    const struct expert_slots_case size = {.layers = d->room.units,
                                           .experts = d->experts,
                                           .slots = d->room.slots,
                                           .half_life = EXPERT_HALF_LIFE};
    d->slots = calloc(d->room.units, sizeof *d->slots);
    d->place = calloc(roles * (d->experts + 1), sizeof *d->place);
    d->digest = calloc(roles * d->experts, sizeof *d->digest);
    d->cell = calloc(d->room.cells, sizeof *d->cell);
    d->read = calloc(reads, sizeof *d->read);
    if (!d->slots || !d->place || !d->digest || !d->cell || !d->read)
        return helm_fail(err, HELM_E_NOMEM, "no memory for tables of experts on disk");
    d->before = expert_uses_before(d->arena);
    return expert_slots_create(&size, &d->policy, err);
}

int disk_open(const struct model *model, const struct plan *plan, const struct arena *arena,
              struct pool *pool, struct disk **disk, char reduced[DISK_REDUCED_TEXT], struct helm_err *err)
{
    struct disk *d = calloc(1, sizeof *d);
    *disk = NULL;
    if (!d) return helm_fail(err, HELM_E_NOMEM, "no memory for experts on disk");
    d->model = model;
    d->arena = arena;
    d->experts = model->config.router.experts;
    d->room.unit = calloc(plan->layers, sizeof *d->room.unit);
    int rc = d->room.unit ? disk_place(model, plan, &d->room, err)
                          : helm_fail(err, HELM_E_NOMEM, "no memory for experts on disk");
    if (!rc) rc = open_files(d, err);
    if (!rc) rc = take_tables(d, err);
    if (!rc) rc = take_memory(d, pool, err);
    if (!rc) rc = open_reader(d, reduced, err);
    if (rc) {
        disk_close(d);
        return rc;
    }
    *disk = d;
    return 0;
}

void disk_close(struct disk *d)
{
    char text[UNITS_TEXT];
    if (!d) return;
    disk_reader_close(d->reader);
    if (d->policy) {
        const struct expert_slots_seen seen = expert_slots_seen(d->policy);
        if (seen.used)
            log_info("experts on disk: %.1f %% of %llu uses were in memory; %s were read, in %llu reads",
                     100.0 * (double)seen.present / (double)seen.used, (unsigned long long)seen.used,
                     units_format_size(d->bytes_read, text), (unsigned long long)d->reads);
    }
    expert_slots_free(d->policy);
    model_shards_close(&d->shards);
    free(d->memory);
    free(d->file);
    free(d->slots);
    free(d->place);
    free(d->digest);
    free(d->cell);
    free(d->read);
    free(d->room.unit);
    free(d);
}

uint64_t disk_content(const struct disk *d)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < d->shards.count; i++) {
        const struct stat *f = &d->file[i];
        const int64_t is[] = {(int64_t)f->st_dev, (int64_t)f->st_ino, f->st_size,        f->st_mtim.tv_sec,
                              f->st_mtim.tv_nsec, f->st_ctim.tv_sec,  f->st_ctim.tv_nsec};
        sum += content_of(is, sizeof is, i);
    }
    return sum;
}

const char *const *disk_places(const struct disk *d, int32_t layer, enum slot_role role)
{
    uint32_t u = 0;
    while (u < d->room.units && (int32_t)unit_layer(d->room.unit[u].unit) != layer) u++;
    return u < d->room.units ? disk_place_at(d, u, role, 0) : NULL;
}
