# Tests: what `make test` and its parts build and run, fuzzing. Read by the Makefile.

TEST_SRC := $(shell find tests -name 'test_*.c' | sort)
TEST_BIN := $(TEST_SRC:%.c=$(OBJ)/%)
TEST_TOOL_SRC := $(wildcard tests/process/fake_*.c)
TEST_TOOL_BIN := $(TEST_TOOL_SRC:%.c=$(OBJ)/%) $(OBJ)/tests/process/slow_disk.so
TEST_SCRIPT := $(sort $(wildcard tests/process/test_*.py))
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_REPLAY := $(FUZZ_SRC:%.c=$(OBJ)/%_replay)
FUZZ_BIN := $(FUZZ_SRC:%.c=$(OBJ)/%_fuzzer)
PYPROTO := $(OBJ)/pyproto
DIST := $(BUILD)/helm-$(VERSION)-x86_64.tar.gz
MAKE_MODE = $(MAKE) --no-print-directory BUILD=$(BUILD)

# Each test as tests/run.py takes it: MODE:PROGRAM. In $(1): the mode.
unit_tests = $(patsubst %,$(1):%,$(filter-out $(if $(FULL),,$(UNIT_ONLY_OTHER_$(1))),$(TEST_SRC:%.c=%)))
# Numbers of planned prices and sizes alone: their code test_packed_gpu, test_search and other golden tests run sanitized as well.
UNIT_ONLY_OTHER_asan := $(addprefix tests/unit/daemon/planner/test_,best packed_search) tests/golden/test_golden_room
# Sanitized alone: what takes values and gives values, whose optimised code the release build's programs run in the process tests.
# Not those that hold times to bounds or try fewer cases sanitized.
UNIT_BOTH := $(addprefix tests/unit/,$(addprefix daemon/planner/test_,attempt best packed_cpu packed_gpu packed_search planner refusals search \
  search_prefill simulate tiers) daemon/steps/test_request common/shared/test_doorbell common/cpu/% common/sampling/% common/formats/% worker-gpu/device/test_device% \
  worker-gpu/weights/% worker-cpu/program/test_assist client/text/grammar/test_grammar_speed client/text/grammar/test_grammar_masks)
UNIT_ONLY_OTHER_release := $(filter-out $(UNIT_BOTH),$(filter tests/unit/%,$(TEST_SRC:%.c=%)))
corpus_tests = $(foreach f,$(FUZZ_SRC:tests/fuzz/fuzz_%.c=%),'$(1):tests/fuzz/fuzz_$(f)_replay tests/fuzz/corpus/$(f)')
# what two processes share, both sides as threads
thread_tests = $(filter %_threads,$(unit_tests))
# but those that another calls: test_helm_profile.py, unless instrumented, since rates by format are measured by the same loops
SCRIPT_CALLED := tests/process/test_helm_profile_formats.py
# test_gateway.py does to the gateway all that npm's packages and the page do, sanitized too. `make install` installs the
# release build. Forecasts and goldens are arithmetic of plans, kernels and commands that other tests sanitize.
SCRIPT_NOT_SANITIZED := setup against_transformers gateway_agents gateway_neighbours gateway_npm gateway_page golden_cli habits helm_plan_forecasts helmd_slow_disk install python runner
# `make test` runs a script in the build that can find more; `make test-full`, with FULL=1, in both. Sanitized alone: what commands, the
# gateway and the daemon do with whatever is said to them, whose time is spent waiting. The same programs of the release
# build serve those of ONLY_release, of both, and of SCRIPT_NOT_SANITIZED.
ONLY_asan := cli cli_chat cli_daemons cli_gguf client gateway gateway_doors gateway_families gateway_guards gateway_places gateway_rerank gateway_responses gateway_scripted \
  gateway_users helmd helmd_changed helmd_disk_layers helmd_edges helmd_experts helmd_hostile helmd_plan helmd_prefix helmd_profile helmd_sessions helmd_users pull
