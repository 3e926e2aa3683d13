/* Measured beside planned. See drift.h. Pure; allocates nothing. */
#include "daemon/observe/drift.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMES_FROM 4   /* times slower: said so, not in percent */
#define EXPLAINS   0.3 /* of the difference: what a resource must account for to be named */

/* ---- medians ------------------------------------------------------------------------------------------ */

static void kind_take(struct drift_kind *kind, double shape, double measured, double planned)
{
    uint32_t at = (uint32_t)(kind->count++ % DRIFT_SAMPLES);
    kind->shape[at] = (float)shape;
    kind->measured[at] = (float)measured;
    kind->planned[at] = (float)planned;
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double median(const float *sample, uint32_t count)
{
    float sorted[DRIFT_SAMPLES];
    memcpy(sorted, sample, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_floats);
    return ((double)sorted[(count - 1) / 2] + (double)sorted[count / 2]) / 2;
}

bool drift_report(const struct drift_kind *kind, struct drift_report *report)
{
    uint32_t kept = kind->count < DRIFT_SAMPLES ? (uint32_t)kind->count : DRIFT_SAMPLES;
    *report = (struct drift_report){.count = kind->count};
    if (!kept) return false;
    report->shape = median(kind->shape, kept);
    report->measured = median(kind->measured, kept);
    report->planned = median(kind->planned, kept);
    return true;
}

void drift_take_ttft(struct drift *drift, uint32_t tokens, double measured, double planned)
{
    uint32_t at = 0;
    while (at + 1 < DRIFT_TTFTS && tokens >> (at + 1)) at++;
    kind_take(&drift->ttft[at], tokens, measured, planned);
}

/* ---- drifts ------------------------------------------------------------------------------------------- */

static void work_add(struct drift_work *sum, const struct drift_work *work)
{
    sum->seconds += work->seconds;
    sum->cpu_busy += work->cpu_busy;
    sum->gpu_busy += work->gpu_busy;
    sum->gpu_computes += work->gpu_computes;
    sum->link_busy += work->link_busy;
    sum->cpu_bytes += work->cpu_bytes;
    sum->link_bytes += work->link_bytes;
}

static double rate(double bytes, double seconds)
{
    return seconds > 0 ? bytes / seconds / 1e9 : 0;
}

/* Three digits of a rate, or of milliseconds: "61", "6.1", "0.61". */
static const char *number(double value, char text[16])
{
    snprintf(text, 16, "%.*f", value >= 10 ? 0 : value >= 1 ? 1 : 2, value);
    return text;
}

static void explain_processor(const char *name, double measured, double planned, double seconds, char *text,
                              size_t size)
{
    char a[16];
    if (planned > 0)
        snprintf(text, size, "%s takes %s times its planned time", name, number(measured / planned, a));
    else
        snprintf(text, size, "%s works %s %% of the time, planned 0", name,
                 number(100 * measured / seconds, a));
}

/* Names the resource that took longer (or shorter) than planned. The GPU's seconds include its waits for the
 * link, so the link is named where the GPU mostly waits for it. Waits for the disk are in no processor's
 * seconds. */
static void explain(const struct drift_work *m, const struct drift_work *p, char *text, size_t size)
{
    char a[16], b[16];
    double difference = m->seconds - p->seconds, sign = difference < 0 ? -1 : 1;
    double cpu = sign * (m->cpu_busy - p->cpu_busy), gpu = sign * (m->gpu_busy - p->gpu_busy);
    double least = EXPLAINS * fabs(difference);
    if (cpu < least && gpu < least && p->link_busy > p->cpu_busy + p->gpu_computes && p->link_bytes > 0)
        snprintf(text, size, "the disk gives %s GB/s, planned %s", number(rate(m->link_bytes, m->seconds), a),
                 number(rate(p->link_bytes, p->seconds), b));
    else if (cpu < least && gpu < least)
        snprintf(text, size, "neither CPU nor GPU accounts for it: helmd itself, or other load");
    else if (cpu >= gpu && m->cpu_bytes > 0 && p->cpu_busy > 0)
        snprintf(text, size, "CPU reads %s GB/s, planned %s", number(rate(m->cpu_bytes, m->cpu_busy), a),
                 number(rate(p->cpu_bytes, p->cpu_busy), b));
    else if (cpu >= gpu)
        explain_processor("CPU", m->cpu_busy, p->cpu_busy, m->seconds, text, size);
    else if (p->link_busy > p->gpu_computes)
        snprintf(text, size, "the link brings %s GB/s, planned %s",
                 number(rate(m->link_bytes, m->seconds), a), number(rate(p->link_bytes, p->seconds), b));
    else
        explain_processor("GPU", m->gpu_busy, p->gpu_busy, m->seconds, text, size);
}

static void sum_buckets(const struct drift *d, uint32_t count, struct drift_work *m, struct drift_work *p)
{
    memset(m, 0, sizeof *m);
    memset(p, 0, sizeof *p);
    for (uint32_t i = 1; i <= count && i <= d->buckets; i++) {
        work_add(m, &d->bucket[(d->buckets - i) % DRIFT_BUCKETS].measured);
        work_add(p, &d->bucket[(d->buckets - i) % DRIFT_BUCKETS].planned);
    }
}

/* A bucket is full: what follows. */
static enum drift_event judge(struct drift *d, double ratio)
{
    char why[DRIFT_TEXT / 2];
    struct drift_work m, p;
    d->slow = ratio > DRIFT_LIMIT ? d->slow + 1 : 0;
    d->fast = ratio < -DRIFT_LIMIT ? d->fast + 1 : 0;
    d->within = fabs(ratio) <= DRIFT_LIMIT ? d->within + 1 : 0;
    if (!d->drifting && (d->slow >= DRIFT_BUCKETS || d->fast >= DRIFT_BUCKETS)) {
        sum_buckets(d, DRIFT_BUCKETS, &m, &p);
        explain(&m, &p, why, sizeof why);
        double times = m.seconds / p.seconds;
        if (times > TIMES_FROM)
            snprintf(d->text, sizeof d->text, "decode %.0f times as slow as planned for %.0f s: %s", times,
                     m.seconds, why);
        else
            snprintf(d->text, sizeof d->text, "decode %.0f %% %s than planned for %.0f s: %s",
                     100 * fabs(times - 1), times > 1 ? "slower" : "faster", m.seconds, why);
        d->drifting = true;
        return DRIFT_BEGINS;
    }
    if (d->drifting && d->within >= DRIFT_BUCKETS_END) {
        sum_buckets(d, DRIFT_BUCKETS_END, &m, &p);
        snprintf(d->text, sizeof d->text, "decode is as planned again: %.0f %% %s for %.0f s",
                 100 * fabs(m.seconds / p.seconds - 1), m.seconds > p.seconds ? "slower" : "faster",
                 m.seconds);
        d->drifting = false;
        return DRIFT_ENDS;
    }
    return DRIFT_NOTHING;
}

enum drift_event drift_take_decode(struct drift *d, uint32_t batch, double context,
                                   const struct drift_work *measured, const struct drift_work *planned)
{
    if (batch < 1 || batch > ARENA_SLOTS_MAX) return DRIFT_NOTHING;
    kind_take(&d->decode[batch - 1], context, measured->seconds, planned->seconds);
    if (planned->seconds <= 0) return DRIFT_NOTHING;
    work_add(&d->measured, measured);
    work_add(&d->planned, planned);
    struct drift_work *m = &d->bucket[d->buckets % DRIFT_BUCKETS].measured,
                      *p = &d->bucket[d->buckets % DRIFT_BUCKETS].planned;
    work_add(m, measured);
    work_add(p, planned);
    if (m->seconds < DRIFT_BUCKET_SECONDS) return DRIFT_NOTHING;
    double ratio = m->seconds / p->seconds - 1;
    d->buckets++;
    enum drift_event event = judge(d, ratio);
    memset(&d->bucket[d->buckets % DRIFT_BUCKETS], 0, sizeof *d->bucket);
    return event;
}
