# Tests: what `make test` and its parts build and run, fuzzing. Read by the Makefile.

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
TEST_ALONE := tests/gpu/* tests/ipc/* tests/unit/common/shared/test_doorbell $(addprefix tests/unit/daemon/planner/test_,planner refusals) \
  tests/unit/common/cpu/* tests/unit/worker-cpu/* tests/unit/worker-gpu/device/test_device*
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
SCRIPT_ALONE := process/test_bench.py process/test_helm_profile.py process/test_helm_profile_formats.py
# Instrumented, what helm-profile does is test_helm_profile's; rates by format are measured there by the same loops.
# What is installed is the release build.
SCRIPT_NOT_SANITIZED := tests/process/test_helm_profile_formats.py tests/process/test_install.py
test-processes: programs $(TEST_TOOL_BIN) $(PYPROTO)/helm_pb2.py
	HELM_BIN=$(abspath $(BIN)) HELM_TEST_BIN=$(abspath $(OBJ))/tests/process HELM_PYPROTO=$(abspath $(PYPROTO)) \
	  $(RUN) $(if $(filter release debug,$(MODE)),--jobs $(shell nproc) $(SCRIPT_ALONE:%=--alone '%')) --label "$(MODE) " \
	  --timeout 300 $(if $(filter release debug,$(MODE)),$(TEST_SCRIPT),$(filter-out $(SCRIPT_NOT_SANITIZED),$(TEST_SCRIPT)))
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
