#!/usr/bin/python3
"""Structured output on the demo model: random JSON schemas at temperature 1, whose completed outputs are held against
python3-jsonschema; regular expressions and GBNF; workers that die meanwhile, clients that send no masks.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. HELM_STRUCTURED=long: 200 schemas of 20
samples each and the 10 s after which a request without masks is given up (`make test-structured`); else 20 of 3, sanitized 8 of 2. Run from
the repository's root.
"""
import concurrent.futures
import datetime
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import threading
import time

import jsonschema

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import helmd_harness as helmd  # noqa: E402
import processor  # noqa: E402
from gateway_harness import BIN, Gateway, SLOW, check, sum_up, until  # noqa: E402
import helm_pb2 as pb  # noqa: E402
from random_schema import schema_of  # noqa: E402

LONG = os.environ.get("HELM_STRUCTURED") == "long"
SCHEMAS, SAMPLES = (200, 20) if LONG else (20, 3) if os.environ.get("HELM_TEST_FULL") else (12, 3) if SLOW == 1 else (8, 2)


def ask(g, text, schema, **fields):
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": schema}}
    return g.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "temperature": 1, "top_p": 1,
                                           "response_format": wanted, **fields}, timeout=240)


def schema_tests(g):
    checker = jsonschema.FormatChecker(["date", "uuid", "ipv4"])  # its "time" is another one than RFC 3339's
    checker.checks("time", ValueError)(lambda text: datetime.time.fromisoformat(text) and text[8:] != "")
    checker.checks("date-time", ValueError)(lambda text: datetime.datetime.fromisoformat(text) and "T" in text)
    done, wrong, refused = [0, 0], [], []

    def sample(number):
        schema = schema_of(number)
        validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
        for first in range(0, SAMPLES, 10):
            a = ask(g, "In the beginning", schema, max_tokens=300, n=min(10, SAMPLES - first), seed=number * 100 + first)
            if a.status != 200:
                refused.append((schema, a.body))
                continue
            for choice in a.json["choices"]:
                done[1] += 1
                if choice["finish_reason"] != "stop":
                    continue
                done[0] += 1
                try:
                    validator.validate(json.loads(choice["message"]["content"]))
                except (ValueError, jsonschema.ValidationError) as error:
                    wrong.append((schema, choice["message"]["content"], str(error)[:300]))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(sample, range(SCHEMAS)))
    print("      %d schemas: %d of %d outputs were completed" % (SCHEMAS, *done))
    check("every schema is taken", not refused, refused[:2])
    check("every completed output validates", not wrong, (len(wrong), wrong[:2]))
    check("... and most are completed", done[0] > 0.5 * done[1], done)


