#!/usr/bin/python3
"""Chats with hybrids of gated delta nets, whose state can be restored only where a snapshot was taken (docs/state.md): branching
conversations, regenerated answers and edited last turns, from a client that marks messages and through helm-gateway and helm-cli.
Each says how many tokens it found, and answers as a daemon that knows nothing."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hybrid_files  # noqa: E402
import processor  # noqa: E402
from gateway_harness import Gateway  # noqa: E402
from helmd_harness import BIN, SLOW, Client, check, plan_json, run_tests, running, same, status_of  # noqa: E402

PAGE = 32
FOLDER = tempfile.TemporaryDirectory(prefix="helm-chats-")
MODEL = os.path.join(FOLDER.name, "model")
OPTIONS = ("--kv-dtype", "f32", "--threads", 2, "--activations", "exact", "--kv-page-tokens", PAGE)


def start(*options):
    return running("--device", "cpu", *OPTIONS, *options, real=True, model=MODEL)


def text_of(count, kind):
    """Tokens of a message, other ones for each kind."""
    return [3 + (i * 7 + i // 30 + kind * 11 + i * i * kind) % 250 for i in range(count)]


def ask(c, prompt, marks=(), count=12, **fields):
    """How many tokens were found, and the answer."""
    s = c.generate(prompt, count, ignore_eos=True, marks=marks, **fields)
    c.run(s)
    check(not s.error, s.error)
    same(len(s.tokens), count, "tokens of an answer")
    return s.done.usage.cached_tokens, s.tokens


def whole(tokens):
    """Where the last page in front of so many tokens ends."""
    return tokens // PAGE * PAGE


class Fresh:
    """Answers of a daemon that finds nothing."""

    def __init__(self):
        self.daemon = running("--device", "cpu", *OPTIONS, "--prefix-cache", "off", real=True, model=MODEL)
        self.client, self.known = Client(self.daemon.__enter__().endpoint), {}

    def __call__(self, prompt, count=12):
        key = (tuple(prompt), count)
        if key not in self.known:
            found, self.known[key] = ask(self.client, prompt, count=count)
            same(found, 0, "found by a daemon that knows nothing")
        return self.known[key]

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.client.close()
        self.daemon.__exit__(*failure)


def chat(*messages):
    """The prompt, and its marks: the ends of its messages."""
    prompt, marks = [], []
    for message in messages:
        prompt = prompt + message
        marks.append(len(prompt))
    return prompt + [259, 5], marks  # the beginning of the answer


SYSTEM, FIRST, SECOND = text_of(210, 1), text_of(150, 2), text_of(170, 3)


def test_branches_regenerated_answers_and_edited_turns():
    for options in ((), ("--invariant", "on")):
        with start(*options) as d, Fresh() as fresh:
            c = Client(d.endpoint)

            def turn(what, found, *messages):
                prompt, marks = chat(*messages)
                got, answer = ask(c, prompt, marks)
                same(got, found, f"{options} {what}: tokens found of {len(prompt)}")
                same(answer, fresh(prompt), f"{options} {what}: the answer")
                return answer
            system, second = whole(210), whole(210 + 150 + 100)
            turn("a new conversation", 0, SYSTEM, FIRST)
            turn("another one with this system message", system, SYSTEM, SECOND)
            turn("its answer again", whole(210 + 170), SYSTEM, SECOND)
            edited = text_of(100, 4)  # the answer, as its client shows it: without what was thought
            turn("the first goes on", whole(210 + 150), SYSTEM, FIRST, edited, SECOND)
            turn("its answer again", whole(210 + 150 + 100 + 170), SYSTEM, FIRST, edited, SECOND)
            turn("its last turn edited", second, SYSTEM, FIRST, edited, text_of(90, 5))
            turn("edited again", second, SYSTEM, FIRST, edited, text_of(95, 6))
            turn("a branch of the first turn", whole(210 + 150), SYSTEM, FIRST, text_of(80, 7), SECOND)
            s = status_of(d)
            same((s.snapshot_hits_total, s.snapshots_dropped_total), (7, 0), "counted")
            check(0 < s.snapshots <= s.snapshots_total and s.snapshot_bytes > 0, f"{s}")


def test_without_marks_a_prompt_is_found_whole():
    with start() as d, Fresh() as fresh:
        c = Client(d.endpoint)
        prompt = chat(SYSTEM, FIRST, SECOND)[0]
        edited = chat(SYSTEM, FIRST, text_of(90, 5))[0]
        same([ask(c, p)[0] for p in (prompt, prompt, edited, edited)], [0, whole(530), 0, whole(450)], "tokens found")
        same(ask(c, edited)[1], fresh(edited), "the answer")
        long = text_of(2500, 8)  # every 1,024 tokens there is one
        same([ask(c, long[:n] + text_of(60, 9 + n % 7), count=2)[0] for n in (2500, 2300, 1900)], [0, 2048, 1024], "of a long prompt")


def test_an_answer_goes_on():
    """The next turn has the answer as it was sampled: it goes on from the answer's last page."""
    with start() as d, Fresh() as fresh:
        c = Client(d.endpoint)
        prompt, marks = chat(SYSTEM, FIRST)
        answer = ask(c, prompt, marks, 75)[1]
        longer = prompt + answer + [260] + SECOND + [259, 5]
        found, again = ask(c, longer, [*marks, len(prompt) + 75, len(longer) - 2])
        same(found, whole(len(prompt) + 74), "found up to the answer's last page")
        same(again, fresh(longer), "the answer after it")


