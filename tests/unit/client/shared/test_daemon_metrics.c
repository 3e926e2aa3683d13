/* The daemon's answers as Prometheus's text: histograms add up, labels carry nothing that breaks a line, a
 * daemon that is not there or is older is said as such. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "client/shared/daemon_metrics.h"
#include "client/shared/exposition.h"

static const double bounds[] = {0.1, 2.5};
static const uint64_t counts[] = {3, 0, 2};

static const struct helm_worker_status workers[] = {
    {.name = "cpu", .state = "ready", .busy_seconds = 4},
    {.name = "gpu\"\n\\", .state = "loading", .link_bytes = 3000000000001},
};
static const struct helm_count ended[] = {{"eos", 4}, {"length", 18446744073709551615u}};
static const struct helm_status status = {.version = "1\n2",
                                          .state = "ready",
                                          .ended = ended,
                                          .ended_count = 2,
                                          .ttft_seconds = {bounds, counts, 3, 7.25},
                                          .kv_page_tokens = 32,
                                          .kv_token_bytes = 4096,
                                          .workers = workers,
                                          .worker_count = 2};
static const struct helm_plan_steps ttft[] = {{.tokens = 64, .measured_seconds = 0.5},
                                              {.tokens = 127, .measured_seconds = NAN}};
static const struct helm_plan_info plan = {.ttft = ttft, .ttft_count = 2, .drifting = true};

static void has(const struct cli_text *out, const char *line)
{
    if (!strstr(out->data, line)) fail_msg("no '%s' in:\n%s", line, out->data);
}

static void samples_and_their_labels(void **state)
{
    (void)state;
    struct cli_text out = {0};
    daemon_metrics_write(&status, &plan, &out);
    has(&out, "\nhelm_up 1\n");
    has(&out, "\nhelm_ready 1\n");
    has(&out, "\nhelm_build_info{version=\"12\"} 1\n");
    has(&out, "\nhelm_requests_ended_total{end=\"eos\"} 4\n");
    has(&out, "\nhelm_worker_up{worker=\"cpu\"} 1\nhelm_worker_up{worker=\"gpu\"} 0\n");
    has(&out, "\nhelm_worker_link_bytes_total{worker=\"gpu\"} 3000000000001\n");
    has(&out, "\nhelm_kv_page_bytes 131072\n");
    has(&out, "\nhelm_resource_seconds_total{resource=\"cpu\"} 4\n");
    has(&out, "\nhelm_first_token_measured_seconds{prompt_tokens_up_to=\"127\"} 0.5\n"
              "helm_first_token_measured_seconds{prompt_tokens_up_to=\"127\"} NaN\n");
    has(&out, "\nhelm_plan_drifting 1\n");
    cli_text_free(&out);
}

static void histograms_add_up(void **state)
{
    (void)state;
    struct cli_text out = {0};
    daemon_metrics_write(&status, NULL, &out);
    has(&out, "# TYPE helm_time_to_first_token_seconds histogram\n"
              "helm_time_to_first_token_seconds_bucket{le=\"0.1\"} 3\n"
              "helm_time_to_first_token_seconds_bucket{le=\"2.5\"} 3\n"
              "helm_time_to_first_token_seconds_bucket{le=\"+Inf\"} 5\n"
              "helm_time_to_first_token_seconds_sum 7.25\nhelm_time_to_first_token_seconds_count 5\n");
    assert_null(strstr(out.data, "helm_time_per_output_token")); /* the daemon keeps none: no zeroes */
    assert_null(strstr(out.data, "helm_plan_"));
    cli_text_free(&out);
}

static void no_daemon(void **state)
{
    (void)state;
    struct cli_text out = {0};
    daemon_metrics_write(NULL, NULL, &out);
    assert_string_equal(out.data, "# HELP helm_up Whether helmd answers.\n# TYPE helm_up gauge\nhelm_up 0\n");
    cli_text_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_and_their_labels),
        cmocka_unit_test(histograms_add_up),
        cmocka_unit_test(no_daemon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
