"""planner_bench.py accuracy: forecasts beside measurements, in total and by part.

Imported by planner_bench.py. Standard library only."""
import statistics

from plan_lists import homes_text
from planner_run import Cut, Failed, figure, name_of, percent, relative, said_at_read, summary, vram_arguments

CONTEXT_SLACK = 16
TTFT_OUTPUT = 4  # tokens after a prompt of which only TTFT is compared


def print_parts(b, rows):
    """Forecast parts beside measured ones. Time without computing is hand-overs and rest in the forecast; measured, it
    is a worker's waiting, which includes the other worker's turns, but not a GPU's for the link: that is measured as its
    computing and forecast as rest."""
    b.say("\n| model | VRAM | prompt | of | ms said | ms | CPU said | CPU | its waits | GPU said | GPU | its waits | link said | "
          "hand-overs said | rest said | outside the workers |")
    b.say("| --- " * 16 + "|")
    for r in rows:
        for of in ("first", "decode") if r.get("parts") else ():
            said, got = r["said_parts"][of], r["parts"][of]
            cells = [said["ms"], got["ms"], said["cpu_ms"], got.get("cpu_ms"), got.get("cpu_waits_ms"), said["gpu_ms"],
                     got.get("gpu_ms"), got.get("gpu_waits_ms"), said["link_ms"], said["hand_overs_ms"], said["rest_ms"],
                     got["outside_ms"]]
            b.say(f"| {r['model']} | {r['vram']} | {r['prompt']} | {of} | " +
                  " | ".join("-" if cell is None else f"{cell:.3f}" for cell in cells) + " |")


def accuracy_cell(b, model, vram, prompt, whole):
    """One row; not `whole`: with few tokens, for TTFT alone."""
    output = b.o.output if whole else TTFT_OUTPUT
    name = f"{name_of(model)}-{vram}-{prompt}"
    sizes = ["--ctx", str(prompt + output + CONTEXT_SLACK), "--prompt", str(prompt)]
    ceiling = vram_arguments(vram)
    plan = b.helm_plan(model, sizes + ceiling, name)
    at = sizes + ceiling + ["--plan", b.path(name + ".plan.json"), "--at", str(prompt + output // 2)]
    said = b.helm_plan(model, at, name + "-said")
    got = [b.measure(model, name, ceiling and vram, prompt, f"{name}-{r}", output) for r in range(b.o.rounds)]
    parts = None if b.o.no_parts or not whole else b.parts(model, name, ceiling and vram, prompt)
    # The parts are of a daemon of their own, started a little later: with host memory that others use, too, two medians
    # some seconds apart differ by several per cent, so what is compared is the mean of both.
    again = [parts[of]["ms"] for of in ("first", "decode")] if parts else None
    ttft = statistics.mean([statistics.median(g["ttft_ms"] for g in got)] + (again[:1] if again else []))
    row = {"model": name_of(model), "vram": vram, "prompt": prompt, "said_ttft_ms": said["ttft_ms"]["value"], "ttft_ms": ttft,
           "ttft_error": relative(said["ttft_ms"]["value"], ttft), "requests": sum(g["requests"] for g in got) * (2 if parts else 1),
           "homes": homes_text(plan),
           "load_seconds": got[0]["load_seconds"], "said_parts": said["parts"]}
    if whole:
        runs_ms = [statistics.median(g["tpot_ms"] for g in got)] + (again[1:] if again else [])
        tok_s = 1000 / statistics.mean(runs_ms)
        at_read = said_at_read(b, model, at, name, got)
        row.update(said_tok_s=said["decode_tok_s"]["value"], tok_s=tok_s,
                   decode_error=relative(said["decode_tok_s"]["value"], tok_s),
                   decode_error_at_read=None if at_read is None else relative(at_read, tok_s),
                   runs_ms=runs_ms, parts=parts)
    return row


def accuracy_result(rows):
    def of(key):
        return summary([r[key] for r in rows if r.get(key) is not None])
    return {"command": "accuracy", "rows": rows, "decode": of("decode_error"), "decode_at_read": of("decode_error_at_read"),
            "ttft": of("ttft_error")}


def accuracy_measure(b, rows):
    o = b.o
    prompts = [(int(p), True) for p in o.prompt.split(",")]
    prompts += [(int(p), False) for p in o.ttft_prompt.split(",") if p and (int(p), True) not in prompts]
    for model in o.model:
        for vram in o.vram.split(","):
            b.go_on()
            if o.refresh:
                try:
                    b.refresh(model)
                except Failed as why:
                    b.note(f"{name_of(model)}-{vram}", why)
                    continue
            for prompt, whole in prompts:
                try:
                    rows.append(accuracy_cell(b, model, vram, prompt, whole))
                except Failed as why:
                    b.note(f"{name_of(model)}-{vram}-{prompt}", why)
                b.save(accuracy_result(rows))


def print_errors(b, rows, result):
    """Errors alone: a row for each model and ceiling, then median and worst."""
    columns = [(of, key, prompt) for of, key in (("decode", "decode_error"), ("TTFT", "ttft_error"))
               for prompt in sorted({r["prompt"] for r in rows if r.get(key) is not None})]
    b.say("\n| model | VRAM | " + " | ".join(f"{of} {prompt:,}" for of, _, prompt in columns) + " |")
    b.say("| --- " * (2 + len(columns)) + "|")
    for model, vram in dict.fromkeys((r["model"], r["vram"]) for r in rows):
        cell = {r["prompt"]: r for r in rows if (r["model"], r["vram"]) == (model, vram)}
        b.say(f"| {model} | {vram} | " + " | ".join(percent(cell.get(prompt, {}).get(key)) for _, key, prompt in columns) + " |")
    for what, key in (("decode", "decode"), ("decode at the reads measured beside each run", "decode_at_read"), ("TTFT", "ttft")):
        if result[key]:
            b.say(f"\n{what}: median error {100 * result[key]['median']:.1f} %, worst {100 * result[key]['worst']:.1f} % of "
                  f"{result[key]['cells']} cells")


def accuracy(b):
    rows, ended = [], None
    try:
        if not b.o.refresh:
            b.measure_formats(b.o.model)
        b.say()
        accuracy_measure(b, rows)
    except Cut as why:
        ended = why
    except Failed as why:
        b.note("the profile", why)
    b.say("| model | VRAM | prompt | homes | token/s predicted | measured | error | at the run's reads | TTFT ms predicted | "
          "measured | error |")
    b.say("| --- " * 11 + "|")
    for r in rows:
        b.say(f"| {r['model']} | {r['vram']} | {r['prompt']} | {r['homes']} | {figure(r.get('said_tok_s'), 2)} | "
              f"{figure(r.get('tok_s'), 2)} | {percent(r.get('decode_error'))} | {percent(r.get('decode_error_at_read'))} | "
              f"{r['said_ttft_ms']:.1f} | {r['ttft_ms']:.1f} | {percent(r['ttft_error'])} |")
    if rows:
        b.say(f"\nmeasured by helmd's own times: medians of {b.o.requests} requests, of two starts of the daemon their mean where "
              "parts were measured")
    if not b.o.no_parts:
        print_parts(b, rows)
    result = accuracy_result(rows)
    print_errors(b, rows, result)
    b.finish(result, ended)
