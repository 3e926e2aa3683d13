# Sources of common/: what several processes link. Read by the Makefile; one file a line, sorted.
# No globals, no CUDA, no ZeroMQ.

COMMON_SRC := \
  common/base/args.c \
  common/base/args_print.c \
  common/base/cgroup.c \
  common/base/cpu.c \
  common/base/decimal.c \
  common/base/digest.c \
  common/base/err.c \
  common/base/file.c \
  common/base/json.c \
  common/base/load.c \
  common/base/log.c \
  common/base/node.c \
  common/base/printable.c \
  common/base/start.c \
  common/base/suggest.c \
  common/base/units.c \
  common/experts/slots.c \
  common/formats/bf16_packed.c \
  common/formats/block_grids.c \
  common/formats/blocks.c \
  common/formats/fp8.c \
  common/formats/kv_dtype.c \
  common/formats/packed.c \
  common/formats/packed_tile.c \
  common/formats/plain.c \
  common/formats/q8_0.c \
  common/formats/quantize.c \
  common/formats/quantize_avx2.c \
  common/formats/quantize_avx512.c \
  common/formats/quantize_grid.c \
  common/formats/quantize_ref.c \
  common/formats/random_blocks.c \
  common/formats/tensor_format.c \
  common/plan/home.c \
  common/sampling/cut.c \
  common/sampling/pass.c \
  common/sampling/sampling.c \
  common/shared/arena.c \
  common/shared/doorbell.c \
  common/shared/lane.c

MODEL_SRC := \
  common/model/able.c \
  common/model/arch.c \
  common/model/arch/deepseek.c \
  common/model/arch/dots.c \
  common/model/arch/gemma.c \
  common/model/arch/glm.c \
  common/model/arch/gpt_oss.c \
  common/model/arch/granite.c \
  common/model/arch/llama.c \
  common/model/arch/minimax.c \
  common/model/arch/mixtral.c \
  common/model/arch/olmo.c \
  common/model/arch/opt.c \
  common/model/arch/phi3.c \
  common/model/arch/qwen.c \
  common/model/arch/qwen35.c \
  common/model/arch/seed_oss.c \
  common/model/arch/smollm3.c \
  common/model/arch/state_test.c \
  common/model/checkpoint.c \
  common/model/config.c \
  common/model/content.c \
  common/model/fused.c \
  common/model/gguf.c \
  common/model/gguf_config.c \
  common/model/gguf_describe.c \
  common/model/gguf_file.c \
  common/model/gguf_model.c \
  common/model/gguf_value.c \
  common/model/gguf_write.c \
  common/model/hub.c \
  common/model/hub_tag.c \
  common/model/keys.c \
  common/model/mixture.c \
  common/model/parts.c \
  common/model/role.c \
  common/model/rope.c \
  common/model/rope_config.c \
  common/model/router.c \
  common/model/safetensors.c \
  common/model/sample.c \
  common/model/scaled.c \
  common/model/share.c \
  common/model/shards.c \
  common/model/take.c \
  common/model/unit.c \
  common/model/vocabulary.c \
  common/model/weigh.c \
  common/plan/disk.c \
  common/plan/kv_tiers.c \
  common/plan/placement.c \
  common/plan/plan.c \
  common/plan/plan_json.c \
  common/plan/schedule.c \
  common/plan/share.c \
  common/plan/slots.c \
  common/plan/stages.c \
  common/plan/state.c \
  common/plan/workspace.c \
  common/program/op.c \
  common/program/slices.c

# what both workers are around their engines
WORKER_SRC := \
  common/worker/batch.c \
  common/worker/control.c \
  common/worker/drafting.c \
  common/worker/engine.c \
  common/worker/process.c \
  common/worker/server.c

# computing on the CPU: threads, and the tables that choose among the kernels below
CPU_SRC := \
  common/cpu/kernels/attention.c \
  common/cpu/kernels/kernel_set.c \
  common/cpu/kernels/linear.c \
  common/cpu/kernels/vector.c \
  common/cpu/pool.c

