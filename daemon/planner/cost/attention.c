/* Prices of attention. See cost/attention.h; equations are in docs/planner-prices.md. Called by cost.c; owns
 * nothing.
 *
 * With two tiers a row's oldest positions lie in the arena alone (plan.h, vram_page_count). In a step of few
 * tokens, one a row, the CPU attends to the first of them where they lie while the GPU attends to the others:
 * it reads the last of them over the link and those after them in VRAM. The query goes down, the CPU's part
 * comes up. In other steps the GPU reads all over the link, once for all sub-chunks, in pieces
 * (plan_staging). A step's new positions are copied to the arena by the way. */
#include "daemon/planner/cost/attention.h"
#include "common/base/units.h"

#include <math.h>

#define ASSIST_OPERATIONS 2 /* of the GPU: the chain is cut at the query, and the parts are merged */

/* Positions that a row's `n` last tokens attend to, all together, in a context of `c` and a window of `w`. */
static double attended(double n, double c, double w)
{
    double in_window = w > 0 && c > w ? fmin(n, c - w) : 0; /* tokens that see no more than the window */
    double rest = n - in_window;
    return in_window * w + rest * (c - in_window) - rest * (rest - 1) / 2;
}

/* With T 4.5's bytes as they are: 4,096 c for 8 heads of 128 in 16 bits, not 4 c. One query a row reads its
 * context and no more; a chunk's queries share what they read, so that work counts as well. */
void attention_price(const struct pricing *p, const struct device_rates *r, double window, double elsewhere,
                     struct attention_price *out)
{
    const struct model_config *c = &p->model->config;
    const struct model_heads heads = model_heads_of(c, window > 0);
    const double cells = (c->latent.rank ? 1.0 : 2.0) *
                         heads.kv_heads * /* of latent attention values are keys */
                         (double)kv_cell_bytes(p->step->kv_dtype, heads.head_dim);
    const double n = pricing_tokens_a_row(p->step), context = p->step->context;
    const double positions = (window > 0 ? fmin(context, window + n - 1) : context) - elsewhere;
    out->memory = p->step->rows * positions * cells / r->attention;
    out->beside = out->memory * (r->attention / r->attention_beside);
    out->compute = n > 1 ? 2.0 * 2 * c->heads * heads.head_dim * p->step->rows *
                               attended(n, context, window) / r->attention_flops
                         : 0;
}

static bool one_a_row(const struct pricing *p)
{
    return p->tier != OP_TIER_CHUNK && p->step->tokens == p->step->rows;
}

/* How many of the first `host` positions of a row its `n` last tokens see. */
static double seen(double n, double context, double window, double host)
{
    const double before = fmax(0, context - n), hidden = window > 0 ? fmax(0, before + 1 - window) : 0;
    return fmax(0, fmin(host, before) - hidden);
}

static double host_positions(const struct pricing *p, double window)
{
    const struct cost_step *step = p->step;
    return step->kv.two && !(window > 0 && step->kv.windows)
               ? seen(pricing_tokens_a_row(step), step->context, window, step->kv.host_tokens)
               : 0;
}

double attention_elsewhere(const struct pricing *p, double window)
{
    return one_a_row(p) ? host_positions(p, window) : 0;
}

/* The query's way to the CPU, or its part's way back: what fits a hand-over's price, and the rest at the
 * link's rate. */
static double hand_over(const struct pricing *p)
{
    const struct profile_link *link = &p->profile->link;
    const struct model_config *c = &p->model->config;
    const double bytes = (double)p->step->tokens * c->heads * c->head_dim * sizeof(float);
    return link->hand_over.value + fmax(0, bytes - ENGINE_HAND_OVER_BYTES) /
                                       fmin(link->h2d.value, rate_or(&link->d2h, link->h2d.value));
}

/* Positions of each row that a layer of this window has the GPU read itself, of `host` that it sees in the
 * arena alone. */
