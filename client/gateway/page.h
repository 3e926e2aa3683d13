/* The files of the page, compiled in by the Makefile (client/sources.mk). Read by page.c alone. */
#pragma once

struct page_file {
    const char *name; /* in client/gateway/page/ */
    const char *type;
    const unsigned char *data;
    unsigned bytes;
};
extern const struct page_file page_files[];
extern const unsigned page_file_count;
