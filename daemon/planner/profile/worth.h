/* By how much plans and choices must differ to count: parts of a time or of a size.
 *
 * Included by all who choose. Levels, so that a choice is as sure as another one of its kind. */
#pragma once

/* Two searches for nearly the same end so far apart (docs/planner.md: 0.9 % above the bound in the mean): less is no difference. */
#define WORTH_NOTING 0.02
/* What a short context may lose so that long ones gain, and what a longer chunk must gain, which takes room. */
#define WORTH_ROOM 0.03
/* Worth other tokens, or weights that are loaded in another form: forecasts err by 1.5 % in the median and 12 % at worst. */
#define WORTH_CHANGE 0.05
/* Beyond what rates differ by from one hour to the next: worth kernels of another kind, or another measurement's rates. */
#define WORTH_MUCH 0.10
