# HELM's one Makefile. `make help` lists the targets; README.md shows the two that matter: `make demo`, `make test`.
#
#   MODE=release|debug|asan|ubsan|tsan   how to compile (anything else is an error)
#   BUILD=dir                            where objects go (build/), programs land in $(BUILD)/bin for MODE=release
#   CC, CUDA_HOME, CUDA_ARCH             compilers; CUDA_ARCH is stated, never guessed
#   WERROR=1                             a warning is an error: what CI sets; a newer compiler's warning stops no user
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
WERROR ?= 0
Q := $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V)),,$(info $(space) $(1)	$(2)))
# A process to make a folder, or to say what is made, would take longer than make itself for an object.
folder = $(if $(wildcard $(@D)/),,@mkdir -p $(@D))
.DEFAULT_GOAL := all
.SECONDARY:
.DELETE_ON_ERROR:

empty :=
space := $(empty) $(empty)
comma := ,
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wformat=2 -Wundef -Wno-format-truncation -Wno-missing-field-initializers $(if $(filter 1,$(WERROR)),-Werror)
BASE := -std=c11 -D_GNU_SOURCE -fno-strict-aliasing -fPIC -pthread
# Traces and sanitizers' reports name functions and lines; what a debugger needs besides takes a quarter of the time to
# compile, of kernels half of it.
DEBUG_INFO := $(if $(filter debug,$(MODE)),-g,-g1)
LDFLAGS_MODE :=
PROGRAM_LDFLAGS :=
ifeq ($(MODE),release)
OPT := -O2 -fno-plt -D_FORTIFY_SOURCE=2 -fstack-protector-strong
LDFLAGS_MODE := -Wl,-z,relro,-z,now
BIN := $(BUILD)/bin
else ifeq ($(MODE),debug)
OPT := -O0 -fno-omit-frame-pointer
else ifeq ($(MODE),asan)
# With undefined behaviour, so that `make test` builds and runs everything sanitized once. It ends a program by SIGILL, of which
# AddressSanitizer says where (tests/run.py); MODE=ubsan says which. Texts for each place that may be undefined take a fifth of the time
# to compile, and AddressSanitizer guards and searches them at each start and end of a program.
OPT := -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fsanitize-undefined-trap-on-error
# Frames stay on the stack: gcc 14 keeps them elsewhere by default, to see their use after a return, but not at multiples of 64 bytes
# (its bug 110027), and AVX-512 code that stores to them ends in SIGSEGV.
OPT += $(shell $(CC) --param asan-use-after-return=0 -E -x c /dev/null >/dev/null 2>&1 && echo --param asan-use-after-return=0)
LDFLAGS_MODE := -fsanitize=address
# Programs start in 22 ms instead of 27, since 200,000 addresses of what is checked need no relocation.
PROGRAM_LDFLAGS := -no-pie
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
KERNEL_OPT := -O3 -ffp-contract=off
# DT_RPATH, not DT_RUNPATH: in a `make dist` folder it must also serve the libraries' own dependencies. Packages have none.
RPATH ?= -Wl,--disable-new-dtags -Wl,-rpath,'$$ORIGIN/../lib'
LDFLAGS_ALL := -pthread $(LDFLAGS_MODE) -Wl,--as-needed $(RPATH) $(LDFLAGS)

# ---- sources and programs -----------------------------------------------------------------------------------
# Each folder lists its sources, grouped by who may link them, and its programs:
# NAME_MAIN is the file with main(), NAME_LINK the groups it may link, NAME_LIBS its libraries.
include common/sources.mk proto/sources.mk worker-cpu/sources.mk worker-gpu/sources.mk daemon/sources.mk \
  client/sources.mk tools/sources.mk

PROGRAMS := helm-bench helm-bench-decode helm-bench-kernels helm-cli helm-gateway helm-inspect helm-mkmodel helm-plan helm-profile helm-quantize helm-worker-cpu helm-worker-gpu helmd

# ---- rules --------------------------------------------------------------------------------------------------

