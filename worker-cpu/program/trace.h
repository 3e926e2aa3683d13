/* A trace of decode steps, for whoever looks for the time that the CPU worker loses: which thread computed which chunk, and
 * when. HELM_CPU_TRACE names the file; unset, nothing is recorded, and a step has one comparison an entry more.
 *
 * TRACE_STEPS steps of one token from number TRACE_FIRST on, or of prompts with HELM_CPU_TRACE_PROMPTS set, are recorded in memory
 * that is there from the start, and written behind the last one. Called by execute.c; owns its memory. tools/bench/cpu_trace.py reads the file. */
#ifndef HELM_WORKER_CPU_PROGRAM_TRACE_H
#define HELM_WORKER_CPU_PROGRAM_TRACE_H

#include "worker-cpu/program/execute.h"

#define TRACE_VARIABLE      "HELM_CPU_TRACE"
#define TRACE_PROMPTS       "HELM_CPU_TRACE_PROMPTS"
#define TRACE_FIRST         48u /* by then each page was touched */
#define TRACE_STEPS         24u
#define TRACE_FIRST_PROMPT  2u
#define TRACE_STEPS_PROMPTS 6u

/* *trace NULL: none was asked for. HELM_E_IO: the file cannot be written. */
HELM_MUST_CHECK int trace_open(uint32_t threads, struct trace **trace, struct helm_err *err);
void trace_close(struct trace *trace);

/* A step of `tokens` tokens begins, or has ended. */
void trace_begin_step(struct trace *trace, uint32_t tokens);
void trace_end_step(struct trace *trace);
/* Between them: the entry begins that `job` was made of; asked_ns: when the one before it had ended. The job's chunks go
 * through the trace then. run->entry is the entry. */
void trace_entry(struct trace *trace, const struct run *run, uint64_t asked_ns, struct pool_job *job);

#endif
