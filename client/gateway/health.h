/* /health without libmicrohttpd, for connections that ask for nothing else: they take no place, and an answer
 * costs a tenth. Called by arrivals.c, in the loop. Owns nothing. */
#pragma once

#include "client/gateway/gateway.h"

/* A connection's first bytes ask for something; they stay where they are. */
enum health_asks { HEALTH_SILENT, HEALTH_OTHER, HEALTH_ASKED };
enum health_asks health_asks(int fd);

enum health_answer {
    HEALTH_NONE,  /* nothing was read: its head is not whole, or has something that others decide about */
    HEALTH_MORE,  /* it was answered, and may ask again */
    HEALTH_CLOSE, /* it was answered; the caller closes the connection */
};
enum health_answer health_answer(struct gateway *gateway, int fd);
