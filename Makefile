# HELM's one Makefile. `make help` lists the targets; README.md shows the two that matter: `make demo`, `make test`.
#
#   MODE=release|debug|asan|ubsan|tsan   how to compile (anything else is an error)
#   BUILD=dir                            where objects go (build/), programs land in $(BUILD)/bin for MODE=release
#   CC, CUDA_HOME, CUDA_ARCH             compilers; CUDA_ARCH is stated, never guessed
#
# Source lists are explicit: what a program may link is what it is allowed to know.

MODE ?= release
BUILD ?= build
PREFIX ?= /usr/local
DESTDIR ?=
CC ?= cc
ifeq ($(origin CC),default)
CC := gcc
endif
# V=1 shows whole commands
V ?= 0
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,@printf '  %-5s %s\n' $(1) $(2))
.DEFAULT_GOAL := all
.SECONDARY:
.DELETE_ON_ERROR:
SHELL := /bin/bash

empty :=
space := $(empty) $(empty)
comma := ,
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wundef -Wno-format-truncation -Werror
BASE := -std=c11 -D_GNU_SOURCE -fno-strict-aliasing -fPIC -pthread
# sanitizers' reports name functions and lines; what a debugger needs besides takes a quarter of the time to compile
DEBUG_INFO := $(if $(filter asan ubsan tsan,$(MODE)),-g1,-g)
LDFLAGS_MODE :=
ifeq ($(MODE),release)
OPT := -O2 -fno-plt -D_FORTIFY_SOURCE=2 -fstack-protector-strong
LDFLAGS_MODE := -Wl,-z,relro,-z,now
BIN := $(BUILD)/bin
else ifeq ($(MODE),debug)
OPT := -O0 -fno-omit-frame-pointer
else ifeq ($(MODE),asan)
# with undefined behaviour, so that `make test` builds and runs everything sanitized once
OPT := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
LDFLAGS_MODE := -fsanitize=address,undefined
else ifeq ($(MODE),ubsan)
OPT := -O1 -fno-omit-frame-pointer -fsanitize=undefined -fno-sanitize-recover=all
LDFLAGS_MODE := -fsanitize=undefined
else ifeq ($(MODE),tsan)
OPT := -O1 -fno-omit-frame-pointer -fsanitize=thread
LDFLAGS_MODE := -fsanitize=thread
else ifeq ($(MODE),fuzz) # internal: what `make fuzz` compiles with
CC := clang
OPT := -O1 -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address
WARN := -Wall
LDFLAGS_MODE := -fsanitize=fuzzer,address
else
$(error MODE=$(MODE) is none of release, debug, asan, ubsan, tsan)
endif
OBJ := $(BUILD)/$(MODE)
BIN ?= $(OBJ)/bin
GEN := $(OBJ)/gen
VERSION := $(shell cat VERSION)
CPPFLAGS_ALL := -I. -I$(GEN) -DHELM_VERSION='"$(VERSION)"' $(CPPFLAGS)
CFLAGS_ALL := $(BASE) $(DEBUG_INFO) $(OPT) $(WARN) $(CFLAGS)
# Sanitized kernels in -O3 take two to three times as long to compile and run no faster, as does giving out registers
# loop by loop. In MODE=asan they go without what of -fsanitize=undefined repeats AddressSanitizer at every access (it
# sees the access itself; MODE=ubsan has all of it), and without watching scopes: a tile's sums, places in the frame that
# are known, are then looked up in the shadow at every step. Only so is -O2 worth it, which keeps them in registers.
KERNEL_OPT_asan := -O2 -fira-region=one -fno-sanitize-address-use-after-scope \
  -fno-sanitize=null$(comma)object-size$(comma)pointer-overflow
KERNEL_OPT_ubsan := -O1 -fira-region=one
KERNEL_OPT_tsan := $(KERNEL_OPT_ubsan)
KERNEL_OPT := $(or $(KERNEL_OPT_$(MODE)),-O3) -ffp-contract=off
# DT_RPATH, not DT_RUNPATH: in a `make dist` folder it must also serve the libraries' own dependencies
LDFLAGS_ALL := -pthread $(LDFLAGS_MODE) -Wl,--as-needed -Wl,--disable-new-dtags -Wl,-rpath,'$$ORIGIN/../lib' $(LDFLAGS)

# ---- sources ------------------------------------------------------------------------------------------------
# Grouped by who may link them. Keep each list sorted, one file a line.

COMMON_SRC := \
  common/arena.c \
  common/args.c \
  common/cgroup.c \
  common/cpu.c \
  common/doorbell.c \
  common/err.c \
  common/file.c \
  common/json.c \
  common/lane.c \
  common/log.c \
  common/plan.c \
  common/plan_json.c \
  common/sampling.c \
  common/sampling_changes.c \
  common/sampling_cut.c \
  common/sampling_pass.c \
  common/units.c

MODEL_SRC := \
  common/host_weights.c \
  common/model/arch.c \
  common/model/checkpoint.c \
  common/model/config.c \
  common/model/index.c \
  common/model/rope.c \
  common/model/rope_config.c \
  common/model/safetensors.c \
  common/packed.c \
  common/packed_tile.c

# what both workers are around their engines
WORKER_SRC := \
  common/worker/batch.c \
  common/worker/control.c \
  common/worker/engine.c \
  common/worker/process.c \
  common/worker/server.c

WORKER_CPU_SRC := \
  worker-cpu/attention.c \
  worker-cpu/engine.c \
  worker-cpu/execute.c \
  worker-cpu/kernel_set.c \
  worker-cpu/kernels.c \
  worker-cpu/kv_pages.c \
  worker-cpu/linear.c \
  worker-cpu/local.c \
  worker-cpu/pin.c \
  worker-cpu/pool.c \
  worker-cpu/print.c \
  worker-cpu/program.c \
  worker-cpu/program_print.c \
  worker-cpu/read_ahead.c \
  worker-cpu/step.c \
  worker-cpu/weights.c \
  worker-cpu/weights_pack.c

