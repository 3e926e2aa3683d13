/* Sessions: KV pages that clients take out of the cache and put back (proto/helm.proto, SessionSave and what
 * follows).
 *
 * Called by serve_session.c (requests), loop.c (time, lost workers, clients that leave) and batcher.c through
 * its sink (a page was moved). Owns the open sessions with a page's bytes each; pages are kv_pages.c's, and
 * none is held while a client is waited for. Rules:
 *   1. Saving goes page by page along the tokens, each looked up when its turn comes. One that was given to
 *      others meanwhile ends the session; what was read before is whole.
 *   2. A page that is restored is complete, and its numbers are finite, before a page is taken for it. It is
 *      known in the scope of the sender's peer alone (prefix_restored_scope), is kept like a page without
 *      holders, and is reused before those in front of it.
 *   3. Restoring empties pages that are kept for others, the oldest first, and never its own: then it is
 *      over.
 *   4. In an invariant plan pages come back to where their bits are those that it would compute: of the same
 *      origin, and found by prompts of the list that they are of.
 *   5. With fixed states a session ends where a snapshot is, which comes after its pages as one more
 *      (snapshots.h).
 *   6. With one tier a page comes and goes through the GPU worker (batcher_move), one session's at a time.
 * Everything is answered through the sink, some of it later. */
#pragma once

#include "daemon/steps/batcher.h"
#include "daemon/steps/session_page.h"

#define SESSIONS_MAX     4 /* open at once; of one peer one */
#define SESSIONS_IDLE_US ((uint64_t)10 * 1000000)

/* One of its last pages in the KV pool, and that page's number then; number 0: not seen yet. */
struct session_tail {
    uint32_t page;
    uint64_t number;
};

struct session {
    uint64_t id;        /* 0: this entry is free */
    struct asker asker; /* its opener; from then on request_id is that of the request to be answered */
    bool saves;
    uint32_t *tokens; /* owned */
    uint32_t pages;   /* whole ones of the tokens; saving: that are known */
    uint32_t first;   /* restoring: those in front are there already */

    uint32_t page;   /* that is read or written */
    uint64_t offset; /* up to where */
    uint64_t before; /* number of the page in front of it, or the scope */
    uint32_t front;  /* that page; PREFIX_NO_PAGE at the beginning */
    uint64_t scope;
    uint32_t list;        /* of an invariant plan, that computed the tokens or would, */
    uint64_t origin;      /* the digest of all that decides their pages' bits (session_page.h) */
    unsigned char *bytes; /* of the page; owned */
    bool loaded;          /* saving: they are there */

    struct session_tail *tail; /* those whose windows are a part of its state (session_windows.h); owned */
    uint32_t window;           /* of these, that is read or written */

    /* STEP_KV_OUT or STEP_KV_IN, and STEP_KV_WINDOW: it waits for a move, or is moved; 0: it waits for its
     * client */
    uint32_t move;
    bool moves;
    uint32_t held;     /* the page that is moved */
    uint64_t heard_us; /* when its client last sent a request, or was answered */
};

/* The answers of a session. `asker`: borrowed for the call. */
struct sessions_sink {
    void *context;
    void (*piece)(void *context, const struct asker *asker, const struct session *s, uint32_t bytes);
    void (*stored)(void *context, const struct asker *asker, uint32_t pages, bool full);
    void (*refuse)(void *context, const struct asker *asker, Helm__V1__ErrorCode code, const char *text);
    /* Its client has one session less. */
    void (*closed)(void *context, uint64_t client);
};

struct sessions {
    struct batcher *batcher;       /* borrowed */
    const struct workers *workers; /* borrowed */
    struct sessions_sink sink;
    struct request_shape shape; /* the daemon's own */
    struct session_page cells, windows;
    /* Bytes that come after the pages; 0: nothing does. They are a snapshot of fixed states, then windows */
    uint64_t state_bytes, snapshot_bytes;
    struct session session[SESSIONS_MAX];
    uint64_t next_id;
    uint32_t turn; /* of the session whose move is next */
};

/* `identity`: of the model. */
HELM_MUST_CHECK int sessions_init(struct sessions *all, struct batcher *batcher,
                                  const struct workers *workers, uint64_t identity,
                                  const struct sessions_sink *sink, struct helm_err *err);
/* Ends all without an answer. */
void sessions_free(struct sessions *all);

/* Opens a session; takes request->tokens. NULL: refused, the sink was told. */
const struct session *sessions_save(struct sessions *all, const struct asker *asker,
                                    struct request_session *request, uint64_t now_us);
const struct session *sessions_restore(struct sessions *all, const struct asker *asker,
                                       struct request_session *request, uint64_t now_us);
void sessions_read(struct sessions *all, const struct asker *asker, uint64_t id, uint64_t now_us);
void sessions_write(struct sessions *all, const struct asker *asker, const struct request_session *request,
                    uint64_t now_us);
void sessions_end(struct sessions *all, const struct asker *asker, uint64_t id);

/* The batcher's move is done. */
void sessions_moved(struct sessions *all, uint64_t now_us);
/* Workers were lost: every session ends. Called before the batcher is told. */
void sessions_lost(struct sessions *all, const char *why);
/* Whether any is open. */
bool sessions_open(const struct sessions *all);
void sessions_client_gone(struct sessions *all, uint64_t client);
/* Ends those whose clients are silent; returns the next time at which one would be, 0: none. */
uint64_t sessions_apply_deadlines(struct sessions *all, uint64_t now_us);
