/* A layer that makes drafts becomes one of the model's layers. See model.h. Called by the checkpoint readers;
 * no state. */
#include <stdlib.h>
#include <string.h>

#include "common/model/arch.h"
#include "common/model/checkpoint.h"

/* *list, [layers] or NULL, gets one more, of zeros. */
static int lengthen(void *list, size_t each, uint32_t layers, struct helm_err *err)
{
    void *old;
    memcpy(&old, list, sizeof old);
    if (!old) return 0;
    char *grown = realloc(old, ((size_t)layers + 1) * each);
    if (!grown) return helm_fail(err, HELM_E_NOMEM, "no memory for %u layers", layers + 1);
    memset(grown + layers * each, 0, each);
    memcpy(list, &grown, sizeof grown);
    return 0;
}

int checkpoint_add_drafts(struct model_config *c, struct helm_err *err)
{
    const uint32_t layers = c->layers;
    if (!c->draft_layers)
        return helm_fail(err, HELM_E_UNSUPPORTED,
                         "this %s has no layer that makes drafts (multi-token prediction)", c->architecture);
    if (!arch_of(c)->draft_names)
        return helm_fail(err, HELM_E_UNSUPPORTED, "drafts by a layer of %s are not supported",
                         c->architecture);
    if (layers >= MODEL_LAYERS_MAX)
        return helm_fail(err, HELM_E_LIMIT, "%u layers and one that makes drafts, the limit is %u", layers,
                         MODEL_LAYERS_MAX);
    int rc = lengthen(&c->window, sizeof *c->window, layers, err);
    if (!rc) rc = lengthen(&c->widths, sizeof *c->widths, layers, err);
    if (!rc) rc = lengthen(&c->reads, sizeof *c->reads, layers, err);
    if (!rc) rc = lengthen(&c->sparse, sizeof *c->sparse, layers, err);
    if (!rc) rc = lengthen(&c->recurrent, sizeof *c->recurrent, layers, err);
    if (rc) return rc;
    if (c->sparse) c->sparse[layers] = true;
    if (c->widths) c->widths[layers] = c->intermediate;
    c->layers++;
    c->drafts++;
    c->draft_layers--;
    return 0;
}