# CUDA is looked for in CUDA_HOME, PATH and /usr/local/cuda (section CUDA below). The CUDA device is part of
# release builds; sanitized ones have the emulated device only.
NVCC := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_DEVICE := $(if $(NVCC),$(filter release debug,$(MODE)))
WORKER_GPU_SRC := \
  worker-gpu/device.c \
  worker-gpu/device_emulated.c \
  worker-gpu/ahead.c \
  worker-gpu/draw.c \
  worker-gpu/emulated_attention.c \
  worker-gpu/emulated_chain.c \
  worker-gpu/emulated_graph.c \
  worker-gpu/emulated_kernels.c \
  worker-gpu/emulated_queue.c \
  worker-gpu/emulated_select.c \
  worker-gpu/engine.c \
  worker-gpu/expand.c \
  worker-gpu/issue.c \
  worker-gpu/measure.c \
  worker-gpu/measure_buffers.c \
  worker-gpu/measure_chains.c \
  worker-gpu/measure_chunks.c \
  worker-gpu/measure_expand.c \
  worker-gpu/measure_kernels.c \
  worker-gpu/nvml.c \
  worker-gpu/print.c \
  worker-gpu/program.c \
  worker-gpu/program_chain.c \
  worker-gpu/program_layer.c \
  worker-gpu/program_memory.c \
  worker-gpu/program_print.c \
  worker-gpu/ring.c \
  worker-gpu/step.c \
  worker-gpu/watch.c \
  worker-gpu/weights.c \
  worker-gpu/weights_load.c
WORKER_GPU_DEVICE_SRC := $(if $(CUDA_DEVICE),worker-gpu/cuda_graph.c worker-gpu/cuda_kernels.c worker-gpu/device_cuda.c,worker-gpu/device_no_cuda.c)
# of the CPU worker: what draws tokens on the host and computes for the emulated device
WORKER_GPU_HOST_SRC := \
  worker-cpu/attention.c \
  worker-cpu/kernels.c \
  worker-cpu/pin.c \
  worker-cpu/pool.c
# both engines in one process, for tests
PAIR_SRC := worker-gpu/pair.c

# Kernels: each file is compiled with the instructions in KERNEL_ISA below and chosen at run time.
KERNEL_SRC := \
  worker-cpu/kernels/attention_avx2.c \
  worker-cpu/kernels/attention_avx512.c \
  worker-cpu/kernels/attention_avx512bf16.c \
  worker-cpu/kernels/attention_ref.c \
  worker-cpu/kernels/linear_amx.c \
  worker-cpu/kernels/linear_avx2.c \
  worker-cpu/kernels/linear_avx512.c \
  worker-cpu/kernels/linear_avx512bf16.c \
  worker-cpu/kernels/linear_openblas.c \
  worker-cpu/kernels/linear_ref.c \
  worker-cpu/kernels/packed_avx512vbmi2.c \
  worker-cpu/kernels/packed_kernels.c \
  worker-cpu/kernels/packed_ref.c \
  worker-cpu/kernels/probe_amx.c \
  worker-cpu/kernels/probe_avx2.c \
  worker-cpu/kernels/probe_avx512.c \
  worker-cpu/kernels/probe_avx512bf16.c \
  worker-cpu/kernels/vector_avx2.c \
  worker-cpu/kernels/vector_avx512.c \
  worker-cpu/kernels/vector_ref.c

DAEMON_SRC := \
  daemon/accelerator.c \
  daemon/admission.c \
  daemon/batcher.c \
  daemon/child_words.c \
  daemon/client_socket.c \
  daemon/config.c \
  daemon/drift.c \
  daemon/end_request.c \
  daemon/forecast.c \
  daemon/keeper.c \
  daemon/kv_pages.c \
  daemon/loop.c \
  daemon/metrics.c \
  daemon/observe.c \
  daemon/pace.c \
  daemon/planner/analyse.c \
  daemon/planner/attempt.c \
  daemon/planner/cost.c \
  daemon/planner/cost_plan.c \
  daemon/planner/cost_rates.c \
  daemon/planner/ledger.c \
  daemon/planner/memory.c \
  daemon/planner/packed_choice.c \
  daemon/planner/packed_look.c \
  daemon/planner/packed_sample.c \
  daemon/planner/planner.c \
  daemon/planner/planner_log.c \
  daemon/planner/prefill.c \
  daemon/planner/profile.c \
  daemon/planner/profile_hardware.c \
  daemon/planner/profile_json.c \
  daemon/planner/refusal.c \
  daemon/planner/search.c \
  daemon/planner/search_bound.c \
  daemon/planner/search_counts.c \
  daemon/planner/search_exact.c \
  daemon/planner/search_mixed.c \
  daemon/planner/search_order.c \
  daemon/planner/search_prefill.c \
  daemon/planner/search_space.c \
  daemon/planner/simulate.c \
  daemon/profiling.c \
  daemon/request.c \
  daemon/rundir.c \
  daemon/scheduler.c \
  daemon/sequence.c \
  daemon/serve.c \
  daemon/serve_plan.c \
  daemon/worker_process.c \
  daemon/workers.c \
  daemon/workers_watch.c

# helm-plan: plans explained and drawn
EXPLAIN_SRC := \
  daemon/planner/explain.c \
  daemon/planner/explain_json.c \
  daemon/planner/explain_text.c \
  daemon/planner/plot.c

# libhelm: connection, tokenizer, chat template. Knows no model, no arena, no daemon.
LIBHELM_SRC := \
  client/chat.c \
  client/connection.c \
  client/endpoint.c \
  client/generate.c \
  client/jinja_eval.c \
  client/jinja_exec.c \
  client/jinja_filters.c \
  client/jinja_filters_seq.c \
  client/jinja_format.c \
  client/jinja_functions.c \
  client/jinja_lex.c \
  client/jinja_methods.c \
  client/jinja_methods_text.c \
  client/jinja_ops.c \
  client/jinja_parse.c \
  client/jinja_parse_expr.c \
  client/jinja_run.c \
  client/jinja_tests.c \
  client/jinja_text.c \
  client/jinja_value.c \
  client/query.c \
  client/tokenizer.c \
  client/tokenizer_added.c \
  client/tokenizer_bpe.c \
  client/tokenizer_config.c \
  client/tokenizer_decode.c \
  client/tokenizer_finder.c \
  client/tokenizer_json.c \
  client/tokenizer_load.c \
  client/tokenizer_normalize.c \
  client/tokenizer_parse.c \
  client/tokenizer_pattern.c \
  client/tokenizer_pretokenize.c \
  client/tokenizer_regex.c \
  client/tokenizer_text.c \
  client/tokenizer_vocab.c

