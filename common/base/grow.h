/* Arrays that grow by doubling.
 *
 * Called wherever a list becomes longer one entry at a time; the caller owns the array, and frees it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#define GROW_LEAST 64

/* Room for entry `count` of `array`, which has `space` of them (NULL: 0). Both are variables and are written.
 * False: there is no memory, and both are as they were. */
#define GROW(array, count, space)                                                                            \
    ((count) < (space) || __extension__({                                                                    \
         const size_t grow_space = (space) ? 2 * (size_t)(space) : GROW_LEAST;                               \
         void *const grow_array = realloc((array), grow_space * sizeof *(array));                            \
         if (grow_array) (array) = grow_array, (space) = (__typeof__(space))grow_space;                      \
         grow_array != NULL;                                                                                 \
     }))
