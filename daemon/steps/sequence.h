/* A request's life: its tokens, where its KV stands, when what happened, and how it ends.
 *
 * Made by batcher_requests.c from a checked request; the tokens here are the truth, the arena's history row
 * is a copy that the workers use. That is why neither a dead worker nor a preemption loses a token. Owns its
 * token array. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/plan/engine_limits.h"
#include "common/sampling/sampling.h"
#include "common/shared/arena_layout.h"
#include "daemon/steps/draft_count.h"
#include "daemon/steps/request.h"
#include "proto/helm.pb-c.h"

#define SEQUENCE_NO_SLOT  UINT32_MAX
#define SEQUENCE_NO_SCOPE UINT64_MAX

/* The origin of a request. */
struct asker {
    uint64_t client;     /* client_socket's handle */
    uint64_t request_id; /* the client's */
    uint64_t sender;     /* the client's peer (client_socket.h); 0: not known */
    uint64_t peer;       /* whom it is for: the sender, or a user that it named */
    const char *user;    /* that user's name, "": the sender; borrowed for the call */
    bool admin;          /* may see and cancel all requests */
    bool names_users;    /* may name a user */
};

/* A snapshot that a row leaves: its position, and the number of the page that ends there; 0: not known
 * yet. */
struct sequence_state {
    uint32_t end;
    uint64_t page;
};

enum drafter_state {
    DRAFTER_NONE,  /* it has no request; from due_us on it may have one */
    DRAFTER_ASKED, /* tokens are to come */
    DRAFTER_THERE,
    DRAFTER_REFUSED /* for good */
};

struct sequence {
    uint64_t id;         /* the daemon's, shown to clients */
    uint64_t order;      /* arrival */
    uint64_t client;     /* client_socket's handle */
    uint64_t peer;       /* whom it is for, and */
    uint64_t sender;     /* that client's peer, as of struct asker */
    uint64_t request_id; /* the client's */
    uint32_t admission;  /* entry of its client (admission.h) */
    uint32_t slot;       /* SEQUENCE_NO_SLOT while it waits */
    uint32_t crashes;    /* workers that died while computing this, since it last got a token */

    uint32_t *tokens; /* prompt, then output */
    uint32_t token_count, token_capacity;
    uint32_t prompt_count, max_tokens;
    uint32_t cached;       /* tokens whose KV is in pages */
    uint32_t rung;         /* the same once the steps in flight are done */
    uint32_t asked;        /* tokens that these sample, after those that are known */
    uint32_t pages;        /* held */
    uint32_t window_first; /* its first page that has a page of windows, which all from there on have
                              (windows.h) */

    /* Sequences of one scope find each other's pages (prefix.h); SEQUENCE_NO_SCOPE: finds none */
    uint64_t scope;
    uint64_t restored_scope; /* of its peer's restored sessions, found as well; SEQUENCE_NO_SCOPE: none */
    /* Number of the last full page of `cached`, or the scope; apart: that is of the prompt alone */
    uint64_t page_end;
    /* in an invariant plan: pages with tokens after the prompt differ from those of another prompt with these
     * tokens; */
    bool apart;
    uint32_t list; /* of the plan, that computes the prompt */
    /* it has ended and is computed again, for later prompts that contain it (batcher_again.c); pages of its
     * old prompt */
    bool again;
    uint32_t again_from;
    /* Fixed states (snapshots.h): the snapshot that its next row begins with, pinned; the last one that it
     * began with or left, its position and, once that is known, its number; number of the newest in its
     * answer; and those that its row in flight leaves, until the first whose end is 0 */
    uint32_t state_from, state_at;
    uint32_t state_back; /* taken for the row that is formed: it leaves it in front of its drafts */
    uint32_t state_was;  /* state_at before the row in flight, which has drafts */
    uint64_t state_before, state_trail;
    /* It stays: its next row that computes all known tokens leaves one at its end, which is pinned, to go
     * back to when it is resumed; that one, and its position */
    bool keeps;
    uint32_t state_kept, state_kept_at;
    struct sequence_state left[ARENA_ROW_STATES];
    uint32_t mark[REQUEST_MARKS_MAX],
        mark_count; /* ends of pages of its prompt where it leaves one, rising */
    uint32_t reach; /* the most that `cached` was */
    uint32_t found; /* tokens of the prompt that it did not compute: their pages were there */

