/* Kept grammars. See grammars.h. */
#include "client/gateway/grammars.h"

#include <stdlib.h>
#include <string.h>

struct grammars {
    pthread_mutex_t lock;
    struct kept_grammar *first;
    uint64_t uses;
};

int grammars_open(struct grammars **out, struct helm_err *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return helm_fail(err, HELM_E_NOMEM, "no memory for grammars");
    pthread_mutex_init(&(*out)->lock, NULL);
    return 0;
}

static void kept_free(struct kept_grammar *kept)
{
    helm_grammar_close(kept->grammar);
    free(kept->key);
    free(kept);
}

void grammars_close(struct grammars *g)
{
    if (!g) return;
    while (g->first) {
        struct kept_grammar *next = g->first->next;
        kept_free(g->first);
        g->first = next;
    }
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* The lock is held. */
static struct kept_grammar *find(struct grammars *g, const char *key)
{
    struct kept_grammar *kept = g->first;
    while (kept && strcmp(kept->key, key) != 0) kept = kept->next;
    if (!kept) return NULL;
    kept->users++;
    kept->used = ++g->uses;
    return kept;
}

struct kept_grammar *grammars_find(struct grammars *g, const char *key)
{
    pthread_mutex_lock(&g->lock);
    struct kept_grammar *kept = find(g, key);
    pthread_mutex_unlock(&g->lock);
    return kept;
}

/* Takes out the one used longest ago, if more than are kept are unused, or they hold too much. The lock is
 * held. */
static struct kept_grammar *take_oldest(struct grammars *g)
{
    struct kept_grammar **oldest = NULL, *out;
    uint32_t unused = 0;
    size_t bytes = 0;
    for (struct kept_grammar **at = &g->first; *at; at = &(*at)->next) {
        if ((*at)->users) continue;
        unused++;
        bytes += (*at)->grammar->states.counted; /* nobody changes that of an unused one */
        if (!oldest || (*at)->used < (*oldest)->used) oldest = at;
    }
    if (unused <= GRAMMARS_KEPT && bytes <= GRAMMARS_KEPT_BYTES) return NULL;
    out = *oldest;
    *oldest = out->next;
    return out;
}

int grammars_add(struct grammars *g, const char *key, struct helm_grammar *grammar, struct kept_grammar **out,
                 struct helm_err *err)
{
    struct kept_grammar *made = calloc(1, sizeof *made);
    char *copy = strdup(key);
    *out = NULL;
    if (!made || !copy) {
        free(made);
        free(copy);
        helm_grammar_close(grammar);
        return helm_fail(err, HELM_E_NOMEM, "no memory for a grammar");
    }
    *made = (struct kept_grammar){.grammar = grammar, .key = copy, .users = 1, .of = g};
    pthread_mutex_lock(&g->lock);
    *out = find(g, key);
    if (!*out) {
        made->used = ++g->uses;
        made->next = g->first;
        g->first = *out = made;
    }
    pthread_mutex_unlock(&g->lock);
    if (*out != made) kept_free(made);
    return 0;
}

void grammars_give_back(struct kept_grammar *kept)
{
    if (!kept) return;
    struct grammars *g = kept->of;
    pthread_mutex_lock(&g->lock);
    kept->users--;
    struct kept_grammar *old = take_oldest(g), *next = NULL;
    for (struct kept_grammar *last = old; last; last = last->next) last->next = take_oldest(g);
    pthread_mutex_unlock(&g->lock);
    for (; old; old = next) {
        next = old->next;
        kept_free(old);
    }
}
