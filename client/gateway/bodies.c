/* Bodies of requests while they are received and read: how much of all, and of one user's, is held. See
 * exchange.h.
 *
 * Called by server.c and exchange.c, in the loop. */
#include "client/gateway/gateway.h"
#include "client/gateway/jobs.h"

/* A body of the user that can be given up: the largest that is not whole, or the latest that no thread reads
 * yet, which is taken out of the queue. */
static struct exchange *give_up(struct gateway *g, const struct user *user)
{
    struct exchange *largest = NULL;
    for (struct exchange *ex = LIST_FIRST(&g->exchanges); ex; ex = LIST_NEXT(ex, link))
        if (ex->whose == user && ex->state == EXCHANGE_BODY &&
            ex->body.length > (largest ? largest->body.length : 0))
            largest = ex;
    for (struct exchange *ex = LIST_FIRST(&g->exchanges); ex && !largest; ex = LIST_NEXT(ex, link))
        if (ex->whose == user && ex->state == EXCHANGE_WORK && !ex->writes && jobs_withdraw(g->jobs, ex))
            largest = ex;
    return largest;
}

static void refuse_busy(struct exchange *ex, int status, const char *whose, size_t limit)
{
    refuse(&ex->refusal, status, "server_busy", NULL, "bodies of %s take at most %zu MiB: try again later",
           whose, limit >> 20);
    bodies_free(ex);
}

/* Makes room for `length` bytes more: the user that holds most gives way. false: that is the exchange's own
 * user. */
static bool make_room(struct exchange *ex, size_t length)
{
    struct gateway *g = ex->gateway;
    while (g->users.body_bytes + length > USERS_BODIES_MAX) {
        const struct user *most = users_largest(&g->users);
        struct exchange *other = NULL;
        if (most && most != ex->whose && most->body_bytes > ex->whose->body_bytes + length)
            other = give_up(g, most);
        if (!other) return false;
        refuse_busy(other, 503, "all users", USERS_BODIES_MAX);
        if (other->state == EXCHANGE_WORK) exchange_refuse(other);
    }
    return true;
}

void bodies_take(struct exchange *ex, const char *data, size_t length)
{
    if (ex->refusal.status) return; /* read on, so that the client reads why */
    if (ex->body.length + length > GATEWAY_BODY_MAX) {
        refuse(&ex->refusal, 413, "body_too_large", NULL, "a body of more than %zu bytes", GATEWAY_BODY_MAX);
    } else if (ex->whose->body_bytes + length > USERS_BODIES_OF_ONE) {
        refuse_busy(ex, 429, "one user", USERS_BODIES_OF_ONE);
    } else if (!make_room(ex, length)) {
        refuse_busy(ex, 503, "all users", USERS_BODIES_MAX);
    } else {
        cli_text_add(&ex->body, data, length);
        if (ex->body.failed)
            refuse(&ex->refusal, 503, "server_busy", NULL, "no memory for the body");
        else
            users_add_body(&ex->gateway->users, ex->whose, length);
    }
}

void bodies_free(struct exchange *ex)
{
    if (ex->whose) users_drop_body(&ex->gateway->users, ex->whose, ex->body.length);
    cli_text_free(&ex->body);
}
