/* Names and default numbers of drafts. See request_speculate.h. Owns nothing. */
#include "daemon/steps/request_speculate.h"

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

enum request_speculate request_speculate_named(const char *name)
{
    int k = REQUEST_SPECULATE_OFF;
    while (k + 1 < REQUEST_SPECULATES && strcmp(name, kinds[k].name) != 0) k++;
    return (enum request_speculate)k;
}

uint32_t request_speculate_drafts(enum request_speculate speculate, uint64_t given)
{
    return given == REQUEST_NO_DRAFTS ? kinds[speculate].drafts : (uint32_t)given;
}
