/* Sizes, numbers and monotonic time. See units.h. */
#include "common/base/units.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double parse_decimal(const char *text, char **end)
{
    /* strtod reads the locale's decimal point; helm-cli sets a locale for its terminal. */
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0) return strtod(text, end);
    double value = strtod_l(text, end, c_locale);
    freelocale(c_locale);
    return value;
}

static int starts_like_number(const char *text)
{
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) return 0; /* strtod would read hexadecimal */
    return (*text >= '0' && *text <= '9') || (*text == '.' && text[1] >= '0' && text[1] <= '9');
}

int units_parse_size(const char *what, const char *text, uint64_t *bytes, struct helm_err *err)
{
    static const struct {
        const char *name;
        double factor;
    } suffixes[] = {{"", 1},
                    {"B", 1},
                    {"K", 1024.},
                    {"k", 1024.},
                    {"M", 1048576.},
                    {"m", 1048576.},
                    {"G", 1073741824.},
                    {"g", 1073741824.},
                    {"T", 1099511627776.},
                    {"t", 1099511627776.},
                    {"KiB", 1024.},
                    {"MiB", 1048576.},
                    {"GiB", 1073741824.},
                    {"TiB", 1099511627776.},
                    {"KB", 1e3},
                    {"MB", 1e6},
                    {"GB", 1e9},
                    {"TB", 1e12}};
    if (!starts_like_number(text))
        return helm_fail(err, HELM_E_USAGE, "%s: '%.40s' is not a size (write 8GiB, 8G, 512MiB or bytes)",
                         what, text);
    char *end;
    double number = parse_decimal(text, &end);
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        if (strcmp(end, suffixes[i].name) != 0) continue;
        double value = number * suffixes[i].factor;
        if (!(value >= 0 && value < 9.0e18))
            return helm_fail(err, HELM_E_USAGE, "%s: '%.40s' is out of range", what, text);
        *bytes = (uint64_t)value;
        return 0;
    }
    return helm_fail(err, HELM_E_USAGE,
                     "%s: '%.40s' has an unknown unit (K, M, G, T, KiB, MiB, GiB, TiB, KB, MB, GB, TB)", what,
                     text);
}

int units_parse_u64(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *value,
                    struct helm_err *err)
{
    char *end = NULL;
    errno = 0;
    unsigned long long number = (*text >= '0' && *text <= '9') ? strtoull(text, &end, 10) : 0;
    if (!end || *end != '\0')
        return helm_fail(err, HELM_E_USAGE, "%s: '%.40s' is not a whole number", what, text);
    if (errno == ERANGE || number < min || number > max)
        return helm_fail(err, HELM_E_USAGE, "%s: %.40s is not between %llu and %llu", what, text,
                         (unsigned long long)min, (unsigned long long)max);
    *value = number;
    return 0;
}

/* "4k" and "4K" are 4096, as models' contexts are called. */
int units_parse_tokens(const char *what, const char *text, uint64_t min, uint64_t max, uint64_t *value,
                       struct helm_err *err)
{
    const size_t digits = strspn(text, "0123456789");
    char number[24];
    if (digits == 0 || digits >= sizeof number ||
        (strcmp(text + digits, "k") != 0 && strcmp(text + digits, "K") != 0))
        return units_parse_u64(what, text, min, max, value, err);
    snprintf(number, sizeof number, "%.*s", (int)digits, text);
    const unsigned long long thousands = strtoull(number, NULL, 10);
    if (thousands > UINT64_MAX / 1024 || thousands * 1024 < min || thousands * 1024 > max)
        return helm_fail(err, HELM_E_USAGE, "%s: %.40s is not between %llu and %llu", what, text,
                         (unsigned long long)min, (unsigned long long)max);
    *value = thousands * 1024;
    return 0;
}

int units_parse_double(const char *what, const char *text, double min, double max, double *value,
                       struct helm_err *err)
{
    const char *digits = (*text == '-' || *text == '+') ? text + 1 : text;
    char *end = NULL;
    double number = starts_like_number(digits) ? parse_decimal(text, &end) : 0;
    if (!end || *end != '\0' || !isfinite(number))
        return helm_fail(err, HELM_E_USAGE, "%s: '%.40s' is not a number", what, text);
    const bool open = min > 0 && min < UNITS_LEAST; /* a bound that only keeps 0 out */
    if ((number < min || number > max) && open)
        return helm_fail(err, HELM_E_USAGE, "%s: %.40s is not above 0 and at most %g", what, text, max);
    if (number < min || number > max)
        return helm_fail(err, HELM_E_USAGE, "%s: %.40s is not between %g and %g", what, text, min, max);
    *value = number;
    return 0;
}

const char *units_format_size(uint64_t bytes, char text[UNITS_TEXT])
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit < 4) value /= 1024, unit++;
    snprintf(text, UNITS_TEXT, unit ? "%.2f %s" : "%.0f %s", value, names[unit]);
    return text;
}

uint64_t units_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t units_now_us(void)
{
    return units_now_ns() / 1000;
}

void units_sleep_ms(uint32_t ms)
{
    const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    (void)nanosleep(&time, NULL);
}
