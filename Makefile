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

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wundef -Werror
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
LDFLAGS_ALL := -pthread $(LDFLAGS_MODE) -Wl,--as-needed $(LDFLAGS)

# ---- sources ------------------------------------------------------------------------------------------------
# Grouped by who may link them. Keep each list sorted.

COMMON_SRC := common/err.c common/file.c common/json.c common/log.c common/units.c

MODEL_SRC :=

WORKER_CPU_SRC :=
# kernels are compiled with the instructions their file is named after and chosen at run time
KERNEL_SRC :=

DAEMON_SRC :=

LIBHELM_SRC :=

PROTO := helm control
PROTO_SRC := $(PROTO:%=$(GEN)/proto/%.pb-c.c)

# program: its sources with main(), the groups it links, its libraries
PROGRAMS :=

# ---- rules --------------------------------------------------------------------------------------------------

KERNEL_CFLAGS := -O3 -ffp-contract=off
%/kernels/avx2.o: ISA := -mavx2 -mfma -mf16c
%/kernels/avx512.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c

objs = $(patsubst %.c,$(OBJ)/%.o,$(filter-out $(GEN)/%,$(1))) $(patsubst $(GEN)/%.c,$(OBJ)/gen/%.o,$(filter $(GEN)/%,$(1)))

