/* HTTP with the hub, by libcurl: small answers as text, files to a descriptor, from where they were left, and
 * parts of files.
 *
 * Called by pull.c and probe.c, on one thread. Redirects are followed here, one by one, so that the token
 * goes to the hub's own host and to no other. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/hub/checksum.h"
#include "common/base/err.h"

struct transfer_options {
    const char *endpoint; /* "https://huggingface.co", without a slash at the end */
    const char *token;    /* or NULL */
    /* Asked some times a second, with the bytes of the file that are there; false ends it
     * (HELM_E_CANCELLED). */
    bool (*go_on)(void *context, uint64_t bytes);
    void *context;
};

struct transfer;
HELM_MUST_CHECK int transfer_open(const struct transfer_options *options, struct transfer **transfer,
                                  struct helm_err *err);
void transfer_close(struct transfer *transfer);

/* The answer to ENDPOINT + path, malloc'd, of at most `most` bytes. */
HELM_MUST_CHECK int transfer_text(struct transfer *transfer, const char *path, size_t most, char **text,
                                  size_t *length, struct helm_err *err);

struct transfer_file {
    const char *path; /* below the endpoint */
    const char *name; /* in errors */
    const char *id;   /* that the hub's headers must name, if they name one */
    int fd;
    uint64_t bytes;      /* that it has in all */
    uint64_t at;         /* that are there already, and counted in `sum`; where it is afterwards */
    struct checksum sum; /* of the bytes that are there */
};
/* Fetches what is missing. A connection that breaks is made again, from where it was. HELM_E_MISMATCH: the
 * hub has another file by now, or a longer one. HELM_E_PERMISSION: it wants a token, or another one. */
HELM_MUST_CHECK int transfer_file(struct transfer *transfer, struct transfer_file *file,
                                  struct helm_err *err);
/* Bytes of a file from its byte `from` on, into `to`, whether or not the server knows ranges. The path, the
 * name and the id of `file` are read. Errors as transfer_file's. */
HELM_MUST_CHECK int transfer_part(struct transfer *transfer, const struct transfer_file *file, uint64_t from,
                                  size_t bytes, char *to, struct helm_err *err);
/* A file's path at the hub, malloc'd. NULL: no memory. */
char *transfer_file_path(const char *repo, const char *commit, const char *file);
/* A path, or (slash false) one part of it, as URLs have it, malloc'd. NULL: no memory. */
char *transfer_escape(const char *text, bool slash);
