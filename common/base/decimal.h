/* Decimal numbers of any length, as a text has them: compared exactly, asked for single digits.
 *
 * Called where a number may have more digits than 64 bits or a double hold: bounds and constants of schemas,
 * whole numbers in templates. Nothing is copied: a number is a view of its text. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/json.h"

#define DECIMAL_OWN 48 /* the text of a double or of 64 bits */

/* The value is 0.d1 d2 ... dn times 10^point. Neither d1 nor dn is 0; of zero there is no digit. */
struct decimal {
    bool negative; /* never of zero */
    size_t count;
    int64_t point;
    const char *first; /* d1 in the text; borrowed */
    const char *dot;   /* '.' at or after it; NULL: there is none */
    char own[DECIMAL_OWN];
};

/* A number as JSON writes it. Bytes after the number are not looked at. */
void decimal_read(const char *text, struct decimal *out);
/* A number of JSON: by its text in `numbers` (NULL: none) or its value. *out must not be copied. */
void decimal_of(const json_t *number, const struct json_numbers *numbers, struct decimal *out);
/* The digit that counts 10^place; 0 beyond its ends. */
uint32_t decimal_digit(const struct decimal *d, int64_t place);
bool decimal_is_whole(const struct decimal *d);
/* < 0, 0, > 0. */
int decimal_compare_sizes(const struct decimal *a, const struct decimal *b); /* without signs */
int decimal_compare(const struct decimal *a, const struct decimal *b);
/* One text for equal numbers, such as -125e-1. NULL: no memory; otherwise the caller frees it. */
char *decimal_key(const struct decimal *d);
