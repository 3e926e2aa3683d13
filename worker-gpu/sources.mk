# Sources and program of worker-gpu/. The rules that compile CUDA are in cuda.mk beside this.

# CUDA is looked for in CUDA_HOME, PATH and /usr/local/cuda (section CUDA below). The CUDA device is part of
# release builds; sanitized ones have the emulated device only.
NVCC := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_DEVICE := $(if $(NVCC),$(filter release debug,$(MODE)))

WORKER_GPU_SRC := \
  worker-gpu/device/device.c \
  worker-gpu/device/emulated/attention.c \
  worker-gpu/device/emulated/chain.c \
  worker-gpu/device/emulated/delta.c \
  worker-gpu/device/emulated/device.c \
  worker-gpu/device/emulated/experts.c \
  worker-gpu/device/emulated/graph.c \
  worker-gpu/device/emulated/heads.c \
  worker-gpu/device/emulated/kernels.c \
  worker-gpu/device/emulated/queue.c \
  worker-gpu/device/emulated/select.c \
  worker-gpu/device/nvml.c \
  worker-gpu/drafts.c \
  worker-gpu/draw.c \
  worker-gpu/engine.c \
  worker-gpu/follow.c \
  worker-gpu/measure/attention.c \
  worker-gpu/measure/buffers.c \
  worker-gpu/measure/chains.c \
  worker-gpu/measure/chunks.c \
  worker-gpu/measure/expand.c \
  worker-gpu/measure/formats.c \
  worker-gpu/measure/kernels.c \
  worker-gpu/measure/measure.c \
  worker-gpu/measured.c \
  worker-gpu/print.c \
  worker-gpu/program/attention.c \
  worker-gpu/program/chain.c \
  worker-gpu/program/ends.c \
  worker-gpu/program/experts.c \
  worker-gpu/program/issue.c \
  worker-gpu/program/math.c \
  worker-gpu/program/places.c \
  worker-gpu/program/memory.c \
  worker-gpu/program/pieces.c \
  worker-gpu/program/print.c \
  worker-gpu/program/program.c \
  worker-gpu/program/ring.c \
  worker-gpu/program/states.c \
  worker-gpu/program/supply.c \
  worker-gpu/program/tiers.c \
  worker-gpu/step.c \
  worker-gpu/tiers.c \
  worker-gpu/watch.c \
  worker-gpu/weights/load.c \
  worker-gpu/weights/made.c \
  worker-gpu/weights/slots.c \
  worker-gpu/weights/weights.c

WORKER_GPU_DEVICE_SRC := $(addprefix worker-gpu/device/cuda/,$(if $(CUDA_DEVICE),device.c graph.c kernels.c,absent.c))

CUDA_KERNEL_SRC := \
  worker-gpu/kernels/attention/decode.cu \
  worker-gpu/kernels/attention/decode_tensor.cu \
  worker-gpu/kernels/attention/merge.cu \
  worker-gpu/kernels/attention/prefill.cu \
  worker-gpu/kernels/attention/rope.cu \
  worker-gpu/kernels/chain/attention.cu \
  worker-gpu/kernels/chain/chain.cu \
  worker-gpu/kernels/chain/list.cu \
  worker-gpu/kernels/chain/meetings.cu \
  worker-gpu/kernels/delta/chunk.cu \
  worker-gpu/kernels/delta/delta.cu \
  worker-gpu/kernels/experts/bulk.cu \
  worker-gpu/kernels/experts/chunk.cu \
  worker-gpu/kernels/experts/digits.cu \
  worker-gpu/kernels/experts/experts.cu \
  worker-gpu/kernels/experts/once.cu \
  worker-gpu/kernels/experts/packed.cu \
  worker-gpu/kernels/experts/plain.cu \
  worker-gpu/kernels/experts/route.cu \
  worker-gpu/kernels/experts/router_logits.cu \
  worker-gpu/kernels/experts/share.cu \
  worker-gpu/kernels/experts/wide.cu \
  worker-gpu/kernels/formats/expand.cu \
  worker-gpu/kernels/linear/elementwise.cu \
  worker-gpu/kernels/linear/gemm_blocks.cu \
  worker-gpu/kernels/linear/gemm_integer.cu \
  worker-gpu/kernels/linear/gemm_small.cu \
  worker-gpu/kernels/linear/gemm_stream.cu \
  worker-gpu/kernels/linear/gemm_wide.cu \
  worker-gpu/kernels/linear/gemv_bulk.cu \
  worker-gpu/kernels/linear/gemv_once.cu \
  worker-gpu/kernels/linear/gemv_groups.cu \
  worker-gpu/kernels/linear/gemv_plain.cu \
  worker-gpu/kernels/linear/heads.cu \
  worker-gpu/kernels/linear/linear.cu \
  worker-gpu/kernels/linear/matmul.cu \
  worker-gpu/kernels/open.cu \
  worker-gpu/kernels/select.cu \
  worker-gpu/kernels/weigh.cu

helm-worker-gpu_MAIN := worker-gpu/main.c
helm-worker-gpu_LINK := $(COMMON_SRC) $(MODEL_SRC) $(WORKER_SRC) $(WORKER_GPU_SRC) $(WORKER_GPU_DEVICE_SRC) $(CPU_SRC) $(KERNEL_SRC) $(GEN)/proto/control.pb-c.c
helm-worker-gpu_LIBS = -lzmq -lprotobuf-c -lnuma -lopenblas -ljansson -lm $(if $(CUDA_DEVICE),$(CUDA_LIBS))
