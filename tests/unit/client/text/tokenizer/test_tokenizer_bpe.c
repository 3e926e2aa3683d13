/* The BPE model: against a slow reference on random vocabularies, unknown characters, byte fallback, long
 * words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/tokenizer/tokenizer.h"

static struct helm_tokenizer *open_json(const char *json)
{
    struct helm_err err = {0};
    struct helm_tokenizer *tokenizer;
    if (helm_tokenizer_open_memory(json, strlen(json), NULL, 0, &tokenizer, &err)) fail_msg("%s", err.text);
    return tokenizer;
}

static void check_ids(const struct helm_tokenizer *tokenizer, const char *text, size_t wanted,
                      const uint32_t *expected)
{
    struct helm_err err = {0};
    uint32_t *ids;
    size_t count;
    if (helm_tokenizer_encode(tokenizer, text, strlen(text), 0, &ids, &count, &err)) fail_msg("%s", err.text);
    if (count != wanted || memcmp(ids, expected, count * sizeof *ids) != 0) {
        for (size_t i = 0; i < count; i++) print_error("%u ", ids[i]);
        fail_msg("'%s': %zu ids, not the %zu expected", text, count, wanted);
    }
    free(ids);
}

#define CHECK_IDS(tokenizer, text, ...)                                                                      \
    check_ids(tokenizer, text, sizeof((uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t),                         \
              (uint32_t[]){__VA_ARGS__})

static void test_merges(void **state)
{
    (void)state;
    static const char *const forms[] = {
        "[\"r e\",\"a t\",\"e d\",\"u n\",\"at ed\",\"re l\",\"rel ated\",\"un related\"]",
        "[[\"r\",\"e\"],[\"a\",\"t\"],[\"e\",\"d\"],[\"u\",\"n\"],[\"at\",\"ed\"],[\"re\",\"l\"],[\"rel\","
        "\"ated\"],"
        "[\"un\",\"related\"]]",
        "[\"#version: 0.2\",\"r e\",\"a t\",\"e d\",\"u n\",\"at ed\",\"re l\",\"rel ated\",\"un related\"]",
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char json[2048];
        snprintf(
            json, sizeof json,
            "{\"model\":{\"vocab\":{\"u\":0,\"n\":1,\"r\":2,\"e\":3,\"l\":4,\"a\":5,\"t\":6,\"d\":7,\"re\":8,"
            "\"at\":9,"
            "\"ed\":10,\"un\":11,\"ated\":12,\"rel\":13,\"related\":14,\"unrelated\":15},\"merges\":%s}}",
            forms[i]);
        struct helm_tokenizer *t = open_json(json);
        CHECK_IDS(t, "unrelated", 15);
        CHECK_IDS(t, "related", 14);
        CHECK_IDS(t, "reded", 8, 7, 10);
        CHECK_IDS(t, "unz",
                  11); /* no unk_token, no byte fallback: the character vanishes, as in Hugging Face */
        helm_tokenizer_close(t);
    }
}

static void test_unknown(void **state)
{
    (void)state;
    static const char base[] =
        "{\"model\":{\"unk_token\":\"<unk>\",\"fuse_unk\":%s,\"byte_fallback\":%s,\"vocab\":{"
        "\"<unk>\":0,\"a\":1,\"b\":2,\"<0x63>\":3,\"<0xC3>\":4,\"<0xA9>\":5},\"merges\":[]}}";
    char json[512];
    snprintf(json, sizeof json, base, "false", "false");
    struct helm_tokenizer *t = open_json(json);
    CHECK_IDS(t, "c", 0);
    CHECK_IDS(t, "accb", 1, 0, 0, 2);
    helm_tokenizer_close(t);
    snprintf(json, sizeof json, base, "true", "false");
    t = open_json(json);
    CHECK_IDS(t, "cc", 0);
    CHECK_IDS(t, "accbd", 1, 0, 2, 0);
    helm_tokenizer_close(t);
    snprintf(json, sizeof json, base, "true", "true");
    t = open_json(json);
    CHECK_IDS(t, "ac\u00E9", 1, 3, 4, 5);
    CHECK_IDS(t, "\u00E8", 0);    /* one of its bytes has no token */
    CHECK_IDS(t, "dcb", 3, 0, 2); /* a waiting unknown comes after the bytes: so it does there */
    helm_tokenizer_close(t);
    t = open_json("{\"model\":{\"unk_token\":\"?\",\"vocab\":{\"a\":0},\"merges\":[]}}");
    struct helm_err err = {0};
    uint32_t *ids;
    size_t count;
    CHECK_IDS(t, "a", 0);
    assert_int_equal(helm_tokenizer_encode(t, "b", 1, 0, &ids, &count, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "unk_token"));
    helm_tokenizer_close(t);
}

static void test_ignore_merges(void **state)
{
    (void)state;
    struct helm_tokenizer *t =
        open_json("{\"model\":{\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,"
                  "\"abc\":4},\"merges\":[\"a b\"]}}");
    CHECK_IDS(t, "abc", 4);
    CHECK_IDS(t, "abca", 3, 2, 0);
    helm_tokenizer_close(t);
}

/* Two merges that give one token: what is queued for the first may be done with the second, as in Hugging
 * Face. */
static void test_equal_results(void **state)
{
    (void)state;
    struct helm_tokenizer *t = open_json("{\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,"
                                         "\"abc\":5},\"merges\":[\"b c\",\"a b\","
                                         "\"ab c\",\"a bc\"]}}");
    CHECK_IDS(t, "abc", 5);
    CHECK_IDS(t, "ababc", 3, 5);
    helm_tokenizer_close(t);
}

/* ---- against a reference ---- */

#define LETTERS 3
#define MERGES  40

