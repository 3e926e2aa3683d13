/* Time of processors that others take. See load.h. Reads /proc/stat, which knows of all processes but not
 * whose. */
#include "common/base/load.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/units.h"

#define STAT_BYTES ((size_t)1 << 20)

/* "cpu3 user nice system idle iowait irq softirq steal guest guest_nice": guests are in user already. */
static uint64_t line_ticks(const char *fields)
{
    uint64_t sum = 0;
    char *end;
    for (int i = 0; i < 8; i++, fields = end) {
        const uint64_t ticks = strtoull(fields, &end, 10);
        const bool waits = i == 3 || i == 4;
        if (end == fields) break;
        if (!waits) sum += ticks;
    }
    return sum;
}

uint64_t load_busy_us(const char *stat, const cpu_set_t *allowed)
{
    const long per_second = sysconf(_SC_CLK_TCK);
    uint64_t ticks = 0;
    for (const char *line = stat; line && strncmp(line, "cpu", 3) == 0;) {
        char *fields;
        const unsigned long cpu = strtoul(line + 3, &fields, 10);
        const bool all = fields == line + 3 || line[3] == ' ';
        if (!all && cpu < CPU_SETSIZE && CPU_ISSET(cpu, allowed)) ticks += line_ticks(fields);
        line = strchr(line, '\n');
        if (line) line++;
    }
    return per_second > 0 ? ticks * 1000000 / (uint64_t)per_second : 0;
}

static uint64_t spent_us(int who)
{
    struct rusage u;
    if (getrusage(who, &u)) return 0;
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Not by file_read: a file of /proc has no size. */
static void sample(struct load *load)
{
    char *text = malloc(STAT_BYTES);
    FILE *file = fopen("/proc/stat", "re");
    load->busy_us = 0;
    if (text && file) {
        text[fread(text, 1, STAT_BYTES - 1, file)] = '\0';
        load->busy_us = load_busy_us(text, &load->allowed);
    }
    if (file) fclose(file);
    free(text);
    load->own_us = spent_us(RUSAGE_SELF) + spent_us(RUSAGE_CHILDREN);
    load->now_us = units_now_us();
}

void load_begin(struct load *load)
{
    CPU_ZERO(&load->allowed);
    (void)sched_getaffinity(0, sizeof load->allowed, &load->allowed);
    sample(load);
}

uint32_t load_others(const struct load *begin)
{
    struct load end = {.allowed = begin->allowed};
    sample(&end);
    const uint64_t own = end.own_us - begin->own_us,
                   room = (end.now_us - begin->now_us) * (uint64_t)CPU_COUNT(&begin->allowed);
    if (!begin->busy_us || end.busy_us < begin->busy_us + own || !room) return 0;
    const uint64_t percent = (end.busy_us - begin->busy_us - own) * 100 / room;
    return percent > 100 ? 100 : (uint32_t)percent;
}