ALL_SRC := $(COMMON_SRC) $(MODEL_SRC) $(WORKER_SRC) $(CPU_SRC) $(WORKER_CPU_SRC) $(DISK_SRC) $(WORKER_GPU_SRC) worker-gpu/device/cuda/absent.c tests/golden/pair.c $(KERNEL_SRC) $(DAEMON_SRC) $(EXPLAIN_SRC) $(LIBHELM_SRC) $(CLI_SRC) $(SESSION_SRC) $(HUB_SRC) $(GATEWAY_SRC) $(BENCH_SRC) $(INSPECT_SRC) $(MKMODEL_SRC) $(PROFILE_SRC) $(PROOF_SRC) $(QUANTIZE_SRC) $(PROTO_SRC)
MAIN_SRC := $(foreach p,$(PROGRAMS),$($(p)_MAIN))
obj_of = $(patsubst $(OBJ)/gen/%.c,$(OBJ)/gen/%.o,$(patsubst %.c,$(OBJ)/%.o,$(filter-out $(GEN)/%,$(1))) $(filter $(GEN)/%,$(1)))
ALL_OBJ := $(call obj_of,$(ALL_SRC))
MAIN_OBJ := $(call obj_of,$(MAIN_SRC))
ALL_LIBS := -lcurl -ledit -lzmq -lsodium -lmicrohttpd -lprotobuf-c -lnuma -lopenblas -lpcre2-8 -luring -ljansson -lutf8proc -lsystemd -linih -lm

.PHONY: all built programs lib
all: built
built: programs lib
	@echo "built: $(PROGRAMS)"
	@echo "in $(BIN), libhelm in $(LIB)/lib"
	@$(if $(NVCC),true,echo "helm-worker-gpu has no CUDA device in it (no nvcc in CUDA_HOME, PATH or /usr/local/cuda): models run on the CPU")
programs: $(PROGRAMS:%=$(BIN)/%)

# Every object waits for the generated headers, and these for a look at what is installed: one message instead of a
# compiler's errors.
SETUP_LOOK := $(BUILD)/setup-looked
$(SETUP_LOOK): tools/setup.sh
	@CC='$(CC)' tools/setup.sh look
	@mkdir -p $(@D) && touch $@
.PHONY: setup
setup:
	@tools/setup.sh build

$(GEN)/proto/%.pb-c.c $(GEN)/proto/%.pb-c.h: proto/%.proto | $(SETUP_LOOK)
	@mkdir -p $(GEN)
	$(call say,PROTO,$<)
	$(Q)protoc-c --c_out=$(GEN) $<

$(OBJ)/gen/%.o: $(GEN)/%.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(BASE) $(OPT) -MMD -MP -c -o $@ $<

# Sources may include generated headers, so those come first.
GEN_HEADERS := $(GEN)/proto/helm.pb-c.h $(GEN)/proto/control.pb-c.h
# Plans of a thousand layers take seconds of searching and pricing, which -O3 makes a fifth shorter.
search_opt = $(if $(filter release,$(MODE)),$(if $(filter daemon/planner/search/% daemon/planner/cost/%,$(1)),-O3))
kernel_isa = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $(1))))))
$(OBJ)/%.o: %.c | $(GEN_HEADERS)
	$(folder)
	$(call say,CC,$<)
	$(call quick_mark,$*)
	$(Q)$(CC) $(CPPFLAGS_ALL) $(CFLAGS_ALL) $(if $(findstring /kernels/,$<)$(findstring /quantize_,$<),$(KERNEL_OPT) $(call kernel_isa,$<)) $(call search_opt,$<) $(call test_opt,$<) $(call mode_opt,$<) -MMD -MP -c -o $@ $<
	$(call quick_unmark,$*)

define program_rule
$(BIN)/$(1): $$(call obj_of,$$($(1)_MAIN) $$($(1)_LINK))
	@mkdir -p $$(@D)
	$$(call say,LINK,$$@)
	$$(Q)$$(CC) -o $$@ $$^ $$(if $$(filter asan,$$(MODE)),$$(TEST_LD)) $$(PROGRAM_LDFLAGS) $$(LDFLAGS_ALL) $$($(1)_LIBS)
endef
$(foreach p,$(PROGRAMS),$(eval $(call program_rule,$(p))))

# Everything without main(), for tests and fuzz targets: the linker takes what each uses.
$(OBJ)/libhelm-all.a: $(ALL_OBJ)
	@mkdir -p $(@D)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar qcs $@ $^

# The workers' part of it, for tests of what processes share: little enough to build once more for ThreadSanitizer.
$(OBJ)/libhelm-workers.a: $(filter-out $(addprefix $(OBJ)/,client/% daemon/% tools/% gen/client/% gen/proto/helm% tests/proof/%),$(ALL_OBJ))
	@mkdir -p $(@D)
	$(call say,AR,$@)
	$(Q)rm -f $@ && ar qcs $@ $^

include tests/sanitize.mk worker-gpu/cuda.mk client/libhelm.mk tests/tests.mk

# ---- everything else ----------------------------------------------------------------------------------------