INSPECT_SRC := \
  tools/inspect/json.c \
  tools/inspect/text.c

MKMODEL_SRC := \
  tools/mkmodel/files.c \
  tools/mkmodel/shape.c \
  tools/mkmodel/values.c

PROFILE_SRC := \
  tools/profile/checkpoint.c \
  tools/profile/cpu.c \
  tools/profile/device.c \
  tools/profile/host.c \
  tools/profile/packed.c \
  tools/profile/print.c \
  tools/profile/samples.c \
  tools/profile/wake.c

CLI_SRC := \
  client/cli/command_chat.c \
  client/cli/command_generate.c \
  client/cli/command_plan.c \
  client/cli/command_query.c \
  client/cli/command_run.c \
  client/cli/command_text.c \
  client/cli/output.c \
  client/cli/private_daemon.c \
  client/cli/sampling.c \
  client/cli/session.c \
  client/cli/signals.c \
  client/cli/stream.c

# helm-bench: a client that may start a private daemon, and the loops that measure read bandwidth beside it.
BENCH_SRC := \
  tools/bench/bytes.c \
  tools/bench/cells.c \
  tools/bench/drive.c \
  tools/bench/json.c \
  tools/bench/prompt.c \
  tools/bench/read_limit.c \
  tools/bench/samples.c \
  tools/bench/text.c

PROTO_SRC := $(GEN)/proto/helm.pb-c.c $(GEN)/proto/control.pb-c.c

# Instruction sets by file name; everything else is plain x86-64.
ISA_avx2 := -mavx2 -mfma -mf16c
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
ISA_avx512vbmi2 := $(ISA_avx512) -mavx512vbmi -mavx512vbmi2
ISA_amx := $(ISA_avx512bf16) -mamx-tile -mamx-bf16

# ---- programs -----------------------------------------------------------------------------------------------
# NAME_MAIN: the file with main(); NAME_LINK: the groups it may link; NAME_LIBS: its libraries.

helmd_MAIN := daemon/main.c
helmd_LINK := $(COMMON_SRC) $(MODEL_SRC) $(DAEMON_SRC) $(PROTO_SRC)
helmd_LIBS := -lzmq -lprotobuf-c -ljansson -lsystemd -linih -lm
helm-cli_MAIN := client/cli/main.c
helm-cli_LINK := $(COMMON_SRC) $(LIBHELM_SRC) $(CLI_SRC) $(GEN)/proto/helm.pb-c.c
helm-cli_LIBS := -lzmq -lprotobuf-c -lpcre2-8 -ljansson -lutf8proc -lm
helm-inspect_MAIN := tools/helm_inspect.c
helm-inspect_LINK := $(COMMON_SRC) $(MODEL_SRC) $(INSPECT_SRC)
helm-inspect_LIBS := -ljansson -lm
helm-mkmodel_MAIN := tools/helm_mkmodel.c
helm-mkmodel_LINK := $(COMMON_SRC) $(MODEL_SRC) $(MKMODEL_SRC)
helm-mkmodel_LIBS := -ljansson -lm
helm-bench_MAIN := tools/helm_bench.c
helm-bench_LINK := $(COMMON_SRC) $(LIBHELM_SRC) $(BENCH_SRC) client/cli/output.c client/cli/private_daemon.c client/cli/signals.c \
  worker-cpu/kernels/probe_avx2.c worker-cpu/kernels/probe_avx512.c $(GEN)/proto/helm.pb-c.c
helm-bench_LIBS := -lzmq -lprotobuf-c -lpcre2-8 -ljansson -lutf8proc -lm
helm-bench-kernels_MAIN := tools/helm_bench_kernels.c
helm-bench-kernels_LINK := $(COMMON_SRC) $(MODEL_SRC) $(KERNEL_SRC) worker-cpu/kernels.c tools/kernels/packed.c tools/kernels/packed_gemv.c
helm-bench-kernels_LIBS := -lopenblas -ljansson -lm
helm-bench-read_MAIN := tools/helm_bench_read.c
helm-bench-read_LINK := $(COMMON_SRC) tools/bench/read_limit.c worker-cpu/kernels/probe_avx2.c worker-cpu/kernels/probe_avx512.c
helm-bench-read_LIBS := -ljansson -lm
helm-bench-sampling_MAIN := tools/helm_bench_sampling.c
helm-bench-sampling_LINK := $(COMMON_SRC)
helm-bench-sampling_LIBS := -ljansson -lm
helm-bench-decode_MAIN := tools/helm_bench_decode.c
helm-bench-decode_LINK := tools/decode/compare.c $(COMMON_SRC) $(MODEL_SRC) common/worker/batch.c common/worker/engine.c $(WORKER_CPU_SRC) $(KERNEL_SRC) $(GEN)/proto/control.pb-c.c
helm-bench-decode_LIBS := -lzmq -lprotobuf-c -lnuma -lopenblas -ljansson -lm
helm-plan_MAIN := tools/helm_plan.c
helm-plan_LINK := $(COMMON_SRC) $(MODEL_SRC) $(filter daemon/planner/%,$(DAEMON_SRC)) $(EXPLAIN_SRC) daemon/accelerator.c daemon/child_words.c \
  daemon/end_request.c daemon/kv_pages.c daemon/worker_process.c
helm-plan_LIBS := -ljansson -lm
helm-profile_MAIN := tools/helm_profile.c
helm-profile_LINK := $(COMMON_SRC) $(MODEL_SRC) common/worker/batch.c common/worker/engine.c $(WORKER_CPU_SRC) $(KERNEL_SRC) $(PROFILE_SRC) \
  daemon/accelerator.c daemon/child_words.c daemon/end_request.c daemon/planner/profile.c daemon/planner/profile_hardware.c daemon/planner/profile_json.c daemon/worker_process.c \
  tools/mkmodel/shape.c $(GEN)/proto/control.pb-c.c
