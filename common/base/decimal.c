/* Decimal numbers as views of their texts. See decimal.h. */
#include "common/base/decimal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"

#define EXPONENT_MAX 1000000000 /* larger ones say no more: no text has as many digits */

static int64_t read_exponent(const char *at)
{
    const bool minus = *at == '-';
    int64_t exponent = 0;
    if (*at == '-' || *at == '+') at++;
    for (; *at >= '0' && *at <= '9'; at++)
        if (exponent < EXPONENT_MAX) exponent = 10 * exponent + (*at - '0');
    return minus ? -exponent : exponent;
}

void decimal_read(const char *text, struct decimal *out)
{
    *out = (struct decimal){.negative = *text == '-'};
    size_t digits = 0; /* from the first one that is not 0 */
    int64_t point = 0;
    const char *at = text + (*text == '-' || *text == '+');
    for (; (*at >= '0' && *at <= '9') || (*at == '.' && !out->dot); at++) {
        if (*at == '.') {
            out->dot = at;
            continue;
        }
        if (!out->first && *at != '0') out->first = at;
        if (out->first) digits++;
        if (out->first && !out->dot) point++;
        if (!out->first && out->dot) point--;
        if (*at != '0') out->count = digits;
    }
    if (!out->first) {
        out->negative = false;
        return;
    }
    if (out->dot && out->dot < out->first) out->dot = NULL;
    out->point = point + (*at == 'e' || *at == 'E' ? read_exponent(at + 1) : 0);
}

void decimal_of(const json_t *number, const struct json_numbers *numbers, struct decimal *out)
{
    const char *text = json_number_text(numbers, number);
    char own[DECIMAL_OWN];
    if (!text && json_is_integer(number))
        snprintf(own, sizeof own, "%" JSON_INTEGER_FORMAT, json_integer_value(number));
    else if (!text)
        json_real_text(json_real_value(number), own, sizeof own);
    decimal_read(text ? text : own, out);
    if (text) return;
    memcpy(out->own, own, sizeof own);
    if (out->first) out->first = out->own + (out->first - own);
    if (out->dot) out->dot = out->own + (out->dot - own);
}

/* The digit d(index + 1). */
static uint32_t digit_at(const struct decimal *d, size_t index)
{
    const char *at = d->first + index;
    if (d->dot && at >= d->dot) at++;
    return (uint32_t)(*at - '0');
}

uint32_t decimal_digit(const struct decimal *d, int64_t place)
{
    const int64_t index = d->point - 1 - place;
    return index >= 0 && index < (int64_t)d->count ? digit_at(d, (size_t)index) : 0;
}

bool decimal_is_whole(const struct decimal *d)
{
    return d->count == 0 || d->point >= (int64_t)d->count;
}

int decimal_compare_sizes(const struct decimal *a, const struct decimal *b)
{
    if (!a->count || !b->count) return (a->count > 0) - (b->count > 0);
    if (a->point != b->point) return a->point > b->point ? 1 : -1;
    for (size_t i = 0; i < a->count && i < b->count; i++)
        if (digit_at(a, i) != digit_at(b, i)) return digit_at(a, i) > digit_at(b, i) ? 1 : -1;
    return (a->count > b->count) - (a->count < b->count);
}

int decimal_compare(const struct decimal *a, const struct decimal *b)
{
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    return a->negative ? decimal_compare_sizes(b, a) : decimal_compare_sizes(a, b);
}

char *decimal_key(const struct decimal *d)
{
    char *key = malloc(d->count + 32);
    if (!key) return NULL;
    size_t used = 0;
    if (d->negative) key[used++] = '-';
    for (size_t i = 0; i < d->count; i++) key[used++] = (char)('0' + digit_at(d, i));
    snprintf(key + used, 24, "e%" PRId64, d->point - (int64_t)d->count);
    return key;
}
