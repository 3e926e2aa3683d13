#!/usr/bin/python3
"""The doors of helm-gateway before a stand-in daemon: Anthropic's Messages, what Codex sends, members that nothing reads, pings
in silent streams, pages of other sites, paths of other servers.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root.
"""
import json
import os
import sys
import tempfile
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import processor  # noqa: E402
from gateway_harness import BIN, Gateway, SLOW, Stage, check, sum_up  # noqa: E402

KEY = "sk-of-the-test"
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"name": "get_weather", "description": "Weather of a city", "input_schema": SCHEMA},
         {"name": "get_time", "input_schema": {"type": "object", "properties": {}}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Z\u00fcrich"}}\n</tool_call>'
CALL_2 = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


def message(g, messages=HELLO, **fields):
    return g.post("/v1/messages?beta=true", {"max_tokens": 64, "messages": messages, **fields})


def assembled(answer):
    """A stream's message, as Anthropic's clients build it up; the order of events is asserted."""
    made, open_block, arguments, stopped = None, None, "", False
    for part in answer.body.decode().split("\n\n")[:-1]:
        head, data = part.split("\n")
        event = json.loads(data[len("data: "):])
        assert head == "event: " + event["type"] and not stopped, part
        kind = event["type"]
        if kind == "message_start":
            assert made is None
            made = event["message"]
            assert made["content"] == [] and made["stop_reason"] is None, made
        elif kind == "content_block_start":
            assert open_block is None and event["index"] == len(made["content"]), event
            open_block, arguments = event["content_block"], ""
            made["content"].append(open_block)
        elif kind == "content_block_delta":
            assert event["index"] == len(made["content"]) - 1, event
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                arguments += delta["partial_json"]
            else:
                key = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}[delta["type"]]
                open_block[key] += delta[key]
        elif kind == "content_block_stop":
            if open_block["type"] == "tool_use":
                open_block["input"] = json.loads(arguments)
            open_block = None
        elif kind == "message_delta":
            assert open_block is None
            made.update(event["delta"])
            made["usage"] = event["usage"]
        else:
            stopped = kind == "message_stop"
            assert stopped, part
    assert stopped
    return made


def without_id(message):
    return {**message, "id": None, "content": [{k: v for k, v in b.items() if k != "id"} for b in message["content"]]}


def text(words):
    return {"type": "text", "text": words}


def answer_tests(stage):
    g, daemon = stage.gateway, stage.daemon
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "helm"}
    weather = {"type": "tool_use", "name": "get_weather", "input": {"city": "Z\u00fcrich"}}
    for name, said, content, reason, fields in (
            ("a text", "It rains.", [text("It rains.")], "end_turn", {}),
            ("thinking and a text", "<think>\nHm.\n</think>\n\nIt rains.", [thinking, text("It rains.")], "end_turn", {}),
            ("a call", CALL, [weather], "tool_use", {"tools": TOOLS}),
            ("thinking, a text and two calls", "<think>Hm.</think>I look.\n" + CALL + "\n" + CALL_2,
             [thinking, text("I look."), weather, {"type": "tool_use", "name": "get_time", "input": {}}], "tool_use", {"tools": TOOLS}),
            ("one call alone", CALL + CALL_2, [weather], "tool_use", {"tools": TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}),
            ("a call that is forced", CALL, [weather], "tool_use", {"tools": TOOLS, "tool_choice": {"type": "any"}}),
            ("a call of a tool by its name", CALL, [weather], "tool_use", {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "get_weather"}}),
            ("no tools for it", CALL, [text(CALL)], "end_turn", {"tools": TOOLS, "tool_choice": {"type": "none"}}),
            ("a format", '{"city": "Bern"}', [text('{"city": "Bern"}')], "end_turn", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
            ("the end of its tokens", "one two three four five", None, "max_tokens", {"max_tokens": 3})):
        daemon.say(said, how=10 if reason == "max_tokens" else 11)
        whole = message(g, **fields)
        check("a message of %s" % name, whole.status == 200 and whole.json["type"] == "message" and whole.json["role"] == "assistant" and
              whole.json["stop_reason"] == reason and content in (None, without_id(whole.json)["content"]), whole.body)
        streamed = assembled(message(g, stream=True, **fields))
        check("... in a stream", without_id(streamed) == without_id(whole.json), (streamed, whole.body))
        counted = g.post("/v1/messages/count_tokens", {"messages": HELLO, **{k: v for k, v in fields.items() if k in ("tools", "tool_choice")}})
        check("... its tokens are counted", counted.json == {"input_tokens": sum(whole.json["usage"][k] for k in ("input_tokens", "cache_read_input_tokens"))}, (counted.body, whole.body))
    daemon.say(CALL)
    deltas = message(g, stream=True, tools=TOOLS).body.decode().count("input_json_delta")
    check("arguments of a call come as they are written", deltas > 3, deltas)
    daemon.say("one two STOP three")
    for stream in (False, True):
        a = message(g, stream=stream, stop_sequences=["q1", "q2", "q3", "q4", "STOP", "q5"])
        a = assembled(a) if stream else a.json
        check("a stop sequence is named", (a["content"], a["stop_reason"], a["stop_sequence"]) == ([text("one two ")], "stop_sequence", "STOP"), a)
    daemon.say("It rains.")
    a = message(g, max_tokens=1 << 20)
    check("more tokens than fit are as many as fit", a.status == 200 and a.json["stop_reason"] == "end_turn", a.body)