static double direct_positions(const struct pricing *p, double window, double host)
{
    const struct cost_tiers *kv = &p->step->kv;
    if (window > 0 && window <= kv->direct_window) return host;
    return host * kv->direct_permille / PERMILLE;
}

/* Whether a layer's queries go to the CPU in this step, whatever it finds to attend to. */
static bool asks(const struct pricing *p, double window)
{
    const struct cost_tiers *kv = &p->step->kv;
    return kv->host_tokens && kv->direct_permille < PERMILLE && (window <= 0 || window > kv->direct_window);
}

/* CPU and GPU attend at the same time: the later one counts. */
static void price_assisted(const struct pricing *p, double window, double host, double there,
                           struct cost_unit *u)
{
    const double position = p->step->rows * pricing_kv_bytes(p),
                 direct = direct_positions(p, window, host) * position, own = host * position - direct;
    const double reading = direct / cost_rates_direct(p->profile, p->step->kv_dtype);
    if (!asks(p, window)) {
        u->kv.link = reading;
        u->gpu += reading;
        u->stream += reading;
        return;
    }
    const double more = ASSIST_OPERATIONS * p->kernel.operation, way = hand_over(p);
    const double company = p->cpu.attention_beside / p->cpu.attention,
                 beside = own / (p->cpu.attention_host * company) + p->cpu.operation,
                 alone = direct > 0 ? beside : own / p->cpu.attention_host + p->cpu.operation;
    const double least = fmax(0, reading - 2 * way); /* of the GPU's part, beyond what lies in VRAM */
    u->kv.way = way;
    u->kv.link = reading;
    u->kv.cpu = fmax(least, alone - there);
    u->kv.cpu_beside = fmax(least, beside - there);
    u->gpu += more + 2 * way + u->kv.cpu;
    u->stream += more + 2 * way + u->kv.cpu;
}

/* A chunk attends to `positions` positions of each row in pieces: the launches, and the results kept between
 * them. */
static double price_pieces(const struct pricing *p, double positions)
{
    const struct model_config *c = &p->model->config;
    const double kept = (double)p->step->tokens * c->heads * (c->head_dim + GPU_PART_FLOATS) * sizeof(float);
    return ceil(p->step->rows * positions / PLAN_PIECE_POSITIONS) *
           (p->kernel.operation + 2 * kept / p->kernel.attention);
}

void attention_price_host(const struct pricing *p, double window, struct cost_unit *u)
{
    const struct profile_link *link = &p->profile->link;
    const struct cost_step *step = p->step;
    const double host = host_positions(p, window), n = pricing_tokens_a_row(step);
    struct attention_price there;
    attention_price(p, &p->kernel, window, attention_elsewhere(p, window), &there);
    if (one_a_row(p)) {
        if (host > 0 || asks(p, window)) price_assisted(p, window, host, there.memory, u);
        return;
    }
    const double rate = cost_rates_copy(&p->profile->link) / (step->rows * pricing_kv_bytes(p)),
                 before = seen(n, step->context, window, step->context),
                 attending = fmax(there.memory, there.compute);
    const double reading = host / rate, borrowed = before / rate,
                 storing = step->tokens * pricing_kv_bytes(p) / rate_or(&link->d2h, link->h2d.value);
    const double more = fmax(0, reading - attending) + price_pieces(p, host);
    u->gpu += more;
    u->stream += more;
    u->kv.link = reading + storing;
    u->borrow_gpu = fmax(0, borrowed - attending) + price_pieces(p, before) - more;
    u->borrow_link = borrowed - reading;
}

uint32_t cost_direct_permille(const struct profile *profile, enum kv_dtype kv_dtype)
{
    const struct profile_cpu *cpu = &profile->cpu;
    const double company = fmin(1, rate_or(&cpu->gemv_beside, cpu->gemv.value) / cpu->gemv.value),
                 attend = company * cost_attention_host(profile, kv_dtype),
                 direct = cost_rates_direct(profile, kv_dtype);
    return direct > 0 ? (uint32_t)(PERMILLE * direct / (direct + attend)) : 0;
}
