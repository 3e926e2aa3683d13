/* Unit tests of daemon/config.c: command line, file, which wins, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/start/config.h"

static int read_line(struct config *config, struct helm_err *err, const char *const *argv)
{
    int argc = 0;
    bool exit_now = false;
    while (argv[argc]) argc++;
    return config_read(argc, (char *const *)argv, config, &exit_now, err);
}
#define READ(config, err, ...) read_line(config, err, (const char *const[]){"helmd", __VA_ARGS__, NULL})

static const char *file_with(const char *text)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/helm-config-test-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    return path;
}

static void the_command_line_is_read(void **state)
{
    (void)state;
    struct config c;
    struct helm_err err = {0};
    assert_int_equal(READ(&c, &err, "--model", "/m", "--listen", "ipc:///a", "--listen=ipc:///b",
                          "--host-memory", "8GiB", "--ctx", "4096", "--kv-dtype", "bf16", "--kv-tiers", "two",
                          "--kv-page-tokens", "64", "--die-with-parent"),
                     0);
    assert_string_equal(c.model, "/m");
    assert_int_equal(c.listen.count, 2);
    assert_string_equal(c.listen.item[1], "ipc:///b");
    assert_true(c.host_memory_bytes == (uint64_t)8 << 30);
    assert_int_equal(c.ctx, 4096);
    assert_int_equal(c.kv_dtype, KV_BF16);
    assert_int_equal(c.kv_tiers, KV_TIERS_TWO);
    assert_string_equal(c.kv_page_tokens, "64");
    assert_true(c.die_with_parent);
    assert_true(c.ready_fd == CONFIG_NO_FD);
    assert_int_equal(c.parallel, 8);
    config_free(&c);
}

static void what_the_planner_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum search_strategy strategy;
    } strategies[] = {{"best", SEARCH_BEST},       {"all-gpu", SEARCH_ALL_GPU},
                      {"all-cpu", SEARCH_ALL_CPU}, {"thesis", SEARCH_THESIS},
                      {"stream", SEARCH_STREAM},   {"experts-cpu", SEARCH_EXPERTS_CPU},
                      {"mixed", SEARCH_MIXED}};
    struct config c;
    struct helm_err err = {0};
    assert_int_equal(READ(&c, &err, "--model", "/m"), 0);
    assert_null(c.profile_file);
    assert_int_equal(c.strategy, SEARCH_BEST);
    assert_true(c.batch == 1 && c.prompt == 128 && c.max_stall_ms == CONFIG_STALL_MS && !c.no_graphs);
    assert_false(c.no_chains);
    config_free(&c);
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        assert_int_equal(READ(&c, &err, "--model", "/m", "--strategy", strategies[i].name), 0);
        assert_int_equal(c.strategy, strategies[i].strategy);
        assert_string_equal(search_strategy_name(c.strategy), strategies[i].name);
        config_free(&c);
    }
    const char *path =
        file_with("model = /m\nprofile = /p.json\nstrategy = stream\nbatch = 4\nprompt = 2048\n"
                  "max-stall-ms = 0\ngpu-graphs = off\ngpu-chains = off\npack = off\n");
    assert_int_equal(READ(&c, &err, "--config", path), 0);
    assert_string_equal(c.profile_file, "/p.json");
    assert_int_equal(c.strategy, SEARCH_STREAM);
    assert_true(c.batch == 4 && c.prompt == 2048 && c.max_stall_ms == 0 && c.no_graphs && c.no_chains);
    assert_false(c.pack);
    config_free(&c);
    unlink(path);
    assert_int_equal(READ(&c, &err, "--model", "/m"), 0);
    assert_true(c.pack && !c.no_graphs && !c.no_chains && c.activations == ACTIVATIONS_AUTO &&
                c.sharing == PREFIX_ON);
    config_free(&c);
    assert_int_equal(READ(&c, &err, "--model", "/m", "--activations", "int8"), 0);
    assert_int_equal(c.activations, ACTIVATIONS_INT8);
    config_free(&c);
    assert_int_equal(READ(&c, &err, "--model", "/m", "--exact"), 0);
    assert_int_equal(c.activations, ACTIVATIONS_EXACT);
    config_free(&c);
    assert_int_equal(READ(&c, &err, "--model", "/m", "--exact", "--activations", "int8"), HELM_E_USAGE);
    config_free(&c);
}

static void drafts_are_off_unless_asked_for(void **state)
{
    (void)state;
    struct config c;
    struct helm_err err = {0};
    assert_int_equal(READ(&c, &err, "--model", "/m"), 0);
    assert_true(c.speculate == REQUEST_SPECULATE_OFF && c.draft_tokens == 0);
    config_free(&c);
    assert_int_equal(READ(&c, &err, "--model", "/m", "--speculate", "ngram"), 0);
    assert_true(c.speculate == REQUEST_SPECULATE_NGRAM && c.draft_tokens == 4);
    config_free(&c);
    assert_int_equal(READ(&c, &err, "--model", "/m", "--speculate", "auto"), 0);
    assert_true(c.speculate == REQUEST_SPECULATE_AUTO && c.draft_tokens == 15);
    config_free(&c);
    assert_int_equal(READ(&c, &err, "--model", "/m", "--draft-tokens", "15"), 0);
    assert_true(c.speculate == REQUEST_SPECULATE_OFF && c.draft_tokens == 15); /* of requests that ask */
    config_free(&c);
    assert_int_equal(READ(&c, &err, "--model", "/m", "--draft-tokens", "16"), HELM_E_USAGE);
    config_free(&c);
    assert_int_equal(READ(&c, &err, "--model", "/m", "--speculate", "ngram", "--draft-tokens", "0"),
                     HELM_E_USAGE);
    config_free(&c);
}

