/* The screen of `helm-cli top`: two answers of a daemon, some time apart, as lines of text.
 *
 * Pure: called by command_top.c and by tests; owns nothing. */
#pragma once

#include "client/shared/cli.h"

struct top_view {
    const char *endpoint;
    const struct helm_model_info *model; /* NULL: not known yet */
    const struct helm_status *before;    /* NULL: there was none, so rates are of the daemon's whole life */
    const struct helm_status *now;
    const struct helm_list *list;
    const struct helm_plan_info *plan; /* NULL: not known yet */
    double seconds;                    /* between the two */
    uint32_t columns, rows; /* of the screen: longer lines are cut, requests left out; 0: no limit */
};

/* Lines with their ends, no more than `rows` of them. Names come from the daemon and are shown as text. */
void top_screen(const struct top_view *view, struct cli_text *out);
