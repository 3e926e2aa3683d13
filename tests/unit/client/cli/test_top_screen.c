/* The screen of `helm-cli top` from two answers: rates between them, bars, lines cut to the screen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "client/cli/top_screen.h"

static const struct helm_worker_status workers_before[] = {
    {.name = "cpu", .state = "ready", .busy_seconds = 10, .wait_seconds = 2, .weight_bytes_read = 1000000000},
};
static const struct helm_worker_status workers_now[] = {
    {.name = "cpu",
     .state = "ready",
     .busy_seconds = 11,
     .wait_seconds = 2.5,
     .weight_bytes_read = 41000000000},
    {.name = "gpu",
     .state = "restarting",
     .busy_seconds = 0.5,
     .restarts = 2,
     .link_bytes = 2000000000,
     .vram_bytes = 8ull << 30},
};
static const struct helm_status before = {.version = "1",
                                          .state = "ready",
                                          .tokens_output_total = 100,
                                          .tokens_prompt_total = 50,
                                          .steps_total = 90,
                                          .workers = workers_before,
                                          .worker_count = 1};
static const struct helm_status now = {.version = "1",
                                       .state = "ready",
                                       .draft_tokens = 4,
                                       .tokens_drafted_total = 60,
                                       .tokens_accepted_total = 45,
                                       .seconds_with_drafts = 2,
                                       .seconds_without_drafts = 3,
                                       .uptime_ms = 5000,
                                       .tokens_output_total = 180,
                                       .tokens_prompt_total = 250,
                                       .steps_total = 170,
                                       .running = 1,
                                       .queued = 3,
                                       .queue_limit = 64,
                                       .kv_pages_used = 25,
                                       .kv_pages_total = 100,
                                       .workers = workers_now,
                                       .worker_count = 2};
static const struct helm_list_entry entries[] = {
    {.id = 7,
     .state = "decode",
     .label = "a\033[2Jb",
     .prompt_tokens = 10,
     .prefilled_tokens = 10,
     .output_tokens = 4,
     .max_tokens = 9},
    {.id = 8, .state = "queued", .label = "\xc3\xa9t\xc3\xa9", .prompt_tokens = 10},
};
static const struct helm_list list = {.entries = entries, .count = 2};
static const struct helm_plan_info plan = {.batch = 1,
                                           .decode_seconds = 0.025,
                                           .context = 256,
                                           .prompt = 128,
                                           .ttft_seconds = 0.057,
                                           .drifting = true,
                                           .drift = "slow link"};

static void shows(const struct top_view *view, const char *const *expected)
{
    struct cli_text out = {0};
    top_screen(view, &out);
    assert_false(out.failed);
    for (; *expected; expected++)
        if (!strstr(out.data, *expected)) fail_msg("no '%s' in\n%s", *expected, out.data);
    assert_null(strchr(out.data, '\033'));
    cli_text_free(&out);
}

static void rates_between_two_looks(void **state)
{
    (void)state;
    const struct top_view view = {
        .endpoint = "ipc:///x", .before = &before, .now = &now, .list = &list, .plan = &plan, .seconds = 2};
    shows(&view, (const char *const[]){
                     "    40.0 generated, 100.0 of prompts, 40.0 steps", "    40.0 for 1 at once after 256",
                     "after 57 ms of 128", "drifting   slow link", "1 running, 3 queued of 64",
                     "drafts         30.0 a second, 75 % right, 1.50 times the forecast speed without\n",
                     "[#####...............]  25 %  25 of 100",
                     "cpu        [##########..........]  50 %  waiting  25 %, reads 20.0 GB/s\n",
                     "link 1.0 GB/s, VRAM 8.00 GiB, restarting, restarts 2", "10/10", "4/9", "a?[2Jb", NULL});
}

static void a_daemon_started_anew(void **state)
{
    (void)state;
    const struct top_view view = {.endpoint = "ipc:///x", .before = &now, .now = &before, .seconds = 1};
    shows(&view,
          (const char *const[]){"     0.0 generated, 0.0 of prompts, 0.0 steps", "  0 %  waiting", NULL});
}

static void cut_to_the_screen(void **state)
{
    (void)state;
    for (uint32_t rows = 1; rows < 14; rows++)
        for (uint32_t columns = 1; columns < 60; columns += 7) {
            const struct top_view view = {.endpoint = "ipc:///x",
                                          .now = &now,
                                          .list = &list,
                                          .plan = &plan,
                                          .seconds = 5,
                                          .columns = columns,
                                          .rows = rows};
            struct cli_text out = {0};
            uint32_t lines = 0;
            top_screen(&view, &out);
            for (const char *line = out.data; *line; lines++) {
                uint32_t shown = 0;
                for (; *line != '\n'; line++) shown += ((unsigned char)*line & 0xc0) != 0x80;
                assert_true(shown <= columns);
                line++;
            }
            assert_int_equal(lines, rows);
            cli_text_free(&out);
        }
}

static void whole_characters(void **state)
{
    (void)state;
    const struct top_view all = {.endpoint = "ipc:///x", .now = &now, .list = &list, .seconds = 5};
    shows(&all, (const char *const[]){"\xc3\xa9t\xc3\xa9\n", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_between_two_looks),
        cmocka_unit_test(a_daemon_started_anew),
        cmocka_unit_test(cut_to_the_screen),
        cmocka_unit_test(whole_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
