#!/usr/bin/env python3
"""What transformers with Accelerate reaches on the same checkpoint, prompts and lengths as helm-bench.

    accelerate_bench.py --model DIR [--max-vram SIZE | --reserve SIZE | --all-gpu | --all-cpu] [--prompt N,...]
                        [--output N,...]
                        [--requests N] [--warmup N] [--rounds N] [--seed N] [--loop generate|forward]
                        [--json FILE] [--markdown FILE]

Placement: device_map="auto" over the GPU memory that is free (run occupy_vram beside it for a smaller card), or over
at most --max-vram of it, or all but --reserve (auto fills a small card so far that cuBLAS may find no room for its
workspace); --all-gpu and --all-cpu place everything on one device (plain transformers). bf16, batch 1,
greedy, end of sequence ignored, KV cache on. --loop generate (default) is model.generate with a streamer that notes
when each token comes; --loop forward calls the model itself for each token, which is the least Python there can be.

Writes helm-bench's JSON (docs/benchmarking.md). Needs torch, transformers, accelerate; nothing from a network.
Exit status: 0, 2 usage, 4 the model does not fit, 5 failed."""
import argparse
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
from peer_report import new_cell, new_report, size_text, spread, table, write_json  # noqa: E402
from prompt_ids import WARMUP_FIRST, prompt_checksum, prompt_ids  # noqa: E402

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_size(text):
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(float(text[:-len(unit)]) * factor)
    return int(text)


def parse_counts(text):
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise ValueError("lengths are at least 1")
    return values


def parse_args():
    ap = argparse.ArgumentParser(description="transformers with Accelerate, measured as helm-bench measures helmd.")
    ap.add_argument("--model", required=True, help="checkpoint folder")
    place = ap.add_mutually_exclusive_group()
    place.add_argument("--max-vram", type=parse_size, help="GPU memory that device_map=auto may fill: 8GiB")
    place.add_argument("--reserve", type=parse_size, help="free GPU memory that device_map=auto may not fill: 512MiB")
    place.add_argument("--all-gpu", action="store_true", help="everything on the GPU")
    place.add_argument("--all-cpu", action="store_true", help="everything on the CPU")
    ap.add_argument("--vram", type=parse_size, help="GPU memory that occupy_vram left: named in the report only")
    ap.add_argument("--prompt", type=parse_counts, default=[128], help="prompt lengths (128)")
    ap.add_argument("--output", type=parse_counts, default=[128], help="tokens to generate (128)")
    ap.add_argument("--requests", type=int, default=3, help="measured requests of a cell in a round (3)")
    ap.add_argument("--warmup", type=int, default=1, help="requests before them (1)")
    ap.add_argument("--rounds", type=int, default=1, help="times over the matrix (1)")
    ap.add_argument("--seed", type=int, default=1, help="of the prompts (1)")
    ap.add_argument("--loop", choices=["generate", "forward"], default="generate")
    ap.add_argument("--attention", default="sdpa", help="attn_implementation (sdpa)")
    ap.add_argument("--threads", type=int, help="CPU threads of torch")
    ap.add_argument("--json", help="file for the report; - is standard output")
    ap.add_argument("--markdown", help="file for a Markdown table; - is standard output")
    args = ap.parse_args()
    if args.requests < 1 or args.rounds < 1 or args.warmup < 0:
        ap.error("--requests and --rounds are at least 1, --warmup at least 0")
    return args


class Clock:
    """A streamer: when each new token was there. The first put() is the prompt."""

    def __init__(self):
        self.times_ns, self.tokens, self.prompt_seen = [], [], False

    def put(self, value):
        if not self.prompt_seen:
            self.prompt_seen = True
            return
        self.tokens.append(int(value.reshape(-1)[-1]))  # waits for the device
        self.times_ns.append(time.perf_counter_ns())

    def end(self):
        pass


def run_generate(torch, model, ids, output):
    clock = Clock()
    begin = time.perf_counter_ns()
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=output, do_sample=False, use_cache=True,
                   streamer=clock)
    return begin, clock


