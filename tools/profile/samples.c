/* Numbers that become values, and lines of progress. See profile_tool.h. Called by every file of
 * helm-profile; owns nothing. */
#include "tools/profile/profile_tool.h"

#include <stdarg.h>
#include <string.h>

#include "common/base/units.h"
#include "common/measure/stats.h"

void profile_samples_add(struct profile_samples *samples, double value)
{
    if (samples->count == PROFILE_SAMPLES_MAX) {
        samples->count--;
        memmove(samples->value, samples->value + 1, samples->count * sizeof *samples->value);
    }
    samples->value[samples->count++] = value;
}

struct profile_value profile_samples_value(const struct profile_samples *samples)
{
    double sorted[PROFILE_SAMPLES_MAX];
    uint32_t n = samples->count;
    if (n == 0) return (struct profile_value){0};
    memcpy(sorted, samples->value, n * sizeof *sorted);
    double low = stats_quantile(sorted, n, 0.1), high = stats_quantile(sorted, n, 0.9);
    double middle = n & 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    return (struct profile_value){middle, low, high, PROFILE_MEASURED};
}

void profile_table_put(struct profile_table *table, uint32_t x, struct profile_value value)
{
    uint32_t at = 0;
    while (at < table->count && table->point[at].x < x) at++;
    bool there = at < table->count && table->point[at].x == x;
    if (value.value <= 0 || (!there && table->count == PROFILE_POINTS_MAX)) return;
    if (!there) {
        memmove(&table->point[at + 1], &table->point[at], (table->count - at) * sizeof table->point[0]);
        table->count++;
    }
    table->point[at] = (struct profile_point){x, value};
}

bool profile_late(const struct profile_progress *progress)
{
    return units_now_s() - progress->attempt_s > progress->late_s;
}

void profile_say(const struct profile_progress *progress, const char *fmt, ...)
{
    va_list ap;
    if (!progress->out) return;
    fprintf(progress->out, "%5.1f s  ", units_now_s() - progress->start_s);
    va_start(ap, fmt);
    vfprintf(progress->out, fmt, ap);
    va_end(ap);
    fputc('\n', progress->out);
    fflush(progress->out);
}
