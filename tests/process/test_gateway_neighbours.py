#!/usr/bin/python3
"""The harm that one client of helm-gateway can do to another: with any one doing its worst, the longest gap between another's
tokens grows by at most 50 ms, and /health answers within 100 ms, also while helmd stands still.

HELM_BIN: folder of the programs; HELM_PYPROTO: where protoc's Python output lies. Run from the repository's root.
"""
import json
import os
import resource
import signal
import socket
import statistics
import struct
import sys
import threading
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
import processor  # noqa: E402
from gateway_harness import SLOW, check, sum_up, until  # noqa: E402
from gateway_neighbours import HIDDEN, Neighbourhood  # noqa: E402

GAP_S, HEALTH_S = 0.05 * SLOW, 0.1 * SLOW  # what one client may cost another
ROUNDS = 3                                 # calm, busy, calm, busy, ...
WORK_S = 0.05 * SLOW                       # of processor time in one of them
TRIES = 5                                  # what a machine's other work costs is gone in one of them
LOST_S = 15                                # of a stop; a connection is given up after 20
MANY = b"1," * 999000 + b"1"


def doubling(rules):
    return "root ::= r0\n" + "\n".join("r%d ::= r%d r%d?" % (i, i + 1, i + 1) for i in range(rules)) + '\nr%d ::= "a"?' % rules


def attacks(n):
    """Each is a name, what to do, and a check of what came of it."""
    def post(path, **body):
        return n.g.post(path, body, timeout=120)

    def leave(data, times):
        for _ in range(times):
            s = socket.create_connection(("127.0.0.1", n.g.port), timeout=20 * SLOW)
            s.sendall(data)
            s.close()

    def bodies(path, data, times=1):
        return [n.g.post(path, data, timeout=120) for _ in range(times)][-1]

    hello = [{"role": "user", "content": "x"}]
    grammar = json.dumps({"prompt": "x", "max_tokens": 2, "grammar": doubling(20)}).encode()
    schema = json.dumps({"prompt": "x", "max_tokens": 2, "guided_json": {"oneOf": [{"const": i} for i in range(15000)]}}).encode()
    yield "probabilities of 16 outputs", lambda: post("/v1/chat/completions", messages=hello, max_tokens=400, n=16, logprobs=True, top_logprobs=20), \
        lambda a: a.status == 200 and len(a.body) > 6 << 20 and len(a.json["choices"][15]["logprobs"]["content"]) == 400
    yield "a long output", lambda: post("/v1/completions", prompt="x", max_tokens=30000), lambda a: a.json["usage"]["completion_tokens"] == 30000
    yield "256 embeddings", lambda: post("/v1/embeddings", input=["a"] * 256), lambda a: len(a.json["data"]) == 256 and len(a.json["data"][255]["embedding"]) == HIDDEN
    yield "the end of a response with probabilities", \
        lambda: post("/v1/responses", input="x", max_output_tokens=2500, stream=True, include=["message.output_text.logprobs"], top_logprobs=20), \
        lambda a: a.status == 200 and a.body.count(b"event: response.incomplete") == 1 and len(json.loads(a.body.split(b"data: ")[-1])["response"]["output"][0]["content"][0]["logprobs"]) == 2500
    yield "a response that repeats 2 MB", lambda: post("/v1/responses", input="x", max_output_tokens=4, stream=True, user='"\n' * 500000), \
        lambda a: a.status == 200 and len(a.body) > 5 << 20
    yield "a million values", lambda: bodies("/v1/completions", b'{"prompt":"a","max_tokens":1,"metadata":{"a":[' + MANY + b"]}}", 2), lambda a: a.status == 200
    yield "a million values for Ollama's show", lambda: bodies("/api/show", b'{"model":"x","a":[' + MANY + b"]}", 3), lambda a: a.status == 400
    yield "a text of 4 MB", lambda: post("/tokenize", content="the quick brown fox " * 200000), lambda a: a.json["count"] > 100000
    yield "16 long prompts", lambda: post("/v1/completions", prompt="word " * 6000, n=16, max_tokens=4), lambda a: a.status == 200
    yield "a grammar whose stacks double", lambda: bodies("/v1/completions", grammar, 8), lambda a: a.status == 400
    yield "a schema of 15,000 constants", lambda: bodies("/v1/completions", schema, 2), lambda a: a.status != 400  # the stand-in draws what it likes
    yield "halves of requests, closed", lambda: leave(b"GET /health HTTP/1.1\r\nX: ", 400), lambda a: True
    yield "requests without a look at the answer", lambda: leave(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 60), lambda a: True


