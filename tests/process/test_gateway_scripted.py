#!/usr/bin/python3
"""helm-gateway before a stand-in daemon that says what it is told: characters cut by tokens, stop texts, calls of tools in
three families' ways, a daemon that refuses, fails, goes away and comes back.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root.
"""
import json
import os
import sys
import tempfile

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import processor  # noqa: E402
from gateway_harness import BIN, Stage, check, sum_up, until  # noqa: E402

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
                                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


def both_ways(g, **fields):
    """The message of a chat, whole and streamed; the same or an error."""
    whole = g.chat("Hello", **fields).json["choices"][0]
    message, reason = {"role": "assistant", "content": "", "refusal": None}, None
    for event in g.chat("Hello", stream=True, **fields).events:
        delta = event["choices"][0]["delta"]
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if "id" in call:
                calls.append({k: v for k, v in call.items() if k != "index"})
            else:
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
            assert call["index"] == len(calls) - 1, call
        reason = event["choices"][0]["finish_reason"]
    return whole, message, reason


STRICT = [{"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"], "additionalProperties": False}}},
          {"type": "function", "function": {"name": "get_time", "strict": True, "parameters": {"type": "object", "properties": {}}}}]


def forced_tests(stage, name, good, bad, text, **more):
    """Calls that are forced, and strict ones: what the model says is held against the grammar by the library, which ends the
    answer with an error where the stand-in daemon, which looks at no mask, says something else."""
    g, daemon = stage.gateway, stage.daemon
    named = {"type": "function", "function": {"name": "get_weather"}}
    for choice in ("required", named, "auto"):
        daemon.say(good)
        daemon.masks.clear()
        whole, streamed, reason = both_ways(g, tools=STRICT, tool_choice=choice, **more)
        check("%s: tool_choice %s" % (name, choice), calls_of(whole["message"]) == calls_of(streamed) ==
              [("get_weather", {"city": "Bern", "days": 3})] and reason == "tool_calls", (whole, streamed))
        check("... by masks, one a token", sorted({m.index for m in daemon.masks}) == list(range(len(daemon.script) + 1)), daemon.masks)
        daemon.say(bad)
        a = g.chat("Hello", tools=STRICT, tool_choice=choice, **more)
        check("... arguments that do not fit end it", a.status == 500 and "the grammar does not allow" in a.body.decode(), a.body)
    daemon.say(text)
    check("... text is no call", g.chat("Hello", tools=STRICT, tool_choice="required").status == 500)
    whole = g.chat("Hello", tools=STRICT).json["choices"][0]
    check("... and is free with auto", whole["message"]["content"] == text and whole["finish_reason"] == "stop", whole)
    daemon.say(good.replace("get_weather", "get_time"))
    check("... the named one only", g.chat("Hello", tools=STRICT, tool_choice=named).status == 500)
    daemon.say('{"a": 1}')
    wanted = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    whole = g.chat("Hello", tools=STRICT, response_format=wanted).json["choices"][0]["message"]
    check("... a format beside tools: an answer", whole["content"] == '{"a": 1}', whole)
    daemon.say(good)
    whole = g.chat("Hello", tools=STRICT, response_format=wanted).json["choices"][0]["message"]
    check("... or a call", len(calls_of(whole)) == 1, whole)


def format_tests(stage):
    """Thinking in front of what fits a format is free."""
    g, daemon = stage.gateway, stage.daemon
    wanted = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
    for said, content in (('{"a": 1}', '{"a": 1}'), ('<think>\nHm {"b", <\n</think>\n\n{"a": 1}', '{"a": 1}'), ('<think>a</think> {"b": 1}', None),
                          ("Yes.", None)):
        daemon.say(said)
        a = g.chat("Hello", response_format=wanted)
        check("a format: %r" % said, a.json["choices"][0]["message"]["content"] == content if content else a.status == 500, a.body)
    for fields, param in (({"tool_choice": "required"}, "tool_choice"), ({"tool_choice": "required", "tools": STRICT, "response_format": wanted}, "tool_choice"),
                          ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": STRICT}, "tool_choice"),
                          ({"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"not": {}}}}]}, "tools"),
                          ({"response_format": {"type": "json_schema"}}, "response_format")):
        a = g.chat("Hello", **fields)
        check("refused: %s" % list(fields), a.status == 400 and a.json["error"]["param"] == param, a.body)


def schema_tests(stage):
    """Schemas as programs write them: the gateway hands their numbers and keywords to the grammar as they are."""
    g, daemon = stage.gateway, stage.daemon
    wide = 18446744073709551615
    for schema, good, bad in (({"enum": [0.1, 19.99]}, "19.99", "19.989999999999998"), ({"const": 1.0}, "1.0", "1"),
                              ({"type": "integer", "minimum": 0, "maximum": wide}, "7", "07"),
                              ({"type": "integer", "multipleOf": 5}, "15", "16"),
                              ({"type": "string", "format": "date", "pattern": "^\\d{4}-\\d{2}-\\d{2}$"}, '"2024-02-29"', '"2023-02-29"'),
                              ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, '"abc"', '"abcd"'),
                              ({"type": "string", "format": "uri", "contentEncoding": "utf-8", "nullable": False}, '"a"', "null"),
                              ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"const": 1}}, '{"b":1}', '{"c":1}'),
                              ({"oneOf": [{"const": i} for i in range(15000)]}, "14999", "15000")):
        wanted = {"type": "json_schema", "json_schema": {"schema": schema}}
        for said in (good, bad):
            daemon.say(said)
            a = g.chat("Hello", response_format=wanted)
            check("%.60s: %s" % (json.dumps(schema), said), a.json["choices"][0]["message"]["content"] == said if said == good else a.status == 500, a.body)
    daemon.say("Yes.")
    for a in (g.chat("Hello", top_p=0), g.complete("Hello", top_p=0.0),
              g.post("/api/chat", {"messages": [{"role": "user", "content": "x"}], "stream": False, "options": {"top_p": 0}})):
        check("top_p 0 is taken", a.status == 200, a.body)
        check("... as the likeliest token", 0 < daemon.generated[-1].sampling.top_p < 1e-30, daemon.generated[-1].sampling)


