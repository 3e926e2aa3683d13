#!/usr/bin/python3
"""The same tokens and logprobs whatever else runs and whatever dies, of plans that are invariant (common/plan/schedule.h).

Each of some requests, greedy and seeded, with prompts that begin alike or not, runs alone first, on an idle daemon that keeps no
prefixes. Then all of them run many times over at once, through a pool too small for them, found in the prefix cache or not,
while workers are killed and stopped and other requests cancelled. Each stream that ends must have every token once, in order,
and each token and logprob bit for bit as alone.

    invariance.py [SHAPE,... [REQUESTS [KILLS [SEED]]]]  (`make invariance`: every shape that needs no GPU, 2000 requests, 200
                                                          kills; `make test`: a few seconds, by test_helmd_invariant.py)

Shapes cuda-* are for a GPU. They, and this file, need of Python protobuf alone, and of HELM `make dist`'s programs:
HELM_BIN=DIST/bin HELM_PYPROTO=build/release/pyproto tests/process/invariance.py cuda 500 20 1"""
import os
import random
import signal
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helmd_harness import DATA, Client, Daemon, check, pb, plan_json, same, SLOW  # noqa: E402
from raw_zmtp import Dealer  # noqa: E402

WISH = os.environ.get("HELM_INVARIANT", "on")  # "off" shows what is lost without it
DISTURB_S, STALL_S = 0.4 * SLOW, 60 * SLOW  # between two kills; without the end of a stream, at most
VOCAB, LAYERS, CONTEXT = 4096, 8, 512  # of the demo model, and of a sequence
SIZES = {"context_tokens": CONTEXT, "step_tokens": 64, "slots": 6, "page_tokens": 16, "page_count": 34}


def pair(homes, embed, head, **sizes):
    return {"options": ("--device", "emulated"),
            "plan": plan_json(LAYERS, homes, embed, head, **{**SIZES, **sizes})}


# Plans, by the places of computation. cpu-*: every kernel of the processor by itself. cuda-*: as the emulated device's, on the GPU.
SHAPES = {
    "cpu": {"options": ("--device", "cpu", "--threads", 2, "--ctx", CONTEXT, "--step-tokens", 64, "--parallel", 6, "--kv-tokens", 544)},
    "pair": pair("gcgcgcgc", "c", "g", ),
    "phases": pair("gcgccccc", "g", "c", prefill="gcgsssss", prefill_from=40, ring_bytes=8 << 20),
    "gpu": pair("gggggggg", "g", "g"),
    "packed": pair("gcgcgcgc", "c", "g", packed="g"),
    "tiers": pair("ggggcccc", "g", "c", vram_page_count=20, kv_direct_permille=1000),
}
# MLPs of which the GPU has the first rows, beside whole ones; prompts stream the CPU's rows
SHAPES["shared"] = pair("ghgcghsh" + "ghccghgh", "g", "g", prefill="gsgsgsss" + "gsccgsgs", prefill_from=40, ring_bytes=8 << 20, shared_rows=256)
for name in "ref", "avx2", "avx512", "avx512-bf16", "avx512-vnni":
    SHAPES["cpu-" + name] = {"options": SHAPES["cpu"]["options"] + ("--kernels", name)}
    SHAPES["q4-" + name] = {"options": SHAPES["cpu"]["options"] + ("--kernels", name, "--weights", "q4_k_m", "--activations", "int8")}
# blocks with activations as they are, and more tokens a step
SHAPES["q4-exact"] = {"options": ("--device", "cpu", "--threads", 2, "--ctx", CONTEXT, "--step-tokens", 64, "--parallel", 12,
                                  "--kv-tokens", 1088, "--weights", "q4_k_m", "--activations", "exact")}
