/* Where a request's drafts come from (docs/speculation.md), and how many there are.
 *
 * Called by request.c, daemon/start/config.c and helm-plan, which has the same option. Pure. */
#pragma once

#include <stdint.h>

enum request_speculate {
    REQUEST_SPECULATE_DEFAULT,
    REQUEST_SPECULATE_OFF,
    REQUEST_SPECULATE_NGRAM, /* from the text before; as many as were right lately */
    REQUEST_SPECULATE_AUTO,  /* the same; the number with which a step makes the most tokens a second
                                (draft_count.h) */
    REQUEST_SPECULATE_MTP,   /* by the model's own layer of drafts; as many as are allowed */
    REQUEST_SPECULATE_DRAFT, /* by a draft model; as many as are allowed */
    REQUEST_SPECULATES
};
#define REQUEST_SPECULATE_CHOICES "off|ngram|auto|mtp" /* of helm-plan, which has no draft model */

/* "off", "ngram", "auto", "mtp", "draft". */
const char *request_speculate_name(enum request_speculate speculate);
enum request_speculate request_speculate_named(const char *name); /* one of the choices */

#define REQUEST_NO_DRAFTS UINT64_MAX /* --draft-tokens was not given */
/* Drafts of a sequence in a step at most, with `--speculate` and `--draft-tokens` as they were given. */
uint32_t request_speculate_drafts(enum request_speculate speculate, uint64_t given);
