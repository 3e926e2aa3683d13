#!/usr/bin/env python3
"""transformers' answers to prompts: the likeliest tokens of every greedy step, in float32 and as the weights
are stored.

  transformers_reference.py --job FILE --out DIR [--device cuda|cpu]

Started by against_transformers.py, which owns the job file: a list of {"name", "folder", "prompts", "steps"}.
DIR/NAME.reference.json of every model, in that order, appears when it is complete; the GPU holds one model at
a time, and nothing once this process has ended.

The reference ("cases", as in a golden.json) is made as golden.json was: the stored 16-bit weights, float32 arithmetic,
eager attention, no TF32; the prompt in one pass, then a token at a time. "rounded" is transformers at the weights' own type,
led along the reference's tokens: what rounding alone does to these numbers in another program. Log-softmax is in
double for both. Needs torch and transformers; nothing from a network. A model that fails has "error" instead, and
the next goes on. Exit status: 0, 2 usage, 5 a model failed."""
import argparse
import gc
import json
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

TOP = 20


def walk(forward, prompt, count, forced=None):
    """`count` steps after the prompt. forward(ids, past) gives the likeliest [[token, logprob], ...] after `ids`, and the
    past with them. Each step's likeliest token is the next one's input, or that of `forced`."""
    steps, past, ids = [], None, prompt
    for n in range(count):
        top, past = forward(ids, past)
        steps.append({"token": top[0][0], "gap": top[0][1] - top[1][1], "top": top})
        ids = [forced[n] if forced else top[0][0]]
    return steps


def make_forward(torch, model, device):
    def forward(ids, past):
        with torch.inference_mode():
            out = model(input_ids=torch.tensor([ids], dtype=torch.long, device=device), past_key_values=past,
                        use_cache=True, logits_to_keep=1)
            values, tokens = torch.log_softmax(out.logits[0, -1].double(), -1).topk(TOP)
        return [[t, round(v, 7)] for t, v in zip(tokens.tolist(), values.tolist())], out.past_key_values
    return forward


def stored_type(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    name = config.get("dtype") or config.get("torch_dtype")
    if name not in ("bfloat16", "float16"):
        raise ValueError(f"{folder}: weights of type {name}, neither bfloat16 nor float16")
    return name


def load(torch, folder, dtype, device):
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map={"": device},
                                                 attn_implementation="eager", local_files_only=True)
    model.eval()
    return model


def free(torch):
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def reference_of(torch, job, device):
    """Both passes over one model; each loads it anew, so that neither has the other's buffers."""
    stored, begin = stored_type(job["folder"]), time.monotonic()
    answer = {"model": job["name"], "stored": stored}
    model = load(torch, job["folder"], torch.float32, device)
    forward = make_forward(torch, model, device)
    answer["cases"] = [{"prompt": p, "steps": walk(forward, p, job["steps"])} for p in job["prompts"]]
    del forward, model
    free(torch)
    answer["float32_seconds"], begin = time.monotonic() - begin, time.monotonic()
    model = load(torch, job["folder"], getattr(torch, stored), device)
    forward = make_forward(torch, model, device)
    answer["rounded"] = [walk(forward, case["prompt"], job["steps"], [s["token"] for s in case["steps"]])
                         for case in answer["cases"]]
    del forward, model
    free(torch)
    answer["rounded_seconds"] = time.monotonic() - begin
    return answer


def write_whole(path, value):
    """A reader that waits for the file sees all of it or none."""
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(value, file)
    os.rename(path + ".part", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    options = parser.parse_args()
    import torch
    import transformers
    if options.device == "cuda" and not torch.cuda.is_available():
        print("transformers_reference.py: torch sees no GPU", file=sys.stderr)
        return 5
    torch.set_float32_matmul_precision("highest")
    device = 0 if options.device == "cuda" else "cpu"
    versions = {"transformers": transformers.__version__, "torch": torch.__version__,
                "device": torch.cuda.get_device_name(0) if options.device == "cuda" else "cpu"}
    failed = 0
    with open(options.job, encoding="utf-8") as file:
        jobs = json.load(file)
    for job in jobs:
        try:
            answer = dict(reference_of(torch, job, device), versions=versions)
        except Exception as error:  # whatever it is: it is reported, and the next model does not suffer
            answer = {"model": job["name"], "error": f"{type(error).__name__}: {error}"}
            failed += 1
            free(torch)
        write_whole(os.path.join(options.out, job["name"] + ".reference.json"), answer)
    return 5 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