def other_tests(g):
    word = g.complete("In the", max_tokens=40, temperature=1, seed=2, guided_regex="[a-z]{3,9}( [a-z]{3,9}){2}\\.").json["choices"][0]
    check("guided_regex", re.fullmatch("[a-z]{3,9}( [a-z]{3,9}){2}\\.", word["text"]) and word["finish_reason"] == "stop", word)
    balanced = g.complete("In the", max_tokens=200, temperature=1, seed=4, grammar='root ::= "(" root ")" root | "x"').json["choices"][0]
    depth = 0
    for c in balanced["text"]:
        depth += {"(": 1, ")": -1}.get(c, 0)
    check("grammar", set(balanced["text"]) <= set("()x") and (depth == 0 or balanced["finish_reason"] == "length"), balanced)
    a = g.chat("Hello", max_tokens=200, temperature=1, seed=5, response_format={"type": "json_object"}).json["choices"][0]
    check("json_object", a["finish_reason"] == "length" or isinstance(json.loads(a["message"]["content"]), dict), a)
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    events = g.chat("Hello", max_tokens=60, temperature=1, seed=6, stream=True, logprobs=True, top_logprobs=2,
                    response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}).events
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
    check("streamed, with logprobs", json.loads(text)["a"] in "xy", text)
    for format in (schema, "json"):
        a = g.post("/api/generate", {"prompt": "Hello", "stream": False, "format": format, "options": {"seed": 3, "temperature": 1, "num_predict": 200}}).json
        check("Ollama's format", a["done_reason"] == "length" or isinstance(json.loads(a["response"]), dict), a)
    same = [g.complete("In the", max_tokens=40, temperature=1, seed=9, guided_regex="[a-z ]{5,30}").json["choices"][0]["text"] for _ in range(2)]
    check("a seed: the same output again", same[0] == same[1], same)
    for name, body, says in (
            ("a keyword", {"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"not": {}}}}}}}, "'not'"),
            ("a regular expression", {"guided_regex": "(?=a)"}, "look-around"), ("a grammar", {"grammar": "root ::= x"}, "'x' is not defined"),
            ("two of them", {"guided_regex": "a", "grammar": "root ::= \"a\""}, "both say"),
            ("with ignore_eos", {"guided_regex": "a", "ignore_eos": True}, "exclude each other")):
        a = g.chat("Hello", **body)
        check("%s is refused" % name, a.status == 400 and says in a.json["error"]["message"], a.body)


def cli_tests(endpoint, folder):
    def run(*args):
        return processor.run([BIN + "/helm-cli", "--connect", endpoint, *args], capture_output=True, text=True, timeout=60 * SLOW)

    schema, grammar = folder + "/s.json", folder + "/g.gbnf"
    with open(schema, "w") as f:
        json.dump({"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": -9}}, "required": ["n"]}, f)
    with open(grammar, "w") as f:
        f.write('root ::= "<" [a-c]{2,4} ">"\n')
    a = run("run", "Hello", "--json-schema", schema, "-n", "200", "--seed", "1")  # spaces between tokens may be many
    check("run --json-schema", a.returncode == 0 and -9 <= json.loads(a.stdout)["n"] <= 99, a)
    a = run("run", "Hello", "--grammar", grammar, "-n", "20", "--temperature", "1")
    check("run --grammar", re.fullmatch("<[a-c]{2,4}>\n", a.stdout), a)
    a = run("generate", "--prompt", "Hello", "-n", "20", "--regex", "(yes|no)", "--json")
    check("generate --regex", json.loads(a.stdout)["text"] in ("yes", "no") and json.loads(a.stdout)["finish_reason"] == "eos", a)
    for name, args, code, says in (("two at once", ("--regex", "a", "--grammar", grammar), 2, "at most one"),
                                   ("with --ignore-eos", ("--regex", "a", "--ignore-eos"), 2, "exclude each other"),
                                   ("what is not supported", ("--regex", "a\\b"), 4, "'\\b'"),
                                   ("a file that is not there", ("--json-schema", folder + "/none"), 4, "none")):
        a = run("run", "Hello", "-n", "5", *args)
        check("run refuses %s" % name, a.returncode == code and says in a.stderr, a)


def death_tests(g, daemon):
    """A long output, and a worker that is killed in the middle of it."""
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 250, "maxItems": 250}
    killed = []

    def kill():
        if until(lambda: g.metric("helm_gateway_generations_open") == 1):
            time.sleep(0.1)
            killed.append(daemon.children()["worker"])
            os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    a = ask(g, "Hello", schema, max_tokens=1900, seed=1)
    thread.join()
    choice = a.json.get("choices", [{}])[0]
    check("a worker's death costs no token", killed and (choice.get("finish_reason") == "length" or
                                                         len(json.loads(choice["message"]["content"])) == 250), a.body[-600:])


