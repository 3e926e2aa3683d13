/* Admission control. See admission.h. Called by batcher.c; owns the table of clients with open requests. */
#include "daemon/steps/admission.h"

#include <stdlib.h>
#include <string.h>

#include "common/shared/arena_layout.h"

#define NONE UINT32_MAX

int admission_init(struct admission *admission, uint32_t slots, uint32_t queue_limit, struct helm_err *err)
{
    uint32_t places = slots + queue_limit;
    memset(admission, 0, sizeof *admission);
    admission->slots = slots;
    admission->queue_limit = queue_limit;
    admission->client = calloc(places, sizeof *admission->client);
    admission->next = calloc(places, sizeof *admission->next);
    if (admission->client && admission->next) return 0;
    admission_free(admission);
    return helm_fail(err, HELM_E_NOMEM, "no memory for a queue of %u requests", places);
}

void admission_free(struct admission *admission)
{
    free(admission->client);
    free(admission->next);
    memset(admission, 0, sizeof *admission);
}

/* ---- places in the queue ------------------------------------------------------------------------------ */

static const struct admission_client *client_of(const struct admission *admission, uint64_t client)
{
    for (uint32_t i = 0; i < admission->used; i++)
        if (admission->client[i].open && admission->client[i].client == client) return &admission->client[i];
    return NULL;
}

int admission_check(const struct admission *admission, uint64_t client, struct helm_err *err)
{
    uint32_t queue = admission->queue_limit, places = admission->slots + queue, open = admission->open;
    if (open >= places)
        return helm_fail(err, HELM_E_BUSY,
                         "%u requests are open (%u at once and a queue of %u): try again later", open,
                         admission->slots, queue);
    if (open <= admission->slots + queue / 2) return 0;
    const struct admission_client *c = client_of(admission, client);
    uint32_t mine = c ? c->open : 0, sharers = admission->clients + !c;
    if (open >= places - queue / 8) sharers++;
    uint32_t share = places > sharers ? places / sharers : 1;
    if (mine < share) return 0;
    return helm_fail(err, HELM_E_BUSY,
                     "%u of the %u open requests are this client's (%u at once and a queue of %u): with the "
                     "queue more than half full its share is %u, the rest is for others: try again later",
                     mine, open, admission->slots, queue, share);
}

uint32_t admission_enter(struct admission *admission, uint64_t client)
{
    const struct admission_client *c = client_of(admission, client);
    uint32_t entry = c ? (uint32_t)(c - admission->client) : 0;
    admission->open++;
    if (!c) {
        /* one is free: there are as many entries as places */
        while (entry < admission->used && admission->client[entry].open) entry++;
        if (entry == admission->used) admission->used++;
        admission->client[entry] = (struct admission_client){.client = client};
        admission->clients++;
    }
    admission->client[entry].open++;
    return entry;
}

void admission_leave(struct admission *admission, uint32_t entry)
{
    admission->open--;
    if (--admission->client[entry].open > 0) return;
    admission->clients--;
    while (admission->used > 0 && admission->client[admission->used - 1].open == 0) admission->used--;
}

/* ---- places before one that waits --------------------------------------------------------------------- */

/* Clients of those that run, in the order in which they got their slots. */
struct running {
    uint32_t entry[ARENA_SLOTS_MAX], first, count;
};

static void running_add(struct running *running, uint32_t entry)
{
    running->entry[(running->first + running->count++) % ARENA_SLOTS_MAX] = entry;
}

static uint32_t running_take(struct running *running)
{
    uint32_t entry = running->entry[running->first];
    running->first = (running->first + 1) % ARENA_SLOTS_MAX;
    running->count--;
    return entry;
}

/* As scheduler.c chooses: the client with the fewest that run, of these the one that has waited longest. */
static struct admission_client *admission_next(struct admission *admission)
{
    struct admission_client *best = NULL;
    for (uint32_t i = 0; i < admission->used; i++) {
        struct admission_client *c = &admission->client[i];
        if (c->open == 0 || c->head == NONE) continue;
        if (!best || c->running < best->running || (c->running == best->running && c->head < best->head))
            best = c;
    }
    return best;
}

static void admission_lay_out(struct admission *admission, const struct admission_request *list,
                              uint32_t count, struct running *running)
{
    memset(running, 0, sizeof *running);
    for (uint32_t i = 0; i < admission->used; i++) {
        admission->client[i].running = 0;
        admission->client[i].head = admission->client[i].tail = NONE;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct admission_client *c = &admission->client[list[i].entry];
        if (list[i].running) {
            running_add(running, list[i].entry);
            c->running++;
            continue;
        }
        admission->next[i] = NONE;
        if (c->head == NONE)
            c->head = i;
        else
            admission->next[c->tail] = i;
        c->tail = i;
    }
}

uint32_t admission_ends_before(struct admission *admission, const struct admission_request *list,
                               uint32_t count, uint32_t at)
{
    struct running running;
    if (list[at].running) return 0;
    admission_lay_out(admission, list, count, &running);
    for (uint32_t ends = 0;;) {
        if (running.count >= admission->slots) {
            admission->client[running_take(&running)].running--;
            ends++;
        }
        struct admission_client *c = admission_next(admission); /* `at` waits, so there is one */
        if (c->head == at) return ends;
        c->head = admission->next[c->head];
        c->running++;
        running_add(&running, (uint32_t)(c - admission->client));
    }
}
