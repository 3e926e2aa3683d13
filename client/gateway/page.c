/* The page to chat, file by file: "/" and the paths under ROUTES_PAGE. Called by the loop; see routes.h. */
#include "client/gateway/page.h"

#include <string.h>

#include "client/gateway/routes.h"

void page_reply(struct exchange *ex)
{
    const char *name = *ex->named ? ex->named : "index.html";
    for (unsigned i = 0; i < page_file_count; i++) {
        const struct page_file *file = &page_files[i];
        if (strcmp(file->name, name) != 0) continue;
        cli_text_add(&ex->out, (const char *)file->data, file->bytes);
        exchange_answer(ex, 200, file->type, &ex->out);
        return;
    }
    refuse(&ex->refusal, 404, "not_found", NULL, "the page has no file of that name");
    exchange_refuse(ex);
}
