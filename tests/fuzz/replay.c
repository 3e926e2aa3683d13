/* Runs one fuzz target over the files of its corpus, without libFuzzer: what `make test` links each target
 * with. usage: fuzz_NAME CORPUS_DIR. An empty or missing corpus is a failure. Owns nothing beyond one file's
 * bytes. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *folder, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) return -1;
    /* exactly as large as the input, so that a sanitizer sees a read past its end */
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
    int rc = data && fread(data, 1, (size_t)size, f) == (size_t)size ? 0 : -1;
    fclose(f);
    if (rc == 0) LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return rc;
}

int main(int argc, char **argv)
{
    int passed = 0, failed = 0;
    DIR *dir = argc == 2 ? opendir(argv[1]) : NULL;
    if (!dir) {
        fprintf(stderr, "usage: %s CORPUS_DIR (readable)\n", argv[0]);
        return 2;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        if (replay_file(argv[1], entry->d_name) == 0)
            passed++;
        else
            failed++, fprintf(stderr, "cannot read %s/%s\n", argv[1], entry->d_name);
    }
    closedir(dir);
    printf("%d passed, %d failed\n", passed, failed);
    return failed || !passed;
}