def test_marks_are_checked():
    with start() as d:
        c = Client(d.endpoint)
        for marks, said in (([0], "marks[0] is 0"), ([5, 5], "marks[1] is 5"), ([11], "marks[0] is 11, must be in [1, 10]"),
                            (range(1, 66), "marks has 65 entries, at most 64")):
            s = c.generate(text_of(100 if len(marks) > 9 else 10, 1), 4, marks=marks)
            c.run(s)
            check(said in str(s.error), f"{list(marks)}: {s.error}")
        same(ask(c, text_of(100, 1), range(30, 94))[0], 0, "as many as there may be")


def test_a_full_budget_keeps_what_lives():
    record = [line for line in json.loads(plan_of())["host"]["lines"] if "snapshots of fixed states" in line["what"]][0]
    each = record["bytes"] // int(record["what"].split()[0])
    with start("--state-snapshots", 6 * each) as d:
        check("6 snapshots of fixed states" in d.log(), "the ledger's line")
        c = Client(d.endpoint)
        talk = [text_of(210, 20), text_of(2200, 21), text_of(150, 22), text_of(160, 23)]
        ask(c, *chat(*talk))  # marks, and what is periodic at 1024 and 2048
        same(status_of(d).snapshots, 6, "all are in use")
        for n in range(3):
            ask(c, *chat(text_of(130, 30 + n)), count=2)  # others ask as well
            same(ask(c, *chat(*talk[:3], text_of(100 + n, 40 + n)), count=2)[0], whole(210 + 2200 + 150), f"an edited turn, {n}")
        s = status_of(d)
        same((s.snapshots, s.snapshots_total, s.snapshot_bytes, s.snapshot_hits_total), (6, 6, each, 3), "counted")
        check(s.snapshots_dropped_total >= 3, f"{s}")
        shown = processor.run([os.path.join(BIN, "helm-cli"), "--connect", d.endpoint, "status"], stdout=subprocess.PIPE, text=True,
                               timeout=60 * SLOW).stdout
        check(re.search(r"snapshots +6 of 6, .* each; 3 sequences began with one, \d+ dropped", shown), shown)


def plan_of():
    with start() as d:
        return Client(d.endpoint).ask("plan").plan.json


def drawn(c, prompt, marks, count, seed):
    """A request; of a seed other than 0 its tokens are drawn, as those of several answers to one prompt."""
    return c.generate(prompt, count, ignore_eos=True, marks=marks, seed=seed, sampling={"temperature": 1.0 if seed else 0.0})


def begun(c, asked):
    """Requests at once, until each has a token or is over."""
    streams = [drawn(c, *request) for request in asked]
    while not all(s.tokens or s.ended for s in streams):
        c.receive()
    return streams


