/* Unit tests of client/session/file.c: a file read as it was written, and 1,000 damaged ones, each refused
 * with a reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/session/file.h"

enum { PAGES = 3, PAGE_TOKENS = 4, TOKENS = 14, LAYERS = 2, HEADS = 2, HEAD_DIM = 32, ROOM = 1 << 14 };

struct memory {
    unsigned char data[ROOM];
    size_t size;
};

static uint32_t random_of(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

static const struct kind {
    const char *dtype;
    uint64_t bytes, state;
} kinds[] = {{"f16", 2 * 2 * 2 * 4 * 64, 0},
             {"bf16", 2 * 2 * 2 * 4 * 64, 0},
             {"q8_0", 2 * 2 * 2 * 144, 0},
             {"f16", 2 * 2 * 2 * 4 * 64, 192}};

/* Pages, and the state after them. */
static void write_one(struct memory *m, const struct kind *kind, struct session_head *head,
                      unsigned char *pages)
{
    const char *kv_dtype = kind->dtype;
    const uint64_t page_bytes = kind->bytes;
    static uint32_t tokens[TOKENS];
    FILE *to = fmemopen(m->data, ROOM, "w");
    struct session_file file;
    struct helm_err err = {0};
    uint32_t state = 7;
    for (uint32_t i = 0; i < TOKENS; i++) tokens[i] = 100 + i * i;
    *head = (struct session_head){.shape = {.model = UINT64_C(0x0123456789abcdef),
                                            .layers = LAYERS,
                                            .kv_heads = HEADS,
                                            .head_dim = HEAD_DIM,
                                            .page_tokens = PAGE_TOKENS},
                                  .token_count = TOKENS,
                                  .pages = PAGES,
                                  .page_bytes = page_bytes,
                                  .state_bytes = kind->state,
                                  .tokens = tokens};
    snprintf(head->shape.kv_dtype, sizeof head->shape.kv_dtype, "%s", kv_dtype);
    snprintf(head->shape.weights, sizeof head->shape.weights, "q4_k_m");
    for (uint64_t i = 0; i < PAGES * page_bytes + kind->state; i++)
        pages[i] = (unsigned char)random_of(&state);
    assert_int_equal(session_file_create(&file, to, head, &err), 0);
    for (uint32_t p = 0; p < session_file_units(head); p++)
        assert_int_equal(session_file_write_page(&file, head, pages + p * page_bytes, &err), 0);
    assert_int_equal(session_file_write_end(&file, &err), 0);
    m->size = (size_t)ftell(to);
    assert_int_equal(fclose(to), 0);
    assert_int_equal(m->size, session_file_bytes(head));
}

/* The file as a whole; `pages`: room for PAGES of page_bytes, or more. */
static int read_one(struct memory *m, struct session_head *head, unsigned char *pages, size_t room,
                    struct helm_err *err)
{
    FILE *from = fmemopen(m->data, m->size, "r");
    struct session_file file;
    int rc = session_file_open(&file, from, m->size, head, err);
    if (!rc) assert_true(head->pages * head->page_bytes + head->state_bytes <= room);
    for (uint32_t p = 0; p < session_file_units(head) && !rc; p++)
        rc = session_file_read_page(&file, head, pages + p * head->page_bytes, err);
    if (!rc) rc = session_file_read_end(&file, err);
    fclose(from);
    return rc;
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    static struct memory m;
    static unsigned char pages[ROOM], got[ROOM];
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct session_head head, back;
        struct helm_err err = {0};
        write_one(&m, &kinds[k], &head, pages);
        assert_int_equal(read_one(&m, &back, got, sizeof got, &err), 0);
        assert_memory_equal(&head.shape, &back.shape, sizeof head.shape);
        assert_int_equal(back.pages, PAGES);
        assert_int_equal(back.token_count, TOKENS);
        assert_memory_equal(head.tokens, back.tokens, TOKENS * sizeof *head.tokens);
        assert_int_equal(back.state_bytes, kinds[k].state);
        assert_memory_equal(pages, got, PAGES * kinds[k].bytes + kinds[k].state);
        session_head_free(&back);
    }
}

