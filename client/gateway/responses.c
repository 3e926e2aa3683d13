/* Kept responses. See responses.h. Owns them; one lock guards owners, lists, counts and bytes. */
#include "client/gateway/responses.h"
#include "common/base/grow.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#define BYTES_MIN ((size_t)1 << 10) /* counted for each, so that empty ones are bounded too */

struct owner {
    struct owner *next;
    char *name;
    size_t bytes, responses;       /* of those that exist, listed or not */
    TAILQ_HEAD(, response) listed; /* oldest first */
};

struct response {
    struct responses *of;
    struct owner *owner;
    TAILQ_ENTRY(response) link;
    struct response *before;
    size_t bytes, holders; /* being listed counts as one */
    struct response_items items;
    char *text;
    size_t length;
    char id[RESPONSES_ID];
};

struct responses {
    pthread_mutex_t lock;
    struct owner *owners;
    size_t bytes, bytes_max;
};

/* ---- items ------------------------------------------------------------------------------------------ */

bool response_items_add(struct response_items *items, const char *id, const char *text, size_t length)
{
    if (!GROW(items->item, items->count, items->space)) return false;
    struct response_item item = {strdup(id), strndup(text, length)};
    if (!item.id || !item.text) {
        free(item.id);
        free(item.text);
        return false;
    }
    items->item[items->count++] = item;
    return true;
}

void response_items_free(struct response_items *items)
{
    for (size_t i = 0; i < items->count; i++) {
        free(items->item[i].id);
        free(items->item[i].text);
    }
    free(items->item);
    *items = (struct response_items){0};
}

/* ---- the lock is held ------------------------------------------------------------------------------- */

static void drop_owner(struct responses *r, struct owner *owner)
{
    struct owner **at = &r->owners;
    while (*at != owner) at = &(*at)->next;
    *at = owner->next;
    free(owner->name);
    free(owner);
}

/* One holder less. The last one frees it, and is one less of the response before it. */
static void let_go(struct response *response)
{
    while (response && --response->holders == 0) {
        struct response *before = response->before;
        struct owner *owner = response->owner;
        response->of->bytes -= response->bytes;
        owner->bytes -= response->bytes;
        if (--owner->responses == 0) drop_owner(response->of, owner);
        response_items_free(&response->items);
        free(response->text);
        free(response);
        response = before;
    }
}

static struct owner *find_owner(struct responses *r, const char *name)
{
    struct owner *owner = r->owners;
    while (owner && strcmp(owner->name, name) != 0) owner = owner->next;
    return owner;
}

static struct response *find(struct responses *r, const char *name, const char *id)
{
    const struct owner *owner = find_owner(r, name);
    struct response *response = owner ? TAILQ_FIRST(&owner->listed) : NULL;
    while (response && strcmp(response->id, id) != 0) response = TAILQ_NEXT(response, link);
    return response;
}

static void unlist(struct response *response)
{
    TAILQ_REMOVE(&response->owner->listed, response, link);
    let_go(response);
}

/* A response that a request or a later response holds keeps its bytes for now, so more responses go. */
static void keep_bound(struct responses *r)
{
    while (r->bytes > r->bytes_max) {
        struct owner *most = NULL;
        for (struct owner *o = r->owners; o; o = o->next)
            if (!TAILQ_EMPTY(&o->listed) && (!most || o->bytes > most->bytes)) most = o;
        if (!most) return;
        unlist(TAILQ_FIRST(&most->listed));
    }
}

/* ---- calls ------------------------------------------------------------------------------------------ */

int responses_open(size_t bytes, struct responses **out, struct helm_err *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return helm_fail(err, HELM_E_NOMEM, "no memory for responses");
    (*out)->bytes_max = bytes;
    pthread_mutex_init(&(*out)->lock, NULL);
    return 0;
}

void responses_close(struct responses *r)
{
    if (!r) return;
    r->bytes_max = 0;
    keep_bound(r);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

bool responses_keep_any(const struct responses *r)
{
    return r && r->bytes_max;
}

struct response *responses_find(struct responses *r, const char *owner, const char *id)
{
    if (!r) return NULL;
    pthread_mutex_lock(&r->lock);
    struct response *response = find(r, owner, id);
    if (response) response->holders++;
    pthread_mutex_unlock(&r->lock);
    return response;
}

void responses_give_back(struct response *response)
{
    if (!response) return;
    struct responses *r = response->of;
    pthread_mutex_lock(&r->lock);
    let_go(response);
    pthread_mutex_unlock(&r->lock);
}

char *responses_copy_item(struct responses *r, const char *name, const char *id)
{
    char *copy = NULL;
    if (!r) return NULL;
    pthread_mutex_lock(&r->lock);
    const struct owner *owner = find_owner(r, name);
    for (const struct response *response = owner ? TAILQ_FIRST(&owner->listed) : NULL; response && !copy;
         response = TAILQ_NEXT(response, link))
        for (size_t i = 0; i < response->items.count && !copy; i++)
            if (strcmp(response->items.item[i].id, id) == 0) copy = strdup(response->items.item[i].text);
    pthread_mutex_unlock(&r->lock);
    return copy;
}

bool responses_forget(struct responses *r, const char *owner, const char *id)
{
    if (!r) return false;
    pthread_mutex_lock(&r->lock);
    struct response *response = find(r, owner, id);
    if (response) unlist(response);
    pthread_mutex_unlock(&r->lock);
    return response != NULL;
}

static size_t bytes_of(const struct response *response)
{
    size_t bytes = BYTES_MIN + response->length + response->items.space * sizeof *response->items.item;
    for (size_t i = 0; i < response->items.count; i++)
        bytes += strlen(response->items.item[i].id) + strlen(response->items.item[i].text) + 2;
    return bytes;
}

static struct owner *open_owner(struct responses *r, const char *name)
{
    struct owner *owner = find_owner(r, name);
    if (owner) return owner;
    owner = calloc(1, sizeof *owner);
    if (owner) owner->name = strdup(name);
    if (!owner || !owner->name) {
        free(owner);
        return NULL;
    }
    TAILQ_INIT(&owner->listed);
    owner->next = r->owners;
    r->owners = owner;
    return owner;
}

void responses_add(struct responses *r, const struct response_new *new)
{
    struct response *made = calloc(1, sizeof *made);
    char *text = strndup(new->text, new->length);
    pthread_mutex_lock(&r->lock);
    struct owner *owner = made && text ? open_owner(r, new->owner) : NULL;
    if (!owner) {
        free(made);
        free(text);
        let_go(new->before);
        pthread_mutex_unlock(&r->lock);
        response_items_free(new->items);
        return;
    }
    *made = (struct response){.of = r,
                              .owner = owner,
                              .before = new->before,
                              .holders = 1,
                              .items = *new->items,
                              .text = text,
                              .length = new->length};
    *new->items = (struct response_items){0};
    strncpy(made->id, new->id, sizeof made->id - 1);
    made->bytes = bytes_of(made);
    owner->bytes += made->bytes;
    owner->responses++;
    r->bytes += made->bytes;
    TAILQ_INSERT_TAIL(&owner->listed, made, link);
    if (made->bytes > r->bytes_max) unlist(made); /* nothing else goes for it */
    keep_bound(r);
    pthread_mutex_unlock(&r->lock);
}

/* ---- of a held one ---------------------------------------------------------------------------------- */

const char *response_text(const struct response *response, size_t *length)
{
    *length = response->length;
    return response->text;
}

const struct response_items *response_items(const struct response *response)
{
    return &response->items;
}

const struct response *response_before(const struct response *response)
{
    return response->before;
}
