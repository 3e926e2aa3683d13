#!/usr/bin/python3
"""tests/golden/against_transformers.py: what counts as agreement, which plans and steps are run, and whole runs with the
real helmd on a golden model: against golden.json, and with stand-ins for torch and transformers.

Needs HELM_BIN; run from the repository's root."""
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, "tests/golden")
sys.dont_write_bytecode = True
import against_transformers as against  # noqa: E402
import processor  # noqa: E402
import transformers_reference  # noqa: E402

BIN = os.path.abspath(os.environ["HELM_BIN"])
GOLDEN = os.path.abspath("tests/data/golden/qwen3")
LONGEST = 33  # tokens of a prompt in whole runs: instrumented programs are slow
counts = {True: 0, False: 0}

# Answers come from golden.json, known by the prompt; in 16 bits each logprob is 0.01 less, and both need each other's calls.
TORCH = '''
float32, float16, bfloat16, long, __version__ = "float32", "float16", "bfloat16", "long", "stand-in"
class cuda:
    is_available = staticmethod(lambda: False)
class inference_mode:
    def __enter__(self): pass
    def __exit__(self, *_): pass
def set_float32_matmul_precision(name):
    assert name == "highest"
def tensor(rows, dtype, device):
    assert dtype == long and device == "cpu"
    return rows
def log_softmax(logits, axis):
    assert logits.doubled and axis == -1
    return logits
'''
TRANSFORMERS = '''
import json, os
__version__ = "stand-in"
class List(list):
    def tolist(self): return list(self)
class Logits:
    doubled = False
    def __init__(self, top): self.top = top
    def __getitem__(self, at):
        assert at == (0, -1)
        return self
    def double(self):
        self.doubled = True
        return self
    def topk(self, count): return List(p for _, p in self.top[:count]), List(t for t, _ in self.top[:count])
class Out:
    pass
class Model:
    def __init__(self, folder, dtype):
        self.less = 0.01 if dtype == "bfloat16" else 0
        self.cases = json.load(open(os.path.join(folder, "golden.json")))["cases"]
    def eval(self): pass
    def __call__(self, input_ids, past_key_values, use_cache, logits_to_keep):
        assert use_cache and logits_to_keep == 1
        out, ids = Out(), (past_key_values or []) + input_ids[0]
        for case in self.cases:
            steps = [s["token"] for s in case["steps"]]
            done = len(ids) - len(case["prompt"])
            if done >= 0 and ids == case["prompt"] + steps[:done]:
                out.logits = Logits([[t, p - self.less] for t, p in case["steps"][done]["top"]])
                out.past_key_values = ids
                return out
        raise ValueError("ids of no golden case")
class AutoModelForCausalLM:
    @staticmethod
    def from_pretrained(folder, dtype, device_map, attn_implementation, local_files_only):
        assert device_map == {"": "cpu"} and attn_implementation == "eager" and local_files_only
        return Model(folder, dtype)
'''


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%s]" % (detail,)), flush=True)


def near(a, b):
    return abs(a - b) < 1e-9


def step(token, gap, *logprobs):
    """The likeliest tokens are token, token + 1, ..."""
    return {"token": token, "gap": gap, "top": [[token + n, p] for n, p in enumerate(logprobs)]}


def fails(function, *words):
    try:
        function()
    except against.Failed as why:
        return all(word in str(why) for word in words)
    return False


