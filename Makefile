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
.DEFAULT_GOAL := all
.SECONDARY:
.DELETE_ON_ERROR:
SHELL := /bin/bash

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wundef -Wno-format-truncation -Werror
BASE := -std=c11 -D_GNU_SOURCE -fno-strict-aliasing -fPIC -g -pthread
LDFLAGS_MODE :=
ifeq ($(MODE),release)
OPT := -O2 -fno-plt -D_FORTIFY_SOURCE=2 -fstack-protector-strong
LDFLAGS_MODE := -Wl,-z,relro,-z,now
BIN := $(BUILD)/bin
else ifeq ($(MODE),debug)
OPT := -O0 -fno-omit-frame-pointer
else ifeq ($(MODE),asan)
OPT := -O1 -fno-omit-frame-pointer -fsanitize=address
LDFLAGS_MODE := -fsanitize=address
else ifeq ($(MODE),ubsan)
OPT := -O1 -fno-omit-frame-pointer -fsanitize=undefined -fno-sanitize-recover=all
LDFLAGS_MODE := -fsanitize=undefined
else ifeq ($(MODE),tsan)
OPT := -O1 -fno-omit-frame-pointer -fsanitize=thread
LDFLAGS_MODE := -fsanitize=thread
else
$(error MODE=$(MODE) is none of release, debug, asan, ubsan, tsan)
endif
OBJ := $(BUILD)/$(MODE)
BIN ?= $(OBJ)/bin
GEN := $(OBJ)/gen
VERSION := $(shell cat VERSION)
CPPFLAGS_ALL := -I. -I$(GEN) -DHELM_VERSION='"$(VERSION)"' $(CPPFLAGS)
CFLAGS_ALL := $(BASE) $(OPT) $(WARN) $(CFLAGS)
KERNEL_OPT := -O3 -ffp-contract=off
LDFLAGS_ALL := -pthread $(LDFLAGS_MODE) -Wl,--as-needed $(LDFLAGS)

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
  common/units.c

MODEL_SRC := \
  common/model/arch.c \
  common/model/checkpoint.c \
  common/model/config.c \
  common/model/index.c \
  common/model/rope.c \
  common/model/rope_config.c \
  common/model/safetensors.c

WORKER_CPU_SRC := \
  worker-cpu/attention.c \
  worker-cpu/control.c \
  worker-cpu/engine.c \
  worker-cpu/execute.c \
  worker-cpu/kernel_set.c \
  worker-cpu/kernels.c \
  worker-cpu/local.c \
  worker-cpu/pin.c \
  worker-cpu/pool.c \
  worker-cpu/program.c \
  worker-cpu/server.c \
  worker-cpu/step.c \
  worker-cpu/weights.c

# Kernels: each file is compiled with the instructions in KERNEL_ISA below and chosen at run time.
KERNEL_SRC := \
  worker-cpu/kernels/attention_avx2.c \
  worker-cpu/kernels/attention_avx512.c \
  worker-cpu/kernels/attention_ref.c \
  worker-cpu/kernels/linear_amx.c \
  worker-cpu/kernels/linear_avx2.c \
  worker-cpu/kernels/linear_avx512.c \
  worker-cpu/kernels/linear_avx512bf16.c \
  worker-cpu/kernels/linear_openblas.c \
  worker-cpu/kernels/linear_ref.c \
  worker-cpu/kernels/vector_avx2.c \
  worker-cpu/kernels/vector_avx512.c \
  worker-cpu/kernels/vector_ref.c

DAEMON_SRC :=

# libhelm: connection, tokenizer, chat template. Knows no model, no arena, no daemon.
LIBHELM_SRC := \
  client/connection.c \
  client/endpoint.c \
  client/generate.c \
  client/query.c

INSPECT_SRC := \
  tools/inspect/json.c \
  tools/inspect/text.c

MKMODEL_SRC := \
  tools/mkmodel/files.c \
  tools/mkmodel/shape.c \
  tools/mkmodel/values.c