def test_states_never_mix():
    """Eight at once, three of them answers to one prompt, of a pool and a budget too small for them, with cancels and deaths between: each
    answer is that of a request alone. On the CPU, and on both processors."""
    asked = []
    for n in range(8):
        kind = max(n - 2, 0)
        prompt, marks = chat(text_of(100, kind % 3), text_of(90 + 17 * kind, 50 + kind), text_of(70, 60 + kind))
        asked.append((prompt, marks, 60 - n, n if n < 3 else 0))
    few = {"kv_dtype": "f32", "context_tokens": 480, "page_count": 48, "step_tokens": 512, "state_snapshots": 12}
    for what, plan in ((("--ctx", 480, "--kv-tokens", 1536, "--state-snapshots", "6MiB"), None),
                       (("--device", "emulated"), plan_json(4, "gcggcgcg", "g", "g", **few))):
        states_of_one_never_mix(asked, what, plan)


def states_of_one_never_mix(asked, options, plan):
    def begin(*more):
        return running(*OPTIONS, "--invariant", "on", *(() if plan else ("--device", "cpu")), *more, *options, real=True, model=MODEL, plan=plan)
    alone = []
    with begin("--prefix-cache", "off") as d:
        c = Client(d.endpoint)
        for request in asked:
            s = drawn(c, *request)
            c.run(s)
            check(not s.error and len(s.tokens) == request[2], f"{s.error}: {len(s.tokens)} tokens")
            alone.append((request[0], s.tokens))
    with begin() as d:
        c = Client(d.endpoint)
        for round_ in range(4):
            streams = begun(c, asked[round_:] + asked[:round_])
            want = alone[round_:] + alone[:round_]
            cancelled = streams[1::3] if round_ % 2 else []
            for s in cancelled:
                number = next(n for n, other in c.streams.items() if other is s)
                c.ask("cancel", request_id=number)
            if round_ >= 2:
                os.kill(d.children()["gpu" if plan and round_ == 2 else "cpu"], signal.SIGKILL)
            c.run(*streams, timeout=120)
            for n, (s, (prompt, answer)) in enumerate(zip(streams, want)):
                check(not s.error, f"round {round_}: {s.error}")
                check(s in cancelled or len(s.tokens) == len(answer), f"round {round_}, sequence {n}: {len(s.tokens)} tokens")
                same(s.tokens, answer[:len(s.tokens)], f"round {round_}, sequence {n} of 8, a prompt of {len(prompt)}")
        # a death that came after the last token is only being counted
        processor.until(lambda: status_of(d).workers[0].restarts == 2)
        s = status_of(d)
        if plan:
            same(s.snapshots_total, plan["state_snapshots"], "as many snapshots as the plan states")
        check(min(s.preemptions_total, s.snapshots_dropped_total, s.snapshot_hits_total) > 0, f"{s}")
        same(s.workers[0].restarts, 2, "deaths")


