"""For tests of what clients of helm-gateway can do to each other: a stand-in daemon, a client that reads a stream and one that
asks /health, each in a process of its own, so that an attacker in the test costs them nothing but what the gateway lets it."""
import collections
import json
import multiprocessing
import os
import select
import shutil
import signal
import socket
import subprocess
import time

import processor
import zmq
from gateway_harness import SLOW, Gateway, Scripted, ids_of, model_folder

try:
    from proto import helm_pb2 as pb
except ImportError:
    import helm_pb2 as pb

CROWD = os.path.join(os.path.abspath(os.environ["HELM_TEST_BIN"]), "fake_crowd")
TEXT = " and so it goes on and on, word by word,"
HIDDEN = 4096
fork = multiprocessing.get_context("fork")


class Neighbourly(Scripted):
    """A victim's stream has a token every few ms until it is cancelled; other requests have max_tokens of them at once."""

    def __init__(self, endpoint, folder, words):
        super().__init__(endpoint, folder, token_seconds=0.005)
        self.context_tokens, self.words = 1 << 17, words
        self.socket.unbind(endpoint)
        self.socket.setsockopt(zmq.SNDHWM, 0)  # a router drops what exceeds it
        self.socket.bind(endpoint)

    def handle(self, client, request):
        kind = request.WhichOneof("body")
        if kind == "generate":
            count = request.generate.max_tokens
            self.script, self.how = (self.words, 12) if "victim" in request.generate.label else ([count], 11)
        elif kind == "embed":
            self.last_id += 1
            self.send(client, request.request_id, embedding=pb.Embedding(
                id=self.last_id, values=[(i * 7919 % 1000 - 500) / 997 for i in range(HIDDEN)],
                usage=pb.Usage(prompt_tokens=len(request.embed.prompt))))
            return
        super().handle(client, request)

    def tick(self):
        for key, entry in list(self.going.items()):
            client, number, generate, sent, at = entry
            if generate.prompt[0] == 12:
                if time.monotonic() < at:
                    continue
                count, entry[4] = 1, time.monotonic() + self.token_seconds
            else:
                count = min(generate.prompt[1] - sent, 100)
            for sent in range(sent, sent + count):
                token = self.words[sent % len(self.words)]
                top = [pb.TokenLogprob(token=token + i, logprob=-0.123456789 - i) for i in range(generate.logprobs)]
                self.send(client, number, token=pb.Token(id=key, index=sent, token=token, logprob=-0.123456789, top=top))
            entry[3] += count
            if generate.prompt[0] == 11 and entry[3] == generate.prompt[1]:
                self.finish(key, pb.FINISH_LENGTH)


def serve(endpoint, folder, words):
    Neighbourly(endpoint, folder, words).run()


class Watch:
    """Time between two looks, less what the gateway cannot help: it, whoever looks, or helmd's stand-in had no processor."""

    def __init__(self, gateway, *helmd):
        self.seen, self.last = [processor.Attention(pid) for pid in (gateway, os.getpid(), *helmd)], None
        self.look()

    def look(self):
        """Since the last look: seconds without those in which one of them waited for a processor; and processor time of the
        gateway's loop, without what it can have done while another was not ready for it."""
        then, parts = self.last, [a.now() for a in self.seen]
        known = all(parts) and (not then or all(then[1]))
        self.last = time.monotonic() if all(parts) else processor.clock(), parts
        if not then or not known:
            return self.last[0] - then[0] if then else 0.0, 0.0
        (work, waits), *others = ([after - before for after, before in zip(*pair)] for pair in zip(parts, then[1]))
        delays = sum(waited for _, waited in others)
        busy = sum(ran for ran, _ in others[1:])
        return max(self.last[0] - then[0] - waits - delays, 0.0), max(work - delays - busy, 0.0)


