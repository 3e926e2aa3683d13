# Sources of client/: libhelm, helm-cli and helm-gateway.

# Shared by helm-cli, helm-bench and helm-gateway: sessions with a daemon, output, signals, sampling options.
CLIENT_SHARED_SRC := \
  client/shared/daemon_metrics.c \
  client/shared/exposition.c \
  client/shared/output.c \
  client/shared/private_daemon.c \
  client/shared/sampling.c \
  client/shared/session.c \
  client/shared/signals.c

# libhelm: connection, tokenizer, chat template. Knows no model but for the keys of GGUF files, no arena, no daemon.
LIBHELM_SRC := \
  client/connection/connection.c \
  client/connection/constraint.c \
  client/connection/endpoint.c \
  client/connection/generate.c \
  client/connection/mask_thread.c \
  client/connection/query.c \
  client/connection/trust.c \
  client/text/answer/answer.c \
  client/text/answer/call_head.c \
  client/text/answer/calls.c \
  client/text/answer/ends.c \
  client/text/answer/harmony.c \
  client/text/answer/json_copy.c \
  client/text/answer/markers.c \
  client/text/answer/parameters.c \
  client/text/answer/syntax.c \
  client/text/answer/thinking.c \
  client/text/answer/value_type.c \
  client/text/chat.c \
  client/text/grammar/expr.c \
  client/text/grammar/gbnf.c \
  client/text/grammar/grammar.c \
  client/text/grammar/json_text.c \
  client/text/grammar/mask.c \
  client/text/grammar/nfa.c \
  client/text/grammar/nfa_check.c \
  client/text/grammar/regex.c \
  client/text/grammar/schema.c \
  client/text/grammar/schema_format.c \
  client/text/grammar/schema_keywords.c \
  client/text/grammar/schema_merge.c \
  client/text/grammar/schema_number.c \
  client/text/grammar/schema_object.c \
  client/text/grammar/schema_string.c \
  client/text/grammar/schema_values.c \
  client/text/grammar/slices.c \
  client/text/grammar/stacks.c \
  client/text/grammar/states.c \
  client/text/grammar/summary.c \
  client/text/grammar/tries.c \
  client/text/grammar/vocabulary.c \
  client/text/grammar/walk.c \
  client/text/grammar/words.c \
  client/text/growing_text.c \
  client/text/jinja/eval.c \
  client/text/jinja/exec.c \
  client/text/jinja/filters.c \
  client/text/jinja/filters_seq.c \
  client/text/jinja/format.c \
  client/text/jinja/functions.c \
  client/text/jinja/lex.c \
  client/text/jinja/methods.c \
  client/text/jinja/methods_text.c \
  client/text/jinja/ops.c \
  client/text/jinja/parse.c \
  client/text/jinja/parse_expr.c \
  client/text/jinja/run.c \
  client/text/jinja/tests.c \
  client/text/jinja/text.c \
  client/text/jinja/value.c \
  client/text/stop_text.c \
  client/text/tokenizer/added.c \
  client/text/tokenizer/bpe.c \
  client/text/tokenizer/config.c \
  client/text/tokenizer/decode.c \
  client/text/tokenizer/finder.c \
  client/text/tokenizer/gguf.c \
  client/text/tokenizer/gguf_kinds.c \
  client/text/tokenizer/json.c \
  client/text/tokenizer/load.c \
  client/text/tokenizer/marks.c \
  client/text/tokenizer/normalize.c \
  client/text/tokenizer/parse.c \
  client/text/tokenizer/pattern.c \
  client/text/tokenizer/pretokenize.c \
  client/text/tokenizer/regex.c \
  client/text/tokenizer/text.c \
  client/text/tokenizer/tokenizer.c \
  client/text/tokenizer/vocab.c \
  common/model/gguf.c \
  common/model/gguf_file.c \
  common/model/gguf_value.c

CLI_SRC := \
  client/cli/chat_commands.c \
  client/cli/chat_history.c \
  client/cli/command_chat.c \
  client/cli/command_experts.c \
  client/cli/command_generate.c \
  client/cli/command_metrics.c \
  client/cli/command_plan.c \
  client/cli/command_pull.c \
  client/cli/command_query.c \
  client/cli/command_run.c \
  client/cli/command_session.c \
  client/cli/command_text.c \
  client/cli/command_top.c \
  client/cli/grammar.c \
  client/cli/line_editor.c \
  client/cli/present.c \
  client/cli/stream.c \
  client/cli/top_screen.c \
  $(CLIENT_SHARED_SRC)

# Sessions, for helm-cli alone.
SESSION_SRC := \
  client/connection/session.c \
  client/session/file.c

