#!/usr/bin/python3
"""Weights on disk: decode against the bound by bytes, and whether memory is steady.

    disk.py --bin build/bin --model DIR --profile FILE --host-memory 8GiB [--vram 8GiB] [--rounds N] [--prompt N] [--tokens N] [--helmd OPTION ...]

Serves the model on the CPU, or with --vram on a GPU too, with so little memory that weights lie on disk, and generates: each round a
prompt of other random tokens, sampled, so that no loop of tokens chooses the same experts again. A row a round: time to the first
token, token/s of decode, the bytes that the worker read from disk in the round and their rate over the whole round, of a mixture the
part of the uses that each memory had, the worker's resident memory and the page cache after it. Before, between and after
the rounds 32 threads read the file alone, in order and past the page cache, for some seconds. At the end helm-plan's measure of the
disk, and the part of the mean of theirs that the rounds read."""
import argparse
import json
import mmap
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time


def ask(options, endpoint, *words):
    run = subprocess.run([os.path.join(options.bin, "helm-cli"), "--connect", endpoint, *map(str, words)], capture_output=True, text=True)
    return json.loads(run.stdout) if run.returncode == 0 else None


def worker_of(helmd):
    for pid in open("/proc/%d/task/%d/children" % (helmd, helmd)).read().split():
        if open("/proc/%s/comm" % pid).read().startswith("helm-worker-cp"):
            return int(pid)
    sys.exit("helmd has no CPU worker")


def number_in(path, name):
    return int(re.search(r"^%s:?\s+(\d+)" % name, open(path).read(), re.M).group(1))


def seen(pid):
    """Bytes read from disk; resident bytes; bytes in the page cache."""
    return number_in("/proc/%d/io" % pid, "read_bytes"), number_in("/proc/%d/status" % pid, "VmRSS") << 10, number_in("/proc/meminfo", "Cached") << 10


def one_round(options, endpoint, pid, vram):
    """vram: the part of the layers whose experts lie there, of whose uses nothing is counted."""
    before, uses = seen(pid), ask(options, endpoint, "status", "--json")
    prompt = ",".join(str(random.randrange(100, options.vocabulary)) for _ in range(options.prompt))
    begin = time.monotonic()
    answer = ask(options, endpoint, "generate", "--tokens", prompt, "-n", options.tokens, "--temperature", 1, "--top-k", options.top_k, "--ignore-eos", "--json")
    seconds = time.monotonic() - begin
    after, now = seen(pid), ask(options, endpoint, "status", "--json")
    used, present = (now["experts_%s_total" % k] - uses["experts_%s_total" % k] for k in ("used", "present"))
    read = after[0] - before[0]
    host = (1 - vram) * present / used if used else 0
    levels = "%5.1f %% in VRAM, %5.1f %% in host memory, %5.1f %% read  " % (100 * vram, 100 * host, 100 * (1 - vram - host)) if used else ""
    print("first after %6.0f ms  %6.2f token/s  %6.2f GB read, %5.2f GB/s  %sresident %.2f GB, page cache %.2f GB" %
          (answer["timings"]["ttft_ms"], answer["timings"]["decode_tok_s"], read / 1e9, read / 1e9 / seconds, levels, after[1] / 1e9, after[2] / 1e9), flush=True)
    return seconds, read


ALONE_SECONDS, ALONE_THREADS, ALONE_BYTES = 3, 32, 1 << 20


def alone(path):
    """Bytes a second of the largest file of a model, read in order with nothing beside."""
    if os.path.isdir(path):
        path = max((os.path.join(path, name) for name in os.listdir(path)), key=os.path.getsize)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    parts, lock, begin = os.path.getsize(path) // ALONE_BYTES, threading.Lock(), time.monotonic()
    taken = 0

    memory = mmap.mmap(-1, (ALONE_THREADS + 2) * ALONE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # on large pages, as the worker's
    memory.madvise(mmap.MADV_HUGEPAGE)

    def read(thread):
        nonlocal taken
        to = [memoryview(memory)[thread * ALONE_BYTES:(thread + 1) * ALONE_BYTES]]
        while time.monotonic() - begin < ALONE_SECONDS:
            with lock:
                part, taken = taken, taken + 1
            os.preadv(fd, to, part % parts * ALONE_BYTES)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(ALONE_THREADS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    rate = taken * ALONE_BYTES / (time.monotonic() - begin) / 1e9
    os.close(fd)
    print("disk alone, in order: %.2f GB/s" % rate, flush=True)
    return rate


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bin", "model", "profile", "host-memory"):
        p.add_argument("--" + name, required=True)
    p.add_argument("--vram")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--prompt", type=int, default=8)
    p.add_argument("--top-k", type=int, default=0, help="draw among so many tokens: 200 stays in a topic of make_gguf.py --sticky")
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--vocabulary", type=int, default=30000)
    p.add_argument("--helmd", nargs=argparse.REMAINDER, default=[])
    options = p.parse_args()
    random.seed(1)
    device = ["--device", "cuda", "--vram", options.vram] if options.vram else ["--device", "cpu"]
    planned = ["--model", options.model, *device, "--profile", options.profile, "--host-memory", options.host_memory, "--ctx", str(max(2048, options.prompt + options.tokens))]
    ask_plan = [os.path.join(options.bin, "helm-plan"), *planned, "--prompt", str(options.prompt)]
    plan = subprocess.run(ask_plan, capture_output=True, text=True).stdout
    print("\n".join(l for l in plan.splitlines() if re.match(r"machine|decode  |first  |experts|disk  |         (disk|vram|host|by|as) |cpu  ", l)), flush=True)
    levels = json.loads(subprocess.run([*ask_plan, "--json"], capture_output=True, text=True).stdout).get("experts_by_level", {})
    vram = levels.get("vram", {}).get("found", 0)
    with tempfile.TemporaryDirectory(prefix="helm-disk-") as base, open(base + "/log", "w") as log:
        endpoint = "ipc://%s/s" % base
        helmd = subprocess.Popen([os.path.join(options.bin, "helmd"), *planned, "--parallel", "2", "--listen", endpoint, "--rundir", base + "/r", *options.helmd], stdout=log, stderr=log)
        try:
            while (ask(options, endpoint, "status", "--json") or {}).get("state") != "ready":
                if helmd.poll() is not None:
                    sys.exit(open(base + "/log").read()[-2000:])
                time.sleep(1)
            pid = worker_of(helmd.pid)
            rounds, rates = [], [alone(options.model)]
            for _ in range(options.rounds):
                rounds.append(one_round(options, endpoint, pid, vram))
                rates.append(alone(options.model))
        finally:
            helmd.terminate()
            helmd.wait()
    seconds, read = (sum(column) for column in zip(*rounds))
    again = subprocess.run(ask_plan, capture_output=True, text=True).stdout
    rate = float(re.search(r"read at ([0-9.]+) GB/s", again).group(1))
    mean = sum(rates) / len(rates)
    print("disk alone now by helm-plan %.2f GB/s; all rounds read %.2f GB/s, %.0f %% of %.2f GB/s in order" %
          (rate, read / 1e9 / seconds, 100 * read / 1e9 / seconds / mean, mean))


if __name__ == "__main__":
    main()
