/* Shares of a bounded number of places: of helmd's queue (daemon/steps/admission.c) and of the gateway's open
 * generations (client/gateway/users.c). Pure. */
#pragma once

#include <stdint.h>

/* At least one, so that nobody is shut out while a place is free. */
static inline uint32_t share_of(uint32_t places, uint32_t sharers)
{
    return places > sharers ? places / sharers : 1;
}

/* The most places that one of `sharers` may hold when it asks for `more`, with `open` ones in use: an equal
 * share of all but the `reserve`. In the reserve that is no more than the places that are free: each newcomer
 * leaves some for the next. */
static inline uint32_t share_now(uint32_t places, uint32_t reserve, uint32_t open, uint32_t more,
                                 uint32_t sharers)
{
    const uint32_t equal = share_of(places - reserve, sharers), left = places - open;
    return open + more > places - reserve && left < equal ? left : equal;
}