# Downloads of models, for helm-cli alone.
HUB_SRC := \
  client/hub/checksum.c \
  client/hub/choose.c \
  client/hub/listing.c \
  client/hub/probe.c \
  client/hub/pull.c \
  client/hub/transfer.c

# helm-cli bench and helm-bench, with the loops that measure read bandwidth beside it
BENCH_SRC := \
  client/bench/bytes.c \
  client/bench/cells.c \
  client/bench/command_bench.c \
  client/bench/drive.c \
  client/bench/json.c \
  client/bench/prompt.c \
  client/bench/read_limit.c \
  client/bench/samples.c \
  client/bench/text.c

helm-cli_MAIN := client/cli/main.c
helm-cli_LINK := $(COMMON_SRC) $(MODEL_SRC) $(LIBHELM_SRC) $(CLI_SRC) $(SESSION_SRC) $(HUB_SRC) $(BENCH_SRC) $(READER_SRC) \
  $(GEN)/proto/helm.pb-c.c
helm-cli_LIBS := -lcurl -ledit -lnuma -lzmq -lsodium -lprotobuf-c -lpcre2-8 -ljansson -lutf8proc -lm

# helm-gateway: HTTP on libhelm.
GATEWAY_SRC := \
  client/gateway/access.c \
  client/gateway/arrivals.c \
  client/gateway/ask.c \
  client/gateway/ask_anthropic.c \
  client/gateway/ask_effort.c \
  client/gateway/ask_embed.c \
  client/gateway/ask_grammar.c \
  client/gateway/ask_history.c \
  client/gateway/ask_members.c \
  client/gateway/ask_messages.c \
  client/gateway/ask_ollama.c \
  client/gateway/ask_openai.c \
  client/gateway/ask_rerank.c \
  client/gateway/ask_responses.c \
  client/gateway/bodies.c \
  client/gateway/choice.c \
  client/gateway/embedding.c \
  client/gateway/exchange.c \
  client/gateway/framing.c \
  client/gateway/grammars.c \
  client/gateway/health.c \
  client/gateway/info.c \
  client/gateway/info_llama.c \
  client/gateway/info_responses.c \
  client/gateway/inquiry.c \
  client/gateway/jobs.c \
  client/gateway/listen.c \
  client/gateway/loop.c \
  client/gateway/metrics.c \
  client/gateway/page.c \
  client/gateway/peer.c \
  client/gateway/pooling.c \
  client/gateway/refusal.c \
  client/gateway/responses.c \
  client/gateway/routes.c \
  client/gateway/server.c \
  client/gateway/tool_arguments.c \
  client/gateway/tool_grammar.c \
  client/gateway/users.c \
  client/gateway/voice_anthropic.c \
  client/gateway/voice_embed.c \
  client/gateway/voice_ollama.c \
  client/gateway/voice_openai.c \
  client/gateway/voice_rerank.c \
  client/gateway/voice_responses.c \
  $(GEN)/client/gateway/page_files.c

# the page in the program: its files as they are, in a table (client/gateway/page.h)
PAGE_DIR := client/gateway/page
PAGE_FILES := index.html style.css text.css theme.js dom.mjs elements.mjs machine.mjs markdown.mjs page.mjs render.mjs store.mjs stream.mjs talk.mjs
PAGE_TYPE_html := text/html
PAGE_TYPE_css := text/css
PAGE_TYPE_js := text/javascript
PAGE_TYPE_mjs := text/javascript
$(GEN)/client/gateway/page_files.c: $(PAGE_FILES:%=$(PAGE_DIR)/%) client/sources.mk
	@mkdir -p $(@D)
	$(Q){ echo '#include "client/gateway/page.h"'; \
	  $(foreach f,$(PAGE_FILES),echo 'static const unsigned char $(subst .,_,$f)[] = {'; \
	    od -An -v -tx1 $(PAGE_DIR)/$f | sed 's/ \(..\)/0x\1,/g'; echo '};';) \
	  echo 'const struct page_file page_files[] = {'; \
	  $(foreach f,$(PAGE_FILES),echo '{"$f", "$(PAGE_TYPE_$(subst .,,$(suffix $f))); charset=utf-8", $(subst .,_,$f), sizeof $(subst .,_,$f)},';) \
	  echo '}; const unsigned page_file_count = sizeof page_files / sizeof *page_files;'; } >$@

helm-gateway_MAIN := client/gateway/main.c
helm-gateway_LINK := $(COMMON_SRC) $(MODEL_SRC) $(LIBHELM_SRC) $(GATEWAY_SRC) $(CLIENT_SHARED_SRC) $(GEN)/proto/helm.pb-c.c
helm-gateway_LIBS := -lmicrohttpd -lsystemd -lzmq -lsodium -lprotobuf-c -lpcre2-8 -ljansson -lutf8proc -lm
