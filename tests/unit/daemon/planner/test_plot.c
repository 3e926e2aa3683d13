/* Unit tests of daemon/planner/report/plot.c: the document is well formed, has all its parts, draws what the
 * numbers say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <math.h>
#include <unistd.h>

#include "daemon/planner/report/plot.h"
#include "tests/unit/daemon/planner/explain_case.h"

/* Elements are closed in order, attributes quoted, characters escaped: enough of XML for what plot.c writes.
 */
static void check_well_formed(const char *text)
{
    char open[64][16];
    int depth = 0, roots = 0;
    for (const char *c = text; *c; c++) {
        if (*c == '&') {
            static const char *const entity[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
            bool known = false;
            for (int i = 0; i < 4; i++) known |= strncmp(c, entity[i], strlen(entity[i])) == 0;
            if (!known) fail_msg("a bare & at: %.40s", c);
        }
        assert_true((unsigned char)*c >= 0x20 || *c == '\n');
        if (*c != '<') continue;
        bool end = c[1] == '/', empty = false;
        const char *name = c + 1 + end, *at = name;
        while (isalnum((unsigned char)*at)) at++;
        size_t length = (size_t)(at - name);
        assert_true(length > 0 && length < sizeof open[0]);
        for (bool quoted = false; *at && (quoted || *at != '>'); at++) {
            if (*at == '"') quoted = !quoted;
            if (*at == '<') fail_msg("< inside a tag: %.60s", c);
            empty = !quoted && at[0] == '/' && at[1] == '>';
        }
        assert_int_equal(*at, '>');
        if (end) {
            assert_true(depth > 0);
            depth--;
            if (strncmp(open[depth], name, length) || open[depth][length])
                fail_msg("%s closed by %.20s", open[depth], name);
        } else if (!empty) {
            assert_true(depth < 64);
            if (depth == 0) roots++;
            memcpy(open[depth], name, length);
            open[depth++][length] = 0;
        }
        c = at;
    }
    assert_int_equal(depth, 0);
    assert_int_equal(roots, 1);
}

static char *draw(struct explain_case *c)
{
    struct explain x;
    struct helm_err err = {0};
    char *text = NULL;
    size_t size = 0;
    if (explain_make(&c->request, &c->plan, 0, &x, &err)) fail_msg("%s", err.text);
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    plot_print(&x, out);
    fclose(out);
    explain_free(&x);
    return text;
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word)) n++;
    return n;
}

/* Every number of this attribute lies on the page. */
static void check_inside(const char *text, const char *attribute, double most)
{
    for (const char *at = text; (at = strstr(at, attribute)); at++) {
        double value = strtod(at + strlen(attribute), NULL);
        if (!(value >= 0 && value <= most)) fail_msg("%s%g is not on the page", attribute, value);
    }
}

static void all_panels_are_drawn(void **state)
{
    (void)state;
    struct explain_case c;
    case_open(&c, "qwen3-8b", "thesis-rtx4060-laptop", 0);
    case_write(&c);
    char *text = draw(&c);
    check_well_formed(text);
    static const char *const words[] = {"<svg xmlns=\"http://www.w3.org/2000/svg\"",
                                        "prefers-color-scheme: dark",
                                        "layers on the GPU",
                                        "does not fit",
                                        "this plan (best)",
                                        ">CPU</text>",
                                        ">GPU</text>",
                                        ">link</text>",
                                        "one decode step by resource",
                                        "milliseconds",
                                        "class=\"cpu\"",
                                        "class=\"gpu\"",
                                        "class=\"stream\"",
                                        "class=\"link\"",
                                        "class=\"end\"",
                                        "qwen3-8b",
                                        " %</text>",
                                        "token/s over tokens in the context",
                                        "class=\"curve\"",
                                        ">4096</text>"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strstr(text, words[i])) fail_msg("no '%s'", words[i]);
    assert_true(count(text, "class=\"fits\"") > 5);
    check_inside(text, " x=\"", 960);
    check_inside(text, " x1=\"", 960);
    check_inside(text, " x2=\"", 960);
    check_inside(text, " y=\"", 920);
    check_inside(text, " y1=\"", 920);
    check_inside(text, " y2=\"", 920);
    check_inside(text, " cy=\"", 920);
    check_inside(text, " width=\"", 960);
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    free(text);
    case_close(&c);
}

