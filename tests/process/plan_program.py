"""helm-plan run as a program, and what its JSON object must be: for the tests of it, which import this.

HELM_BIN: folder of the programs. Run from the repository's root."""
import itertools
import json
import os
import subprocess

import processor
from helmd_harness import BIN, check, same
from plan_formats import packed_units

PLAN = os.path.abspath(os.path.join(BIN, "helm-plan"))
MODELS = {"qwen3-4b": 36, "qwen3-8b": 36, "qwen3-14b": 40, "qwen3-32b": 64}
MACHINES = ["thesis-rtx4060-laptop", "thesis-rtx3090", "thesis-l40s"]
STRATEGIES = ["best", "all-gpu", "all-cpu", "thesis", "stream"]
MEMBERS = {"activations", "activations_why", "invariant_why", "layers", "context_tokens", "step_tokens", "slots", "page_tokens", "page_count", "kv_dtype", "stages",
           "ring_bytes", "placements", "embed", "head", "host", "vram",
           "decode_tok_s", "ttft_ms", "parts", "link", "cpu", "gpu", "rates", "strategies", "profile", "machine", "assumed",
           "kv_tiers", "over_context"}
MAY_BE = {"shared_rows", "invariant", "page_tokens_why", "vram_page_count", "kv_free_places", "kv_direct_permille", "kv_direct_positions", "kv_direct_window",
          "at_once", "kv_piece_pages", "prefill_from_tokens", "prefill_short_from_tokens", "head_format"}


def model(name):
    return os.path.join("tests/data/configs", name)


def profile(name):
    return os.path.join("profiles", name + ".json")


def run(*options, env=None, stdout=subprocess.PIPE):
    done = processor.run([PLAN] + [str(o) for o in options], stdin=subprocess.DEVNULL, stdout=stdout,
                          stderr=subprocess.PIPE, timeout=60, env=env)
    return done.returncode, (done.stdout or b"").decode(), done.stderr.decode()


def plan(name, machine, *options):
    status, out, err = run("--model", model(name), "--profile", profile(machine), "--json", *options)
    same(status, 0, f"{name} on {machine} {options}: {err}")
    return json.loads(out)


def number(value, what):
    check(isinstance(value, (int, float)) and not isinstance(value, bool), f"{what} is {value!r}")
    return value


def check_bars(bars, what):
    same(set(bars), {"value", "low", "high"}, what)
    check(0 < number(bars["low"], what) <= number(bars["value"], what) <= number(bars["high"], what), f"{what}: {bars}")


def check_ledger(ledger, what):
    same(set(ledger), {"limit", "lines", "total"}, what)
    for line in ledger["lines"]:
        same(set(line), {"what", "bytes"}, what)
        check(isinstance(line["what"], str) and line["what"] and isinstance(line["bytes"], int), f"{what}: {line}")
    same(sum(line["bytes"] for line in ledger["lines"]), ledger["total"], what + ": lines and total")
    if ledger["limit"] is not None:
        check(ledger["total"] <= ledger["limit"], f"{what}: {ledger['total']} of {ledger['limit']}")


def packed_room(p):
    return sum(size for _, form, memory, _, size in p["placements"] if (form, memory) == ("bf16-packed", "vram"))


def check_placements(p, layers):
    """In order and without overlap, each matrix of a stage in the stage's memory and format; ends where the plan says."""
    where, ends = {}, {"host": 0, "vram": 0}
    for name, form, memory, offset, size in p["placements"]:
        check(offset % {"host": 64, "vram": 256}[memory] == 0 and offset >= ends[memory] and size > 0, f"{name} at {offset}")
        check((name, memory) not in where, f"{name} is there twice")
        ends[memory] = offset + size
        where[name, memory] = form
    for s in p["stages"]["decode"]:
        memory = "vram" if s["home"] == "gpu" else "host"
        roles = {"all": "qkvogud", "attention": "qkvo", "mlp": "gud"}[s["ops"]]
        for layer, role in itertools.product(range(s["layers"][0], s["layers"][1] + 1), roles):
            part = "self_attn.%s_proj" % role if role in "qkvo" else "mlp.%s_proj" % {"g": "gate", "u": "up", "d": "down"}[role]
            form = where.pop((f"model.layers.{layer}.{part}.weight", memory), None)
            same(form, s.get("format", "bf16"), f"{part} of layer {layer}")
    ends_in = {"vram" if p[end] == "gpu" else "host" for end in ("embed", "head")}
    check(1 <= len(where) <= 2 and {memory for _, memory in where} == ends_in, f"beside the layers: {where}")
    lines = {line["what"]: line["bytes"] for line in p["host"]["lines"]}
    check(0 <= lines.get("weights", 0) - ends["host"] < 4096, f"host weights: {lines} for {ends}")