def attack_tests(n):
    time.sleep(0.5)
    calm = max(n.during(lambda: time.sleep(1))[0], 0.01)
    for name, attack, is_right in attacks(n):
        got, felt = [], []
        for _ in range(TRIES):
            felt.append(n.during(lambda: got.append(attack())))
            if felt[-1].gap <= calm + GAP_S and felt[-1].health <= HEALTH_S:
                break
        told = "; ".join("a gap of %.0f ms, /health %.0f ms" % (f.gap * 1e3, f.health * 1e3) for f in felt)
        print("     %s: %s" % (name, told), flush=True)
        check("%s: what was asked for comes" % name, is_right(got[-1]), got[-1] if isinstance(got[-1], tuple) else got[-1] and (got[-1].status, got[-1].body[:300]))
        check("%s: others go on" % name, min(f.gap for f in felt) <= calm + GAP_S and min(f.health for f in felt) <= HEALTH_S and
              all(f.statuses == {200} for f in felt), (calm, felt))


def crowd_tests(n):
    """Crowds, each beside a calm before it. They are compared by the processor time that the gateway's loop takes between two
    tokens, and between a question for /health and its answer: other work on the machine does not lengthen it."""
    for count, how, path, address in ((3000, "new", "/", "127.0.0.1"), (200, "new", "/v1/models", "127.0.0.2"), (500, "kept", "/", "127.0.0.1"), (500, "kept", "/health", "127.0.0.1"),
                                      (3000, "new", "/health", "127.0.0.1"), (3000, "new", "/health", "127.0.0.2")):
        calm, busy, got = [], [], []
        for _ in range(ROUNDS):
            calm.append(n.during(lambda: time.sleep(0.3)))
            busy.append(n.during(lambda: got.append(n.crowd(how, count, 0.5, path, address))))
        for name, felt in (("calm", calm), ("busy", busy)):
            print("     %s: " % name + "; ".join("%s %.1f ms, at most %.1f ms" % (part, statistics.median(times) * 1e3, max(times) * 1e3)
                                                  for part, times in zip(calm[0]._fields[:4], zip(*felt))), flush=True)
        name = "%d %s connections from %s that ask for %s" % (count, how, address, path)
        check("%s: all are answered" % name, sum(answers for answers, _ in got) and not any(without for _, without in got), got)
        grown = statistics.median(f.gap_work for f in busy) - statistics.median(f.gap_work for f in calm)
        check("%s: tokens of others go on" % name, grown <= WORK_S, (calm, busy))
        check("%s: /health is answered" % name, statistics.median(f.health_work for f in busy) <= WORK_S and min(f.health for f in busy) <= HEALTH_S and
              all(f.statuses == {200} for f in busy), busy)


def reset_tests(n):
    """A crowd that is gone takes no place from the next one: 3,000 connections wait, all are reset while the gateway stands
    still, and as many come. Together they are more than may wait."""
    def crowd():
        for _ in range(3000):
            s = socket.create_connection(("127.0.0.1", n.g.port), timeout=60 * SLOW)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            yield s

    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    gone = list(crowd())
    os.kill(n.g.process.pid, signal.SIGSTOP)
    for s in gone:
        s.close()
    stay = list(crowd())
    os.kill(n.g.process.pid, signal.SIGCONT)
    without = 0
    for s in stay:
        try:
            without += not s.recv(65536)
        except OSError:
            without += 1
        s.close()
    check("who comes after a crowd that is gone is answered", without == 0, "%d of %d are not" % (without, len(stay)))


def leaving_tests(n):
    """A thread drops the body of a client that is gone, before the work and in the middle of it."""
    data = json.dumps({"prompt": "x", "max_tokens": 2, "guided_json": {"enum": ["%d" % i * 40 for i in range(15000)]}}).encode()
    begin = processor.clock()
    for _ in range(30):
        s = socket.create_connection(("127.0.0.1", n.g.port), timeout=20 * SLOW)
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        s.close()
    a = n.g.complete("x", max_tokens=2)
    check("grammars of clients that are gone are dropped", a.status == 200 and processor.clock() - begin < 3 * SLOW, processor.clock() - begin)


