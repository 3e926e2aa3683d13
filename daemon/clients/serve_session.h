/* Requests about sessions and the answers to them (daemon/steps/sessions.h).
 *
 * Called by serve.c's table of handlers and, through the sink, by sessions.c. Owns nothing. */
#pragma once

#include "daemon/clients/serve.h"

/* The sink that sessions.c answers through; `serve` outlives it. */
struct sessions_sink serve_session_sink(struct serve *serve);

void serve_session_save(struct serve *serve, struct asker asker, struct request *request);
void serve_session_restore(struct serve *serve, struct asker asker, struct request *request);
void serve_session_read(struct serve *serve, struct asker asker, struct request *request);
void serve_session_write(struct serve *serve, struct asker asker, struct request *request);
void serve_session_end(struct serve *serve, struct asker asker, struct request *request);
