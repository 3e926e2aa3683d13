# How GPU code is compiled, for the device and for the emulator. Read by the Makefile.
#
# Looked for in CUDA_HOME, PATH and /usr/local/cuda, and reported in one line; without it everything but the CUDA
# device is built. CUDA_ARCH (for example "75;80;90") is stated; `make install` alone asks the machine.

.PHONY: cuda-report
cuda-report:
	@$(if $(NVCC),echo "cuda: $$($(NVCC) --version | sed -n 's/.*release //p') at $(NVCC)",echo "cuda: absent (no nvcc in CUDA_HOME, PATH or /usr/local/cuda): no CUDA device in this build")
all: cuda-report

# The GPU's kernels, their tests and their benchmark: helm-test-gpu-kernels, helm-bench-gpu-kernels. Each architecture of
# CUDA_ARCH gets machine code, the newest also PTX for those to come; CUDA_ARCH=90 alone is quick while developing.
# `make test` compiles for CUDA_TEST_ARCH only, which is every path there is: sources ask for 8.0 or for 9.0, never for
# what is between, so that 7.5 and 9.0 take both sides of each question. Unless objects for these and more lie there
# already; and with CUDA_QUICK=1, code that is correct and slow in a tenth of the time, where nvcc can (12.8 and later):
# PTX alone, which the assembler reads through without making code of it, of the newest architecture; of all of them only where
# sources ask for one (CUDA_KERNEL_ASKING_SRC). Where there is a GPU to run it, or an assembler that cannot (12.7 and before),
# all sources for all of them, with machine code of the newest.
# `make install` compiles for the GPUs that are there, unless objects for these and more are: it is for this machine.
CUDA_STAMP := $(OBJ)/cuda-arch
CUDA_HAVE := $(shell cat $(CUDA_STAMP) 2>/dev/null)
CUDA_ALL := 75;80;86;89;90
CUDA_HERE := $(if $(filter install,$(MAKECMDGOALS)),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | \
  sed -n 's/^ *\([0-9]*\)\.\([0-9]\) *$$/\1\2/p' | awk '$$1 >= 75' | sort -u))
CUDA_LACK := $(filter quick,$(CUDA_HAVE)) $(filter-out $(CUDA_HAVE),$(CUDA_HERE))
CUDA_ARCH ?= $(or $(if $(CUDA_HERE),$(if $(strip $(CUDA_LACK)),$(CUDA_HERE),$(CUDA_HAVE))),$(CUDA_ALL))
CUDA_TEST_ARCH := 75;90
CUDA_ARCHS := $(sort $(subst ;, ,$(CUDA_ARCH)))
CUDA_QUICK ?=
PTX_READ := $(if $(and $(NVCC),$(CUDA_QUICK)),$(if $(wildcard /dev/nvidiactl),,$(shell \
  $(dir $(NVCC))ptxas --help | grep -q 'parsing only' && echo yes)))
# nvcc itself has the assembler read the newest architecture's (13.0) or no one's
NVCC_READS := $(if $(PTX_READ),$(shell $(NVCC) -gencode=arch=compute_90,code=compute_90 --dryrun -c x.cu 2>&1 | grep -q ' ptxas ' && echo yes))
PTX_KEPT = $(if $(NVCC_READS),,$(PTX_READ))
ptx_alone = $(and $(CUDA_QUICK),$(or $(PTX_READ),$(filter-out $(2),$(1))))
gencode = $(foreach a,$(1),-gencode=arch=compute_$(a),code=$(if $(call ptx_alone,$(a),$(lastword $(1))),compute,sm)_$(a)) \
  $(if $(PTX_READ),,-gencode=arch=compute_$(lastword $(1)),code=compute_$(lastword $(1)))
