/* Rates of a device, measured through device.h: for helm-profile, which never touches a device itself.
 *
 * Called by main's way of --measure (common/worker/process.c), by helm-profile as a child process. Talks in
 * lines on two streams; docs/profile.md says what each name means:
 *
 *   in    "measure", "link", "format NAME SECONDS", "programs JSON", "cell TOKENS CONTEXT SECONDS [beside]",
 *         "close", "stream", "copied", "stop", "quit"; the end of the stream is "quit"
 *   out   {"ready": TEXT} once the device is open
 *         to "measure": {"name": "gpu.gemv", "x": 0, "samples": [...]} for each value, {"done": "measure"}
 *         to "link":    link.h2d as "measure" has it, {"done": "link"}
 *         to "format NAME SECONDS": values of that format of weights, {"done": "format NAME SECONDS"};
 *                       nothing but other formats is measured after it
 *         to "programs JSON": {"done": "programs JSON"} once the model's layers are loaded: {"model": PATH,
 *                       "weights": NAME, "kv_dtype": NAME, "invariant": BOOL, "layers": [of the model ...],
 *                       "kinds": [of each half layer of these, then of the head ...], "context": N,
 *                       "step_tokens": N, "positions": N of all rows together}
 *         to "cell TOKENS CONTEXT SECONDS": {"name": "program", "x": 0, "samples": [...]}, seconds of a step;
 *                       the same with x 1 without any half layer and head, with 2 and more without those of
 *                       kind 0 and more, then 0 again; {"done": "cell TOKENS CONTEXT SECONDS"}
 *         to "close":   {"done": "close"}: the model is gone
 *         to "stream":  {"done": "stream"} as soon as copies from host memory flow
 *         to "copied":  {"name": "link.copied", "x": 0, "samples": [BYTES, SECONDS]}: how many had arrived
 *                       when the last copy that is done was, and that time; {"done": "copied"}
 *         to "stop":    {"done": "stop"}
 *         {"error": TEXT} and an end when anything fails
 *
 * Samples are bytes a second, operations a second or seconds, as many as there was time for. */
#pragma once

#include "common/worker/engine.h"

/* 0, or 5 after an error (which was printed). */
int measure_serve(const struct engine_measure_options *options, FILE *in, FILE *out);
