/* helm-cli bench, which is helm-bench too. Called by both programs' main. */
#pragma once

#include "client/shared/cli.h"

/* The exit status. Without cli->global it is helm-bench that was called. */
int command_bench(struct cli *cli, int argc, char *const argv[]);
