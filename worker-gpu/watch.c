/* Which worker computes in a step, and how long the host sleeps meanwhile. See watch.h. */
#include "worker-gpu/watch.h"

#define SLOWER_PART 32 /* the part of the excess over the usual time that is added to the usual time */
#define EARLY_PART  8  /* the part of a turn's remaining time that is not slept */
#define LATE_PART   16 /* the part of a turn's lateness that is slept until the next poll */
#define NEW_PART    64 /* in an unknown turn: the part of its time so far that is slept */

void watch_begin(struct watch *w, struct gpu_program *program, uint32_t tokens, const _Atomic uint32_t *in,
                 const _Atomic uint32_t *out, const _Atomic uint32_t *sent, uint64_t now_ns)
{
    *w = (struct watch){.program = program,
                        .in = in,
                        .out = out,
                        .sent = sent,
                        .left = in ? atomic_load_explicit(out, memory_order_relaxed) : 0,
                        .waiting = in && program->turns && program->turn[0].in,
                        .since_ns = now_ns,
                        .seen_ns = now_ns};
    if (tokens == program->turn_tokens) return;
    program->turn_tokens = tokens; /* takes another time */
    for (uint32_t i = 0; i < program->turns; i++) program->turn[i].usual_ns = 0;
}

/* Shorter at once, since sleeping too long holds up the step. Longer only little by little: once is chance. */
static void remember(struct gpu_turn *turn, uint64_t took_ns)
{
    if (turn->usual_ns == 0 || took_ns < turn->usual_ns)
        turn->usual_ns = took_ns;
    else
        turn->usual_ns += (took_ns - turn->usual_ns) / SLOWER_PART;
}

void watch_look(struct watch *w, uint64_t now_ns)
{
    struct gpu_program *p = w->program;
    w->seen_ns = now_ns;
    if (!w->in) return;
    uint32_t in = atomic_load_explicit(w->in, memory_order_relaxed);
    uint32_t out = atomic_load_explicit(w->out, memory_order_relaxed);
    if (out != w->left) w->left = 0;
    if (w->left) out = 0;
    bool sent = atomic_load_explicit(w->sent, memory_order_relaxed) == 1;
    while (w->turn < p->turns) {
        struct gpu_turn *turn = &p->turn[w->turn], *next = w->turn + 1 < p->turns ? turn + 1 : NULL;
        bool published =
            turn->out && (out >= turn->out || (turn->last_out && sent) || (next && in >= next->in));
        if (w->waiting) {
            if (in < turn->in && !published) return;
            w->waited_ns += now_ns - w->since_ns;
            remember(turn, now_ns - w->since_ns);
            w->waiting = false;
            w->since_ns = now_ns;
        }
        if (!published) return;
        w->turn++;
        w->waiting = next != NULL;
        w->since_ns = now_ns;
    }
}

uint64_t watch_nap_ns(const struct watch *w, uint64_t spin_ns, uint64_t nap_ns, uint64_t now_ns)
{
    uint64_t elapsed = now_ns - w->since_ns, nap;
    if (!w->waiting) return elapsed < spin_ns ? 0 : nap_ns;
    uint64_t usual = w->program->turn[w->turn].usual_ns;
    if (usual == 0)
        nap = elapsed / NEW_PART;
    else if (elapsed < usual)
        nap = (usual - elapsed) - (usual - elapsed) / EARLY_PART;
    else
        nap = (elapsed - usual) / LATE_PART;
    return nap < WATCH_NAP_MIN_NS ? WATCH_NAP_MIN_NS : nap > WATCH_NAP_MAX_NS ? WATCH_NAP_MAX_NS : nap;
}

uint64_t watch_end(const struct watch *w)
{
    return w->waited_ns + (w->waiting && w->turn < w->program->turns ? w->seen_ns - w->since_ns : 0);
}
