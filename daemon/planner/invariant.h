/* Whether a plan is invariant (common/plan/schedule.h): what it costs, and the choice.
 *
 * Called by main.c and helm-plan once a plan is made or taken. An invariant plan's prices differ in this: a
 * GPU decodes one token with the kernels of a few, without chains; its chunks are whole sub-chunks; with two
 * tiers the CPU attends to nothing; the CPU multiplies each of several tokens as one. The CPU's one token and
 * its chunks are as fast. Where the model's own programs were measured both ways (profile/programs.h), they
 * are the price, else rates alone. Not priced: sequences that decode while prompts are computed wait for
 * steps of their own. Pure. */
#pragma once

#include "daemon/planner/planner.h"

enum invariant_option { INVARIANT_AUTO, INVARIANT_ON, INVARIANT_OFF, INVARIANT_OPTIONS };
#define INVARIANT_CHOICES "auto|on|off"
/* The option of this text, one of INVARIANT_CHOICES. */
enum invariant_option invariant_option_named(const char *name);

struct invariant {
    enum invariant_option option;
    char text[200]; /* "on: by price; as priced decode takes +0.0 %, ..." */
};

/* Makes the plan invariant or not, as the option says; INVARIANT_AUTO: as a plan that was given (request)
 * says, else by its price: of a decode step of the sequences that it is made fastest for, and of 2, 4, 8 and
 * 16, as far as it has slots. Where the CPU computes and there are several, that was measured of the model's
 * own programs; if it was not, it is off. */
HELM_MUST_CHECK int invariant_decide(const struct planner_request *request, bool given, struct plan *plan,
                                     struct invariant *invariant, struct helm_err *err);
