/* occupy_vram: holds back GPU memory, so that another program sees a smaller card.
 *
 *   occupy_vram --leave SIZE [--device N]        SIZE: bytes, or with KiB, MiB, GiB
 *   nvcc -O2 -o occupy_vram occupy_vram.cu
 *
 * Started by sides.py and by people. Takes all but SIZE of the card's free memory (this program's own
 * context is counted with what is taken), prints "holding N bytes, M free" and waits; gives everything back
 * on SIGTERM, SIGINT, SIGHUP or when standard input is closed. The other program's context and kernels come
 * out of SIZE, as they would on a card of that size. Plain cudaMalloc only: managed memory would move aside
 * instead of being held. Exit status: 0 released, 2 usage, 5 the card has less than SIZE free or an error. */
#include <cuda_runtime.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_BYTES ((size_t)256 << 20)
#define BLOCK_LEAST ((size_t)2 << 20) /* the least that the driver hands out */
#define POLL_MS     200

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
    (void)number;
    stopped = 1;
}

static int fail(const char *what, cudaError_t error)
{
    fprintf(stderr, "occupy_vram: %s: %s\n", what, cudaGetErrorString(error));
    return 5;
}

static int parse_size(const char *text, size_t *bytes)
{
    static const struct {
        const char *name;
        int shift;
    } unit[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (end == text || errno || *text == '-') return 0;
    for (size_t i = 0; i < sizeof unit / sizeof unit[0]; i++) {
        if (strcmp(end, unit[i].name) != 0) continue;
        *bytes = (size_t)value << unit[i].shift;
        return (*bytes >> unit[i].shift) == value;
    }
    return 0;
}

/* Blocks of falling size until no more than `leave` is free. They are freed with the process. */
static int take(size_t leave, size_t *held, size_t *left)
{
    size_t total, block = BLOCK_BYTES;
    cudaError_t error = cudaMemGetInfo(left, &total);
    if (error != cudaSuccess) return fail("cudaMemGetInfo", error);
    if (*left < leave) {
        fprintf(stderr, "occupy_vram: only %zu of %zu bytes are free, less than the %zu to leave\n", *left,
                total, leave);
        return 5;
    }
    while (*left > leave && !stopped) {
        void *ignored;
        while (block > BLOCK_LEAST && block > *left - leave) block /= 2;
        if (block > *left - leave) return 0; /* less than the driver's granule is left to take */
        error = cudaMalloc(&ignored, block);
        if (error == cudaErrorMemoryAllocation) { /* fragmented: try smaller blocks */
            (void)cudaGetLastError();
            if (block == BLOCK_LEAST) return 0;
            block /= 2;
            continue;
        }
        if (error != cudaSuccess) return fail("cudaMalloc", error);
        *held += block;
        error = cudaMemGetInfo(left, &total);
        if (error != cudaSuccess) return fail("cudaMemGetInfo", error);
    }
    return 0;
}

static int usage(void)
{
    fputs("usage: occupy_vram --leave SIZE [--device N]     SIZE: bytes, or with KiB, MiB, GiB\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    size_t leave = 0, held = 0, left = 0;
    int device = 0, given = 0;
    for (int i = 1; i < argc; i += 2) {
        char *end;
        if (i + 1 == argc) return usage();
        if (strcmp(argv[i], "--leave") == 0) {
            if (!parse_size(argv[i + 1], &leave)) return usage();
            given = 1;
        } else if (strcmp(argv[i], "--device") == 0) {
            device = (int)strtol(argv[i + 1], &end, 10);
            if (end == argv[i + 1] || *end || device < 0) return usage();
        } else {
            return usage();
        }
    }
    if (!given) return usage();
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    cudaError_t error = cudaSetDevice(device);
    if (error == cudaSuccess) error = cudaFree(NULL); /* makes the context, which is held too */
    if (error != cudaSuccess) return fail("opening the device", error);
    int status = take(leave, &held, &left);
    if (status) return status;
    printf("holding %zu bytes, %zu free\n", held, left);
    fflush(stdout);
    while (!stopped) {
        char buffer[256];
        struct pollfd input = {STDIN_FILENO, POLLIN, 0};
        /* a time limit: a signal may come just before poll */
        if (poll(&input, 1, POLL_MS) > 0 && input.revents && read(STDIN_FILENO, buffer, sizeof buffer) <= 0)
            break;
    }
    cudaDeviceReset();
    return 0;
}
