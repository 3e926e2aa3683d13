/* With an invariant plan: answers that are computed again, as prompts. See batcher.h. Called by batcher.c,
 * and by batcher_requests.c when a request comes.
 *
 * An answer is computed a token at a time, which rounds otherwise than a prompt of the same tokens. So the
 * next turn of a chat, whose prompt contains the answer, finds none of the answer's pages. While no request
 * is open, helmd computes them: the sequence that ended stays as a prompt of all its whole pages, of which
 * those of its own prompt are there. It is an internal request: no client sees it, it samples nothing, and it
 * leaves before the first request that comes. Pages that it has computed by then stay known, and the rest is
 * computed later. */
#include <stdlib.h>
#include <string.h>

#include "common/plan/schedule.h"
#include "daemon/steps/batcher.h"

/* A request that comes waits at most for the step in flight, so such a step has this part of the tokens of
 * one beside which others decode. */
#define AGAIN_PART   4
#define AGAIN_TOKENS 16 /* but of no fewer tokens */

static uint32_t page_tokens_of(const struct batcher *batcher)
{
    return arena_header_of(batcher->with.arena)->kv.page_tokens;
}

static struct sequence *again_take_first(struct batcher *batcher)
{
    struct sequence *first = batcher->again[0];
    memmove(batcher->again, batcher->again + 1, --batcher->again_count * sizeof *batcher->again);
    return first;
}

static void again_add(struct batcher *batcher, struct sequence *seq)
{
    if (batcher->again_count == BATCHER_AGAIN_MAX) sequence_free(again_take_first(batcher));
    batcher->again[batcher->again_count++] = seq;
}

/* Whether an answer has pages that its prompt does not fill, and is one that a prompt may go on after. */
static bool is_worth_it(const struct batcher *batcher, const struct sequence *seq)
{
    const uint32_t page_tokens = page_tokens_of(batcher);
    const bool whole = seq->finish == HELM__V1__FINISH_REASON__FINISH_EOS ||
                       seq->finish == HELM__V1__FINISH_REASON__FINISH_STOP ||
                       seq->finish == HELM__V1__FINISH_REASON__FINISH_LENGTH;
    return seq->apart && whole &&
           prefix_scope(batcher->with.sharing, seq->peer, seq->list) != SEQUENCE_NO_SCOPE &&
           seq->token_count / page_tokens > seq->prompt_count / page_tokens;
}

void batcher_again_take(struct batcher *batcher, struct sequence *seq)
{
    const uint32_t page_tokens = page_tokens_of(batcher);
    if (seq->again) {
        if (seq->finish == HELM__V1__FINISH_REASON__FINISH_CANCELLED) {
            seq->finish = HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED;
            again_add(batcher, seq);
            return;
        }
        sequence_free(seq);
        return;
    }
    if (!is_worth_it(batcher, seq)) {
        sequence_free(seq);
        return;
    }
    seq->again = true;
    seq->again_from = seq->prompt_count / page_tokens;
    seq->token_count = seq->prompt_count = seq->token_count / page_tokens * page_tokens;
    seq->max_tokens = 1;
    seq->finish = HELM__V1__FINISH_REASON__FINISH_UNSPECIFIED;
    seq->id = seq->request_id = 0;
    seq->client = UINT64_MAX;
    seq->deadline_us = 0;
    seq->crashes = seq->reach = seq->found = 0;
    free(seq->mask);
    seq->mask = NULL;
    seq->list = plan_prompt_list(batcher->with.plan, seq->prompt_count);
    seq->scope = prefix_scope(batcher->with.sharing, seq->peer, seq->list);
    seq->restored_scope = prefix_restored_scope(batcher->with.sharing, seq->peer, seq->list);
    prefix_begin(seq);
    again_add(batcher, seq);
}

bool batcher_again_begin(struct batcher *batcher)
{
    if (batcher->seq_count || batcher->in_flight || batcher->move.flags) return false;
    while (batcher->again_count) {
        struct sequence *seq = batcher->again[0];
        const uint32_t pages = seq->prompt_count / page_tokens_of(batcher);
        const uint32_t known = kv_pages_known(&batcher->pages, pages, seq->tokens, seq->scope);
        if (known == pages ||
            known < seq->again_from) { /* all there; or more than the answer is to be computed */
            sequence_free(again_take_first(batcher));
            continue;
        }
        batcher->seq[batcher->seq_count++] = again_take_first(batcher);
        return true;
    }
    return false;
}

uint32_t batcher_again_tokens(const struct batcher *batcher, uint32_t step_tokens)
{
    if (batcher->seq_count != 1 || !batcher->seq[0]->again) return step_tokens;
    const uint32_t few =
        observe_prompt_tokens(batcher->with.observe, 1, batcher->seq[0]->token_count) / AGAIN_PART;
    const uint32_t most = few < AGAIN_TOKENS ? AGAIN_TOKENS : few;
    return few && most < step_tokens ? most : step_tokens;
}

void batcher_again_yield(struct batcher *batcher)
{
    for (uint32_t i = 0; i < batcher->seq_count; i++)
        if (batcher->seq[i]->again)
            sequence_finish(batcher->seq[i], HELM__V1__FINISH_REASON__FINISH_CANCELLED, "a request has come");
}

void batcher_again_free(struct batcher *batcher)
{
    while (batcher->again_count) sequence_free(again_take_first(batcher));
}
