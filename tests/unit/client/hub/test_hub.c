/* Unit tests of common/model/hub.c, hub_tag.c and client/hub: names, tags, the cache's folder, checksums,
 * lists of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/hub/choose.h"
#include "client/hub/checksum.h"

static void sums(const char *data, size_t length, size_t piece, const char *expected)
{
    struct checksum sum;
    char text[CHECKSUM_TEXT];
    checksum_begin(&sum, expected, length);
    for (size_t at = 0; at < length; at += piece)
        checksum_add(&sum, data + at, length - at < piece ? length - at : piece);
    checksum_end(&sum, text);
    assert_string_equal(text, expected);
}

/* FIPS 180-4's examples, what `git hash-object` says, and a million letters in pieces around a block's
 * size. */
static void checksums(void **state)
{
    (void)state;
    static char letters[1000000];
    memset(letters, 'a', sizeof letters);
    sums("", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sums("abc", 3, 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sums("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, 56,
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    sums("", 0, 1, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    sums("abc", 3, 1, "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f");
    static const size_t pieces[] = {1, 55, 56, 63, 64, 65, 127, 128, 1000000};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        sums(letters, sizeof letters, pieces[i],
             "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
        sums(letters, sizeof letters, pieces[i], "de1fbf0c2f34f67f01f355f31ed0cf7319643c5e");
    }
    /* Lengths at which the padding does and does not fit into the last block: "blob 42" and the like come
     * first. */
    static const struct {
        size_t length;
        const char *id;
    } ends[] = {{46, "50b3bbe915fe104dbbb6786fdcfa310bcfc25d4e"},
                {47, "5e3bf7e629b4908cce461530c17a64365cb47303"},
                {48, "12d42395b020f44bb7710113b31f688d0ebeda7c"},
                {55, "d1985ddc2983785702b9a90effd5aff2f7cfdca4"},
                {56, "1f973e890f52da1f22fa7e5620a628bc4ee74cb3"},
                {57, "d28c6cde5a5ab0b138bd53a288c23e8c011c4171"},
                {64, "71b7a71962774fa5c721e1163f935cb61a0e09e6"}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) sums(letters, ends[i].length, 7, ends[i].id);
}

static void names(void **state)
{
    (void)state;
    static const char *const bad[] = {"",        "a",        "/a/b",     "a/",      "a/.b",     "a/b.",
                                      "a/b--c",  "a/b..c",   "a b/c",    "../b",    "a/../b",   "./a",
                                      "a/b/",    "a/b/../c", "a/b//c",   "a/b/c\n", "a/b/c\\d", "a/b/./c",
                                      "-a/b",    "a/b/c/..", "~/models", "a/b:",    "a:q/b",    "a/b:q/c",
                                      "a/b:q r", "a/b:q:r"};
    struct hub_name name;
    struct helm_err err = {0};
    assert_int_equal(hub_name_parse("Qwen/Qwen3-8B", &name, &err), 0);
    assert_string_equal(name.repo, "Qwen/Qwen3-8B");
    assert_string_equal(name.file, "");
    assert_int_equal(hub_name_parse("a_1/b.c/d/e f.gguf", &name, &err), 0);
    assert_string_equal(name.repo, "a_1/b.c");
    assert_string_equal(name.file, "d/e f.gguf");
    assert_string_equal(name.tag, "");
    assert_int_equal(hub_name_parse("a/b/c:d.gguf", &name, &err), 0);
    assert_string_equal(name.file, "c:d.gguf");
    assert_int_equal(hub_name_parse("a/b:UD-Q4_K_XL", &name, &err), 0);
    assert_string_equal(name.repo, "a/b");
    assert_string_equal(name.file, "");
    assert_string_equal(name.tag, "UD-Q4_K_XL");
    static const char *const hubs[] = {"hf.co/", "huggingface.co/", "https://huggingface.co/"};
    for (size_t i = 0; i < sizeof hubs / sizeof *hubs; i++) {
        char text[64];
        snprintf(text, sizeof text, "%sa/b:Q8_0", hubs[i]);
        assert_int_equal(hub_name_parse(text, &name, &err), 0);
        assert_string_equal(name.repo, "a/b");
        assert_string_equal(name.tag, "Q8_0");
        assert_int_equal(hub_name_parse(hubs[i], &name, &err), HELM_E_USAGE);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(hub_name_parse(bad[i], &name, &err), HELM_E_USAGE);
    setenv("HF_HUB_CACHE", "/cache", 1);
    char folder[PATH_MAX];
    assert_int_equal(hub_name_parse("a/b", &name, &err), 0);
    assert_int_equal(hub_repo_folder(&name, folder, &err), 0);
    assert_string_equal(folder, "/cache/models--a--b");
    unsetenv("HF_HUB_CACHE");
}

static char said[4096];
static void say(void *context, const char *line)
{
    (void)context;
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s|", line);
}

#define TAGS          100
#define SHA           "0123456789012345678901234567890123456789"
#define FILE_OF(name) "{\"rfilename\":\"" name "\",\"size\":1024,\"blobId\":\"" SHA "\"}"
/* `which`: a repository's file, or its tag after a colon. */
static unsigned chosen_of(const char *siblings, const char *which, const char *model, int expected)
{
    struct listing listing;
    struct helm_err err = {0};
    struct hub_name name = {.repo = "a/b"};
    char text[4096];
    bool chosen[16] = {false};
    struct choice choice = {.chosen = chosen};
    unsigned set = 0;
    if (*which == ':')
        snprintf(name.tag, sizeof name.tag, "%s", which + 1);
    else
        snprintf(name.file, sizeof name.file, "%s", which);
    snprintf(text, sizeof text, "{\"sha\":\"" SHA "\",\"siblings\":[%s]}", siblings);
    assert_int_equal(listing_parse(text, strlen(text), &listing, &err), 0);
    said[0] = '\0';
    assert_int_equal(choose_files(&listing, &name, &choice, say, NULL, &err), expected);
    if (!model != !choice.model) fail_msg("'%s' of %s", choice.model ? choice.model : "none", which);
    if (model) assert_string_equal(choice.model, model);
    for (size_t i = 0; i < listing.count; i++) set |= (unsigned)chosen[i] << i;
    listing_free(&listing);
    return set;
}

static void files_that_make_a_model(void **state)
{
    (void)state;
    static const char checkpoint[] =
        FILE_OF("config.json") "," FILE_OF("model-00001-of-00002.safetensors") "," FILE_OF(
            "consolidated.safetensors") "," FILE_OF("model.safetensors.index.json") "," FILE_OF("x.gguf");
    static const char split[] =
        FILE_OF("a-00001-of-00002.gguf") "," FILE_OF("a-00002-of-00002.gguf") "," FILE_OF("mmproj-a.gguf");
    static const char two[] = FILE_OF("a.gguf") "," FILE_OF("b/c.gguf");
    const char *const first = "a-00001-of-00002.gguf";
    assert_int_equal(chosen_of(checkpoint, "", NULL, 0), 1 + 2 + 8);
    assert_int_equal(chosen_of(checkpoint, "x.gguf", "x.gguf", 0), 16);
    assert_int_equal(chosen_of(checkpoint, ":x", "x.gguf", 0), 16);
    assert_int_equal(chosen_of(checkpoint, "y.gguf", NULL, HELM_E_NOT_FOUND), 0);
    assert_int_equal(chosen_of(split, "", first, 0), 3);
    assert_int_equal(chosen_of(split, "a-00002-of-00002.gguf", first, 0), 3);
    assert_int_equal(chosen_of(split, "mmproj-a.gguf", NULL, 0), 4);
    assert_int_equal(chosen_of(split, ":mmproj-a", NULL, HELM_E_NOT_FOUND), 0);
    assert_int_equal(chosen_of(two, "", NULL, HELM_E_USAGE), 0);
    assert_string_equal(said, "  1.00 KiB  :a             a.gguf|  1.00 KiB  :c             b/c.gguf|");
    assert_int_equal(chosen_of(FILE_OF("pytorch_model.bin"), "", NULL, HELM_E_UNSUPPORTED), 0);
    assert_int_equal(chosen_of(FILE_OF("model.safetensors"), ":Q8_0", NULL, HELM_E_NOT_FOUND), 0);
}

/* Names as publishers give them; a tag finds the file at `which`, or none or several. */
static void tags(void **state)
{
    (void)state;
    static const char *names[] = {"Qwen3-8B-Q4_K_M.gguf",
                                  "Qwen3-8B-Q4_K_S.gguf",
                                  "Qwen3-8B-UD-Q4_K_XL.gguf",
                                  "Qwen3-8B-Q8_0.gguf",
                                  "BF16/Qwen3-8B-BF16-00001-of-00002.gguf",
                                  "phi_Q5_0.gguf",
                                  "llama.i1-IQ3_M.gguf",
                                  "llama.IQ3_M.gguf",
                                  "Q2_K/m-00001-of-00003.gguf",
                                  "Q3_K/m.gguf",
                                  "Q6_K-imat.gguf",
                                  "x-Q6_K.gguf",
                                  "UD-Q8_K_XL/m-UD-Q8_K_XL.gguf"};
    const struct hub_files files = {names, sizeof names / sizeof *names};
    static const struct {
        const char *tag;
        int which; /* or an error */
    } cases[] = {{"Q4_K_M", 0},
                 {"q4_k_m", 0},
                 {"Qwen3-8B-Q4_K_M", 0},
                 {"8B-Q4_K_S", 1},
                 {"Q4_K_XL", 2},
                 {"ud-q4_k_xl", 2},
                 {"Q8_0", 3},
                 {"bf16", 4},
                 {"Q5_0", 5},
                 {"i1-IQ3_M", 6},
                 {"llama.IQ3_M", 7},
                 {"IQ3_M", HELM_E_USAGE},
                 {"Q2_K", 8},
                 {"Q3_K", 9},
                 {"Q6_K", 11}, /* an end of a name before its middle */
                 {"Q6_K-imat", 10},
                 {"Q8_K_XL", 12},
                 {"Qwen3", HELM_E_USAGE},
                 {"Q4_K", HELM_E_NOT_FOUND}, /* neither Q4_K_M nor Q4_K_S */
                 {"K_M", HELM_E_NOT_FOUND},
                 {"0", HELM_E_NOT_FOUND},
                 {"4_K_M", HELM_E_NOT_FOUND},
                 {"XL", HELM_E_NOT_FOUND},
                 {"gguf", HELM_E_NOT_FOUND},
                 {"00002", HELM_E_NOT_FOUND},
                 {"latest", HELM_E_NOT_FOUND}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hub_name name = {.repo = "a/b"};
        struct helm_err err = {0};
        size_t which = 99;
        snprintf(name.tag, sizeof name.tag, "%s", cases[i].tag);
        const int rc = hub_tag_find(&files, &name, &which, &err);
        const int expected = cases[i].which < 0 ? cases[i].which : 0;
        if (rc != expected || (!rc && which != (size_t)cases[i].which))
            fail_msg("%s: %d, file %zu: %s", cases[i].tag, rc, which, err.text);
    }
    static const char *const shown[] = {"Q4_K_M",   "Q4_K_S",   "Q4_K_XL",     "Q8_0", "BF16",
                                        "phi_Q5_0", "i1-IQ3_M", "llama.IQ3_M", "Q2_K", "Q3_K",
                                        "imat",     "Q6_K",     "Q8_K_XL"};
    for (size_t i = 0; i < files.count; i++) {
        char tag[HUB_TAG_MAX];
        hub_tag_of(&files, i, tag);
        assert_string_equal(tag, shown[i]);
    }
}

static void errors_name_tags(void **state)
{
    (void)state;
    static const char *names[] = {"m-Q4_K_M.gguf", "m-Q8_0.gguf", "n-Q8_0.gguf"};
    const struct hub_files files = {names, 3}, none = {names, 0};
    struct hub_name name = {.repo = "a/b", .tag = "q4_k_l"};
    struct helm_err err = {0};
    size_t which;
    assert_int_equal(hub_tag_find(&files, &name, &which, &err), HELM_E_NOT_FOUND);
    assert_string_equal(err.text,
                        "no GGUF file a/b:q4_k_l, the nearest is :Q4_K_M; there are Q4_K_M, m-Q8_0, n-Q8_0");
    strcpy(name.tag, "Q8_0");
    assert_int_equal(hub_tag_find(&files, &name, &which, &err), HELM_E_USAGE);
    assert_string_equal(err.text, "a/b:Q8_0 means 2 GGUF files, name one of m-Q8_0, n-Q8_0");
    strcpy(name.tag, "Q8_0");
    assert_int_equal(hub_tag_find(&none, &name, &which, &err), HELM_E_NOT_FOUND);
    assert_string_equal(err.text, "no GGUF file a/b:Q8_0");
    static const char *many[TAGS];
    static char text[TAGS][80];
    for (int i = 0; i < TAGS; i++) {
        snprintf(text[i], sizeof text[i], "a-rather-long-name-of-a-model-that-is-number-%d-Q4_K_M.gguf", i);
        many[i] = text[i];
    }
    strcpy(name.tag, "Q9");
    assert_int_equal(hub_tag_find(&(struct hub_files){many, TAGS}, &name, &which, &err), HELM_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "..."));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums),
        cmocka_unit_test(names),
        cmocka_unit_test(files_that_make_a_model),
        cmocka_unit_test(tags),
        cmocka_unit_test(errors_name_tags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
