# How sanitized builds and tests are compiled, so that `make test` takes little time: what is instrumented, how, and which
# objects come from the release build; and kernels that no test can run here. Read by the Makefile, after the sources' lists.

# Kernels. With -O3, or with registers given out loop by loop, sanitized kernels take two to three times as long to compile and run no
# faster. MODE=asan leaves out two kinds of checks in them. The parts of -fsanitize=undefined listed here repeat AddressSanitizer at
# every access (MODE=ubsan has all parts). Scopes are not watched: otherwise each step would look up a tile's sums, at known places of
# the frame, in the shadow. Without these two, -O2 keeps the sums in registers, and pays.
LESS_asan := -fno-sanitize-address-use-after-scope -fno-sanitize=null$(comma)object-size$(comma)pointer-overflow
CALLS_asan := --param asan-instrumentation-with-call-threshold=0
KERNEL_OPT_asan := -O2 -fira-region=one $(LESS_asan)
KERNEL_OPT_ubsan := -O1 -fira-region=one
KERNEL_OPT_tsan := $(KERNEL_OPT_ubsan)
ifneq ($(KERNEL_OPT_$(MODE)),)
KERNEL_OPT := $(KERNEL_OPT_$(MODE)) -ffp-contract=off
endif
# The kernels with most instances. In MODE=asan out-of-line checks halve the time to compile int8's, and attention with AVX-512; they cost
# less than that when the tests run. Not so gemm, blocks and attention of AVX2: a check of 32 bytes by a call is so slow that the golden
# tests of blocks took three times as long, and a profile's attention ten times.
MANY_INSTANCES := $(addprefix common/cpu/kernels/,int8_gemm_avx2 int8_gemm_avx512vnni int8_gemv_avx2 int8_gemv_avx512vnni blocks_avx2)
CALLED_asan := $(addprefix common/cpu/kernels/,attention_avx512 attention_avx512bf16 \
  attention_avx512bf16vbmi2 attention_amxint8 attention_amxvbmi2 attention_parts_amxvbmi2) $(filter-out %/blocks_avx2,$(MANY_INSTANCES))

# Objects that a sanitized build takes from the release build; FULL=1 instruments all of them.
# MODE=asan: kernels whose loops the AVX2 kernels share, which are instrumented (in the tests of products an unreadable page follows
# what both read and write); and kernels with instructions that this processor lacks, which no test can run here. The longest to
# compile come first, since `make test` compiles them before everything else (release-for-asan).
FULL ?=
RELEASE_OF_asan := $(addprefix common/cpu/kernels/,int8_gemv_avx512vnni int8_gemm_avx512vnni \
  int8_gathers_avx512vnnivbmi2 int8_gemv_avx512vnnivbmi2 int8_gemm_avx512vnnivbmi2 grids_avx512vbmi2 grids_avx512bf16vbmi2 gemm_avx512 gemm_avx512bf16 blocks_avx512 \
  attention_avx512 attention_avx512bf16vbmi2 attention_amxvbmi2 gemv_avx512 q8_0_avx512) \
  $(addprefix common/formats/,quantize_ref quantize_avx512)
# gcc's names of instructions and /proc/cpuinfo's differ in '-' and '_' alone. HELM_CPU is for tests, so it counts here too.
CPU_HAS := $(subst _,,$(if $(HELM_CPU),$(shell PYTHONPATH=tests/process /usr/bin/python3 -c 'import processor; print(*processor.flags())'),\
  $(shell sed -n '/^flags/{p;q}' /proc/cpuinfo)))
