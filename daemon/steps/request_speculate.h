/* Where a request's drafts come from (docs/speculation.md), and how many there are.
 *
 * Called by request.c, daemon/start/config.c and helm-plan, which has the same option. Pure. */
#pragma once

#include <stdint.h>

#include "common/base/err.h"

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
#define REQUEST_DRAFT_EQUALS      "draft="
#define REQUEST_SPECULATE_CHOICES "off|ngram|auto|mtp|draft|" REQUEST_DRAFT_EQUALS

/* "off", "ngram", "auto", "mtp", "draft". */
const char *request_speculate_name(enum request_speculate speculate);

#define REQUEST_NO_DRAFTS UINT64_MAX /* --draft-tokens was not given */
/* Reads --speculate (NULL: not given; one of the choices), --draft-model (NULL: not given) and
 * --draft-tokens, which belong together. Each is then as it holds: the name of *kind, the draft model of
 * "draft=MODEL" too, and drafts of a sequence in a step at most. HELM_E_USAGE. */
HELM_MUST_CHECK int request_speculate_read(const char **speculate, const char **draft_model,
                                           uint64_t *draft_tokens, enum request_speculate *kind,
                                           struct helm_err *err);
