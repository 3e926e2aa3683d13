/* Opening and closing of what weights on disk need, and whether they are what they were. See disk.h. */
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
        snprintf(reduced, DISK_REDUCED_TEXT, "weights on disk are read by %d threads: %.80s", DISK_DEPTH,
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

/* All its pages are there from the start. */
static int take_memory(struct disk *d, uint64_t bytes, struct pool *pool, struct helm_err *err)
{
    char text[UNITS_TEXT];
    d->memory_bytes = round_up(bytes, ARENA_HUGE_PAGE);
    d->memory = aligned_alloc(ARENA_HUGE_PAGE, d->memory_bytes);
    if (!d->memory)
        return helm_fail(err, HELM_E_NOMEM, "no memory for weights on disk (%s)",
                         units_format_size(d->memory_bytes, text));
    madvise(d->memory, d->memory_bytes, MADV_HUGEPAGE);
    pool_run_region(pool, bring_piece, d, (uint32_t)(round_up(d->memory_bytes, PIECE_BYTES) / PIECE_BYTES));
    return 0;
}

static void place_slots(struct disk *d)
{
    char *at = d->memory;
    for (uint32_t u = 0; u < d->room.units; u++) {
        d->slots[u] = at;
        at += d->room.slots * d->room.unit[u].slot_bytes;
    }
    for (uint32_t c = 0; c < d->room.cells; c++, at += d->room.cell_bytes)
        d->cell[c] = (struct disk_cell){.memory = at, .need = DISK_NONE};
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

/* Slots and cells of experts. */
static int open_experts(struct disk *d, const struct plan *plan, struct pool *pool, struct helm_err *err)
{
    d->room.unit = calloc(plan->layers, sizeof *d->room.unit);
    if (!d->room.unit) return helm_fail(err, HELM_E_NOMEM, "no memory for experts on disk");
    int rc = disk_place(d->model, plan, &d->room, err);
    if (!rc) rc = take_tables(d, err);
    if (!rc) rc = take_memory(d, d->room.bytes, pool, err);
    if (!rc) place_slots(d);
    return rc;
}

/* The ring of whole units. */
static int open_ring(struct disk *d, const struct plan *plan, struct pool *pool, struct helm_err *err)
{
    struct disk_ring room = {.passing = calloc(unit_count(plan->layers), sizeof *room.passing)};
    int rc = room.passing ? disk_ring_place(d->model, plan, &room, err)
                          : helm_fail(err, HELM_E_NOMEM, "no memory for a ring of weights on disk");
    if (!rc) rc = take_memory(d, room.bytes, pool, err);
    if (!rc) rc = disk_ring_open(d, &room, err);
    free(room.passing);
    return rc;
}

int disk_open(const struct model *model, const struct plan *plan, const struct arena *arena,
              struct pool *pool, struct disk **disk, char reduced[DISK_REDUCED_TEXT], struct helm_err *err)
{
    struct disk *d = calloc(1, sizeof *d);
    *disk = NULL;
    if (!d) return helm_fail(err, HELM_E_NOMEM, "no memory for weights on disk");
    d->model = model;
    d->arena = arena;
    d->experts = model->config.router.experts;
    int rc = open_files(d, err);
    if (!rc) rc = (plan_disk_ring(plan) ? open_ring : open_experts)(d, plan, pool, err);
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
    disk_ring_stop(d->ring);
    disk_reader_close(d->reader);
    if (d->policy) {
        const struct expert_slots_seen seen = expert_slots_seen(d->policy);
        if (seen.used)
            log_info("experts on disk: %.1f %% of %llu uses were in memory; %s were read, in %llu reads",
                     100.0 * (double)seen.present / (double)seen.used, (unsigned long long)seen.used,
                     units_format_size(d->bytes_read, text), (unsigned long long)d->reads);
    }
    expert_slots_free(d->policy);
    disk_ring_free(d->ring);
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

int disk_start(struct disk *d, struct helm_err *err)
{
    return d->ring ? disk_ring_start(d->ring, err) : 0;
}

/* How a file differs from what it was; NULL: in nothing. */
static const char *change_of(const struct stat *was, const struct stat *is)
{
    if (was->st_size != is->st_size) return "has another size";
    if (memcmp(&was->st_mtim, &is->st_mtim, sizeof was->st_mtim) != 0) return "was written to";
    return NULL;
}

#define NAME_TEXT (MODEL_NAME_MAX + 32)

static const char *name_of(const struct disk_read_of *of, char text[NAME_TEXT])
{
    if (of->expert == DISK_NONE) return of->tensor->name;
    snprintf(text, NAME_TEXT, "expert %u of %s", of->expert, of->tensor->name);
    return text;
}

int disk_check(const struct disk *d, const struct disk_reading *read, const struct disk_read_of *of,
               uint64_t digest, uint64_t *first, struct helm_err *err)
{
    const char *file = d->model->shards[of->shard].file;
    char name[NAME_TEXT];
    struct stat now;
    if (read->error)
        return helm_fail(err, HELM_E_IO, "%s: byte %llu cannot be read (%s): %s", file,
                         (unsigned long long)read->failed_at, name_of(of, name), strerror(read->error));
    if (read->ended)
        return helm_fail(err, HELM_E_MISMATCH,
                         "the model changed on disk while it was served: %s has no byte %llu any more (%s)",
                         file, (unsigned long long)read->failed_at, name_of(of, name));
    if (fstat(d->shards.fd[of->shard], &now)) return helm_fail_errno(err, "%s: cannot stat", file);
    const char *change = change_of(&d->file[of->shard], &now);
    if (change || (*first && *first != digest))
        return helm_fail(err, HELM_E_MISMATCH,
                         "the model changed on disk while it was served: %s %s (byte %llu, %s)", file,
                         change ? change : "has other bytes than before", (unsigned long long)of->offset,
                         name_of(of, name));
    *first = digest;
    return 0;
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
