#!/usr/bin/python3
"""Everything at once against one helmd: kills, stops, floods, broken frames, cancels, disconnects, a gateway with a greedy key
and a modest one (chaos_keys.py), and beside it daemons that start under odd limits and on spoiled checkpoints. These must hold:
every stream that is not cancelled has each of its tokens, once and in order; each request of the modest key is answered; memory,
descriptors and pages come back; the daemon lives, and leaves nothing behind when it ends.

    chaos.py [SECONDS [SEED]]      (`make chaos`: 600; `make test`: a few, by test_helmd_chaos.py)"""
import os
import random
import resource
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import zmq  # noqa: E402
import processor  # noqa: E402
from helmd_harness import (BIN, PROFILE, VOCAB, Client, Daemon, check, pb, same, wait_until, write_checkpoint,  # noqa: E402
                           SLOW)
from chaos_keys import Keys  # noqa: E402
from raw_zmtp import Raw, frame, greeting, ready  # noqa: E402

MIB = 1 << 20
if SLOW > 1:  # what AddressSanitizer keeps of freed memory is no growth
    os.environ["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=16"
GROWTH = 160 * MIB * SLOW  # that floods may take for a while: CLIENT_HELD_MAX and some
STAYS = 48 * MIB * SLOW


def resident(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmRSS"))


class Expected:
    """The fake worker's tokens one by one (helmd_harness.expected_tokens has all of them)."""

    def __init__(self, prompt, seed):
        self.hash = 1469598103934665603 ^ seed
        for t in prompt:
            self.add(t)

    def add(self, token):
        self.hash = ((self.hash ^ token) * 1099511628211) & (2**64 - 1)

    def next(self):
        token = 2 + (self.hash >> 20) % (VOCAB - 2)
        self.add(token)
        return token


class Request:
    def __init__(self, random_, client):
        self.prompt = [random_.randrange(2, VOCAB) for _ in range(random_.choice((1, 5, 40, 120)))]
        self.count, self.seed = random_.randrange(1, 80), random_.randrange(1 << 20)
        self.expected, self.got, self.ended, self.cancelled, self.id = Expected(self.prompt, self.seed), 0, "", False, 0
        r = client.request()
        r.generate.prompt.extend(self.prompt)
        r.generate.max_tokens = self.count
        r.generate.sampling.has_seed = True
        r.generate.sampling.seed = self.seed
        self.number = r.request_id
        client.socket.send(r.SerializeToString())

    def take(self, response):
        body = response.WhichOneof("body")
        check(not self.ended, f"{body} behind the end")
        if body == "accepted":
            self.id = response.accepted.id
        elif body == "token":
            same(response.token.index, self.got, "index of a token")
            same(response.token.token, self.expected.next(), f"token {self.got}")
            self.got += 1
        elif body == "error":
            same(response.error.code, pb.ERROR_BUSY, f"error {response.error.message}")
            self.ended = "busy"
        else:
            self.ended = {pb.FINISH_LENGTH: "done", pb.FINISH_CANCELLED: "cancelled"}.get(response.done.finish_reason, "failed")
            check(self.ended == "done" or (self.cancelled and self.ended == "cancelled"), f"ended by {response.done}")
            if self.ended == "done":
                same(self.got, self.count, "tokens")


class Chaos:
    def __init__(self, seconds, seed):
        self.random, self.seconds, self.counts = random.Random(seed), seconds, {}
        self.d = Daemon("--parallel", 4, "--queue", 64, "--kv-tokens", 1024, "--restart-limit", 1000, "--step-timeout-ms", 2000,
                        faults="step_us=1000")
        check(self.d.ready.startswith("ready "), self.d.ready + self.d.log())
        self.clients = [(Client(self.d.endpoint), {}) for _ in range(6)]
        self.control = Client(self.d.endpoint)
        self.raws, self.killed, self.unready, self.most = [], set(), 0, 0
        self.control.ask("status")
        self.before = resident(self.d.pid)
        self.descriptors = len(os.listdir(f"/proc/{self.d.pid}/fd"))
        self.spoiled = os.path.join(self.d.base, "spoiled")
        self.keys = Keys(self.d.endpoint, self.random, self.count)

    def count(self, what, n=1):
        self.counts[what] = self.counts.get(what, 0) + n

    # -- what clients do --

    def pump(self):
        for client, open_ in self.clients:
            while client.socket.poll(0):
                response = pb.Response.FromString(client.socket.recv())
                request = open_.get(response.request_id)
                if not request:
                    continue  # the answer to a cancel
                request.take(response)
                if request.ended:
                    self.count("streams " + request.ended)
                    self.count("tokens", request.got)
                    del open_[response.request_id]

    def do_generate(self):
        client, open_ = self.random.choice(self.clients)
        if len(open_) < 8:
            request = Request(self.random, client)
            open_[request.number] = request

    do_generate_2 = do_generate_3 = do_generate_4 = do_generate_5 = do_generate_6 = do_generate

    def do_cancel(self):
        client, open_ = self.random.choice(self.clients)
        if not open_:
            return
        request = self.random.choice(list(open_.values()))
        request.cancelled = True
        r = client.request()
        r.cancel.request_id = request.number
        client.socket.send(r.SerializeToString())
        self.count("cancels")

    def do_disconnect(self):
        if self.random.random() < 0.6:
            return
        at = self.random.randrange(len(self.clients))
        self.count("streams left", len(self.clients[at][1]))
        self.clients[at][0].close()
        self.clients[at] = (Client(self.d.endpoint), {})

    # -- what attackers do --

    def raw(self, **options):
        self.raws.append(Raw(self.d.endpoint, **options))
        while len(self.raws) > 40:
            self.raws.pop(self.random.randrange(len(self.raws))).close()
        return self.raws[-1]

    def do_endless_parts(self):
        self.raw().send_some(frame(b"x" * self.random.choice((0, 1, 200)), more=True) * 20000, 0.05)
        self.count("endless messages")

    def do_half_a_message(self):
        size = self.random.randrange(1 << 20)
        self.raw().send_some(b"\x02" + size.to_bytes(8, "big") + bytes(self.random.randrange(size + 1)), 0.05)
        self.count("half messages")

    def do_not_read(self):
        r = pb.Request(version=1, request_id=1)
        getattr(r, self.random.choice(("list", "status", "plan", "model_info"))).SetInParent()
        self.raw().send_some(frame(r.SerializeToString()) * 500, 0.05)
        self.count("answers unread", 500)

    def do_ping(self):
        self.raw().send_some(frame(b"\x04PING\0\x0a" + bytes(16), command=True) * 2000, 0.05)
        self.count("pings", 2000)

    def do_junk(self):
        raw = self.raw(greet=self.random.random() < 0.5)
        good = greeting() + ready() + frame(b"\x08\x01\x10\x01\x2a\x00")
        data = bytearray(good if self.random.random() < 0.5 else self.random.randbytes(200))
        for _ in range(self.random.randrange(4)):
            data[self.random.randrange(len(data))] = self.random.randrange(256)
        raw.send_some(bytes(data), 0.05)
        self.count("junk")

    def do_mutants(self):
        raw = self.raw()
        r = pb.Request(version=1, request_id=5)
        r.generate.prompt.extend([3, 4, 5] * 10)
        r.generate.max_tokens = 3
        for _ in range(50):
            data = bytearray(r.SerializeToString())
            for _ in range(self.random.randrange(1, 4)):
                data[self.random.randrange(len(data))] = self.random.randrange(256)
            raw.send_some(frame(bytes(data)), 0.05)
        self.count("mutant requests", 50)

    def do_connect_many(self):
        for _ in range(20):
            Raw(self.d.endpoint, greet=self.random.random() < 0.5).close()
        self.count("connections", 20)

    def do_greedy_key(self):
        self.keys.act()

    # -- what happens to processes --

    def do_kill(self):
        worker = self.d.children().get("worker")
        if not worker or worker in self.killed or self.random.random() >= 0.5:
            return
        ready = self.control.ask("status").status.state == "ready"
        if not ready and self.unready == 2:  # helmd gives up after three starts in a row without one that gets ready
            return
        self.unready = 0 if ready else self.unready + 1
        self.killed.add(worker)
        try:
            os.kill(worker, signal.SIGKILL)
            self.count("workers killed")
        except ProcessLookupError:  # another's limit ended it meanwhile
            pass

    def do_stop(self):
        worker = self.d.children().get("worker")
        if worker and self.random.random() < 0.3:
            try:
                os.kill(worker, signal.SIGSTOP)
                time.sleep(self.random.random() * 0.2)
                os.kill(worker, signal.SIGCONT)
                self.count("workers stopped")
            except ProcessLookupError:
                pass

    def do_signal(self):
        os.kill(self.d.pid, self.random.choice((signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGHUP, signal.SIGPIPE)))
        self.count("signals")

    def do_keeper(self):
        keeper = self.d.children().get("keeper")
        if keeper and self.random.random() < 0.1:
            os.kill(keeper, signal.SIGKILL)
            self.count("keepers killed")

    def start_another(self, model, limit=None):
        """A helmd beside it, which must say in an exit status of its own why it does not start. Returns that status."""
        base = os.path.join(self.d.base, "other")

        def bound():
            if limit:
                resource.setrlimit(limit[0], (limit[1], resource.getrlimit(limit[0])[1]))

        command = [os.path.join(BIN, "helmd"), "--model", model, "--rundir", base, "--profile", PROFILE, "--worker-dir",
                   os.path.join(self.d.base, "none"), "--device", "cpu"]
        ended = processor.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60 * SLOW, preexec_fn=bound)
        check(ended.returncode in (2, 4), f"status {ended.returncode} with {limit}: {ended.stderr[-500:]!r}")
        check(b"\x1b" not in ended.stderr and ended.stderr.count(b"\n") > 0, f"{ended.stderr[-500:]!r}")

    def do_limits(self):
        if SLOW > 1 or self.random.random() > 0.2:
            return
        name, low, high = self.random.choice((("AS", 16 << 20, 1 << 30), ("DATA", 1 << 20, 1 << 30), ("STACK", 64 << 10, 8 << 20),
                                              ("NOFILE", 8, 100), ("FSIZE", 0, 1 << 20)))
        self.start_another(self.d.model, (getattr(resource, "RLIMIT_" + name), self.random.randrange(low, high)))
        self.count("starts under limits")

    def do_spoiled_checkpoint(self):
        if self.random.random() > 0.2:
            return
        write_checkpoint(self.spoiled)
        path = os.path.join(self.spoiled, self.random.choice(("config.json", "model.safetensors")))
        with open(path, "r+b") as f:
            data = bytearray(f.read())
            for _ in range(self.random.randrange(1, 5)):
                data[self.random.randrange(min(len(data), 4096))] = self.random.randrange(256)
            f.seek(0)
            f.write(data[:self.random.randrange(len(data)) if self.random.random() < 0.3 else None])
            f.truncate()
        self.start_another(self.spoiled)
        self.count("spoiled checkpoints")

    # -- all of it --

    def run(self):
        actions = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("do_")]
        begun = time.time()
        while time.time() < begun + self.seconds:
            self.random.choice(actions)()
            self.pump()
            self.most = max(self.most, resident(self.d.pid) - self.before)
            check(self.d.process.poll() is None, "helmd ended")
            time.sleep(0.01)
        self.settle()

    def settle(self):
        self.keys.settle()
        for raw in self.raws:
            raw.close()
        end = time.time() + 60 * SLOW
        while any(open_ for _, open_ in self.clients) and time.time() < end:
            self.pump()
            time.sleep(0.005)
        check(not any(open_ for _, open_ in self.clients), "streams without an end")

        def idle():  # a step in flight has pages until it is done
            now = self.control.ask("status", timeout=30).status
            return now.running == now.queued == now.kv_pages_used == 0

        check(wait_until(idle, 20), f"something stays: {self.control.ask('status').status}")
        wait_until(lambda: len(os.listdir(f"/proc/{self.d.pid}/fd")) <= self.descriptors, 10)
        after = len(os.listdir(f"/proc/{self.d.pid}/fd"))
        stays = resident(self.d.pid) - self.before
        print("     " + ", ".join(f"{n} {what}" for what, n in sorted(self.counts.items())))
        print(f"     memory: at most {self.most >> 20} MiB more, {stays >> 20} MiB stay; descriptors: {self.descriptors}, then {after}")
        check(after <= self.descriptors, "descriptors stay")
        check(self.most < GROWTH and stays < STAYS, "memory")
        check(self.counts.get("streams done", 0) > self.seconds / 4 / SLOW, "hardly any stream went through")
        check(not self.counts.get("streams failed"), "streams failed")
        self.control.close()
        for client, _ in self.clients:
            client.close()
        same(self.d.stop(), 0, "exit status")
        same([x for x in self.d.left_behind() if "/other" not in x], [], "left behind")


def chaos(seconds, seed):
    print(f"     seed {seed}", flush=True)
    c = Chaos(seconds, seed)
    try:
        c.run()
    except BaseException:
        print(f"---- seed {seed}; helmd's log:\n" + c.d.log()[-4000:])
        raise
    finally:
        c.keys.close()
        c.d.close()


if __name__ == "__main__":
    chaos(float(sys.argv[1]) if len(sys.argv) > 1 else 600, int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30))
