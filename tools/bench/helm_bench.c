/* helm-bench: `helm-cli bench` under a name of its own, for scripts. client/bench does all of it. */
#include <signal.h>

#include "client/bench/command_bench.h"
#include "client/shared/cli.h"

int main(int argc, char **argv)
{
    struct cli cli = {.signal_fd = -1};
    signal(SIGPIPE, SIG_IGN);
    return command_bench(&cli, argc, argv);
}
