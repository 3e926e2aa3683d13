#!/usr/bin/python3
"""The whole way of a token, against transformers: helm-cli generate --tokens --json on every golden checkpoint and
GGUF file and on the demo model, compared by the rules of tests/data/golden/README.md.

Settings: the machine's fastest kernels with a 16-bit cache (class bf16: top-10 log probabilities within 0.4, mean
0.08; the token is the same wherever the reference's gap exceeds 0.4), and of some models the avx2 kernels with a float32 cache (class
float32: 0.02, 0.002, gap 0.05), and of some the fastest with a quantised cache. A case ends at the first permitted difference. Needs HELM_BIN."""
import json
import os
import select
import subprocess
import sys
import tempfile
import time

import processor

BIN = os.path.abspath(os.environ["HELM_BIN"])
STEPS = 32
CLASSES = {  # name: helmd options, worst, mean, gap
    "bf16": ([], 0.4, 0.08, 0.4),  # and, of experts, below which margin of a router another choice ends the case (MARGIN)
    "float32": (["--kernels", "avx2", "--kv-dtype", "f32"], 0.02, 0.002, 0.05),
    "q8_0": (["--kv-dtype", "q8_0"], 0.55, 0.08, 0.55),  # tests/golden/walks.h
}
FULL = bool(os.environ.get("HELM_TEST_FULL"))  # all cases; else every second: test_golden_cpu has all of them
# Models whose class float32 is run: of the others test_golden_cpu compares the same kernels' numbers (`make test-full`: all).
PLAIN = ("demo", "llama-Q4_K_M", "qwen3moe")
QUANTISED = ("qwen2-bias", "demo")  # models whose class q8_0 is run: it is one cache for all of them
MARGIN = {"bf16": 0.05, "float32": 0.001, "q8_0": 0.05}
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%s]" % (detail,)), flush=True)


def generate(endpoint, prompt):
    run = processor.run([os.path.join(BIN, "helm-cli"), "--connect", endpoint, "generate", "--tokens",
                          ",".join(map(str, prompt)), "-n", str(STEPS), "--logprobs", "20", "--ignore-eos", "--json"],
                         stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    if run.returncode:
        raise RuntimeError(run.stderr.decode())
    return json.loads(run.stdout)


def compare(case, answer, gap_limit, worst_limit, margin):
    """Differences of the log probabilities of the reference's ten best, while the tokens so far are equal."""
    differences = []
    for step, token, top in zip(case["steps"], answer["tokens"], answer["logprobs"]):
        ours = {t["token"]: t["logprob"] for t in top}
        found = [abs(ours.get(t, float("-inf")) - p) for t, p in step["top"][:10]]
        if step.get("router_margin", margin) < margin and (max(found) > worst_limit or
                                                           (token != step["token"] and step["gap"] > gap_limit)):
            return differences, True, None  # other experts
        differences += found
        if token != step["token"]:
            return differences, step["gap"] <= gap_limit, step["gap"]
    return differences, len(answer["tokens"]) == STEPS, None


def run_class(model, name, folder, work):
    options, worst_limit, mean_limit, gap_limit = CLASSES[name]
    endpoint = "ipc://" + os.path.join(work, "s")
    given = os.path.join(folder, "model.gguf") if model.startswith("llama-") else folder  # a file, or the folder with one
    told, tell = os.pipe()
    daemon = subprocess.Popen([os.path.join(BIN, "helmd"), "--model", given, "--device", "cpu", "--listen", endpoint,
                               "--rundir", os.path.join(work, "r"), "--log-level", "warn", "--ready-fd", str(tell),
                               "--profile", os.path.abspath("tests/data/profiles/described.json")] + options,
                              stdin=subprocess.DEVNULL, pass_fds=[tell])
    os.close(tell)
    try:
        said = processor.wait(90, lambda s: os.read(told, 4096) if select.select([told], [], [], s)[0] else None)
        check("%s, class %s: helmd is ready" % (model, name), (said or b"").startswith(b"ready "), said)
        cases = json.load(open(os.path.join(folder, "golden.json")))["cases"][::1 if FULL else 2]
        differences, steps, apart = [], 0, []
        for n, case in enumerate(cases):
            answer = generate(endpoint, case["prompt"])
            found, fine, gap = compare(case, answer, gap_limit, worst_limit, MARGIN[name])
            steps += len(answer["tokens"])
            differences += found
            if not fine:
                apart.append((n, gap))
        check("%s, class %s: tokens of %d cases" % (model, name, len(cases)), not apart, apart)
        mean, worst = sum(differences) / len(differences), max(differences)
        check("%s, class %s: log probabilities, mean %.5f, worst %.4f of %d" % (model, name, mean, worst, len(differences)),
              len(differences) > 100 and mean <= mean_limit and worst <= worst_limit, (mean, worst))
    finally:
        os.close(told)
        daemon.terminate()
        check("%s, class %s: helmd ends with 0" % (model, name), processor.ended(daemon, 30) == 0, daemon.returncode)


def main():
    flags, skipped = processor.flags(), 0
    models = {name: os.path.join("tests/data/golden", name) for name in sorted(os.listdir("tests/data/golden"))
              if os.path.isdir(os.path.join("tests/data/golden", name))}
    models["demo"] = "tools/models/demo"
    for name in sorted(os.listdir("tests/data/golden-gguf")):
        if os.path.isdir(os.path.join("tests/data/golden-gguf", name)):
            models[name] = os.path.join("tests/data/golden-gguf", name)
    if "asan" in BIN:  # instrumented processes are slow: some models of each kind reach every line
        models = dict(sorted(models.items())[::3])
    for model, folder in models.items():
        for name in CLASSES:
            if name == "q8_0" and model not in QUANTISED or \
                    name == "float32" and model not in PLAIN and not os.environ.get("HELM_TEST_FULL"):
                continue
            if name == "float32" and not all(f in flags for f in ("avx2", "fma", "f16c")):
                print("%s, class float32, skipped: this machine lacks avx2" % model)
                skipped += 1
                continue
            with tempfile.TemporaryDirectory(prefix="helm-golden-") as work:
                os.mkdir(os.path.join(work, "r"), 0o700)
                run_class(model, name, os.path.abspath(folder), work)
    print("%d passed, %d failed, %d skipped" % (counts[True], counts[False], skipped))
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
