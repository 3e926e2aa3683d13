/* The cost of a mask at a vocabulary of 152,000 tokens, invented ones: words of all lengths, punctuation,
 * digits. Times are processor time. Asserted are what opening takes, the longest of the first output, the
 * median of a warm grammar; all of them with room for a slow machine. */
#include "matching.h"

#include <time.h>

#define VOCAB 152000u
#ifdef __SANITIZE_ADDRESS__
#define MEDIAN_US       2000u
#define MOST_US         20000u
#define MOST_OPENING_US 600000u
#else
#define MEDIAN_US       100u
#define MOST_US         1000u
#define MOST_OPENING_US 40000u
#endif

static struct helm_vocabulary *open_words(void)
{
    static unsigned char bytes[2 << 20];
    static uint32_t offset[VOCAB + 1];
    static const char *const marks[] = {"\"", "\",",  "\": ", "\": \"", "\", \"", "{\"", "\"}",
                                        "},", "[",    "]",    "],",     "1",      "23",  " ",
                                        "  ", "\n  ", "true", "null",   ".",      "-"};
    const uint32_t end = BYTES_END;
    struct helm_vocabulary *v;
    struct helm_err err = {0};
    uint64_t seed = 5;
    uint32_t used = 0;
    for (uint32_t id = 0; id < VOCAB; id++) {
        offset[id] = used;
        if (id < 256) {
            bytes[used++] = (unsigned char)id;
        } else if (id > 256 && id < 257 + sizeof marks / sizeof *marks) {
            memcpy(bytes + used, marks[id - 257], strlen(marks[id - 257]));
            used += (uint32_t)strlen(marks[id - 257]);
        } else if (id > 256) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const uint32_t letters = 2 + (uint32_t)(seed >> 60) % 8;
            if (seed >> 59 & 1) bytes[used++] = ' ';
            for (uint32_t i = 0; i < letters; i++)
                bytes[used++] = (unsigned char)('a' + (seed >> (5 * i + 3)) % 26);
        }
    }
    offset[VOCAB] = used;
    if (vocabulary_open_bytes(bytes, offset, VOCAB, &end, 1, &v, &err)) fail_msg("%s", err.text);
    return v;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The longest token that the text goes on with and the grammar allows, as a tokenizer would mostly have
 * it. */
static uint32_t longest(const struct helm_vocabulary *v, const uint32_t *bits, const char *text)
{
    uint32_t best = BYTES_END, most = 0;
    for (uint32_t id = 0; id < VOCAB; id++) {
        const uint32_t length = v->offset[id + 1] - v->offset[id];
        if (length > most && bits[id / 32] >> id % 32 & 1 &&
            strncmp(text, (const char *)v->bytes + v->offset[id], length) == 0) {
            best = id;
            most = length;
        }
    }
    return best;
}

static void test_speed(void **state)
{
    (void)state;
    static const char schema[] =
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\","
        "\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\","
        "\"maxLength\":"
        "100}},\"more\":{}},\"required\":[\"name\",\"age\",\"tags\",\"more\"]}";
    static const char text[] = "{\"name\": \"some words and more of them\", \"age\": 36, \"tags\": [\"one "
                               "two three\", \"four\", \"a text that is "
                               "not short at all\"], \"more\": {\"a\": [1, 2, {\"b\": null}], \"c\": \"d\"}}";
    struct helm_vocabulary *v = open_words();
    const uint64_t opening = now_ns();
    struct helm_grammar *g = open_grammar(v, HELM_GRAMMAR_JSON_SCHEMA, schema);
    const uint64_t opened = now_ns() - opening;
    uint32_t *bits = malloc(v->words * sizeof *bits);
    struct helm_err err = {0};
    for (int round = 0; round < 3; round++) {
        struct helm_matcher *m;
        uint64_t spent[sizeof text + 1];
        size_t n = 0;
        assert_int_equal(helm_matcher_open(g, &m, &err), 0);
        for (size_t at = 0; at < sizeof text - 1;) {
            const uint64_t begin = now_ns();
            if (helm_matcher_mask(m, bits, &err)) fail_msg("%s", err.text);
            const uint64_t middle = now_ns();
            const uint32_t token = longest(v, bits, text + at);
            assert_int_not_equal(token, BYTES_END);
            const uint64_t again = now_ns();
            assert_int_equal(helm_matcher_take(m, token, &err), 0);
            spent[n++] = middle - begin + now_ns() - again;
            at += v->offset[token + 1] - v->offset[token];
        }
        assert_true(helm_matcher_may_end(m));
        helm_matcher_close(m);
        qsort(spent, n, sizeof *spent, by_size);
        print_message("round %d: %zu tokens: median %.1f us, 99 %% %.1f us, most %.1f us\n", round, n,
                      (double)spent[n / 2] / 1e3, (double)spent[n * 99 / 100] / 1e3,
                      (double)spent[n - 1] / 1e3);
        assert_in_range(spent[n / 2], 0, 1000 * MEDIAN_US);
        assert_in_range(spent[n - 1], 0, 1000 * MOST_US);
    }
    print_message("opening: %.1f ms\n", (double)opened / 1e6);
    assert_in_range(opened, 0, 1000 * MOST_OPENING_US);
    free(bits);
    helm_grammar_close(g);
    helm_vocabulary_close(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_speed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
