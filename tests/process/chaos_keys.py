"""A gateway in the middle of chaos.py, with two API keys: the greedy one does what it can (requests by the dozen, unfinished
bodies, answers that nobody reads), and each request of the modest one is answered, whole, none refused."""
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import processor
from helmd_harness import BIN, SLOW, VOCAB, check, same, wait_until

MIB = 1 << 20
TOKENIZER = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "data", "golden", "qwen3"))
KEYS = {"greedy": "greedy-key-0123", "modest": "modest-key-4567"}
HELD = 128 * MIB  # USERS_BODIES_MAX: and as much again for the room that growing texts have
MOST_S = 60 * SLOW  # of one modest request: workers are killed and stopped meanwhile


class Keys:
    def __init__(self, endpoint, random_, count):
        self.base, self.random, self.count = tempfile.mkdtemp(prefix="helm-chaos-keys-"), random_, count
        self.sockets, self.quit, self.failures, self.longest, self.most = [], False, [], 0, 0
        keys = os.path.join(self.base, "keys")
        with open(keys, "w", opener=lambda p, f: os.open(p, f, 0o600)) as f:
            f.writelines("%s %s\n" % key for key in KEYS.items())
        with socket.create_server(("127.0.0.1", 0)) as s:
            self.port = s.getsockname()[1]
        self.log_path = os.path.join(self.base, "log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([os.path.join(BIN, "helm-gateway"), "--connect", endpoint, "--tokenizer", TOKENIZER, "--listen",
                                             "127.0.0.1:%d" % self.port, "--api-keys", keys, "--log-level", "warn"],
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        check(wait_until(lambda: self.connects() or self.process.poll() is not None, 20) and self.process.poll() is None, self.log())
        self.before = self.resident()
        self.thread = threading.Thread(target=self.be_modest, daemon=True)
        self.thread.start()

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()[-2000:]

    def connects(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            return True
        except OSError:
            return False

    def resident(self):
        with open(f"/proc/{self.process.pid}/status") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS"))

    def send(self, key, body, size=None):
        """A socket on which a request was sent; `size`: what its head claims, beyond what is sent."""
        s = socket.create_connection(("127.0.0.1", self.port), timeout=MOST_S)
        data = json.dumps(body).encode()
        s.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEYS[key]}\r\n"
                  f"Content-Length: {size or len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        return s

    # -- the modest key, in a thread of its own --

    def be_modest(self):
        number = 0
        while not self.quit:
            number += 1
            begun = time.monotonic()
            try:
                s, got = self.send("modest", self.prompt(8, seed=number)), b""
                while piece := s.recv(1 << 16):
                    got += piece
                s.close()
                head, _, text = got.partition(b"\r\n\r\n")
                usage = json.loads(text)["usage"] if b" 200 " in head[:20] else {}
                if usage.get("completion_tokens") != 8:
                    self.failures.append(got[:1000])
            except (OSError, ValueError) as failure:
                self.failures.append(repr(failure))
            self.longest = max(self.longest, time.monotonic() - begun)
            self.count("modest requests")
            time.sleep(0.05)

    @staticmethod
    def prompt(tokens, seed=0, **fields):
        return {"prompt": [2 + (seed + i) % (VOCAB - 2) for i in range(20)], "max_tokens": tokens, "seed": seed, "ignore_eos": True, **fields}

    # -- the greedy key: one of these at a time --

    def keep(self, *sockets):
        self.sockets += sockets
        while len(self.sockets) > 150:
            self.sockets.pop(self.random.randrange(len(self.sockets))).close()
        self.most = max(self.most, self.resident() - self.before)

    def ask_much(self):
        self.keep(*(self.send("greedy", self.prompt(200, seed=n, stream=n % 2 == 0, n=1 + n % 4)) for n in range(20)))
        self.count("greedy requests", 20)

    def leave_bodies_unfinished(self):
        size = self.random.randrange(1, 8 * MIB)
        self.keep(self.send("greedy", self.prompt(1, prompt="x" * self.random.randrange(size)), size + 1000))
        self.count("greedy half bodies")

    def send_large(self):
        self.keep(self.send("greedy", self.prompt(1, prompt="and " * 50000)))
        self.count("greedy large bodies")

    def hang_up(self):
        self.random.shuffle(self.sockets)
        for s in self.sockets[:len(self.sockets) // 2]:
            s.close()
        del self.sockets[:len(self.sockets) // 2]

    def act(self):
        self.random.choice((self.ask_much, self.leave_bodies_unfinished, self.send_large, self.hang_up))()
        check(self.process.poll() is None, "helm-gateway ended: " + self.log())
        check(not self.failures, f"a modest request: {self.failures}; {self.log()}")

    def settle(self):
        """Ends it while helmd goes on."""
        self.quit = True
        self.thread.join(MOST_S)
        check(not self.thread.is_alive() and not self.failures, f"modest requests: {self.failures}; {self.log()}")
        for s in self.sockets:
            s.close()
        print(f"     keys: the longest modest request took {self.longest:.1f} s; the gateway held at most {self.most >> 20} MiB more")
        check(self.longest < MOST_S and self.most < 2 * HELD * SLOW, "the greedy key's part")
        self.process.send_signal(signal.SIGTERM)
        same(processor.ended(self.process, 30 * SLOW), 0, "the gateway's exit status")

    def close(self):
        self.quit = True
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.base, ignore_errors=True)
