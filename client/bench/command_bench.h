/* helm-cli bench, which is helm-bench too. Called by both programs' main. */
#ifndef HELM_CLIENT_BENCH_COMMAND_BENCH_H
#define HELM_CLIENT_BENCH_COMMAND_BENCH_H

#include "client/shared/cli.h"

/* The exit status. Without cli->global it is helm-bench that was called. */
int command_bench(struct cli *cli, int argc, char *const argv[]);

#endif