CLI_SRC := \
  client/cli/command_chat.c \
  client/cli/command_generate.c \
  client/cli/command_query.c \
  client/cli/command_run.c \
  client/cli/command_text.c \
  client/cli/output.c \
  client/cli/private_daemon.c \
  client/cli/sampling.c \
  client/cli/session.c \
  client/cli/stream.c

PROTO_SRC := $(GEN)/proto/helm.pb-c.c $(GEN)/proto/control.pb-c.c

# Instruction sets by file name; everything else is plain x86-64.
ISA_avx2 := -mavx2 -mfma -mf16c
ISA_avx512 := $(ISA_avx2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512
ISA_avx512bf16 := $(ISA_avx512) -mavx512bf16
ISA_amx := $(ISA_avx512bf16) -mamx-tile -mamx-bf16

# ---- programs -----------------------------------------------------------------------------------------------
# NAME_MAIN: the file with main(); NAME_LINK: the groups it may link; NAME_LIBS: its libraries.

helm-inspect_MAIN := tools/helm_inspect.c
helm-inspect_LINK := $(COMMON_SRC) $(MODEL_SRC) $(INSPECT_SRC)
helm-inspect_LIBS := -ljansson -lm
helm-mkmodel_MAIN := tools/helm_mkmodel.c
helm-mkmodel_LINK := $(COMMON_SRC) $(MODEL_SRC) $(MKMODEL_SRC)
helm-mkmodel_LIBS := -ljansson -lm
helm-worker-cpu_MAIN := worker-cpu/main.c
helm-worker-cpu_LINK := $(COMMON_SRC) $(MODEL_SRC) $(WORKER_CPU_SRC) $(KERNEL_SRC) $(GEN)/proto/control.pb-c.c
helm-worker-cpu_LIBS := -lzmq -lprotobuf-c -lnuma -lopenblas -ljansson -lm

PROGRAMS := helm-inspect helm-mkmodel helm-worker-cpu

# ---- rules --------------------------------------------------------------------------------------------------

ALL_SRC := $(COMMON_SRC) $(MODEL_SRC) $(WORKER_CPU_SRC) $(KERNEL_SRC) $(DAEMON_SRC) $(LIBHELM_SRC) $(CLI_SRC) $(INSPECT_SRC) $(MKMODEL_SRC) $(PROTO_SRC)
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
	protoc-c --c_out=$(GEN) $<

$(OBJ)/gen/%.o: $(GEN)/%.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS_ALL) $(BASE) $(OPT) -MMD -MP -c -o $@ $<

# Sources may include generated headers, so those come first.
GEN_HEADERS := $(GEN)/proto/helm.pb-c.h $(GEN)/proto/control.pb-c.h
kernel_isa = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $(1))))))
$(OBJ)/%.o: %.c | $(GEN_HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(if $(findstring /kernels/,$<),$(KERNEL_OPT) $(call kernel_isa,$<)) -MMD -MP -c -o $@ $<

define program_rule
$(BIN)/$(1): $$(call obj_of,$$($(1)_MAIN) $$($(1)_LINK))
	@mkdir -p $$(@D)
	$$(CC) -o $$@ $$^ $$(LDFLAGS_ALL) $$($(1)_LIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call program_rule,$(p))))

# Everything without main(), for tests and fuzz targets: the linker takes what each uses.
$(OBJ)/libhelm-all.a: $(ALL_OBJ)
	@mkdir -p $(@D)
	rm -f $@ && ar rcs $@ $^

TEST_SRC := $(shell find tests -name 'test_*.c' | sort)
TEST_BIN := $(TEST_SRC:%.c=$(OBJ)/%)
.PHONY: tests
tests: $(TEST_BIN)
$(OBJ)/tests/%: $(OBJ)/tests/%.o $(OBJ)/libhelm-all.a
	$(CC) -o $@ $^ $(LDFLAGS_ALL) -lcmocka $(ALL_LIBS)

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
