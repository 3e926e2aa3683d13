/* Which worker computes in a step, and how long the host sleeps meanwhile. See watch.h. */
#include "worker-gpu/watch.h"

#define SLOWER_PART 32 /* the part of the excess over the usual time that is added to the usual time */
#define EARLY_PART  8  /* the part of a turn's remaining time that is not slept */
#define LATE_PART   16 /* the part of a turn's lateness that is slept until the next poll */
#define NEW_PART    64 /* in an unknown turn: the part of its time so far that is slept */

static uint32_t read_word(const struct watch *w, uint32_t lane)
{
    return atomic_load_explicit(w->word[lane], memory_order_relaxed);
}

void watch_begin(struct watch *w, struct gpu_program *program, uint32_t tokens,
                 const _Atomic uint32_t *const *word, const _Atomic uint32_t *sent, uint64_t now_ns)
{
    *w = (struct watch){.program = program,
                        .sent = sent,
                        .alone = !word,
                        .waiting = word && program->turns && program->turn[0].in,
                        .since_ns = now_ns,
                        .seen_ns = now_ns};
    for (uint32_t i = 0; word && i < program->turns; i++) {
        const struct gpu_turn *turn = &program->turn[i];
        if (turn->in) w->word[turn->lane_in] = word[turn->lane_in];
        if (!turn->out) continue;
        w->word[turn->lane_out] = word[turn->lane_out];
        w->left[turn->lane_out] = read_word(w, turn->lane_out);
    }
    if (tokens == program->turn_tokens) return;
    program->turn_tokens = tokens; /* takes another time */
    for (uint32_t i = 0; i < program->turns; i++) program->turn[i].usual_ns = 0;
}

/* Shorter at once, since sleeping too long holds up the step. Longer only little by little: once is
 * chance. */
static void remember(struct gpu_turn *turn, uint64_t took_ns)
{
    if (turn->usual_ns == 0 || took_ns < turn->usual_ns)
        turn->usual_ns = took_ns;
    else
        turn->usual_ns += (took_ns - turn->usual_ns) / SLOWER_PART;
}

/* This step's `out` of the turn's lane; 0 while it is still the last step's. */
static uint32_t out_of(struct watch *w, const struct gpu_turn *turn)
{
    const uint32_t out = read_word(w, turn->lane_out);
    if (out != w->left[turn->lane_out]) w->left[turn->lane_out] = 0;
    return w->left[turn->lane_out] ? 0 : out;
}

void watch_look(struct watch *w, uint64_t now_ns)
{
    struct gpu_program *p = w->program;
    w->seen_ns = now_ns;
    if (w->alone) return;
    const uint32_t sent = atomic_load_explicit(w->sent, memory_order_relaxed);
    while (w->turn < p->turns) {
        struct gpu_turn *turn = &p->turn[w->turn], *next = w->turn + 1 < p->turns ? turn + 1 : NULL;
        const bool published =
            turn->out && (out_of(w, turn) >= turn->out || (turn->last_out && sent >= turn->last_out) ||
                          (next && read_word(w, next->lane_in) >= next->in));
        if (w->waiting) {
            if (read_word(w, turn->lane_in) < turn->in && !published) return;
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
