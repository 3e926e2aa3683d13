/* Both engines in one process. See pair.h. */
#include "tests/golden/pair.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/model/parts.h"
#include "common/plan/share.h"
#include "common/plan/state.h"
#include "worker-cpu/engine.h"
#include "worker-gpu/engine.h"

#define PACKED_PART_ANY 1.2 /* groups that do not become smaller have a header, too */
#define PAIR_LOOK_MS    20  /* between two looks whether a worker failed */

static uint32_t pages_per_slot(const struct pair_options *o)
{
    uint32_t page_tokens = o->page_tokens ? o->page_tokens : KV_PAGE_TOKENS_DEFAULT;
    return (o->context_tokens + page_tokens - 1) / page_tokens;
}

/* Pages of a slot's ring: entry i of its table is page i of the ring, over and over. */
static uint32_t ring_pages(const struct pair_options *o, const struct model *model)
{
    const uint32_t page_tokens = o->page_tokens ? o->page_tokens : KV_PAGE_TOKENS_DEFAULT,
                   seen = model_window(&model->config) + o->step_tokens, pages = (seen - 1) / page_tokens + 3;
    if (o->rings && pages < pages_per_slot(o)) return pages;
    return model->config.window_heads.head_dim ? pages_per_slot(o)
                                               : 0; /* whose cells have no place in pages */
}

static int make_arena(const struct pair_options *o, const struct model *model, struct pair *pair,
                      struct helm_err *err)
{
    uint32_t per_slot = pages_per_slot(o);
    const double part = o->packed_part > 0 ? o->packed_part : PACKED_PART_ANY;
    const struct packed_parts parts = {part, part, part};
    int rc = pair->plan.placement ? 0 : placement_make(model, &parts, &pair->plan, err);
    if (rc) return rc;
    const uint32_t mixed = plan_mixed_units(&pair->plan), slots = plan_slot_units(&pair->plan),
                   shared = plan_shared_units(&pair->plan);
    const struct arena_spec spec = {.slots = o->slots,
                                    .context_tokens = o->context_tokens,
                                    .step_tokens = o->step_tokens,
                                    .hidden = model->config.hidden,
                                    .vocab = model->config.vocab,
                                    .lanes = {PLAN_LINKS, o->vram_pages ? PLAN_LINKS : 0,
                                              mixed || shared ? PLAN_LINKS : 0},
                                    .kv = {.layers = plan_kv_layers(&pair->plan, PLAN_HOST),
                                           .kv_heads = model->config.kv_heads,
                                           .latent = model->config.latent.rank,
                                           .head_dim = model->config.head_dim,
                                           .page_tokens = pair->plan.page_tokens,
                                           .dtype = o->kv_dtype},
                                    .page_count = pair->plan.page_count,
                                    .window_tokens = pair->plan.window_tokens,
                                    .window_page_count = pair->plan.window_page_count,
                                    .window_layers = plan_window_layers(&pair->plan, PLAN_CPU0),
                                    .window_kv_heads = model->config.window_heads.kv_heads,
                                    .window_head_dim = model->config.window_heads.head_dim,
                                    .state = plan_state_layout(&pair->plan, PLAN_CPU0),
                                    .vram_page_count = o->vram_pages,
                                    .kv_heads_asking = o->vram_pages ? model->config.heads : 0,
                                    .experts_chosen = slots ? model->config.router.chosen : 0,
                                    .experts = slots ? model->config.router.experts : 0,
                                    .expert_layers = slots,
                                    .weight_bytes = placements_in(&pair->plan, PLAN_HOST).region_bytes};
    rc = arena_create(&spec, &pair->arena, err);
    for (uint32_t s = 0; s < o->slots && !rc; s++) {
        uint32_t *pages = arena_page_table_of(&pair->arena, s);
        for (uint32_t i = 0; i < per_slot; i++) pages[i] = s * per_slot + i;
        const uint32_t ring = ring_pages(o, model);
        for (uint32_t i = 0; i < per_slot && ring; i++)
            arena_window_table_of(&pair->arena, s)[i] = s * ring + i % ring;
        struct arena_slot *slot = arena_slot_of(&pair->arena, s);
        memset(slot, 0, sizeof *slot);
        slot->sampling.top_p = slot->sampling.repetition_penalty = 1;
    }
    return rc;
}