def silent_tests(daemon):
    """A client that sends no mask holds up no other, and loses its request alone; wrong masks end theirs."""
    silent, busy = helmd.Client(daemon.endpoint), helmd.Client(daemon.endpoint)

    def generate(client, number, **fields):
        client.socket.send(pb.Request(version=1, request_id=number, generate=pb.Generate(prompt=[5, 6, 7], max_tokens=60, ignore_eos=True, **fields))
                           .SerializeToString())

    def until_done(client, number, seconds):
        tokens = 0
        while True:
            response = client.receive(timeout=seconds)
            if response.request_id != number:
                continue
            tokens += response.WhichOneof("body") == "token"
            if response.WhichOneof("body") in ("done", "error"):
                return tokens, response

    def seconds_of(number):
        begin = time.monotonic()
        generate(busy, number)
        tokens, _ = until_done(busy, number, 20)
        assert tokens == 60
        return time.monotonic() - begin

    alone = statistics.median(seconds_of(i) for i in range(1, 6))
    generate(silent, 1, mask=pb.Mask(tokens=[9]))
    first = silent.receive(), silent.receive()
    check("the first mask comes with the request", first[1].token.token == 9, first)
    beside, first_to_end = [], []
    for i in range(11, 16):
        beside.append(seconds_of(i))
        first_to_end.append(silent.socket.poll(0) == 0)
    beside = statistics.median(beside)
    print("      60 tokens: %.1f ms alone, %.1f ms beside a request without masks" % (alone * 1e3, beside * 1e3))
    check("others go on, and end before the one without masks is given up", any(first_to_end), (alone, beside))
    if LONG:
        _, end = until_done(silent, 1, 15)
        check("it is given up after 10 s", end.done.finish_reason == pb.FINISH_CANCELLED and "no mask" in end.done.detail, end)
    else:
        silent.socket.send(pb.Request(version=1, request_id=2, cancel=pb.Cancel(request_id=1)).SerializeToString())
        _, end = until_done(silent, 1, 15)
        check("it can be cancelled", end.done.finish_reason == pb.FINISH_CANCELLED, end)
    for number, mask, says in ((21, pb.Mask(index=1), "allows no token"), (22, pb.Mask(index=7, tokens=[1]), "token 7"),
                               (23, pb.Mask(index=1, tokens=[1 << 20]), "vocabulary")):
        generate(silent, number, mask=pb.Mask(tokens=[9]))
        silent.socket.send(pb.Request(version=1, request_id=number, mask=mask).SerializeToString())
        _, end = until_done(silent, number, 15)
        check("a wrong mask ends its request: %s" % says, end.done.finish_reason == pb.FINISH_ERROR and says in end.done.detail, end)
    generate(silent, 31)
    silent.socket.send(pb.Request(version=1, request_id=31, mask=pb.Mask(index=0, tokens=[1])).SerializeToString())
    _, end = until_done(silent, 31, 15)
    check("so does one that was not asked for", end.done.finish_reason == pb.FINISH_ERROR and "began without" in end.done.detail, end)
    check("nothing is left", until(lambda: silent.ask("status").status.running == 0), silent.ask("status"))
    for client in (silent, busy):
        client.close()


def heavy_tests(g):
    """Grammars whose work is refused, and one whose masks take long: another's stream goes on meanwhile."""
    doubling = "\n".join("r%d ::= r%d r%d?" % (i, i + 1, i + 1) for i in range(20)) + '\nr20 ::= "a"?\n'
    for begin in ("root ::= r0\n", 'root ::= "x" r0\n'):
        a = g.complete("In", max_tokens=5, n=16, grammar=begin + doubling)
        check("a grammar of doubling stacks is refused", a.status == 400 and "too many ways" in a.body.decode(), a.body)
    gaps, stop = [], threading.Event()

    def stream():
        while not stop.is_set():
            last = None
            for _ in g.complete("In the beginning", max_tokens=300, ignore_eos=True, stream=True).events:
                gaps.append(time.monotonic() - last if last else 0)
                last = time.monotonic()

    threads = lambda: len(os.listdir("/proc/%d/task" % g.process.pid))  # noqa: E731
    before = threads()
    other = threading.Thread(target=stream)
    other.start()
    schema = {"anyOf": [{"type": "string", "pattern": "^[a-z ]*$", "minLength": 400 + i, "maxLength": 500} for i in range(20)]}
    a = ask(g, "Hello", schema, max_tokens=60, n=8)
    stop.set()
    other.join()
    texts = [c["message"]["content"] for c in a.json["choices"]]
    check("masks that take long fit as others do", len(texts) == 8 and all(re.fullmatch('"[a-z ]{40,}', t) for t in texts), texts)
    check("... and are made by a thread of their own", threads() == before + 1, (before, threads()))


