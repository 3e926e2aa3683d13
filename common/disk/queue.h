/* Inside the reader: what begins and ends parts of reads. See reader.h. */
#pragma once

#include "common/disk/reader.h"

/* A part of a read, under way: bytes from `at` on. `result`: bytes that came, or a negative errno. */
struct disk_part {
    struct disk_reading *read;
    uint64_t at;
    uint32_t bytes;
    int result;
    struct disk_part *next;
};
static inline char *disk_part_to(const struct disk_part *part)
{
    return part->read->to + (part->at - part->read->offset);
}

/* At most `depth` parts are under way. */
struct disk_queue;
struct disk_way {
    int (*open)(uint32_t depth, struct disk_queue **queue, struct helm_err *err);
    void (*begin)(struct disk_queue *queue, struct disk_part *part); /* by `submit` at the latest */
    void (*submit)(struct disk_queue *queue);
    struct disk_part *(*end)(struct disk_queue *queue, bool wait); /* one that has ended; NULL: none has */
    void (*close)(struct disk_queue *queue);                       /* nothing is under way */
};
extern const struct disk_way disk_uring, disk_threads;
