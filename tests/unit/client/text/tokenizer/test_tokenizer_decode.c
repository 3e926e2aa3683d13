/* Decoders, whole and incremental: what comes out, and when. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/tokenizer/tokenizer.h"
#include "common/base/file.h"

static struct helm_tokenizer *open_json(const char *json)
{
    struct helm_err err = {0};
    struct helm_tokenizer *tokenizer;
    if (helm_tokenizer_open_memory(json, strlen(json), NULL, 0, &tokenizer, &err)) fail_msg("%s", err.text);
    return tokenizer;
}

static struct helm_tokenizer *open_data(const char *name)
{
    struct helm_err err = {0};
    char path[128], *text;
    size_t length;
    snprintf(path, sizeof path, "tests/data/tokenizers/%s.json", name);
    if (file_read(path, 1u << 24, &text, &length, &err)) fail_msg("%s", err.text);
    struct helm_tokenizer *tokenizer = open_json(text);
    free(text);
    return tokenizer;
}

/* Tokens given by spelling, separated by '|'; the pieces of the incremental detokenizer expected likewise. */
static void check(const struct helm_tokenizer *t, unsigned flags, const char *tokens, const char *pieces)
{
    struct helm_err err = {0};
    uint32_t ids[64];
    size_t count = 0, used = 0, length;
    char joined[512] = "", whole[512] = "", *text;
    for (const char *at = tokens; *at;) {
        size_t n = strcspn(at, "|");
        ids[count] = helm_tokenizer_token_to_id(t, at, n);
        if (ids[count++] == HELM_TOKENIZER_NO_ID) fail_msg("no token '%.*s'", (int)n, at);
        at += n + (at[n] == '|');
    }
    struct helm_detokenizer *d;
    assert_int_equal(helm_detokenizer_open(t, flags, &d, &err), 0);
    for (int round = 0; round < 2; round++) { /* the second shows that finish leaves nothing */
        used = 0;
        whole[0] = '\0';
        for (size_t i = 0; i <= count; i++) {
            const char *piece;
            int rc = i < count ? helm_detokenizer_push(d, ids[i], &piece, &length, &err)
                               : helm_detokenizer_finish(d, &piece, &length, &err);
            if (rc) fail_msg("%s", err.text);
            assert_int_equal(strlen(piece), length);
            used += (size_t)snprintf(joined + used, sizeof joined - used, "%s%s", i ? "|" : "", piece);
            strcat(whole, piece);
        }
        if (strcmp(joined, pieces) != 0) fail_msg("%s: '%s', not '%s'", tokens, joined, pieces);
    }
    helm_detokenizer_close(d);
    if (helm_tokenizer_decode(t, ids, count, flags, &text, &length, &err)) fail_msg("%s", err.text);
    assert_string_equal(text, whole);
    assert_int_equal(length, strlen(whole));
    free(text);
}

static void test_byte_level(void **state)
{
    (void)state;
    struct helm_tokenizer *t = open_data("bytelevel");
    check(t, 0, "hello|Ġworld|!", "hello| world|!|");
    check(t, 0, "ðŁĺ|ģ|a", "|\U0001F601|a|");
    check(t, 0, "ðŁ|a|ð", "|\uFFFDa||\uFFFD"); /* a broken character, and one that ends too early */
    check(t, 0, "Ã|Ã|©", "|\uFFFD|\u00E9|");
    check(t, 0, "Ħ|â|Ħ", "\uFFFD|||\uFFFD");
    check(t, 0, "<think>|hello", "<think>|hello|");
    check(t, 0, "Ã|<pad>|©", "|\uFFFD<pad>|\uFFFD|");
    check(t, HELM_TOKENIZER_DECODE_SKIP_SPECIAL, "Ã|<pad>|©", "||\u00E9|");
    helm_tokenizer_close(t);
}

static void test_sentencepiece(void **state)
{
    (void)state;
    struct helm_tokenizer *t = open_data("sentencepiece");
    check(t, 0, "▁hello|▁world", "hello| world|");
    check(t, 0, "▁▁|a", " |a|");
    check(t, 0, "<s>|▁hello", "<s>| hello|");
    check(t, HELM_TOKENIZER_DECODE_SKIP_SPECIAL, "<s>|▁hello", "|hello|");
    /* a run of bytes is text only if all of it is, so it waits for the run's end */
    check(t, 0, "<0xE6>|<0x88>|<0x91>|a", "|||\u6211a|");
    check(t, 0, "<0xE6>|<0x88>|<0x91>|<0xFF>|a", "||||\uFFFD\uFFFD\uFFFD\uFFFDa|");
    check(t, 0, "a|<0xF0>|<0x9F>", "a|||\uFFFD\uFFFD");
    check(t, 0, "<0x20>|<0x20>|a", "|| a|");
    check(t, HELM_TOKENIZER_DECODE_SKIP_SPECIAL, "<0xC3>|</s>|<0xA9>", "|||\u00E9");
    helm_tokenizer_close(t);
}

static void test_metaspace(void **state)
{
    (void)state;
    struct helm_tokenizer *t = open_data("metaspace");
    check(t, 0, "▁he|ll|▁|a", "he|ll| |a|");
    check(t, 0, "a|▁he", "a| he|");
    helm_tokenizer_close(t);
}

static void test_no_decoder(void **state)
{
    (void)state;
    struct helm_tokenizer *t = open_data("words");
    check(t, 0, "the|and|1", "the| and| 1|");
    check(t, 0, "", "");
    helm_tokenizer_close(t);
}