NVCC_CODE := $(call gencode,$(if $(PTX_READ),$(lastword $(CUDA_ARCHS)),$(CUDA_ARCHS)))
# Architectures of the objects, all of which are compiled anew for others.
CUDA_WANT := $(strip $(CUDA_ARCHS) $(if $(CUDA_QUICK),quick))
CUDA_TEST_ARCHS := $(subst ;, ,$(CUDA_TEST_ARCH))
CUDA_FOR_TEST := $(if $(filter-out file,$(origin CUDA_ARCH)),,$(if \
  $(filter-out $(CUDA_HAVE),$(CUDA_TEST_ARCHS))$(filter quick,$(CUDA_HAVE)),CUDA_ARCH='$(CUDA_TEST_ARCH)' CUDA_QUICK=1,\
  CUDA_ARCH='$(CUDA_HAVE)'))
# Defines for GPU sources alone, the emulated ones too: to compare what they choose, each in a BUILD of its own
# (CUDA_DEFS=-DNAME=0), since objects that are there are not made anew for others.
CUDA_DEFS ?=
NVCC_OPT := $(if $(and $(NVCC),$(CUDA_QUICK)),-O0 $(shell $(NVCC) --help | grep -q -- --Ofast-compile && echo -Ofc=max),\
  $(if $(filter debug,$(MODE)),-O1,-O3))
NVCC_HOST := -Wall -Wextra -Wno-format-truncation -fPIC -pthread $(filter -fsanitize=% -fno-sanitize-recover=all,$(OPT))
NVCC_FLAGS := -std=c++17 $(NVCC_OPT) -lineinfo $(if $(filter 1,$(WERROR)),-Werror all-warnings) -Xcompiler $(subst $(space),$(comma),$(strip $(NVCC_HOST)))
CUDA_LIB := $(if $(NVCC),$(abspath $(dir $(NVCC))/../lib64))
CUDA_LIBS := -L$(CUDA_LIB) -Wl,-rpath,$(CUDA_LIB) -lcudart_static -lrt -ldl -lpthread -lstdc++ -lm

CUDA_TEST_SRC := \
  tests/gpu/test_attention.cu \
  tests/gpu/test_chain.cu \
  tests/gpu/test_delta.cu \
  tests/gpu/test_elementwise.cu \
  tests/gpu/test_expand.cu \
  tests/gpu/test_experts.cu \
  tests/gpu/test_experts_few.cu \
  tests/gpu/test_gemm_blocks.cu \
  tests/gpu/test_gemm_integer.cu \
  tests/gpu/test_gemv_packed.cu \
  tests/gpu/test_heads.cu \
  tests/gpu/test_invariant.cu \
  tests/gpu/test_linear.cu \
  tests/gpu/test_main.cu \
  tests/gpu/test_scales.cu
CUDA_TEST_HOST_OBJ := $(addprefix $(OBJ)/common/base/,cgroup.o cpu.o err.o file.o node.o printable.o suggest.o) $(patsubst %.c,$(OBJ)/%.o,$(filter common/formats/%.c,$(COMMON_SRC))) \
  $(OBJ)/common/model/router.o $(OBJ)/common/sampling/pass.o $(OBJ)/common/cpu/kernels/delta_ref.o
CUDA_PROGRAMS := $(if $(NVCC),helm-test-gpu-kernels helm-bench-gpu-kernels)
cuda_obj_of = $(patsubst %.cu,$(OBJ)/%.o,$(1))