helm-profile_LIBS := -lzmq -lprotobuf-c -lnuma -lopenblas -ljansson -lm
helm-worker-cpu_MAIN := worker-cpu/main.c
helm-worker-cpu_LINK := $(COMMON_SRC) $(MODEL_SRC) $(WORKER_SRC) $(WORKER_CPU_SRC) $(KERNEL_SRC) $(GEN)/proto/control.pb-c.c
helm-worker-cpu_LIBS := -lzmq -lprotobuf-c -lnuma -lopenblas -ljansson -lm
helm-worker-gpu_MAIN := worker-gpu/main.c
helm-worker-gpu_LINK := $(COMMON_SRC) $(MODEL_SRC) $(WORKER_SRC) $(WORKER_GPU_SRC) $(WORKER_GPU_DEVICE_SRC) $(WORKER_GPU_HOST_SRC) $(KERNEL_SRC) $(GEN)/proto/control.pb-c.c
helm-worker-gpu_LIBS = -lzmq -lprotobuf-c -lnuma -lopenblas -ljansson -lm $(if $(CUDA_DEVICE),$(CUDA_LIBS))

PROGRAMS := helm-bench helm-bench-decode helm-bench-kernels helm-bench-read helm-bench-sampling helm-cli helm-inspect helm-mkmodel helm-plan helm-profile helm-worker-cpu helm-worker-gpu helmd

# ---- rules --------------------------------------------------------------------------------------------------

ALL_SRC := $(COMMON_SRC) $(MODEL_SRC) $(WORKER_SRC) $(WORKER_CPU_SRC) $(WORKER_GPU_SRC) worker-gpu/device_no_cuda.c $(PAIR_SRC) $(KERNEL_SRC) $(DAEMON_SRC) $(EXPLAIN_SRC) $(LIBHELM_SRC) $(CLI_SRC) $(BENCH_SRC) $(INSPECT_SRC) $(MKMODEL_SRC) $(PROFILE_SRC) $(PROTO_SRC)
MAIN_SRC := $(foreach p,$(PROGRAMS),$($(p)_MAIN))
obj_of = $(patsubst $(OBJ)/gen/%.c,$(OBJ)/gen/%.o,$(patsubst %.c,$(OBJ)/%.o,$(filter-out $(GEN)/%,$(1))) $(filter $(GEN)/%,$(1)))
ALL_OBJ := $(call obj_of,$(ALL_SRC))
MAIN_OBJ := $(call obj_of,$(MAIN_SRC))
ALL_LIBS := -lzmq -lprotobuf-c -lnuma -lopenblas -lpcre2-8 -ljansson -lutf8proc -lsystemd -linih -lm

.PHONY: all programs lib
all: programs lib
programs: $(PROGRAMS:%=$(BIN)/%)

$(GEN)/proto/%.pb-c.c $(GEN)/proto/%.pb-c.h: proto/%.proto
	@mkdir -p $(GEN)
	$(call say,PROTO,$<)
	$(Q)protoc-c --c_out=$(GEN) $<

$(OBJ)/gen/%.o: $(GEN)/%.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(BASE) $(OPT) -MMD -MP -c -o $@ $<

# Sources may include generated headers, so those come first.
GEN_HEADERS := $(GEN)/proto/helm.pb-c.h $(GEN)/proto/control.pb-c.h
kernel_isa = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $(1))))))
$(OBJ)/%.o: %.c | $(GEN_HEADERS)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(if $(findstring /kernels/,$<),$(KERNEL_OPT) $(call kernel_isa,$<)) -MMD -MP -c -o $@ $<

define program_rule
$(BIN)/$(1): $$(call obj_of,$$($(1)_MAIN) $$($(1)_LINK))
	@mkdir -p $$(@D)
	$$(call say,LINK,$$@)
	$$(Q)$$(CC) -o $$@ $$^ $$(LDFLAGS_ALL) $$($(1)_LIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call program_rule,$(p))))

# Everything without main(), for tests and fuzz targets: the linker takes what each uses.
$(OBJ)/libhelm-all.a: $(ALL_OBJ)
	@mkdir -p $(@D)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# The workers' part of it, for tests of what processes share: little enough to build once more for ThreadSanitizer.
$(OBJ)/libhelm-workers.a: $(filter-out $(OBJ)/client/% $(OBJ)/daemon/% $(OBJ)/tools/%,$(ALL_OBJ))
	@mkdir -p $(@D)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

# ---- CUDA ---------------------------------------------------------------------------------------------------
# Looked for in CUDA_HOME, PATH and /usr/local/cuda, and reported in one line; without it everything but the CUDA
# device is built. CUDA_ARCH (for example "75;80;90") is stated, never guessed from the machine.

.PHONY: cuda-report
cuda-report:
	@$(if $(NVCC),echo "cuda: $$($(NVCC) --version | sed -n 's/.*release //p') at $(NVCC)",echo "cuda: absent (no nvcc in CUDA_HOME, PATH or /usr/local/cuda): no CUDA device in this build")
all: cuda-report

# The GPU's kernels, their tests and their benchmark: helm-test-gpu-kernels, helm-bench-gpu-kernels. Each architecture of
# CUDA_ARCH gets machine code, the newest also PTX for those to come; CUDA_ARCH=90 alone is quick while developing.
# `make test` compiles for CUDA_TEST_ARCH only, which is every path there is (sources ask for 8.0 and for 9.0, and machine
# code for 8.0 runs on 8.6 and 8.9), unless objects for these and more lie there already; and with CUDA_QUICK=1, code that is
# correct and slow in a fifth of the time, where nvcc can (12.8 and later).
CUDA_ARCH ?= 75;80;86;89;90
CUDA_TEST_ARCH := 75;80;90
CUDA_ARCHS := $(sort $(subst ;, ,$(CUDA_ARCH)))
gencode = $(foreach a,$(1),-gencode=arch=compute_$(a),code=sm_$(a)) \
  -gencode=arch=compute_$(lastword $(1)),code=compute_$(lastword $(1))
