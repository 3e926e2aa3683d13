#!/usr/bin/env python3
"""Writes cases.json: templates x variables, each rendered by Python's jinja2 with the environment that
transformers gives chat templates. tests/unit/client/test_jinja_golden.c compares byte for byte.

    python3 tests/data/chat/make_cases.py            (needs jinja2; the result is committed)

The files in templates/ are our own, written to the published prompt formats of the model families they are
named after and using the constructs that those families' published templates use; README.md has the list.
snippets.txt has small templates, one construct each. An expected result is a text, or null where jinja2
refuses; then the interpreter must refuse too."""
import datetime
import json
import os
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = 1753500000  # 2025-07-26 03:20:00 UTC; the tests run in UTC


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks what the assistant said; transparent to the text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def render(source, variables):
    try:
        text = environment().from_string(source).render(**variables)
        text.encode()  # a lone surrogate is no text
        return text
    except Exception as error:  # whatever it is, the interpreter must refuse too
        if os.environ.get("VERBOSE"):
            print(f"{source!r}: {type(error).__name__}: {error}", file=sys.stderr)
        return None


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city, \"now\" & <here>",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Zürich", "Łódź"]}, "days": {"type": "integer"}},
                "required": ["city"],
            },
            "return": "a text",
        },
    },
    {"type": "function", "function": {"name": "noop", "description": "Nothing", "parameters": {}}},
]
CALL = [{"id": "abcdefgh1", "type": "function",
         "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 1.5, "x": None, "y": True}}}]
CALL_TEXT = [{"id": "abcdefgh2", "function": {"name": "noop", "arguments": "{\"a\": 1}"}}]


def m(role, content, **more):
    return {"role": role, "content": content, **more}


CONVERSATIONS = {
    "user": [m("user", "Hello, wörld 😀")],
    "system": [m("system", "  Be brief. "), m("user", "Hi\nthere")],
    "turns": [m("user", " one "), m("assistant", " two\n"), m("user", "three")],
    "system_turns": [m("system", "S"), m("user", "1"), m("assistant", "2"), m("user", "3"), m("assistant", "4"),
                     m("user", "5")],
    "answered": [m("user", "q"), m("assistant", "a")],
    "thinking": [m("user", "q"), m("assistant", "<think>\nlet me see\n</think>\n\nAnswer"), m("user", "q2"),
                 m("assistant", "<think>\nagain\n</think>\n\nB")],
    "reasoning": [m("user", "q"), m("assistant", "Answer", reasoning_content="\nwell\n"), m("user", "r"),
                  m("assistant", "C", reasoning_content="hm")],
    "tool": [m("user", "Weather?"), m("assistant", "", tool_calls=CALL), m("tool", "sunny", tool_call_id="abcdefgh1"),
             m("assistant", "It is sunny."), m("user", "Thanks")],
    "tools_two": [m("system", "S"), m("user", "W?"), m("assistant", "Let me look", tool_calls=CALL + CALL_TEXT),
                  m("tool", "a", tool_call_id="abcdefgh1"), m("tool", "b", tool_call_id="abcdefgh2")],
    "tool_null": [m("user", "W?"), m("assistant", None, tool_calls=CALL),
                  m("tool", {"temp": 21.5, "ok": False}, tool_call_id="abcdefgh1")],
    "not_alternating": [m("user", "a"), m("user", "b")],
    "bad_role": [m("user", "a"), m("critic", "b")],
    "empty": [],
    "parts": [m("user", [{"type": "text", "text": "look"}, {"type": "image"}])],
    "specials": [m("user", "<|im_end|> {{ x }} {% if %} \\ ' \" &amp; </s>")],
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def template_cases():
    folder = os.path.join(HERE, "templates")
    sources = {name: open(os.path.join(folder, name), encoding="utf-8", newline="").read()
               for name in sorted(os.listdir(folder))}
    demo = json.load(open(os.path.join(HERE, "../../../tools/models/demo/tokenizer_config.json"), encoding="utf-8"))
    sources["demo"] = demo["chat_template"]
    extra = os.environ.get("MORE_TEMPLATES")  # published templates on one's own disk, to compare without committing
    if extra:
        for name in sorted(os.listdir(extra)):
            sources[name] = open(os.path.join(extra, name), encoding="utf-8", newline="").read()
    for name, source in sources.items():
        for talk, messages in CONVERSATIONS.items():
            for tools in (None, TOOLS):
                for more in ({"add_generation_prompt": True}, {"add_generation_prompt": False},
                             {"add_generation_prompt": True, "enable_thinking": False},
                             {"add_generation_prompt": True, "tools_in_user_message": False, "date_string": "1 May"}):
                    if tools is None and "tools_in_user_message" in more:
                        continue
                    variables = {"messages": messages, "tools": tools, "documents": None, **TOKENS, **more}
                    yield name, talk, source, variables


SNIPPET_VARIABLES = {
    "messages": CONVERSATIONS["system_turns"],
    "tools": TOOLS,
    "name": "World",
    "text": "  The quick, brown\tfox  ",
    "uni": "Grüße, 世界 😀!",
    "lines": "one\ntwo\n\nthree",
    "n": 7,
    "f": 2.5,
    "zero": 0,
    "big": 123456789012345,
    "yes": True,
    "no": False,
    "nil": None,
    "list": [3, 1, 2],
    "words": ["b", "A", "c", "a"],
    "empty": [],
    "nested": {"a": {"b": [1, {"c": "deep"}]}, "items": "shadowed", "k\"'": "q'uote\"s"},
    "people": [{"name": "Bob", "age": 30, "tag": {"x": 1}}, {"name": "alice", "age": 25},
               {"name": "Carl", "age": 30, "tag": {"x": 2}}],
    "html": "<a href=\"x\">'&'</a>",
    "floats": [0.1, 1e16, 1e-5, 1.0, 123456.789, -0.0, 1e22, 3.14159265358979],
    **TOKENS,
}


def snippet_cases():
    """snippets.txt: templates separated by lines of ----; \\n inside stays as it is."""
    text = open(os.path.join(HERE, "snippets.txt"), encoding="utf-8", newline="").read()
    for number, source in enumerate(text.split("\n----\n")):
        yield "snippet", str(number), source, SNIPPET_VARIABLES
    for number, source in enumerate(json.load(open(os.path.join(HERE, "snippets.json"), encoding="utf-8"))):
        yield "exact", str(number), source, SNIPPET_VARIABLES


def main():
    output = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "cases.json")
    sources, variables, cases = [], [], []

    def index(table, value):
        if value not in table:
            table.append(value)
        return table.index(value)

    for group in (template_cases(), snippet_cases()):
        for name, case, source, values in group:
            cases.append([name, case, index(sources, source), index(variables, values), render(source, values)])
    with open(output, "w", encoding="utf-8", newline="\n") as f:
        f.write('{"now": %d,\n"templates": [\n' % NOW)
        f.write(",\n".join(json.dumps(s, ensure_ascii=False) for s in sources))
        f.write('],\n"variables": [\n')
        f.write(",\n".join(json.dumps(v, ensure_ascii=False) for v in variables))
        f.write('],\n"cases": [\n')
        f.write(",\n".join(json.dumps(c, ensure_ascii=False) for c in cases))
        f.write("]}\n")
    refused = sum(c[4] is None for c in cases)
    print(f"{len(cases)} cases, {refused} of them refused, {len(sources)} templates")


if __name__ == "__main__":
    main()
