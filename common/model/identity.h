/* Which model it is, in 64 bits: what a session's file is bound to (proto/helm.proto, SessionShape).
 *
 * Called once by helmd, at its start. It covers the numbers that the arithmetic depends on, every tensor's
 * name, shape and format, the vectors' bytes and IDENTITY_SAMPLE bytes at the beginning of each matrix and as
 * many in its middle: a few MB of any model. A model that was trained further, merged or converted differs in
 * those. XXH3 of 64 bits: against mistakes, not against forgers. */
#pragma once

#include "common/model/model.h"

#define IDENTITY_SAMPLE 4096

/* The same wherever the model lies, and whatever is planned for it. */
HELM_MUST_CHECK int model_identity(const struct model *model, uint64_t *identity, struct helm_err *err);