# Arithmetic of workers and files: instrumented, the golden tests run the same workers, and tests/unit and the corpora read the
# same files and grammars. Texts of help, which test_cli.py prints sanitized too, and their width.
ONLY_release := structured mixed_types cli_output
# The rest runs in both: deaths and hand-overs in real time, and everything else of the release build. Sanitized, the tests
# of these scripts (words of their names, as on the scripts' command lines) that reach what no other sanitized test does.
PARTS_asan_activations := int8_as_asked auto_beside files_that_are_no
PARTS_asan_architectures := longrope lack
PARTS_asan_device_programs := no_room refuses
PARTS_asan_families := lack skipped windows_of written configurations
PARTS_asan_gemma := every_placement_of_gemma4 experts_of gemma4s_experts lack_v session refused
PARTS_asan_gemma_e := every_placement missing not_computed tear the_table session
PARTS_asan_helm_plan := every_strategy written_plan the_table more_vram usage this_machine headers weights_that_are takes_what
PARTS_asan_helmd_chats := marks_are full never several
PARTS_asan_helmd_devices := each_device cannot
PARTS_asan_helmd_draft := trained each_length killed hung outlives ended_leaves vocabularies does_not_fit stays
PARTS_asan_helmd_hybrids := snapshots written
PARTS_asan_helmd_invariant := two_tiers next_turn come_back refused
PARTS_asan_helmd_mtp := believed experts_in planner_places each_length many_sequences pages_that preempted every_form ledger only_if auto_answers
PARTS_asan_helmd_phases := killed
PARTS_asan_helmd_second := different cannot chunks
PARTS_asan_helmd_split := every_plan streamed_weights either_worker refused_before sigterm not_there
PARTS_asan_helmd_states := begin_at mix_no preempted session tiers least_used invariant refused
PARTS_asan_helmd_tiers := every_way far_beyond come_back either_worker not_believed prefixes run_short whatever real_workers_that
PARTS_asan_helmd_windows := several_windows prompts left preempted session invariant ledger
PARTS_asan_helmd_speculation := several end_where pages_of workers_death refused a_hybrids gateways
PARTS_asan_latent := every_type two_tiers session prefix not_computed
PARTS_asan_scaled := fp8_of_blocks wrong
PARTS_asan_quantize := every_mixture tokens_and other_tokenizers prices importance wrong
PARTS_asan_weights := tied_head
PARTS_release_device_programs := each_kind cpus_are_added no_room priced invariance
PARTS_release_helmd_two_workers := killed failing 64_requests keeper
script = tests/process/test_$(1).py
ONLY_OTHER_release := $(ONLY_asan)
ONLY_OTHER_asan := $(ONLY_release)
scripts = $(filter-out $(SCRIPT_CALLED) $(foreach s,$(if $(filter release debug,$(1)),,$(SCRIPT_NOT_SANITIZED)) \
  $(if $(FULL),,$(ONLY_OTHER_$(1))),$(call script,$(s))),$(TEST_SCRIPT))
script_tests = $(foreach s,$(call scripts,$(1)),'$(strip $(1):$(s) $(if $(FULL),,$(PARTS_$(1)_$(s:tests/process/test_%.py=%))))')
emulated_tests = $(foreach groups,$(EMULATED_GROUPS:%=only=%) except=$(subst $(space),$(comma),$(EMULATED_GROUPS)),\
  '$(1):helm-test-gpu-emulated --$(if $(FULL),small,few) --seed $(SEED) --$(subst =, ,$(groups))')
dist_test := 'release:tests/process/test_dist.sh $(DIST)'