def test_a_session_takes_the_state_of_its_chat_along():
    path, (prompt, marks) = os.path.join(FOLDER.name, "session"), chat(SYSTEM, FIRST, SECOND)

    def session(d, *words):
        done = processor.run([os.path.join(BIN, "helm-cli"), "--connect", d.endpoint, "session", *words], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
        same(done.returncode, 0, f"helm-cli session {words[0]}: {done.stderr}")
        return done.stderr
    with start() as d:
        answer = ask(Client(d.endpoint), prompt, marks)[1]
        check(f"{whole(len(prompt))} of {len(prompt)} tokens" in session(d, "save", path, "--tokens", ",".join(map(str, prompt))), "saved")
    with start() as d:
        session(d, "restore", path)
        same(ask(Client(d.endpoint), prompt, marks), (whole(len(prompt)), answer), "restored")
        edited = chat(SYSTEM, FIRST, text_of(90, 5))[0]
        same(ask(Client(d.endpoint), edited)[0], 0, "a session has the state at its end alone")


# ---- through helm-gateway ----

WORDS = "It is said that the rain in the north falls on meadows and woods alike while the south waits for it. "
TALK = [{"role": "system", "content": "Be brief, and be kind to all who ask you something. " + WORDS},
        {"role": "user", "content": "What do you know of rain? " + WORDS},
        {"role": "assistant", "content": "<think>\nHm, rain it is. " + WORDS + "\n</think>\n\nNot much, but this. " + WORDS},
        {"role": "user", "content": "Then tell me of the woods. " + WORDS}]
EDITED = TALK[:3] + [{"role": "user", "content": "No, of the meadows, if you please. " + WORDS}]
BRANCH = TALK[:1] + [{"role": "user", "content": "Snow is better, is it not? " + WORDS}]


def openai(g, messages):
    a = g.post("/v1/chat/completions", {"messages": messages, "max_tokens": 10, "temperature": 0, "ignore_eos": True}).json
    return a["usage"]["prompt_tokens_details"]["cached_tokens"], a["choices"][0]["message"]["content"]


def responses(g, messages):
    items = [{"role": m["role"], "content": m["content"]} for m in messages]
    a = g.post("/v1/responses", {"input": items, "max_output_tokens": 16, "temperature": 0}).json
    return a["usage"]["input_tokens_details"]["cached_tokens"], a["output"][0]["content"][0]["text"]


def anthropic(g, messages):
    a = g.post("/v1/messages", {"system": messages[0]["content"], "messages": messages[1:], "max_tokens": 10,
                                "temperature": 0}).json
    return a["usage"]["cache_read_input_tokens"], a["content"]


def ollama(g, messages):
    a = g.post("/api/chat", {"messages": messages, "stream": False, "options": {"num_predict": 10, "temperature": 0}}).json
    return a["cached_tokens"], a["message"]["content"]


def prompt_text(g, messages):
    """The prompt's tokens, a letter each."""
    text = g.post("/apply-template", {"messages": messages}).json["prompt"]
    return re.sub(r"<\|im_(start|end)\|>", "\0", text)


def common(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def test_every_door_of_the_gateway():
    with start("--prefix-cache", "off") as plain, Gateway(plain.endpoint) as fresh:
        for door in (openai, responses, anthropic, ollama):
            with start() as d, Gateway(d.endpoint) as g:
                before = []
                for what, messages in (("new", TALK[:2]), ("the next turn", TALK), ("regenerated", TALK), ("edited", EDITED),
                                       ("edited again", EDITED[:3] + TALK[1:2]), ("a branch", BRANCH)):
                    text = prompt_text(g, messages)
                    reach = max([common(text, other) for other in before], default=0)
                    found, answer = door(g, messages)
                    # a mark is in front of what a message's end is written as; another page is begun there
                    check(found <= reach and (not before or found + 2 * PAGE + 40 > reach),
                          f"{door.__name__}, {what}: {found} of {reach} tokens in common")
                    same(answer, door(fresh, messages)[1], f"{door.__name__}, {what}: the answer")
                    before.append(text)


def test_several_answers_and_helm_cli():
    # drawn at temperature 1 beside others, tokens are the same again where bits are
    with start("--invariant", "on") as d, Gateway(d.endpoint) as g:
        ask_four = {"messages": TALK, "n": 4, "max_tokens": 8, "temperature": 1, "seed": 5, "ignore_eos": True}
        said = g.post("/v1/chat/completions", ask_four).json
        first, prompt = [c["message"]["content"] for c in said["choices"]], said["usage"]["prompt_tokens"]
        found = status_of(d).tokens_cached_total  # one of the four computes the beginning
        check(3 * whole(prompt - 40) <= found <= 3 * prompt, f"four answers at once: {found} tokens found of {prompt} each")
        same([c["message"]["content"] for c in g.post("/v1/chat/completions", ask_four).json["choices"]], first, "four answers again")
        check(len(set(first)) > 1, f"{first}")
        before = status_of(d).tokens_cached_total
        said = processor.run([os.path.join(BIN, "helm-cli"), "--connect", d.endpoint, "chat", "--system", TALK[0]["content"],
                               "--max-tokens", "4", "--temperature", "0"], input=TALK[1]["content"] + "\n/reset\n" + BRANCH[1]["content"] + "\n",
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
        same(said.returncode, 0, said.stderr)
        system = whole(len(TALK[0]["content"]) + 8)
        found = status_of(d).tokens_cached_total - before
        check(found >= 2 * system, f"helm-cli's prompts found {found} tokens, the system message has {system}")


if __name__ == "__main__":
    hybrid_files.chat_model("qwen35", MODEL)
    run_tests(globals())