# plain reads of memory, beside which everything else is set
READER_SRC := \
  common/cpu/kernels/probe_avx2.c \
  common/cpu/kernels/probe_avx512.c \
  common/cpu/pool.c \
  common/measure/reader.c

# Kernels: each file is compiled with the instructions in KERNEL_ISA below and chosen at run time.
KERNEL_SRC := \
  common/cpu/kernels/attention_amxint8.c \
  common/cpu/kernels/attention_amxvbmi2.c \
  common/cpu/kernels/attention_avx2.c \
  common/cpu/kernels/attention_avx512.c \
  common/cpu/kernels/attention_avx512bf16.c \
  common/cpu/kernels/attention_avx512bf16vbmi2.c \
  common/cpu/kernels/attention_parts_amxvbmi2.c \
  common/cpu/kernels/attention_ref.c \
  common/cpu/kernels/bf16_packed_avx512vbmi2.c \
  common/cpu/kernels/bf16_packed_ref.c \
  common/cpu/kernels/blocks_avx2.c \
  common/cpu/kernels/blocks_avx512.c \
  common/cpu/kernels/blocks_avx512bf16.c \
  common/cpu/kernels/blocks_ref.c \
  common/cpu/kernels/bytes_ref.c \
  common/cpu/kernels/delta_ref.c \
  common/cpu/kernels/gemm_amx.c \
  common/cpu/kernels/gemm_avx2.c \
  common/cpu/kernels/gemm_avx512.c \
  common/cpu/kernels/gemm_avx512bf16.c \
  common/cpu/kernels/gemm_openblas.c \
  common/cpu/kernels/gemv_amx.c \
  common/cpu/kernels/gemv_avx2.c \
  common/cpu/kernels/gemv_avx512.c \
  common/cpu/kernels/gemv_blocks_amxint8.c \
  common/cpu/kernels/grids_avx512bf16vbmi2.c \
  common/cpu/kernels/grids_avx512vbmi2.c \
  common/cpu/kernels/int8_gathers_avx512vnnivbmi2.c \
  common/cpu/kernels/int8_gemm_avx2.c \
  common/cpu/kernels/int8_gemm_avx512vnni.c \
  common/cpu/kernels/int8_gemm_avx512vnnivbmi2.c \
  common/cpu/kernels/int8_gemv_avx2.c \
  common/cpu/kernels/int8_gemv_avx512vnni.c \
  common/cpu/kernels/int8_gemv_avx512vnnivbmi2.c \
  common/cpu/kernels/int8_ref.c \
  common/cpu/kernels/linear_ref.c \
  common/cpu/kernels/probe_amx.c \
  common/cpu/kernels/probe_avx2.c \
  common/cpu/kernels/probe_avx512.c \
  common/cpu/kernels/probe_avx512bf16.c \
  common/cpu/kernels/fp8_avx2.c \
  common/cpu/kernels/fp8_avx512.c \
  common/cpu/kernels/q8_0_avx2.c \
  common/cpu/kernels/q8_0_avx512.c \
  common/cpu/kernels/vector_avx2.c \
  common/cpu/kernels/vector_avx512.c \
  common/cpu/kernels/vector_ref.c

# Instruction sets by file name; everything else is plain x86-64.
ISA_avx2 := -mavx2 -mfma -mf16c
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
ISA_avx512vnni := $(ISA_avx512) -mavx512vnni
ISA_avx512vnnivbmi2 := $(ISA_avx512vnni) -mavx512vbmi -mavx512vbmi2
ISA_avx512vbmi2 := $(ISA_avx512) -mavx512vbmi -mavx512vbmi2
ISA_avx512bf16vbmi2 := $(ISA_avx512bf16) -mavx512vbmi -mavx512vbmi2
ISA_amx := $(ISA_avx512bf16) -mamx-tile -mamx-bf16
ISA_amxvbmi2 := $(ISA_avx512bf16vbmi2) -mamx-tile -mamx-bf16
ISA_amxint8 := $(ISA_amxvbmi2) -mamx-int8

# Reads past the page cache; with it goes liburing.
DISK_SRC := \
  common/disk/reader.c \
  common/disk/threads.c \
  common/disk/uring.c
