#!/usr/bin/env python3
"""8B at 8 GiB over contexts: decode and first tokens beside their forecasts, in one table (six to eight minutes on an H100).

  context_cells.py --bin DIR --out DIR --model DIR [--profile FILE] [--vram 8GiB] [--seconds 450] [--only GROUP,...]
                   [--plan "helm-plan's options"] [--edits "MEMBER=N,...;..." [--depth TOKENS,...]]

Groups, a daemon each, in this order; those that --seconds leave no time for are named as not measured:
  short    --ctx 512 at 256 tokens, what the others are held against
  f16      --ctx 40960, decode after 256 to 32,768 tokens
  q8_0     the same with a q8_0 cache
  again    short once more: what the machine changed meanwhile
  one      --kv-tiers one: each layer's cache wholly with who attends to it, as all plans were before two tiers
  chunks   --ctx 40960 --step-tokens 2048: a prompt of 32,768
  eight    8 sequences of 8,192 at once, beside one
A plan is made once a group (helm-plan, by --profile, else this machine's, with the options of --plan), is what the daemon runs, and is what the forecasts
are of. Host memory's plain reads stand beside every row (helm-bench's, before and after). First comes the CPU's attention
beside plain reads (helm-bench-kernels --attend-host --quick). With --edits each group is decoded at the depths alone, with its
plan, with each edited one (members of the plan: "kv_direct_permille=0;kv_free_places=7,kv_direct_positions=0") and with its plan
once more, which says what the machine changed meanwhile; beside it stands what the CPU's attention took. Standard library only; raw output goes to --out."""
import json
import os
import signal
import statistics
import sys
import time

from planner_run import Bench, Cut, Failed, cut, parser_of_model, relative, run, vram_arguments

DEEP = (256, 1024, 4096, 8192, 16384, 32768)
# name: context, prompts, tokens, sequences at once, more for helm-plan, more for helmd
GROUPS = {
    "short": (512, (256,), 64, 1, [], []),
    "f16": (40960, DEEP, 40, 1, [], []),
    "q8_0": (40960, DEEP, 40, 1, ["--kv-dtype", "q8_0"], []),
    "again": (512, (256,), 64, 1, [], []),
    "one": (40960, (256, 4096, 16384), 24, 1, ["--kv-tiers", "one"], []),
    "chunks": (40960, (32768,), 16, 1, [], ["--step-tokens", "2048"]),
    "eight": (8448, (8192,), 128, 8, ["--batch", "8"], ["--batch", "8", "--parallel", "8"]),
}
GOALS = {("f16", 16384): "21 at 145 GB/s", ("f16", 32768): "15 at 145 GB/s", ("q8_0", 16384): "26 at 145 GB/s",
         ("q8_0", 32768): "20 at 145 GB/s", ("chunks", 32768): "prefill 10,000 token/s", ("eight", 8192): "5 times f16 at 8,192"}


