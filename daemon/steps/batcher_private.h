/* What batcher.c has that batcher_workers.c uses, too. Included by these two alone. */
#ifndef HELM_DAEMON_STEPS_BATCHER_PRIVATE_H
#define HELM_DAEMON_STEPS_BATCHER_PRIVATE_H

#include "daemon/steps/batcher.h"

/* A slot's row of the page table. */
uint32_t *batcher_row_of(const struct batcher *batcher, uint32_t slot);
/* The sequence's tokens into its slot's history. */
void batcher_write_history(const struct batcher *batcher, const struct sequence *seq);
/* The pages of the sequence that left the slot, which no step in flight has any more. */
void batcher_free_left(struct batcher *batcher, uint32_t slot);

#endif
