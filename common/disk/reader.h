/* Reads of files past the page cache: many at once, while the caller does something else.
 *
 * Called by the CPU worker for weights that lie on disk, and by helmd and helm-plan, which measure the disk
 * with it. Two ways: io_uring, and a pool of threads with pread(2) where the system refuses io_uring. The
 * caller opens files with O_DIRECT and keeps offset, bytes and memory multiples of DISK_ALIGN. One thread at
 * a time may call. A read belongs to the caller and stays until it is done. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"

#define DISK_ALIGN     4096 /* of offsets, bytes and memory: no disk's logical block is larger */
#define DISK_DEPTH_MAX 256

enum disk_reader_way { DISK_URING, DISK_THREADS, DISK_WAYS };

struct disk_reader_options {
    enum disk_reader_way way;
    uint32_t depth; /* parts that are under way at once, 1 to DISK_DEPTH_MAX; of THREADS: that many threads */
    uint32_t block; /* bytes of a part, a multiple of DISK_ALIGN */
};
/* On the development machine's disk all sizes from 512 KiB and 8 at once on give the same within the noise,
 * fewer give less (docs/results/cpu.md). */
#define DISK_DEPTH 32
#define DISK_BLOCK (1u << 20)

struct disk_reading {
    int fd;
    uint64_t offset, bytes; /* of the file; aligned */
    uint64_t least;         /* bytes that have to be there: the file may end in the last block */
    char *to;
    /* When it is done: */
    int error;          /* errno of the part that failed nearest to `offset`; 0: none did */
    bool ended;         /* the file ended before `least` */
    uint64_t failed_at; /* the byte of the file at which either was */
    /* the reader's */
    uint64_t begun, left;
    struct disk_reading *next;
};

struct disk_reader;
/* HELM_E_UNSUPPORTED: the system refuses io_uring; HELM_E_LIMIT, HELM_E_NOMEM, HELM_E_IO. */
HELM_MUST_CHECK int disk_reader_open(const struct disk_reader_options *options, struct disk_reader **reader,
                                     struct helm_err *err);
/* The same with DISK_DEPTH and DISK_BLOCK, by threads where the system refuses io_uring: *refused says why;
 * its code is 0 where it does not. */
HELM_MUST_CHECK int disk_reader_open_usual(struct disk_reader **reader, struct helm_err *refused,
                                           struct helm_err *err);
/* Reads of the descriptor go past the page cache from now on. HELM_E_UNSUPPORTED: the file system of `name`
 * has no such reads. */
HELM_MUST_CHECK int disk_reader_direct(int fd, const char *name, struct helm_err *err);
/* Begins it now, or when others are done. Never waits. */
void disk_reader_submit(struct disk_reader *reader, struct disk_reading *read);
/* The next read that is done; wait: waits for one. NULL: none is done, or with `wait` none is under way. */
struct disk_reading *disk_reader_done(struct disk_reader *reader, bool wait);
/* Waits for the parts that are under way, and begins no more. NULL is allowed. */
void disk_reader_close(struct disk_reader *reader);
