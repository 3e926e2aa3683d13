# Sources and program of daemon/.

DAEMON_SRC := \
  daemon/children/accelerator.c \
  daemon/children/child_run.c \
  daemon/children/child_words.c \
  daemon/children/end_request.c \
  daemon/children/keeper.c \
  daemon/children/loaded.c \
  daemon/children/profiling.c \
  daemon/children/rundir.c \
  daemon/children/worker_process.c \
  daemon/children/workers.c \
  daemon/children/workers_watch.c \
  daemon/clients/client_socket.c \
  daemon/clients/connection.c \
  daemon/clients/curve.c \
  daemon/clients/curve_keys.c \
  daemon/clients/endpoint.c \
  daemon/clients/peers.c \
  daemon/clients/serve.c \
  daemon/clients/serve_plan.c \
  daemon/clients/serve_session.c \
  daemon/clients/serve_status.c \
  daemon/clients/zmtp.c \
  daemon/observe/drift.c \
  daemon/observe/forecast.c \
  daemon/observe/metrics.c \
  daemon/observe/observe.c \
  daemon/planner/activations/choice.c \
  daemon/planner/activations/decision.c \
  daemon/planner/activations/verdict.c \
  daemon/planner/candidate.c \
  daemon/planner/chunks.c \
  daemon/planner/cost/analyse.c \
  daemon/planner/cost/attention.c \
  daemon/planner/cost/cost.c \
  daemon/planner/cost/ends.c \
  daemon/planner/cost/experts.c \
  daemon/planner/cost/measured.c \
  daemon/planner/cost/plan.c \
  daemon/planner/cost/rates.c \
  daemon/planner/cost/schedule.c \
  daemon/planner/cost/simulate.c \
  daemon/planner/cost/spent.c \
  daemon/planner/cpu_alone.c \
  daemon/planner/experts.c \
  daemon/planner/experts_moves.c \
  daemon/planner/experts_shared.c \
  daemon/planner/experts_slots.c \
  daemon/planner/forced.c \
  daemon/planner/formats.c \
  daemon/planner/histogram.c \
  daemon/planner/ideas.c \
  daemon/planner/invariant.c \
  daemon/planner/known.c \
  daemon/planner/log.c \
  daemon/planner/memory/ledger.c \
  daemon/planner/memory/memory.c \
  daemon/planner/memory/packed_sample.c \
  daemon/planner/memory/states.c \
  daemon/planner/packed_look.c \
  daemon/planner/packing.c \
  daemon/planner/page_size.c \
  daemon/planner/planner.c \
  daemon/planner/prefill.c \
  daemon/planner/profile/hardware.c \
  daemon/planner/profile/json.c \
  daemon/planner/profile/now.c \
  daemon/planner/profile/profile.c \
  daemon/planner/profile/programs.c \
  daemon/planner/profile/programs_json.c \
  daemon/planner/refusal.c \
  daemon/planner/search/bound.c \
  daemon/planner/search/counts.c \
  daemon/planner/search/exact.c \
  daemon/planner/search/mixed.c \
  daemon/planner/search/order.c \
  daemon/planner/search/prefill.c \
  daemon/planner/search/search.c \
  daemon/planner/search/space.c \
  daemon/planner/strategies.c \
  daemon/planner/tiers.c \
  daemon/planner/tiers_score.c \
  daemon/planner/unpacking.c \
  daemon/start/config.c \
  daemon/start/loop.c \
  daemon/start/machine.c \
  daemon/start/planning.c \
  daemon/start/serving.c \
  daemon/steps/admission.c \
  daemon/steps/batcher.c \
  daemon/steps/batcher_again.c \
  daemon/steps/batcher_moves.c \
  daemon/steps/batcher_requests.c \
  daemon/steps/batcher_results.c \
  daemon/steps/batcher_workers.c \
  daemon/steps/check.c \
  daemon/steps/divergence.c \
  daemon/steps/kv_pages.c \
  daemon/steps/kv_places.c \
  daemon/steps/pace.c \
  daemon/steps/prefix.c \
  daemon/steps/prefix_index.c \
  daemon/steps/request.c \
  daemon/steps/scheduler.c \
  daemon/steps/sequence.c \
  daemon/steps/session_origin.c \
  daemon/steps/session_page.c \
  daemon/steps/session_windows.c \
  daemon/steps/sessions.c \
  daemon/steps/snapshots.c \
  daemon/steps/tiers.c \
  daemon/steps/windows.c

# helm-plan: plans explained and drawn
EXPLAIN_SRC := \
  daemon/planner/report/curve.c \
  daemon/planner/report/explain.c \
  daemon/planner/report/json.c \
  daemon/planner/report/plot.c \
  daemon/planner/report/plot_curve.c \
  daemon/planner/report/svg.c \
  daemon/planner/report/text.c

helmd_MAIN := daemon/main.c
helmd_LINK := $(COMMON_SRC) $(MODEL_SRC) $(DAEMON_SRC) $(PROTO_SRC)
helmd_LIBS := -lzmq -lsodium -lprotobuf-c -ljansson -lsystemd -linih -lm
