#!/usr/bin/python3
"""helm-gateway before a stand-in daemon, family by family: what each writes as thinking, text and calls comes apart, whole and
streamed, in chats, Responses and Ollama's API; forced and strict calls are written as the family writes them.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
from gateway_harness import BIN, Gateway, Scripted, check, cli, ids_of, model_folder, sum_up  # noqa: E402
from test_cli_gguf import DAEMON, FILE, with_keys  # noqa: E402
from test_gateway_scripted import Stage, both_ways, calls_of  # noqa: E402

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": PARAMETERS}}]
STRICT = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "strict": True,
                                            "parameters": {**PARAMETERS, "additionalProperties": False}}}]
HELLO = [{"role": "user", "content": "Hello"}]
HARMONY = ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>")
BAR, LOW = "\uff5c", "\u2581"


def deep(name):
    return "<" + BAR + "tool" + LOW + name.replace(" ", LOW) + BAR + ">"


# template, special tokens, an answer with thinking and text, what comes before a call, a call of get_weather(city, days), around it
FAMILIES = {
    "harmony": ("gpt_oss.jinja", HARMONY,
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It rains.",
                "<|channel|>analysis<|message|>A tool.<|end|><|start|>assistant",
                '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Bern", "days": 3}'),
    "Qwen3-Coder": ("qwen3_coder.jinja", (), "<think>\nHm.\n</think>\n\nIt rains.", "<think>A tool.</think>\n",
                    "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
                    "</function>\n</tool_call>"),
    "GLM": ("glm.jinja", ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>", "<|system|>"),
            "<think>Hm.</think>It rains.", "<think>A tool.</think>",
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bern</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"),
    "GLM-4": ("glm4.jinja", ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>", "<|system|>"),
              "<think>Hm.</think>\nIt rains.", "", 'get_weather\n{"city": "Bern", "days": 3}'),
    "OLMo 3": ("olmo3.jinja", (), "<think>Hm.</think>\nIt rains.", "<think>A tool.</think>\n",
               '<function_calls>\nget_weather(city="Bern", days=3)\n</function_calls>'),
    "Gemma 4": ("gemma4.jinja", ("<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>", '<|"|>', "<|think|>"),
                "<|channel>thought\nHm.\n<channel|>It rains.", "<|channel>thought\nA tool.<channel|>",
                '<|tool_call>call:get_weather{city:<|"|>Bern<|"|>,days:3}<tool_call|>'),
    "Kimi": ("kimi.jinja", ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>",
                            "<|tool_call_argument_begin|>"), None, "",
             '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Bern", "days": 3}'
             '<|tool_call_end|><|tool_calls_section_end|>'),
    "MiniMax": ("minimax.jinja", (), "Hm.\n</think>\n\nIt rains.", "A tool.</think>\n",
                '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Bern</parameter>\n<parameter name="days">3</parameter>\n'
                '</invoke>\n</minimax:tool_call>'),
    "Seed-OSS": ("seed_oss.jinja", (), "<seed:think>Hm.</seed:think>It rains.", "<seed:think>A tool.</seed:think>\n",
                 "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Bern</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>"),
    "Nemotron": ("nemotron.jinja", (), "<think>\nHm.\n</think>\n\nIt rains.", "", '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Bern", "days": 3}}]</TOOLCALL>'),
    "DeepSeek V3.1": ("deepseek_v3_1.jinja", tuple(map(deep, ("calls begin", "calls end", "call begin", "call end", "sep"))), None, "",
                      deep("calls begin") + deep("call begin") + "get_weather" + deep("sep") + '{"city": "Bern", "days": 3}' + deep("call end") +
                      deep("calls end")),
}
WANTED = [("get_weather", {"city": "Bern", "days": 3})]


def responses_of(g, **more):
    """Reasoning, text and calls of a response, whole; then of its stream."""
    whole = g.post("/v1/responses", {"input": "Hello", **more}).json["output"]
    body = g.post("/v1/responses", {"input": "Hello", "stream": True, **more}).body.decode()
    events = [json.loads(line[6:]) for line in body.split("\n") if line.startswith("data: ")]
    streamed = {}
    for e in events:
        if e["type"].endswith(".delta"):
            streamed[e["output_index"]] = streamed.get(e["output_index"], "") + e["delta"]
    parts = [(i["type"], i["arguments"] if i["type"] == "function_call" else "".join(c["text"] for c in i["content"])) for i in whole]
    return parts, [streamed[k] for k in sorted(streamed)], [e["item"] for e in events if e["type"] == "response.output_item.done"]


def family_tests(name, template, special, answer, before, call):
    with Stage(template, special) as stage:
        g, daemon = stage.gateway, stage.daemon
        if answer:
            daemon.say(answer)
            whole, streamed, reason = both_ways(g)
            check("%s: thinking and text" % name, (whole["message"].get("reasoning_content"), whole["message"]["content"], reason) ==
                  ("Hm.", "It rains.", "stop") and streamed["content"] == "It rains.", (whole, streamed))
            parts, deltas, items = responses_of(g)
            check("... in a response", parts == [("reasoning", "Hm."), ("message", "It rains.")] and deltas == ["Hm.", "It rains."], (parts, deltas))
            m = g.post("/api/chat", {"messages": HELLO, "stream": False}).json["message"]
            check("... Ollama's", (m.get("thinking"), m["content"]) == ("Hm.", "It rains."), m)
        daemon.say(before + call)
        whole, streamed, reason = both_ways(g, tools=TOOLS)
        thought = "A tool." if before else None
        check("%s: a call" % name, calls_of(whole["message"]) == calls_of(streamed) == WANTED and reason == "tool_calls" and
              whole["message"]["content"] is None and whole["message"].get("reasoning_content") == thought, (whole, streamed))
        deltas = [e["choices"][0]["delta"]["tool_calls"] for e in g.chat("Hello", stream=True, tools=TOOLS).events
                  if "tool_calls" in e["choices"][0]["delta"]]
        check("... its name first, then its arguments", len(deltas) > 2 and deltas[0][0]["function"]["name"] == "get_weather" and
              all("name" not in d[0]["function"] for d in deltas[1:]), deltas)
        tools = [{"type": "function", **TOOLS[0]["function"]}]
        parts, deltas, items = responses_of(g, tools=tools)
        check("... in a response", json.loads(parts[-1][1]) == WANTED[0][1] == json.loads(deltas[-1]) == json.loads(items[-1]["arguments"]) and
              items[-1]["status"] == "completed", (parts, deltas, items))
        lines = g.post("/api/chat", {"messages": HELLO, "tools": TOOLS}).lines
        check("... Ollama's", [(c["function"]["name"], c["function"]["arguments"]) for m in lines for c in m["message"].get("tool_calls", [])] ==
              WANTED, lines)
        forced_tests(stage, name, before, call)
        history = [*HELLO, whole["message"], {"role": "tool", "tool_call_id": whole["message"]["tool_calls"][0]["id"], "content": "rain"}, *HELLO]
        a = g.post("/v1/chat/completions", {"messages": history, "tools": TOOLS})
        check("... and back", a.status == 200 and "Bern" in stage.prompt(), (a.body, stage.prompt()))
        if name == "GLM-4":
            check("... as messages of their own", '<|assistant|>get_weather\n{"city":"Bern","days":3}<|observation|>\nrain<|user|>' in stage.prompt(), stage.prompt())
            daemon.say("\nIt rains.\nget_weather\n{}")
            check("... text of lines beside a strict tool", g.chat("Hello", tools=STRICT).json["choices"][0]["message"]["content"].strip() ==
                  "It rains.\nget_weather\n{}")
        if name == "OLMo 3":
            check("... as Python", '<function_calls>get_weather(city="Bern", days=3)</function_calls><|im_end|>\n<|im_start|>environment\nrain' in stage.prompt(),
                  stage.prompt())
        if name == "Kimi":
            check("... with ids that name the function", call in stage.prompt() and "Return of functions.get_weather:0:rain" in stage.prompt(), stage.prompt())


def forced_tests(stage, name, before, call):
    g, daemon = stage.gateway, stage.daemon
    named = {"type": "function", "function": {"name": "get_weather"}}
    for tools in (TOOLS, STRICT):
        for choice in ("required", named):
            whole, streamed, reason = both_ways(g, tools=tools, tool_choice=choice)
            check("... forced, %s" % ("strict" if tools is STRICT else "any"), calls_of(whole["message"]) == calls_of(streamed) == WANTED, whole)
    daemon.say(before + call.replace("days", "hours"))
    a = g.chat("Hello", tools=STRICT)
    check("... strict arguments that do not fit end it", a.status == 500, a.body)
    daemon.say(before + call)
    check("... strict with auto", calls_of(g.chat("Hello", tools=STRICT).json["choices"][0]["message"]) == WANTED)
    daemon.say("It rains.")
    check("... text is no call", g.chat("Hello", tools=TOOLS, tool_choice="required").status == 500)


def harmony_tests():
    """Properties of channels alone: formats belong to the final one, the prompt says how much is to be thought."""
    with Stage("gpt_oss.jinja", HARMONY) as stage:
        g, daemon = stage.gateway, stage.daemon
        wanted = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
        final, analysis = "<|channel|>final<|message|>", "<|channel|>analysis<|message|>{ no<|end|><|start|>assistant"
        for said, content in ((final + '{"a": 1}', '{"a": 1}'), (analysis + final + '{"a": 1}', '{"a": 1}'), (final + "no", None), ('{"a": 1}', None),
                              ('<|channel|>final <|constrain|>json<|message|>{"a": 1}', '{"a": 1}')):
            daemon.say(said)
            a = g.chat("Hello", response_format=wanted)
            check("harmony: a format: %s" % said, a.status == 200 and a.json["choices"][0]["message"]["content"] == content if content else
                  a.status == 500, a.body)
        for fields, said in (({}, "medium"), ({"reasoning_effort": "high"}, "high"), ({"reasoning_effort": "none"}, "low"),
                             ({"chat_template_kwargs": {"enable_thinking": False}}, "low"), ({"reasoning_effort": "xhigh"}, "high"),
                             ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "high")):
            daemon.say(final + "x")
            g.chat("Hello", **fields)
            check("... %s" % fields, "Think: %s\n" % said in stage.prompt(), stage.prompt())
        g.post("/v1/responses", {"input": "Hello", "reasoning": {"effort": "high"}})
        check("... reasoning.effort", "Think: high\n" in stage.prompt(), stage.prompt())
        g.post("/api/chat", {"messages": HELLO, "think": "low"})
        check("... think", "Think: low\n" in stage.prompt(), stage.prompt())
        a = g.chat("Hello", reasoning_effort="much")
        check("... another word is refused by its name", a.status == 400 and a.json["error"]["param"] == "reasoning_effort", a.body)
        called = [{"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": None}}]
        for member in ({"reasoning": "Because."}, {"reasoning_content": "Because."}, {"thinking": "Because."},
                       {"reasoning_details": [{"type": "reasoning.text", "text": "Because."}, {"type": "reasoning.encrypted", "data": "x"}]}):
            g.chat("", messages=[*HELLO, {"role": "assistant", "content": None, "tool_calls": called, **member},
                                 {"role": "tool", "tool_call_id": "a", "content": "rain"}], tools=TOOLS)
            check("... %s of the past" % list(member)[0], "<|channel|>analysis<|message|>Because.<|end|>" in stage.prompt() and
                  "<|message|>{}<|call|>" in stage.prompt(), stage.prompt())


def cut_tests():
    """Calls that the length cuts, and arguments that are wrong."""
    with Stage("qwen3.jinja") as stage:
        g, daemon = stage.gateway, stage.daemon
        half = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Be'
        daemon.say(half + "rn and more, and more, and more")
        length = len(daemon.script)  # the stand-in says so many tokens, and that the length ended them
        daemon.how = 20
        whole, streamed, reason = both_ways(g, tools=TOOLS, max_tokens=length)
        call = whole["message"]["tool_calls"][0]["function"]
        check("a call that is cut ends by length", (whole["finish_reason"], reason) == ("length", "length") and
              call["arguments"].startswith('{"city":"Bern') and streamed["tool_calls"][0]["function"] == call, (whole, streamed))
        message = g.post("/api/chat", {"messages": HELLO, "tools": TOOLS, "stream": False, "options": {"num_predict": length}}).json["message"]
        check("... Ollama's have objects: it is text there", "tool_calls" not in message and message["content"].startswith('{"city":"Bern'), message)
        items = g.post("/v1/responses", {"input": "Hello", "max_output_tokens": length, "tools": [{"type": "function", **TOOLS[0]["function"]}]}).json
        check("... an item says so", items["status"] == items["output"][0]["status"] == "incomplete", items)
        daemon.how = 11
        daemon.say('<tool_call>\n{"name": "get_weather", "arguments": {"price": 19.99, "big": 123456789012345678901234567890}}\n</tool_call>')
        whole, streamed, _ = both_ways(g, tools=TOOLS)
        check("numbers keep their digits", whole["message"]["tool_calls"][0]["function"]["arguments"] == streamed["tool_calls"][0]["function"]["arguments"]
              == '{"price":19.99,"big":123456789012345678901234567890}', whole)
        body = g.post("/api/chat", {"messages": HELLO, "tools": TOOLS, "stream": False}).body
        check("... Ollama's too", b'{"price":19.99,"big":123456789012345678901234567890}' in body, body)
        for fields in ({"reasoning_effort": "none"}, {"reasoning_effort": "minimal"}, {"chat_template_kwargs": {"enable_thinking": False}},
                       {"chat_template_kwargs": {"thinking": False}}, {"reasoning": {"effort": "none"}}, {"reasoning": {"enabled": False}},
                       {"enable_thinking": False}, {"think": False}, {"reasoning_budget": 0}, {"thinking_budget": 0}, {"thinking": {"type": "disabled"}}, {"thinking": {"type": "disabled"}, "reasoning_effort": "high"}):
            g.chat("Hello", **fields)
            check("no thinking: %s" % fields, stage.prompt().endswith("<think>\n\n</think>\n\n"), stage.prompt())
            daemon.say("<think>Hm.</think>{}")
            check("... nor in a grammar", g.chat("Hello", response_format={"type": "json_object"}, **fields).status == 500)
        for path, fields in (("/v1/messages", {"max_tokens": 9, "thinking": {"type": "disabled"}}), ("/v1/messages", {"max_tokens": 9, "output_config": {"effort": "none"}}),
                             ("/v1/responses", {"reasoning": {"effort": "none"}}), ("/api/chat", {"think": False}), ("/api/generate", {"think": "none"})):
            a = g.post(path, {("input" if "responses" in path else "prompt" if "generate" in path else "messages"): HELLO if path in ("/v1/messages", "/api/chat") else "Hello", **fields})
            check("... %s: %s" % (path, fields), a.status == 200 and stage.prompt().endswith("<think>\n\n</think>\n\n"), (a.body, stage.prompt()))
        a = g.chat("Hello", reasoning={"exclude": True})
        check("... an answer without its thinking is refused by name", a.status == 400 and "exclude" in a.body.decode(), a.body)
        daemon.say("<think>Hm.</think>{}")
        check("... which has it otherwise", g.chat("Hello", response_format={"type": "json_object"}, reasoning_effort="high").status == 200)


def unknown_tests():
    with Stage("qwen3.jinja") as stage:
        path = stage.folder + "/chat_template.jinja"
        with open(path) as f:
            text = f.read().replace("tool_call>", "action>")
        with open(path, "w") as f:
            f.write(text)
        stage.gateway.stop()
        stage.gateway.__init__(stage.endpoint)
        a = stage.gateway.chat("Hello", tools=TOOLS)
        check("a syntax in no row is refused", a.status == 400 and a.json["error"]["param"] == "tools" and
              "none of the ways to write calls" in a.json["error"]["message"] and "Qwen3-Coder" in a.json["error"]["message"], a.body)
        check("... and a chat without tools is not", stage.gateway.chat("Hello").status == 200)


def ends_of(template, special, text=None):
    """The stop tokens of a chat and of a raw prompt, by name."""
    folder = model_folder(template, special)
    if text is not None:
        with open(folder + "/chat_template.jinja", "w") as f:
            f.write(text)
    daemon, seen = Scripted("ipc://%s/helmd.sock" % folder, folder), []
    handle = daemon.handle

    def note(client, request):
        if request.WhichOneof("body") == "generate":
            seen.append(set(request.generate.stop_token_ids))
        handle(client, request)
    daemon.handle = note
    daemon.say("x")
    daemon.start()
    try:
        with Gateway(daemon.endpoint) as g:
            g.chat("Hello")
            g.complete("Hello")
            g.chat("Hello", ignore_eos=True)
        return seen, {name: ids_of(name, folder)[0] for name in special}
    finally:
        daemon.stop()
        shutil.rmtree(folder)


def ends_tests():
    names = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "<|user|>", "<|over|>")
    written = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|over|>{% endfor %}[assistant]"
    (chat, raw, on), ids = ends_of("qwen3.jinja", names, written)
    check("ends: known names, and what the template writes after an answer", chat >= {ids[n] for n in names if n != "<|user|>"}, (chat, ids))
    check("... of a raw prompt, too", raw == chat, (raw, chat))
    check("... but no token that is an end in another family alone", ids["<|user|>"] not in chat, (chat, ids))
    check("... and none with ignore_eos", on == set(), on)
    (chat, _, _), ids = ends_of("gpt_oss.jinja", HARMONY)
    check("... harmony's: a message's end is none", {ids["<|return|>"], ids["<|call|>"]} <= chat and ids["<|end|>"] not in chat, (chat, ids))
    (chat, _, _), ids = ends_of("glm.jinja", ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>", "<|system|>"))
    check("... GLM's next turns", {ids["<|user|>"], ids["<|observation|>"]} <= chat and ids["<|assistant|>"] not in chat, (chat, ids))


def cli_tests():
    """helm-cli shows harmony's channels as it shows other models' thinking."""
    folder = model_folder("gpt_oss.jinja", HARMONY)
    daemon = Scripted("ipc://%s/helmd.sock" % folder, folder)
    daemon.say(FAMILIES["harmony"][2])
    daemon.start()
    at = ("--connect", daemon.endpoint)
    try:
        out = cli(*at, "run", "--chat", "Hello")
        check("run --chat: channels", out == "<think>\nHm.\n</think>\n\nIt rains.\n", out)
        out = json.loads(cli(*at, "run", "--chat", "--json", "Hello"))
        check("... as JSON", out["text"] == "<think>\nHm.\n</think>\n\nIt rains.", out)
        out = cli(*at, "run", "--chat", "--show-special", "Hello")
        check("... --show-special: as it is", out.startswith("<|channel|>analysis<|message|>"), out)
        out = subprocess.run([BIN + "/helm-cli", *at, "chat"], input=b"Hello\nAgain\n", capture_output=True).stdout.decode()
        prompt = cli("--tokenizer", folder, "detokenize", ",".join(map(str, daemon.prompts[-1])))
        check("chat: the answer alone is remembered", out.count("It rains.") == 2 and "final<|message|>It rains.<|end|>" in prompt and "Hm." not in prompt,
              (out, prompt))
        with open(folder + "/schema", "w") as f:
            f.write('{"type": "object", "properties": {"a": {"type": "integer"}}}')
        daemon.say('<|channel|>final<|message|>{"a": 1}')
        out = cli(*at, "run", "--chat", "--json-schema", folder + "/schema", "Hello")
        check("... a schema applies to the final channel", out == '{"a": 1}\n', out)
    finally:
        daemon.stop()
        shutil.rmtree(folder)


def pooling_tests():
    """A file's own pooling is the default of embeddings."""
    with tempfile.TemporaryDirectory(prefix="helm-pooling-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        for kind, same in ((3, "last"), (1, "mean"), (0, "mean"), (2, None)):
            path = folder + "/pooling-%d.gguf" % kind
            with open(path, "wb") as f:
                f.write(with_keys(FILE, {"qwen3.pooling_type": kind}))
            with Gateway(None, "--model", path, *DAEMON) as g:
                def embed(**more):
                    a = g.post("/v1/embeddings", {"input": "one two three", **more})
                    return [round(x, 4) for x in a.json["data"][0]["embedding"]] if a.status == 200 else a.json["error"]
                own, last, mean = embed(), embed(pooling="last"), embed(pooling="mean")
                check("pooling_type %d" % kind, last != mean and (own == {"last": last, "mean": mean}[same] if same else
                                                                 own["param"] == "pooling" and "'cls'" in own["message"]), own)
            os.remove(path)


if __name__ == "__main__":
    for family, row in FAMILIES.items():
        family_tests(family, *row)
    harmony_tests()
    cut_tests()
    unknown_tests()
    ends_tests()
    cli_tests()
    pooling_tests()
    sum_up()