def run_forward(torch, model, ids, output):
    clock, past, step = Clock(), None, ids
    begin = time.perf_counter_ns()
    for _ in range(output):
        out = model(input_ids=step, past_key_values=past, use_cache=True, logits_to_keep=1)
        past = out.past_key_values
        step = out.logits[:, -1].argmax(-1, keepdim=True).to(ids.device)
        clock.tokens.append(int(step))
        clock.times_ns.append(time.perf_counter_ns())
    return begin, clock


def load(torch, args):
    from transformers import AutoModelForCausalLM, GenerationConfig
    options = {"dtype": torch.bfloat16, "attn_implementation": args.attention, "local_files_only": True}
    if args.all_cpu:
        options["device_map"] = {"": "cpu"}
    elif args.all_gpu:
        options["device_map"] = {"": 0}
    else:
        options["device_map"] = "auto"
        limit = args.max_vram
        if args.reserve:
            limit = torch.cuda.mem_get_info()[0] - args.reserve
            if limit <= 0:
                raise ValueError("--reserve is more than the GPU memory that is free")
        if limit:
            options["max_memory"] = {0: limit, "cpu": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}
    begin = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(args.model, **options)
    model.eval()
    # greedy, and nothing of the checkpoint's own may stop it early
    model.generation_config = GenerationConfig(do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0)
    return model, time.perf_counter() - begin


def device_of(name, device_map):
    """The device of a parameter: of the longest prefix that the map names."""
    best, device = -1, None
    for prefix, where in device_map.items():
        if (prefix == "" or name == prefix or name.startswith(prefix + ".")) and len(prefix) > best:
            best, device = len(prefix), where
    return device


