/* Requests whose end two readers may find in different places (RFC 9112, 2.2, 5 to 7). A proxy that reads one
 * the other way would send the rest of it as another request. Called by server.c, in the loop; owns the table
 * of sockets that libmicrohttpd reads.
 *
 * libmicrohttpd takes bare LF as a line's end, cuts values at NUL, joins folded lines, and shows none of
 * that. So its reads are looked at before it: it calls recv(), which framing.c defines. A head against the
 * RFC's grammar is answered 400, and its connection is closed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FRAMING_SOCKETS 16384 /* sockets with a higher number are not taken */

/* Where a connection's next byte belongs. */
enum framing_at {
    FRAMING_BEFORE, /* an empty line, or the next request */
    FRAMING_LINE,   /* the request's first line */
    FRAMING_NAME,
    FRAMING_VALUE,
    FRAMING_END, /* after CR of the empty line */
    FRAMING_BODY,
    FRAMING_SIZE, /* of a chunk */
    FRAMING_EXTENSION,
    FRAMING_CHUNK,
    FRAMING_AFTER_CHUNK,
    FRAMING_TRAILER,
    FRAMING_TRAILER_VALUE,
    FRAMING_TRAILER_END,
};

struct framing {
    enum framing_at at;
    bool cr; /* CR came: LF has to follow */
    unsigned blanks, digits;
    uint32_t length, known; /* bytes of the name or value at hand, and which header's it is */
    char text[24];          /* its beginning; of a target its end */
    bool is_1_0;
    uint8_t lengths, encodings, hosts;
    uint64_t body, left; /* of the head's Content-Length; bytes of a body or chunk that have not come */
    uint32_t requests;   /* that have come whole */
    uint32_t begun;      /* that libmicrohttpd has begun with */
    uint32_t bytes;      /* that came, up to some */
    const char *fault;   /* of the request after `requests`; nothing is looked at after it */
};

/* libmicrohttpd reads this socket now, or no longer (NULL). false: its number is too high. */
bool framing_watch(int fd, struct framing *framing);
/* Around its runs: only reads between are its own. */
void framing_reads(bool on);
/* libmicrohttpd has a request's head, or all of it: the fault that was found so far, in words that live as
 * long as the program; NULL: none. */
const char *framing_fault(const struct framing *framing);
/* The path of a target, which may be absolute (http://HOST/PATH). NULL: its host is not the one of the
 * header. */
const char *framing_path(const char *target, const char *host);
