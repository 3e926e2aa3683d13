/* Prometheus's text format. See exposition.h. Source: Prometheus documentation, "Exposition formats", text
 * format 0.0.4. */
#include "client/shared/exposition.h"

#include <inttypes.h>
#include <math.h>

void exposition_family(struct cli_text *out, const char *name, const char *type, const char *help)
{
    cli_text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void add_number(struct cli_text *out, double number)
{
    if (isnan(number))
        cli_text_printf(out, "NaN");
    else if (isinf(number))
        cli_text_printf(out, number > 0 ? "+Inf" : "-Inf");
    else if (number == floor(number) && fabs(number) < 9e15)
        cli_text_printf(out, "%.0f", number); /* counts in full */
    else
        cli_text_printf(out, "%.9g", number);
}

void exposition_sample(struct cli_text *out, const char *name, const char *label, const char *value,
                       double number)
{
    cli_text_printf(out, "%s", name);
    if (label) {
        cli_text_printf(out, "{%s=\"", label);
        for (; *value; value++) /* names come from other programs */
            if (*value >= 32 && *value < 127 && *value != '"' && *value != '\\') cli_text_add(out, value, 1);
        cli_text_printf(out, "\"}");
    }
    cli_text_add(out, " ", 1);
    add_number(out, number);
    cli_text_add(out, "\n", 1);
}

void exposition_counter(struct cli_text *out, const char *name, double number, const char *help)
{
    exposition_family(out, name, "counter", help);
    exposition_sample(out, name, NULL, NULL, number);
}

void exposition_gauge(struct cli_text *out, const char *name, double number, const char *help)
{
    exposition_family(out, name, "gauge", help);
    exposition_sample(out, name, NULL, NULL, number);
}

void exposition_histogram(struct cli_text *out, const char *name, const struct helm_histogram *h,
                          const char *help)
{
    uint64_t sum = 0;
    if (!h->bucket_count) return;
    exposition_family(out, name, "histogram", help);
    for (size_t i = 0; i + 1 < h->bucket_count; i++) {
        sum += h->counts[i];
        cli_text_printf(out, "%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, h->bounds[i], sum);
    }
    sum += h->counts[h->bucket_count - 1];
    cli_text_printf(out, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n%s_sum ", name, sum, name);
    add_number(out, h->sum);
    cli_text_printf(out, "\n%s_count %" PRIu64 "\n", name, sum);
}