static void a_draft_model_may_be_named_in_two_ways(void **state)
{
    (void)state;
    struct config c;
    struct helm_err err = {0};
    static const char *const given[][2] = {{"--draft-model", "/d"},
                                           {"--speculate", "draft=/d"},
                                           {"--speculate=draft=/d", NULL}};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        const int rc = given[i][1] ? READ(&c, &err, "--model", "/m", given[i][0], given[i][1])
                                   : READ(&c, &err, "--model", "/m", given[i][0]);
        if (rc) fail_msg("%s", err.text);
        assert_true(c.speculate == REQUEST_SPECULATE_DRAFT && c.draft_tokens == 4);
        assert_string_equal(c.draft_model, "/d");
        config_free(&c);
    }
    static const struct {
        const char *speculate;
        enum request_speculate kind;
        uint32_t drafts;
    } kinds[] = {{"off", REQUEST_SPECULATE_OFF, 4},
                 {"ngram", REQUEST_SPECULATE_NGRAM, 4},
                 {"auto", REQUEST_SPECULATE_AUTO, 15},
                 {"draft", REQUEST_SPECULATE_DRAFT, 4}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        assert_int_equal(READ(&c, &err, "--model", "/m", "--draft-model", "/d", "--speculate",
                              kinds[i].speculate),
                         0);
        assert_int_equal(c.speculate, kinds[i].kind);
        assert_int_equal(c.draft_tokens, kinds[i].drafts);
        config_free(&c);
    }
    assert_int_equal(READ(&c, &err, "--model", "/m", "--draft-model", "/d", "--draft-device", "cuda:1"), 0);
    assert_string_equal(c.draft_device, "cuda:1");
    /* under which ceiling? */
    static const struct {
        const char *devices, *vram, *draft;
        int rc;
    } ceilings[] = {{"cuda:0", "8GiB", "cuda:0", 0},
                    {"cuda:0", "8GiB", "cuda:1", 0},
                    {"auto", "8GiB", "cpu", 0},
                    {"auto", "8GiB", "cuda:0", HELM_E_USAGE},
                    {"cuda", "8GiB", "cuda:0", HELM_E_USAGE},
                    {"cuda:0,cuda:1", "8GiB,4GiB", "cuda:1", HELM_E_USAGE}};
    for (size_t i = 0; i < sizeof ceilings / sizeof *ceilings; i++)
        assert_int_equal(READ(&c, &err, "--model", "/m", "--draft-model", "/d", "--device",
                              ceilings[i].devices, "--vram", ceilings[i].vram, "--draft-device",
                              ceilings[i].draft),
                         ceilings[i].rc);
    config_free(&c);
    static const char *const wrong[][3] = {{"--speculate", "draft", "needs --draft-model"},
                                           {"--draft-device", "cpu", "is for --draft-model"},
                                           {"--draft-device", "tpu", "tpu"},
                                           {"--speculate", "draft=", "has no name"},
                                           {"--speculate", "ngram=/d", "is none of"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(READ(&c, &err, "--model", "/m", wrong[i][0], wrong[i][1]), HELM_E_USAGE);
        if (!strstr(err.text, wrong[i][2])) fail_msg("'%s' does not say '%s'", err.text, wrong[i][2]);
        config_free(&c);
    }
    assert_int_equal(READ(&c, &err, "--model", "/m", "--draft-model", "/d", "--speculate", "mtp"),
                     HELM_E_USAGE);
    config_free(&c);
    assert_int_equal(READ(&c, &err, "--model", "/m", "--draft-model", "/d", "--draft-tokens", "0"),
                     HELM_E_USAGE);
    config_free(&c);
    assert_int_equal(READ(&c, &err, "--model", "/m", "--draft-model", "/d", "--speculate", "draft=/e"),
                     HELM_E_USAGE);
    config_free(&c);
}

