/* Members of a body that no row of their dialect's table (ask_*.c) reads. The table here says which are
 * taken, because no value of theirs changes the answer, and which are refused, because some values would. See
 * ask.h.
 *
 * A member without a row is unknown. Ollama ignores unknown members, so paths under /api do. Other paths
 * refuse them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/gateway/ask.h"

#define CHATS     ASK_CHATS
#define TEXTS     (CHATS | ASK_COMPLETION)
#define OPENAI    (TEXTS | ASK_RESPONSE | ASK_EMBED)
#define ANTHROPIC ASK_ANTHROPIC
#define OLLAMA    (ASK_OLLAMA_CHAT | ASK_OLLAMA_GENERATE)
#define OLLAMAS   (OLLAMA | ASK_OLLAMA_EMBED)

enum member {
    HINT, /* no value changes the answer: taken, and named as ignored */
    ASKS, /* a value asks for what HELM lacks: refused */
};

/* A row of a member that is not read. */
struct member_row {
    const char *name; /* with the object that it is in: "options.mirostat" */
    unsigned kinds;
    enum member member;
    const char *means; /* JSON values, separated by '|', that ask for what happens anyway; NULL: none */
};

static const struct member_row rows[] = {
    /* notes of a client to itself or to a service */
    {"metadata", OPENAI | ANTHROPIC, HINT, NULL},
    {"client_metadata", OPENAI, HINT, NULL},
    {"safety_identifier", OPENAI, HINT, NULL},
    {"user_profile_id", ANTHROPIC, HINT, NULL},
    {"request_id", TEXTS, HINT, NULL},
    {"chat_id", CHATS, HINT, NULL},
    {"session_id", CHATS, HINT, NULL},
    {"litellm_metadata", TEXTS, HINT, NULL},
    {"tags", TEXTS, HINT, NULL},
    {"betas", ANTHROPIC, HINT, NULL},
    {"anthropic_beta", ANTHROPIC, HINT, NULL},
    {"anthropic_version", ANTHROPIC, HINT, NULL},
    {"diagnostics", ANTHROPIC, HINT, NULL},
    /* where and how fast a service computes, what it keeps and charges */
    {"store", TEXTS | ASK_EMBED, HINT, "false"},
    {"service_tier", OPENAI | ANTHROPIC, HINT, "\"auto\"|\"default\"|\"standard_only\""},
    {"prompt_cache_key", OPENAI, HINT, NULL},
    {"prompt_cache_retention", OPENAI, HINT, NULL},
    {"prompt_cache_options", OPENAI, HINT, NULL},
    {"cache_control", OPENAI | ANTHROPIC, HINT, NULL},
    {"cache_prompt", TEXTS, HINT, "true"},
    {"cache_salt", TEXTS, HINT, NULL},
    {"id_slot", TEXTS, HINT, "-1"},
    {"priority", TEXTS, HINT, "0"},
    {"provider", CHATS, HINT, NULL},
    {"models", CHATS, HINT, NULL},
    {"route", CHATS, HINT, NULL},
    {"transforms", CHATS, HINT, "[]"},
    {"keep_alive", TEXTS | ASK_EMBED, HINT, NULL},
    {"n_keep", TEXTS, HINT, NULL},
    {"t_max_predict_ms", TEXTS, HINT, "0|-1"},
    {"tool_stream", CHATS, HINT, NULL},
    {"usage", CHATS, HINT, NULL},
    {"speed", ANTHROPIC, HINT, "\"standard\""},
    {"inference_geo", ANTHROPIC, HINT, NULL},
    {"timings_per_token", TEXTS, HINT, "false"},
    {"return_progress", TEXTS, HINT, "false"},
    {"stream_options.include_obfuscation", OPENAI, HINT, "false"},
    {"stream_options.continuous_usage_stats", OPENAI, HINT, "false"},
    /* wishes that a model may follow or not, and what there is to be shown */
    {"verbosity", CHATS, HINT, "\"medium\""},
    {"text.verbosity", ASK_RESPONSE, HINT, "\"medium\""},
    {"reasoning.summary", ASK_RESPONSE | CHATS, HINT, NULL},
    {"reasoning.generate_summary", ASK_RESPONSE, HINT, NULL},
    {"thinking.budget_tokens", ANTHROPIC | CHATS, HINT, NULL},
    {"thinking.display", ANTHROPIC, HINT, "\"summarized\""},
    {"thinking.clear_thinking", CHATS, HINT, NULL},
    {"thinking_budget", CHATS, HINT, NULL},
    {"reasoning_budget", CHATS, HINT, "-1"},
    {"reasoning.max_tokens", CHATS, HINT, NULL},
    {"output_config.task_budget", ANTHROPIC, HINT, NULL},
    {"context_management", ANTHROPIC, HINT, NULL},
    {"max_tool_calls", ASK_RESPONSE, HINT, NULL},
    {"include.reasoning.encrypted_content", ASK_RESPONSE, HINT, NULL},
    {"include.file_search_call.results", ASK_RESPONSE, HINT, NULL},
    {"include.web_search_call.results", ASK_RESPONSE, HINT, NULL},
    {"include.web_search_call.action.sources", ASK_RESPONSE, HINT, NULL},
    {"include.code_interpreter_call.outputs", ASK_RESPONSE, HINT, NULL},
    {"include.computer_call_output.output.image_url", ASK_RESPONSE, HINT, NULL},
    {"include.message.input_image.image_url", ASK_RESPONSE, HINT, NULL},
    {"messages.cache_control", CHATS, HINT, NULL},
    {"messages.id", CHATS, HINT, NULL},
    {"messages.metadata", CHATS, HINT, NULL},
    {"messages.timestamp", CHATS, HINT, NULL},
    {"messages.created_at", CHATS, HINT, NULL},
    {"messages.createdAt", CHATS, HINT, NULL},
    {"messages.status", CHATS, HINT, NULL},
    {"messages.model", CHATS, HINT, NULL},
    {"messages.prefix", CHATS, ASKS, "false"},
    {"messages.partial", CHATS, ASKS, "false"},
    /* not supported, and they would change the answer */
    {"include_reasoning", CHATS, ASKS, "true"},
    {"separate_reasoning", CHATS, ASKS, "true"},
    {"reasoning.exclude", CHATS, ASKS, "false"},
    {"reasoning_format", CHATS, ASKS, "\"auto\"|\"deepseek\"|\"parsed\""},
    {"modalities", CHATS, ASKS, "[\"text\"]"},
    {"audio", CHATS, ASKS, NULL},
    {"function_call", CHATS, ASKS, "\"none\"|\"auto\""},
    {"functions", CHATS, ASKS, "[]"},
    {"web_search_options", CHATS, ASKS, NULL},
    {"best_of", TEXTS, ASKS, "1"},
    {"echo", TEXTS, ASKS, "false"},
    {"suffix", TEXTS | ASK_OLLAMA_GENERATE, ASKS, "\"\""},
    {"add_generation_prompt", CHATS, ASKS, "true"},
    {"continue_final_message", CHATS, ASKS, "false"},
    {"skip_special_tokens", TEXTS, ASKS, "true"},
    {"include_stop_str_in_output", TEXTS, ASKS, "false"},
    {"use_beam_search", TEXTS, ASKS, "false"},
    {"length_penalty", TEXTS, ASKS, "1|1.0"},
    {"min_tokens", TEXTS, ASKS, "0"},
    {"stop_token_ids", TEXTS, ASKS, "[]"},
    {"bad_words", TEXTS, ASKS, "[]"},
    {"allowed_token_ids", TEXTS, ASKS, "[]"},
    {"truncate_prompt_tokens", TEXTS, ASKS, "-1"},
    {"prompt_logprobs", TEXTS, ASKS, "0"},
    {"add_special_tokens", TEXTS, ASKS, NULL},
    {"spaces_between_special_tokens", TEXTS, ASKS, "true"},
    {"detokenize", TEXTS, ASKS, "true"},
    {"return_token_ids", TEXTS, ASKS, "false"},
    {"return_tokens_as_token_ids", TEXTS, ASKS, "false"},
    {"early_stopping", TEXTS, ASKS, "false"},
    {"guided_choice", TEXTS, ASKS, "[]"},
    {"structured_outputs", TEXTS, ASKS, "{}"},
    {"samplers", TEXTS, ASKS, "[]"},
    {"n_probs", TEXTS, ASKS, "0"},
    {"documents", CHATS, ASKS, "[]"},
    {"chat_template", CHATS, ASKS, NULL},
    {"mm_processor_kwargs", TEXTS, ASKS, "{}"},
    {"search_parameters", CHATS, ASKS, NULL},
    {"min_keep", TEXTS, ASKS, "0"},
    {"lora", TEXTS, ASKS, "[]"},
    {"post_sampling_probs", TEXTS, ASKS, "false"},
    {"return_tokens", TEXTS, ASKS, "false"},
    {"thinking_forced_open", CHATS, ASKS, "false"},
    {"parse_tool_calls", CHATS, ASKS, "true"},
    {"plugins", CHATS, ASKS, "[]"},
    {"safe_prompt", CHATS, ASKS, "false"},
    {"top_a", TEXTS, ASKS, "0|0.0"},
    {"repeat_last_n", TEXTS, ASKS, "-1|64"},
    {"dynatemp_range", TEXTS, ASKS, "0|0.0"},
    {"typical_p", TEXTS, ASKS, "1|1.0"},
    {"tfs_z", TEXTS, ASKS, "1|1.0"},
    {"mirostat", TEXTS, ASKS, "0"},
    {"dry_multiplier", TEXTS, ASKS, "0|0.0"},
    {"xtc_probability", TEXTS, ASKS, "0|0.0"},
    {"background", ASK_RESPONSE, ASKS, "false"},
    {"truncation", ASK_RESPONSE, ASKS, "\"disabled\""},
    {"conversation", ASK_RESPONSE, ASKS, NULL},
    {"prompt", ASK_RESPONSE, ASKS, NULL},
    {"context_management", ASK_RESPONSE, ASKS, NULL},
    {"moderation", ASK_RESPONSE, ASKS, NULL},
    {"dimensions", ASK_EMBEDS, ASKS, NULL},
    {"container", ANTHROPIC, ASKS, NULL},
    {"mcp_servers", ANTHROPIC, ASKS, "[]"},
    {"images", ASK_OLLAMA_GENERATE, ASKS, "[]"},
    {"template", ASK_OLLAMA_GENERATE, ASKS, "\"\""},
    {"context", ASK_OLLAMA_GENERATE, ASKS, "[]"},
    {"options.typical_p", OLLAMA, ASKS, "1|1.0"},
    {"options.tfs_z", OLLAMA, ASKS, "1|1.0"},
    {"options.mirostat", OLLAMA, ASKS, "0"},
    {"options.repeat_last_n", OLLAMA, ASKS, "-1|64"},
    {"options.penalize_newline", OLLAMA, ASKS, "true"},
};

