/* Kept responses by their ids: shown, listed, forgotten. Called through routes.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/gateway.h"
#include "client/gateway/routes.h"
#include "client/gateway/server.h"

#define LIMIT_UNSAID 20
#define LIMIT_MAX    100

/* The one that the path names, held. NULL: refused. */
static struct response *find(struct exchange *ex)
{
    ex->named[strcspn(ex->named, "/")] = 0;
    struct response *found = responses_find(ex->gateway->model.responses, ex->whose->name, ex->named);
    if (found) return found;
    refuse(&ex->refusal, 404, "", NULL, "Response with id '%.100s' not found.", ex->named);
    exchange_refuse(ex);
    return NULL;
}

void info_response(struct exchange *ex)
{
    const char *stream = server_query(ex, "stream");
    if (stream && strcmp(stream, "true") == 0) {
        refuse(&ex->refusal, 400, "unsupported_parameter", "stream",
               "'stream' is not supported here: the events of an answer are not kept");
        exchange_refuse(ex);
        return;
    }
    struct response *response = find(ex);
    if (!response) return;
    size_t length;
    const char *text = response_text(response, &length);
    cli_text_add(&ex->out, text, length);
    responses_give_back(response);
    exchange_answer(ex, 200, JSON_TYPE, &ex->out);
}

void info_response_forget(struct exchange *ex)
{
    struct response *response = find(ex);
    if (!response) return;
    responses_give_back(response);
    (void)!responses_forget(ex->gateway->model.responses, ex->whose->name, ex->named);
    cli_text_fill(&ex->out, "{'id':$,'object':'response','deleted':true}", JSON(ex->named));
    exchange_answer(ex, 200, JSON_TYPE, &ex->out);
}

/* The page of a list that a query asks for. */
struct page {
    bool newest_first;
    size_t limit;
    const char *after; /* an item's id; NULL: from the beginning */
};

static bool read_page(struct exchange *ex, struct page *page)
{
    const char *order = server_query(ex, "order"), *limit = server_query(ex, "limit");
    char *end = NULL;
    *page = (struct page){true, LIMIT_UNSAID, server_query(ex, "after")};
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        return refuse(&ex->refusal, 400, "invalid_value", "order",
                      "'order' is '%.40s', neither 'asc' nor 'desc'", order);
    if (order) page->newest_first = strcmp(order, "desc") == 0;
    if (limit) page->limit = strtoul(limit, &end, 10);
    if (limit && (!*limit || *end || page->limit < 1 || page->limit > LIMIT_MAX))
        return refuse(&ex->refusal, 400, "invalid_value", "limit", "'limit' is '%.40s', not between 1 and %d",
                      limit, LIMIT_MAX);
    return true;
}

/* The items that the request itself sent. */
static bool add_items(struct exchange *ex, const struct response_items *items, const struct page *page)
{
    const size_t count = items->said;
    const struct response_item *first = NULL, *last = NULL;
    size_t at = 0, written = 0;
    for (; page->after && at < count; at++)
        if (strcmp(items->item[page->newest_first ? count - 1 - at : at].id, page->after) == 0) break;
    if (page->after && at == count)
        return refuse(&ex->refusal, 404, "", "after", "Item with id '%.100s' not found.", page->after);
    if (page->after) at++;
    cli_text_fill(&ex->out, "{'object':'list','data':[");
    for (; at < count && written < page->limit; at++, written++) {
        last = &items->item[page->newest_first ? count - 1 - at : at];
        if (!first) first = last;
        cli_text_fill(&ex->out, "$,", PLAIN(last->text));
    }
    cli_text_fill(&ex->out, "],'first_id':$,'last_id':$,'has_more':$}", JSON(first ? first->id : NULL),
                  JSON(last ? last->id : NULL), cli_value_bool(at < count));
    return true;
}

void info_response_input(struct exchange *ex)
{
    struct page page;
    struct response *response = find(ex);
    if (!response) return;
    const bool good = read_page(ex, &page) && add_items(ex, response_items(response), &page);
    responses_give_back(response);
    if (good)
        exchange_answer(ex, 200, JSON_TYPE, &ex->out);
    else
        exchange_refuse(ex);
}
