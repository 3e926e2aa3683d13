/* Fabricated folder trees (a /proc, a /sys) for tests. Included by tests only; a tree lives under $TMPDIR or
 * /tmp and is removed by tree_remove. */
#pragma once

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TREE_PATH 512

/* A fresh empty folder; its path goes to root. */
static inline void tree_make(char root[TREE_PATH])
{
    const char *parent = getenv("TMPDIR");
    snprintf(root, TREE_PATH, "%s/helm-test-XXXXXX", parent && *parent ? parent : "/tmp");
    assert_non_null(mkdtemp(root));
}

/* Writes root/path, making the folders on the way. */
static inline void tree_write(const char *root, const char *path, const char *text)
{
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static inline int tree_remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path);
}
static inline void tree_remove(const char *root)
{
    assert_int_equal(nftw(root, tree_remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}
