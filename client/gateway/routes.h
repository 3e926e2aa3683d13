/* The paths that the gateway knows, in one table. Called by server.c and by the threads of jobs.c. */
#ifndef HELM_CLIENT_GATEWAY_ROUTES_H
#define HELM_CLIENT_GATEWAY_ROUTES_H

#include "client/gateway/voice.h"

#define ROUTES_MODEL "/v1/models/"

struct route {
    const char *method, *path;
    bool open;                                /* needs no key */
    bool ollama;                              /* errors in Ollama's shape */
    void (*work)(struct exchange *exchange);  /* in a thread, with the body; or NULL */
    void (*reply)(struct exchange *exchange); /* in the loop, at once; where there is no work */
    enum ask_kind kind;                       /* of generations, with their voice */
    const struct voice *voice;
    const char *unsupported; /* why there is only a refusal; else NULL */
};
extern const struct route routes[];
extern const size_t route_count;

/* NULL: there is none; *known says whether the path has another method. A HEAD is a GET. */
const struct route *routes_find(const char *method, const char *path, bool *known);

/* What server.c refuses before there is a route. */
extern const struct route route_none;

/* ---- info.c ---- */
void info_models(struct exchange *exchange);
void info_model(struct exchange *exchange);
void info_health(struct exchange *exchange);
void info_status_page(struct exchange *exchange);
void info_metrics(struct exchange *exchange);
void info_page(struct exchange *exchange);
void info_tags(struct exchange *exchange);
void info_ps(struct exchange *exchange);
void info_version(struct exchange *exchange);
void info_show(struct exchange *exchange);

#endif
