/* helm-test-gpu-kernels: every GPU kernel against a reference in double on the host.
 *
 *   helm-test-gpu-kernels [--small | --few] [--stress] [--only NAME,... | --except NAME,...] [--seed N]
 *   helm-test-gpu-kernels --list   (their names, a line each)
 *   exit 0: all good; 1: a wrong result; 2: CUDA failed, or usage
 *
 * Inputs are random and fresh each run unless a seed is given; it is printed. --small runs few, small cases
 * under compute-sanitizer; --few the fewest and smallest that still meet every kernel, for its tools that
 * follow each access to shared memory; --stress repeats thousands of times what must give the same bits each
 * time. */
#include <limits.h>
#include <malloc.h>
#include <time.h>

#include "tests/gpu/harness.cuh"

test_step::test_step(struct test_context *t, const std::vector<uint32_t> &start,
                     const std::vector<uint32_t> &count, uint32_t page_size, uint32_t host_every)
{
    rows = (uint32_t)start.size(), page_tokens = page_size, tokens = 0, pages = 0, pages_per_slot = 1;
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t need = (start[r] + count[r] + page_size - 1) / page_size;
        pages_per_slot = need > pages_per_slot ? need : pages_per_slot;
        pages += need;
    }
    std::vector<uint32_t> order(pages);
    for (uint32_t i = 0; i < pages; i++) order[i] = i;
    for (uint32_t i = pages; i > 1; i--) std::swap(order[i - 1], order[random_below(t, i)]);
    const uint32_t slots = rows + 1; /* slots are not rows: row r sits in slot rows - r */
    page_table.assign((size_t)slots * pages_per_slot, 0x7fffffff);
    uint32_t next = 0;
    for (uint32_t r = 0; r < rows; r++) {
        row_first.push_back(tokens);
        row_slot.push_back(rows - r);
        /* of half of the rows those that lie in host memory come first, as with two tiers */
        const uint32_t far =
            host_every && random_below(t, 2) ? random_below(t, 1 + (start[r] + count[r]) / page_size) : 0;
        for (uint32_t i = 0; i * page_size < start[r] + count[r]; i++, next++)
            page_table[(size_t)(rows - r) * pages_per_slot + i] =
                order[next] |
                (i < far || (host_every && !far && next % host_every == 0) ? GPUK_PAGE_HOST : 0);
        for (uint32_t i = 0; i < count[r]; i++, tokens++)
            position.push_back(start[r] + i), token_row.push_back(r);
        samples.push_back(tokens - 1);
    }
    row_first.push_back(tokens);
    for (uint32_t i = 0; i < tokens; i++) ids.push_back(random_below(t, 50));
    step = {};
    step.counts = device_copy(std::vector<uint32_t>{tokens, rows, rows});
    step.token_id = device_copy(ids);
    step.position = device_copy(position);
    step.token_row = device_copy(token_row);
    step.row_first = device_copy(row_first);
    step.row_slot = device_copy(row_slot);
    step.sample_token = device_copy(samples);
    step.page_table = device_copy(page_table);
    step.pages_per_slot = pages_per_slot;
}

static bool is_listed(const char *list, const char *name)
{
    const size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == 0)) return true;
    }
    return false;
}

/* Every kernel can be loaded on the cards that people have. Most have less shared memory for a block than
 * those that HELM is measured on. */
static void test_cards(struct test_context *t)
{
#ifdef HELM_CUDA_EMULATED
    const emulated_card usual = emulated_now, cards[] = {{75, 64 << 10}, {80, 163 << 10},  {86, 99 << 10},
                                                         {89, 99 << 10}, {100, 227 << 10}, {120, 99 << 10}};
    struct gpuk_device device;
    for (const emulated_card &card : cards) {
        struct helm_err err = {};
        char what[96];
        emulated_now = card;
        const int rc = gpuk_open(&device, &err);
        snprintf(what, sizeof what, "a card of capability %d opens: %.60s", card.capability, err.text);
        check(t, rc == 0, what);
    }
    emulated_now = usual;
    GPUK(gpuk_open(&device, &err)); /* kernels are prepared for its memory again */
#else
    check(t, t->device.capability >= 75, "the card that is there is open");
#endif
}

static const struct {
    const char *name;
    void (*run)(struct test_context *);
} tests[] = {{"cards", test_cards},
             {"elementwise", test_elementwise},
             {"select", test_select},
             {"linear", test_linear},
             {"attention", test_attention},
             {"chain", test_chain},
             {"delta", test_delta},
             {"expand", test_expand},
             {"experts", test_experts},
             {"experts_few", test_experts_few},
             {"gemm_blocks", test_gemm_blocks},
             {"gemm_integer", test_gemm_integer},
             {"gemv_packed", test_gemv_packed},
             {"heads", test_heads},
             {"invariant", test_invariant},
             {"scales", test_scales},
             {"blocks", test_blocks}};

int main(int argc, char **argv)
{
    struct test_context t = {};
    const char *only = NULL, *except = NULL;
    uint64_t seed = (uint64_t)time(NULL) * 2654435761u;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0) {
            t.small = true;
        } else if (strcmp(argv[i], "--few") == 0) {
            t.small = t.few = true;
        } else if (strcmp(argv[i], "--stress") == 0) {
            t.stress = true;
        } else if (strcmp(argv[i], "--list") == 0) {
            for (auto &test : tests) printf("%s\n", test.name);
            return 0;
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            only = argv[++i];
        } else if (strcmp(argv[i], "--except") == 0 && i + 1 < argc) {
            except = argv[++i];
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = strtoull(argv[++i], NULL, 0);
        } else {
            fprintf(stderr,
                    "usage: %s [--small | --few] [--stress] [--only NAME,... | --except NAME,...] [--seed N] "
                    "| --list\n",
                    argv[0]);
            return 2;
        }
    }
    /* caches of hundreds of megabytes come and go: their memory stays with the program */
    mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, INT_MAX);
    setvbuf(stdout, NULL, _IOLBF, 0); /* a run that is cut off has shown what ended */
    t.random = seed | 1;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: no CUDA device\n");
        return 0;
    }
    GPUK(gpuk_open(&t.device, &err));
    CUDA(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking));
    printf("seed %llu, compute capability %d, %d multiprocessors\n", (unsigned long long)seed,
           t.device.capability, t.device.sm_count);
    const char *names = only ? only : except;
    size_t named = names ? (size_t)std::count(names, names + strlen(names), ',') + 1 : 0;
    for (auto &test : tests) named -= is_listed(names, test.name);
    if (named) {
        fprintf(stderr, "%s: not all of these are tests\n", names);
        return 2;
    }
    int groups[2] = {0, 0}; /* passed, failed */
    for (auto &test : tests) {
        if ((only && !is_listed(only, test.name)) || is_listed(except, test.name)) continue;
        int failures = t.failures, checks = t.checks;
        t.worst = 0;
        test.run(&t);
        CUDA(cudaDeviceSynchronize());
        printf("%-4s %-12s %d checks, %d failed; nearest to its tolerance: %s\n",
               t.failures == failures ? "ok" : "FAIL", test.name, t.checks - checks, t.failures - failures,
               t.worst_what);
        groups[t.failures != failures]++;
    }
    CUDA(cudaStreamDestroy(t.stream));
    printf("%d checks, %d failed\n%d passed, %d failed\n", t.checks, t.failures, groups[0], groups[1]);
    return t.failures || t.checks == 0 ? 1 : 0;
}
