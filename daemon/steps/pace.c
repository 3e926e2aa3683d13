/* When steps end. See pace.h. */
#include "daemon/steps/pace.h"

void pace_begin(struct pace *pace, uint32_t rows, uint32_t tokens, uint64_t now_us)
{
    if (rows != pace->rows || tokens != pace->tokens) pace->last_us = pace->before_us = 0;
    pace->rows = rows;
    pace->tokens = tokens;
    pace->begun_us = now_us;
    pace->from_us = pace->until_us = 0;
    if (!pace->last_us || !pace->before_us) return; /* once may have been chance */
    uint64_t sooner = pace->last_us < pace->before_us ? pace->last_us : pace->before_us;
    if (sooner > PACE_LONGEST_US) return;
    uint64_t later = pace->last_us + pace->before_us - sooner, margin = sooner / PACE_MARGIN;
    if (margin < PACE_MARGIN_US) margin = PACE_MARGIN_US;
    if (later - sooner > margin) later = sooner + margin; /* one of them was held up */
    pace->from_us = now_us + (sooner > margin ? sooner - margin : 0);
    pace->until_us = now_us + later + margin;
}

void pace_end(struct pace *pace, uint64_t now_us)
{
    pace->before_us = pace->last_us;
    pace->last_us = now_us > pace->begun_us ? now_us - pace->begun_us : 1;
    pace->from_us = pace->until_us = 0;
}

void pace_lost(struct pace *pace)
{
    *pace = (struct pace){0};
}
