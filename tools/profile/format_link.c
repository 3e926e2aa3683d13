/* What the link keeps of its speed while the CPU decodes weights of a format. See profile_tool.h. Called by formats.c.
 *
 * Steps of the worker's own program of one token, of which only the entries of one format's layers are left: one after
 * another until the copies' ends say how much arrived meanwhile, in turns with the same of bf16's layers. The value is
 * link.h2d_beside times the median ratio. A format whose layers caches could hold has none: a CPU that reads its caches
 * leaves the link more. */
#include <stdlib.h>

#include "tools/profile/profile_tool.h"

#define TURNS_LEAST 3
#define TURNS_S     0.8  /* all of them, about */
#define LOOK_S      0.03 /* between two looks at the copies: some of their ends */
#define LOOK_S_MOST 0.5  /* of a link so slow that hardly a copy ends */

/* The program without other formats' layers, in a list of its own. */
static int take_layers(const struct program *whole, uint32_t index, uint32_t formats, struct program *part,
                       struct helm_err *err)
{
    *part = *whole;
    part->entry = malloc(whole->count * sizeof *part->entry);
    if (!part->entry) return helm_fail(err, HELM_E_NOMEM, "no memory to measure the link");
    part->count = 0;
    for (uint32_t i = 0; i < whole->count; i++) {
        const struct program_entry *e = &whole->entry[i];
        if (e->layer < 0 || (uint32_t)e->layer % formats == index) part->entry[part->count++] = *e;
    }
    return 0;
}

/* Bytes a second that arrive while steps of `part` run; 0: no copy ended. */
static int rate_beside(struct profile_steps *steps, const struct program *part,
                       struct profile_device_run *device, double *rate, struct helm_err *err)
{
    struct program *own = &steps->local.engine.programs[LINEAR_EXACT].tier[0][OP_TIER_ONE], whole = *own;
    struct profile_copied first, now;
    double spent = 0;
    *own = *part;
    int rc = profile_steps_run(steps, 0, 1, &spent, err);
    if (!rc) rc = profile_device_copied(device, &first, err);
    now = first;
    const double begin = profile_now_s();
    for (double s = 0; !rc && now.at_s - first.at_s < LOOK_S && s < LOOK_S_MOST;
         s = profile_now_s() - begin) {
        rc = profile_steps_run(steps, 0, 1, &spent, err);
        if (!rc) rc = profile_device_copied(device, &now, err);
    }
    *own = whole;
    *rate = !rc && now.at_s > first.at_s ? (now.bytes - first.bytes) / (now.at_s - first.at_s) : 0;
    return rc;
}

static int take_turns(const struct profile_format_link *l, struct program *part,
                      struct profile_samples *ratio, struct helm_err *err)
{
    const double end = profile_now_s() + TURNS_S;
    int rc = 0;
    for (uint32_t turn = 0; !rc && (turn < TURNS_LEAST || profile_now_s() < end); turn++) {
        double plain = 0;
        for (uint32_t i = 0; i < l->formats && !rc; i++) {
            double rate = 0;
            if (i && l->cached[i]) continue;
            rc = rate_beside(l->steps, &part[i], l->device, &rate, err);
            if (i == 0) plain = rate;
            if (i && rate > 0 && plain > 0) profile_samples_add(&ratio[i], rate / plain);
        }
    }
    return rc;
}

int profile_format_link_measure(const struct profile_format_link *l, struct profile *profile,
                                struct helm_err *err)
{
    const struct program *whole = &l->steps->local.engine.programs[LINEAR_EXACT].tier[0][OP_TIER_ONE];
    struct program *part = calloc(l->formats, sizeof *part);
    struct profile_samples *ratio = calloc(l->formats, sizeof *ratio);
    int rc = part && ratio ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory to measure the link");
    for (uint32_t i = 0; i < l->formats && !rc; i++) rc = take_layers(whole, i, l->formats, &part[i], err);
    if (!rc) rc = profile_device_stream_start(l->device, err);
    if (!rc) {
        struct helm_err ignored;
        rc = take_turns(l, part, ratio, err);
        const int stopped = profile_device_stream_stop(l->device, rc ? &ignored : err);
        if (!rc) rc = stopped;
    }
    for (uint32_t i = 1; i < l->formats && !rc; i++) {
        struct profile_value v = profile_samples_value(&ratio[i]);
        const double rate = profile->link.h2d_beside.value;
        v.value *= rate, v.low *= rate, v.high *= rate;
        profile->format[l->format[i]].link_beside = v;
    }
    for (uint32_t i = 0; part && i < l->formats; i++) free(part[i].entry);
    free(part);
    free(ratio);
    return rc;
}
