/* How busy others keep the processors that this process may use: whether what is measured here is the
 * machine's.
 *
 * Called by helm-profile around its measurements and by helmd before it has one taken again. No state. */
#pragma once

#include <sched.h>
#include <stdint.h>

#include "common/base/err.h"

struct load {
    cpu_set_t allowed; /* that are counted */
    uint64_t busy_us;  /* of all processes; 0: the system does not say */
    uint64_t own_us;   /* of this process and of its children that have ended */
    uint64_t now_us;
};
/* Reads the times of the CPUs that the process may use now. Times that the system does not say are 0. */
void load_begin(struct load *load);
/* Percent of those CPUs' time that others took since then; 0 where that is not known. */
uint32_t load_others(const struct load *begin);

/* Busy time of these CPUs together, by the lines of /proc/stat; 0: it has no lines of them. */
uint64_t load_busy_us(const char *stat, const cpu_set_t *allowed);