.PHONY: demo bench dist install uninstall clean check-style format help
# no more than the demo needs: CUDA code takes minutes to compile
DEMO_PROGRAMS := helm-cli helm-profile helm-worker-cpu helmd
demo: SHELL := /bin/bash
demo:
	@tools/setup.sh build
	@set -o pipefail; steps=$$($(MAKE_MODE) -n $(DEMO_PROGRAMS:%=$(BIN)/%) 2>/dev/null | grep -c '^  [A-Z]' || true); \
	  $(MAKE_MODE) -j$(shell nproc) $(DEMO_PROGRAMS:%=$(BIN)/%) 2>&1 | tools/demo/build-progress.sh $$steps $(BUILD).log || \
	  { tail -n 30 $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log
	@tools/demo/demo.sh $(BIN)

bench: programs
	$(BIN)/helm-bench-kernels
	tools/bench/cells.py --bin $(BIN) --out $(BUILD)/bench --set cpu --device cpu

dist: $(DIST)
$(DIST): programs $(CUDA_PROGRAMS:%=$(BIN)/%) README.md CHANGELOG.md tools/dist.sh $(wildcard tools/models/demo/* profiles/*.json)
	$(if $(CUDA_QUICK),HELM_DIST_LEVEL=1 )tools/dist.sh $(BIN) $(VERSION) $@

# Debian packages into $(BUILD)/deb: of this release, or of SUITE in a fresh root. The tests work in fresh roots of SUITES (as root, with
# debootstrap and network; tools/package/root.sh); test-readme as HOW (root, user), quiet or busy BESIDE, README_TEST=0 without `make test`.
export README_TEST
SUITES ?= $(or $(SUITE),bookworm trixie noble)
HOW ?= root
BESIDE ?= quiet
.PHONY: deb test-deb test-image test-readme test-compilers
deb:
	ROOTS=$(BUILD)/roots tools/package/deb.sh $(BUILD)/deb$(SUITE:%=/%) $(SUITE)
test-deb:
	tests/package/test-deb.sh $(BUILD)/roots $(SUITES)
test-image:
	tests/package/test-image.sh $(BUILD)/image
# The programs compiled by other compilers with WERROR=1: COMPILERS="testing:gcc trixie:gcc-13 trixie:clang noble:gcc".
test-compilers:
	tests/package/test-compilers.sh $(BUILD)/roots $(COMPILERS)
test-readme:
	tests/package/test-readme.sh $(BUILD)/roots '$(SUITES)' '$(HOW)' '$(BESIDE)'

STYLE_SRC = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh')
check-style:
	@clang-format --dry-run -Werror $(STYLE_SRC)
	@tools/check-style.sh $(STYLE_SRC)
	@tools/check-includes.py
	@! find tests/process -name 'test_*' ! -perm -100 | grep . || { echo 'tests that cannot be run as programs' >&2; exit 1; }
	@tools/check-parameters.py
	@tools/check-links.py
	@tools/models-table.py
format:
	@clang-format -i $(STYLE_SRC)

install uninstall: programs lib
	tools/install.sh $@ $(BIN) $(LIB) '$(DESTDIR)' $(PREFIX) $(PROGRAMS)

clean:
	rm -rf $(BUILD)

help:
	@echo "make setup         install the packages that a build needs (make demo and make test do so themselves)"
	@echo "make demo          build, start helmd, stream text from the demo model (installs missing packages)"
	@echo "make test          build and run every test (installs missing packages; GPU code for $(CUDA_TEST_ARCH))"
	@echo "make test-full     the same, every test in both builds"
	@echo "make all           programs into $(BIN), libhelm into $(BUILD)/lib   [MODE=release|debug|asan|ubsan|tsan] [CUDA_ARCH='$(CUDA_ARCH)']"
	@echo "make test-prometheus  a real Prometheus scrapes the gateway (installs it)"
	@echo "make bench         achieved speed, limit and ratio on this machine"
	@echo "make fuzz          every fuzz target, FUZZ_SECONDS (60) each, with clang"
	@echo "make dist          relocatable tarball $(DIST)"
	@echo "make deb           packages in $(BUILD)/deb for this release of Debian or Ubuntu   [SUITE=bookworm|trixie|noble: in a fresh root of it]"
	@echo "make test-deb      built and tried in fresh roots   [SUITES='bookworm trixie noble']"
	@echo "make test-image    the Containerfile, built and tried      make test-deploy: nginx, HAProxy, Kubernetes (docs/deploy.md)"
	@echo "make test-compilers  the programs by newer compilers   [COMPILERS='testing:gcc trixie:clang']"
	@echo "make test-readme   README's commands, word by word in fresh roots   [SUITES=...] [HOW='root user'] [BESIDE='quiet busy'] [README_TEST=0] [HELM_CPU=...]"
	@echo "make install       PREFIX=$(PREFIX) DESTDIR=$(DESTDIR), with manual pages and shells' completion      make uninstall"
	@echo "make check-style   formatting, file sizes, header comments, links      make format, make clean"

-include $(shell find $(OBJ) -name '*.d' 2>/dev/null)