def check_comparison():
    steps = [step(7, 1.0, -0.5, -1.5), step(9, 0.1, -1.0, -1.1), step(3, 0.6, -0.2, -0.8)]
    got = against.compare(steps, against.as_answers(steps), 0.4)
    check("the same is the same", got["differences"] == [0] * 6 and got["same"] == 3 and not got["wrong"], got)
    other = [(7, [[7, -0.6], [8, -1.5]]), (10, [[10, -1.0], [9, -1.2]])]
    got = against.compare(steps, other, 0.4)
    check("only what was answered is compared", got["steps"] == 2 and len(got["differences"]) == 4, got)
    check("differences are by token, not by rank", all(map(near, got["differences"], [0.1, 0, 0.2, 0.1])), got)
    check("another token at a small gap is permitted", (got["same"], got["permitted"], got["wrong"]) == (1, 1, []), got)
    got = against.compare(steps[2:], [(4, [[4, -0.2], [3, -0.8]])], 0.4)
    check("at a large one it is wrong", got["wrong"] == [{"step": 0, "gap": 0.6, "token": 4, "reference": 3}], got)
    got = against.compare(steps[:1], [(7, [[7, -0.5], [1, -2.0]])], 0.4)
    check("what is not listed is as far off as the last", got["unlisted"] == 1 and near(got["differences"][1], 0.5), got)
    for broken in (None, math.nan, math.inf):
        total = against.summed([against.compare(steps[:1], [(7, [[7, broken], [8, -1.5]])], 0.4)])
        check("%s is no logprob" % broken, total["worst"] == math.inf and not against.within(total, against.ROUNDED), total)
    long = step(0, 1.0, *[-float(n) for n in range(20)])
    got = against.compare([long], [(0, [[t, p - (1 if t >= 10 else 0)] for t, p in long["top"]])], 0.4)
    check("ten are compared", got["differences"] == [0] * 10, got)
    total = against.summed([against.compare(steps, against.as_answers(steps), 0.4), against.compare(steps, other, 0.4)])
    check("sums over cases", (total["steps"], total["same"], total["permitted"]) == (5, 4, 1) and
          near(total["mean"], 0.04) and near(total["worst"], 0.2), total)
    check("nothing compared agrees with nothing", not against.within(against.summed([]), against.ROUNDED))
    for worst, mean, wrong, ok in ((0.4, 0.08, [], True), (0.41, 0.08, [], False), (0.4, 0.081, [], False),
                                   (0.4, 0.08, [1], False)):
        total = {"worst": worst, "mean": mean, "wrong": wrong}
        check("within: %s" % total, against.within(total, against.ROUNDED) == ok)
    apart = against.until_apart(steps, [steps[0], step(5, 1, -1, -2), steps[2]])
    check("a chain is followed to its first other token", [token for token, _ in apart] == [7, 5], apart)


def check_limits():
    golden = against.Model("g", "", 4, 10, 1, [{"prompt": [1], "steps": []}], True)
    shape = golden._replace(cases=[{"prompt": [1]}])
    far = {"worst": 0.8, "mean": 0.02}
    check("a golden model's limits stand", against.limits_of(golden, far) == against.ROUNDED)
    check("a shape's too without transformers", against.limits_of(shape, None) == against.ROUNDED)
    check("and where transformers keeps them", against.limits_of(shape, {"worst": 0.4, "mean": 0.08}) == against.ROUNDED)
    got = against.limits_of(shape, far)
    check("elsewhere they follow it", near(got.worst, 1.0) and near(got.mean, 0.08) and near(got.gap, 1.0), got)


def check_following():
    case = {"prompt": [1, 2], "steps": [step(5, 1.0, -1, -2), step(6, 0.1, -1, -1.1), step(7, 1.0, -1, -2)]}
    asked = []

    def ask_of(answer):
        def ask(prompt, count):
            asked.append((prompt, count))
            return [(answer(len(prompt) + n), [[0, -1.0]]) for n in range(count)]
        return ask
    straight = {2: 5, 3: 6, 4: 7}
    got = against.follow(ask_of(straight.get), case, 32, 0.4)
    check("equal tokens take one request", asked == [([1, 2], 3)] and [t for t, _ in got] == [5, 6, 7], (asked, got))
    asked.clear()
    got = against.follow(ask_of({2: 5, 3: 9, 4: 7}.get), case, 32, 0.4)
    check("after a near tie the rest is asked along the reference",
          asked == [([1, 2], 3), ([1, 2, 5, 6], 1)] and [t for t, _ in got] == [5, 9, 7], (asked, got))
    asked.clear()
    got = against.follow(ask_of({2: 8, 3: 6, 4: 7}.get), case, 32, 0.4)
    check("after a wrong token nothing is", asked == [([1, 2], 3)] and [t for t, _ in got] == [8], (asked, got))
    asked.clear()
    got = against.follow(ask_of(straight.get), case, 2, 0.4)
    check("as many steps as are wanted", asked == [([1, 2], 2)] and len(got) == 2, (asked, got))
    check("too few tokens are a failure", fails(lambda: against.follow(lambda p, n: [], case, 3, 0.4), "0 tokens", "3"))