static void the_file_fills_in_and_the_command_line_wins(void **state)
{
    (void)state;
    struct config c;
    struct helm_err err = {0};
    const char *path =
        file_with("; comment\n[helmd]\nmodel = /from/file\nparallel = 4\nqueue=7\nlisten = ipc:///x\n"
                  "listen = ipc:///y\nhost-memory = 2GiB\ndie-with-parent = no\nlog-level = warn\n");
    assert_int_equal(READ(&c, &err, "--config", path, "--parallel", "6", "--prefix-cache", "peer"), 0);
    assert_string_equal(c.model, "/from/file");
    assert_int_equal(c.sharing, PREFIX_PEER);
    assert_int_equal(c.parallel, 6);
    assert_int_equal(c.queue, 7);
    assert_int_equal(c.listen.count, 2);
    assert_true(c.host_memory_bytes == (uint64_t)2 << 30);
    assert_false(c.die_with_parent);
    assert_int_equal(c.log_level, LOG_LEVEL_WARN);
    config_free(&c);
    unlink(path);
}

static void a_bad_file_names_its_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } cases[] = {{"model = /m\n\nbogus = 1\n", ":3: unknown key 'bogus'"},
                 {"parallel = 65\n", ":1: "},
                 {"model = /m\nparallel = x\n", ":2: "},
                 {"[server]\nmodel = /m\n", "[server]"},
                 {"model\n", ":1: "},
                 {"model = /m\nctx = 64\nctx = 128\n", ":3: 'ctx' is set twice"},
                 {"die-with-parent = maybe\n", "yes or no"},
                 {"config = other.ini\n", "unknown key"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config c;
        struct helm_err err = {0};
        const char *path = file_with(cases[i].text);
        assert_int_equal(READ(&c, &err, "--config", path), HELM_E_USAGE);
        if (!strstr(err.text, cases[i].word) || !strstr(err.text, path))
            fail_msg("'%s' does not say '%s'", err.text, cases[i].word);
        config_free(&c);
        unlink(path);
    }
    struct config c;
    struct helm_err err = {0};
    assert_int_equal(READ(&c, &err, "--config", "/nonexistent/helmd.ini"), HELM_E_IO);
    config_free(&c);
}

static void what_makes_no_sense_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *option, *value;
        int rc;
    } cases[] = {{"--device", "tpu", HELM_E_USAGE},        {"--device", "cuda:x", HELM_E_USAGE},
                 {"--device", "cuda:", HELM_E_USAGE},      {"--vram", "plenty", HELM_E_USAGE},
                 {"--kv-tiers", "three", HELM_E_USAGE},    {"--kv-dtype", "q8", HELM_E_USAGE},
                 {"--kv-page-tokens", "48", HELM_E_USAGE}, {"--parallel", "0", HELM_E_USAGE},
                 {"--step-tokens", "9000", HELM_E_USAGE},  {"--threads", "-1", HELM_E_USAGE},
                 {"--threads", "1024", HELM_E_USAGE}, /* more CPUs than this process may use */

                 {"--disk-rate", "0", HELM_E_USAGE},       {"--host-memory", "lots", HELM_E_USAGE},
                 {"--log-level", "loud", HELM_E_USAGE},    {"--strategy", "fast", HELM_E_USAGE},
                 {"--batch", "0", HELM_E_USAGE},           {"--batch", "9", HELM_E_USAGE},
                 {"--prompt", "0", HELM_E_USAGE},          {"--max-stall-ms", "-1", HELM_E_USAGE},
                 {"--gpu-graphs", "maybe", HELM_E_USAGE},  {"--gpu-chains", "maybe", HELM_E_USAGE},
                 {"--pack", "on", HELM_E_USAGE},           {"--activations", "int4", HELM_E_USAGE},
                 {"--nothing", "1", HELM_E_USAGE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config c;
        struct helm_err err = {0};
        assert_int_equal(READ(&c, &err, "--model", "/m", cases[i].option, cases[i].value), cases[i].rc);
        assert_non_null(strstr(err.text, cases[i].option));
        config_free(&c);
    }
    struct config c;
    struct helm_err err = {0};
    assert_int_equal(READ(&c, &err, "--ctx", "64"), HELM_E_USAGE); /* no model */
    config_free(&c);
    assert_int_equal(READ(&c, &err, "--model", "/m", "--parallel", "32", "--step-tokens", "16"),
                     HELM_E_USAGE);
    config_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_command_line_is_read),
        cmocka_unit_test(what_the_planner_is_told),
        cmocka_unit_test(drafts_are_off_unless_asked_for),
        cmocka_unit_test(a_draft_model_may_be_named_in_two_ways),
        cmocka_unit_test(the_file_fills_in_and_the_command_line_wins),
        cmocka_unit_test(a_bad_file_names_its_line),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
