#!/usr/bin/python3
"""Mixed load on the real CPU worker and the demo model, with cancels, disconnects and questions: resident memory, descriptors,
threads and pages must stay what they were.

    soak.py [SECONDS [SEED]]      (`make soak`: 1800; `make test`: a few, by test_helmd_chaos.py)

Samples are taken while the load runs. The first fifth is warming up. A line is fitted to the rest (least squares); its slope is
printed and held to a bound, as is the difference between the medians of its first and last thirds."""
import os
import random
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helmd_harness import Client, Daemon, check, pb, same, wait_until, SLOW  # noqa: E402

CLIENTS = 5
MIB = 1 << 20
# Growth that is allowed: allocators settle for minutes, so short runs are held to the difference alone.
GROWTH = {"resident": 6 * MIB * SLOW, "descriptors": 0, "threads": 0}
SLOPE_FROM_SECONDS, SLOPE_AN_HOUR = 600, 6 * MIB


def look(pid):
    with open(f"/proc/{pid}/status") as f:
        fields = dict(line.split(":", 1) for line in f if line.startswith(("VmRSS", "RssShmem", "Threads")))
    # the arena is counted to both, and filled as pages of the KV cache are first used
    own = int(fields["VmRSS"].split()[0]) - int(fields["RssShmem"].split()[0])
    return {"resident": own << 10, "threads": int(fields["Threads"]), "descriptors": len(os.listdir(f"/proc/{pid}/fd"))}


def slope(points):
    """The growth of y while x grows by one, of points (x, y)."""
    x, y = (statistics.fmean(p[i] for p in points) for i in (0, 1))
    return sum((a - x) * (b - y) for a, b in points) / (sum((a - x) ** 2 for a, _ in points) or 1)


class User:
    """A user that asks, waits, cancels and comes back."""

    def __init__(self, d, random_, vocab):
        self.d, self.random, self.vocab, self.counts = d, random_, vocab, {}
        self.shared = [random_.randrange(vocab) for _ in range(200)]
        self.connect()

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1

    def connect(self):
        self.client, self.open = Client(self.d.endpoint), {}

    def step(self):
        while self.client.socket.poll(0):
            response = pb.Response.FromString(self.client.socket.recv())
            stream = self.open.get(response.request_id)
            if stream is None:
                continue
            stream.take(response)
            if stream.ended:
                del self.open[response.request_id]
                self.count("errors" if stream.error else "requests")
                check(not stream.error, f"{stream.error}")
                check(stream.done.finish_reason != pb.FINISH_ERROR, f"{stream.done}")
        dice = self.random.random()
        if len(self.open) < 2 and dice < 0.5:
            shared = self.shared[:self.random.choice((0, 40, 200))]
            prompt = shared + [self.random.randrange(self.vocab) for _ in range(self.random.randrange(1, 60))]
            number = self.client.next
            self.open[number] = self.client.generate(prompt, self.random.randrange(1, 50), seed=self.random.randrange(1000),
                                                     sampling={"temperature": self.random.choice((0, 0.8))})
        elif dice < 0.54 and self.open:
            r = self.client.request()
            r.cancel.request_id = self.random.choice(list(self.open))
            self.client.socket.send(r.SerializeToString())
            self.count("cancels")
        elif dice < 0.56:
            self.client.close()
            self.connect()
            self.count("reconnects")
        elif dice < 0.60:
            r = self.client.request()
            getattr(r, self.random.choice(("status", "list", "plan", "model_info"))).SetInParent()
            self.client.socket.send(r.SerializeToString())
            self.count("questions")


def judge(samples, seconds):
    """samples: [(time, process, what was seen)]. Prints a line for each figure; fails beyond a bound."""
    wrong = []
    for process in sorted({s[1] for s in samples}):
        seen = [(t, values) for t, p, values in samples if p == process]
        seen = seen[len(seen) // 5:]
        third = max(1, len(seen) // 3)
        for what, bound in GROWTH.items():
            first, last = (statistics.median(v[what] for _, v in part) for part in (seen[:third], seen[-third:]))
            an_hour = slope([(t / 3600, v[what]) for t, v in seen])
            unit, name = (MIB, "MiB") if what == "resident" else (1, "")
            print(f"     {process} {what}: {first / unit:.1f} {name} to {last / unit:.1f} {name}, slope {an_hour / unit:+.2f} {name} an hour "
                  f"({len(seen)} samples)", flush=True)
            if last - first > bound:
                wrong.append(f"{process}: {what} grew by {(last - first) / unit:.1f} {name}")
            if what == "resident" and seconds >= SLOPE_FROM_SECONDS and an_hour > SLOPE_AN_HOUR * SLOW:
                wrong.append(f"{process}: {what} grows by {an_hour / unit:.1f} {name} an hour")
    check(not wrong, "; ".join(wrong))


def soak(seconds, seed):
    print(f"     seed {seed}", flush=True)
    random_ = random.Random(seed)
    d = Daemon("--device", "cpu", "--threads", 1, "--ctx", 512, "--parallel", 4, "--kv-tokens", 2048, real=True)
    try:
        check(d.ready.startswith("ready "), d.ready + d.log())
        watch = Client(d.endpoint)
        vocab = watch.ask("model_info").model_info.vocab
        users = [User(d, random_, vocab) for _ in range(CLIENTS)]
        pids = {"helmd": d.pid, "worker": d.children()["worker"]}
        samples, begun, every = [], time.time(), max(0.1, seconds / 400)
        while time.time() < begun + seconds:
            random_.choice(users).step()
            time.sleep(0.004)
            if time.time() > begun + every * len(samples) / len(pids):
                samples += [(time.time() - begun, name, look(pid)) for name, pid in pids.items()]
        for user in users:
            user.client.close()

        def idle():  # a step in flight has pages until it is done
            now = watch.ask("status").status
            return now.running == now.queued == now.kv_pages_used == 0

        check(wait_until(idle, 10), f"something stays: {watch.ask('status').status}")
        status = watch.ask("status").status
        counts = {}
        for user in users:
            for what, n in user.counts.items():
                counts[what] = counts.get(what, 0) + n
        print("     " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())) + f"; {status.tokens_output_total} tokens, "
              f"{status.prefix_hits_total} prefixes found, {status.kv_pages_cached} pages kept", flush=True)
        same(status.workers[0].restarts, 0, "restarts")
        check(counts.get("requests", 0) > seconds / SLOW, "hardly any request went through")
        judge(samples, seconds)
        watch.close()
        same(d.stop(), 0, "exit status")
        same(d.left_behind(), [], "left behind")
    finally:
        d.close()


if __name__ == "__main__":
    soak(float(sys.argv[1]) if len(sys.argv) > 1 else 1800, int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30))