def check_plans():
    for layers in (1, 2, 3, 4, 28, 36):
        plans = against.plans_of(layers, 3)
        homes = [h for _, h, _ in plans]
        check("%d layers: plans of that many layers" % layers, all(len(h) == layers for h in homes), homes)
        check("%d layers: each plan once" % layers, len(set(n for n, _, _ in plans)) == len(plans), plans)
        check("%d layers: the GPU computes in all" % layers, all("g" in h for h in homes), homes)
    of36 = {name: (homes, further) for name, homes, further in against.plans_of(36, 3)}
    check("thirds", of36["last 12 of 36 GPU"] == ("c" * 24 + "g" * 12, False) and
          of36["last 24 of 36 GPU"] == ("c" * 12 + "g" * 24, False), of36)
    check("every third split", {h.count("g") for h, _ in of36.values() if "gc" not in h} >= set(range(3, 37, 3)), of36)
    check("alternating", of36["alternating, CPU first"] == ("cg" * 18, False) and
          of36["alternating, GPU first"] == ("gc" * 18, False), of36)
    packed = [p for p in against.plans_of(36, 3, True) if "p" in p[1]]
    check("packed in VRAM", packed == [("all GPU, packed", "p" * 36, False), ("all GPU, half packed", "p" * 18 + "g" * 18, False)] and
          len(against.plans_of(36, 3, True)) == len(against.plans_of(36, 3)) + 2, packed)
    plan = against.plan_json("ppg", 1)
    check("packed layers are stages of their own", [(s["layers"], s["home"], s.get("format")) for s in plan["stages"]["decode"]] ==
          [([0, 1], "gpu", "bf16-packed"), ([2, 2], "gpu", None)], plan)
    plan = against.plan_json("ccgcc", 733)
    check("nothing is packed where nothing says so", not any("format" in s for s in plan["stages"]["decode"]), plan)
    check("stages are runs of layers", [(s["layers"], s["home"]) for s in plan["stages"]["decode"]] ==
          [([0, 1], "cpu"), ([2, 2], "gpu"), ([3, 4], "cpu")], plan)
    check("whole pages of context", plan["context_tokens"] == 736 and plan["context_tokens"] % plan["page_tokens"] == 0, plan)
    check("ends beside their layers", (plan["embed"], plan["head"]) == ("cpu", "cpu") and
          [against.plan_json(h, 1)[end] for h, end in (("gc", "embed"), ("gc", "head"))] == ["gpu", "cpu"], plan)


def check_jobs():
    small = against.Model("small", "", 4, 100, 1e6, [], False)
    large = against.Model("large", "", 36, 100, 16e9, [], False)
    jobs = against.jobs_of([small, large], ["cuda", "emulated"], 3)
    check("the emulated device takes small models alone", {(j.model.name, j.device) for j in jobs} ==
          {("small", "cuda"), ("small", "emulated"), ("large", "cuda")}, jobs)
    further = [j.further for j in jobs]
    check("further splits come last", further == sorted(further) and any(further), further)
    jobs = against.jobs_of([large], ["cpu"], 3)
    check("the CPU alone has one plan", [(j.plan, j.homes) for j in jobs] == [("all CPU", "c" * 36)], jobs)
    for model, homes, wanted in ((large, "cg", 16), (large, "gg", 32), (small, "cg", 32)):
        job = against.Job(model, "cuda", "", homes, False)
        check("steps: %s, %s" % (model.name, homes), against.steps_asked(job, 32, 16) == wanted)
    check("a mixture of experts is not dense", against.is_dense({"num_hidden_layers": 2}) and
          not against.is_dense({"num_experts": 8}) and not against.is_dense({"num_local_experts": 8}))
    found = [os.path.basename(f) for f in against.golden_folders(os.path.dirname(GOLDEN))]
    check("golden models are found", "qwen3" in found and len(found) >= 3, found)


def check_reference_walk():
    calls = []

    def forward(ids, past):
        calls.append((ids, past))
        return [[sum(ids), -0.1], [0, -2.1]], (past or 0) + len(ids)
    got = transformers_reference.walk(forward, [1, 2], 3)
    check("a greedy walk feeds itself", calls == [([1, 2], None), ([3], 2), ([3], 3)] and
          [s["token"] for s in got] == [3, 3, 3] and near(got[0]["gap"], 2.0), (calls, got))
    calls.clear()
    transformers_reference.walk(forward, [1, 2], 3, forced=[8, 9, 10])
    check("or is led", [ids for ids, _ in calls] == [[1, 2], [8], [9]], calls)


def run(out, *arguments, path=None):
    command = [sys.executable, "tests/golden/against_transformers.py", "--bin", BIN, "--out", out, "--seconds", "0",
               "--profile", "tests/data/profiles/described.json", *arguments]
    env = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **({"PYTHONPATH": path} if path else {}))
    done = processor.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280, env=env)
    result = os.path.join(out, "result.json")
    return done, json.load(open(result)) if os.path.exists(result) else {}


def short_model(folder, change=None):
    """The golden model with its short cases alone; `change` may spoil one step's [token, logprob] pairs."""
    os.mkdir(folder)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(GOLDEN, name), folder)
    cases = [c for c in json.load(open(os.path.join(GOLDEN, "golden.json")))["cases"] if len(c["prompt"]) <= LONGEST]
    if change:
        change(cases[-1]["steps"][2])
    with open(os.path.join(folder, "golden.json"), "w") as file:
        json.dump({"cases": cases}, file)
    return folder, len(cases)