def calls_of(message):
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", [])]


def text_tests(stage):
    g, daemon = stage.gateway, stage.daemon
    text = "Na\u00efve \U0001f642\U0001f3fd caf\u00e9 \u65e5\u672c\u8a9e \U0001f469\u200d\U0001f52c"
    daemon.say(text)
    whole, streamed, reason = both_ways(g)
    check("characters of several tokens are never cut", whole["message"]["content"] == text == streamed["content"], (whole, streamed))
    check("end of sequence is a stop", (whole["finish_reason"], reason) == ("stop", "stop"))
    a = g.chat("Hello", logprobs=True, stream=True)
    tokens = [t for e in a.events for t in (e["choices"][0]["logprobs"] or {"content": []})["content"]]
    check("the bytes of logprobs are the text's", b"".join(bytes(t["bytes"]) for t in tokens).decode() == text and
          all(isinstance(t["token"], str) for t in tokens), tokens)
    daemon.say("one two STOP three")
    whole, streamed, reason = both_ways(g, stop=["\u00e9", "STOP", "never"])
    check("a stop text", whole["message"]["content"] == "one two " == streamed["content"] and whole["finish_reason"] == reason == "stop")
    daemon.say("one two STO")
    whole, streamed, _ = both_ways(g, stop="STOP")
    check("the beginning of a stop text is given when nothing follows", whole["message"]["content"] == "one two STO" == streamed["content"], streamed)
    daemon.say("x", how=12)
    for stream in (False, True):
        before = len(daemon.cancelled)
        g.chat("Hello", stop="xxx", stream=stream)
        check("a stop text cancels at the daemon", until(lambda: len(daemon.cancelled) == before + 1), daemon.cancelled)


def failure_tests(stage):
    g, daemon = stage.gateway, stage.daemon
    for how, status, code in ((13, 429, "server_busy"), (14, 400, "context_length_exceeded"), (15, 500, "internal_error")):
        daemon.say("x", how=how)
        a = g.chat("Hello")
        check("a daemon that says %s" % code, a.status == status and a.json["error"]["code"] == code, a.body)
        a = g.chat("Hello", stream=True)
        if how == 15:
            check("... in the middle of a stream", a.status == 200 and a.events[-1]["error"]["code"] == code, a.body)
        else:
            check("... before a stream", a.status == status and a.json["error"]["code"] == code, a.body)
    check("busy says when to come again", stage.daemon.say("x", how=13) is None and g.chat("Hello").headers.get("Retry-After") == "1")
    daemon.say("x", how=16)
    a = g.chat("Hello", stream=True)
    check("a daemon that goes away ends the stream with an error", a.events[-1]["error"]["code"] == "daemon_lost", a.body)
    a = g.get("/health")
    check("... and health says so", a.status == 503, a.body)
    check("... requests too", g.chat("Hello").status == 503)
    daemon.join(5)
    stage.start()
    check("it comes back", until(lambda: g.get("/health").status == 200), g.log()[-500:])
    stage.daemon.say("again")
    check("... and answers", g.chat("Hello").json["choices"][0]["message"]["content"] == "again")


