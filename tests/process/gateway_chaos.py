#!/usr/bin/python3
"""Everything that clients do to a gateway at once: halves of requests, closed or left standing, a full house, slow bodies,
answers that nobody reads, junk, large answers, a helmd that stops for a moment. These must hold: a stream of another client
goes on, answers are right, /health is answered, and in the end places, descriptors and memory are back.

    gateway_chaos.py [SECONDS [SEED]]      (`make chaos`; `make test`: a few seconds, by test_gateway_places.py)"""
import json
import os
import random
import socket
import struct
import sys
import time

sys.path[0:0] = [os.environ["HELM_PYPROTO"], "tests/process"]
from chaos import resident  # noqa: E402
from gateway_harness import SLOW, check, sum_up, until  # noqa: E402
from gateway_neighbours import Neighbourhood  # noqa: E402

MIB = 1 << 20
GROWTH, STAYS = 400 * MIB * SLOW, 96 * MIB * SLOW  # bodies, answers and headers of a full house
WORK_S = 0.25 * SLOW  # of processor time, which other processes do not lengthen
OPTIONS = ("--stall-seconds", "2", "--address-connections", "64")
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
BODY = json.dumps({"prompt": "x", "max_tokens": 40}).encode()
WHOLE = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


class Chaos:
    def __init__(self, n, seed):
        self.n, self.random, self.counts, self.open, self.texts = n, random.Random(seed), {}, [], {}
        self.stopped = 0

    def count(self, what, times=1):
        self.counts[what] = self.counts.get(what, 0) + times

    def connect(self, data=b"", window=0):
        s = socket.socket()
        if window:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        s.settimeout(20 * SLOW)
        s.bind(("127.0.0.%d" % self.random.randrange(2, 20), 0))
        s.connect(("127.0.0.1", self.n.g.port))
        try:
            s.sendall(data)
        except OSError:  # it gave way at once
            pass
        return s

    def part(self):
        return WHOLE[:self.random.randrange(len(WHOLE) + 1)]

    def keep(self, s):
        self.open.append(s)
        while len(self.open) > 400:
            self.leave(self.open.pop(self.random.randrange(len(self.open))))

    def leave(self, s):
        how = self.random.randrange(3)
        if how == 0:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif how == 1:
            try:
                s.shutdown(socket.SHUT_WR)
            except OSError:
                pass
        s.close()

    def do_half_and_close(self):
        for _ in range(20):
            self.leave(self.connect(self.part()))
        self.count("halves, closed", 20)

    def do_half_and_stand(self):
        for _ in range(10):
            self.keep(self.connect(self.part()))
        self.count("halves, left standing", 10)

    def do_full_house(self):
        for _ in range(100):
            self.keep(self.connect(self.random.choice((b"", HEAD, WHOLE[:-3]))))
        self.count("full houses")

    def do_trickle(self):
        for s in self.random.sample(self.open, min(20, len(self.open))):
            try:
                s.send(b" ")
            except OSError:
                pass
        self.count("bytes that trickle", 20)

    def do_not_read(self):
        body = json.dumps({"prompt": "x", "max_tokens": 5000, "stream": self.random.random() < 0.5, "logprobs": 3}).encode()
        self.keep(self.connect(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, window=4096))
        self.count("answers unread")

    def do_junk(self):
        data = bytearray(WHOLE)
        for _ in range(self.random.randrange(1, 8)):
            data[self.random.randrange(len(data))] = self.random.randrange(256)
        self.keep(self.connect(bytes(data) if self.random.random() < 0.7 else self.random.randbytes(300)))
        self.count("junk")

    def do_large_answer(self):
        count = self.random.choice((50, 200, 800))
        a = self.n.g.complete("x", max_tokens=count, n=4, logprobs=5)
        check_quietly(a.status == 200 and [len(c["logprobs"]["tokens"]) for c in a.json["choices"]] == [count] * 4,
                      (a.status, count, [(len(c["logprobs"]["tokens"]), c["finish_reason"], len(c["text"])) for c in a.json["choices"]]))
        self.count("large answers")

    def do_complete(self):
        count = self.random.randrange(1, 60)
        a = self.n.g.complete("x", max_tokens=count, stream=self.random.random() < 0.5)
        if a.status != 200:
            check_quietly(False, (a.status, a.body[:300]))
            return
        events = a.events if a.headers["Content-Type"].startswith("text/event-stream") else [a.json]
        text = "".join(e["choices"][0]["text"] for e in events if e["choices"])
        check_quietly(self.texts.setdefault(count, text) == text, (count, text, self.texts[count]))
        self.count("answers")

    do_complete_2 = do_complete_3 = do_complete

    def do_crowd(self):
        self.count("answers to crowds", self.n.crowd(self.random.choice(("new", "kept")), self.random.choice((50, 2000)), 0.2, self.random.choice(("/", "/v1/models", "/health")), "127.0.0.%d" % self.random.randrange(2, 20))[0])

    def do_bodies(self):
        """In a row, of one user, that take long to read; nobody waits for the answers."""
        body = json.dumps({"prompt": "x", "max_tokens": 1, "metadata": {"a": [1] * self.random.choice((1000, 200000))}}).encode()
        for _ in range(10):
            self.keep(self.connect(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body))
        self.count("long bodies", 10)

    def do_schema(self):
        a = self.n.g.complete("x", max_tokens=1, guided_json={"oneOf": [{"const": i} for i in range(self.random.choice((10, 3000)))]})
        check_quietly(a.status in (200, 500), a.body[:300])
        self.count("schemas")

    def do_grammar(self):
        a = self.n.g.complete("x", max_tokens=1, grammar="root ::= " + "".join(self.random.choice('ab("') for _ in range(30)))
        check_quietly(a.status in (200, 400, 500), a.body[:300])  # 500: the stand-in draws what it likes
        self.count("grammars")

    def do_ask(self):
        path = self.random.choice(("/status", "/metrics", "/slots", "/props", "/api/ps", "/", "/v1/models"))
        check_quietly(self.n.g.get(path, timeout=60).status in (200, 503), path)
        self.count("questions")

    def do_stop_helmd(self):
        if self.random.random() < 0.3:
            self.n.stop_daemon()
            self.n.g.get("/", timeout=60)
            time.sleep(self.random.random() * 0.3)
            self.n.go_on()
            self.count("helmd stopped")

    def run(self, seconds):
        actions = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("do_")]
        pid, most = self.n.g.process.pid, 0
        self.n.felt()
        before, descriptors, end = resident(pid), len(os.listdir("/proc/%d/fd" % pid)), time.monotonic() + seconds
        while time.monotonic() < end and self.n.g.process.poll() is None:
            self.random.choice(actions)()
            most = max(most, resident(pid) - before)
        felt = self.n.felt()
        for s in self.open:
            self.leave(s)
        print("     " + ", ".join("%d %s" % (n, what) for what, n in sorted(self.counts.items())))
        check("the gateway lives", self.n.g.process.poll() is None)
        check("the stream of another goes on", felt.gap < 1e6)
        check("/health is answered all the time", felt.statuses <= {200, 503} and felt.health < 5 * SLOW, felt)
        check("the gateway does little before it answers /health, whatever all do at once", felt.health_work < WORK_S, felt)
        check("descriptors are back", until(lambda: len(os.listdir("/proc/%d/fd" % pid)) <= descriptors + 2, 20), os.listdir("/proc/%d/fd" % pid))
        check("places are back", until(lambda: self.n.g.metric("helm_gateway_connections") <= 4, 10), self.n.g.metric("helm_gateway_connections"))
        stays = resident(pid) - before
        print("     longest gap %.0f ms, in it the gateway's work %.0f ms; /health %.0f ms, %.0f ms; memory: at most %d MiB more, %d MiB stay" % (*(1e3 * t for t in felt[:4]), most >> 20, stays >> 20))
        check("memory is bounded", most < GROWTH and stays < STAYS, (most >> 20, stays >> 20))
        check("answers came", self.counts.get("answers", 0) > 0)


def check_quietly(ok, detail):
    if not ok:
        check("an answer is right", False, detail)


def chaos(seconds, seed):
    print("     seed %d" % seed, flush=True)
    with Neighbourhood(*OPTIONS) as n:
        Chaos(n, seed).run(seconds)


if __name__ == "__main__":
    chaos(float(sys.argv[1]) if len(sys.argv) > 1 else 150, int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30))
    sum_up()
