#!/usr/bin/env python3
"""GGUF files both ways: llama.cpp loads what helm-quantize writes, HELM loads what llama.cpp quantizes, and both compute the
same from each file.

usage: llama_agrees.py --bin build/bin --llama-file PROGRAM --backends DIR [--model DIR] [--only MIXTURES]

PROGRAM is llama_file.c compiled; DIR the folder with llama.cpp's libggml-*.so. For each mixture one file by each quantizer.
HELM, exact and with fp32 caches, continues a text; llama.cpp computes the same tokens, and the log probabilities of the ten
likeliest are compared. llama.cpp rounds activations to 8 bits where weights are in blocks, to bf16 beside bf16: a mean of
MEAN and a worst of WORST are allowed, in F16 and BF16 MEAN_PLAIN and WORST_PLAIN. Exit status 1: a file was refused or
differs."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

# llama.cpp's numbers of files' types; those that it does not write from a dense model are None.
TYPES = {"Q8_0": 7, "Q6_K": 18, "Q5_K_M": 17, "Q5_K_S": 16, "Q5_0": 8, "Q5_1": 9, "Q4_K_M": 15, "Q4_K_S": 14, "Q4_0": 2,
         "Q4_1": 3, "IQ4_XS": 30, "IQ4_NL": 25, "MXFP4": None, "Q3_K_M": 12, "Q3_K_S": 11, "Q2_K": 10, "BF16": 32, "F16": 1}
MEAN, WORST = 0.2, 1.2
MEAN_PLAIN, WORST_PLAIN = 0.05, 0.3
TEXT = "Once upon a time, there was a little girl named Lily. She liked to play in the park with her"
COUNT = 32
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PROFILE = os.path.join(ROOT, "tests", "data", "profiles", "described.json")  # of no machine there is: nothing is measured


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError("%s: %s" % (" ".join(map(str, command[:3])), done.stderr.strip()[-300:]))
    return done.stdout


def helm_says(args, path, ids):
    said = json.loads(run(os.path.join(args.bin, "helm-cli"), "--model", path, "--device", "cpu", "--threads", 1, "--kv-dtype",
                          "f32", "--ctx", 512, "--activations", "exact", "--kernels", "avx2", "--profile", PROFILE,
                          "generate", "--tokens",
                          ",".join(map(str, ids)), "-n", COUNT, "--ignore-eos", "--logprobs", 10, "--json"))
    steps = [{t["token"]: t["logprob"] for t in step} for step in said["logprobs"]]
    return said["tokens"], steps


def llama_says(args, path, ids):
    lines = run(args.llama_file, "logits", path, args.backends, ",".join(map(str, ids))).splitlines()
    return [{int(t): float(p) for t, p in (pair.split(":") for pair in line.split())} for line in lines]


def compare(args, path, ids):
    """Mean and worst difference, and how many steps have the same likeliest token."""
    tokens, helm = helm_says(args, path, ids)
    llama = llama_says(args, path, ids + tokens[:-1])[len(ids) - 1:]
    off = [abs(p - there[t]) for here, there in zip(helm, llama) for t, p in here.items() if t in there]
    same = sum(max(here, key=here.get) == max(there, key=there.get) for here, there in zip(helm, llama))
    if len(helm) != COUNT or len(llama) != COUNT or len(off) < 5 * COUNT:
        raise RuntimeError("%s: %d and %d steps, %d log probabilities in common" % (path, len(helm), len(llama), len(off)))
    return sum(off) / len(off), max(off), same


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name in ("--bin", "--llama-file", "--backends"):
        parser.add_argument(name, required=True)
    parser.add_argument("--model", default=os.path.join(ROOT, "tools", "models", "demo"))
    parser.add_argument("--only", default="", help="mixtures, by commas")
    args = parser.parse_args()
    failed = 0
    ids = json.loads(run(os.path.join(args.bin, "helm-cli"), "tokenize", "--model", args.model, "--json", TEXT))
    with tempfile.TemporaryDirectory() as folder:
        plain = os.path.join(folder, "plain.gguf")
        run(os.path.join(args.bin, "helm-quantize"), "--model", args.model, "--to", "BF16", "--out", plain)
        for mixture, kind in TYPES.items():
            if args.only and mixture not in args.only.split(","):
                continue
            for maker in ("helm-quantize", "llama.cpp"):
                if maker == "llama.cpp" and kind is None:
                    continue
                path = os.path.join(folder, "made.gguf")
                try:
                    if maker == "llama.cpp":
                        run(args.llama_file, "quantize", plain, path, kind)
                    else:
                        run(os.path.join(args.bin, "helm-quantize"), "--model", args.model, "--to", mixture, "--out", path)
                    mean, worst, same = compare(args, path, ids)
                except RuntimeError as error:
                    print("FAIL %-7s by %-13s %s" % (mixture, maker, error), flush=True)
                    failed += 1
                    continue
                is_plain = mixture in ("BF16", "F16")
                ok = mean <= (MEAN_PLAIN if is_plain else MEAN) and worst <= (WORST_PLAIN if is_plain else WORST)
                failed += not ok
                print("%s %-7s by %-13s mean %.4f worst %.4f, %d of %d likeliest tokens the same" %
                      ("ok  " if ok else "FAIL", mixture, maker, mean, worst, same, COUNT), flush=True)
    print("%d failed" % failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
