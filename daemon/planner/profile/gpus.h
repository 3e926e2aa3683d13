/* Profiles as JSON of a machine with one GPU or none: what json.c reads and writes, and gpus.c makes lists
 * of.
 *
 * {..., "gpu": {...} | null, "link": {...} | null}: files were like that before they had lists, and are read
 * as they are. */
#pragma once

#include "daemon/planner/profile/profile.h"

json_t *profile_one_to_json(const struct profile *profile);
HELM_MUST_CHECK int profile_one_from_json(const json_t *json, struct profile *profile, struct helm_err *err);
