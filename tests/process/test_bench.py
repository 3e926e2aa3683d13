#!/usr/bin/python3
"""helm-bench and `helm-cli bench` with the real helmd, worker and demo model: the report's members, that its numbers fit together, the
prompts of other programs, exit statuses; tools/bench/cells.py likewise.

HELM_BIN: folder of the programs. Run from the repository's root."""
import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path[:0] = ["tools/bench", "tests/golden", "tests/process"]
sys.dont_write_bytecode = True
from prompt_ids import prompt_checksum, prompt_ids  # noqa: E402
from plan_bound import bound_seconds, limits_of, mixture_bound_seconds, moved_bytes  # noqa: E402
import cells  # noqa: E402
import processor  # noqa: E402
import sides  # noqa: E402

BENCH = os.path.abspath(os.path.join(os.environ["HELM_BIN"], "helm-bench"))
CLI = os.path.abspath(os.path.join(os.environ["HELM_BIN"], "helm-cli"))
HELMD = os.path.abspath(os.path.join(os.environ["HELM_BIN"], "helmd"))
MODEL = os.path.abspath("tools/models/demo")
DESCRIBED = "tests/data/profiles/described.json"
QUICK = ["--requests", "2", "--rounds", "2", "--read-buffer", "16MiB"]
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%s]" % (detail,)), flush=True)