# a cache of q8_0; experts, of a model of its own
SHAPES["cpu-kv8"] = {"options": SHAPES["cpu"]["options"] + ("--kv-dtype", "q8_0")}
SHAPES["experts"] = {"options": SHAPES["cpu"]["options"], "model": os.path.join(DATA, "golden", "qwen2moe"), "vocab": 512}  # one shared
SHAPES["gpu-experts"] = {**SHAPES["experts"], "options": ("--device", "emulated", *SHAPES["cpu"]["options"][4:])}
# blocks: one sequence's products in chains, several's as a few tokens'
SHAPES["gpu-q4"] = {"options": ("--device", "emulated", *SHAPES["cpu"]["options"][4:], "--weights", "q4_k_m")}
EMULATED = "pair", "phases", "gpu", "packed", "tiers", "shared", "gpu-q4"
# all layers in the memories of two devices, so that two chunks of a prompt are in flight; cuda-two needs two cards
SHAPES["two"] = {**pair("ggggGGGG", "g", "G"), "options": ("--device", "emulated,emulated")}
SHAPES["cuda-two"] = {**SHAPES["two"], "options": ("--device", "cuda:0,cuda:1")}
for name in EMULATED:
    SHAPES["cuda-" + name] = {**SHAPES[name], "options": ("--device", "cuda", *SHAPES[name]["options"][2:])}
NAMED = {"all": [name for name in SHAPES if not name.startswith("cuda-")], "cuda": ["cuda-" + name for name in EMULATED]}


class Spec:
    def __init__(self, r, beginnings, vocab):
        prompt = list(r.choice(beginnings)) + [r.randrange(3, vocab) for _ in range(r.choice((1, 2, 7, 20, 60)))]
        self.prompt, self.count = prompt[-r.choice((1, 300, 300, 300)):], r.choice((1, 10, 40, 120))
        self.seed, self.logprobs = r.randrange(1 << 20), r.choice((0, 1, 3))
        self.sampling = r.choice(({}, {"temperature": 0.9}, {"temperature": 1.3, "top_k": 40, "repetition_penalty": 1.1},
                                  {"temperature": 0.7, "top_p": 0.9, "presence_penalty": 0.5}))
        self.alone = None

    def send(self, client):
        return client.generate(self.prompt, self.count, seed=self.seed, sampling=self.sampling, logprobs=self.logprobs,
                               ignore_eos=True)


def numbers_of(stream):
    """A stream's tokens and logprobs, to the bit."""
    return [(t.token, struct.pack("f", t.logprob), [(p.token, struct.pack("f", p.logprob)) for p in t.top]) for t in stream.first]


def start(shape, *options):
    spec = SHAPES[shape]
    d = Daemon(*spec["options"], "--restart-limit", 1000, "--queue", 256, *options, "--invariant", WISH, real=True,
               model=spec.get("model"), plan=spec.get("plan"))
    check(d.ready.startswith("ready "), d.ready + d.log())
    client = connect(d)
    status = client.ask("status").status
    client.close()
    check(status.invariant.startswith(WISH), f"status says: {status.invariant}")
    return d


def connect(d):
    return Client(d.endpoint, socket=Dealer(d.endpoint))


def run_alone(shape, specs):
    d = start(shape, "--prefix-cache", "off")
    try:
        client = connect(d)
        for spec in specs:
            stream = spec.send(client)
            client.run(stream, timeout=60)
            same(len(stream.tokens), spec.count, f"tokens alone: {stream.error or stream.done}")
            spec.alone = numbers_of(stream)
        client.close()
    finally:
        d.close()