NVCC_CODE := $(call gencode,$(CUDA_ARCHS))
# What the objects are compiled for, all of them anew when something else is asked for.
CUDA_STAMP := $(OBJ)/cuda-arch
CUDA_QUICK ?=
CUDA_WANT := $(strip $(CUDA_ARCHS) $(if $(CUDA_QUICK),quick))
CUDA_HAVE := $(shell cat $(CUDA_STAMP) 2>/dev/null)
CUDA_TEST_ARCHS := $(subst ;, ,$(CUDA_TEST_ARCH))
CUDA_FOR_TEST := $(if $(filter-out file,$(origin CUDA_ARCH)),,$(if \
  $(filter-out $(CUDA_HAVE),$(CUDA_TEST_ARCHS))$(filter quick,$(CUDA_HAVE)),CUDA_ARCH='$(CUDA_TEST_ARCH)' CUDA_QUICK=1,\
  CUDA_ARCH='$(CUDA_HAVE)'))
# Defines for GPU sources alone, the emulated ones too: to compare what they choose, each in a BUILD of its own
# (CUDA_DEFS=-DGEMM_STREAM_EACH_LANE=0), since objects that are there are not made anew for others.
CUDA_DEFS ?=
NVCC_OPT := $(if $(filter debug,$(MODE)),-O1,-O3) \
  $(if $(and $(NVCC),$(CUDA_QUICK)),$(shell $(NVCC) --help | grep -q -- --Ofast-compile && echo -Ofc=max))
NVCC_HOST := -Wall -Wextra -Wno-format-truncation -fPIC -pthread $(filter -fsanitize=% -fno-sanitize-recover=all,$(OPT))
NVCC_FLAGS := -std=c++17 $(NVCC_OPT) -lineinfo -Werror all-warnings -Xcompiler $(subst $(space),$(comma),$(strip $(NVCC_HOST)))
CUDA_LIB := $(if $(NVCC),$(abspath $(dir $(NVCC))/../lib64))
CUDA_LIBS := -L$(CUDA_LIB) -Wl,-rpath,$(CUDA_LIB) -lcublasLt -lcudart_static -lrt -ldl -lpthread -lstdc++ -lm

CUDA_KERNEL_SRC := \
  worker-gpu/kernels/attention_decode.cu \
  worker-gpu/kernels/attention_decode_tensor.cu \
  worker-gpu/kernels/attention_prefill.cu \
  worker-gpu/kernels/chain.cu \
  worker-gpu/kernels/chain_list.cu \
  worker-gpu/kernels/elementwise.cu \
  worker-gpu/kernels/expand.cu \
  worker-gpu/kernels/gemm_small.cu \
  worker-gpu/kernels/gemm_stream.cu \
  worker-gpu/kernels/gemv.cu \
  worker-gpu/kernels/gemv_packed.cu \
  worker-gpu/kernels/matmul.cu \
  worker-gpu/kernels/open.cu \
  worker-gpu/kernels/rope.cu \
  worker-gpu/kernels/select.cu
CUDA_TEST_SRC := \
  tests/gpu/test_attention.cu \
  tests/gpu/test_chain.cu \
  tests/gpu/test_elementwise.cu \
  tests/gpu/test_expand.cu \
  tests/gpu/test_gemv_packed.cu \
  tests/gpu/test_linear.cu \
  tests/gpu/test_main.cu
CUDA_BENCH_SRC := \
  tools/gpu/bench_batch.cu \
  tools/gpu/bench_chain.cu \
  tools/gpu/bench_expand.cu \
  tools/gpu/bench_kernels.cu \
  tools/gpu/bench_model.cu \
  tools/gpu/bench_packed.cu
CUDA_TEST_HOST_OBJ := $(addprefix $(OBJ)/common/,err.o packed.o packed_tile.o sampling_pass.o)
CUDA_PROGRAMS := $(if $(NVCC),helm-test-gpu-kernels helm-bench-gpu-kernels)
cuda_obj_of = $(patsubst %.cu,$(OBJ)/%.o,$(1))

# The same tests of the same kernels as plain C++ on an emulated device, with or without nvcc: indexing, masks, fragments
# and barriers' phases are checked (under MODE=asan also every access); races and speed are not. In -O1 it takes half the
# time to compile and as long to run.
CUDA_EMULATED_SRC := $(CUDA_TEST_SRC) $(filter-out %/matmul.cu,$(CUDA_KERNEL_SRC)) tests/gpu/emulator/emulator.cpp
CUDA_EMULATED_OBJ := $(patsubst %,$(OBJ)/emulated/%.o,$(CUDA_EMULATED_SRC))
$(OBJ)/emulated/%.o: %
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) -x c++ -std=c++17 -Itests/gpu/emulator -I. -DHELM_CUDA_EMULATED $(CUDA_DEFS) -fno-strict-aliasing -ffp-contract=off \
	  -g1 $(filter-out -O%,$(OPT)) -O1 -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-format-truncation -Wno-unused-function -Wno-unused-variable \
	  -MMD -MP -c -o $@ $<
$(OBJ)/helm-test-gpu-emulated: $(CUDA_EMULATED_OBJ) $(CUDA_TEST_HOST_OBJ)
	$(call say,LINK,$@)
	$(Q)$(CXX) -o $@ $^ $(LDFLAGS_ALL) -lm
# The same inputs each time, so that a commit passes or does not; `tests/gpu/check.sh` has fresh ones on every run.
SEED ?= 1
.PHONY: test-gpu-emulated
test-gpu-emulated: $(OBJ)/helm-test-gpu-emulated
	ASAN_OPTIONS=detect_stack_use_after_return=0 $< --small --seed $(SEED)

ifneq ($(NVCC),)
ifneq ($(CUDA_HAVE),$(CUDA_WANT))
.PHONY: $(CUDA_STAMP)
endif
$(CUDA_STAMP):
	@mkdir -p $(@D)
	@echo "$(CUDA_WANT)" >$@