isa_lacks = $(if $(CPU_HAS),$(filter-out $(CPU_HAS),$(subst -,,$(patsubst -m%,%,$(filter-out -mprefer-%,$(call kernel_isa,$(1)))))))
NOT_RUN_HERE := $(basename $(foreach k,$(KERNEL_SRC) common/formats/quantize_avx512.c,$(if $(call isa_lacks,$(k)),$(k))))
RELEASE_OF_asan += $(filter-out $(RELEASE_OF_asan),$(NOT_RUN_HERE))
# MODE=tsan: it instruments the AVX2 kernels of bf16 weights, which the tests of threads run, and not what reads files and formats.
RELEASE_OF_tsan := $(MANY_INSTANCES) $(addprefix common/cpu/kernels/,blocks_ref int8_ref gemm_openblas) \
  $(filter-out $(MANY_INSTANCES),$(patsubst %.c,%,$(wildcard common/cpu/kernels/*_avx512*.c common/cpu/kernels/*_amx*.c common/model/*.c common/formats/*.c)))
RELEASE_asan := $(if $(FULL),,$(RELEASE_OF_asan))
RELEASE_tsan := $(RELEASE_OF_tsan)

# MODE=release: `make test` (QUICK_KERNELS=1) compiles NOT_RUN_HERE at -Og, in a third of the time, unless they lie there optimised. A file
# .quick beside an object says that it is slow. Every other command compiles such objects anew, so that none is installed or shipped.
QUICK_KERNELS ?=
ifeq ($(MODE),release)
QUICK_MADE := $(patsubst $(OBJ)/%.quick,%,$(wildcard $(OBJ)/common/cpu/kernels/*.quick $(OBJ)/common/formats/*.quick))
QUICK_NOW := $(if $(QUICK_KERNELS),$(foreach k,$(NOT_RUN_HERE),$(if $(or $(filter $(k),$(QUICK_MADE)),$(if $(wildcard $(OBJ)/$(k).o),,absent)),$(k))))
QUICK_ANEW := $(filter-out $(QUICK_NOW),$(QUICK_MADE))
$(QUICK_NOW:%=$(OBJ)/%.o): KERNEL_OPT += -Og
.PHONY: slow-until-now
$(QUICK_ANEW:%=$(OBJ)/%.o): slow-until-now
quick_mark = $(if $(filter $(1),$(QUICK_NOW)),@touch $(OBJ)/$(1).quick)
quick_unmark = $(if $(filter $(1),$(QUICK_ANEW)),@rm $(OBJ)/$(1).quick)
endif

ifeq ($(MODE),asan)
$(patsubst %,$(OBJ)/%.o,$(CALLED_asan)): KERNEL_OPT += $(CALLS_asan)
# -O1 takes two thirds of -O2's time to compile these, and they run as long
$(patsubst %,$(OBJ)/%.o,$(MANY_INSTANCES)): KERNEL_OPT += -O1
# compiled anew when FULL or the processor says otherwise than last time
SANITIZED_STAMP := $(OBJ)/sanitized-kernels
SANITIZED_WANT := $(if $(FULL),all,all but $(RELEASE_OF_asan))
ifneq ($(shell cat $(SANITIZED_STAMP) 2>/dev/null),$(SANITIZED_WANT))
.PHONY: $(SANITIZED_STAMP)
endif
$(SANITIZED_STAMP):
	@mkdir -p $(@D)
	@echo $(SANITIZED_WANT) >$@
$(patsubst %.c,$(OBJ)/%.o,$(filter-out %_ref.c,$(KERNEL_SRC))) $(RELEASE_OF_asan:%=$(OBJ)/%.o): $(SANITIZED_STAMP)
endif
ifneq ($(RELEASE_$(MODE)),)
.PHONY: release-objects
release-objects:
	$(Q)$(MAKE) -s --no-print-directory BUILD=$(BUILD) MODE=release $(RELEASE_$(MODE):%=$(BUILD)/release/%.o)
$(RELEASE_$(MODE):%=$(OBJ)/%.o): $(OBJ)/%.o: release-objects
	$(folder)
	$(Q)cmp -s $(BUILD)/release/$*.o $@ || cp $(BUILD)/release/$*.o $@
endif

# Tests: at -O0 they compile in a quarter of the time, and most run once. Kernels' tests are not among them, since they compute references.
# The checks of MODE=asan in calls take another tenth off.
test_opt = $(if $(filter release asan,$(MODE)),$(if $(filter tests/unit/% tests/golden/test_%,$(1)),-O0 -U_FORTIFY_SOURCE $(CALLS_$(MODE))))
# MODE=asan: sources that wait for others most of the time compile at -O0, in 0.6 of the time. The planner's search and prices run in three
# quarters of the time without the checks that kernels go without. Workers at -O0 save 9 s to compile; their golden tests run as much longer.
QUICK_asan := $(filter-out daemon/planner/% client/text/%,$(filter daemon/% client/% tools/%,$(MAIN_SRC) $(ALL_SRC)))
PLANNER_asan := $(filter daemon/planner/cost/% daemon/planner/search/%,$(DAEMON_SRC))
mode_opt = $(if $(filter $(QUICK_$(MODE)),$(1)),-O0 $(CALLS_$(MODE))) $(if $(filter $(PLANNER_$(MODE)),$(1)),$(LESS_asan))
