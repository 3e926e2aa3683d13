/* The worker's buffers of activations, in one piece of memory. See program.h; called by engine.c. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "worker-cpu/program/program.h"

int activations_create(const struct cpu_activations_case *size, unsigned formats,
                       const struct kernel_set *kernels, uint64_t room, float *logits,
                       struct activations *act, struct helm_err *err)
{
    struct cpu_activations place;
    const struct linear_kernel *by[FORMAT_COUNT] = {NULL};
    uint64_t at[FORMAT_COUNT] = {0}, joined_at[FORMAT_COUNT] = {0}, bytes;
    memset(act, 0, sizeof *act);
    cpu_activations_place(size, &place);
    memcpy(act->width, place.width, sizeof act->width);
    bytes = place.floats * sizeof(float);
    for (int i = 0; i < LINEAR_INPUTS * FORMAT_COUNT && place.tiles; i++) {
        const int f = i % FORMAT_COUNT;
        const struct linear_kernel *k = kernels->linear[i / FORMAT_COUNT][f].tokens;
        if (!(formats & format_bit((enum tensor_format)f)) || by[k->format]) continue;
        int alike = 0;
        while (alike < FORMAT_COUNT && !(by[alike] && by[alike]->tile == k->tile)) alike++;
        by[k->format] = k;
        at[k->format] = alike < FORMAT_COUNT ? at[alike] : bytes;
        if (alike < FORMAT_COUNT) joined_at[k->format] = joined_at[alike];
        if (alike < FORMAT_COUNT) continue;
        const uint64_t tile = (k->tiled_bytes(place.tile_tokens, place.widest) + 63) / 64 * 64,
                       joined = (k->tiled_bytes(place.tile_tokens, place.joined) + 63) / 64 * 64;
        bytes += tile * place.tiles;
        joined_at[k->format] = bytes;
        bytes += joined * place.tiles;
    }
    if (bytes > room) { /* kernels with more layouts than cpu_room_of knows */
        log_warn("activations take %llu bytes, planned are %llu", (unsigned long long)bytes,
                 (unsigned long long)room);
        room = round_up(bytes, ARENA_HUGE_PAGE);
    }
    act->memory = aligned_alloc(ARENA_HUGE_PAGE, (size_t)room);
    if (!act->memory)
        return helm_fail(err, HELM_E_NOMEM, "no memory for %llu bytes of activations",
                         (unsigned long long)room);
    act->bytes = room;
    madvise(act->memory, (size_t)room, MADV_HUGEPAGE);
    memset(act->memory, 0, (size_t)bytes);
    float *const base = act->memory;
    for (uint32_t b = BUFFER_X; b < BUFFER_LOGITS; b++) act->buffer[b] = base + place.at[b];
    const uint64_t table = (place.sine - place.cosine) / model_ropes(size->config);
    for (uint32_t i = 0; i < model_ropes(size->config); i++) {
        act->cosine[i] = base + place.cosine + i * table;
        act->sine[i] = base + place.sine + i * table;
    }
    for (int f = 0; f < FORMAT_COUNT; f++) {
        act->tiled[TILED_NORM][f] = by[f] ? (char *)act->memory + at[f] : NULL;
        act->tiled[TILED_JOINED][f] = by[f] && place.joined ? (char *)act->memory + joined_at[f] : NULL;
    }
    act->buffer[BUFFER_LOGITS] = logits;
    return 0;
}

void activations_free(struct activations *act)
{
    free(act->memory);
    memset(act, 0, sizeof *act);
}
