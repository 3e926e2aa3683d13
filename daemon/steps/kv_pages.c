/* Which pages of the host KV pool are free. See kv_pages.h. Called by batcher.c; owns the stack and the
 * counts.
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

int kv_pages_init(struct kv_pages *pages, uint32_t count, struct helm_err *err)
{
    memset(pages, 0, sizeof *pages);
    if (count == 0) return helm_fail(err, HELM_E_LIMIT, "a KV pool needs at least one page");
    pages->stack = malloc((size_t)count * sizeof *pages->stack);
    pages->holders = calloc(count, sizeof *pages->holders);
    if (!pages->stack || !pages->holders) {
        kv_pages_free(pages);
        return helm_fail(err, HELM_E_NOMEM, "no memory to track %u KV pages", count);
    }
    for (uint32_t i = 0; i < count; i++) pages->stack[i] = count - 1 - i;
    pages->count = pages->free_count = count;
    return 0;
}

void kv_pages_free(struct kv_pages *pages)
{
    free(pages->stack);
    free(pages->holders);
    memset(pages, 0, sizeof *pages);
}

int kv_pages_grow(struct kv_pages *pages, uint32_t *row, uint32_t *held, uint32_t want)
{
    if (want <= *held) return 0;
    if (want - *held > pages->free_count) return HELM_E_BUSY;
    while (*held < want) {
        uint32_t page = pages->stack[--pages->free_count];
        if (page >= pages->count || pages->holders[page] != 0)
            kv_pages_broken("a free page has a holder", page);
        pages->holders[page] = 1;
        row[(*held)++] = page;
    }
    return 0;
}

void kv_pages_shrink(struct kv_pages *pages, const uint32_t *row, uint32_t *held, uint32_t want)
{
    while (*held > want) {
        uint32_t page = row[--*held];
        if (page >= pages->count || pages->holders[page] == 0)
            kv_pages_broken("a dropped page has no holder", page);
        if (--pages->holders[page] == 0) pages->stack[pages->free_count++] = page;
    }
}

int kv_pages_share(struct kv_pages *pages, uint32_t page)
{
    if (page >= pages->count || pages->holders[page] == 0)
        kv_pages_broken("a shared page has no holder", page);
    if (pages->holders[page] == UINT16_MAX) return HELM_E_LIMIT;
    pages->holders[page]++;
    return 0;
}

uint32_t kv_pages_holders(const struct kv_pages *pages, uint32_t page)
{
    return page < pages->count ? pages->holders[page] : 0;
}