def history_tests(stage):
    """Messages that clients send back become those that the template expects."""
    g, daemon = stage.gateway, stage.daemon
    daemon.say("It rains.")
    stamp = "x-anthropic-billing-header: cc_version=2.1.%d; cc_entrypoint=cli; cch=%05x;"
    prompts = []
    for i in range(2):
        a = message(g, system=[text(stamp % (i, 77777 * i)), {**text("You are brief."), "cache_control": {"type": "ephemeral"}}, text("Be kind.")])
        prompts.append(daemon.prompts[-1])
    check("a stamp that changes is not in the prompt", prompts[0] == prompts[1] and "billing" not in stage.prompt() and
          "You are brief.\nBe kind." in stage.prompt(), stage.prompt())
    check("... which the answer says", a.headers.get("x-helm-ignored") == "system.x-anthropic-billing-header", a.headers)
    message(g, system=stamp % (1, 1) + "\nYou are brief.")
    check("... also in front of a text", "billing" not in stage.prompt() and "You are brief." in stage.prompt(), stage.prompt())
    message(g, system="About the x-anthropic-billing-header: keep it.")
    check("... what only speaks of it stays", "About the x-anthropic-billing-header: keep it." in stage.prompt(), stage.prompt())
    daemon.say("<think>Look.</think>I look.\n" + CALL)
    first = message(g, tools=TOOLS).json
    daemon.say("It rains.")
    call = first["content"][-1]
    result = {"type": "tool_result", "tool_use_id": call["id"]}
    for name, block, shown in (("a text", {**result, "content": "rain"}, "rain"), ("blocks", {**result, "content": [text("rain"), text("wind")]}, "rain\nwind"),
                               ("nothing", result, ""), ("an error", {**result, "content": "no net", "is_error": True}, "Error:\nno net")):
        a = message(g, [*HELLO, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [block, text("And now?")]}], tools=TOOLS)
        prompt = stage.prompt()
        check("a call and its result, %s, go into the template" % name, a.status == 200 and CALL in prompt and "I look." in prompt and
              "<tool_response>\n%s\n</tool_response>" % shown in prompt and prompt.index("tool_response") < prompt.index("And now?"), (a.body, prompt))
    for fields, end in (({"thinking": {"type": "disabled"}}, "<think>\n\n</think>\n\n"), ({"output_config": {"effort": "high"}, "thinking": {"type": "disabled"}}, "<think>\n\n</think>\n\n"),
                        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, "assistant\n"), ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "assistant\n"),
                        ({}, "assistant\n")):
        message(g, **fields)
        check("thinking: %s" % fields, stage.prompt().endswith(end), stage.prompt())


