/* Admission control. See admission.h. Called by batcher.c; owns the table of clients with open requests. */
#include "daemon/steps/admission.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/share.h"
#include "common/shared/arena_layout.h"

#define NONE       UINT32_MAX
#define SLOT_TURNS 2 /* between two slots there is a turn for new clients */

int admission_init(struct admission *admission, uint32_t slots, uint32_t queue_limit, struct helm_err *err)
{
    uint32_t places = slots + queue_limit;
    memset(admission, 0, sizeof *admission);
    admission->slots = slots;
    admission->queue_limit = queue_limit;
    admission->turn = SLOT_TURNS;
    admission->client = calloc(places, sizeof *admission->client);
    admission->peer = calloc(places, sizeof *admission->peer);
    admission->next = calloc(places, sizeof *admission->next);
    if (admission->client && admission->peer && admission->next) return 0;
    admission_free(admission);
    return helm_fail(err, HELM_E_NOMEM, "no memory for a queue of %u requests", places);
}

void admission_free(struct admission *admission)
{
    free(admission->client);
    free(admission->peer);
    free(admission->next);
    memset(admission, 0, sizeof *admission);
}

/* ---- places in the queue ------------------------------------------------------------------------------ */

/* A gateway's connection is a client of each peer that it asks for. */
static const struct admission_client *client_of(const struct admission *admission, uint64_t client,
                                                uint64_t peer)
{
    for (uint32_t i = 0; i < admission->used; i++) {
        const struct admission_client *c = &admission->client[i];
        if (c->open && c->client == client && admission->peer[c->peer].number == peer) return c;
    }
    return NULL;
}

static const struct admission_peer *peer_of(const struct admission *admission, uint64_t peer)
{
    for (uint32_t i = 0; i < admission->peers_used; i++)
        if (admission->peer[i].open && admission->peer[i].number == peer) return &admission->peer[i];
    return NULL;
}

int admission_check(const struct admission *admission, uint64_t client, uint64_t peer, struct helm_err *err)
{
    uint32_t queue = admission->queue_limit, places = admission->slots + queue, open = admission->open;
    if (open >= places)
        return helm_fail(err, HELM_E_BUSY,
                         "%u requests are open (%u at once and a queue of %u): try again later", open,
                         admission->slots, queue);
    if (open <= admission->slots + queue / 2) return 0;
    const struct admission_client *c = client_of(admission, client, peer);
    const struct admission_peer *p = peer_of(admission, peer);
    const uint32_t reserve = queue / 16, more_clients = open >= places - queue / 8;
    const uint32_t peers = admission->peers + !p, clients = (p ? p->clients : 0) + !c + more_clients;
    const uint32_t peers_share = share_now(places, reserve, open, 1, peers);
    const uint32_t clients_share = share_of(share_of(places - reserve, peers), clients);
    const uint32_t of_peer = p ? p->open : 0, of_client = c ? c->open : 0;
    const bool peers_fault = of_peer >= peers_share;
    if (!peers_fault && of_client < clients_share) return 0;
    return helm_fail(err, HELM_E_BUSY,
                     "%u of the %u open requests are this %s (%u at once and a queue of %u): with the "
                     "queue more than half full its share is %u, the rest is for others: try again later",
                     peers_fault ? of_peer : of_client, open, peers_fault ? "user's or key's" : "client's",
                     admission->slots, queue, peers_fault ? peers_share : clients_share);
}

/* Before the holder of the last slot given, after all others. */
static uint64_t present(const struct admission *admission)
{
    return admission->turn - 1;
}

static uint32_t enter_peer(struct admission *admission, uint64_t number)
{
    const struct admission_peer *p = peer_of(admission, number);
    uint32_t entry = p ? (uint32_t)(p - admission->peer) : 0;
    if (!p) {
        while (entry < admission->peers_used && admission->peer[entry].open) entry++;
        if (entry == admission->peers_used) admission->peers_used++;
        admission->peer[entry] = (struct admission_peer){.number = number, .turn = present(admission)};
        admission->peers++;
    }
    admission->peer[entry].open++;
    return entry;
}

uint32_t admission_enter(struct admission *admission, uint64_t client, uint64_t peer)
{
    const struct admission_client *c = client_of(admission, client, peer);
    uint32_t entry = c ? (uint32_t)(c - admission->client) : 0;
    const uint32_t its = enter_peer(admission, peer);
    admission->open++;
    if (!c) {
        /* one is free: there are as many entries as places */
        while (entry < admission->used && admission->client[entry].open) entry++;
        if (entry == admission->used) admission->used++;
        admission->client[entry] =
            (struct admission_client){.client = client, .peer = its, .turn = present(admission)};
        admission->clients++;
        admission->peer[its].clients++;
    }
    admission->client[entry].open++;
    return entry;
}