/* Starts one worker and waits until it serves. */
static int start(const struct pair_options *o, struct pair *pair, enum pair_worker worker,
                 const struct worker_engine_ops *ops, struct helm_err *err)
{
    struct server *server = &pair->server[worker];
    server->ops = ops;
    server->options = (struct engine_options){.folder = o->folder,
                                              .plan = &pair->plan,
                                              .processor = worker == PAIR_GPU ? PLAN_GPU0 : PLAN_CPU0,
                                              .threads = o->threads,
                                              .node = -1,
                                              .kernels = o->kernels,
                                              .spin_us = POOL_SPIN_US_DEFAULT,
                                              .peer_wait_ms = o->peer_wait_ms,
                                              .device = o->device,
                                              .vram_bytes = o->vram_bytes,
                                              .copy_bytes_per_s = o->copy_bytes_per_s,
                                              .no_graphs = o->no_graphs,
                                              .no_chains = o->no_chains};
    server->arena = &pair->arena;
    server->epoch = arena_header_of(&pair->arena)->epoch;
    server->worker = worker;
    server->done_fd = pair->done_fd;
    server->report_fd = eventfd(0, EFD_CLOEXEC);
    if (server->report_fd < 0) return helm_fail_errno(err, "eventfd");
    pair->used[worker] = true;
    int rc = server_start(server, err);
    if (rc) return rc;
    uint64_t count;
    if (read(server->report_fd, &count, sizeof count) < 0) return helm_fail_errno(err, "eventfd");
    if (atomic_load(&server->state) == SERVER_SERVING) return 0;
    if (err) *err = server->err;
    return server->err.code ? server->err.code : HELM_E_INTERNAL;
}

int pair_open(const struct pair_options *o, struct pair *pair, struct helm_err *err)
{
    struct model model = {0};
    memset(pair, 0, sizeof *pair);
    pair->arena.fd = -1;
    pair->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = pair->done_fd < 0 ? helm_fail_errno(err, "eventfd") : model_read(o->folder, &model, err);
    if (!rc) rc = model_cut_experts(&model, plan_expert_parts(o->plan), err);
    if (rc) goto out;
    rc = plan_copy(o->plan, &pair->plan, err);
    if (rc) goto out;
    pair->plan.layers = model.config.layers;
    rc = plan_share_model(&pair->plan, &model, err);
    if (rc) goto out;
    pair->plan.slots = o->slots;
    pair->plan.context_tokens = o->context_tokens;
    pair->plan.step_tokens = o->step_tokens;
    pair->plan.page_tokens = o->page_tokens ? o->page_tokens : KV_PAGE_TOKENS_DEFAULT;
    pair->plan.page_count = o->slots * pages_per_slot(o);
    pair->plan.device[PLAN_GPU0].vram_page_count = o->vram_pages;
    pair->plan.kv_direct_permille = o->direct_permille;
    pair->plan.kv_direct_window = o->direct_window;
    pair->plan.kv_piece_pages = o->piece_pages;
    snprintf(pair->plan.kv_dtype, sizeof pair->plan.kv_dtype, "%s", kv_dtype_name(o->kv_dtype));
    pair->plan.window_page_count = o->slots * ring_pages(o, &model);
    plan_take_states(&pair->plan, &model);
    rc = make_arena(o, &model, pair, err);
    if (!rc && plan_uses(&pair->plan, PLAN_CPU0)) rc = start(o, pair, PAIR_CPU, &cpu_engine_ops, err);
    if (!rc && plan_uses(&pair->plan, PLAN_GPU0)) rc = start(o, pair, PAIR_GPU, &gpu_engine_ops, err);
    if (!rc && pair->used[PAIR_GPU])
        ((struct gpu_engine *)pair->server[PAIR_GPU].engine)->draw.copy_rows = o->copy_rows;
out:
    model_free(&model);
    if (rc) pair_close(pair);
    return rc;
}

