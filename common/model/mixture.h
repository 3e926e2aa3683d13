/* Mixtures of formats, as quantised models are published: which tensor lies in which format under a name such
 * as Q4_K_M.
 *
 * A mixture is a row: a format for most matrices, one for the head, and rules for what deserves more bits.
 * Called by helm-quantize, which writes such files, by the planner for `--weights`, and by placements, so
 * that helmd and workers lay down the same. Constant data. */
#pragma once

#include "common/model/model.h"

struct mixture;

/* By its name or another one for it, in letters of either case; NULL: there is none. */
const struct mixture *mixture_named(const char *name);
/* "q4_k_m". */
const char *mixture_name(const struct mixture *mixture);
/* Number `i` of them; NULL after the last. */
const struct mixture *mixture_at(uint32_t i);
/* Whether it has single numbers: nothing is quantised. */
bool mixture_is_plain(const struct mixture *mixture);
/* Whether weights are laid down in it as they are loaded: not in those that are made with importance. */
bool mixture_lays(const struct mixture *mixture);
/* The "general.file_type" of its files. */
uint32_t mixture_file_type(const struct mixture *mixture);

/* The format of a matrix of the model in files of this mixture; rows that are no whole blocks have one that
 * takes them, at last the one that they are stored in. `importance`: whether column importance was measured,
 * which changes some rules. */
enum tensor_format mixture_format(const struct mixture *mixture, const struct model *model,
                                  const struct model_tensor *tensor, bool importance);
/* The same of a model that is converted as it is loaded: what is in blocks stays so, and an embedding that is
 * no head stays as it is, since few rows of it are read. */
enum tensor_format mixture_format_at_load(const struct mixture *mixture, const struct model *model,
                                          const struct model_tensor *tensor);
/* Has a matrix lie in this format, and all matrices in those of a mixture, with the bytes of that: sizes and
 * prices are of them from then on, and workers convert at load. */
void mixture_lay_tensor(struct model *model, struct model_tensor *tensor, enum tensor_format format);
void mixture_lay(struct model *model, const struct mixture *mixture);
/* model_read_headers, and laid in the mixture of this name; "stored", or any other that is none: as it is. */
HELM_MUST_CHECK int mixture_read_headers(const char *path, const char *name, struct model *model,
                                         struct helm_err *err);