#define TOKENIZER(decoder)                                                                                   \
    "{\"decoder\":" decoder                                                                                  \
    ",\"model\":{\"vocab\":{\"yHey\":0,\"yy\":1,\"y\":2,\"a-b\":3,\"-\":4,\"Hy\":5,\"<0x79>\":6,"            \
    "\"\":7},\"merges\":[]}}"

static void test_strip(void **state)
{
    (void)state;
    struct helm_tokenizer *t =
        open_json(TOKENIZER("{\"type\":\"Strip\",\"content\":\"y\",\"start\":1,\"stop\":0}"));
    check(t, 0, "yHey|yy|a-b|y", "Hey|y|a-b||");
    helm_tokenizer_close(t);
    t = open_json(TOKENIZER("{\"type\":\"Strip\",\"content\":\"y\",\"start\":0,\"stop\":1}"));
    check(t, 0, "yHey|yy|y|Hy", "yHe|y||H|");
    helm_tokenizer_close(t);
    t = open_json(TOKENIZER("{\"type\":\"Strip\",\"content\":\"y\",\"start\":1,\"stop\":2}"));
    check(t, 0, "yy|yHey", "|He|");
    helm_tokenizer_close(t);
    /* fused, the trailing characters wait for what follows */
    t = open_json(TOKENIZER(
        "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\"y\","
        "\"start\":1,\"stop\":2}]}"));
    check(t, 0, "yHey|yy|Hy|yy|y", "He|y|yyH|y|y|");
    helm_tokenizer_close(t);
}

static void test_replace(void **state)
{
    (void)state;
    struct helm_tokenizer *t =
        open_json(TOKENIZER("{\"type\":\"Replace\",\"pattern\":{\"String\":\"-\"},\"content\":\"+\"}"));
    check(t, 0, "a-b|-", "a+b|+|");
    helm_tokenizer_close(t);
    t = open_json(TOKENIZER("{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[a-b]+\"},\"content\":\"\"}"));
    check(t, 0, "a-b|y", "-|y|");
    helm_tokenizer_close(t);
    /* after Fuse all is one token, so it comes at the end */
    t = open_json(TOKENIZER(
        "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Replace\",\"pattern\":{"
        "\"String\":\"yy\"},\"content\":\"Z\"}]}"));
    check(t, 0, "y|y|yy|y", "||||ZZy");
    helm_tokenizer_close(t);
}

static void test_unknown_ids_and_flags(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct helm_tokenizer *t = open_data("bytelevel");
    static const uint32_t ids[] = {104, HELM_TOKENIZER_NO_ID, 5000, 16000000};
    char *text;
    assert_int_equal(helm_tokenizer_decode(t, ids, 4, 0, &text, NULL, &err), 0);
    assert_int_equal(strlen(text), 1);
    free(text);
    assert_int_equal(helm_tokenizer_decode(t, NULL, 0, 0, &text, NULL, &err), 0);
    assert_string_equal(text, "");
    free(text);
    assert_int_equal(helm_tokenizer_decode(t, ids, 1, 8, &text, NULL, &err), HELM_E_USAGE);
    assert_null(text);
    helm_tokenizer_close(t);
}

/* The bytes of a token given by its spelling. */
static void check_bytes(const struct helm_tokenizer *t, const char *token, const char *wanted)
{
    struct helm_err err = {0};
    char *bytes;
    size_t length;
    const uint32_t id = helm_tokenizer_token_to_id(t, token, strlen(token));
    assert_int_not_equal(id, HELM_TOKENIZER_NO_ID);
    assert_int_equal(helm_tokenizer_token_bytes(t, id, &bytes, &length, &err), 0);
    assert_int_equal(length, strlen(wanted));
    assert_string_equal(bytes, wanted);
    free(bytes);
}

static void test_tokens_have_bytes(void **state)
{
    (void)state;
    struct helm_err err = {0};
    struct helm_tokenizer *t = open_data("sentencepiece");
    static const char text[] = "na\xC3\xAFve \xF0\x9F\x99\x82 \xE6\x97\xA5";
    uint32_t *ids = NULL;
    size_t count = 0, used = 0, length = 0;
    char *bytes = NULL, all[sizeof text] = "";
    check_bytes(t, "<0x0A>", "\n");
    check_bytes(t, "\xE2\x96\x81hello", " hello");
    helm_tokenizer_close(t);
    t = open_data("bytelevel");
    check_bytes(t, "\xC4\xA0world", " world");
    assert_int_equal(helm_tokenizer_encode(t, text, strlen(text), 0, &ids, &count, &err), 0);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(helm_tokenizer_token_bytes(t, ids[i], &bytes, &length, &err), 0);
        assert_true(used + length < sizeof all);
        memcpy(all + used, bytes, length);
        used += length;
        free(bytes);
    }
    assert_int_equal(used, strlen(text));
    assert_memory_equal(all, text, used);
    assert_int_equal(helm_tokenizer_token_bytes(t, HELM_TOKENIZER_ID_LIMIT, &bytes, &length, &err), 0);
    assert_int_equal(length, 0);
    free(bytes);
    free(ids);
    helm_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_have_bytes), cmocka_unit_test(test_byte_level),
        cmocka_unit_test(test_sentencepiece),     cmocka_unit_test(test_metaspace),
        cmocka_unit_test(test_no_decoder),        cmocka_unit_test(test_strip),
        cmocka_unit_test(test_replace),           cmocka_unit_test(test_unknown_ids_and_flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
