/* The paths that the gateway knows, in one table. Called by server.c and by the threads of jobs.c. */
#pragma once

#include "client/gateway/voice.h"

/* Paths of which a name follows. */
#define ROUTES_MODEL "/v1/models/"
#define ROUTES_PAGE  "/page/"

struct route {
    const char *method, *path;
    bool open;                                                          /* needs no key */
    void (*error)(struct cli_text *out, const struct refusal *refusal); /* NULL: in OpenAI's shape */
    void (*work)(struct exchange *exchange);  /* in a thread, with the body; or NULL */
    void (*reply)(struct exchange *exchange); /* in the loop, at once; where there is no work */
    enum ask_kind kind;                       /* of generations, with their voice */
    const struct voice *voice;
    unsigned wants;          /* INQUIRY_WANTS(...): what helmd is asked first, in a thread */
    bool reserve;            /* answered while there is no place */
    const char *unsupported; /* why there is only a refusal; else NULL */
};
extern const struct route routes[];
extern const size_t route_count;

/* NULL: there is none. allow[] has the path's methods, "" where there is no such path; *named the name that
 * follows ROUTES_MODEL or ROUTES_PAGE, or begins with what "{id}" stands for, up to its end or a slash. A
 * HEAD is a GET; "/v1" may be missing. */
const struct route *routes_find(const char *method, const char *path, const char **named, char allow[64]);
/* For a path that is in no row. */
const struct route *routes_stranger(const char *path);
/* A browser asks whether another site's page may ask. */
extern const struct route route_preflight;
/* Its row in the counters. */
size_t routes_row(const struct route *route);

/* ---- info.c ---- */
void info_models(struct exchange *exchange);
void info_model(struct exchange *exchange);
void info_health(struct exchange *exchange);
void info_status_page(struct exchange *exchange);
void info_metrics(struct exchange *exchange);
void info_tags(struct exchange *exchange);
void info_ps(struct exchange *exchange);
void info_version(struct exchange *exchange);
void info_show(struct exchange *exchange);
void info_pull(struct exchange *exchange);

/* ---- info_responses.c ---- */
void info_response(struct exchange *exchange);
void info_response_forget(struct exchange *exchange);
void info_response_input(struct exchange *exchange);

/* ---- info_llama.c ---- */
void info_props(struct exchange *exchange);
void info_slots(struct exchange *exchange);
void info_preflight(struct exchange *exchange);

/* ---- page.c ---- */
void page_reply(struct exchange *exchange);
