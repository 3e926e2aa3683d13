# Sources and programs of tools/.

INSPECT_SRC := \
  tools/inspect/gguf.c \
  tools/inspect/json.c \
  tools/inspect/text.c

MKMODEL_SRC := \
  tools/mkmodel/files.c \
  tools/mkmodel/shape.c \
  tools/mkmodel/values.c

QUANTIZE_SRC := \
  tools/quantize/imatrix.c \
  tools/quantize/rewrite.c \
  tools/quantize/vocabulary.c

# The bound of plans: for tests alone.
PROOF_SRC := \
  tests/proof/plan.c \
  tests/proof/search.c

PROFILE_SRC := \
  common/measure/reader.c \
  tools/interrupt/interrupt.c \
  tools/profile/attend.c \
  tools/profile/cpu.c \
  tools/profile/device.c \
  tools/profile/formats.c \
  tools/profile/host.c \
  tools/profile/kv.c \
  tools/profile/now.c \
  tools/profile/packed.c \
  tools/profile/print.c \
  tools/profile/programs.c \
  tools/profile/programs_all.c \
  tools/profile/programs_gpu.c \
  tools/profile/samples.c \
  tools/profile/shape.c \
  tools/profile/steps.c

CUDA_BENCH_SRC := \
  tools/bench/gpu/bench_attention.cu \
  tools/bench/gpu/bench_batch.cu \
  tools/bench/gpu/bench_chain.cu \
  tools/bench/gpu/bench_kernels.cu \
  tools/bench/gpu/bench_model.cu

helm-bench_MAIN := tools/bench/helm_bench.c
helm-bench_LINK := $(COMMON_SRC) $(MODEL_SRC) $(LIBHELM_SRC) $(BENCH_SRC) $(READER_SRC) $(CLIENT_SHARED_SRC) \
  $(GEN)/proto/helm.pb-c.c
helm-bench_LIBS := -lnuma -lzmq -lprotobuf-c -lpcre2-8 -ljansson -lutf8proc -lm

helm-bench-decode_MAIN := tools/bench/helm_bench_decode.c
helm-bench-decode_LINK := common/measure/reader.c $(COMMON_SRC) $(MODEL_SRC) common/worker/batch.c common/worker/drafting.c common/worker/engine.c $(WORKER_CPU_SRC) $(DISK_SRC) $(CPU_SRC) $(KERNEL_SRC) $(GEN)/proto/control.pb-c.c
helm-bench-decode_LIBS := -lzmq -lprotobuf-c -lnuma -lopenblas -luring -ljansson -lm

helm-bench-kernels_MAIN := tools/bench/helm_bench_kernels.c
helm-bench-kernels_LINK := $(COMMON_SRC) $(MODEL_SRC) $(KERNEL_SRC) common/cpu/kernels/linear.c common/cpu/pool.c common/measure/reader.c
helm-bench-kernels_LIBS := -lnuma -lopenblas -ljansson -lm

helm-inspect_MAIN := tools/inspect/helm_inspect.c
helm-inspect_LINK := $(COMMON_SRC) $(MODEL_SRC) $(INSPECT_SRC)
helm-inspect_LIBS := -ljansson -lm

helm-mkmodel_MAIN := tools/mkmodel/helm_mkmodel.c
helm-mkmodel_LINK := $(COMMON_SRC) $(MODEL_SRC) $(MKMODEL_SRC) tools/interrupt/interrupt.c
helm-mkmodel_LIBS := -ljansson -lm

helm-plan_MAIN := tools/plan/helm_plan.c
helm-plan_LINK := $(COMMON_SRC) $(DISK_SRC) $(MODEL_SRC) $(filter daemon/planner/%,$(DAEMON_SRC)) $(EXPLAIN_SRC) daemon/children/accelerator.c daemon/children/child_run.c \
  daemon/children/worker_process.c daemon/observe/forecast.c daemon/observe/step_prices.c \
  daemon/steps/draft_count.c daemon/steps/draft_layer.c daemon/steps/request_speculate.c tools/plan/draft_model.c tools/plan/machine.c
helm-plan_LIBS := -luring -ljansson -lm

helm-profile_MAIN := tools/profile/helm_profile.c
helm-profile_LINK := $(COMMON_SRC) $(MODEL_SRC) common/worker/batch.c common/worker/drafting.c common/worker/engine.c $(WORKER_CPU_SRC) $(DISK_SRC) $(CPU_SRC) $(KERNEL_SRC) $(PROFILE_SRC) \
  daemon/children/accelerator.c daemon/children/child_run.c daemon/planner/profile/profile.c daemon/planner/profile/hardware.c daemon/planner/profile/gpus.c daemon/planner/profile/json.c daemon/planner/profile/now.c daemon/planner/profile/programs.c daemon/planner/profile/programs_json.c daemon/children/worker_process.c \
  tools/mkmodel/shape.c $(GEN)/proto/control.pb-c.c
helm-profile_LIBS := -lzmq -lprotobuf-c -lnuma -lopenblas -luring -ljansson -lm

helm-quantize_MAIN := tools/quantize/helm_quantize.c
helm-quantize_LINK := $(COMMON_SRC) $(MODEL_SRC) $(QUANTIZE_SRC) $(filter client/text/tokenizer/%,$(LIBHELM_SRC)) tools/interrupt/interrupt.c
helm-quantize_LIBS := -lpcre2-8 -ljansson -lutf8proc -lm