static void all_on_the_gpu_and_no_gpu_are_drawn(void **state)
{
    (void)state;
    struct explain_case c;
    case_open(&c, "qwen3-4b", "h200-sapphire-rapids", 0);
    case_make(&c);
    char *text = draw(&c);
    check_well_formed(text);
    assert_null(strstr(text, "does not fit"));
    assert_int_equal(count(text, "class=\"fits\""), 37);
    assert_null(strstr(text, "<rect class=\"link\""));
    free(text);
    case_close(&c);
    case_open(&c, "qwen3-4b", "h200-sapphire-rapids", 0);
    c.profile.gpu = (struct profile_gpu){0};
    c.request.machine.device = (struct ledger_device){.limit = UINT64_MAX};
    case_make(&c);
    text = draw(&c);
    check_well_formed(text);
    assert_non_null(strstr(text, "nothing to split"));
    assert_int_equal(count(text, "<circle"), count(text, "class=\"point\""));
    assert_int_equal(count(text, "class=\"point\""), 4); /* 256, 1024, 4096, 8192 */
    assert_int_equal(count(text, "class=\"other\""), 0);
    free(text);
    case_close(&c);
}

static void two_tiers_are_drawn_beside_one(void **state)
{
    (void)state;
    struct explain_case c;
    case_open(&c, "qwen3-8b", "h200-sapphire-rapids", 8 * GIB);
    c.request.tiers = KV_TIERS_TWO;
    c.request.wish.ctx = 16384;
    case_make(&c);
    assert_true(plan_kv_tiered(&c.plan));
    char *text = draw(&c);
    check_well_formed(text);
    check_inside(text, " cy=\"", 920);
    assert_non_null(strstr(text, "dashed: the plan with one tier"));
    assert_int_equal(count(text, "class=\"point\""), 2 * 5);
    assert_int_equal(count(text, "<polyline class=\"other\""), 1);
    free(text);
    case_close(&c);
}

static void names_are_escaped(void **state)
{
    (void)state;
    struct explain_case c;
    case_open(&c, "qwen3-4b", "h200-sapphire-rapids", 0);
    case_make(&c);
    free(c.model.folder);
    c.model.folder = strdup("/models/<a>&\"b\"\x01\xff");
    snprintf(c.profile.machine, sizeof c.profile.machine, "M & <N>");
    char *text = draw(&c);
    check_well_formed(text);
    assert_non_null(strstr(text, "&lt;a&gt;&amp;&quot;b&quot;??"));
    assert_non_null(strstr(text, "M &amp; &lt;N&gt;"));
    free(text);
    case_close(&c);
}

static void files_are_written_or_the_reason_given(void **state)
{
    (void)state;
    struct explain_case c;
    struct explain x;
    struct helm_err err = {0};
    char folder[] = "/tmp/helm-test-plot-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a.svg", folder);
    case_open(&c, "qwen3-8b", "thesis-rtx4060-laptop", 0);
    case_write(&c);
    if (explain_make(&c.request, &c.plan, 0, &x, &err)) fail_msg("%s", err.text);
    assert_int_equal(plot_write(&x, path, &err), 0);
    assert_int_equal(access(path, R_OK), 0);
    assert_int_equal(plot_write(&x, "/nonexistent-folder/a.svg", &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent-folder/a.svg"));
    if (access("/dev/full", W_OK) == 0) assert_int_equal(plot_write(&x, "/dev/full", &err), HELM_E_IO);
    unlink(path);
    rmdir(folder);
    explain_free(&x);
    case_close(&c);
}

static void steps_are_round(void **state)
{
    (void)state;
    static const struct {
        double most;
        int parts;
        double step;
    } cases[] = {{10, 5, 2},      {10, 10, 1}, {11, 10, 2},   {36, 12, 5},
                 {0.07, 6, 0.02}, {6.5, 6, 2}, {1000, 6, 200}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_float_equal(plot_step(cases[i].most, cases[i].parts), cases[i].step, 1e-9 * cases[i].step);
    assert_float_equal(plot_step(0, 5), 1, 0);
    assert_float_equal(plot_step(NAN, 5), 1, 0);
    assert_float_equal(plot_step(INFINITY, 5), 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_panels_are_drawn),
        cmocka_unit_test(all_on_the_gpu_and_no_gpu_are_drawn),
        cmocka_unit_test(two_tiers_are_drawn_beside_one),
        cmocka_unit_test(names_are_escaped),
        cmocka_unit_test(files_are_written_or_the_reason_given),
        cmocka_unit_test(steps_are_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