def far_off(one):
    one["top"] = [[token, logprob - 1] for token, logprob in one["top"]]


def other_token(one):
    one["token"], one["gap"] = one["token"] + 1, 5.0


def check_runs(work):
    folder, cases = short_model(os.path.join(work, "fine"))
    stored = ["--reference", "stored", "--steps", "8"]
    done, result = run(os.path.join(work, "1"), "--model", folder, "--device", "emulated,cpu", *stored)
    rows = result.get("rows", [])
    check("a run against golden.json agrees", done.returncode == 0 and rows and all(r["within"] for r in rows),
          (done.returncode, done.stdout, done.stderr))
    check("all plans of it", [(r["device"], r["homes"]) for r in rows] ==
          [("emulated", h) for h in ("gggg", "cggg", "cccg", "cgcg", "gcgc")] + [("cpu", "cccc")], rows)
    check("every step of it", all(r["steps"] == 8 * cases for r in rows), rows)
    check("both workers, where the plan has both", all({w["name"] for w in r["workers"]} ==
          {{"c": "cpu", "g": "gpu"}[h] for h in r["homes"]} for r in rows), rows)
    check("a line of the table for each", done.stdout.count("| within |") == len(rows) == 6, done.stdout)
    for name, change, wrong in (("far", far_off, 0), ("token", other_token, 1)):
        spoilt, _ = short_model(os.path.join(work, name), change)
        done, result = run(os.path.join(work, "2" + name), "--model", spoilt, "--device", "cpu", *stored)
        row = (result.get("rows") or [{"within": None, "wrong": []}])[0]
        check("a reference spoilt on purpose (%s) is seen" % name, done.returncode == 1 and not row["within"] and
              len(row["wrong"]) == wrong and "**outside**" in done.stdout, (done.returncode, done.stdout, row))
    bare = os.path.join(work, "bare")
    os.mkdir(bare)
    shutil.copy(os.path.join(GOLDEN, "config.json"), bare)
    done, result = run(os.path.join(work, "3"), "--model", bare, "--model", folder, "--device", "cpu", *stored)
    check("a model without a reference fails, the next goes on", done.returncode == 5 and len(result.get("rows", [])) == 1
          and "bare: has no golden.json" in result["failures"], (done.returncode, result))

    done, result = run(os.path.join(work, "7"), "--model", folder, "--device", "emulated,cpu", "--vram", "1MiB", *stored)
    check("a device is given up after three failures, others are not", done.returncode == 5 and
          len(result["failures"]) == 3 and [r["device"] for r in result["rows"]] == ["cpu"] and
          [w for w in result["left_out"] if "in a row" in w] == [f"fine, emulated, alternating, {d} first (failures in a row)"
                                                                 for d in ("CPU", "GPU")], (done.returncode, result))

    modules = os.path.join(work, "modules")
    os.mkdir(modules)
    for name, text in (("torch", TORCH), ("transformers", TRANSFORMERS)):
        with open(os.path.join(modules, name + ".py"), "w") as file:
            file.write(text)
    arguments = ["--model", folder, "--device", "cpu", "--steps", "8"]
    done, result = run(os.path.join(work, "4"), *arguments, "--reference-device", "cpu", path=modules)
    row = (result.get("rows") or [{}])[0]
    check("the other process gives the reference", done.returncode == 0 and row.get("within") and
          row["steps"] == 8 * cases, (done.returncode, done.stdout, done.stderr))
    check("and what 16 bits do to it", row.get("rounded") and abs(row["rounded"]["mean"] - 0.01) < 1e-6 and
          row["rounded"]["same"] == 8 * cases, row)
    golden = result["references"]["fine"].get("golden") if result else None
    check("and is itself held against golden.json", golden and golden["within"] and golden["worst"] < 1e-6, golden)
    done, result = run(os.path.join(work, "5"), *arguments, path=modules)
    check("no GPU is a failure that is named", done.returncode == 5 and "torch sees no GPU" in done.stderr, done.stderr)
    for wrong in (["--device", "tpu"], ["--steps", "0"], ["--model", folder + "/"]):
        done, _ = run(os.path.join(work, "6"), "--model", folder, *stored, *wrong)
        check("usage: %s" % wrong, done.returncode == 2, done.stderr)


def main():
    check_comparison()
    check_limits()
    check_following()
    check_plans()
    check_jobs()
    check_reference_walk()
    with tempfile.TemporaryDirectory(prefix="helm-against-test-") as work:
        check_runs(work)
    print("%d passed, %d failed" % (counts[True], counts[False]))
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