class Load:
    """`specs` over and over on one daemon, until `requests` have ended, not cancelled, and `kills` workers are dead."""

    def __init__(self, shape, specs, requests, kills, r):
        self.shape, self.specs, self.requests, self.kills, self.random = shape, specs, requests, kills, r
        self.counts = {"same": 0, "changed": 0, "failed": 0, "cancelled": 0, "kills": 0, "stops": 0}
        self.first_change = ""

    def take(self, spec, stream, cancelled):
        if stream.error or stream.done.finish_reason != pb.FINISH_LENGTH:
            was = stream.done and stream.done.finish_reason == pb.FINISH_CANCELLED
            self.counts["cancelled" if cancelled and was else "failed"] += 1
            if not (cancelled and was):
                self.first_change = self.first_change or f"{stream.error or stream.done}"
            return
        got = numbers_of(stream)
        self.counts["same" if got == spec.alone else "changed"] += 1
        if got != spec.alone and not self.first_change:
            at = next((i for i, (a, b) in enumerate(zip(got, spec.alone)) if a != b), len(got))
            same_tokens = [t[0] for t in got] == [t[0] for t in spec.alone]
            self.first_change = (f"prompt of {len(spec.prompt)}, {spec.count} tokens, {spec.sampling}: differs at {at} of {len(got)}, "
                                 f"tokens {'the same' if same_tokens else 'others, too'}: {got[at:at + 1]}, alone {spec.alone[at:at + 1]}")

    def disturb(self, d, administrator):
        """Kills or stops a worker, if all are ready: helmd ends when none gets ready three times in a row."""
        if administrator.ask("status", timeout=STALL_S).status.state != "ready":
            return
        children = d.children()
        worker = self.random.choice([children[k] for k in ("cpu", "gpu") if k in children] or [0])
        if not worker:
            return
        stop = self.random.random() < 0.2
        try:
            os.kill(worker, signal.SIGSTOP if stop else signal.SIGKILL)
            if stop:
                time.sleep(0.1)
                os.kill(worker, signal.SIGCONT)
        except ProcessLookupError:
            return
        self.counts["stops" if stop else "kills"] += 1

    def run(self):
        d = start(self.shape)
        administrator, *clients = [connect(d) for _ in range(5)]
        open_ = [[] for _ in clients]
        ended, due, last = 0, time.time(), time.time()
        try:
            while ended < self.requests or self.counts["kills"] < self.kills:
                check(d.process.poll() is None and time.time() < last + STALL_S, "helmd ended, or ends no stream")
                for client, mine in zip(clients, open_):
                    while len(mine) < 4 and (ended < self.requests or self.counts["kills"] < self.kills):
                        spec = self.random.choice(self.specs)
                        mine.append([spec, spec.send(client), False])
                    while client.socket.poll(1):
                        client.receive()
                    for entry in [e for e in mine if e[1].ended]:
                        mine.remove(entry)
                        self.take(*entry)
                        ended, last = self.counts["same"] + self.counts["changed"] + self.counts["failed"], time.time()
                    if mine and self.random.random() < 0.002:
                        entry = self.random.choice(mine)
                        entry[2] = True
                        request = client.request()
                        request.cancel.request_id = next(n for n, s in client.streams.items() if s is entry[1])
                        client.socket.send(request.SerializeToString())
                if self.kills and time.time() > due and self.counts["kills"] < self.kills:
                    self.disturb(d, administrator)
                    due = time.time() + DISTURB_S * self.random.uniform(0.5, 1.5)
            s = administrator.ask("status").status
            self.counts["prefix hits"] = s.prefix_hits_total
            self.counts["preemptions"] = d.log().count("gives its KV pages")
        except BaseException:
            print(d.log()[-4000:], flush=True)
            raise
        finally:
            d.close()


def invariance(shape, requests, kills, seed, distinct=60):
    r, vocab = random.Random(seed), SHAPES[shape].get("vocab", VOCAB)
    beginnings = [[]] + [[r.randrange(3, vocab) for _ in range(n)] for n in (16, 33, 90, 200)]
    specs = [Spec(r, beginnings, vocab) for _ in range(distinct)]
    run_alone(shape, specs)
    load, began = Load(shape, specs, requests, kills, r), time.time()
    load.run()
    print(f"{shape}, seed {seed}, {time.time() - began:.0f} s:", ", ".join(f"{n} {what}" for what, n in load.counts.items()), flush=True)
    same((load.counts["changed"], load.counts["failed"]), (0, 0), f"streams of {shape} changed and failed; {load.first_change}")
    return load.counts


if __name__ == "__main__":
    asked = sys.argv[1] if len(sys.argv) > 1 else "all"
    for shape in NAMED.get(asked) or asked.split(","):
        invariance(shape, *(int(a) for a in sys.argv[2:4] or (2000, 200)), int(sys.argv[4]) if len(sys.argv) > 4 else random.randrange(1 << 30))