# Those that hold times to bounds or compare what they measured run alone, unless sanitized: then nothing does.
TEST_ALONE := $(addprefix [rd]e*:tests/,gpu/* ipc/test_stream_threads unit/common/shared/test_doorbell unit/common/cpu/* \
  unit/worker-gpu/device/test_device* unit/client/text/grammar/test_grammar_speed process/test_helm_profile.py)
# The longest first, so that none is what everything waits for in the end. tests/run.py lists them when it is through.
TEST_LONGEST := release:tests/golden/test_golden_stream *:tests/process/test_helmd_chaos.py $(addprefix asan:tests/process/test_,cli.py cli_daemons.py gateway.py) \
  release:tests/process/test_helmd_split.py asan:tests/process/test_helm_profile.py $(addprefix asan:tests/process/test_,helmd.py \
  helmd_hostile.py helmd_tiers.py activations.py) tsan:tests/ipc/test_split_threads release:tests/process/test_helmd_invariant.py \
  *:tests/golden/test_golden_split asan:tests/golden/test_golden_stream *:tests/process/test_helmd_[cfhimsw]* release:tests/golden/test_golden_home \
  release:helm-test-gpu-emulated release:tests/golden/test_golden_cpu asan:tests/golden/test_golden_* asan:tests/kernels/* \
  release:tests/golden/* release:tests/unit/daemon/planner/test_search
# Daemons, workers and clients wait for each other, and tests of them for limits of time; devices for copies that are held to a
# speed. Not those that measure or plan.
TEST_BUSY := $(addprefix tests/process/test_,helm_plan.py helm_plan_forecasts.py helm_profile.py)
TEST_WAITING := $(addprefix *:,$(filter-out $(TEST_BUSY),$(TEST_SCRIPT))) \
  $(addprefix *:tests/,ipc/test_stream_threads unit/common/shared/test_doorbell unit/worker-gpu/device/test_device* gpu/test_device_queues)
RUN = tests/run.py --build $(BUILD) --log-dir $(BUILD)/logs --jobs $(shell nproc).8 \
  $(TEST_ALONE:%=--alone '%') $(TEST_LONGEST:%=--longest '%') $(TEST_WAITING:%=--waiting '%')

.PHONY: tests test-units test-fuzz-corpora test-processes test-threads test-dist
tests: $(filter-out $(if $(FULL),,$(UNIT_ONLY_OTHER_$(MODE):%=$(OBJ)/%)),$(TEST_BIN)) $(TEST_TOOL_BIN)
# A test is linked in half the time by gold, which is part of binutils. The usual linker makes installed programs.
TEST_LD := $(if $(shell command -v ld.gold),$(if $(filter fuzz,$(MODE)),,-fuse-ld=gold))
$(OBJ)/tests/process/%.so: tests/process/%.c
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) -shared -fPIC -O2 -D_GNU_SOURCE -std=gnu11 -Wall -Wextra $(if $(WERROR),-Werror) -o $@ $<
$(OBJ)/tests/fuzz/%_replay: $(OBJ)/tests/fuzz/%.o $(OBJ)/tests/fuzz/replay.o $(OBJ)/libhelm-all.a
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $^ $(TEST_LD) $(PROGRAM_LDFLAGS) $(LDFLAGS_ALL) $(ALL_LIBS)
$(OBJ)/tests/fuzz/%_fuzzer: $(OBJ)/tests/fuzz/%.o $(OBJ)/libhelm-all.a
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS_ALL) $(ALL_LIBS)
$(OBJ)/tests/ipc/%: $(OBJ)/tests/ipc/%.o $(OBJ)/libhelm-workers.a
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $^ $(TEST_LD) $(PROGRAM_LDFLAGS) $(LDFLAGS_ALL) -lcmocka $(ALL_LIBS)
$(OBJ)/tests/%: $(OBJ)/tests/%.o $(OBJ)/libhelm-all.a
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $^ $(TEST_LD) $(PROGRAM_LDFLAGS) $(LDFLAGS_ALL) -lcmocka $(ALL_LIBS)
$(PYPROTO)/helm_pb2.py: proto/helm.proto proto/control.proto
	@mkdir -p $(@D)
	$(Q)protoc --python_out=$(@D) -Iproto helm.proto control.proto

# A part of the tests, of one MODE.
test-units: $(TEST_BIN)
	$(Q)$(RUN) $(TEST_SRC:%.c=$(MODE):%)
test-fuzz-corpora: $(FUZZ_REPLAY)
	$(Q)$(RUN) $(call corpus_tests,$(MODE))
test-threads: $(filter %_threads,$(TEST_BIN))
	$(Q)$(RUN) $(call thread_tests,$(MODE))
test-processes: programs $(TEST_TOOL_BIN) $(PYPROTO)/helm_pb2.py
	$(Q)$(RUN) $(call script_tests,$(MODE))
test-dist: dist
	$(Q)$(RUN) $(dist_test)

# Against the release build, for as long as is stated; each says its seed, which SEED=N chooses.
.PHONY: chaos soak invariance
CHAOS_SECONDS ?= 600
GATEWAY_CHAOS_SECONDS ?= 150
SOAK_SECONDS ?= 1800
BY_HAND := HELM_BIN=$(abspath $(BUILD)/bin) HELM_PYPROTO=$(abspath $(PYPROTO)) HELM_TEST_BIN=$(abspath $(OBJ)/tests/process) nice -n 10 \
  /usr/bin/python3
chaos: $(BIN)/helmd $(BIN)/helm-gateway $(BIN)/helm-cli $(TEST_TOOL_BIN) $(PYPROTO)/helm_pb2.py
	@$(BY_HAND) tests/process/chaos.py $(CHAOS_SECONDS) $(if $(filter file undefined,$(origin SEED)),,$(SEED))
	@$(BY_HAND) tests/process/gateway_chaos.py $(GATEWAY_CHAOS_SECONDS) $(if $(filter file undefined,$(origin SEED)),,$(SEED))
soak: $(BIN)/helmd $(BIN)/helm-worker-cpu $(PYPROTO)/helm_pb2.py
	@$(BY_HAND) tests/process/soak.py $(SOAK_SECONDS) $(if $(filter file undefined,$(origin SEED)),,$(SEED))
# The same tokens and logprobs whatever else runs and whatever dies: SHAPE=NAME,... (tests/process/invariance.py), REQUESTS, KILLS.
SHAPE ?= all
REQUESTS ?= 2000
KILLS ?= 200
invariance: programs $(PYPROTO)/helm_pb2.py
	@$(BY_HAND) tests/process/invariance.py $(SHAPE) $(REQUESTS) $(KILLS) $(if $(filter file undefined,$(origin SEED)),,$(SEED))
# The long form of tests/process/test_structured.py: 200 schemas, 20 samples each.
.PHONY: test-structured
test-structured: programs $(PYPROTO)/helm_pb2.py
	HELM_STRUCTURED=long HELM_BIN=$(abspath $(BIN)) HELM_PYPROTO=$(abspath $(PYPROTO)) /usr/bin/python3 tests/process/test_structured.py

# Proxies before the gateway, and the manifest: what docs/deploy.md says. Long forms, with what they need.
.PHONY: test-deploy
test-deploy: programs $(PYPROTO)/helm_pb2.py
	@tools/setup.sh deploy
	@for t in tests/deploy/test_*.py; do echo "== $$t"; $(BY_HAND) $$t || exit 1; done

# The questions of llama.cpp's server tests: docs/llama-server-tests.md.
.PHONY: test-llama-server
test-llama-server: programs $(PYPROTO)/helm_pb2.py
	@$(BY_HAND) tests/peers/test_llama_server.py

# A real Prometheus scrapes the gateway, and is asked what the dashboard asks.
.PHONY: test-prometheus
test-prometheus: programs $(PYPROTO)/helm_pb2.py
	@tools/setup.sh prometheus
	HELM_BIN=$(abspath $(BIN)) HELM_PYPROTO=$(abspath $(PYPROTO)) /usr/bin/python3 tests/process/prometheus.py

.PHONY: test check
test:
	@tools/setup.sh test
	@$(MAKE_MODE) $(CUDA_FOR_TEST) $(if $(FULL),,QUICK_KERNELS=1) -j$(shell nproc) $(TEST_MODES:%=build-%)
	@$(MAKE_MODE) $(CUDA_FOR_TEST) check
# The same, and every process test in both builds, in full.
.PHONY: test-full
test-full:
	@HELM_TEST_FULL=1 $(MAKE_MODE) FULL=1 test
# All that is tested, in every mode at once and what takes longest first, so that no processor waits for another's last file.
TEST_MODES := asan release tsan
.PHONY: $(TEST_MODES:%=build-%) $(TEST_MODES:%=test-programs-%)
$(TEST_MODES:%=build-%): build-%:
	@$(MAKE) --no-print-directory BUILD=$(BUILD) MODE=$* test-programs-$*
SLOW_OBJ := $(call obj_of,$(KERNEL_SRC))
RUN_BY_TESTS := tests programs $(if $(filter asan,$(MODE))$(FULL),$(FUZZ_REPLAY)) $(PYPROTO)/helm_pb2.py
test-programs-asan: $(SLOW_OBJ) $(RUN_BY_TESTS)
test-programs-release: $(if $(CUDA_DEVICE),$(CUDA_KERNEL_OBJ)) $(CUDA_EMULATED_OBJ) $(SLOW_OBJ) \
  $(OBJ)/helm-test-gpu-emulated all $(RUN_BY_TESTS) dist
test-programs-tsan: $(SLOW_OBJ) $(filter $(OBJ)/tests/ipc/%_threads,$(TEST_BIN))
# of which it takes objects; of those that asan takes none is compiled by both at once
build-tsan: build-release
build-asan build-release: $(if $(FULL),,release-for-asan)
.PHONY: release-for-asan
release-for-asan:
	@$(MAKE) --no-print-directory BUILD=$(BUILD) MODE=release $(RELEASE_OF_asan:%=$(BUILD)/release/%.o)
# everything `make test` runs, in one pool; the closing line sums it up
check:
	@rm -rf $(BUILD)/logs
	@$(RUN) $(foreach mode,asan release,$(call script_tests,$(mode)) $(call unit_tests,$(mode))) \
	  $(call corpus_tests,asan) $(if $(FULL),$(call corpus_tests,release)) \
	  $(call thread_tests,tsan) $(call emulated_tests,release) $(dist_test)

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