struct model {
    char spelled[LETTERS + MERGES][64];
    uint32_t left[MERGES];
    uint32_t right[MERGES];
    size_t merges;
    size_t tokens;
};

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Every merge makes a token of its own, so the rank alone decides. */
static void make_model(struct model *m, uint32_t *seed)
{
    *m = (struct model){.tokens = LETTERS};
    for (unsigned i = 0; i < LETTERS; i++) m->spelled[i][0] = (char)('a' + i);
    for (unsigned attempt = 0; attempt < MERGES; attempt++) {
        uint32_t left = next_random(seed) % m->tokens, right = next_random(seed) % m->tokens;
        char joined[160];
        snprintf(joined, sizeof joined, "%s%s", m->spelled[left], m->spelled[right]);
        bool known = strlen(joined) > 20;
        for (size_t i = 0; i < m->tokens; i++) known |= strcmp(m->spelled[i], joined) == 0;
        if (known) continue;
        snprintf(m->spelled[m->tokens++], 64, "%s", joined);
        m->left[m->merges] = left;
        m->right[m->merges++] = right;
    }
}

static struct helm_tokenizer *open_model(const struct model *m)
{
    char json[16384];
    size_t used = (size_t)snprintf(json, sizeof json, "{\"model\":{\"merges\":[");
    for (size_t i = 0; i < m->merges; i++)
        used += (size_t)snprintf(json + used, sizeof json - used, "%s[\"%s\",\"%s\"]", i ? "," : "",
                                 m->spelled[m->left[i]], m->spelled[m->right[i]]);
    used += (size_t)snprintf(json + used, sizeof json - used, "],\"vocab\":{");
    for (size_t i = 0; i < m->tokens; i++)
        used +=
            (size_t)snprintf(json + used, sizeof json - used, "%s\"%s\":%zu", i ? "," : "", m->spelled[i], i);
    snprintf(json + used, sizeof json - used, "}}}");
    return open_json(json);
}

static size_t reference(const struct model *m, const char *text, uint32_t *ids)
{
    size_t count = strlen(text);
    for (size_t i = 0; i < count; i++) ids[i] = (uint32_t)(text[i] - 'a');
    for (;;) {
        size_t best = m->merges, at = 0;
        for (size_t i = 0; i + 1 < count; i++)
            for (size_t k = 0; k < best; k++)
                if (m->left[k] == ids[i] && m->right[k] == ids[i + 1]) {
                    best = k;
                    at = i;
                }
        if (best == m->merges) return count;
        ids[at] = (uint32_t)(LETTERS + best);
        memmove(ids + at + 1, ids + at + 2, (count - at - 2) * sizeof *ids);
        count--;
    }
}

static void test_against_reference(void **state)
{
    (void)state;
    uint32_t seed = 12345;
    for (int round = 0; round < 60; round++) {
        struct model m;
        make_model(&m, &seed);
        struct helm_tokenizer *t = open_model(&m);
        for (int word = 0; word < 30; word++) {
            char text[64];
            uint32_t expected[64];
            size_t length = 1 + next_random(&seed) % 60;
            for (size_t i = 0; i < length; i++) text[i] = (char)('a' + next_random(&seed) % LETTERS);
            text[length] = '\0';
            check_ids(t, text, reference(&m, text, expected), expected);
        }
        helm_tokenizer_close(t);
    }
}

/* The cache and the cuts before U+2581 change nothing: a long text gives what its parts give. */
static void test_cuts(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct helm_tokenizer *t =
        open_json("{\"model\":{\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"\u2581\":1,\"a\":2,\"b\":3,"
                  "\"\u2581a\":4,\"ab\":5,\"b\u2581\":6,"
                  "\"\u2581\u2581\":7},\"merges\":[\"\u2581 a\",\"b \u2581\",\"a b\",\"\u2581 \u2581\"]}}");
    static const char part[] = "ab\u2581ab\u2581\u2581ba\u2581a\u2581x\u2581b";
    static const uint32_t ids[] = {5, 4, 6, 1, 3, 2, 4, 1, 0, 1, 3};
    check_ids(t, part, sizeof ids / sizeof *ids, ids);
    size_t times = 500, n = sizeof ids / sizeof *ids, length = sizeof part - 1, count;
    char *text = malloc(times * length);
    for (size_t i = 0; i < times; i++) memcpy(text + i * length, part, length);
    uint32_t *got;
    assert_int_equal(helm_tokenizer_encode(t, text, times * length, 0, &got, &count, &err), 0);
    assert_int_equal(count, times * n);
    for (size_t i = 0; i < times; i++) assert_memory_equal(got + i * n, ids, sizeof ids);
    free(got);
    free(text);
    helm_tokenizer_close(t);
}

/* One word of a million characters is a matter of a second even under a sanitizer; were it quadratic, of
 * hours. */
static void test_long_word(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct helm_tokenizer *t =
        open_json("{\"model\":{\"vocab\":{\"a\":0,\"aa\":1,\"aaaa\":2},\"merges\":[\"a a\",\"aa aa\"]}}");
    size_t length = 1000000, count;
    char *text = malloc(length);
    uint32_t *ids;
    memset(text, 'a', length);
    assert_int_equal(helm_tokenizer_encode(t, text, length, 0, &ids, &count, &err), 0);
    assert_int_equal(count, length / 4);
    free(ids);
    assert_int_equal(helm_tokenizer_encode(t, text, (size_t)HELM_TOKENIZER_TEXT_LIMIT + 1, 0, &ids, &count,
                                           &err),
                     HELM_E_LIMIT);
    free(text);
    helm_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_ignore_merges),
        cmocka_unit_test(test_equal_results),
        cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_long_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