# Sources that compile as one each (tests/unite.py) where quick code is read and not run: nvcc's processes and CUDA's headers take most of
# a file's time. All sources of a group are compiled for the same architectures; tests and benches have no kernels of their own.
CUDA_KERNEL_GROUPS := asking chains experts few gemm nineties
kernels_of = $(1:%=worker-gpu/kernels/%.cu)
CUDA_GROUP_asking := $(call kernels_of,attention/decode_tensor formats/expand linear/gemv_groups)
CUDA_GROUP_chains := $(call kernels_of,chain/chain chain/list chain/meetings)
CUDA_GROUP_experts := $(call kernels_of,experts/experts experts/chunk experts/packed experts/plain experts/route experts/share)
CUDA_GROUP_few := $(call kernels_of,attention/merge delta/chunk delta/delta linear/elementwise linear/heads linear/linear attention/rope experts/router_logits select weigh)
CUDA_GROUP_gemm := $(call kernels_of,attention/decode linear/gemm_blocks linear/gemm_small linear/gemv_bulk linear/gemv_plain)
CUDA_GROUP_nineties := $(call kernels_of,chain/attention experts/bulk experts/digits)
CUDA_GROUP_tests := $(filter-out %/test_gemv_packed.cu,$(CUDA_TEST_SRC))
CUDA_GROUP_benches := $(patsubst %,tools/bench/gpu/bench_%.cu,batch chain)
define united_rule
$(GEN)/united/$(1).cu: $(CUDA_GROUP_$(1)) tests/unite.py worker-gpu/cuda.mk
	@mkdir -p $$(@D)
	$$(Q)tests/unite.py $(CUDA_GROUP_$(1)) >$$@
endef
$(foreach g,$(CUDA_KERNEL_GROUPS) tests benches,$(eval $(call united_rule,$(g))))
# $(1): sources, $(2): the groups that stand for some of them
united_obj_of = $(if $(PTX_READ),$(2:%=$(OBJ)/united/%.o) $(call cuda_obj_of,$(filter-out $(foreach g,$(2),$(CUDA_GROUP_$(g))),$(1))),$(call cuda_obj_of,$(1)))
CUDA_KERNEL_OBJ := $(call united_obj_of,$(CUDA_KERNEL_SRC),$(CUDA_KERNEL_GROUPS))

# The same tests of the same kernels as plain C++ on an emulated device, with or without nvcc: indexing, masks, fragments
# and barriers' phases are checked (under MODE=asan also every access); races and speed are not. In -Og it takes half the
# time of -O1 to compile, a quarter of -O2's, and little longer to run; but the emulator itself is compiled for speed.
CUDA_EMULATED_SRC := $(CUDA_TEST_SRC) $(filter-out %/matmul.cu,$(CUDA_KERNEL_SRC)) tests/gpu/emulator/emulator.cpp
CUDA_EMULATED_OBJ := $(patsubst %,$(OBJ)/emulated/%.o,$(CUDA_EMULATED_SRC))
EMULATED_OPT := -Og
$(OBJ)/emulated/tests/gpu/emulator/emulator.cpp.o: EMULATED_OPT := -O2
# These take half of the time to compile, little of them runs, and the tests take a few seconds longer.
EMULATED_QUICK := chain/chain $(addprefix experts/,bulk chunk digits once plain wide) $(addprefix linear/,gemm_integer gemm_small gemv_bulk gemv_once)
$(EMULATED_QUICK:%=$(OBJ)/emulated/worker-gpu/kernels/%.cu.o): EMULATED_OPT := -O0 -U_FORTIFY_SOURCE
$(OBJ)/emulated/%.o: %
	$(folder)
	$(call say,CXX,$<)
	$(Q)$(CXX) -x c++ -std=c++17 -Itests/gpu/emulator -I. -DHELM_CUDA_EMULATED $(CUDA_DEFS) -fno-strict-aliasing -ffp-contract=off \
	  -g1 $(filter-out -O%,$(OPT)) $(EMULATED_OPT) -Wall -Wextra $(if $(filter 1,$(WERROR)),-Werror) -Wno-unknown-pragmas -Wno-format-truncation -Wno-unused-function -Wno-unused-variable \
	  -MMD -MP -c -o $@ $<
$(OBJ)/helm-test-gpu-emulated: $(CUDA_EMULATED_OBJ) $(CUDA_TEST_HOST_OBJ)
	$(call say,LINK,$@)
	$(Q)$(CXX) -o $@ $^ $(LDFLAGS_ALL) -lm