def bench(*args, timeout=180, program=(BENCH,)):
    run = processor.run([*program, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
    return run.returncode, run.stdout.decode(), run.stderr.decode()


def rising(spread, *names):
    values = [spread[n] for n in names]
    return all(v > 0 for v in values) and values == sorted(values)


def check_cell(cell, prompt, output):
    name = "%d + %d" % (prompt, output)
    check(name + ": what was asked for", (cell["prompt_tokens"], cell["output_tokens"]) == (prompt, output), cell)
    check(name + ": no error", cell["error"] is None, cell)
    check(name + ": every request counted", cell["requests"] == 4, cell["requests"])
    for key in ("ttft_ms", "tpot_ms", "decode_tok_s", "prefill_tok_s", "throughput_tok_s", "read_gb_s", "bound_ratio"):
        check("%s: %s rises from p10 to p90" % (name, key), rising(cell[key], "p10", "p50", "p90"), cell[key])
    check(name + ": tpot_ms p99", cell["tpot_ms"]["p99"] >= cell["tpot_ms"]["p90"], cell["tpot_ms"])
    check(name + ": the daemon's own times", all(cell["server"][k] > 0 for k in
          ("ttft_ms", "tpot_ms", "prefill_tok_s", "decode_tok_s")), cell["server"])
    # prefill and each further token take a step at most; several prompts may share one
    check(name + ": steps", 4 * (output - 1) <= cell["worker_seconds"]["steps"] <= 4 * (output + 1),
          cell["worker_seconds"])
    check(name + ": busy seconds", cell["worker_seconds"]["linear"] > 0, cell["worker_seconds"])
    config = json.load(open(os.path.join(MODEL, "config.json")))
    head = 2 * config["vocab_size"] * config["hidden_size"]
    device, = cell["devices"]
    check(name + ": weights of a token are the stages' and the head's", device["name"] == "cpu" and
          device["weight_bytes_per_token"] == sum(s["bytes"] for s in cell["plan"]) + head, device)
    want = device["weight_bytes_per_token"] / cell["server"]["tpot_ms"] * 1e-6
    check(name + ": bytes a second are bytes by time", abs(device["gb_s"] / want - 1) < 1e-3, (device, want))
    check(name + ": ratio is achieved by limit",
          abs(device["ratio"] / (device["gb_s"] / device["limit_gb_s"]) - 1) < 1e-3, device)
    ids = prompt_ids(7, 0, prompt, config["vocab_size"])
    check(name + ": ids are valid", all(0 <= i < config["vocab_size"] for i in ids) and len(set(ids)) > 1)
    check(name + ": prompt_ids.py makes the same prompt", cell["prompt_checksum"] == prompt_checksum(ids),
          cell["prompt_checksum"])


def private_tests(folder):
    path, markdown = os.path.join(folder, "report.json"), os.path.join(folder, "report.md")
    code, out, err = bench("--model", MODEL, "--device", "cpu", "--prompt", "8,40", "--output", "6", "--seed", "7",
                           "--json", path, "--markdown", markdown, *QUICK)
    check("two cells with a private daemon", code == 0, (code, err))
    check("the table has a row for each", len([r for r in out.splitlines() if r.startswith("demo ")]) == 2, out)
    report = json.load(open(path))
    check("schema", report["schema"] == "helm-bench/1", report["schema"])
    check("settings", report["settings"] == {"requests": 2, "concurrency": 1, "warmup": 1, "rounds": 2, "seed": 7},
          report["settings"])
    check("machine", report["machine"]["cpus"] >= 1 and report["machine"]["memory_bytes"] > 0, report["machine"])
    check("read bandwidth before and after each cell", rising(report["read_gb_s"], "p10", "p50", "p90"),
          report["read_gb_s"])
    check("two cells", len(report["cells"]) == 2, len(report["cells"]))
    for cell, prompt in zip(report["cells"], (8, 40)):
        check_cell(cell, prompt, 6)
        check("load seconds", cell["load_seconds"] > 0, cell["load_seconds"])
    text = open(markdown).read()
    check("Markdown rows", text.count("| helm | demo | all | cpu |") == 2, text)
    check("nothing left behind", not [n for n in os.listdir(folder) if n.startswith("helm-cli-")], os.listdir(folder))


def refusal_tests(folder):
    def refused(name, want, text, *args, **more):
        code, out, err = bench(*args, **more)
        check(name, code == want and text in out + err, (code, out[-300:], err[-300:]))
    refused("--help", 0, "exit status", "--help")
    refused("--connect with --model", 2, "exclude", "--connect", "ipc:///x", "--model", MODEL)
    refused("--vram without --model", 2, "--vram", "--vram", "8GiB")
    refused("helmd's options without --", 2, "after --", "--model", MODEL, "fast")
    refused("bad list", 2, "--prompt", "--model", MODEL, "--prompt", "8,,9")
    refused("an option of helmd before bench, and no model", 2, "need --model", program=(CLI, "--ctx", "64", "bench"))
    refused("a model and a daemon on two sides of bench", 2, "exclude", "--connect", "ipc:///x", program=(CLI, "--model", MODEL, "bench"))
    for option in ("--top-p", "--repetition-penalty"):
        refused(option + " 0", 2, option, "--model", MODEL, option, "0")
    refused("a report that cannot be written", 5, "no-folder", "--model", MODEL, "--json", folder + "/no-folder/x")
    refused("no daemon", 3, "no such socket", "--connect", "ipc://%s/none.sock" % folder)
    refused("no such checkpoint", 4, "failed:", "--model", folder + "/none", *QUICK)
    path = os.path.join(folder, "mixed.json")
    code, _, err = bench("--model", folder + "/none", "--model", MODEL, "--prompt", "8", "--output", "1", "--json", path, *QUICK,
                         program=(CLI, "--device", "cpu", "bench"))
    first, second = json.load(open(path))["cells"]
    check("a cell that fails leaves the others", code == 4 and first["error"] and second["error"] is None, (code, err))
    check("one token has no time per token", second["tpot_ms"] is None and second["ttft_ms"]["p50"] > 0, second)


def connect_tests(folder):
    endpoint = "ipc://%s/d.sock" % folder
    read_fd, write_fd = os.pipe()
    with open(os.path.join(folder, "log"), "wb") as log:
        daemon = subprocess.Popen([HELMD, "--model", MODEL, "--device", "cpu", "--listen", endpoint, "--rundir", folder,
                                   "--ctx", "64", "--ready-fd", str(write_fd)], pass_fds=[write_fd], stdout=log,
                                  stderr=log, stdin=subprocess.DEVNULL)
    os.close(write_fd)
    try:
        ready = os.read(read_fd, 200)
        check("a daemon of one's own", ready.startswith(b"ready"), ready)
        code, out, err = bench("--connect", endpoint, "--prompt", "8,100", "--output", "4", "--concurrency", "2",
                               "--json", "-", *QUICK)
        good, long = json.loads(out)["cells"]
        check("measures a running daemon", good["error"] is None and good["requests"] == 4, good)
        check("past its context is refused with numbers", code == 4 and "context of 64" in long["error"], long)
        code, out, err = bench("--prompt", "8", "--output", "4", "--json", "-", *QUICK, program=(CLI, "--connect", endpoint, "bench"))
        check("helm-cli bench measures it", code == 0 and json.loads(out)["cells"][0]["requests"] == 4, (code, err))
    finally:
        daemon.send_signal(signal.SIGTERM)
        processor.ended(daemon, 30)
        os.close(read_fd)


# llama_bench.c's words: a token takes 5 ms and 1 more for each layer that is not on the card; 3 do not fit
# A card of 8 GB: 1.5 GB are always used, 0.5 for each of 40 layers' experts, 0.6 for each 512 tokens at once, more after a long context.
FAKE_LLAMA = """#!/usr/bin/python3
import sys
option = lambda name, usual: sys.argv[sys.argv.index(name) + 1] if name in sys.argv else usual
prompts, outputs = ([int(n) for n in option(name, "").split(",")] for name in ("--prompt", "--output"))
layers, batch, experts = int(option("--ngl", "0")), int(option("--ubatch", "512")), int(option("--cpu-experts", "0"))
used = 1.5 + 0.5 * (40 - experts) + 0.6 * batch / 512 + (0.5 if max(prompts) > 20000 else 0)
if layers == 3 or (layers == 999 and used > 8):
    sys.exit("out of memory")
threads = min((int(n) for n in option("--threads", "4").split(",")), key=lambda n: abs(n - 15))
for prompt, output in zip(prompts, outputs):
    print("prefill %d at 0: 100.0 token/s, TTFT %.2f ms (80.00 to 80.00)" % (prompt, 10 * prompt * 512 / batch))
    print("decode %d at 8: median 1 token/s, whole answer 1 token/s, TPOT p10 1.000 p50 %.3f p90 9.000 ms" % (output, 7 - layers if layers < 7 else 10 + experts))
print("llama.cpp 0: a, 1 GB, 40 layers; ngl 1, %d threads, KV f16/f16; loaded in 1 s, VRAM %.2f GB, %.2f free" % (threads, used, max(0, 8 - used)))
"""


def without_device(folder):
    """The option --profile with the described machine less its device."""
    path = os.path.join(folder, "cpu.json")
    with open(DESCRIBED) as file, open(path, "w") as out:
        json.dump(dict(json.load(file), gpu=None, link=None), out)
    return "--profile", path


def harness(folder, out, *more, profile=None, timeout=300):
    """cells.py by a described profile, or () for this machine's with the model's programs, which are measured."""
    out, profile = os.path.join(folder, out), without_device(folder) if profile is None else profile
    run = processor.run([sys.executable, "-B", "tools/bench/cells.py", "--bin", os.environ["HELM_BIN"], "--out", out, "--device", "cpu", "--no-now", *profile, *more],
                        capture_output=True, text=True, timeout=timeout)
    if not os.path.exists(os.path.join(out, "result.json")):
        return run, None
    with open(os.path.join(out, "result.json")) as file:
        return run, json.load(file)


def cells_tests(folder):
    """Two builds and one more plan over a cell of one sequence and one of two: samples in turns, medians, parts, ratios, tables."""
    run, result = harness(folder, "whole", "--cell", "one %s all 96 20 6 1" % MODEL, "--cell", "two %s all 96 20 6 2" % MODEL, "--old", os.environ["HELM_BIN"],
                          "--beside", "exact=--activations exact", "--show", "speed,forecast,parts", "--rounds", "2", "--starts", "2", "--limit", "100")
    check("cells.py", run.returncode == 0 and result["whole"] and not result["failures"], (run.returncode, run.stdout[-600:], run.stderr[-600:]))
    rows = {(row["cell"], row["side"]): row for row in result["rows"]}
    check("a row for each cell and side", sorted(rows) == sorted((c, s) for c in ("one", "two") for s in ("new", "old", "exact")), sorted(rows))
    for (cell, side), row in rows.items():
        name = "%s of %s: " % (cell, side)
        tok_s = sorted(row["all_tok_s"])
        check(name + "as many samples as starts by rounds, and their median", len(tok_s) == 4 and row["tok_s"] == (tok_s[1] + tok_s[2]) / 2 > 0, row["all_tok_s"])
        check(name + "parts and the rest are a token's time", all(abs(s["parts"]["cpu"] + s["parts"]["cpu_waits"] + s["parts"]["outside"] - s["tpot_ms"]) < 1e-9
                                                                  for s in row["samples"]), row["samples"])
        check(name + "errors are of what helm-plan says", abs(row["error"] - (row["said"]["decode_tok_s"]["value"] / row["tok_s"] - 1)) < 1e-9 and
              abs(row["ttft_error"] - (row["said"]["ttft_ms"]["value"] / row["ttft_ms"] - 1)) < 1e-9, row)
        check(name + "its line", "| %s | %s | all | 20 | %d | %.2f |" % (cell, side, row["sequences"], row["tok_s"]) in run.stdout, run.stdout)
    new, old = rows["one", "new"], rows["one", "old"]
    ratios = sorted(a["tok_s"] / b["tok_s"] for a, b in zip(new["samples"], old["samples"]))
    check("the ratio to the other build is the median of rounds' ratios", new["beside"] == "old" and abs(new["ratio"] - (ratios[1] + ratios[2]) / 2) < 1e-9, new)
    with open(os.path.join(folder, "whole", "result.md")) as file:
        check("the report is kept", file.read() == run.stdout, run.stdout)
    # with the measured programs of a model so small that they take a second
    run, result = harness(folder, "slow", "--cell", "one tests/data/golden/qwen3 all 96 20 6 1", "--old", os.environ["HELM_BIN"], "--rounds", "1", "--limit=-1000000",
                          profile=())
    kept = [name for name in os.listdir(os.path.join(folder, "helm", "profiles")) if name.startswith("programs-")]
    check("the model's programs are measured, and the profile is there", len(kept) == 1 and os.path.exists(os.path.join(folder, "slow", "profile.json")), (kept, run.stderr))
    check("slower than the limit is exit status 1, and named", run.returncode == 1 and "SLOWER one:" in run.stdout, (run.returncode, run.stdout))


def llama_tests(folder):
    """llama.cpp beside HELM: settings are tried once, what does not fit is left out, the fastest is measured."""
    fake = os.path.join(folder, "llama_bench")
    with open(fake, "w") as file:
        file.write(FAKE_LLAMA)
    os.chmod(fake, 0o755)
    gguf = os.path.join(folder, "x.gguf")
    subprocess.run([os.path.join(os.path.dirname(BENCH), "helm-quantize"), "--model", MODEL, "--out", gguf, "--to", "Q8_0"], check=True, capture_output=True, timeout=120)
    run, result = harness(folder, "llama", "--cell", "q8 %s all 64 8 4 1" % gguf, "--cell", "bf16 %s all 64 8 4 1" % MODEL, "--llama", fake,
                          "--llama-try", "--ngl 1;--ngl 2;--ngl 3", "--rounds", "2")
    row = next((r for r in result["rows"] if r["side"] == "llama.cpp"), {})
    check("the fastest settings that fit", row.get("settings") == "--ngl 2" and sorted(row["tried"]) == ["--ngl 1", "--ngl 2", "--ngl 3"] and
          "out of memory" in row["tried"]["--ngl 3"]["why"], (run.stderr, row))
    check("its times", (row["tok_s"], row["ttft_ms"], len(row["samples"])) == (200, 80, 2), row)
    check("a checkpoint is not llama.cpp's: named, and HELM's row is there", run.returncode == 5 and "bf16, llama.cpp" in run.stdout and
          sorted((r["cell"], r["side"]) for r in result["rows"]) == [("bf16", "new"), ("q8", "llama.cpp"), ("q8", "new")], run.stdout)


def sweep_tests(folder):
    """The fewest experts' layers on the CPU that fit, by what runs leave free; then threads; as many tokens at once for prompts alone."""
    program, model, holder = (os.path.join(folder, name) for name in ("llama_bench", "experts.gguf", "occupy_vram"))
    with open(model, "wb") as file:
        file.truncate(20_500_000_000)
    with open(holder, "w") as file:
        file.write("#!/bin/sh\necho holding\nread -r _\n")
    os.chmod(holder, 0o755)
    options, load = argparse.Namespace(device="cuda", bin=folder), cells.lengths("a", model, True, 33024, "8GiB")
    side, cpus = sides.Llama(program, []), os.cpu_count
    os.cpu_count = lambda: 16
    try:
        ready = side.prepare(options, load, model, {"layers": 40, "experts": {"count": 256}})
        chosen = {cell.name: ready[cell]["settings"] for cell in load}
        got = {cell.name: sample for cell, sample in side.measure(options, load, None, 1).items()}
    finally:
        os.cpu_count = cpus
    check("cells that decode: the fewest layers, the best threads", chosen["a-8GiB-128"] == chosen["a-8GiB-32768"] ==
          "--ngl 999 --cpu-experts 29 --threads 15 --no-mmap", chosen)
    check("prompts: the fewest layers with as many tokens at once as fit", chosen["a-8GiB-ttft-2048"] == chosen["a-8GiB-ttft-25000"] ==
          "--ngl 999 --cpu-experts 32 --threads 14 --ubatch 2048 --no-mmap", chosen)
    check("few runs", len(ready[load[0]]["tried"]) < 10, list(ready[load[0]]["tried"]))
    check("each cell's own times", [got[cell.name]["ttft_ms"] for cell in load] == [1280, 5120, 62500, 327680], got)
    check("a context that does not fit takes a layer more", ready[load[0]]["settings"] == "--ngl 999 --cpu-experts 30 --threads 15 --no-mmap" and
          got["a-8GiB-128"]["tpot_ms"] == 40, (ready[load[0]]["settings"], got))


def shapes_tests(folder):
    """Files in the shape of hybrids with a hole for their weights: HELM reads them, and their types come to the published size."""
    for size, kind, total, line in (("35b-a3b", "UD-Q4_K_XL", 22.24, "Qwen3_5MoeForCausalLM"), ("27b", "UD-Q2_K_XL", 9.78, "Qwen3_5ForCausalLM")):
        path = os.path.join(folder, size + ".gguf")
        run = processor.run([sys.executable, "-B", "tools/bench/make_gguf.py", "--size", size, "--type", kind, "--hole", "--out", path], capture_output=True,
                             text=True, timeout=60)
        check(size + ": written", run.returncode == 0 and abs(os.path.getsize(path) / 1e9 - total) < 0.01, run)
        run = processor.run([os.path.join(os.path.dirname(BENCH), "helm-inspect"), path], capture_output=True, text=True, timeout=60)
        check(size + ": HELM loads it", run.returncode == 0 and line in run.stdout and "yes" in run.stdout.split()[-1], run.stdout[-300:])
    run = subprocess.run([sys.executable, "-B", "tools/bench/make_gguf.py", "--size", "8b", "--type", "UD-Q4_K_XL", "--hole", "--out", path], capture_output=True, text=True)
    check("a mixture of another size", run.returncode == 1 and "UD-Q4_K_XL is of 35b-a3b alone" in run.stderr, run)


def experts_tests(folder):
    """A mixture with experts in both memories on the emulated device: the part found in VRAM, the forecast at it, an edited plan."""
    model = "tests/data/golden/qwen3moe"
    run = processor.run([os.path.join(os.path.dirname(BENCH), "helm-plan"), "--model", model, "--profile", DESCRIBED, "--strategy", "mixed", "--vram", "1MiB", "--ctx", "160", "--json"],
                         capture_output=True, text=True, timeout=60)
    vram = json.loads(run.stdout)["needed"] + (1 << 20)
    run, result = harness(folder, "experts", "--cell", "moe %s %d 160 32 24 1 --strategy mixed" % (model, vram), "--device", "emulated",
                          "--beside", "still=plan:mixed.moves=0", "--rounds", "1", "--show", "experts", profile=("--profile", DESCRIBED))
    rows = {row["side"]: row for row in result["rows"]}
    check("experts in both memories", run.returncode == 0 and sorted(rows) == ["new", "still"], (run.returncode, run.stdout, run.stderr))
    for side, row in rows.items():
        check(side + ": a part of the experts is found, and forecast at it", 0 < row["found"] < 1 and abs(row["at_found_tok_s"] / row["tok_s"] - 1 -
              row["at_found_error"]) < 1e-9, row)
    check("a member of the plan is another", rows["still"]["plan"]["mixed"]["moves"] == 0 < rows["new"]["plan"]["mixed"]["moves"], rows["new"]["plan"]["mixed"])
    check("what does not move is not moved", rows["still"]["moved"] == 0, rows["still"]["moved"])


def cut_tests(folder):
    """Refusals, and the measurements of a run that time or a signal ends."""
    run, _ = harness(folder, "none")
    check("no cell is refused", run.returncode == 2 and "no cell" in run.stderr, run.stderr)
    run, _ = harness(folder, "set", "--set", "all")
    check("an unknown set is named with those there are", run.returncode == 2 and "no set or view all; sets: forecast" in run.stderr, run.stderr)
    run, _ = harness(folder, "words", "--cell", "one two")
    check("a cell of too few words", run.returncode == 2 and "'one two' is no NAME MODEL" in run.stderr, run.stderr)
    run, result = harness(folder, "missing", "--cell", "one %s/none all 64 8 4 1" % folder)
    check("a model that is not there fails its cells", run.returncode == 5 and not result["whole"] and result["failures"], run.stdout)
    run, result = harness(folder, "short", "--cell", "one %s all 64 8 4 1" % MODEL, "--seconds", "0.000001")
    check("--seconds ends it early", run.returncode == 5 and "cut short by --seconds: 0 of 1 cells" in run.stdout and not result["whole"], run.stdout)
    out, own = os.path.join(folder, "signal"), os.path.join(folder, "tmp")
    os.mkdir(own)  # other tests run cells.py, too
    process = subprocess.Popen([sys.executable, "-B", "tools/bench/cells.py", "--bin", os.environ["HELM_BIN"], "--out", out, "--device", "cpu", "--no-now", *without_device(folder), "--cell",
                                "one %s all 64 8 4 1" % MODEL, "--cell", "two %s all 64 8 40 1" % MODEL, "--rounds", "3000"], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True, env=dict(os.environ, TMPDIR=own))
    processor.until(lambda: os.path.exists(os.path.join(out, "one-new.plan.json")), 60)
    process.send_signal(signal.SIGTERM)
    said, _ = processor.finish(process, 60)
    check("so does SIGTERM", process.returncode == 128 + signal.SIGTERM and "cut short by signal 15" in said, (process.returncode, said))
    left = [n for n in os.listdir(own) if n.startswith("helm-cells-")]
    check("and no daemon is left", not left, left)


def bound_tests(_folder):
    """The least time of a token: of the bytes that move, and of a mixture's with experts in both memories. No program runs."""
    plan = {"link": {"link_bytes": 1400 * 10**6}, "cpu": {"read_bytes": 2801 * 10**6}, "gpu": {"read_bytes": 4 * 10**9},
            "stages": {"decode": [{"home": "gpu", "bytes": 4 * 10**9}, {"home": "cpu", "bytes": 3 * 10**9}, {"home": "cpu", "bytes": 10**9}]}}
    moved = moved_bytes(plan)
    check("bytes that move, by home", moved == {"gpu": 4 * 10**9, "stream": 1400 * 10**6, "cpu": 2801 * 10**6}, moved)
    profile = {"cpu": {"gemv_beside": {"value": 60e9}}, "gpus": [{"read": {"value": 4e12}, "link": {"h2d_beside": {"value": 40e9}}}]}
    old = dict(profile["gpus"][0], link=None)
    limits = limits_of(profile)
    check("limits are of reads beside each other", limits == {"both_gb_s": 100, "vram_gb_s": 4000}, limits)
    check("no device, no bound", limits_of(dict(profile, gpus=[])) is None)
    check("a profile from before it had a list", limits_of({"cpu": profile["cpu"], "gpu": old, "link": profile["gpus"][0]["link"]}) == limits)
    seconds = bound_seconds(moved, limits)
    check("the bound of these bytes", abs(seconds - (0.04201 + 0.001)) < 1e-12, seconds)
    cell, said = cells.Cell("a", "m", "4GiB", 64, 8, 4, 1), {"decode_tok_s": {"value": 10.0}, "ttft_ms": {"value": 40.0}}
    samples = [{"tok_s": 8.0, "tpot_ms": 125.0, "ttft_ms": 50.0, "parts": {}}]
    row = cells.row_of(cell, sides.Helm("new", ""), {"plan": plan, "said": said, "now": {"read": 80e9}}, samples, profile)
    check("a row's errors and part of the bound", [round(row[key], 9) for key in ("error", "ttft_error", "of_bound", "read_gb_s")] == [0.25, -0.2, 0.34408, 80], row)
    text = "\n".join(cells.tables([row], ["forecast"]))
    check("its line, and median and worst", "| a | new | 4GiB | 8 | 1 | 8.00 | 10.00 | +25.0% | 50.0 | 40.0 | -20.0% | 34% | 80 |" in text and
          "forecasts of decode: median error 25.0%, worst 25.0% of 1 cells" in text, text)
    check("homes in words", cells.homes(row) == "gpu 4.0 + cpu 4.0", cells.homes(row))
    mixture = dict(plan, experts={"layers": 4, "step_bytes": 4 * 10**9}, mixed_forecast={"layers": 3}, parts={"decode": {"hand_overs_ms": 2}})
    mixture["cpu"], mixture["link"] = {"read_bytes": 0}, {"link_bytes": 0}
    for name, hits, shared, want in (("VRAM, three layers' misses by both, hand-overs", 0.25, 0, 0.001 + 3 * 0.0075 + 0.002),
                                     ("all are found in VRAM", 1, 0, 0.001 + 3 * 0.00025 + 0.002),
                                     ("a shared one in VRAM", 1, 8 * 10**9, 0.001 + 3 * 0.00075 + 0.002)):
        mixture["experts"]["shared_bytes"] = shared
        seconds = mixture_bound_seconds(mixture, hits, {"read_beside": 60e9, "h2d_beside": 40e9}, 4000)
        check("a mixture's bound: " + name, abs(seconds - want) < 1e-12, seconds)
    names = [cell.name for cell in cells.SETS["forecast"]]
    check("24 cells of forecasts and ten of builds", len(names) == 24 and len(cells.SETS["builds"]) == 10, names)
    check("a set's names differ", all(len({cell.name for cell in rows}) == len(rows) for rows in cells.SETS.values()), names)


def signal_test(folder):
    process = subprocess.Popen([BENCH, "--model", MODEL, "--output", "1000", "--rounds", "1000"], cwd=folder,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begun = processor.wait_blocks(process, signal.SIGINT)
    process.send_signal(signal.SIGINT)
    status = processor.ended(process, 30)
    check("Ctrl-C ends it", begun and status == 128 + signal.SIGINT, (begun, status))
    left = lambda: [n for n in os.listdir(folder) if n.startswith("helm-cli-")]  # noqa: E731
    # which the daemon removes, when it has ended
    check("and its daemon's folder", processor.until(lambda: not left(), 20), left())


def place_profile(device, folder):
    """A described profile where this machine's will be, which helm-plan names as what it misses: nothing is measured."""
    run = subprocess.run([os.path.join(os.path.dirname(BENCH), "helm-plan"), "--model", MODEL, "--device", device],
                         capture_output=True, text=True)
    if run.returncode == 0:
        return  # another device's, which is the same here
    path = run.stderr[run.stderr.index("(") + 1:run.stderr.index(".json)") + 5]
    check("the place of a profile for --device " + device, path.startswith(folder), path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    shutil.copy(DESCRIBED, path)


def main():
    with tempfile.TemporaryDirectory(prefix="helm-bench-test-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = os.environ["XDG_CACHE_HOME"] = folder
        for device in ("auto", "cpu"):
            place_profile(device, folder)
        for test in (private_tests, refusal_tests, connect_tests, cells_tests, llama_tests, sweep_tests, shapes_tests, experts_tests, cut_tests, bound_tests,
                     signal_test):
            # instrumented, cells.py starts the same programs in the same ways as the tests of helm-bench
            if "asan" not in BENCH or test not in (cells_tests, llama_tests, sweep_tests, shapes_tests, experts_tests, cut_tests, bound_tests):
                test(folder)
    print("%d passed, %d failed" % (counts[True], counts[False]))
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
