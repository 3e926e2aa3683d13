/* The draft model of --draft-model, planned as its helmd would plan it: before the model, on the first
 * device, with the options for memory and cache. See options.h. Called by helm_plan.c; owns nothing. */
#include <stdlib.h>
#include <string.h>

#include "common/base/cpu.h"
#include "common/base/units.h"
#include "common/model/parts.h"
#include "common/model/vocabulary.h"
#include "daemon/observe/forecast.h"
#include "daemon/planner/activations/decision.h"
#include "daemon/planner/formats.h"
#include "daemon/planner/packed_look.h"
#include "daemon/planner/page_size.h"
#include "tools/plan/options.h"

/* Its own request, made of the model's. */
static void wish_of(const struct options *o, const struct model *draft, const struct profile *measured,
                    struct profile *profile, struct planner_request *r)
{
    struct page_size pages;
    struct activations activations = {.option = o->exact ? ACTIVATIONS_EXACT
                                                         : activations_option_named(o->activations),
                                      .kernels = ""};
    r->model = draft;
    r->profile = profile;
    r->machine.second = (struct ledger_device){.kind = LEDGER_DEVICE_NONE};
    if (o->draft_device) r->machine.device = r->machine.second; /* the CPU */
    r->experts = NULL;
    r->device_required = false;
    r->strategy = SEARCH_BEST;
    r->share = SHARE_OFF;
    r->tiers = kv_tiers_named(KV_TIERS_DEFAULT);
    r->batch = r->wish.batch = 1;
    r->refusal = NULL;
    r->second = NULL;
    r->cache = NULL;
    r->wish.draft_tokens = 0;
    r->wish.snapshot_bytes = 0;
    if (r->wish.ctx > draft->config.max_context) r->wish.ctx = draft->config.max_context;
    page_size_choose(&(struct page_size_case){.model = draft,
                                              .profile = measured,
                                              .device = &r->machine.device,
                                              .kv_dtype = r->wish.kv_dtype,
                                              .slots = r->wish.slots,
                                              .ctx = r->wish.ctx,
                                              .option = PAGE_SIZE_DEFAULT},
                     &pages);
    r->wish.page_tokens = pages.tokens;
    r->wish.page_count = kv_pages_for(planner_draft_pool(r->wish.ctx), pages.tokens);
    activations_want(draft, measured, o->profile ? ~0u : cpu_features(), &activations);
    activations_rates(measured, activations.inputs, profile);
    memcpy(r->inputs, activations.inputs, sizeof r->inputs);
}

/* Takes `bytes` from what is there and from a ceiling; a ceiling of 0 is none. */
static int take(const char *what, uint64_t bytes, uint64_t *there, uint64_t *ceiling, struct helm_err *err)
{
    char takes[UNITS_TEXT], has[UNITS_TEXT];
    const uint64_t least = ceiling && *ceiling && *ceiling < *there ? *ceiling : *there;
    if (bytes && bytes >= least)
        return helm_fail(err, HELM_E_CAPACITY, "--draft-model takes %s of %s, all of %s",
                         units_format_size(bytes, takes), what, units_format_size(least, has));
    *there -= bytes;
    if (ceiling && *ceiling) *ceiling -= bytes;
    return 0;
}

int draft_model_plan(const struct options *options, const struct model *model, const struct profile *measured,
                     struct planner_request *r, struct helm_err *err)
{
    struct model draft = {0};
    struct plan plan = {0};
    struct arena_spec arena;
    struct forecast forecast = {0};
    struct cost_forecast token = {0};
    struct planner_request own = *r;
    bool derived, sizes_alone;
    if (!options->draft_model) return 0;
    if (options->draft_device && strcmp(options->draft_device, "cpu") != 0)
        return helm_fail(err, HELM_E_USAGE,
                         "--draft-device: '%.60s' is not cpu, the one other place that is planned",
                         options->draft_device);
    struct profile *profile = calloc(1, sizeof *profile); /* large */
    int rc = profile ? model_read_headers(options->draft_model, &draft, &derived, err)
                     : helm_fail(err, HELM_E_NOMEM, "no memory for a profile");
    if (!rc) rc = vocabulary_compare(model, &draft, &sizes_alone, err);
    if (!rc) {
        formats_lay(&draft, NULL);
        wish_of(options, &draft, measured, profile, &own);
        rc = parts_look_make(&draft, &own, &plan, &arena, err);
    }
    if (!rc) rc = forecast_open(&draft, profile, &plan, &forecast, err);
    if (!rc) forecast_decode(&forecast, 1, planner_typical_context(&own, plan.context_tokens), &token);
    if (rc) (void)helm_err_prefix(err, "--draft-model");
    r->draft = (struct planner_draft){.seconds = token.seconds,
                                      .host_bytes = plan.memory[PLAN_HOST].total,
                                      .vram_bytes = plan.memory[PLAN_VRAM0].total};
    if (!rc)
        rc = take("host memory", r->draft.host_bytes, &r->machine.memory.available_bytes,
                  &r->wish.host_memory_bytes, err);
    if (!rc && r->machine.device.kind != LEDGER_DEVICE_NONE)
        rc = take("VRAM", r->draft.vram_bytes, &r->machine.device.limit, NULL, err);
    forecast_close(&forecast);
    plan_free(&plan);
    model_free(&draft);
    free(profile);
    return rc;
}