# The same inputs each time, so that a commit passes or does not; `tests/gpu/check.sh` has fresh ones on every run.
SEED ?= 1
# groups of tests that run by themselves, side by side with the rest
EMULATED_GROUPS := attention blocks chain
.PHONY: test-gpu-emulated
test-gpu-emulated: $(OBJ)/helm-test-gpu-emulated
	$(Q)ASAN_OPTIONS=detect_stack_use_after_return=0 $(RUN) $(call emulated_tests,$(MODE))

CUDA_DEVICE_OBJ := $(addprefix $(OBJ)/worker-gpu/device/cuda/,device.o graph.o kernels.o)
ifneq ($(NVCC),)
ifneq ($(CUDA_HAVE),$(CUDA_WANT))
.PHONY: $(CUDA_STAMP)
endif
$(CUDA_STAMP):
	@mkdir -p $(@D)
	@echo "$(CUDA_WANT)" >$@
define compile_cuda
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(if $(PTX_KEPT),rm -rf $@.keep && mkdir $@.keep && )$(NVCC) -I. $(CUDA_DEFS) $(NVCC_FLAGS) $(NVCC_CODE) $(if $(PTX_KEPT),--keep --keep-dir $@.keep) -MMD -MP -c -o $@ $<
	$(if $(PTX_KEPT),$(Q)for f in $@.keep/*.ptx; do $(dir $(NVCC))ptxas -arch=compute_$$(sed -n 's/^\.target sm_\([0-9a-z]*\).*/\1/p' $$f) $$f || { rm -f $@; exit 1; }; done; rm -rf $@.keep)
endef
$(OBJ)/%.o: %.cu $(CUDA_STAMP)
	$(compile_cuda)
$(OBJ)/united/%.o: $(GEN)/united/%.cu $(CUDA_STAMP)
	$(compile_cuda)
# Between them these reach every question about the architecture in ptx.cuh, and all that stand elsewhere.
CUDA_KERNEL_ASKING_SRC := $(addprefix worker-gpu/kernels/,attention/decode_tensor.cu attention/prefill.cu formats/expand.cu linear/gemv_groups.cu)
$(call cuda_obj_of,$(CUDA_KERNEL_ASKING_SRC)) $(OBJ)/united/asking.o: NVCC_CODE := $(call gencode,$(CUDA_ARCHS))
$(call cuda_obj_of,$(CUDA_KERNEL_ASKING_SRC)) $(OBJ)/united/asking.o: PTX_KEPT := $(PTX_READ)
# 9.0's alone, which no other device is given (gpuk_device.bulk_copy)
CUDA_KERNEL_90_SRC := $(filter worker-gpu/kernels/chain/% %/experts/bulk.cu %/experts/digits.cu %/gemm_integer.cu %/gemm_stream.cu,$(CUDA_KERNEL_SRC))
$(call cuda_obj_of,$(CUDA_KERNEL_90_SRC)) $(OBJ)/united/chains.o $(OBJ)/united/nineties.o: NVCC_CODE := \
  $(call gencode,$(or $(filter-out 7% 8%,$(CUDA_ARCHS)),$(lastword $(CUDA_ARCHS))))
# 9.0's warpgroups have instructions that no later device has either: no code for others, which are given none of it
# (gpuk_device.warpgroups). Without 9.0 among the architectures there is nothing in it. Quick code is PTX that nothing runs:
# functions would stay apart in it, and what a warpgroup has at work would be waited for at each end; so only where the
# assembler reads it and no GPU is there are the instructions in it.
CUDA_KERNEL_90A_SRC := worker-gpu/kernels/experts/wide.cu worker-gpu/kernels/linear/gemm_wide.cu
ifneq ($(filter 90,$(CUDA_ARCHS)),)
$(call cuda_obj_of,$(CUDA_KERNEL_90A_SRC)): NVCC_CODE := $(if $(CUDA_QUICK),-gencode=arch=compute_90a$(comma)code=compute_90a $(if $(PTX_READ),-DHELM_SM90A),\
  -gencode=arch=compute_90a$(comma)code=sm_90a -DHELM_SM90A)
endif
# tests have no kernels of their own, nor have most benchmarks: one architecture is as good as five, and quick code is plain C++
CUDA_LAUNCH_SRC := $(CUDA_TEST_SRC) $(filter-out %/bench_kernels.cu %/bench_model.cu,$(CUDA_BENCH_SRC))
$(call cuda_obj_of,$(CUDA_LAUNCH_SRC)) $(OBJ)/united/tests.o $(OBJ)/united/benches.o: NVCC_CODE := \
  $(if $(PTX_READ),-x c++,-gencode=arch=compute_$(firstword $(CUDA_ARCHS)),code=compute_$(firstword $(CUDA_ARCHS)))
$(call cuda_obj_of,$(CUDA_LAUNCH_SRC)) $(OBJ)/united/tests.o $(OBJ)/united/benches.o: PTX_KEPT :=
$(BIN)/helm-test-gpu-kernels: $(call united_obj_of,$(CUDA_TEST_SRC),tests) $(CUDA_KERNEL_OBJ) $(CUDA_TEST_HOST_OBJ)
$(BIN)/helm-bench-gpu-kernels: $(call united_obj_of,$(CUDA_BENCH_SRC),benches) $(CUDA_KERNEL_OBJ) $(CUDA_TEST_HOST_OBJ)
$(CUDA_PROGRAMS:%=$(BIN)/%):
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS_ALL) $(CUDA_LIBS)
$(CUDA_DEVICE_OBJ): CPPFLAGS_ALL += -isystem $(CUDA_LIB)/../include
ifneq ($(CUDA_DEVICE),)
$(BIN)/helm-worker-gpu: $(CUDA_KERNEL_OBJ)
endif
# tests of device and workers with the CUDA device in them: HELM_TEST_DEVICE=cuda $(BIN)/helm-test-gpu-split
CUDA_DEVICE_TESTS := $(addprefix $(BIN)/helm-test-gpu-,device home split stream tiers gguf)
$(BIN)/helm-test-gpu-device: $(OBJ)/tests/gpu/test_device_queues.o
$(BIN)/helm-test-gpu-home: $(OBJ)/tests/golden/test_golden_home.o
$(BIN)/helm-test-gpu-split: $(OBJ)/tests/golden/test_golden_split.o
$(BIN)/helm-test-gpu-stream: $(OBJ)/tests/golden/test_golden_stream.o
$(BIN)/helm-test-gpu-tiers: $(OBJ)/tests/golden/test_golden_tiers.o
$(BIN)/helm-test-gpu-gguf: $(OBJ)/tests/golden/test_golden_gguf_gpu.o
$(CUDA_DEVICE_TESTS): $(CUDA_DEVICE_OBJ) \
  $(CUDA_KERNEL_OBJ) $(OBJ)/libhelm-all.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LDFLAGS_ALL) -lcmocka $(ALL_LIBS) $(CUDA_LIBS)
.PHONY: cuda check-gpu gpu-bundle
cuda: $(CUDA_PROGRAMS:%=$(BIN)/%)
all: cuda
# needs a GPU; without one every line says SKIP
check-gpu: $(CUDA_PROGRAMS:%=$(BIN)/%) $(CUDA_DEVICE_TESTS) programs $(OBJ)/pyproto/helm_pb2.py
	HELM_CHECK_LOGS=$(BUILD)/logs/gpu HELM_PYPROTO=$(OBJ)/pyproto tests/gpu/check.sh $(BIN)
gpu-bundle: $(CUDA_PROGRAMS:%=$(BIN)/%) $(CUDA_DEVICE_TESTS)
	tools/gpu-bundle.sh $(BIN) $(BUILD)/helm-gpu-check.tar.xz
endif