    /* Speculation (drafts.h): whether its rows have drafts, and a text that its answer may repeat, owned */
    bool speculates;
    /* its drafts are those of the model's layer, or of a draft model; where `quotes`, what was found instead
     */
    bool makes;
    bool priced; /* the number of its drafts follows prices and rates; else what was right last (drafts_next)
                  */
    bool quotes; /* priced, makes: drafts that were found go first, as the last tokens matched earlier ones */
    uint32_t *prediction, prediction_count;
    uint32_t draft[ENGINE_DRAFTS_MAX], draft_count; /* of the row that is formed, or in flight */
    uint32_t draft_most;                            /* that it gets next */
    uint32_t made[ENGINE_DRAFTS_MAX], made_count,
        made_at;    /* with this many known tokens the layer guessed those that follow */
    bool from_made; /* `draft` is */
    /* Where `made` comes from a draft model (batcher_drafter.c): its request there */
    struct {
        enum drafter_state state;
        bool measured;             /* what it is asked now counts for the price */
        uint32_t wanted;           /* drafts to ask for once the next token is known */
        uint32_t expects;          /* tokens that are still to come */
        uint64_t asked_us, due_us; /* when it was asked, or the first token came; when the answer is late */
    } drafter;
    struct draft_rate rate, made_rate; /* priced: how good those are that were found, and the layer's */
    /* priced: with these known tokens drafts were looked for, of which this is the first; 0: its token has
     * come. The rate learns from it whether or not the step has drafts */
    uint32_t looked_at, looked;
    bool looked_found;
    uint32_t redo; /* tokens up to here were computed, and right: those after `cached` are computed again */
    uint64_t drafted, accepted; /* so far */
    /* Seconds of steps with drafts, and what steps without would have taken for the same tokens by the plan's
     * forecast */
    double with_drafts_s, without_drafts_s;

    /* Embed: how the prompt's hidden states become `embedding`, [hidden], owned; NULL until they have.
     * Nothing is sampled. */
    enum request_pooling pooling;
    float *embedding;

    struct sampling_params sampling;
    uint32_t stop[REQUEST_STOP_MAX], stop_count;
    bool ignore_eos;
    bool stays; /* with all its tokens it waits for more (batcher_resume) instead of ending */
    char label[REQUEST_LABEL_MAX + 1], user[REQUEST_USER_MAX + 1];

    /* Bits of the tokens that the next one may be, owned; NULL: the request is not constrained */
    uint32_t *mask;
    bool mask_there;        /* it is the next token's, and stays until that is known */
    bool mask_late;         /* the last one took longer than others are kept waiting for it */
    uint64_t mask_asked_us; /* since when it is due; 0: it came with the request */

    uint64_t arrived_us, deadline_us;       /* 0: no deadline */
    uint64_t started_us, first_us, last_us; /* first slot, first and latest output token; 0: not yet */

    Helm__V1__FinishReason finish; /* UNSPECIFIED while it lives */
    char detail[HELM_ERR_TEXT];
};

/* Takes the prompt out of `request`. */
HELM_MUST_CHECK int sequence_create(struct request_generate *request, struct sequence **out,
                                    struct helm_err *err);
void sequence_free(struct sequence *seq);

static inline uint32_t sequence_output_count(const struct sequence *seq)
{
    return seq->token_count - seq->prompt_count;
}

/* Adds an output token at `now_us`; sets seq->finish if it is the last. */
HELM_MUST_CHECK int sequence_append(struct sequence *seq, uint32_t token, const int32_t *eos,
                                    uint32_t eos_count, uint64_t now_us, struct helm_err *err);
/* Once all of its prompt is computed: turns the pooled states (arena_pooled_of) into its embedding and ends
 * it. HELM_E_FORMAT: a number is not finite. */
HELM_MUST_CHECK int sequence_embed(struct sequence *seq, const double *pooled, uint32_t hidden,
                                   struct helm_err *err);
/* Whether it stays, and has all its tokens once the steps in flight are done. */
static inline bool sequence_is_waiting(const struct sequence *seq)
{
    return seq->stays && sequence_output_count(seq) + seq->asked >= seq->max_tokens;
}
/* Whether its next token may not be computed yet: the mask is missing, or in use; or it waits. */
static inline bool sequence_is_held(const struct sequence *seq)
{
    return sequence_is_waiting(seq) || (seq->mask && (!seq->mask_there || seq->asked > 0));
}
/* Replaces its output from number `keep` on, for a Resume. */
HELM_MUST_CHECK int sequence_resume(struct sequence *seq, const struct request_resume *resume,
                                    struct helm_err *err);
/* Ends it (first call wins). */
void sequence_finish(struct sequence *seq, Helm__V1__FinishReason reason, const char *detail);

void sequence_timings(const struct sequence *seq, uint64_t now_us, Helm__V1__Timings *timings);
/* "queued", "prefill", "decode". */
const char *sequence_state_name(const struct sequence *seq);