def error_tests(stage):
    g, daemon = stage.gateway, stage.daemon
    daemon.say("It rains.")
    picture = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    for name, body, word in (("no messages", {}, "messages"), ("another role", {"messages": [{"role": "tool", "content": "x"}]}, "role"),
                             ("a picture", {"messages": picture}, "messages[0].content"), ("an answer that has begun", {"messages": HELLO + [{"role": "assistant", "content": "{"}]}, "last message"),
                             ("a member that there is not", {"messages": HELLO, "wings": 2}, "wings"), ("a server's tools", {"messages": HELLO, "mcp_servers": [{"url": "x"}]}, "mcp_servers"),
                             ("a call in a user's message", {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b"}]}]}, "messages[0].content"),
                             ("a prompt too long", {"messages": [{"role": "user", "content": "word " * 9000}]}, "prompt is too long: "),
                             ("a system of something else", {"messages": HELLO, "system": 1}, "system"), ("a choice of nothing", {"messages": HELLO, "tool_choice": {"type": "x"}}, "tool_choice"),
                             ("hot", {"messages": HELLO, "temperature": "hot"}, "temperature"), ("thinking of something", {"messages": HELLO, "thinking": {"type": "x"}}, "thinking")):
        a = g.post("/v1/messages", {"max_tokens": 8, **body})
        check("refused in Anthropic's shape: %s" % name, a.status == 400 and a.json["type"] == "error" and
              a.json["error"]["type"] == "invalid_request_error" and word in a.json["error"]["message"], a.body)
    for a, status, kind in ((message(g, model="claude"), 404, "not_found_error"), (g.get("/v1/messages"), 405, "invalid_request_error"),
                            (g.post("/v1/messages/batches", {}), 404, "not_found_error"), (g.post("/v1/messages", b"{"), 400, "invalid_request_error")):
        check("... %d, %s" % (status, kind), a.status == status and a.json["error"]["type"] == kind, a.body)
    daemon.say("x", how=13)
    check("... busy", message(g).json["error"]["type"] == "rate_limit_error")
    daemon.say("x", how=15)
    a = message(g, stream=True)
    check("... in the middle of a stream", a.body.decode().split("\n\n")[-2].startswith('event: error\ndata: {"type":"error","error":{"type":"api_error"'), a.body)


def key_tests(stage):
    with tempfile.NamedTemporaryFile("w") as keys:
        keys.write("test %s\n" % KEY)
        keys.flush()
        stage.daemon.say("It rains.")
        with Gateway(stage.endpoint, "--api-keys", keys.name) as g:
            for headers, status in (({"x-api-key": KEY}, 200), ({"Authorization": "Bearer " + KEY}, 200), ({"x-api-key": KEY + "x"}, 401), ({}, 401),
                                    ({"x-api-key": KEY, "Authorization": "Bearer wrong"}, 200)):
                a = g.post("/v1/messages", {"max_tokens": 8, "messages": HELLO}, headers=headers)
                check("a key: %s" % headers, a.status == status and (status == 200 or a.json["error"]["type"] == "authentication_error"), a.body)


# ---- Codex -------------------------------------------------------------------------------------------

def codex_tests(stage):
    g, daemon = stage.gateway, stage.daemon
    f = {"type": "function", "name": "get_weather", "description": "x", "strict": False, "parameters": SCHEMA}
    space = {"type": "namespace", "name": "agents", "description": "x", "tools": [{**f, "name": "close"}, {"type": "custom", "name": "c"}, f]}
    body = {"input": [{"type": "message", "id": "msg_1", "role": "developer", "content": [{"type": "input_text", "text": "x"}]},
                      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}],
            "tools": [f, {"type": "web_search", "external_web_access": False}, space], "tool_choice": "auto", "store": False, "include": ["reasoning.encrypted_content"],
            "reasoning": {"effort": "medium", "summary": "auto"}, "client_metadata": {"session_id": "x"}, "prompt_cache_key": "k"}
    daemon.say("<think>Hm.</think>" + CALL.replace("get_weather", "close"))
    a = g.post("/v1/responses", body)
    named = a.headers.get("x-helm-ignored", "").split(", ")
    check("Codex: tools that are no functions are named", {"tools.web_search", "tools.custom", "reasoning.summary", "client_metadata", "include.reasoning.encrypted_content",
                                                           "prompt_cache_key"} <= set(named) and "store" not in named, (a.body, named))
    check("... and not shown to the model", '"name": "close"' in stage.prompt() and "web_search" not in stage.prompt(), stage.prompt())
    out = a.json["output"]
    check("... its reasoning is in the clear", out[0]["type"] == "reasoning" and out[0]["encrypted_content"] is None, out)
    check("... a namespace's function is called by its own name", (out[1]["name"], out[1]["namespace"]) == ("close", "agents"), out)
    check("... of two with one name the second is told apart", '"name": "agents__get_weather"' in stage.prompt(), stage.prompt())
    daemon.say(CALL.replace("get_weather", "agents__get_weather"))
    out = g.post("/v1/responses", body).json["output"]
    check("... and comes back as what it is", (out[0]["name"], out[0]["namespace"]) == ("get_weather", "agents"), out)
    streamed = g.post("/v1/responses", {**body, "stream": True}).body.decode()
    check("... in a stream too", streamed.count('"name":"get_weather","namespace":"agents"') == 4, streamed)
    daemon.say("Done.")
    a = g.post("/v1/responses", {**body, "input": body["input"] + out + [{"type": "function_call_output", "call_id": out[0]["call_id"], "output": "rain"}]})
    check("... its call and result go back", a.status == 200 and '{"name": "agents__get_weather", "arguments"' in stage.prompt(), (a.body, stage.prompt()))
    counted, asked = (g.post("/v1/responses" + path, {"input": "Hello"}).json for path in ("/input_tokens", ""))
    check("input_tokens", counted == {"object": "response.input_tokens", "input_tokens": asked["usage"]["input_tokens"]}, (counted, asked))
    check("only tools that are no functions: none", g.post("/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}).status == 200)
    for bad in ({"tools": [{"name": "x"}]}, {"include": ["all.of.it"]}, {"include": [1]}, {"reasoning": {"x": 1}}, {"text": {"x": 1}}, {"background": True}):
        a = g.post("/v1/responses", {"input": "x", **bad})
        check("refused: %s" % bad, a.status == 400, a.body)


def number_tests(stage):
    """Numbers are passed on as they are written: in tools, in calls of the history, in what an answer repeats."""
    g = stage.gateway
    stage.daemon.say("It rains.")
    big, schema = "123456789012345678901234567890", '{"type":"object","properties":{"x":{"enum":[1.50,%s],"maximum":1E5}}}'
    schema %= big
    arguments = '{"x":1.50,"n":%s,"m":-0.10}' % big
    tool = '"tools":[{"type":"function","function":{"name":"f","parameters":%s}}]' % schema
    call = '{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":%s}}]}' % json.dumps(arguments)
    hello = '{"role":"user","content":"Hello"}'
    wanted = [big + "]", "1.50", "1E5", '"x": 1.50, "n": %s, "m": -0.10' % big]
    blocks = '{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":%s}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"a"}]}' % arguments
    items = '{"type":"function_call","call_id":"a","name":"f","arguments":%s},%s' % (json.dumps(arguments), hello)
    for path, body in (("/v1/chat/completions", '{"messages":[%s,%s,{"role":"tool","tool_call_id":"a","content":"x"}],%s}' % (hello, call, tool)),
                       ("/api/chat", '{"stream":false,"messages":[%s,%s,%s],%s}' % (hello, call.replace(json.dumps(arguments), arguments), hello, tool)),
                       ("/v1/messages", '{"max_tokens":9,"messages":[%s,%s],"tools":[{"name":"f","input_schema":%s}]}' % (hello, blocks, schema)),
                       ("/v1/responses", '{"input":[%s,%s],"tools":[{"type":"function","name":"f","parameters":%s}]}' % (hello, items, schema))):
        a = g.post(path, body.encode())
        shown = stage.prompt()
        check("%s: numbers as they are written" % path, a.status == 200 and all(w in shown for w in wanted), (a.body, shown))
        if path == "/v1/responses":
            check("... also in what the answer repeats, and in what is kept", ('"enum":[1.50,%s],"maximum":1E5' % big).encode() in a.body and
                  g.get(path + "/" + a.json["id"]).body == a.body, a.body)
            g.post(path, {"input": "Hello", "previous_response_id": a.json["id"]})
            check("... when a conversation goes on", wanted[3] in stage.prompt(), stage.prompt())


# ---- what clients bring from other services ------------------------------------------------------------

def stranger_tests(stage):
    """Parts, tools and items that a conversation with another service left behind: shown as text, as calls, or left out and named."""
    g, daemon = stage.gateway, stage.daemon
    daemon.say("It rains.")
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}

    def seen(path, body, *wanted, ignored=""):
        a = g.post(path, {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 4, **body})
        prompt = stage.prompt() if a.status == 200 else ""
        check("%s takes %s" % (path, json.dumps(body)[:70]), a.status == 200 and all(w in prompt for w in wanted) and a.headers.get("x-helm-ignored", "") == ignored, (a.headers, a.body, prompt))

    def between(content, role="assistant"):
        return {"messages": [HELLO[0], {"role": role, "content": content}, HELLO[0]]}

    chat, responses, messages = "/v1/chat/completions", "/v1/responses", "/v1/messages"
    seen(chat, between([{"type": "refusal", "refusal": "I will not."}]), "I will not.")
    seen(chat, between([{"type": "output_text", "text": "It snows."}]), "It snows.")
    seen(chat, between([{"type": "input_text", "text": "And now?"}], "user"), "And now?")
    seen(chat, between([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "It snows."}]), "It snows.")
    seen(chat, between([{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "It snows."}]), "It snows.")
    seen(chat, {"messages": HELLO, "tools": [tool, {"type": "web_search"}, {"type": "builtin_function", "function": {"name": "$web_search"}}]}, "get_weather", ignored="tools.web_search, tools.builtin_function")
    seen(chat, {"messages": HELLO, "tools": [{"function": tool["function"]}]}, "get_weather")
    seen(chat, {"messages": HELLO, "tools": [tool], "tool_choice": {"type": "auto"}}, "get_weather")
    seen(chat, {"messages": [HELLO[0], {"role": "assistant", "content": None, "tool_calls": [{"id": None, "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "content": "rain"}]}, '"name": "f"', "rain")
    seen(chat, {"messages": [{"role": "user", "content": "Hello", "timestamp": 1, "createdAt": "x"}]}, ignored="messages.timestamp, messages.createdAt")
    seen(messages, between([{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}, {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
                            {"type": "text", "text": "It snows.", "citations": []}]), "It snows.", ignored="server_tool_use, web_search_tool_result")
    seen(messages, between([{"type": "document", "title": "Notes", "source": {"type": "text", "media_type": "text/plain", "data": "Snow fell."}}], "user"), "Notes\nSnow fell.")
    seen(messages, between([{"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "Snow fell."}]}}], "user"), "Snow fell.")
    seen(messages, between([{"type": "search_result", "source": "x", "title": "Notes", "content": [{"type": "text", "text": "Snow fell."}]}], "user"), "Notes\nSnow fell.")
    ask = {"role": "user", "content": "Hello"}
    seen(responses, {"input": [ask, {"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]}, ask]}, "I will not.")
    seen(responses, {"input": [ask, {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": 'a "patch"'}, {"type": "custom_tool_call_output", "call_id": "c", "output": "applied"}]},
         '{"name": "apply_patch", "arguments": {"input": "a \\"patch\\""}}', "applied")
    seen(responses, {"input": [ask, {"type": "web_search_call", "id": "w", "status": "completed"}, {"type": "local_shell_call", "call_id": "c", "action": {}}, ask]}, ignored="input.web_search_call, input.local_shell_call")
    for choice in ("required", "any", {"type": "any"}, {"type": "function", "function": {"name": "get_weather"}}, {"type": "function", "name": "get_weather"}):
        daemon.say(CALL)
        a = g.post(chat, {"messages": HELLO, "tools": [tool], "tool_choice": choice})
        check("tool_choice %s forces a call" % (choice,), a.status == 200 and a.json["choices"][0]["finish_reason"] == "tool_calls", a.body)
        daemon.say("It rains.")
        check("... and nothing else", g.post(chat, {"messages": HELLO, "tools": [tool], "tool_choice": choice}).status == 500)
    other, hosted = {"type": "function", "function": {"name": "get_time"}}, {"type": "web_search"}
    inner = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_time"}}, hosted]}
    for path, begin, choice in ((chat, {"messages": HELLO, "tools": [tool, other]}, {"type": "allowed_tools", "allowed_tools": inner}),
                                (responses, {"input": "Hello", "tools": [{"type": "function", "name": name, "parameters": SCHEMA} for name in ("get_weather", "get_time")]},
                                 {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_time"}]})):
        seen(path, {**begin, "tool_choice": choice}, "get_time")
        check("... and leaves out the tools that are not allowed", "get_weather" not in stage.prompt(), stage.prompt())
    daemon.say(CALL)
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}
    a = g.post(chat, {"messages": HELLO, "tools": [tool, other], "tool_choice": choice})
    check("required among those allowed forces a call", a.status == 200 and a.json["choices"][0]["finish_reason"] == "tool_calls", a.body)
    daemon.say("It rains.")
    for wrong in ({"mode": "auto", "tools": [{"type": "function", "function": {"name": "fly"}}]}, {"mode": "auto"}, {"mode": "some", "tools": []},
                  {"mode": "auto", "tools": [3]}, {"mode": "required", "tools": []}):
        a = g.post(chat, {"messages": HELLO, "tools": [tool], "tool_choice": {"type": "allowed_tools", "allowed_tools": wrong}})
        check("allowed_tools %s is refused" % json.dumps(wrong), a.status == 400 and a.json["error"]["param"] == "tool_choice", a.body)
    for path, body in ((chat, between([{"type": "video", "video": "x"}], "user")), (chat, {"messages": HELLO, "tools": [{"name": "f"}]}), (chat, {"messages": HELLO, "tools": [tool], "tool_choice": {"type": "hosted"}}),
                       (chat, between([{"type": "thinking", "thinking": 3}])), (chat, {"messages": [{**HELLO[0], "prefix": True}]}), (messages, between([{"type": "document", "source": {"type": "base64", "data": "x"}}], "user")),
                       (messages, between([{"type": "server_tool_use"}], "user")), (responses, {"input": [ask, {"type": "custom_tool_call", "name": "f", "input": "x"}]}), (responses, {"input": [{"type": "video_call"}]})):
        a = g.post(path, {"max_output_tokens" if path == responses else "max_tokens": 4, **body})
        check("%s refuses %s" % (path, json.dumps(body)[-90:]), a.status == 400, a.body)


# ---- members that nothing reads -----------------------------------------------------------------------

def member_tests(stage):
    g, daemon = stage.gateway, stage.daemon
    daemon.say("It rains.")
    chat, responses, messages = "/v1/chat/completions", "/v1/responses", "/v1/messages"
    bodies = {chat: {"messages": HELLO}, responses: {"input": "Hello"}, messages: {"messages": HELLO, "max_tokens": 8}, "/v1/completions": {"prompt": "Hello"},
              "/api/chat": {"messages": HELLO, "stream": False}, "/api/generate": {"prompt": "Hello", "stream": False}}
    hints = {"metadata": ({"a": "b"}, (chat, responses, messages, "/v1/completions")), "store": (True, (chat,)), "prompt_cache_retention": ("24h", (chat, responses)),
             "service_tier": ("flex", (chat, responses, messages)), "safety_identifier": ("x", (chat, responses)), "verbosity": ("low", (chat,)),
             "transforms": (["middle-out"], (chat,)), "models": (["a"], (chat,)), "keep_alive": ("5m", (chat,)), "cache_prompt": (False, (chat,)), "context_management": ({"edits": []}, (messages,))}
    for name, (value, paths) in hints.items():
        for path in paths:
            a = g.post(path, {**bodies[path], name: value})
            check("%s: %s is taken and named" % (path, name), a.status == 200 and a.headers.get("x-helm-ignored") == name, (a.headers, a.body))
    for path, body in ((chat, {"store": False}), (chat, {"metadata": None}), (responses, {"text": {"verbosity": "medium"}}), (chat, {"n": 1, "user": "x"}),
                       (chat, {"mirostat": 0, "typical_p": 1.0, "min_tokens": 0}), (chat, {"best_of": 1, "echo": False, "stop_token_ids": [], "detokenize": True, "guided_choice": None}),
                       (chat, {"prompt_logprobs": None, "return_token_ids": False, "include_reasoning": True}), (chat, {"max_tokens": -1}), (chat, {"lora": [], "parse_tool_calls": True, "documents": None, "chat_template": None, "repeat_last_n": 64, "top_a": 0}), (responses, {"max_output_tokens": -1}),
                       ("/v1/completions", {"best_of": 1, "max_tokens": -1}), (messages, {"mcp_servers": [], "service_tier": "auto"})):
        a = g.post(path, {**bodies[path], **body})
        check("%s: %s means what happens anyway" % (path, body), a.status == 200 and "x-helm-ignored" not in a.headers, (a.headers, a.body))
    for path, name, value in ((chat, "web_search_options", {}), (chat, "mirostat", 2), (chat, "stop_token_ids", [5]), (chat, "guided_choice", ["a"]), (chat, "include_reasoning", False), (chat, "audio", {"voice": "x"}), (chat, "wings", 2), (chat, "wings", None),
                              (responses, "previous_response_id", "x"), (responses, "conversation", "x"), (messages, "container", "x"), ("/v1/completions", "echo", True),
                              ("/api/generate", "suffix", "x"), ("/api/generate", "images", ["x"])):
        a = g.post(path, {**bodies[path], name: value})
        check("%s: %s %s is refused by its name" % (path, name, value), a.status == 400 and name in str(a.json["error"]), a.body)
    a = g.post("/api/chat", {**bodies["/api/chat"], "wings": 2, "options": {"num_gpu": 3, "feathers": 1, "temperature": 0}, "keep_alive": "5m",
                             "messages": [{"role": "user", "content": "Hello", "mood": "good"}]})
    check("Ollama's unknown members are ignored and named", a.status == 200 and set(a.headers["x-helm-ignored"].split(", ")) ==
          {"wings", "options.num_gpu", "options.feathers", "keep_alive", "messages.mood"}, (a.headers, a.body))
    a = g.post("/api/chat", {**bodies["/api/chat"], "a\r\nSet-Cookie: x=1, b": 1, "\u00e9": 1})
    check("... in a header that stays one", a.status == 200 and "Set-Cookie" not in a.headers and "a__Set-Cookie:_x=1__b" in a.headers["x-helm-ignored"], a.headers)
    a = g.post("/api/chat", {**bodies["/api/chat"], **{"member_%d" % i: 1 for i in range(1000)}})
    check("... and is bounded", a.status == 200 and len(a.headers["x-helm-ignored"]) < 512 and a.headers["x-helm-ignored"].endswith(", ..."), a.headers)
    a = g.chat("Hello", messages=[{"role": "user", "content": "Hello", "cache_control": {"type": "ephemeral"}}])
    check("a message's members too", a.headers.get("x-helm-ignored") == "messages.cache_control" and
          g.chat("Hello", messages=[{"role": "user", "content": "Hello", "mood": "good"}]).status == 400, a.headers)


# ---- silence, pages, paths ----------------------------------------------------------------------------

def open_silent(stage):
    """Streams in which nothing is said, to be looked at when ten seconds are over."""
    stage.daemon.say("x", how=18)
    return [(path, wanted, stage.gateway.open_stream(path, {"stream": True, **fields}))
            for path, wanted, fields in (("/v1/chat/completions", b"\n: ping\n\n", {"messages": HELLO}), ("/v1/responses", b"\n: ping\n\n", {"input": "x"}),
                                         ("/v1/messages", b'\nevent: ping\ndata: {"type":"ping"}\n\n', {"messages": HELLO}))]


def silence_tests(streams, since):
    for path, wanted, s in streams:
        got = b""
        while wanted not in got and time.monotonic() - since < 60 * SLOW and (chunk := s.recv(1 << 16)):
            got += chunk
        check("%s: a ping in silence" % path, wanted in got and 9 < time.monotonic() - since < 60 * SLOW, got)
        s.close()


def page_tests(stage):
    origin = "https://chat.example"
    with Gateway(stage.endpoint, "--allow-origin", origin, "--allow-origin", "http://localhost:3000") as g:
        stage.daemon.say("It rains.")
        a = g.request("OPTIONS", "/v1/chat/completions", headers={"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"})
        check("another site's page may ask", a.status == 204 and a.headers["Access-Control-Allow-Origin"] == origin and "POST" in a.headers["Access-Control-Allow-Methods"] and
              a.headers["Access-Control-Allow-Headers"] == "authorization,content-type" and a.headers["Vary"] == "Origin", a.headers)
        a = g.chat("Hello", headers=None, stream=True)
        check("... without an Origin nothing is said", "Access-Control-Allow-Origin" not in a.headers, a.headers)
        a = g.post("/v1/chat/completions", {"messages": HELLO}, headers={"Origin": origin})
        check("... and read the answer", a.status == 200 and a.headers["Access-Control-Allow-Origin"] == origin, a.headers)
        a = g.post("/v1/chat/completions", {}, headers={"Origin": origin})
        check("... and an error", a.status == 400 and a.headers["Access-Control-Allow-Origin"] == origin, a.headers)
        for other in ("https://evil.example", "https://chat.example.evil", "http://chat.example", "null"):
            a = g.request("OPTIONS", "/v1/chat/completions", headers={"Origin": other, "Access-Control-Request-Method": "POST"})
            check("... others may not: %s" % other, a.status == 403 and "Access-Control-Allow-Origin" not in a.headers and
                  g.post("/v1/chat/completions", {"messages": HELLO}, headers={"Origin": other}).status == 403, a.headers)
        check("... a path that there is not", g.request("OPTIONS", "/v9", headers={"Origin": origin}).status == 404)
    with Gateway(stage.endpoint, "--allow-origin", "*") as g:
        check("any page", g.get("/v1/models", headers={"Origin": "https://any.example"}).headers["Access-Control-Allow-Origin"] == "https://any.example")
    for bad in ("chat.example", "https://chat.example/", "https://", "://x"):
        run = processor.run([BIN + "/helm-gateway", "--allow-origin", bad], capture_output=True, timeout=60)
        check("--allow-origin %s is refused" % bad, run.returncode == 2 and b"SCHEME://HOST" in run.stderr, run.stderr)


def path_tests(stage):
    g = stage.gateway
    stage.daemon.say("It rains.")
    for path, body in (("/chat/completions", {"messages": HELLO}), ("/completions", {"prompt": "x"}), ("/responses", {"input": "x"}), ("/messages", {"messages": HELLO}),
                       ("/messages/count_tokens", {"messages": HELLO})):
        check("%s without /v1" % path, g.post(path, body).status == 200 == g.post("/v1" + path, body).status)
    name = g.get("/v1/models").json["data"][0]["id"]
    check("/models", g.get("/models").json["data"][0]["id"] == name and g.get("/models/" + name).json["id"] == name == g.get("/v1/models/" + name).json["id"])
    check("... and no more than /v1", g.get("/v2/models").status == g.get("/v1/v1/models").status == g.get("/v1models").status == 404)
    check("/v1/health", g.get("/v1/health").json == {"status": "ok"})
    for method, path, allow in (("PUT", "/api/chat", "POST"), ("DELETE", "/v1/models", "GET, HEAD"), ("PUT", "/chat/completions", "POST")):
        a = g.request(method, path)
        check("%s %s: what is allowed is said" % (method, path), a.status == 405 and a.headers["Allow"] == allow and
              isinstance(a.json["error"], str if "api" in path else dict), (a.headers, a.body))
    check("404 under /api in Ollama's shape", g.get("/api/none").status == 404 and isinstance(g.get("/api/none").json["error"], str))
    a = g.post("/apply-template", {"messages": [{"role": "system", "content": "Be brief."}, *HELLO], "chat_template_kwargs": {"enable_thinking": False}})
    g.chat("Hello", messages=[{"role": "system", "content": "Be brief."}, *HELLO], chat_template_kwargs={"enable_thinking": False})
    check("/apply-template is what the model reads", a.json["prompt"] == stage.prompt(), (a.body, stage.prompt()))
    check("... as any chat is checked", g.post("/apply-template", {"messages": []}).status == 400)
    a = g.get("/props").json
    check("/props", a["default_generation_settings"]["n_ctx"] == g.get("/v1/models").json["data"][0]["max_model_len"] and "<|im_start|>" in a["chat_template"], a)
    stage.daemon.say("x", how=18)
    with g.open_stream("/v1/chat/completions", {"stream": True, "messages": HELLO}) as s:
        s.recv(1)
        slots = g.get("/slots").json
        check("/slots", slots and all(slot["n_ctx"] > 0 and isinstance(slot["is_processing"], bool) for slot in slots), slots)


def main():
    with Stage("qwen3.jinja") as stage, Stage("qwen3.jinja") as silent:
        since = time.monotonic()
        streams = open_silent(silent)
        answer_tests(stage)
        history_tests(stage)
        error_tests(stage)
        key_tests(stage)
        codex_tests(stage)
        number_tests(stage)
        stranger_tests(stage)
        member_tests(stage)
        page_tests(stage)
        path_tests(stage)
        silence_tests(streams, since)
    sum_up()


if __name__ == "__main__":
    main()