void admission_leave(struct admission *admission, uint32_t entry)
{
    struct admission_peer *p = &admission->peer[admission->client[entry].peer];
    admission->open--;
    if (--p->open == 0) admission->peers--;
    if (--admission->client[entry].open == 0) {
        admission->clients--;
        p->clients--;
    }
    while (admission->used > 0 && admission->client[admission->used - 1].open == 0) admission->used--;
    while (admission->peers_used > 0 && admission->peer[admission->peers_used - 1].open == 0)
        admission->peers_used--;
}

void admission_give_slot(struct admission *admission, uint32_t entry)
{
    struct admission_client *c = &admission->client[entry];
    admission->turn += SLOT_TURNS;
    c->turn = admission->peer[c->peer].turn = admission->turn;
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

/* As scheduler.c chooses. */
static const struct admission_peer *next_peer(const struct admission *admission)
{
    const struct admission_peer *best = NULL;
    for (uint32_t i = 0; i < admission->peers_used; i++) {
        const struct admission_peer *p = &admission->peer[i];
        if (p->open == 0 || p->waiting == 0) continue;
        if (!best || p->running < best->running ||
            (p->running == best->running && p->next_turn < best->next_turn))
            best = p;
    }
    return best;
}

/* The next client of the next peer with a waiting request. Among peers that came at the same time the oldest
 * request decides. */
static struct admission_client *admission_next(struct admission *admission)
{
    const struct admission_peer *peer = next_peer(admission);
    struct admission_client *best = NULL;
    for (uint32_t i = 0; i < admission->used; i++) {
        struct admission_client *c = &admission->client[i];
        const struct admission_peer *p = &admission->peer[c->peer];
        if (c->open == 0 || c->head == NONE) continue;
        if (p->running != peer->running || p->next_turn != peer->next_turn) continue;
        if (!best || c->running < best->running ||
            (c->running == best->running &&
             (c->next_turn < best->next_turn || (c->next_turn == best->next_turn && c->head < best->head))))
            best = c;
    }
    return best;
}

static void admission_lay_out(struct admission *admission, const struct admission_request *list,
                              uint32_t count, struct running *running)
{
    memset(running, 0, sizeof *running);
    for (uint32_t i = 0; i < admission->peers_used; i++) {
        struct admission_peer *p = &admission->peer[i];
        p->running = p->waiting = 0;
        p->next_turn = p->turn;
    }
    for (uint32_t i = 0; i < admission->used; i++) {
        struct admission_client *c = &admission->client[i];
        c->running = 0;
        c->head = c->tail = NONE;
        c->next_turn = c->turn;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct admission_client *c = &admission->client[list[i].entry];
        if (list[i].running) {
            running_add(running, list[i].entry);
            c->running++;
            admission->peer[c->peer].running++;
            continue;
        }
        admission->next[i] = NONE;
        if (c->head == NONE)
            c->head = i;
        else
            admission->next[c->tail] = i;
        c->tail = i;
        admission->peer[c->peer].waiting++;
    }
}

static void lay_out_end(struct admission *admission, struct running *running)
{
    struct admission_client *c = &admission->client[running_take(running)];
    c->running--;
    admission->peer[c->peer].running--;
}

static void lay_out_slot(struct admission *admission, struct admission_client *c, struct running *running,
                         uint64_t turn)
{
    struct admission_peer *p = &admission->peer[c->peer];
    c->head = admission->next[c->head];
    c->running++;
    p->running++;
    p->waiting--;
    c->next_turn = p->next_turn = turn;
    running_add(running, (uint32_t)(c - admission->client));
}

uint32_t admission_ends_before(struct admission *admission, const struct admission_request *list,
                               uint32_t count, uint32_t at)
{
    struct running running;
    uint64_t turn = admission->turn;
    if (list[at].running) return 0;
    admission_lay_out(admission, list, count, &running);
    for (uint32_t ends = 0;;) {
        if (running.count >= admission->slots) {
            lay_out_end(admission, &running);
            ends++;
        }
        struct admission_client *c = admission_next(admission); /* `at` waits, so there is one */
        if (c->head == at) return ends;
        lay_out_slot(admission, c, &running, turn += SLOT_TURNS);
    }
}
