/* Sizes, counts and digits as people write them; time; whole multiples. Called by option parsing, ledgers,
 * reports and whatever places or cuts bytes and tokens; owns nothing. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define KIB            ((uint64_t)1 << 10)
#define MIB            ((uint64_t)1 << 20)
#define GIB            ((uint64_t)1 << 30)
#define GIGA           1e9                /* bytes, operations */
#define KILO           1e3                /* milliseconds of a second */
#define MICRO          1e-6               /* seconds */
#define GOLDEN_SECTION 0.6180339887498949 /* the golden section: (sqrt 5 - 1) / 2 */
#define PERCENT        100                /* of a whole */
#define PERMILLE       1000               /* of a whole */

/* "8GiB", "8G", "8g", "512MiB", "1.5GiB", "1000000" (bytes), "8GB" (powers of ten). `what` names the option
 * in errors. */
HELM_MUST_CHECK int units_parse_size(const char *what, const char *text, uint64_t *bytes,
                                     struct helm_err *err);

/* A whole decimal number in [min, max], nothing after it. */
HELM_MUST_CHECK int units_parse_u64(const char *what, const char *text, uint64_t min, uint64_t max,
                                    uint64_t *value, struct helm_err *err);

/* The same of numbers of tokens, which may be written "4k": 4096. */
HELM_MUST_CHECK int units_parse_tokens(const char *what, const char *text, uint64_t min, uint64_t max,
                                       uint64_t *value, struct helm_err *err);

/* A finite decimal number in [min, max], nothing after it; the C locale's point whatever the process's
 * locale. A least number of `min` below UNITS_LEAST is said as "above 0". */
#define UNITS_LEAST 1e-30
HELM_MUST_CHECK int units_parse_double(const char *what, const char *text, double min, double max,
                                       double *value, struct helm_err *err);

/* -1: no hexadecimal digit. */
static inline int units_hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Writes e.g. "15.26 GiB" into text and returns text. */
#define UNITS_TEXT 32
const char *units_format_size(uint64_t bytes, char text[UNITS_TEXT]);

/* a*b and a+b with overflow reported: return 0 on success, HELM_E_LIMIT on overflow; no detail. */
static inline int units_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return __builtin_mul_overflow(a, b, out) ? HELM_E_LIMIT : 0;
}
static inline int units_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return __builtin_add_overflow(a, b, out) ? HELM_E_LIMIT : 0;
}

/* Monotonic time. */
uint64_t units_now_us(void);
uint64_t units_now_ns(void);
static inline double units_now_s(void)
{
    return (double)units_now_ns() * 1e-9;
}
void units_sleep_ms(uint32_t ms);

/* The least multiple of `unit` (at least 1) that is not less than n. */
static inline uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}