def check_stages(stages, layers, what):
    """In order, nothing left out: units of half a layer."""
    unit = 0
    for s in stages:
        same(set(s) - {"format", "measured"}, {"layers", "ops", "home", "bytes", "ms", "bound_by"}, what)
        same(s.get("format", "bf16-packed"), "bf16-packed", what)
        check(s["ops"] in ("all", "attention", "mlp") and s["home"] in ("cpu", "gpu", "stream"), f"{what}: {s}")
        check(s["bound_by"] in ("memory", "compute", "overhead", "link", "hand-over"), f"{what}: {s}")
        check(isinstance(s["bytes"], int) and s["bytes"] > 0 and number(s["ms"], what) > 0, f"{what}: {s}")
        first, last = s["layers"]
        same(2 * first + (s["ops"] == "mlp"), unit, what + ": where a stage begins")
        check(first == last or s["ops"] == "all", f"{what}: {s}")
        unit = 2 * last + (s["ops"] != "attention") + 1
    same(unit, 2 * layers, what + ": where the last stage ends")


def check_object(p, layers, strategy="best"):
    check(MEMBERS <= set(p) <= MEMBERS | MAY_BE, f"members: {set(p) ^ MEMBERS}")
    same(p["layers"], layers, "layers")
    check_bars(p["decode_tok_s"], "decode_tok_s")
    check_bars(p["ttft_ms"], "ttft_ms")
    for where in ("vram", "host"):
        check_ledger(p[where], where)
    streamed = sum(s["bytes"] for s in p["stages"]["decode"] if s["home"] == "stream")
    same(p["link"]["weight_bytes"], streamed, "bytes that decode streams")
    least = streamed * 70 // 100 if packed_units(p, "stream") else streamed
    check(least <= p["link"]["link_bytes"] <= streamed, f"link: {p['link']}")
    computed = sum(s["bytes"] for s in p["stages"]["decode"] if s["home"] == "cpu")
    both = sum(s["bytes"] for s in p["stages"]["decode"] if s["home"] == "shared")  # a part each
    cpu = p["cpu"]  # with the head, where that is there; it is never packed
    check(cpu["weight_bytes"] >= computed and (p["head"] == "cpu" or cpu["weight_bytes"] - computed <= both), f"cpu: {cpu}")
    saved = cpu["weight_bytes"] - cpu["read_bytes"]
    check(0 <= saved <= computed * 30 // 100 if packed_units(p, "cpu") else saved == 0, f"cpu: {cpu}")
    there = sum(s["bytes"] for s in p["stages"]["decode"] if s["home"] == "gpu")
    gpu = p["gpu"]  # likewise, and packed if it says so
    check(gpu["weight_bytes"] >= there and (p["head"] == "gpu" or gpu["weight_bytes"] - there <= both), f"gpu: {gpu}")
    same(both > 0, "shared_rows" in p, "a share of shared MLPs")
    packs = packed_units(p, "gpu") > 0 or "head_format" in p
    saved = gpu["weight_bytes"] - gpu["read_bytes"]
    check(0 < saved <= gpu["weight_bytes"] * 30 // 100 if packs else saved == 0, f"gpu: {gpu}")
    rooms = [line["bytes"] for line in p["vram"]["lines"] if line["what"] == "packed weights"]
    same(rooms, [packed_room(p)] if packs else [], "the room of packed weights")
    check_placements(p, layers)
    check({"decode", "prefill"} <= set(p["stages"]) <= {"decode", "prefill_short", "prefill"}, set(p["stages"]))
    for name, stages in p["stages"].items():
        check_stages(stages, layers, name)
    total = {name: sum(s["bytes"] for s in stages) for name, stages in p["stages"].items()}
    same(len(set(total.values())), 1, f"bytes of the lists: {total}")
    check(sum(s["ms"] for s in p["stages"]["decode"]) <= 1000.001 * p["assumed"]["batch"] / p["decode_tok_s"]["value"],
          "stages take longer than their step")
    same([s["name"] for s in p["strategies"]], STRATEGIES, "strategies")
    for s in p["strategies"]:
        same(set(s), {"name", "feasible", "decode_tok_s", "ttft_ms"}, "a strategy")
        for key in ("decode_tok_s", "ttft_ms"):
            check((s[key] is None) != s["feasible"], s)
            check(s[key] is None or number(s[key], key) > 0, s)
    by_name = {s["name"]: s for s in p["strategies"]}
    if strategy:
        same(by_name[strategy]["decode_tok_s"], p["decode_tok_s"]["value"], "the plan among the strategies")
        same(by_name[strategy]["ttft_ms"], p["ttft_ms"]["value"], "the plan among the strategies")
    check(isinstance(p["profile"], str) and isinstance(p["machine"], str), "profile, machine")
    same(set(p["assumed"]), {"batch", "context", "prompt"}, "assumed")
    return by_name


def check_refusal(out, what):
    r = json.loads(out)
    same(set(r), {"error", "needed", "available", "nearest"}, what)
    check(isinstance(r["error"], str) and r["error"] and isinstance(r["nearest"], str) and r["nearest"], r)
    check(isinstance(r["needed"], int) and isinstance(r["available"], int) and r["needed"] > r["available"] > 0, r)
    return r
