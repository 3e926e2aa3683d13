/* The commands of helm-cli, which main.c calls by its tables; each command_*.c is a group of them.
 *
 * A command parses its own options and returns the process's exit status. */
#pragma once

#include "client/shared/cli.h"

int command_run(struct cli *cli, int argc, char *const argv[]);
int command_chat(struct cli *cli, int argc, char *const argv[]);
int command_generate(struct cli *cli, int argc, char *const argv[]);
int command_tokenize(struct cli *cli, int argc, char *const argv[]);
int command_detokenize(struct cli *cli, int argc, char *const argv[]);
int command_session(struct cli *cli, int argc, char *const argv[]);
int command_top(struct cli *cli, int argc, char *const argv[]);
int command_status(struct cli *cli, int argc, char *const argv[]);
int command_ps(struct cli *cli, int argc, char *const argv[]);
int command_cancel(struct cli *cli, int argc, char *const argv[]);
int command_metrics(struct cli *cli, int argc, char *const argv[]);
int command_experts(struct cli *cli, int argc, char *const argv[]);
int command_plan(struct cli *cli, int argc, char *const argv[]);
int command_pull(struct cli *cli, int argc, char *const argv[]);
