/* All memory of a load, line by line, before any of it is taken: what fits is served, what does not is
 * refused.
 *
 * Called by main.c once, before the arena exists. Chooses what was left open (context, KV pages) so that the
 * sum stays under the limit: the lowest of --host-memory, the cgroup's and the machine's free memory. Pure
 * but for the log; the limits are passed in, so tests can state any machine. */
#ifndef HELM_DAEMON_LEDGER_H
#define HELM_DAEMON_LEDGER_H

#include "common/arena.h"
#include "common/cgroup.h"
#include "common/err.h"
#include "common/model/model.h"
#include "common/plan.h"

#define LEDGER_CTX_DEFAULT_MAX 8192
#define LEDGER_CTX_LEAST       256
#define LEDGER_POOL_TOKENS     16384 /* in the KV pool where nobody asked for more: it is populated at load */

struct ledger_wish {
    enum dtype kv_dtype;
    uint32_t slots, step_tokens;
    uint32_t ctx;               /* 0: choose */
    uint32_t page_count;        /* 0: choose (--kv-tokens or a plan from a file states it) */
    uint32_t page_tokens;       /* a power of two */
    uint32_t threads;           /* for the estimate of private buffers */
    uint64_t host_memory_bytes; /* 0: not stated */
};

/* Fills in plan's sizes and host ledger, and the arena's. HELM_E_CAPACITY names every line and the limit. */
HELM_MUST_CHECK int ledger_fit(const struct model *model, const struct ledger_wish *wish,
                               const struct cgroup_memory *memory, struct plan *plan, struct arena_spec *spec,
                               struct helm_err *err);
/* One log line for each line of the ledger. */
void ledger_log(const struct ledger *ledger);

#endif
