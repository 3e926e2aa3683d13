#!/usr/bin/python3
"""Structured output where tokens are drawn from a device's logits: regular expressions, a schema and a grammar, greedy and
drawn, several at once and beside requests without masks. Called by check.sh; needs the programs and Python alone.

    masks.py [--model DIR] BIN [-- HELMD OPTIONS...]

BIN: the folder with helmd, helm-cli and the workers. HELM_TEST_DEVICE: cuda (default) or emulated. Prints what failed, how many
outputs are those of a CPU (rounding may tell them apart), and what a token takes with a mask and without."""
import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile

DEVICE = os.environ.get("HELM_TEST_DEVICE", "cuda")
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 12}, "kind": {"enum": ["king", "prophet"]},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 969}}, "required": ["name", "kind", "age"],
          "additionalProperties": False}
GRAMMAR = 'root ::= "(" [a-c]{1,4} ("," [a-c]{1,4}){0,3} ")"\n'
counts = {True: 0, False: 0}


def check(name, ok, detail):
    counts[bool(ok)] += 1
    if not ok:
        print("FAIL %s  [%s]" % (name, str(detail)[:600]), flush=True)


def fits_schema(text):
    value = json.loads(text)
    return (set(value) == {"name", "kind", "age"} and 1 <= len(value["name"]) <= 12 and value["kind"] in ("king", "prophet") and
            0 <= value["age"] <= 969)


def kinds(folder):
    """Name, helm-cli's options, and whether a text is right."""
    for name, text in (("schema", json.dumps(SCHEMA)), ("grammar", GRAMMAR)):
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    words, given = "[a-z]{3,9}( [a-z]{3,9}){2}\\.", "abc"
    return [("words", ["--regex", words], lambda text: re.fullmatch(words, text)),
            ("letters that are given", ["--regex", given], lambda text: text == given),
            ("schema", ["--json-schema", os.path.join(folder, "schema")], fits_schema),
            ("grammar", ["--grammar", os.path.join(folder, "grammar")], lambda text: re.fullmatch("\\([a-c]{1,4}(,[a-c]{1,4}){0,3}\\)", text))]


@contextlib.contextmanager
def daemon(options, folder, *more):
    rundir = os.path.join(folder, "run-" + more[1])
    endpoint, (read_fd, write_fd) = "ipc://%s/d.sock" % rundir, os.pipe()
    os.mkdir(rundir, 0o700)
    with open(rundir + ".log", "wb") as log:
        process = subprocess.Popen([os.path.join(options.bin, "helmd"), "--model", options.model, "--listen", endpoint, "--rundir", rundir,
                                    "--ready-fd", str(write_fd), "--parallel", "8", *more], pass_fds=[write_fd], stdout=log, stderr=log)
    os.close(write_fd)
    try:
        ready = os.read(read_fd, 4096).decode()
        if not ready.startswith("ready"):
            with open(rundir + ".log", errors="replace") as log:
                sys.exit("helmd %s: %s\n%s" % (" ".join(more), ready, log.read()[-2000:]))
        yield endpoint
    finally:
        process.terminate()
        process.wait(60)
        os.close(read_fd)


def generate(options, endpoint, tokens, *more):
    run = subprocess.run([os.path.join(options.bin, "helm-cli"), "--connect", endpoint, "generate", "--json", "--prompt", "And the LORD said unto",
                          "-n", str(tokens), *more], capture_output=True, text=True, timeout=120)
    return json.loads(run.stdout) if run.returncode == 0 else {"text": "", "tokens": [], "finish_reason": run.stderr}


def outputs(options, endpoint, folder):
    """Each kind greedily and drawn, two of each seed, all at once; between them some without masks."""
    asked = []
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for name, more, fits in kinds(folder):
            for seed in range(5):
                draw = ["--temperature", "0"] if seed == 0 else ["--temperature", "0.8", "--repetition-penalty", "1.1", "--seed", str(seed)]
                asked += [(name, seed, fits, [pool.submit(generate, options, endpoint, 200, *more, *draw) for _ in range(2)])]
                asked += [("no mask", seed, None, [pool.submit(generate, options, endpoint, 60, "--ignore-eos", *draw)])]
        return [(name, seed, fits, [future.result() for future in futures]) for name, seed, fits, futures in asked]


def check_outputs(found):
    for name, seed, fits, runs in found:
        for run in runs:
            if fits is None:
                check("no mask, all tokens", len(run["tokens"]) == 60, run)
            else:
                check("%s, seed %d" % (name, seed), run["finish_reason"] == "eos" and fits(run["text"]), run)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="tools/models/demo")
    parser.add_argument("bin")
    parser.add_argument("helmd", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="helm-masks-") as folder:
        with daemon(options, folder, "--device", DEVICE, "--strategy", "all-gpu", *options.helmd) as endpoint:
            found = outputs(options, endpoint, folder)
            check_outputs(found)
            times = [generate(options, endpoint, 400, "--temperature", "0", *more)["timings"]["tpot_ms"] * 1e3
                     for more in (["--ignore-eos"], ["--regex", "[\\s\\S]{2000,}"]) for _ in range(3)]
        with daemon(options, folder, "--device", "cpu") as endpoint:
            of_cpu = outputs(options, endpoint, folder)
    pairs = [(a["tokens"], b["tokens"]) for (_, _, fits, ours), (_, _, _, theirs) in zip(found, of_cpu) if fits for a, b in zip(ours, theirs)]
    print("%d of %d outputs with masks are the CPU's; a token takes %.0f us, %.0f us with a mask" %
          (sum(a == b for a, b in pairs), len(pairs), min(times[:3]), min(times[3:])))
    print("%d passed, %d failed on %s" % (counts[True], counts[False], DEVICE))
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