$(OBJ)/%.o: %.cu $(CUDA_STAMP)
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) -I. $(CUDA_DEFS) $(NVCC_FLAGS) $(NVCC_CODE) -MMD -MP -c -o $@ $<
# 9.0's alone, which no other device is given (gpuk_device.bulk_copy)
CUDA_KERNEL_90_SRC := $(filter worker-gpu/kernels/chain% %/gemm_stream.cu,$(CUDA_KERNEL_SRC))
$(call cuda_obj_of,$(CUDA_KERNEL_90_SRC)): NVCC_CODE := \
  $(call gencode,$(or $(filter-out 7% 8%,$(CUDA_ARCHS)),$(lastword $(CUDA_ARCHS))))
# tests have no kernels of their own: one architecture is as good as five
$(OBJ)/tests/gpu/%.o: NVCC_CODE := \
  -gencode=arch=compute_$(firstword $(CUDA_ARCHS)),code=compute_$(firstword $(CUDA_ARCHS))
$(BIN)/helm-test-gpu-kernels: $(call cuda_obj_of,$(CUDA_TEST_SRC) $(CUDA_KERNEL_SRC)) $(CUDA_TEST_HOST_OBJ)
$(BIN)/helm-bench-gpu-kernels: $(call cuda_obj_of,$(CUDA_BENCH_SRC) $(CUDA_KERNEL_SRC)) $(CUDA_TEST_HOST_OBJ)
$(CUDA_PROGRAMS:%=$(BIN)/%):
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS_ALL) $(CUDA_LIBS)
$(OBJ)/worker-gpu/cuda_graph.o $(OBJ)/worker-gpu/cuda_kernels.o $(OBJ)/worker-gpu/device_cuda.o: CPPFLAGS_ALL += -isystem $(CUDA_LIB)/../include
ifneq ($(CUDA_DEVICE),)
$(BIN)/helm-worker-gpu: $(call cuda_obj_of,$(CUDA_KERNEL_SRC))
endif
# tests of device and workers with the CUDA device in them: HELM_TEST_DEVICE=cuda $(BIN)/helm-test-gpu-split
CUDA_DEVICE_TESTS := $(addprefix $(BIN)/helm-test-gpu-,device home split stream)
$(BIN)/helm-test-gpu-device: $(OBJ)/tests/gpu/test_device_queues.o
$(BIN)/helm-test-gpu-home: $(OBJ)/tests/golden/test_golden_home.o
$(BIN)/helm-test-gpu-split: $(OBJ)/tests/golden/test_golden_split.o
$(BIN)/helm-test-gpu-stream: $(OBJ)/tests/golden/test_golden_stream.o
$(CUDA_DEVICE_TESTS): $(OBJ)/worker-gpu/cuda_graph.o $(OBJ)/worker-gpu/cuda_kernels.o $(OBJ)/worker-gpu/device_cuda.o \
  $(call cuda_obj_of,$(CUDA_KERNEL_SRC)) $(OBJ)/libhelm-all.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDFLAGS_ALL) -lcmocka $(ALL_LIBS) $(CUDA_LIBS)
.PHONY: cuda check-gpu gpu-bundle
cuda: $(CUDA_PROGRAMS:%=$(BIN)/%)
all: cuda
# needs a GPU; without one every line says SKIP
check-gpu: $(CUDA_PROGRAMS:%=$(BIN)/%) $(CUDA_DEVICE_TESTS)
	HELM_CHECK_LOGS=$(BUILD)/logs/gpu tests/gpu/check.sh $(BIN)
gpu-bundle: $(CUDA_PROGRAMS:%=$(BIN)/%) $(CUDA_DEVICE_TESTS)
	tools/gpu/bundle.sh $(BIN) $(BUILD)/helm-gpu-check.tar.xz
endif

# ---- tests --------------------------------------------------------------------------------------------------

TEST_SRC := $(shell find tests -name 'test_*.c' | sort)
TEST_BIN := $(TEST_SRC:%.c=$(OBJ)/%)
TEST_TOOL_SRC := $(wildcard tests/process/fake_*.c)
TEST_TOOL_BIN := $(TEST_TOOL_SRC:%.c=$(OBJ)/%)
# the two longest first, so that neither is what is left when they run side by side
TEST_SCRIPT := tests/process/test_helmd_split.py tests/process/test_helm_profile.py
TEST_SCRIPT += $(filter-out $(TEST_SCRIPT),$(sort $(wildcard tests/process/test_*.py)))
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_REPLAY := $(FUZZ_SRC:%.c=$(OBJ)/%_replay)
FUZZ_BIN := $(FUZZ_SRC:%.c=$(OBJ)/%_fuzzer)
PYPROTO := $(OBJ)/pyproto
DIST := $(BUILD)/helm-$(VERSION)-x86_64.tar.gz
MAKE_MODE = $(MAKE) --no-print-directory BUILD=$(BUILD)
# sanitized programs run side by side: they are slow, and what they check is not time
RUN := tests/run.py --log-dir $(BUILD)/logs $(if $(filter asan ubsan,$(MODE)),--jobs $(shell nproc))

.PHONY: tests test-units test-fuzz-corpora test-processes test-threads test-dist
tests: $(TEST_BIN) $(TEST_TOOL_BIN)
$(OBJ)/tests/fuzz/%_replay: $(OBJ)/tests/fuzz/%.o $(OBJ)/tests/fuzz/replay.o $(OBJ)/libhelm-all.a
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS_ALL) $(ALL_LIBS)
$(OBJ)/tests/fuzz/%_fuzzer: $(OBJ)/tests/fuzz/%.o $(OBJ)/libhelm-all.a
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS_ALL) $(ALL_LIBS)
$(OBJ)/tests/ipc/%: $(OBJ)/tests/ipc/%.o $(OBJ)/libhelm-workers.a
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS_ALL) -lcmocka $(ALL_LIBS)
$(OBJ)/tests/%: $(OBJ)/tests/%.o $(OBJ)/libhelm-all.a
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS_ALL) -lcmocka $(ALL_LIBS)
$(PYPROTO)/helm_pb2.py: proto/helm.proto proto/control.proto
	@mkdir -p $(@D)
	$(Q)protoc --python_out=$(@D) -Iproto helm.proto control.proto

