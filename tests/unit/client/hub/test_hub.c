/* Unit tests of common/model/hub.c and client/hub: names, the cache's folder, checksums, lists of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/hub/choose.h"
#include "client/hub/sha256.h"

static void sums(const char *data, size_t length, size_t piece, const char *expected)
{
    struct sha256 sum;
    char text[SHA256_TEXT];
    sha256_begin(&sum);
    for (size_t at = 0; at < length; at += piece)
        sha256_add(&sum, data + at, length - at < piece ? length - at : piece);
    sha256_end(&sum, text);
    assert_string_equal(text, expected);
}

/* FIPS 180-4's examples, and a million letters in pieces around a block's size. */
static void checksums(void **state)
{
    (void)state;
    static char letters[1000000];
    memset(letters, 'a', sizeof letters);
    sums("", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sums("abc", 3, 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sums("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, 56,
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    static const size_t pieces[] = {1, 55, 56, 63, 64, 65, 127, 128, 1000000};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        sums(letters, sizeof letters, pieces[i],
             "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void names(void **state)
{
    (void)state;
    static const char *const bad[] = {"",       "a",        "/a/b",    "a/",      "a/.b",     "a/b.",
                                      "a/b--c", "a/b..c",   "a b/c",   "../b",    "a/../b",   "./a",
                                      "a/b/",   "a/b/../c", "a/b//c",  "a/b/c\n", "a/b/c\\d", "a/b/./c",
                                      "-a/b",   "a/b/c/..", "~/models"};
    struct hub_name name;
    struct helm_err err = {0};
    assert_int_equal(hub_name_parse("Qwen/Qwen3-8B", &name, &err), 0);
    assert_string_equal(name.repo, "Qwen/Qwen3-8B");
    assert_string_equal(name.file, "");
    assert_int_equal(hub_name_parse("a_1/b.c/d/e f.gguf", &name, &err), 0);
    assert_string_equal(name.repo, "a_1/b.c");
    assert_string_equal(name.file, "d/e f.gguf");
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

#define SHA           "0123456789012345678901234567890123456789"
#define FILE_OF(name) "{\"rfilename\":\"" name "\",\"size\":1024,\"blobId\":\"" SHA "\"}"
static unsigned chosen_of(const char *siblings, const char *file, int expected)
{
    struct listing listing;
    struct helm_err err = {0};
    struct hub_name name = {.repo = "a/b"};
    char text[4096];
    bool chosen[16] = {false};
    unsigned set = 0;
    snprintf(name.file, sizeof name.file, "%s", file);
    snprintf(text, sizeof text, "{\"sha\":\"" SHA "\",\"siblings\":[%s]}", siblings);
    assert_int_equal(listing_parse(text, strlen(text), &listing, &err), 0);
    said[0] = '\0';
    assert_int_equal(choose_files(&listing, &name, chosen, say, NULL, &err), expected);
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
    assert_int_equal(chosen_of(checkpoint, "", 0), 1 + 2 + 8);
    assert_int_equal(chosen_of(checkpoint, "x.gguf", 0), 16);
    assert_int_equal(chosen_of(checkpoint, "y.gguf", HELM_E_NOT_FOUND), 0);
    assert_int_equal(chosen_of(split, "", 0), 3);
    assert_int_equal(chosen_of(split, "mmproj-a.gguf", 0), 4);
    assert_int_equal(chosen_of(two, "", HELM_E_USAGE), 0);
    assert_string_equal(said, "  1.00 KiB  a.gguf|  1.00 KiB  b/c.gguf|");
    assert_int_equal(chosen_of(FILE_OF("pytorch_model.bin"), "", HELM_E_UNSUPPORTED), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checksums),
        cmocka_unit_test(names),
        cmocka_unit_test(files_that_make_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
