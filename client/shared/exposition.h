/* Prometheus's text format (exposition format 0.0.4): families with HELP and TYPE, their samples, histograms.
 *
 * Used by daemon_metrics.c and by the gateway for its own counters. Knows no metric. Numbers that are not
 * finite are written as Prometheus writes them. */
#pragma once

#include "client/shared/cli.h"

#define EXPOSITION_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Begins a family. `type`: "counter", "gauge", "histogram". */
void exposition_family(struct cli_text *out, const char *name, const char *type, const char *help);
/* A sample of it. `label` NULL: none; else label="value", of which only printable characters are taken. */
void exposition_sample(struct cli_text *out, const char *name, const char *label, const char *value,
                       double number);
/* A family of one sample. */
void exposition_counter(struct cli_text *out, const char *name, double number, const char *help);
void exposition_gauge(struct cli_text *out, const char *name, double number, const char *help);

/* A family that is one histogram, whose counts are of each bucket alone: they are added up here. One without
 * buckets is left out. */
void exposition_histogram(struct cli_text *out, const char *name, const struct helm_histogram *histogram,
                          const char *help);
