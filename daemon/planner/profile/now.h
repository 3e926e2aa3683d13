/* The rates of the machine's memory now, compared with those when its profile was taken: hosts that others
 * use, too, move by a third within minutes.
 *
 * `helm-profile --now` measures it; helmd and helm-plan read its answer and forecast by a profile whose rates
 * are what they would be now. Pure, but for profile_now_read. docs/planner-prices.md has the rules. */
#pragma once

#include "common/formats/linear_inputs.h"
#include "daemon/planner/profile/profile.h"

/* By what host memory is read: products of one token with weights of a format, as the worker multiplies them;
 * bf16: plain reads. */
struct profile_reads {
    enum tensor_format format;
    enum linear_inputs inputs;
};
/* Those of a model whose main format this is; exact where the profile has no rate of int8, plain where it has
 * none of the format. */
struct profile_reads profile_reads_of(const struct profile *profile, enum tensor_format format,
                                      enum linear_inputs inputs);

/* Bytes a second of these by all threads and of copies to the device, each alone and beside the other; 0: not
 * measured. */
struct profile_now {
    struct profile_reads reads;
    double read, read_beside, h2d, h2d_beside;
    uint32_t busy_percent; /* of the processors' time, that other programs took meanwhile */
};

/* A plan is made by the rates of now where one of them is further than WORTH_MUCH of it from the profile's,
 * and other programs took less than PROFILE_BUSY of the processors' time meanwhile: they may have ended
 * before it serves. */

/* {"helm_now": 1, "format": "q4_k", "activations": "int8", "read": N, "read_beside": N, "h2d": N,
 * "h2d_beside": N}; what was not measured is left out, as are format and activations of plain reads. NULL: no
 * memory. */
json_t *profile_now_to_json(const struct profile_now *now);
HELM_MUST_CHECK int profile_now_from_json(const json_t *json, struct profile_now *now, struct helm_err *err);
/* HELM_E_MISMATCH: it is of reads whose rate the profile has not, so that nothing can be held against it. */
HELM_MUST_CHECK int profile_now_check(const struct profile *profile, const struct profile_now *now,
                                      struct helm_err *err);
/* From a file. */
HELM_MUST_CHECK int profile_now_read(const char *path, struct profile_now *now, struct helm_err *err);

/* The profile as it would be now. A CPU's rate keeps what its bytes take beside being read, so one that reads
 * as fast as memory gives moves with it, and one bounded by arithmetic by as many nanoseconds a byte. Copies'
 * rates move in proportion. `out` may not be `profile`. */
void profile_now_apply(const struct profile *profile, const struct profile_now *now, struct profile *out);
/* How far the furthest rate is from the profile's, as a part of that. */
double profile_now_apart(const struct profile *profile, const struct profile_now *now);

/* The machine's rates now, if known, and the decision that follows from them. */
#define PROFILE_NOW_TEXT 384
struct machine_now {
    bool known, plans; /* plans: the plan is made by these rates, not only forecast */
    struct profile_now rates;
    char text[PROFILE_NOW_TEXT]; /* for the log, plans and reports: also why it is not known */
};
/* Decides `plans` and writes the text; profile_now_check has accepted it. */
void profile_now_decide(const struct profile *profile, const struct profile_now *now,
                        struct machine_now *out);
/* Not known, and why. */
void profile_now_unknown(struct machine_now *out, const char *why);