def speed_tests(g):
    """The cost of a mask a token: printed, not held to anything."""
    def tokens_a_second(**fields):
        begin = time.monotonic()
        usage = g.complete("In the beginning", max_tokens=400, temperature=0, **fields).json["usage"]
        return (time.monotonic() - begin) / usage["completion_tokens"] * 1e6

    for fields in ({"ignore_eos": True}, {"guided_regex": "[\\s\\S]{2000,}"}):
        tokens_a_second(**fields)
    free, held = (min(tokens_a_second(**fields) for _ in range(3)) for fields in ({"ignore_eos": True}, {"guided_regex": "[\\s\\S]{2000,}"}))
    print("      a token takes %.0f us, %.0f us with a mask" % (free, held))


def device_tests():
    """Masked draws from logits on a device (emulated), beside rows whose tokens the device picks itself."""
    masks = [[9, 10, 11], [700, 5, 3001], [42], list(range(100, 500))]

    def generate(daemon, temperature):
        free, held = helmd.Client(daemon.endpoint), helmd.Client(daemon.endpoint)
        other = free.generate([5, 6, 7], 40, ignore_eos=True)
        held.socket.send(pb.Request(version=1, request_id=1, generate=pb.Generate(
            prompt=[5, 6, 7], max_tokens=16, ignore_eos=True, logprobs=2, mask=pb.Mask(tokens=masks[0]),
            sampling=pb.Sampling(temperature=temperature, has_seed=True, seed=3, repetition_penalty=1.1))).SerializeToString())
        tokens = []
        while True:
            response = held.receive(timeout=60)
            if response.WhichOneof("body") == "done":
                break
            if response.WhichOneof("body") == "token":
                tokens.append(response.token.token)
                mask = pb.Mask(index=len(tokens), tokens=masks[len(tokens) % len(masks)])
                held.socket.send(pb.Request(version=1, request_id=1, mask=mask).SerializeToString())
        free.run(other, timeout=60)
        for client in (free, held):
            client.close()
        return tokens, other.tokens

    plan = helmd.plan_json(8, "gggggggg", "g", "g", context_tokens=1024, slots=4)
    with helmd.running("--device", "emulated", real=True, plan=plan) as daemon:
        device = [generate(daemon, t) for t in (0, 0.8)]
    with helmd.running(real=True) as daemon:
        host = [generate(daemon, t) for t in (0, 0.8)]
    for name, (tokens, other), (wanted, _) in zip(("greedy", "drawn"), device, host):
        check("a device's masked tokens, %s" % name, len(tokens) == 16 and all(t in masks[i % len(masks)] for i, t in enumerate(tokens)) and
              len(other) == 40, (tokens, other))
        print("      %d of 16 are the CPU's" % sum(a == b for a, b in zip(tokens, wanted)))


def main():
    with helmd.running("--parallel", "8", "--queue", "256", real=True) as daemon, tempfile.TemporaryDirectory() as folder:
        with Gateway(daemon.endpoint) as g:
            other_tests(g)
            cli_tests(daemon.endpoint, folder)
            schema_tests(g)
            heavy_tests(g)
            if SLOW == 1:
                speed_tests(g)
            silent_tests(daemon)
            death_tests(g, daemon)
    device_tests()
    sum_up()


if __name__ == "__main__":
    main()
