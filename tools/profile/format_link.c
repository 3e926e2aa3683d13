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

/* The layers of one format, multiplied by with one kind of activations. */
struct part {
    uint32_t index; /* of the format */
    enum linear_inputs inputs;
    struct program program;
    struct profile_samples ratio; /* of the link's speed, to what bf16's layers leave it */
};

static struct program *program_of(const struct profile_format_link *l, enum linear_inputs inputs)
{
    return &l->steps->local.engine.programs[inputs].tier[0][OP_TIER_ONE];
}

/* The program without other formats' layers, in a list of its own. */
static int take_layers(const struct profile_format_link *l, struct part *part, struct helm_err *err)
{
    const struct program *whole = program_of(l, part->inputs);
    part->program = *whole;
    part->program.count = 0;
    part->program.entry = malloc(whole->count * sizeof *whole->entry);
    if (!part->program.entry) return helm_fail(err, HELM_E_NOMEM, "no memory to measure the link");
    for (uint32_t i = 0; i < whole->count; i++) {
        const struct program_entry *e = &whole->entry[i];
        if (e->layer < 0 || (uint32_t)e->layer % l->formats == part->index)
            part->program.entry[part->program.count++] = *e;
    }
    return 0;
}

/* Bytes a second that arrive while steps of `part` run; 0: no copy ended. */
static int rate_beside(const struct profile_format_link *l, const struct part *part, double *rate,
                       struct helm_err *err)
{
    struct program *own = program_of(l, part->inputs), whole = *own;
    struct profile_copied first = {0}, now = {0};
    double spent = 0;
    (void)engine_use(&l->steps->local.engine, part->inputs);
    *own = part->program;
    int rc = profile_steps_run(l->steps, 0, 1, &spent, err);
    if (!rc) rc = profile_device_copied(l->device, &first, err);
    now = first;
    const double begin = units_now_s();
    for (double s = 0; !rc && now.at_s - first.at_s < LOOK_S && s < LOOK_S_MOST; s = units_now_s() - begin) {
        rc = profile_steps_run(l->steps, 0, 1, &spent, err);
        if (!rc) rc = profile_device_copied(l->device, &now, err);
    }
    *own = whole;
    *rate = !rc && now.at_s > first.at_s ? (now.bytes - first.bytes) / (now.at_s - first.at_s) : 0;
    return rc;
}

/* part[0] is bf16's. */
static int take_turns(const struct profile_format_link *l, struct part *part, uint32_t count,
                      struct helm_err *err)
{
    const double end = units_now_s() + TURNS_S;
    int rc = 0;
    for (uint32_t turn = 0; !rc && (turn < TURNS_LEAST || units_now_s() < end); turn++) {
        double plain = 0;
        for (uint32_t i = 0; i < count && !rc; i++) {
            double rate = 0;
            rc = rate_beside(l, &part[i], &rate, err);
            if (i == 0) plain = rate;
            if (i && rate > 0 && plain > 0) profile_samples_add(&part[i].ratio, rate / plain);
        }
    }
    (void)engine_use(&l->steps->local.engine, LINEAR_EXACT);
    return rc;
}

/* Those of formats that caches cannot hold. */
static int list_parts(const struct profile_format_link *l, struct part *part, uint32_t *count,
                      struct helm_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < l->formats; i++)
        for (int inputs = 0; inputs < LINEAR_INPUTS && !rc; inputs++) {
            if (i && l->cached[i]) continue;
            if (inputs == LINEAR_INT8 && !l->int8[i]) continue;
            part[*count] = (struct part){.index = i, .inputs = (enum linear_inputs)inputs};
            rc = take_layers(l, &part[(*count)++], err);
        }
    return rc;
}

static void put_values(const struct profile_format_link *l, const struct part *part, uint32_t count,
                       struct profile *profile)
{
    for (uint32_t i = 1; i < count; i++) {
        struct profile_format *format = &profile->format[l->format[part[i].index]];
        struct profile_value v = profile_samples_value(&part[i].ratio);
        const double rate = profile->link.h2d_beside.value;
        v.value *= rate, v.low *= rate, v.high *= rate;
        *(part[i].inputs == LINEAR_INT8 ? &format->cpu_int8_link_beside : &format->link_beside) = v;
    }
}

int profile_format_link_measure(const struct profile_format_link *l, struct profile *profile,
                                struct helm_err *err)
{
    struct part *part = calloc((size_t)l->formats * LINEAR_INPUTS, sizeof *part);
    uint32_t count = 0;
    int rc = part ? list_parts(l, part, &count, err)
                  : helm_fail(err, HELM_E_NOMEM, "no memory to measure the link");
    if (!rc) rc = profile_device_stream_start(l->device, err);
    if (!rc) {
        struct helm_err ignored;
        rc = take_turns(l, part, count, err);
        const int stopped = profile_device_stream_stop(l->device, rc ? &ignored : err);
        if (!rc) rc = stopped;
    }
    if (!rc) put_values(l, part, count, profile);
    for (uint32_t i = 0; i < count; i++) free(part[i].program.entry);
    free(part);
    return rc;
}
