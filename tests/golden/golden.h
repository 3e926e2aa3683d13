/* A golden.json read into memory: cases of a prompt and the reference's greedy steps. For the golden tests,
 * each of which includes it once. golden_read asserts; golden_free releases. */
#pragma once

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/json.h"
#include "common/base/units.h"

#define CASES_MAX 10 /* the most that a file has; caches for this many slots are filled at each start */
#define STEPS_MAX 64
#define TOP       10 /* how many of the reference's logprobs are compared */
/* Instrumented kernels are many times slower, and one decode step is like another: this number of steps takes
 * the prompt of 16 tokens past the end of its page. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STEPS_RUN 20
#else
#define STEPS_RUN STEPS_MAX
#endif

struct golden_step {
    uint32_t token;
    float gap;
    float margin; /* between the last chosen and the first rejected expert's logit, at the least so far;
                     INFINITY: no experts */
    uint32_t top_token[TOP];
    float top_logprob[TOP];
};
struct golden_case {
    uint32_t prompt_count, step_count;
    uint32_t *prompt;
    struct golden_step step[STEPS_MAX];
};
struct golden {
    struct golden_case cases[CASES_MAX];
    uint32_t count;
};

/* Reads the golden file of the checkpoint in `folder`. */
static void golden_read(const char *folder, struct golden *golden)
{
    char path[256];
    json_t *json = NULL;
    struct helm_err err = {0};
    memset(golden, 0, sizeof *golden);
    snprintf(path, sizeof path, "%s/golden.json", folder);
    assert_int_equal(json_read_file(path, 64 * MIB, &json, &err), 0);
    size_t c, i, k;
    json_t *one, *item, *pair;
    json_array_foreach(json_object_get(json, "cases"), c, one)
    {
        assert_true(c < CASES_MAX);
        struct golden_case *out = &golden->cases[golden->count++];
        json_t *prompt = json_object_get(one, "prompt");
        out->prompt_count = (uint32_t)json_array_size(prompt);
        out->prompt = calloc(out->prompt_count, sizeof *out->prompt);
        json_array_foreach(prompt, i, item) out->prompt[i] = (uint32_t)json_integer_value(item);
        json_array_foreach(json_object_get(one, "steps"), i, item)
        {
            assert_true(i < STEPS_MAX);
            if (i == STEPS_RUN) break;
            struct golden_step *step = &out->step[out->step_count++];
            step->token = (uint32_t)json_integer_value(json_object_get(item, "token"));
            step->gap = (float)json_number_value(json_object_get(item, "gap"));
            const json_t *margin = json_object_get(item, "router_margin");
            step->margin = margin ? (float)json_number_value(margin) : INFINITY;
            json_array_foreach(json_object_get(item, "top"), k, pair)
            {
                if (k == TOP) break;
                step->top_token[k] = (uint32_t)json_integer_value(json_array_get(pair, 0));
                step->top_logprob[k] = (float)json_number_value(json_array_get(pair, 1));
            }
        }
    }
    json_decref(json);
    assert_true(golden->count > 0);
}

/* The context that cases of prompts up to `longest` tokens take. */
static inline uint32_t golden_context(const struct golden *golden, uint32_t longest)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < golden->count; i++) {
        const struct golden_case *one = &golden->cases[i];
        if (one->prompt_count <= longest && one->prompt_count + one->step_count > most)
            most = one->prompt_count + one->step_count;
    }
    return most;
}

static void golden_free(struct golden *golden)
{
    for (uint32_t i = 0; i < golden->count; i++) free(golden->cases[i].prompt);
}

/* Calls `run` with the folder of each reference in the collection that HELM_GOLDEN_GGUF names, and its name
 * there; skips where it names none. */
__attribute__((unused)) static void golden_collection(void (*run)(const char *folder, const char *name))
{
    const char *collection = getenv("HELM_GOLDEN_GGUF");
    uint32_t ran = 0;
    if (!collection) {
        print_message("skipped: HELM_GOLDEN_GGUF does not name the collection of GGUF files\n");
        skip();
    }
    DIR *dir = opendir(collection);
    if (!dir) fail_msg("HELM_GOLDEN_GGUF: %s cannot be opened", collection);
    for (const struct dirent *entry; (entry = readdir(dir));) {
        char folder[400], path[450];
        snprintf(folder, sizeof folder, "%s/%.100s", collection, entry->d_name);
        snprintf(path, sizeof path, "%s/golden.json", folder);
        if (access(path, R_OK) != 0) continue;
        run(folder, entry->d_name);
        ran++;
    }
    closedir(dir);
    assert_true(ran > 0);
}
