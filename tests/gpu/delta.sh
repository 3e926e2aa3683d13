#!/bin/sh
# Gated delta nets on this machine's GPU: builds for compute capability $CUDA_ARCH (default: 90) and checks kernels, models and
# races. Run in the root of the checkout.
#
#   tests/gpu/delta.sh [--built]     --built: the programs are there
#
# Exit 0: nothing failed. Logs: gpu-check-logs.
set -eu
bin=build/bin
if [ "${1:-}" != --built ]; then
    make -j"$(nproc)" CUDA_ARCH="${CUDA_ARCH:-90}" $bin/helm-test-gpu-kernels $bin/helm-test-gpu-gguf $bin/helm-test-gpu-split
fi
status=0
tests/gpu/check.sh --need-gpu --only kernels-delta,kernels-attention,kernels-chain,kernels-linear,kernels-expand,gguf,split,memcheck-delta,racecheck-delta,initcheck-delta,synccheck-delta $bin || status=1
exit $status
