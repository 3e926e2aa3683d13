/* Reading files that strangers made: regular files only, bounded, never through a link that leaves the
 * folder.
 *
 * Called by the checkpoint and tokenizer readers. Returned buffers and descriptors belong to the caller. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

/* Opens folder/name for reading. `name` must be a plain file name (no '/'). A symlink is followed only when
 * its final target lies under the folder itself, or when the folder is a Hugging Face snapshot
 * (".../models--X/snapshots/REV", or one in it) and the target lies under the same ".../models--X/blobs". The
 * target must be a regular file; its size goes to *bytes. */
HELM_MUST_CHECK int file_open_inside(const char *folder, const char *name, int *fd, uint64_t *bytes,
                                     struct helm_err *err);

/* The whole of a regular file of at most max_bytes in a fresh NUL-terminated buffer (free()). */
HELM_MUST_CHECK int file_read(const char *path, size_t max_bytes, char **text, size_t *length,
                              struct helm_err *err);

/* Whether there is a folder for this file to be written into: asked before what takes long. HELM_E_NOT_FOUND
 * names it. */
HELM_MUST_CHECK int file_check_parent(const char *path, struct helm_err *err);

/* The first line of a file of the system, such as /sys has, without its end; false and "": there is none. */
bool file_first_line(char *line, size_t size, const char *path, ...) HELM_PRINTF(3, 4);

/* A folder, or a link to one. */
bool file_is_folder(const char *path);

/* file_open_inside + read. */
HELM_MUST_CHECK int file_read_inside(const char *folder, const char *name, size_t max_bytes, char **text,
                                     size_t *length, struct helm_err *err);

/* HELM_E_FORMAT: a file ends before what its header says; `header`: inside of it, so that more is expected
 * still. */
int file_cut_short(const char *what, uint64_t present, uint64_t expected, bool header, struct helm_err *err);

/* pwrite until all bytes are in the file. false: errno says why. */
HELM_MUST_CHECK bool file_pwrite_all(int fd, const void *bytes, size_t length, uint64_t offset);

/* pread until `bytes` are in buf; a short file is HELM_E_FORMAT. */
HELM_MUST_CHECK int file_pread_all(int fd, void *buf, size_t bytes, uint64_t offset, const char *what,
                                   struct helm_err *err);