/* Whether the value is one of those that mean what happens anyway. */
static bool is_one_of(const char *means, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    const size_t length = text ? strlen(text) : 0;
    bool found = false;
    while (text && means && *means && !found) {
        const size_t n = strcspn(means, "|");
        found = n == length && memcmp(means, text, n) == 0;
        means += n + (means[n] == '|');
    }
    free(text);
    return found;
}

void ask_note_ignored(struct ask *ask, const char *name)
{
    static const char more[] = ", ...";
    const size_t used = strlen(ask->ignored), space = sizeof ask->ignored - sizeof more;
    size_t at = used;
    if (used >= 3 && strcmp(ask->ignored + used - 3, "...") == 0) return; /* full */
    if (used && at + 2 < space) at += (size_t)snprintf(ask->ignored + at, 3, ", ");
    for (; *name && at < space; name++) /* a stranger's name goes into a header: its plain characters */
        ask->ignored[at++] = (char)(*name > 32 && *name < 127 && *name != ',' ? *name : '_');
    ask->ignored[at] = 0;
    if (*name) snprintf(ask->ignored + used, sizeof more, "%s", more + (used ? 0 : 2));
}

void ask_note_tool(struct ask *ask, const char *type)
{
    char name[64];
    snprintf(name, sizeof name, "tools.%.50s", type ? type : "");
    ask_note_ignored(ask, name);
}

bool ask_settle_member(struct ask_reader *r, const char *place, const char *name, const json_t *value)
{
    char path[96];
    const struct member_row *row = NULL;
    snprintf(path, sizeof path, "%s%.60s", place, name);
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !row; i++)
        if ((rows[i].kinds & r->ask->kind) && strcmp(rows[i].name, path) == 0) row = &rows[i];
    if (!row && !(r->ask->kind & OLLAMAS))
        return refuse(r->refusal, 400, "unknown_parameter", name,
                      "'%.100s' is not a parameter of this request", name);
    if (json_is_null(value) || (row && is_one_of(row->means, value))) return true;
    if (row && row->member == ASKS)
        return refuse(r->refusal, 400, "unsupported_parameter", name,
                      "'%s' is not supported by HELM's gateway%s%s", name,
                      row->means ? " with another value than " : "", row->means ? row->means : "");
    ask_note_ignored(r->ask, path);
    return true;
}