def ask_health(pipe, port, gateway, _):
    """Until told to end: what it took, at most, the gateway's work in it, and the statuses."""
    worst, work, seen, watch = 0.0, 0.0, set(), Watch(gateway)
    while True:
        watch.look()
        with socket.create_connection(("127.0.0.1", port), timeout=60 * SLOW) as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            got = b""
            while piece := s.recv(65536):
                got += piece
        took = watch.look()
        worst, work = max(worst, took[0]), max(work, took[1])
        seen.add(int(got.split()[1]) if got else 0)
        if pipe.poll(0.02):
            if pipe.recv() == "end":
                return
            pipe.send((worst, work, seen))
            worst, work, seen = 0.0, 0.0, set()


def read_stream(pipe, port, gateway, helmd):
    """The same for the longest gap between two pieces of a stream."""
    body = json.dumps({"prompt": "go", "max_tokens": 100000, "stream": True, "user": "victim"}).encode()
    s = socket.create_connection(("127.0.0.1", port), timeout=60 * SLOW)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    worst, work, watch, gap = 0.0, 0.0, Watch(gateway, helmd), [0.0, 0.0]
    while True:
        ready, _, _ = select.select([s, pipe], [], [])
        gap = [sum(parts) for parts in zip(gap, watch.look())]
        worst, work = max(worst, gap[0]), max(work, gap[1])
        if s in ready:
            if not s.recv(1 << 20):
                worst = 1e9  # it ended
            gap = [0.0, 0.0]
        if pipe in ready:
            if pipe.recv() == "end":
                return
            pipe.send((worst, work))
            worst, work = 0.0, 0.0


# what was worst: a gap of the stream, an answer to /health, and the gateway's processor time in each; the statuses of /health
Felt = collections.namedtuple("Felt", "gap gap_work health health_work statuses")


class Child:
    def __init__(self, run, *args):
        self.pipe, other = fork.Pipe()
        self.process = fork.Process(target=run, args=(other, *args), daemon=True)
        self.process.start()

    def ask(self):
        """The worst since it was asked last."""
        self.pipe.send("?")
        return self.pipe.recv()

    def end(self):
        self.process.kill()
        self.process.join()


class Neighbourhood:
    """with Neighbourhood(options) as n: a gateway n.g, a daemon's process n.daemon, a stream and a client of /health."""

    def __init__(self, *options):
        self.folder = model_folder("qwen3.jinja", ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"))
        endpoint = "ipc://%s/helmd.sock" % self.folder
        self.how = (endpoint, self.folder, ids_of(TEXT, self.folder))
        self.start_daemon()
        processor.until(lambda: os.path.exists(endpoint[6:]), 20 * SLOW)
        self.g = Gateway(endpoint, *options)
        who = self.g.port, self.g.process.pid, self.daemon.pid
        self.stream = Child(read_stream, *who)
        self.health = Child(ask_health, *who)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.stream.end()
        self.health.end()
        self.g.__exit__(*failure)
        self.kill_daemon()
        shutil.rmtree(self.folder)

    def felt(self):
        """Since it was asked last."""
        return Felt(*self.stream.ask(), *self.health.ask())

    def during(self, attack):
        """The same while attack() does what it does."""
        self.felt()
        attack()
        return self.felt()

    def crowd(self, how, count, seconds, path="/", address="127.0.0.1"):
        """(answers, connections without one) of a crowd of clients from one address (fake_crowd.c)."""
        done = subprocess.run([CROWD, str(self.g.port), how, str(count), str(seconds), path, address], capture_output=True, text=True, check=True)
        words = done.stdout.split()
        return int(words[0]), int(words[2])

    def start_daemon(self):
        self.daemon = fork.Process(target=serve, args=self.how, daemon=True)
        self.daemon.start()

    def kill_daemon(self):
        self.daemon.kill()
        self.daemon.join()

    def stop_daemon(self):
        os.kill(self.daemon.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.daemon.pid, signal.SIGCONT)

