/* helm-cli metrics: the daemon's counters as Prometheus reads them. See cli.h.
 *
 * For a machine without the gateway: printed into a file, node_exporter's textfile collector takes it. */
#include <stdlib.h>

#include "client/cli/commands.h"
#include "client/shared/daemon_metrics.h"
#include "client/cli/query.h"

int command_metrics(struct cli *cli, int argc, char *const argv[])
{
    const struct args_spec spec = {
        .program = "helm-cli metrics",
        .usage = "",
        .about = "The daemon's counters as Prometheus's text, as the gateway's /metrics "
                 "has them.",
        .parent = cli->global};
    struct args_parsed parsed;
    struct helm_err err = {0};
    struct helm_status *status = NULL;
    struct helm_plan_info *plan = NULL;
    struct cli_text out = {0};
    args_parse_main(&spec, argc, argv, &parsed);
    const int exit_status = cli_open(cli);
    if (exit_status != CLI_EXIT_DONE) return exit_status;
    int rc = helm_status(cli->client, CLI_ANSWER_MS, &status, &err);
    if (rc == 0) rc = helm_plan_info(cli->client, CLI_ANSWER_MS, &plan, &err);
    if (rc == HELM_E_STATE) rc = 0; /* still loading: there is no plan yet */
    if (rc == 0) daemon_metrics_write(status, plan, &out);
    free(status);
    free(plan);
    return query_finish(&out, rc, &err);
}