def forecast(b, group, prompt, output):
    """helm-plan's of the group's plan, half way through what is generated."""
    _, _, _, _, plan, helmd = GROUPS[group]
    if helmd and not plan:
        return None  # chosen by helmd with options that helm-plan has not
    made = [] if helmd else ["--plan", b.path(group + ".plan.json")]  # else helmd makes the plan that helm-plan does
    at = [*made, "--at", str(prompt + output // 2), "--prompt", str(prompt), *plan_options(b, group)]
    said = b.helm_plan(b.o.model, at, f"{group}-{prompt}-said")
    return {"tok_s": said["decode_tok_s"]["value"], "ttft_ms": said["ttft_ms"]["value"]}


def plan_options(b, group):
    context, _, _, _, plan, _ = GROUPS[group]
    return ["--ctx", str(context), *vram_arguments(b.o.vram), *plan, *b.o.plan.split()]


def daemon_options(b, group):
    context, _, _, _, plan, helmd = GROUPS[group]
    if helmd:
        return ["--ctx", str(context), *helmd]
    b.helm_plan(b.o.model, plan_options(b, group), group)
    return ["--plan", b.path(group + ".plan.json")]


def edited(b, group, edit):
    """The group's plan with other members, "a=1,b=2"; "": as it was made."""
    with open(b.path(group + ".plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    for member, value in (pair.split("=") for pair in filter(None, edit.split(","))):
        plan[member] = int(value)
    name = f"{group}-{edit.replace('=', '-').replace(',', '-') or 'made'}"
    with open(b.path(name + ".plan.json"), "w", encoding="utf-8") as file:
        json.dump(plan, file)
    return name


def measure_edits(b, group):
    """Decode by plans that differ in what was edited: token/s, and the CPU's seconds of attention a decoded token of all sequences."""
    _, prompts, output, sequences, _, _ = GROUPS[group]
    depths = tuple(int(x) for x in b.o.depth.split(",")) if sequences == 1 else prompts
    b.helm_plan(b.o.model, plan_options(b, group), group)
    b.say("\n| cell | plan | tokens | token/s | CPU's attention, ms a token | host read GB/s |\n" + "| --- " * 6 + "|")
    for edit in [""] + b.o.edits.split(";") + [""]:
        b.go_on()
        name = edited(b, group, edit)
        for cell in bench_cells(b, group, name, depths, ["--plan", b.path(name + ".plan.json")]):
            if cell.get("error"):
                raise Failed(f"{name}: {cell['error']}")
            b.say(f"| {group} | {edit or 'as made'} | {cell['prompt_tokens']:,} | {1000 * sequences / cell['server']['tpot_ms']:.2f} | "
                  f"{1000 * cell['worker_seconds']['attention'] / output:.2f} | {(cell.get('read_gb_s') or {}).get('p50') or 0:.0f} |")


def bench_cells(b, group, name=None, prompts=None, options=None):
    """helm-bench's cells of one daemon; name, prompts, options: those of the group unless given."""
    _, own_prompts, output, sequences, _, _ = GROUPS[group]
    prompts = prompts or own_prompts
    report = b.path((name or group) + ".bench.json")
    command = [b.program("helm-bench"), "--model", b.o.model, "--vram", b.o.vram, "--device", b.o.device, "--prompt",
               ",".join(map(str, prompts)), "--output", str(output), "--requests", str(sequences), "--concurrency", str(sequences),
               "--warmup", "0" if sequences > 1 else "1", "--rounds", "1", "--keep-daemons", "--json", report, "--",
               *(options or daemon_options(b, group))]
    if b.o.profile:
        command += ["--profile", b.o.profile]
    left = b.o.seconds - (time.monotonic() - b.begin) if b.o.seconds else 600
    status, out, err = run(command, max(30, left))
    try:
        with open(report, encoding="utf-8") as file:
            return json.load(file)["cells"]
    except (OSError, ValueError, LookupError):
        raise Failed(f"helm-bench: status {status}: {(err or out).strip()[-300:]}") from None


def row_of(b, group, cell):
    _, _, output, sequences, _, _ = GROUPS[group]
    prompt = cell["prompt_tokens"]
    if cell.get("error"):
        raise Failed(f"{group} at {prompt}: {cell['error']}")
    tok_s = 1000 / cell["server"]["tpot_ms"] * sequences
    row = {"group": group, "prompt": prompt, "tok_s": tok_s, "ttft_ms": cell["server"]["ttft_ms"],
           "read_gb_s": (cell.get("read_gb_s") or {}).get("p50"),
           "said": forecast(b, group, prompt, output), "load_seconds": cell.get("load_seconds")}
    if row["said"]:
        row["error"] = relative(row["said"]["tok_s"], tok_s)
    return row


def measure(b, rows):
    for group in b.o.only.split(",") if b.o.only else GROUPS:
        try:
            b.go_on()
            if b.o.edits:
                measure_edits(b, group)
                continue
            for cell in bench_cells(b, group):
                rows.append(row_of(b, group, cell))
        except Failed as why:
            b.note(group, str(why))
        b.save({"command": "context", "rows": rows})


def find(rows, group, prompt):
    return next((r for r in rows if r["group"] == group and r["prompt"] == prompt), None)


def remark(rows, row):
    """What a row is held against."""
    short = [r["tok_s"] for r in rows if r["group"] in ("short", "again")]
    one = find(rows, "f16", 8192)
    if row["group"] == "f16" and row["prompt"] == 256 and short:
        return f"{100 * row['tok_s'] / statistics.mean(short):.1f} % of --ctx 512 (97)"
    if row["group"] == "chunks":
        return f"prefill {1000 * row['prompt'] / row['ttft_ms']:.0f} token/s (10,000)"
    if row["group"] == "eight" and one:
        return f"{row['tok_s'] / one['tok_s']:.1f} times one's (5)"
    return GOALS.get((row["group"], row["prompt"]), "")


def table(b, rows):
    b.say("\n| cell | tokens | token/s | forecast | error | TTFT ms | forecast | host read GB/s | goal |")
    b.say("| --- " * 9 + "|")
    for r in rows:
        said = r["said"]
        b.say(f"| {r['group']} | {r['prompt']:,} | {r['tok_s']:.1f} | " +
              (f"{said['tok_s']:.1f} | {100 * r['error']:+.1f} %" if said else "- | -") + f" | {r['ttft_ms']:.0f} | " +
              (f"{said['ttft_ms']:.0f}" if said else "-") + " | " + (f"{r['read_gb_s']:.0f}" if r["read_gb_s"] else "-") + f" | {remark(rows, r)} |")
    errors = [abs(r["error"]) for r in rows if r["said"] and r["group"] in ("f16", "q8_0")]
    if errors:
        b.say(f"\nforecasts of decode over context, {len(errors)} cells: median {100 * statistics.median(errors):.1f} %, "
              f"worst {100 * max(errors):.1f} % (4 and 10)")


def main():
    parser = parser_of_model(__doc__, "8GiB", 450)
    parser.add_argument("--only", default="")
    parser.add_argument("--plan", default="")
    parser.add_argument("--edits", default="")
    parser.add_argument("--depth", default="16384")
    options = parser.parse_args()
    unknown = set(filter(None, options.only.split(","))) - set(GROUPS)
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    b = Bench(options)
    for ended_by in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ended_by, cut)
    rows, ended = [], None
    try:
        if not options.only:
            status, out, err = run([b.program("helm-bench-kernels"), "--attend-host", "--quick"], 120)
            b.say(out if not status else f"helm-bench-kernels: status {status}: {err.strip()[-200:]}")
        measure(b, rows)
    except Cut as why:
        ended = why
    if rows:
        table(b, rows)
    b.finish({"command": "context", "rows": rows}, ended)


if __name__ == "__main__":
    sys.exit(main())