def tagged_tests():
    with Stage("qwen3.jinja") as stage:
        g, daemon = stage.gateway, stage.daemon
        text_tests(stage)
        one = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Z\u00fcrich"}}\n</tool_call>'
        two = 'I look.\n\n' + one + '\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
        for name, said, content, calls in (
                ("a call", one, None, [("get_weather", {"city": "Z\u00fcrich"})]),
                ("text and two calls", two, "I look.", [("get_weather", {"city": "Z\u00fcrich"}), ("get_time", {})]),
                ("a call without its end", one[:-12], None, [("get_weather", {"city": "Z\u00fcrich"})]),
                ("what is none", '<tool_call>{"name": </tool_call> so', '<tool_call>{"name": </tool_call> so', []),
                ("only text, with a <", "1 < 2 and <tool", "1 < 2 and <tool", [])):
            daemon.say(said)
            whole, streamed, reason = both_ways(g, tools=TOOLS)
            check("Qwen: %s" % name, whole["message"]["content"] == content and calls_of(whole["message"]) == calls and
                  whole["finish_reason"] == ("tool_calls" if calls else "stop"), whole)
            check("... in a stream", streamed["content"] == (content or "") and calls_of(streamed) == calls and
                  reason == whole["finish_reason"], (streamed, reason))
            check("... the template has the tools", '"name": "get_weather"' in stage.prompt(), stage.prompt())
        daemon.say(two)
        whole = g.chat("Hello", tools=TOOLS, tool_choice="none").json["choices"][0]
        check("tool_choice none: no tools, no calls", whole["message"]["content"] == two and "get_weather" not in stage.prompt(), whole)
        whole, streamed, _ = both_ways(g, tools=TOOLS, parallel_tool_calls=False)
        check("parallel_tool_calls false: the first alone", len(calls_of(whole["message"])) == len(calls_of(streamed)) == 1, whole)
        call = whole["message"]["tool_calls"][0]
        daemon.say("It rains.")
        a = g.post("/v1/chat/completions", {"tools": TOOLS, "messages": [
            {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Weather?"}, whole["message"],
            {"role": "tool", "tool_call_id": call["id"], "content": "rain"}]})
        check("a call and its result go into the template", a.status == 200 and "Be brief." in stage.prompt() and
              '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Z\u00fcrich"}}\n</tool_call>' in stage.prompt() and
              "<tool_response>\nrain\n</tool_response>" in stage.prompt(), (a.body, stage.prompt()))
        g.chat("Hello", chat_template_kwargs={"enable_thinking": False})
        check("variables of the template", stage.prompt().endswith("<think>\n\n</think>\n\n"), stage.prompt())
        g.post("/api/chat", {"messages": [{"role": "user", "content": "Hello"}], "think": False})
        check("Ollama's think is one", stage.prompt().endswith("<think>\n\n</think>\n\n"), stage.prompt())
        daemon.say(one)
        lines = g.post("/api/chat", {"messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS}).lines
        check("Ollama's calls have objects", [c["function"]["arguments"] for m in lines for c in m["message"].get("tool_calls", [])] ==
              [{"city": "Z\u00fcrich"}], lines)
        thinking_tests(stage)
        good = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}\n</tool_call>'
        forced_tests(stage, "Qwen", good, good.replace("3", "0"), "It rains < here.")
        forced_tests(stage, "Qwen, one call", "<think>\nI call.\n</think>\n\n" + good, good.replace("Bern", "Bern\n"), "It rains.",
                     parallel_tool_calls=False)
        format_tests(stage)
        schema_tests(stage)
        failure_tests(stage)


def thinking_tests(stage):
    g, daemon = stage.gateway, stage.daemon
    for name, said, thought, content in (
            ("", "<think>\nHm, 1 < 2.\nSo: 3\n</think>\n\nIt is 3.", "Hm, 1 < 2.\nSo: 3", "It is 3."),
            (", nothing", "<think>\n\n</think>\n\nIt is 3.", None, "It is 3."),
            (" that does not end", "<think>Hm </thi", "Hm </thi", ""),
            (" only at the beginning", "It is <think>3</think>.", None, "It is <think>3</think>.")):
        daemon.say(said)
        whole = g.chat("Hello").json["choices"][0]["message"]
        deltas = [e["choices"][0]["delta"] for e in g.chat("Hello", stream=True).events]
        check("thinking%s is apart from the answer" % name, (whole.get("reasoning_content"), whole["content"]) == (thought, content), whole)
        check("... in a stream", "".join(d.get("reasoning_content", "") for d in deltas) == (thought or "") and
              "".join(d.get("content", "") for d in deltas) == content, deltas)
        message = g.post("/api/chat", {"messages": [{"role": "user", "content": "Hello"}], "stream": False}).json["message"]
        check("... Ollama's", (message.get("thinking"), message["content"]) == (thought, content), message)
    daemon.say("<think>Look it up.</think>\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>")
    whole = g.chat("Hello", tools=TOOLS).json["choices"][0]["message"]
    check("a call behind thinking", (whole["reasoning_content"], whole["content"], calls_of(whole)) ==
          ("Look it up.", None, [("get_weather", {})]), whole)
    daemon.say("<think>x</think>y")
    a = g.post("/v1/completions", {"prompt": "Hello"}).json["choices"][0]
    raw = g.post("/api/generate", {"prompt": "Hello", "raw": True, "stream": False}).json
    check("what is no conversation is text as it is", a["text"] == raw["response"] == "<think>x</think>y", (a, raw))


def object_tests():
    with Stage("llama3_1.jinja", ("<|python_tag|>", "<|eom_id|>")) as stage:
        call = '{"name": "get_weather", "parameters": {"city": "Bern"}}'
        for name, said, content, calls in (
                ("a call", call, None, [("get_weather", {"city": "Bern"})]),
                ("two of them", call + "; " + call, None, [("get_weather", {"city": "Bern"})] * 2),
                ("a call behind its special token", "<|python_tag|>" + call + "<|eom_id|>", None, [("get_weather", {"city": "Bern"})]),
                ("of a tool that there is not", call.replace("weather", "rich"), call.replace("weather", "rich"), []),
                ("JSON that is none", '{"answer": 42}', '{"answer": 42}', []),
                ("text", "It rains {a lot}.", "It rains {a lot}.", [])):
            stage.daemon.say(said)
            whole, streamed, reason = both_ways(stage.gateway, tools=TOOLS)
            check("Llama: %s" % name, whole["message"]["content"] == content and calls_of(whole["message"]) == calls ==
                  calls_of(streamed) and streamed["content"] == (content or ""), (whole, streamed))


def forced_object_tests():
    with Stage("llama3_1.jinja", ("<|python_tag|>", "<|eom_id|>")) as stage:
        good = '{"name": "get_weather", "parameters": {"city": "Bern", "days": 3}}'
        forced_tests(stage, "Llama", good, good.replace("days", "hours"), "It rains {a lot}.")


def forced_listed_tests(special):
    with Stage("mistral_v3.jinja", special) as stage:
        good = '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}]'
        if special:
            good = '[TOOL_CALLS]get_weather[ARGS]{"city": "Bern", "days": 3}'
        forced_tests(stage, "Mistral" + " with special tokens" * bool(special), good, good.replace("3", "33"), "It rains [a lot].")


def listed_tests(special):
    with Stage("mistral_v3.jinja", special) as stage:
        call = '{"name": "get_weather", "arguments": {"city": "Bern"}}'
        for name, said, content, calls in (
                ("a call", "[TOOL_CALLS] [%s]" % call, None, [("get_weather", {"city": "Bern"})]),
                ("two of them", "[TOOL_CALLS][%s, %s]" % (call, call), None, [("get_weather", {"city": "Bern"})] * 2),
                ("the newer way", '[TOOL_CALLS]get_weather[ARGS]{"city": "Bern"}', None, [("get_weather", {"city": "Bern"})]),
                ("a list that is none", "[TOOL_CALLS] [1, 2", "[TOOL_CALLS] [1, 2", []),
                ("text", "It rains [a lot].", "It rains [a lot].", [])):
            stage.daemon.say(said)
            whole, streamed, reason = both_ways(stage.gateway, tools=TOOLS)
            check("Mistral: %s" % name, (whole["message"]["content"] or "").strip() == (content or "").strip() and
                  calls_of(whole["message"]) == calls == calls_of(streamed), (whole, streamed))
            check("... with ids of nine characters", all(len(c["id"]) == 9 for c in whole["message"].get("tool_calls", [])))
        a = stage.gateway.chat("Hello", messages=[{"role": "assistant", "content": "I begin"}])
        check("what a template refuses is the request's fault", a.status == 400 and "roles must alternate" in a.json["error"]["message"], a.body)


def start_tests():
    with tempfile.TemporaryDirectory() as folder:
        for name, options, code in (("no daemon", ("--connect", "ipc://%s/none" % folder), 3), ("--listen of no port", ("--listen", "x"), 2),
                                    ("the whole network without keys", ("--listen", "0.0.0.0:0"), 2),
                                    ("a keys file that is not there", ("--api-keys", folder + "/keys"), 4)):
            run = processor.run([BIN + "/helm-gateway", *options], capture_output=True, timeout=60,
                                 env=dict(os.environ, HELM_ENDPOINT="ipc://%s/none" % folder))
            check("%s: exit status %d" % (name, code), run.returncode == code and run.stderr, (run.returncode, run.stderr))


if __name__ == "__main__":
    start_tests()
    tagged_tests()
    object_tests()
    listed_tests(special=())
    listed_tests(special=("[TOOL_CALLS]", "[ARGS]", "[INST]"))
    forced_object_tests()
    forced_listed_tests(special=())
    forced_listed_tests(special=("[TOOL_CALLS]", "[ARGS]", "[INST]"))
    sum_up()
