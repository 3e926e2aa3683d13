/* When steps end. See pace.h. */
#include "daemon/steps/pace.h"

#include <string.h>

static struct pace_size *size_of(struct pace *pace, uint32_t tokens)
{
    return &pace->few[tokens <= ENGINE_FEW_TOKENS ? tokens : 0];
}

void pace_begin(struct pace *pace, uint32_t rows, uint32_t tokens, uint64_t now_us)
{
    struct pace_size *size = size_of(pace, tokens);
    if (rows != pace->rows) memset(pace->few, 0, sizeof pace->few);
    if (tokens > ENGINE_FEW_TOKENS && tokens != pace->tokens) *size = (struct pace_size){0};
    pace->rows = rows;
    pace->tokens = tokens;
    pace->begun_us = now_us;
    pace->from_us = pace->until_us = 0;
    if (!size->last_us || !size->before_us) return; /* once may have been chance */
    uint64_t sooner = size->last_us < size->before_us ? size->last_us : size->before_us;
    if (sooner > PACE_LONGEST_US) return;
    uint64_t later = size->last_us + size->before_us - sooner, margin = sooner / PACE_MARGIN;
    if (margin < PACE_MARGIN_US) margin = PACE_MARGIN_US;
    if (later - sooner > margin) later = sooner + margin; /* one of them was held up */
    pace->from_us = now_us + (sooner > margin ? sooner - margin : 0);
    pace->until_us = now_us + later + margin;
}

void pace_end(struct pace *pace, uint64_t now_us)
{
    struct pace_size *size = size_of(pace, pace->tokens);
    size->before_us = size->last_us;
    size->last_us = now_us > pace->begun_us ? now_us - pace->begun_us : 1;
    pace->from_us = pace->until_us = 0;
}

void pace_lost(struct pace *pace)
{
    *pace = (struct pace){0};
}
