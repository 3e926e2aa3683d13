/* Names and default numbers of drafts. See request_speculate.h. Owns nothing. */
#include "daemon/steps/request_speculate.h"

#include <stdbool.h>
#include <string.h>

#include "common/plan/engine_limits.h"

static const struct {
    const char *name;
    uint32_t drafts; /* of a sequence in a step, unless --draft-tokens says otherwise */
} kinds[REQUEST_SPECULATES] = {
    [REQUEST_SPECULATE_DEFAULT] = {"default", 0}, [REQUEST_SPECULATE_OFF] = {"off", 0},
    [REQUEST_SPECULATE_NGRAM] = {"ngram", 4},     [REQUEST_SPECULATE_AUTO] = {"auto", ENGINE_DRAFTS_MAX},
    [REQUEST_SPECULATE_MTP] = {"mtp", 3},         [REQUEST_SPECULATE_DRAFT] = {"draft", 4}};

const char *request_speculate_name(enum request_speculate speculate)
{
    return kinds[speculate].name;
}

/* One of the choices. */
static enum request_speculate named(const char *name)
{
    int k = REQUEST_SPECULATE_OFF;
    while (k + 1 < REQUEST_SPECULATES && strcmp(name, kinds[k].name) != 0) k++;
    return (enum request_speculate)k;
}

int request_speculate_read(const char **speculate, const char **draft_model, uint64_t *draft_tokens,
                           enum request_speculate *kind, struct helm_err *err)
{
    const size_t equals = strlen(REQUEST_DRAFT_EQUALS);
    if (*speculate && strncmp(*speculate, REQUEST_DRAFT_EQUALS, equals) == 0) {
        if (*draft_model)
            return helm_fail(err, HELM_E_USAGE, "--speculate %.200s and --draft-model: give one of them",
                             *speculate);
        *draft_model = *speculate + equals;
        *speculate = "draft";
    }
    if (!*speculate) *speculate = *draft_model ? "draft" : "off";
    *kind = named(*speculate);
    if (*kind == REQUEST_SPECULATE_DRAFT && !*draft_model)
        return helm_fail(err, HELM_E_USAGE, "--speculate draft needs --draft-model MODEL");
    if (*draft_model && !**draft_model)
        return helm_fail(err, HELM_E_USAGE, "--draft-model: the model has no name");
    if (*kind == REQUEST_SPECULATE_MTP && *draft_model)
        return helm_fail(err, HELM_E_USAGE,
                         "--speculate mtp takes drafts from the model itself: it has no --draft-model");
    /* with a draft model, requests may ask for drafts even where they have none unless they do */
    const bool asks = *draft_model && *kind == REQUEST_SPECULATE_OFF;
    if (*draft_tokens == REQUEST_NO_DRAFTS)
        *draft_tokens = kinds[asks ? REQUEST_SPECULATE_DRAFT : *kind].drafts;
    if (!*draft_tokens && (*draft_model || *kind != REQUEST_SPECULATE_OFF))
        return helm_fail(err, HELM_E_USAGE, "--%s %s needs --draft-tokens 1 or more",
                         *draft_model ? "draft-model" : "speculate",
                         *draft_model ? *draft_model : *speculate);
    return 0;
}