void pair_close(struct pair *pair)
{
    for (int w = 0; w < PAIR_COUNT; w++) {
        if (!pair->used[w]) continue;
        server_stop(&pair->server[w]);
        if (pair->server[w].report_fd >= 0) close(pair->server[w].report_fd);
    }
    if (pair->done_fd >= 0) close(pair->done_fd);
    arena_close(&pair->arena);
    plan_free(&pair->plan);
    memset(pair->used, 0, sizeof pair->used);
    pair->done_fd = -1;
}

static int wait_done(struct pair *pair, enum pair_worker worker, uint32_t serial, struct helm_err *err)
{
    struct doorbell *bell = &arena_control_of(&pair->arena)->done[worker].bell;
    for (;;) {
        uint32_t seen = doorbell_read(bell);
        if (step_reached(seen, serial)) return 0;
        for (int w = 0; w < PAIR_COUNT; w++) {
            if (!pair->used[w] || atomic_load(&pair->server[w].state) != SERVER_FAILED) continue;
            if (err) *err = pair->server[w].err;
            return pair->server[w].err.code ? pair->server[w].err.code : HELM_E_INTERNAL;
        }
        (void)doorbell_wait(bell, seen, POOL_SPIN_US_DEFAULT, PAIR_LOOK_MS, NULL);
    }
}

uint32_t pair_ring(struct pair *pair, const struct step_row *rows, uint32_t row_count,
                   const struct step_result **result)
{
    const struct pair_tiers none = {0};
    return pair_ring_tiers(pair, rows, row_count, &none, result);
}

uint32_t pair_ring_tiers(struct pair *pair, const struct step_row *rows, uint32_t row_count,
                         const struct pair_tiers *tiers, const struct step_result **result)
{
    struct arena_control *control = arena_control_of(&pair->arena);
    uint32_t serial = ++pair->serial, tokens = 0, drafts = 0;
    struct step *step = &control->step[serial % ARENA_STEP_RING];
    for (uint32_t i = 0; i < row_count; i++) tokens += rows[i].count, drafts += rows[i].drafts;
    step->serial = serial;
    step->epoch = arena_header_of(&pair->arena)->epoch;
    step->row_count = row_count;
    step->token_count = tokens;
    step->draft_count = drafts;
    step->flags = tiers->flags;
    step->fetch_count = tiers->fetch_count;
    memcpy(step->fetch, tiers->fetch, tiers->fetch_count * sizeof *step->fetch);
    memcpy(step->row, rows, row_count * sizeof *rows);
    *result = &control->result[serial % ARENA_STEP_RING];
    doorbell_ring(&control->step_bell, serial);
    return serial;
}

int pair_wait(struct pair *pair, uint32_t serial, struct helm_err *err)
{
    int rc = 0;
    for (int w = 0; w < PAIR_COUNT && !rc; w++)
        if (pair->used[w]) rc = wait_done(pair, (enum pair_worker)w, serial, err);
    return rc;
}

const struct arena_times *pair_times(const struct pair *pair, enum pair_worker worker)
{
    return &arena_control_of(&pair->arena)->done[worker].times[pair->serial % ARENA_STEP_RING];
}

int pair_step(struct pair *pair, const struct step_row *rows, uint32_t row_count,
              const struct step_result **result, struct helm_err *err)
{
    if (row_count > ARENA_STEP_ROWS)
        return helm_fail(err, HELM_E_LIMIT, "%u rows, a step has at most %d", row_count, ARENA_STEP_ROWS);
    return pair_wait(pair, pair_ring(pair, rows, row_count, result), err);
}
