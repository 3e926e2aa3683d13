/* helm-cli experts: what tokens chose of experts that lie in both memories. A table for people; as a
 * histogram for helmd and helm-plan, whose --experts-histogram reads it. See cli.h and query.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/commands.h"
#include "client/cli/query.h"

static int descending(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x < y) - (x > y);
}

/* Which part of a layer's uses its most used experts have, this part of all of them. */
static double part_of(const uint64_t *sorted, uint32_t experts, uint32_t most, uint64_t all)
{
    uint64_t sum = 0;
    for (uint32_t e = 0; e < experts && e < most; e++) sum += sorted[e];
    return all ? 100.0 * (double)sum / (double)all : 0;
}

static int table(const struct helm_plan_info *p, struct cli_text *out, struct helm_err *err)
{
    uint64_t *sorted = malloc((p->experts + 1) * sizeof *sorted);
    if (!sorted) return helm_fail(err, HELM_E_NOMEM, "no memory for %u experts", p->experts);
    cli_text_printf(out, "%-7s %12s  %s\n", "LAYER", "USES",
                    "OF THEM BY THE MOST USED 1/16, 1/8, 1/4, 1/2 OF THE EXPERTS");
    for (size_t l = 0; l < p->expert_layer_count; l++) {
        uint64_t all = 0;
        memcpy(sorted, p->expert_uses + l * p->experts, p->experts * sizeof *sorted);
        qsort(sorted, p->experts, sizeof *sorted, descending);
        for (uint32_t e = 0; e < p->experts; e++) all += sorted[e];
        cli_text_printf(out, "%-7u %12" PRIu64 "  %5.1f %%  %5.1f %%  %5.1f %%  %5.1f %%\n",
                        p->expert_layers[l], all, part_of(sorted, p->experts, p->experts / 16, all),
                        part_of(sorted, p->experts, p->experts / 8, all),
                        part_of(sorted, p->experts, p->experts / 4, all),
                        part_of(sorted, p->experts, p->experts / 2, all));
    }
    free(sorted);
    return 0;
}

/* {"experts": N, "layers": [{"layer": L, "uses": [...]}, ...]} */
static int histogram(const struct helm_plan_info *p, struct cli_text *out, struct helm_err *err)
{
    json_t *layers = json_array();
    for (size_t l = 0; l < p->expert_layer_count; l++) {
        json_t *uses = json_array();
        for (uint32_t e = 0; e < p->experts; e++)
            json_array_append_new(uses, json_integer((json_int_t)p->expert_uses[l * p->experts + e]));
        json_array_append_new(layers, json_pack("{s:I, s:o}", "layer", (json_int_t)p->expert_layers[l],
                                                "uses", uses));
    }
    json_t *all = json_pack("{s:I, s:o}", "experts", (json_int_t)p->experts, "layers", layers);
    char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    if (!text) return helm_fail(err, HELM_E_NOMEM, "no memory for a histogram of experts");
    cli_text_printf(out, "%s\n", text);
    free(text);
    return 0;
}

int command_experts(struct cli *cli, int argc, char *const argv[])
{
    bool is_histogram = false;
    const struct args_option table_of[] = {
        {"histogram", 0, ARGS_FLAG, NULL, "the uses of each expert as JSON, as --experts-histogram reads it",
         .target = &is_histogram},
    };
    const struct args_spec about = {
        .program = "helm-cli experts",
        .usage = "[--histogram]",
        .about =
            "What decode steps chose of experts that lie in both memories: how unevenly, layer by layer.",
        ARGS_TABLE(table_of),
        .parent = cli->global};
    struct args_parsed parsed;
    struct helm_err err = {0};
    struct cli_text out = {0};
    struct helm_plan_info *info = NULL;
    args_parse_main(&about, argc, argv, &parsed);
    int exit_status = cli_open(cli);
    if (exit_status != CLI_EXIT_DONE) return exit_status;
    int rc = helm_plan_info(cli->client, CLI_ANSWER_MS, &info, &err);
    if (rc == 0 && !info->expert_layer_count)
        rc = helm_fail(&err, HELM_E_UNSUPPORTED, "the plan has no layer whose experts lie in both memories");
    if (rc == 0) rc = (is_histogram ? histogram : table)(info, &out, &err);
    exit_status = query_finish(&out, rc, &err);
    free(info);
    return exit_status;
}
