#!/usr/bin/python3
"""helm-bench and `helm-cli bench` with the real helmd, worker and demo model: the report's members, that its numbers fit together, the
prompts of the peers' scripts, exit statuses; cpu_share.py, planner_bench.py and forecast_formats.py likewise.

HELM_BIN: folder of the programs. Run from the repository's root."""
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import types

sys.path[:0] = ["tools/bench/peers", "tools/bench"]
sys.dont_write_bytecode = True
from prompt_ids import prompt_checksum, prompt_ids  # noqa: E402
import accelerate_bench  # noqa: E402
import cpu_share  # noqa: E402
import peer_report  # noqa: E402
import forecast_formats  # noqa: E402
import planner_run  # noqa: E402

BENCH = os.path.abspath(os.path.join(os.environ["HELM_BIN"], "helm-bench"))
CLI = os.path.abspath(os.path.join(os.environ["HELM_BIN"], "helm-cli"))
HELMD = os.path.abspath(os.path.join(os.environ["HELM_BIN"], "helmd"))
MODEL = os.path.abspath("tools/models/demo")
QUICK = ["--requests", "2", "--rounds", "2", "--read-buffer", "16MiB"]
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%s]" % (detail,)), flush=True)


def bench(*args, timeout=180, program=(BENCH,)):
    run = subprocess.run([*program, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout)
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
    check(name + ": the peers' prompt is the same", cell["prompt_checksum"] == prompt_checksum(ids),
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
    table = peer_report.table([report])
    check("the peers' table reads the report", table.count("| helm | demo |") == 2, table)
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
        daemon.wait(30)
        os.close(read_fd)


FAKE_LLAMA_BENCH = """#!/usr/bin/python3
import json, sys
a = sys.argv[1:]
if "--help" in a:
    print("-fitt, --fit-target MIB")
    sys.exit(0)
get = lambda name, default: [int(n) for n in a[a.index(name) + 1].split(",")] if name in a else [default]
assert a[a.index("-o") + 1] == "json" and get("-fa", 0) == [1]
out = []
for layers in get("-ngl", -1):
    for p in get("-p", 0):
        for n in get("-n", 0):
            for d in get("-d", 0):
                ns = 1000000 * (p or 10 * n) * (layers + 2)
                out.append(dict(n_prompt=p, n_gen=n, n_depth=d, n_gpu_layers=layers, n_threads=get("-t", 4)[0],
                                samples_ns=[ns] * get("-r", 5)[0], samples_ts=[1e9 * (p or n) / ns] * get("-r", 5)[0]))
print(json.dumps(out))
"""


def peer_tests(folder):
    fake, gguf, path = (os.path.join(folder, n) for n in ("llama-bench", "x.gguf", "llama.json"))
    with open(fake, "w") as f:
        f.write(FAKE_LLAMA_BENCH)
    os.chmod(fake, 0o755)
    open(gguf, "w").close()

    def llama(*more):
        return subprocess.run(["tools/bench/peers/llama_cpp.sh", "--bench", fake, "--gguf", gguf, "--out", path,
                               "--model", "demo", "--requests", "2", *more], capture_output=True, timeout=60)
    run = llama("--prompt", "16,32", "--output", "8", "--ngl", "1,3", "--vram", str(8 * 2**30))
    cells = json.load(open(path))["cells"] if run.returncode == 0 else []
    check("llama_cpp.sh: a cell for each prompt and number of layers",
          sorted((c["prompt_tokens"], c["variant"]) for c in cells) ==
          [(16, "-ngl 1"), (16, "-ngl 3"), (32, "-ngl 1"), (32, "-ngl 3")], (run.stderr, cells))
    cell = next((c for c in cells if (c["prompt_tokens"], c["variant"]) == (32, "-ngl 1")), None)
    check("its numbers", cell and cell["ttft_ms"]["p50"] == 96 and cell["tpot_ms"]["p50"] == 30 and
          round(cell["decode_tok_s"]["p50"], 3) == 33.333 and cell["requests"] == 2, cell)
    table = peer_report.table([peer_report.read_report(path), peer_report.read_report(path)])
    check("its rows, rounds as one", table.count("| llama.cpp -ngl 1 | demo | 8.00 GiB |") == 2, table)
    run = llama("--prompt", "16", "--output", "8", "--fit", "512")
    check("--fit", run.returncode == 0 and json.load(open(path))["cells"][0]["variant"] == "--fit", run.stderr)
    check("--fit with --ngl is refused", llama("--fit", "1", "--ngl", "2").returncode == 2)
    check("a missing GGUF is named", llama("--gguf", folder + "/none").returncode == 5)
    check("sizes", [accelerate_bench.parse_size(t) for t in ("8GiB", "1536MiB", "2GB", "77")] ==
          [8 * 2**30, 1536 * 2**20, 2 * 10**9, 77])
    where = {"model.embed_tokens": 0, "model.layers.1": 0, "model.layers.10": "cpu", "": "disk"}
    check("devices of parameters, by the longest prefix", [accelerate_bench.device_of(n, where) for n in (
        "model.layers.1.mlp.up_proj.weight", "model.layers.10.mlp.up_proj.weight", "lm_head.weight")] ==
        [0, "cpu", "disk"])
    for tool in ("run_matrix.sh", "llama_cpp.sh"):
        run = subprocess.run(["tools/bench/peers/" + tool], capture_output=True, timeout=60)
        check(tool + " without options says how", run.returncode == 2 and tool.encode() in run.stderr, run.stderr)


def share_refuses(name, before, after, output=8):
    try:
        cpu_share.difference(before, after, output)
    except SystemExit as end:
        check("cpu_share.py refuses " + name, end.code == 5, end.code)
    else:
        check("cpu_share.py refuses " + name, False)


def share_tests(folder):
    path = os.path.join(folder, "share.json")
    run = subprocess.run([sys.executable, "-B", "tools/bench/cpu_share.py", "--bin", os.environ["HELM_BIN"], "--model", MODEL,
                          "--rounds", "3", "--output", "4", "--buffer", "32MiB", "--json", path, "--", "--device", "cpu",
                          "--strategy", "best", "--ctx", "64"], capture_output=True, text=True, timeout=120)
    # the demo model lies in the caches: its share may be more than memory can give, which is refused
    check("cpu_share.py", run.returncode == 0 or (run.returncode == 5 and "caches hold" in run.stderr), run.stderr)
    result = json.load(open(path))
    check("its rounds", result["rounds_done"] == 3 == len(result["rounds"]), result)
    check("each decode moves the counters", all(r["steps"] >= 4 and r["cpu_bytes"] > 0 and r["cpu_busy_s"] > 0
                                                for r in result["rounds"]), result)
    check("a share is bytes by time by the reads around it", all(
        abs(r["share"] * (r["read_before_gb_s"] + r["read_after_gb_s"]) / 2 * r["cpu_busy_s"] * 1e9 / r["cpu_bytes"] - 1) < 1e-9
        for r in result["rounds"]), result)
    check("the read after a decode is the one before the next", all(
        a["read_after_gb_s"] == b["read_before_gb_s"] for a, b in zip(result["rounds"], result["rounds"][1:])), result)
    check("whole steps take no less", all(0 < r["whole_share"] <= 1.01 * r["share"] for r in result["rounds"]), result)
    spread = result["spread"]["share"]
    check("spread", spread["min"] <= spread["low_quartile"] <= spread["median"] <= spread["high_quartile"] <= spread["max"],
          spread)

    def state(steps, byte_count, busy, steps_s, other=1.0, epoch=1):
        return {"steps_total": steps, "seconds_steps": steps_s,
                "workers": [{"name": "cpu", "epoch": epoch, "weight_bytes_read": byte_count, "busy_seconds": busy, "link_bytes": 0,
                             "wait_seconds": 0},
                            {"name": "gpu", "epoch": 1, "weight_bytes_read": 0, "busy_seconds": other, "link_bytes": 0,
                             "wait_seconds": 0}]}
    before = state(10, 1000, 1.0, 3.0)
    moved = cpu_share.difference(before, state(18, 9000, 1.5, 4.0, 1.25), 8)
    check("cpu_share.py takes differences", (moved["steps"], moved["cpu_bytes"], moved["cpu_busy_s"], moved["others_busy_s"],
                                             moved["steps_s"]) == (8, 8000, 0.5, 0.25, 1.0), moved)
    share_refuses("steps that do not move", before, state(10, 9000, 1.5, 4.0, 1.25))
    share_refuses("fewer steps than tokens", before, state(17, 9000, 1.5, 4.0, 1.25))
    share_refuses("bytes that do not move", before, state(18, 1000, 1.5, 4.0, 1.25))
    share_refuses("busy seconds that do not move", before, state(18, 9000, 1.0, 4.0, 1.25))
    share_refuses("a worker busier than the steps are long", before, state(18, 9000, 2.5, 4.0, 1.25))
    share_refuses("another worker that does not move", before, state(18, 9000, 1.5, 4.0, 1.0))
    share_refuses("a worker that was restarted", before, state(18, 9000, 1.5, 4.0, 1.25, epoch=2))


def campaign_tests(plan, profile):
    """forecast_formats.py: a cell's figures, and the tables of what there is."""
    said_parts = {"ms": 100.0, "cpu_ms": 80.0, "gpu_ms": 15.0, "link_ms": 90.0, "hand_overs_ms": 1.0, "rest_ms": 4.0}
    said = {"decode_tok_s": {"value": 10.0}, "ttft_ms": {"value": 40.0}, "parts": {"decode": said_parts}}
    parts = {"decode": {"ms": 125.0, "cpu_ms": 90.0, "gpu_ms": 30.0, "outside_ms": 1.0}, "first": {"ms": 50.0}}
    said["now"] = "host memory reads 80 GB/s now"
    by_plain = {"decode_tok_s": {"value": 11.0}, "now": "plain reads"}
    row = forecast_formats.row_of(plan, said, {"decode_tok_s": {"value": 12.0}}, by_plain, 9.0, parts, [70.0, 90.0], profile)
    check("errors of a cell", [round(row[key], 9) for key in ("error", "error_by_profile", "error_by_plain", "error_at_read", "ttft_error")] ==
          [0.25, 0.5, 0.375, 0.125, -0.2], row)
    check("of the bound, and with memory at 80 of 100 GB/s", abs(row["bound_ms"] - 43.01) < 1e-9 and
          abs(row["of_bound"] - 0.04301 * 8) < 1e-9 and abs(row["of_bound_at_read"] - (0.04201 / 0.8 + 0.001) * 8) < 1e-9, row)
    rows = [dict({"model": "8b-Q6_K", "vram": "4GiB"}, **row)]
    text = "\n".join(forecast_formats.tables_of(rows, forecast_formats.result_of(rows, {})))
    check("its line", "| 8b-Q6_K | 4GiB | 12.00 | +50.0 % | 11.00 | +37.5 % | 10.00 | +25.0 % | 8.00 | +12.5 % | 40.0 | 50.0 | -20.0 % | 34 % | 43 % | 100: 70, 90 |" in text, text)
    check("its parts", "| 8b-Q6_K | 4GiB | 100.00 | 125.00 | 80.00 | 90.00 | 15.00 | 4.00 | 30.00 | 90.00 | 1.00 | 1.00 |" in text, text)
    check("what memory gave, and median and worst", "8b-Q6_K at 4GiB: host memory reads 80 GB/s now" in text and
          "decode by now: median error 25.0 %, worst 25.0 % of 1 cells" in text, text)
    cells = forecast_formats.cells_of(forecast_formats.CELLS)
    check("twelve cells, a model's together", sum(map(len, cells.values())) == 12 and len(cells) == 5, cells)


def bound_tests(_folder):
    """The least time of a token: of the weights as they are in the file, and of the bytes that move of packed ones."""
    sys.path.insert(0, os.path.abspath("tools/bench"))
    from plan_bound import bound_seconds, bytes_by_home, limits_of, mixture_bound_seconds, moved_bytes
    from plan_lists import homes_text, random_mixtures, thesis_splits, units_of
    stages = [{"layers": [0, 1], "ops": "all", "home": "gpu", "bytes": 4 * 10**9},
              {"layers": [2, 2], "ops": "attention", "home": "stream", "bytes": 2 * 10**9, "format": "bf16-packed"},
              {"layers": [2, 2], "ops": "mlp", "home": "cpu", "bytes": 3 * 10**9, "format": "bf16-packed"},
              {"layers": [3, 3], "ops": "all", "home": "cpu", "bytes": 10**9, "format": "bf16-packed"}]
    plan = {"layers": 4, "context_tokens": 64, "step_tokens": 16, "slots": 1, "page_tokens": 32, "page_count": 2, "kv_dtype": "f16",
            "embed": "cpu", "head": "cpu", "ring_bytes": 2**20, "stages": {"decode": stages},
            "link": {"weight_bytes": 2 * 10**9, "link_bytes": 1400 * 10**6},
            "cpu": {"weight_bytes": 4001 * 10**6, "read_bytes": 2801 * 10**6},
            "gpu": {"weight_bytes": 4 * 10**9, "read_bytes": 4 * 10**9}}
    total, moved = bytes_by_home(plan), moved_bytes(plan)
    check("bytes by home, the head's with them", total == {"gpu": 4 * 10**9, "stream": 2 * 10**9, "cpu": 4001 * 10**6}, total)
    check("packed ones that move are fewer", moved == {"gpu": 4 * 10**9, "stream": 1400 * 10**6, "cpu": 2801 * 10**6}, moved)
    profile = {"cpu": {"gemv_beside": {"value": 60e9}, "gemv": {"value": 90e9}, "read": [{"x": 1, "value": 20e9}, {"x": 8, "value": 100e9}]},
               "gpu": {"read": {"value": 4e12}}, "link": {"h2d_beside": {"value": 40e9}}}
    limits = limits_of(profile)
    check("limits are of reads beside each other", limits == {"both_gb_s": 100, "cpu_gb_s": 90, "vram_gb_s": 4000}, limits)
    check("no device, no bound", limits_of(dict(profile, gpu=None)) is None)
    campaign_tests(plan, profile)
    seconds = bound_seconds(moved, {"both_gb_s": 100, "vram_gb_s": 4000})
    check("the bound of these bytes", abs(seconds - (0.04201 + 0.001)) < 1e-12, seconds)
    mixture = dict(plan, experts={"layers": 4, "step_bytes": 4 * 10**9}, mixed_forecast={"layers": 3}, parts={"decode": {"hand_overs_ms": 2}})
    mixture["gpu"], mixture["cpu"], mixture["link"] = {"read_bytes": 4 * 10**9}, {"read_bytes": 0}, {"link_bytes": 0}
    seconds = mixture_bound_seconds(mixture, 0.25, {"read_beside": 60e9, "h2d_beside": 40e9}, 4000)
    check("a mixture's: VRAM, three layers' misses by both, hand-overs", abs(seconds - (0.001 + 3 * 0.0075 + 0.002)) < 1e-12, seconds)
    seconds = mixture_bound_seconds(mixture, 1, {"read_beside": 60e9, "h2d_beside": 40e9}, 4000)
    check("and where all are found in VRAM", abs(seconds - (0.001 + 3 * 0.00025 + 0.002)) < 1e-12, seconds)
    mixture["experts"]["shared_bytes"] = 8 * 10**9
    seconds = mixture_bound_seconds(mixture, 1, {"read_beside": 60e9, "h2d_beside": 40e9}, 4000)
    check("with a shared one in VRAM", abs(seconds - (0.001 + 3 * 0.00075 + 0.002)) < 1e-12, seconds)
    check("homes in words", homes_text(plan) == "gpu 4.0 + stream 2.0 + cpu 4.0 GB", homes_text(plan))
    splits = dict(thesis_splits(plan, 2))
    check("splits of whole layers, the last ones on the GPU", list(splits) == ["split-4", "split-2", "split-0"] and
          [(s["layers"], s["home"]) for s in splits["split-2"]["stages"]["decode"]] == [([0, 1], "cpu"), ([2, 3], "gpu")], splits)
    mixtures = [mixture for _, mixture in random_mixtures(plan, 5, 1)]
    homes = [units_of(mixture) for mixture in mixtures]
    check("mixtures with as many units on the GPU, packed as the plan is",
          len(homes) == 5 and all(list(h.values()).count("gpu") == 4 for h in homes) and
          all((s["home"] == "gpu") == ("format" not in s) for mixture in mixtures for s in mixture["stages"]["decode"]), homes)


def scripted_parts(folder, daemons):
    """Bench.parts with daemons whose requests take what stands here: TTFT, TPOT, the worker's time, in ms."""
    asked, busy, b = [], [0.0], planner_run.Bench(types.SimpleNamespace(
        bin="", out=os.path.join(folder, "scripted"), device="", profile=None, helmd=[], output=5, requests=3))
    answers = iter([(50, 20, 90), (8, None, 6), (9, 3, 16), (7, None, 5), (6, 2, 13), (5, None, 4), (7, 1, 11)])

    def run_request(_endpoint, _report, _prompt, output):
        ttft, tpot, took = next(answers)
        asked.append(output)
        busy[0] += 1e-3 * took
        return {"ttft_ms": ttft, "tpot_ms": tpot}

    @contextlib.contextmanager
    def daemon(_options, _rundir):
        yield types.SimpleNamespace(endpoint="")
    b.run_request = run_request
    daemons.Daemon = daemon
    daemons.status = lambda _options, _endpoint: {"workers": [{"name": "cpu", "busy_seconds": busy[0], "wait_seconds": 0}]}
    return b.parts("", "plan", None, 8), asked


def parts_tests(folder, row, report):
    """What a first token and a decoded one are made of, each of one request's time: the one in the middle."""
    runs = [({"ttft_ms": ttft, "tpot_ms": tpot}, name) for name, ttft, tpot in (("a", 5, 1), ("b", 9, 3), ("c", 7, 2), ("d", 6, 4))]
    check("the middle request", [planner_run.middle(runs[:n], key)[1] for n in (1, 2, 3, 4) for key in ("ttft_ms", "tpot_ms")] ==
          ["a", "a", "b", "b", "c", "c", "c", "b"])
    real, planner_run.token_path = planner_run.token_path, types.SimpleNamespace()
    try:
        parts, asked = scripted_parts(folder, planner_run.token_path)
    finally:
        planner_run.token_path = real
    check("one token and all in turn, behind one that does not count", asked == [8, 1, 5, 1, 5, 1, 5], asked)
    expected = {"first": {"ms": 7, "cpu_ms": 5, "outside_ms": 2}, "decode": {"ms": 2, "cpu_ms": (13 - 5) / 4, "outside_ms": 0}}
    check("parts of the requests whose times they have", all(abs(parts[of][key] - value) < 1e-9 for of in expected
                                                             for key, value in expected[of].items()), parts)
    for of in ("first", "decode"):
        part = row["parts"][of]
        check("parts of the %s token and what is outside are its time" % of, part["ms"] > 0 and
              abs(part["cpu_ms"] + part["cpu_waits_ms"] + part["outside_ms"] - part["ms"]) < 1e-9, part)
        check("the table gives it", "| %s | %.3f | %.3f |" % (of, row["said_parts"][of]["ms"], part["ms"]) in report,
              (part, report))


def planner_tests(folder):
    """Figures are medians of several requests. Cut short by time and by a signal: what was measured is there, and said to be a
    part."""
    def planner(out, *more):
        return [sys.executable, "-B", "tools/bench/planner_bench.py", "accuracy", "--bin", os.environ["HELM_BIN"], "--out",
                os.path.join(folder, out), "--model", MODEL, "--device", "cpu", "--prompt", "8", "--ttft-prompt", "8,16",
                "--output", "4", *more]

    def read(out):
        with open(os.path.join(folder, out, "result.json")) as file:
            return json.load(file)

    def reported(out, prompt):
        """helm-bench's word of that cell, and the settings that it was given."""
        with open(os.path.join(folder, out, "demo-all-%d-0.bench.json" % prompt)) as file:
            report = json.load(file)
        return report["cells"][0], report["settings"]
    run = subprocess.run(planner("whole"), capture_output=True, text=True, timeout=120)
    whole = read("whole") if run.returncode == 0 else {}
    check("planner_bench.py accuracy", run.returncode == 0 and whole["whole"], (run.returncode, run.stderr))
    check("a prompt for TTFT alone has no decode error", [(r["prompt"], "decode_error" in r) for r in whole["rows"]] ==
          [(8, True), (16, False)] and whole["decode"]["cells"] == 1 and whole["ttft"]["cells"] == 2, whole)
    for row in whole["rows"]:
        cell, settings = reported("whole", row["prompt"])
        name = "of prompt %d " % row["prompt"]
        said, parts = cell["server"], row.get("parts")
        check(name + "three requests are measured, and as many for the parts", cell["requests"] == settings["requests"] == 3 and
              row["requests"] == (6 if parts else 3), (row, settings))
        ttfts = [said["ttft_ms"]] + ([parts["first"]["ms"]] if parts else [])
        tpots = [said["tpot_ms"]] + ([parts["decode"]["ms"]] if parts else [])
        check(name + "the TTFT is the mean of the medians", 0 < row["ttft_ms"] == statistics.mean(ttfts), (row, cell))
        check(name + "the speed is by the mean of the medians", "tok_s" not in row or
              (row["tok_s"] == 1000 / statistics.mean(tpots) > 0 and row["runs_ms"] == tpots), (row, cell))
    check("the report says of how many", "medians of 3 requests, of two starts" in run.stdout, run.stdout)
    parts_tests(folder, whole["rows"][0], run.stdout)
    check("its short table", "| model | VRAM | decode 8 | TTFT 8 | TTFT 16 |" in run.stdout, run.stdout)
    with open(os.path.join(folder, "whole", "result.md")) as file:
        check("the report is kept", file.read() == run.stdout, run.stdout)
    run = subprocess.run(planner("more", "--ttft-prompt", "", "--requests", "2", "--bench-rounds", "2", "--no-parts"),
                         capture_output=True, text=True, timeout=120)
    row, = read("more")["rows"] if run.returncode == 0 else [{}]
    check("--requests a round, over --bench-rounds", row.get("requests") == 4 and row["tok_s"] ==
          1000 / reported("more", 8)[0]["server"]["tpot_ms"] and row["parts"] is None, (run.returncode, row, run.stderr))
    run = subprocess.run(planner("none", "--requests", "0"), capture_output=True, text=True, timeout=120)
    check("none at all is refused", run.returncode == 2 and "--requests" in run.stderr, run)
    run = subprocess.run(planner("short", "--seconds", "0.000001"), capture_output=True, text=True, timeout=120)
    check("--seconds ends it early", run.returncode == 0 and "cut short" in run.stdout and not read("short")["whole"], run)
    process = subprocess.Popen(planner("signal", "--rounds", "1000"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 60
    first = os.path.join(folder, "signal", "demo-all-8-0.bench.json")
    while not os.path.exists(first) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    check("so does SIGTERM", process.returncode == 128 + signal.SIGTERM and "cut short by signal 15" in out and
          not read("signal")["whole"], (process.returncode, out))


def picture_test(_):
    """plot_context.py: one line a group of the table, points of --point, and a refusal where a group is not there."""
    table = "| cache | tokens | token/s |\n| --- | --- | --- |\n| f16 | 256 | 36.3 |\n| f16 | 1,024 | 32.9, once 30 |\n| q8_0 | 256 | 35.7 |\n"
    run = lambda *more: subprocess.run([sys.executable, "-B", "tools/bench/plot_context.py", "--title", "a < b", *more], input=table,
                                       capture_output=True, text=True, timeout=60)
    drawn = run("--point", "another:1024:10")
    check("a table is drawn", drawn.returncode == 0 and [drawn.stdout.count(x) for x in ("<polyline", "<circle", "a &lt; b")] == [1, 4, 1], drawn)
    refused = run("--name", "bf16=x")
    check("a group that is not there", refused.returncode == 1 and "no group bf16" in refused.stderr and not refused.stdout, refused)


def signal_test(folder):
    process = subprocess.Popen([BENCH, "--model", MODEL, "--output", "1000", "--rounds", "1000"], cwd=folder,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    check("Ctrl-C ends it", process.wait(30) == 128 + signal.SIGINT, process.returncode)
    deadline = time.monotonic() + 20  # which the daemon removes, when it has ended
    while (left := [n for n in os.listdir(folder) if n.startswith("helm-cli-")]) and time.monotonic() < deadline:
        time.sleep(0.05)
    check("and its daemon's folder", not left, left)


def place_profile(device, folder):
    """A described profile where this machine's will be, which helm-plan names as what it misses: nothing is measured."""
    run = subprocess.run([os.path.join(os.path.dirname(BENCH), "helm-plan"), "--model", MODEL, "--device", device],
                         capture_output=True, text=True)
    if run.returncode == 0:
        return  # another device's, which is the same here
    path = run.stderr[run.stderr.index("(") + 1:run.stderr.index(".json)") + 5]
    check("the place of a profile for --device " + device, path.startswith(folder), path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    shutil.copy("tests/data/profiles/described.json", path)


def main():
    with tempfile.TemporaryDirectory(prefix="helm-bench-test-") as folder:
        os.environ["XDG_RUNTIME_DIR"] = os.environ["XDG_CACHE_HOME"] = folder
        for device in ("auto", "cpu"):
            place_profile(device, folder)
        for test in (private_tests, refusal_tests, connect_tests, peer_tests, share_tests, bound_tests, planner_tests, picture_test, signal_test):
            # instrumented, scripts start the same programs in the same ways as the tests of helm-bench
            if "asan" not in BENCH or test not in (peer_tests, share_tests, bound_tests, planner_tests, picture_test):
                test(folder)
    print("%d passed, %d failed" % (counts[True], counts[False]))
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
