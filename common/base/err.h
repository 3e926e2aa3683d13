/* Errors: one convention for every process.
 *
 * A function that can fail returns 0 or a negative HELM_E... code; the code's detail (what was wrong, with
 * the name of the thing and the limit it broke) goes into the caller's `struct helm_err`. Callers may not
 * ignore the return value (HELM_MUST_CHECK). Outputs are defined only on success unless a header says
 * otherwise. Called by everything; owns nothing; never allocates. */
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

#define HELM_MUST_CHECK                   __attribute__((warn_unused_result))
#define HELM_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))

enum helm_code {
    HELM_OK = 0,
    HELM_E_USAGE = -1,       /* a command line or configuration file is wrong */
    HELM_E_NOMEM = -2,       /* the allocator said no */
    HELM_E_IO = -3,          /* a system call on a file or device failed; detail has errno's text */
    HELM_E_NOT_FOUND = -4,   /* a file, tensor, endpoint or id that must exist does not */
    HELM_E_FORMAT = -5,      /* outside bytes do not follow their format */
    HELM_E_LIMIT = -6,       /* outside bytes or a request exceed a stated limit */
    HELM_E_UNSUPPORTED = -7, /* well formed, but HELM does not implement it; detail names it */
    HELM_E_MISMATCH = -8,    /* two things that must agree do not (config and tensors, ABI versions) */
    HELM_E_CAPACITY = -9,    /* would not fit: memory, VRAM, context; detail has needed and available */
    HELM_E_BUSY = -10,       /* a bounded queue is full; try again later */
    HELM_E_STATE = -11,      /* a message or call that this state does not allow */
    HELM_E_PEER = -12,       /* the other process died, is late, or broke protocol */
    HELM_E_CANCELLED = -13,  /* ended on request */
    HELM_E_PERMISSION = -14, /* refused by the system or by policy */
    HELM_E_INTERNAL = -15,   /* a broken invariant that was caught before it did harm */
    HELM_E_DEVICE = -16,     /* an accelerator refused or failed */
};

#define HELM_ERR_TEXT 512

/* Caller-owned error detail. Zero-initialise; `text` is always NUL-terminated and may be shown on a terminal
 * (printable.h), whatever names it quotes. */
struct helm_err {
    int code; /* 0 or an enum helm_code */
    char text[HELM_ERR_TEXT];
};

/* Records `code` and the formatted text in err (may be NULL) and returns code, for `return helm_fail(...)`.
 */
int helm_fail(struct helm_err *err, int code, const char *fmt, ...) HELM_PRINTF(3, 4);

/* Like helm_fail(HELM_E_IO...) with ": <strerror(errno)>" appended. */
int helm_fail_errno(struct helm_err *err, const char *fmt, ...) HELM_PRINTF(2, 3);

/* Puts "prefix: " before the text already in err; keeps the code. Returns err->code (or HELM_E_INTERNAL if
 * unset). */
int helm_err_prefix(struct helm_err *err, const char *fmt, ...) HELM_PRINTF(2, 3);

/* Stable lower-case name of a code, e.g. "limit". Never NULL. */
const char *helm_code_name(int code);

#ifdef __cplusplus
}
#endif