# in-process tests: unit, kernels, ipc, golden. Those that hold times to bounds run alone; sanitized, nothing does (above).
TEST_ALONE := tests/gpu/* tests/ipc/* tests/unit/common/test_doorbell tests/unit/daemon/planner/test_[!as]* \
  tests/unit/worker-cpu/* tests/unit/worker-gpu/test_device*
# One more at once than processors: golden runs spend a fifth of their time waiting from one of their threads to another.
UNIT_JOBS := $(if $(filter release debug asan ubsan,$(MODE)),--jobs $(shell expr $$(nproc) + 1))
test-units: $(TEST_BIN)
	$(RUN) $(UNIT_JOBS) $(if $(filter release debug,$(MODE)),$(TEST_ALONE:%=--alone '%')) --label "$(MODE) " $(TEST_BIN)
test-fuzz-corpora: $(FUZZ_REPLAY)
	@passed=0; for f in $(FUZZ_SRC:tests/fuzz/fuzz_%.c=%); do \
	  $(OBJ)/tests/fuzz/fuzz_$${f}_replay tests/fuzz/corpus/$$f >$(OBJ)/replay.log 2>&1 || { cat $(OBJ)/replay.log; echo "FAIL $(MODE) corpus of $$f"; exit 1; }; \
	  echo "ok   $(MODE) corpus of $$f: $$(tail -n 1 $(OBJ)/replay.log)"; done
# what two processes share, both sides as threads
test-threads: $(filter $(OBJ)/tests/ipc/%_threads,$(TEST_BIN))
	$(RUN) --label "$(MODE) " $^
# these compare what they measured
SCRIPT_ALONE := process/test_bench.py process/test_helm_profile.py
test-processes: programs $(TEST_TOOL_BIN) $(PYPROTO)/helm_pb2.py
	HELM_BIN=$(abspath $(BIN)) HELM_TEST_BIN=$(abspath $(OBJ))/tests/process HELM_PYPROTO=$(abspath $(PYPROTO)) \
	  $(RUN) $(if $(filter release debug,$(MODE)),--jobs $(shell nproc) $(SCRIPT_ALONE:%=--alone '%')) --label "$(MODE) " \
	  --timeout 300 $(TEST_SCRIPT)
test-dist: dist
	HELM_DIST=$(abspath $(DIST)) $(RUN) tests/process/test_dist.sh

.PHONY: test check
test:
	@tools/setup.sh test
	@$(MAKE_MODE) $(CUDA_FOR_TEST) -j$(shell nproc) $(TEST_MODES:%=build-%)
	@$(MAKE_MODE) $(CUDA_FOR_TEST) check
# All that is tested, in every mode at once and what takes longest first, so that no processor waits for another's last file.
TEST_MODES := asan release tsan
.PHONY: $(TEST_MODES:%=build-%) $(TEST_MODES:%=test-programs-%)
$(TEST_MODES:%=build-%): build-%:
	@$(MAKE) --no-print-directory BUILD=$(BUILD) MODE=$* test-programs-$*
SLOW_OBJ := $(call obj_of,$(KERNEL_SRC))
test-programs-asan: $(SLOW_OBJ) tests programs $(FUZZ_REPLAY)
test-programs-release: $(if $(CUDA_DEVICE),$(call cuda_obj_of,$(CUDA_KERNEL_SRC))) $(SLOW_OBJ) $(OBJ)/helm-test-gpu-emulated \
  all tests $(FUZZ_REPLAY)
test-programs-tsan: $(SLOW_OBJ) $(filter $(OBJ)/tests/ipc/%_threads,$(TEST_BIN))
# everything `make test` runs, its results summed up in one closing line
# (joined by +: side by side, where neither asserts times)
CHECKS := release:test-units release:test-fuzz-corpora release:test-gpu-emulated+asan:test-units asan:test-fuzz-corpora \
  release:test-processes tsan:test-threads+asan:test-processes release:test-dist
check:
	@rm -rf $(BUILD)/logs; mkdir -p $(BUILD)/logs; bad=0; \
	for group in $(CHECKS); do echo "== $$group"; pids=; \
	  for c in $${group//+/ }; do \
	    $(MAKE_MODE) -j$(shell nproc) MODE=$${c%%:*} $${c##*:} >$(BUILD)/logs/$$c.out 2>&1 & pids="$$pids $$!"; done; \
	  for pid in $$pids; do wait $$pid || bad=$$((bad+1)); done; \
	  for c in $${group//+/ }; do \
	    grep -vE '^( +(CC|LINK|AR|PROTO) |HELM_|tests/run.py|make|[0-9]+ passed)' $(BUILD)/logs/$$c.out || true; done; \
	done; \
	cat $(BUILD)/logs/*.out | awk '/^ok  .*corpus/ {p += $$(NF-3); next} /^[0-9]+ passed, [0-9]+ failed/ {p += $$1; f += $$3; s += $$5} \
	  END {printf "%d passed, %d failed, %d skipped\n", p, f + '$$bad' * (f == 0), s}'; \
	exit $$((bad > 0))

.PHONY: fuzz
FUZZ_SECONDS ?= 60
fuzz:
	@command -v clang >/dev/null || { echo "make fuzz needs clang and its runtime: apt-get install clang libclang-rt-14-dev" >&2; exit 1; }
	@$(MAKE_MODE) -j$(shell nproc) MODE=fuzz fuzz-run
.PHONY: fuzz-run
fuzz-run: $(FUZZ_BIN)
	@for f in $(FUZZ_SRC:tests/fuzz/fuzz_%.c=%); do mkdir -p $(BUILD)/fuzz-found/$$f; echo "== $$f: $(FUZZ_SECONDS) s"; \
	  $(OBJ)/tests/fuzz/fuzz_$${f}_fuzzer -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096 -timeout=20 -print_final_stats=1 \
	    -artifact_prefix=$(BUILD)/fuzz-found/$$f- $(BUILD)/fuzz-found/$$f tests/fuzz/corpus/$$f >$(BUILD)/fuzz-found/$$f.log 2>&1 \
	    || { tail -n 40 $(BUILD)/fuzz-found/$$f.log; exit 1; }; \
	  grep -E 'number_of_executed_units|new_units_added' $(BUILD)/fuzz-found/$$f.log; done

# ---- everything else ----------------------------------------------------------------------------------------

.PHONY: demo bench dist install clean check-style format help
# no more than the demo needs: CUDA code takes minutes to compile
DEMO_PROGRAMS := helm-cli helm-profile helm-worker-cpu helmd
demo:
	@tools/setup.sh build
	@$(MAKE_MODE) -j$(shell nproc) $(DEMO_PROGRAMS:%=$(BIN)/%) >$(BUILD).log 2>&1 || { tail -n 30 $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log
	@tools/demo.sh $(BIN)

bench: programs
	tools/bench/run.sh $(BIN)

dist: $(DIST)
$(DIST): programs README.md CHANGELOG.md tools/dist.sh $(wildcard tests/data/demo/* profiles/*.json)
	tools/dist.sh $(BIN) $(VERSION) $@

STYLE_SRC = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh')
check-style:
	@clang-format --dry-run -Werror $(STYLE_SRC)
	@tools/check-style.sh $(STYLE_SRC)
format:
	clang-format -i $(STYLE_SRC)

INSTALL := install -D
install: programs lib
	for p in $(PROGRAMS); do $(INSTALL) -m 755 $(BIN)/$$p $(DESTDIR)$(PREFIX)/bin/$$p; done
	cp -a $(LIB)/lib $(LIB)/include $(DESTDIR)$(PREFIX)/
	$(INSTALL) -m 644 -t $(DESTDIR)$(PREFIX)/share/helm/demo $(filter-out %.md,$(wildcard tests/data/demo/*))
	$(INSTALL) -m 644 -t $(DESTDIR)$(PREFIX)/share/helm/profiles $(wildcard profiles/*.json)
	$(INSTALL) -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/helm README.md CHANGELOG.md $(wildcard docs/*.md)
	mkdir -p $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|@PREFIX@|$(PREFIX)|g' systemd/helmd.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/helmd.service
	$(INSTALL) -m 644 systemd/helm.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/helm.conf
	$(INSTALL) -m 644 systemd/helm.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/helm.conf
	$(INSTALL) -m 644 systemd/helmd.ini $(DESTDIR)$(PREFIX)/share/doc/helm/helmd.ini

clean:
	rm -rf $(BUILD)

help:
	@echo "make demo          build, start helmd, stream text from the demo model (installs missing packages)"
	@echo "make test          build and run every test (installs missing packages; GPU code for $(CUDA_TEST_ARCH))"
	@echo "make all           programs into $(BIN), libhelm into $(BUILD)/lib   [MODE=release|debug|asan|ubsan|tsan] [CUDA_ARCH='$(CUDA_ARCH)']"
	@echo "make bench         achieved speed, limit and ratio on this machine"
	@echo "make fuzz          every fuzz target, FUZZ_SECONDS (60) each, with clang"
	@echo "make dist          relocatable tarball $(DIST)"
	@echo "make install       PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)"
	@echo "make check-style   formatting, file sizes, header comments      make format, make clean"

# ---- libhelm: shared, static, headers, pkg-config ---------------------------------------------------------------
# Staged as they are installed: $(LIB)/lib and $(LIB)/include. Only helm_* symbols leave either library.

LIB := $(if $(filter release,$(MODE)),$(BUILD),$(OBJ))
LIBHELM_HEADERS := chat.h err.h helm.h tokenizer.h
LIBHELM_OBJ := $(call obj_of,$(LIBHELM_SRC) $(GEN)/proto/helm.pb-c.c)
LIBHELM_LIBS := -lzmq -lprotobuf-c -lpcre2-8 -ljansson -lutf8proc -lm
LIBHELM_SO := $(LIB)/lib/libhelm.so.$(VERSION)
LIBHELM_DEFS := -Wl,-z,defs
ifneq ($(filter asan ubsan tsan,$(MODE)),)
LIBHELM_DEFS := # the sanitizers' own functions come with the program
endif
lib: $(LIBHELM_SO) $(LIB)/lib/libhelm.a $(LIB)/lib/pkgconfig/libhelm.pc $(LIBHELM_HEADERS:%=$(LIB)/include/helm/%)

$(OBJ)/libhelm-common.a: $(call obj_of,$(COMMON_SRC))
	rm -f $@ && ar rcs $@ $^
$(LIBHELM_SO): $(LIBHELM_OBJ) $(OBJ)/libhelm-common.a client/libhelm.map
	@mkdir -p $(@D)
	$(CC) -shared -Wl,-soname,libhelm.so.0 -Wl,--version-script=client/libhelm.map $(LIBHELM_DEFS) \
	  -o $@ $(LIBHELM_OBJ) $(OBJ)/libhelm-common.a $(LDFLAGS_ALL) $(LIBHELM_LIBS)
	ln -sf $(@F) $(@D)/libhelm.so.0 && ln -sf libhelm.so.0 $(@D)/libhelm.so
$(LIB)/lib/libhelm.a: $(LIBHELM_OBJ) $(OBJ)/libhelm-common.a
	@mkdir -p $(@D)
	ld -r -o $(OBJ)/libhelm.o $^ && objcopy -w --keep-global-symbol='helm_[a-z]*' $(OBJ)/libhelm.o
	rm -f $@ && ar rcs $@ $(OBJ)/libhelm.o
$(LIB)/lib/pkgconfig/libhelm.pc: client/libhelm.pc.in VERSION
	@mkdir -p $(@D)
	sed 's,@VERSION@,$(VERSION),' $< > $@
# In the tree headers are found from its root, installed ones under helm/.
$(LIB)/include/helm/%.h: client/%.h
	@mkdir -p $(@D)
	sed -E 's,#include "(client|common)/,#include "helm/,' $< > $@
$(LIB)/include/helm/err.h: common/err.h
	@mkdir -p $(@D)
	cp $< $@

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
