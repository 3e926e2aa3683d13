/* The gateway's users and their shares. See users.h. */
#include "client/gateway/users.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/share.h"

/* ---- the table -------------------------------------------------------------------------------------- */

struct user *users_enter(struct users *users, const char *name)
{
    struct user *user = users->first;
    while (user && strcmp(user->name, name) != 0) user = user->next;
    if (!user) {
        user = calloc(1, sizeof *user);
        if (!user) return NULL;
        STAILQ_INIT(&user->waiting);
        snprintf(user->name, sizeof user->name, "%s", name);
        user->next = users->first;
        users->first = user;
    }
    user->requests++;
    return user;
}

void users_leave(struct users *users, struct user *user)
{
    if (!user || --user->requests > 0) return;
    struct user **at = &users->first;
    while (*at != user) at = &(*at)->next;
    *at = user->next;
    free(user);
}

bool users_network_of(unsigned char address[16])
{
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    const bool four = memcmp(address, mapped, sizeof mapped) == 0;
    if (!four) memset(address + 8, 0, 8);
    return four;
}

void users_name_address(const char *address, char name[USERS_NAME])
{
    unsigned char bytes[16];
    char text[INET6_ADDRSTRLEN];
    snprintf(name, USERS_NAME, "%s", address);
    if (inet_pton(AF_INET6, address, bytes) != 1) return;
    if (users_network_of(bytes)) {
        inet_ntop(AF_INET, bytes + 12, name, USERS_NAME);
        return;
    }
    if (inet_ntop(AF_INET6, bytes, text, sizeof text)) snprintf(name, USERS_NAME, "%s/64", text);
}

/* ---- bodies ----------------------------------------------------------------------------------------- */

void users_add_body(struct users *users, struct user *user, size_t bytes)
{
    users->body_bytes += bytes;
    user->body_bytes += bytes;
}

void users_drop_body(struct users *users, struct user *user, size_t bytes)
{
    users->body_bytes -= bytes;
    user->body_bytes -= bytes;
}

struct user *users_largest(const struct users *users)
{
    struct user *largest = NULL;
    for (struct user *user = users->first; user; user = user->next)
        if (user->body_bytes > (largest ? largest->body_bytes : 0)) largest = user;
    return largest;
}

/* ---- generations ------------------------------------------------------------------------------------ */

/* As helmd shares its queue: half of the places are for whoever comes. Beyond that no user has more than its
 * share (common/base/share.h), and never more than half. */
int users_check_generations(const struct users *users, const struct user *user, uint32_t more,
                            struct helm_err *err)
{
    const uint32_t open = users->generations, places = USERS_GENERATIONS_MAX;
    uint32_t sharers = user->generations ? 0 : 1;
    for (const struct user *other = users->first; other; other = other->next)
        sharers += other->generations > 0;
    if (open + more > places)
        return helm_fail(err, HELM_E_BUSY, "%u of %u generations are open already: try again later", open,
                         places);
    uint32_t share = share_now(places, places / 16, open, more, sharers);
    if (share > places / 2) share = places / 2;
    if (user->generations + more <= (open + more > places / 2 ? share : places / 2)) return 0;
    return helm_fail(
        err, HELM_E_BUSY,
        "%u of the %u open generations are this user's, whose share is %u of %u: try again later",
        user->generations, open, share, places);
}

void users_open_generation(struct users *users, struct user *user)
{
    users->generations++;
    user->generations++;
}

void users_close_generation(struct users *users, struct user *user)
{
    users->generations--;
    user->generations--;
}

/* ---- the queue of bodies ---------------------------------------------------------------------------- */

void users_queue_open(struct users_queue *queue, uint32_t at_once)
{
    TAILQ_INIT(&queue->turns);
    queue->at_once = at_once;
}

void users_queue_push(struct users_queue *queue, struct exchange *exchange)
{
    struct user *user = exchange->whose;
    if (STAILQ_EMPTY(&user->waiting)) TAILQ_INSERT_TAIL(&queue->turns, user, turn);
    STAILQ_INSERT_TAIL(&user->waiting, exchange, job);
}

bool users_queue_remove(struct users_queue *queue, struct exchange *exchange)
{
    struct user *user = exchange->whose;
    const struct exchange *waits = STAILQ_FIRST(&user->waiting);
    while (waits && waits != exchange) waits = STAILQ_NEXT(waits, job);
    if (!waits) return false;
    STAILQ_REMOVE(&user->waiting, exchange, exchange, job);
    if (STAILQ_EMPTY(&user->waiting)) TAILQ_REMOVE(&queue->turns, user, turn);
    return true;
}

struct exchange *users_queue_take(struct users_queue *queue)
{
    struct user *user = TAILQ_FIRST(&queue->turns);
    while (user && user->reading >= queue->at_once) user = TAILQ_NEXT(user, turn);
    if (!user) return NULL;
    struct exchange *exchange = STAILQ_FIRST(&user->waiting);
    STAILQ_REMOVE_HEAD(&user->waiting, job);
    TAILQ_REMOVE(&queue->turns, user, turn);
    if (!STAILQ_EMPTY(&user->waiting)) TAILQ_INSERT_TAIL(&queue->turns, user, turn); /* after all others */
    user->reading++;
    return exchange;
}

void users_queue_done(struct user *user)
{
    user->reading--;
}
