/* The pages of the KV pool and their holders. See kv_pages.h. Called by batcher.c; owns the stack, the counts
 * and the index.
 *
 * The stack starts with the lowest page on top, so that a lightly used pool touches only its beginning. */
#include "daemon/steps/kv_pages.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

static void kv_pages_broken(const char *what, uint32_t page)
{
    log_error("kv pages: %s (page %u): aborting", what, page);
    abort();
}

int kv_pages_init(struct kv_pages *pages, uint32_t count, uint32_t page_tokens, struct helm_err *err)
{
    memset(pages, 0, sizeof *pages);
    if (count == 0) return helm_fail(err, HELM_E_LIMIT, "a KV pool needs at least one page");
    pages->stack = malloc((size_t)count * sizeof *pages->stack);
    pages->holders = calloc(count, sizeof *pages->holders);
    int rc = pages->stack && pages->holders
                 ? prefix_index_init(&pages->known, count, page_tokens, err)
                 : helm_fail(err, HELM_E_NOMEM, "no memory to track %u KV pages", count);
    if (rc) {
        kv_pages_free(pages);
        return rc;
    }
    for (uint32_t i = 0; i < count; i++) pages->stack[i] = count - 1 - i;
    pages->count = pages->free_count = count;
    return 0;
}

void kv_pages_free(struct kv_pages *pages)
{
    free(pages->stack);
    free(pages->holders);
    prefix_index_free(&pages->known);
    windows_free(&pages->windows);
    memset(pages, 0, sizeof *pages);
}

/* Onto the stack: a page that is neither held nor known. */
static void kv_pages_push(struct kv_pages *pages, uint32_t page)
{
    pages->stack[pages->free_count++ - pages->known.resting] = page;
}

int kv_pages_grow(struct kv_pages *pages, uint32_t *row, uint32_t *held, uint32_t want)
{
    if (want <= *held) return 0;
    if (want - *held > pages->free_count) return HELM_E_BUSY;
    /* All of them before one is taken: those of a sequence come to lie in its order on the stack. */
    for (; pages->free_count - pages->known.resting < want - *held; pages->evicted++)
        kv_pages_forget(pages, pages->known.oldest);
    while (*held < want) {
        uint32_t page = pages->stack[--pages->free_count - pages->known.resting];
        if (page >= pages->count || pages->holders[page] != 0)
            kv_pages_broken("a free page has a holder", page);
        pages->holders[page] = 1;
        row[(*held)++] = page;
    }
    return 0;
}

void kv_pages_leave(struct kv_pages *pages, uint32_t page, uint32_t front)
{
    if (page >= pages->count || pages->holders[page] == 0)
        kv_pages_broken("a dropped page has no holder", page);
    if (--pages->holders[page] != 0) return;
    if (prefix_index_number(&pages->known, page)) {
        pages->free_count++;
        prefix_index_rest_before(&pages->known, page, front);
    } else {
        kv_pages_push(pages, page);
    }
}

void kv_pages_shrink(struct kv_pages *pages, const uint32_t *row, uint32_t *held, uint32_t want)
{
    while (*held > want) kv_pages_leave(pages, row[--*held], PREFIX_NO_PAGE);
}

uint32_t kv_pages_take_empty(struct kv_pages *pages, uint32_t last)
{
    uint32_t page, held = 0;
    if (!pages->free_count) return PREFIX_NO_PAGE;
    if (pages->free_count == pages->known.resting && pages->known.oldest == last) return PREFIX_NO_PAGE;
    return kv_pages_grow(pages, &page, &held, 1) ? PREFIX_NO_PAGE : page;
}

uint32_t kv_pages_holders(const struct kv_pages *pages, uint32_t page)
{
    return page < pages->count ? pages->holders[page] : 0;
}

void kv_pages_take_known(struct kv_pages *pages, uint32_t *row, uint32_t *held, uint32_t want,
                         const uint32_t *tokens, uint64_t *end)
{
    for (; *held < want; tokens += pages->known.page_tokens) {
        const uint32_t page = prefix_index_find(&pages->known, *end, tokens);
        if (page == PREFIX_NO_PAGE) return;
        if (pages->holders[page] == UINT16_MAX) kv_pages_broken("too many holders", page);
        if (pages->holders[page]++ == 0) {
            prefix_index_wake(&pages->known, page);
            pages->free_count--;
        }
        row[(*held)++] = page;
        *end = prefix_index_number(&pages->known, page);
    }
}

uint32_t kv_pages_shared(const struct kv_pages *pages, uint32_t count, const uint32_t *tokens, uint64_t end)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t page =
            prefix_index_find(&pages->known, end, tokens + (size_t)i * pages->known.page_tokens);
        if (page == PREFIX_NO_PAGE || !pages->holders[page]) return i;
        end = prefix_index_number(&pages->known, page);
    }
    return count;
}

uint32_t kv_pages_known(const struct kv_pages *pages, uint32_t count, const uint32_t *tokens, uint64_t end)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t page =
            prefix_index_find(&pages->known, end, tokens + (size_t)i * pages->known.page_tokens);
        if (page == PREFIX_NO_PAGE) return i;
        end = prefix_index_number(&pages->known, page);
    }
    return count;
}

uint64_t kv_pages_make_known(struct kv_pages *pages, uint32_t page, uint64_t before, const uint32_t *tokens)
{
    const uint32_t other = prefix_index_find(&pages->known, before, tokens);
    uint64_t number = 0;
    if (page >= pages->count || pages->holders[page] == 0)
        kv_pages_broken("a page becomes known and has no holder", page);
    if (other != PREFIX_NO_PAGE) {
        number = prefix_index_number(&pages->known, other);
        if (pages->holders[other]) {
            windows_move(&pages->windows, page, other);
            return number;
        }
        kv_pages_forget(pages, other);
    }
    return prefix_index_add(&pages->known, page, before, tokens, number);
}

void kv_pages_forget(struct kv_pages *pages, uint32_t page)
{
    if (!prefix_index_number(&pages->known, page)) return;
    prefix_index_remove(&pages->known, page);
    windows_forget(&pages->windows, page);
    if (pages->holders[page]) return;
    pages->free_count--;
    kv_pages_push(pages, page);
}

void kv_pages_forget_all(struct kv_pages *pages)
{
    for (uint32_t page = 0; page < pages->count; page++) kv_pages_forget(pages, page);
}