/* No damage passes: bits, cuts, more bytes, pieces that stand elsewhere. */
static void a_thousand_damaged_files_are_refused(void **state)
{
    (void)state;
    static struct memory good, bad;
    static unsigned char pages[ROOM], got[ROOM];
    struct session_head head, back;
    uint32_t random = 1;
    for (int i = 0; i < 1000; i++) {
        struct helm_err err = {0};
        if (i % 500 == 0) write_one(&good, &kinds[i ? 3 : 0], &head, pages); /* without a state, with one */
        const uint32_t kind = random_of(&random) % 5, a = random_of(&random) % (uint32_t)good.size,
                       b = random_of(&random) % (uint32_t)good.size;
        bad = good;
        if (kind < 2) {
            bad.data[a] ^= (unsigned char)(1u << random_of(&random) % 8);
        } else if (kind == 2) {
            bad.size = a;
        } else if (kind == 3) {
            bad.size += 1 + random_of(&random) % 100;
        } else {
            const size_t left = good.size - (a > b ? a : b), bytes = left < 64 ? left : 64;
            memmove(bad.data + a, good.data + b, bytes);
            if (memcmp(bad.data, good.data, good.size) == 0) continue;
        }
        assert_int_not_equal(read_one(&bad, &back, got, sizeof got, &err), 0);
        assert_true(err.code < 0 && *err.text);
        session_head_free(&back);
    }
}

/* Two pages that changed places have good checksums of their own, but of other numbers. */
static void pages_know_their_places(void **state)
{
    (void)state;
    static struct memory m;
    static unsigned char pages[ROOM], got[ROOM];
    struct session_head head, back;
    struct helm_err err = {0};
    write_one(&m, &kinds[0], &head, pages);
    const size_t first = (size_t)session_file_head_bytes(&(struct session_head){.token_count = TOKENS}),
                 page = kinds[0].bytes + sizeof(uint64_t);
    unsigned char *copy = malloc(page);
    memcpy(copy, m.data + first, page);
    memmove(m.data + first, m.data + first + page, page);
    memcpy(m.data + first + page, copy, page);
    assert_int_equal(read_one(&m, &back, got, sizeof got, &err), HELM_E_FORMAT);
    assert_non_null(strstr(err.text, "page 0"));
    session_head_free(&back);
    free(copy);
}

static void heads_beyond_bounds_are_refused_by_name(void **state)
{
    (void)state;
    static struct memory good, bad;
    static unsigned char pages[ROOM], got[ROOM];
    static const struct {
        size_t at;
        uint32_t value;
        int code;
        const char *what;
    } cases[] = {{8, 4, HELM_E_UNSUPPORTED, "version 4"},
                 {8, 3, HELM_E_LIMIT, "bytes of the state"}, /* where tokens begin */
                 {12, 1, HELM_E_LIMIT, "bytes of the head"},
                 {24, 0, HELM_E_LIMIT, "layers"},
                 {24, 5000, HELM_E_LIMIT, "layers"},
                 {28, 0, HELM_E_LIMIT, "KV heads"},
                 {32, UINT32_MAX, HELM_E_LIMIT, "head_dim"},
                 {36, 0, HELM_E_LIMIT, "tokens of a page"},
                 {40, 0x78, HELM_E_UNSUPPORTED, "'x'"},
                 {48, 0x1b, HELM_E_FORMAT, "no text"},
                 {80, UINT32_MAX, HELM_E_LIMIT, "tokens"},
                 {84, 4, HELM_E_LIMIT, "pages"},
                 {84, 0, HELM_E_LIMIT, "pages"},
                 {88, 0, HELM_E_LIMIT, "bytes of a page"},
                 {88, 64, HELM_E_FORMAT, "a page is 64 bytes"},
                 {24, 3, HELM_E_FORMAT, "its layers and heads take"}};
    struct session_head head, back;
    write_one(&good, &kinds[0], &head, pages);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct helm_err err = {0};
        bad = good;
        memcpy(bad.data + cases[i].at, &cases[i].value, sizeof cases[i].value);
        assert_int_equal(read_one(&bad, &back, got, sizeof got, &err), cases[i].code);
        if (!strstr(err.text, cases[i].what)) fail_msg("%s, not %s", err.text, cases[i].what);
        session_head_free(&back);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(a_thousand_damaged_files_are_refused),
        cmocka_unit_test(pages_know_their_places),
        cmocka_unit_test(heads_beyond_bounds_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
