/* helm-worker-cpu: computes the `cpu` stages of a plan. Spawned by helmd, never by hand, except to print
 * programs. */
#include "worker-cpu/engine.h"
#include "common/worker/engine.h"

int main(int argc, char **argv)
{
    return process_main("helm-worker-cpu", "The process of helmd that computes on the CPU.", &cpu_engine_ops,
                        argc, argv);
}