def describe(torch, model):
    """Bytes of weights read for a token, by the way they are read, and how many modules are where."""
    device_map = getattr(model, "hf_device_map", None) or {"": str(next(model.parameters()).device)}
    bytes_of, names = {}, {n for n, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        if name.endswith("embed_tokens.weight") and "lm_head.weight" in names:
            continue  # one row a token; a tied one is the head too
        where = str(device_of(name, device_map))
        if where == "cpu":  # computed on the GPU, copied there for every token, if there is a GPU in the map
            gpu = any(str(v) not in ("cpu", "disk") for v in device_map.values())
            kind = "link" if gpu else "cpu"
        else:
            kind = "disk" if where == "disk" else "gpu"
        bytes_of[kind] = bytes_of.get(kind, 0) + parameter.numel() * parameter.element_size()
    modules = {}
    for where in device_map.values():
        modules[str(where)] = modules.get(str(where), 0) + 1
    return bytes_of, modules


def measure(torch, model, args, cell, samples, vocab, device, first, count, warm_up):
    prompt, output = cell["prompt_tokens"], cell["output_tokens"]
    run = run_generate if args.loop == "generate" else run_forward
    begin_all, done = time.perf_counter(), 0
    for request in range(first, first + count):
        ids = torch.tensor([prompt_ids(args.seed, request, prompt, vocab)], dtype=torch.long, device=device)
        if device.type == "cuda":
            torch.cuda.synchronize()
        with torch.inference_mode():
            begin, clock = run(torch, model, ids, output)
        if len(clock.times_ns) != output:
            raise RuntimeError("%d tokens came instead of %d" % (len(clock.times_ns), output))
        done += output
        if warm_up:
            continue
        first_s = (clock.times_ns[0] - begin) * 1e-9
        samples["ttft_ms"].append(first_s * 1e3)
        samples["prefill_tok_s"].append(prompt / first_s)
        gaps = [(b - a) * 1e-6 for a, b in zip(clock.times_ns, clock.times_ns[1:])]
        samples["tpot_ms"] += gaps
        if gaps:
            samples["decode_tok_s"].append(1e3 * len(gaps) / sum(gaps))
    if not warm_up:
        samples["throughput_tok_s"].append(done / (time.perf_counter() - begin_all))


def main():
    args = parse_args()
    import torch
    import transformers
    try:
        import accelerate
        accelerate_version = accelerate.__version__
    except ImportError:
        accelerate_version = None
    if not args.all_cpu and not torch.cuda.is_available():
        print("accelerate_bench.py: torch sees no GPU (--all-cpu runs without one)", file=sys.stderr)
        return 4
    if args.threads:
        torch.set_num_threads(args.threads)
    free_before = torch.cuda.mem_get_info()[0] if not args.all_cpu else 0
    engine = "transformers" if args.all_gpu or args.all_cpu else "accelerate"
    vram = args.vram or args.max_vram
    keys = ("ttft_ms", "tpot_ms", "decode_tok_s", "prefill_tok_s", "throughput_tok_s")
    cells = [new_cell(engine, args.model, vram, p, o, device="cpu" if args.all_cpu else "cuda:0", loop=args.loop)
             for p in args.prompt for o in args.output]
    samples = [{k: [] for k in keys} for _ in cells]
    load_seconds, bytes_of, modules, status = None, {}, {}, 0
    try:
        model, load_seconds = load(torch, args)
        vocab = model.config.get_text_config().vocab_size
        bytes_of, modules = describe(torch, model)
        device = torch.device("cpu") if args.all_cpu else torch.device("cuda", 0)
        for number in range(args.rounds):
            order = list(zip(cells, samples))
            for cell, kept in order if number % 2 == 0 else reversed(order):
                if cell["error"]:
                    continue
                try:
                    cell["prompt_checksum"] = prompt_checksum(prompt_ids(args.seed, 0, cell["prompt_tokens"], vocab))
                    measure(torch, model, args, cell, kept, vocab, device, WARMUP_FIRST + number * args.warmup,
                            args.warmup, True)
                    measure(torch, model, args, cell, kept, vocab, device, number * args.requests, args.requests, False)
                except torch.cuda.OutOfMemoryError as error:
                    cell["error"], status = "out of GPU memory: " + str(error).split("\n")[0], 4
                    torch.cuda.empty_cache()
    except (RuntimeError, ValueError, OSError) as error:
        out_of_memory = isinstance(error, torch.cuda.OutOfMemoryError)
        status = 4 if out_of_memory else 5
        for cell in cells:
            cell["error"] = cell["error"] or "%s: %s" % (type(error).__name__, str(error).split("\n")[0])
        print("accelerate_bench.py: %s" % error, file=sys.stderr)
    for cell, kept in zip(cells, samples):
        if cell["error"]:
            continue
        cell["requests"] = len(kept["ttft_ms"])
        for key in keys:
            cell[key] = spread(kept[key], tail=key == "tpot_ms")
        tpot = statistics.fmean(kept["tpot_ms"]) if kept["tpot_ms"] else None
        cell["devices"] = [{"name": name, "weight_bytes_per_token": count,
                            "gb_s": count / tpot * 1e-6 if tpot else None, "limit_gb_s": None, "ratio": None}
                           for name, count in sorted(bytes_of.items())]
        cell["modules"], cell["load_seconds"] = modules, load_seconds
        if not args.all_cpu:
            cell["gpu_peak_bytes"], cell["gpu_free_before_bytes"] = torch.cuda.max_memory_reserved(), free_before
    settings = {"requests": args.requests, "concurrency": 1, "warmup": args.warmup, "rounds": args.rounds,
                "seed": args.seed}
    version = "transformers %s, accelerate %s, torch %s" % (transformers.__version__, accelerate_version,
                                                            torch.__version__)
    gpu = None if args.all_cpu else torch.cuda.get_device_name(0)
    report = new_report(version, settings, cells, gpu=gpu, threads=torch.get_num_threads())
    text = table([report])
    if args.json:
        write_json(report, args.json)
    if args.markdown and args.markdown != "-":
        with open(args.markdown, "w") as f:
            f.write(text)
    if args.json != "-":
        print("%s; %s of GPU memory free before loading" % (version, size_text(free_before) if free_before else "none"))
        sys.stdout.write(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
