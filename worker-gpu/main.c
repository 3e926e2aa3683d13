/* helm-worker-gpu: computes the `gpu` stages of a plan, on a GPU or on the emulated device. Spawned by helmd,
 * never by hand, except to print programs. */
#include "worker-gpu/engine.h"
#include "common/worker/engine.h"

int main(int argc, char **argv)
{
    return process_main("helm-worker-gpu", "The process of helmd that computes on the GPU.", &gpu_engine_ops,
                        argc, argv);
}
