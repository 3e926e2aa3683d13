/* helm-cli's questions to a daemon: what status, top, ps, cancel and plan have in common. Defined in
 * command_query.c, used there, by command_plan.c and top_screen.c. */
#pragma once

#include "client/shared/cli.h"

/* Parses the line of a command whose one option is --json, and connects. CLI_EXIT_DONE or another status. */
int query_begin(struct cli *cli, const struct args_spec *about, int argc, char *const argv[], bool *json,
                struct args_parsed *parsed);
/* Prints what was formatted unless rc says that something failed, and frees it; the command's status. */
int query_finish(struct cli_text *out, int rc, struct helm_err *err);
/* Requests as a table, with its heading. */
void query_add_list(const struct helm_list *list, struct cli_text *out);