def stopped_tests(n):
    """helmd is stopped (a debugger, a machine that swaps): nothing in the gateway waits for it."""
    n.felt()
    n.stop_daemon()
    stopped = time.monotonic()
    until(lambda: n.g.get("/health").status == 503, 20)
    a = n.g.get("/health").json
    check("/health says that helmd does not answer", a["status"] == "no answer" and a["answered_seconds_ago"] >= 3, a)
    check("... soon, and was quick meanwhile", n.health.ask()[0] < HEALTH_S)
    ends = []

    def poll(path, wait):
        while not ends:
            n.g.get(path, timeout=60)
            time.sleep(wait)
    pollers = [threading.Thread(target=poll, args=(path, 0.2), daemon=True) for path in ("/status", "/metrics", "/slots", "/props", "/api/ps", "/api/tags") * 2]
    for p in pollers:
        p.start()
    felt = []
    for _ in range(TRIES):
        n.felt()
        begin = processor.clock()
        page, tokens = n.g.get("/"), n.g.post("/tokenize", {"content": "a"})
        felt.append((processor.clock() - begin, n.health.ask()[0]))
        check("a page that needs no helmd", page.status == 200 and tokens.json["count"] == 1)
        if felt[-1][0] < 2 * HEALTH_S and felt[-1][1] < HEALTH_S:
            break
    check("the page, /tokenize and /health do not wait", min(f[0] for f in felt) < 2 * HEALTH_S and min(f[1] for f in felt) < HEALTH_S, felt)
    status, metrics, slots, props, tags = (n.g.get(path) for path in ("/status", "/metrics", "/slots", "/props", "/api/tags"))
    if time.monotonic() - stopped < LOST_S:
        check("the last status serves, with its age", status.json["status"]["state"] == "ready" and status.json["status"]["age_ms"] > 3000, status.body[:300])
        check("/metrics says so", b"\nhelm_up 0" in metrics.body and b"\nhelm_gateway_status_age_seconds " in metrics.body, metrics.body[-400:])
        check("/slots knows no requests", slots.status == 503 and "does not answer" in slots.json["error"]["message"], slots.body)
        check("/props and the model's name", props.status == tags.status == 200 and "size" in tags.json["models"][0], tags.body)
    ends.append(True)
    for p in pollers:
        p.join()
    check("the log says it once", n.g.log().count("helmd does not answer, its last status serves") == 1, n.g.log()[-600:])
    n.go_on()
    kept = time.monotonic() - stopped < LOST_S
    check("helmd goes on", until(lambda: n.g.get("/health").status == 200, 20) and "helmd answers again" in n.g.log())
    check("... and so do streams and requests", (n.stream.ask()[0] < 1e6 or not kept) and n.g.complete("x", max_tokens=2).status == 200)
    check("... and the status is new", n.g.get("/status").json["status"]["age_ms"] < 3000)


def spent(process):
    with open("/proc/%d/stat" % process.pid) as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def gone_tests(n):
    """helmd dies: the gateway says so at once, does not spin while it waits, and serves again when helmd is back."""
    n.stream.end()
    n.kill_daemon()
    check("/health says that helmd is gone", until(lambda: n.g.get("/health").json == {"status": "no daemon"}, 10), n.g.get("/health").body)
    check("a request is refused", n.g.complete("x", max_tokens=2).status == 503)
    before, begin = spent(n.g.process), time.monotonic()
    time.sleep(2)
    check("nothing spins meanwhile", spent(n.g.process) - before < (time.monotonic() - begin) / 4 * SLOW, spent(n.g.process) - before)
    check("/status knows no daemon", "status" not in n.g.get("/status").json and n.g.get("/slots").status == 503)
    n.start_daemon()
    check("helmd is back", until(lambda: n.g.get("/health").status == 200, 20) and "helmd is there again" in n.g.log(), n.g.log()[-500:])
    check("... and answers", n.g.complete("x", max_tokens=2).status == 200 and n.g.get("/status").json["status"]["state"] == "ready")


def main():
    with Neighbourhood() as n:
        attack_tests(n)
        crowd_tests(n)
        reset_tests(n)
        leaving_tests(n)
        stopped_tests(n)
        gone_tests(n)


if __name__ == "__main__":
    main()
    sum_up()
