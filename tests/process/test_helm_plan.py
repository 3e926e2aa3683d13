#!/usr/bin/python3
"""helm-plan as a program: the JSON object's exact form, refusals with numbers, the picture, options, a machine's own profile;
and helmd taking what it printed. Its forecasts of machines are in test_helm_plan_forecasts.py.

HELM_BIN: folder of the programs. Run from the repository's root."""
import json
import math
import os
import re
import resource
import shutil
import struct
import sys
import tempfile
import xml.dom.minidom

from helmd_harness import DEMO, PROFILE, SLOW, Daemon, check, run_tests, same, write_checkpoint
from plan_formats import packed_units, with_formats
from plan_program import MACHINES, MODELS, STRATEGIES, check_object, check_refusal, model, packed_room, plan, profile, run


def test_every_strategy_can_be_asked_for():
    for strategy in STRATEGIES:
        status, out, err = run("--model", model("qwen3-8b"), "--profile", profile(MACHINES[1]), "--strategy", strategy,
                               "--json")
        same(status, 0, f"{strategy}: {err}")
        p = json.loads(out)
        check_object(p, 36, strategy)
        homes = {s["home"] for s in p["stages"]["decode"]}
        check(homes <= {"all-gpu": {"gpu"}, "all-cpu": {"cpu"}, "thesis": {"cpu", "gpu"},
                        "stream": {"gpu", "stream"}}.get(strategy, {"cpu", "gpu", "stream"}), f"{strategy}: {homes}")
    status, out, err = run("--model", model("qwen3-8b"), "--profile", profile(MACHINES[0]), "--strategy", "all-gpu",
                           "--json")
    same(status, 4, err)
    check_refusal(out, "all-gpu on 8 GB")


def test_best_is_the_best_and_several_are_no_less_than_one():
    for name, machine, *options in (("qwen3-8b", MACHINES[1]), ("qwen3-30b-a3b", "h200-sapphire-rapids", "--vram", "8GiB", "--weights", "q4_k_m")):
        one = None
        for batch in 1, 2, 16, 64:
            p = plan(name, machine, "--ctx", 4096, "--batch", batch, "--host-memory", "120GiB", *options)
            for other in p["strategies"]:
                check((other["decode_tok_s"] or 0) <= 1.0001 * p["decode_tok_s"]["value"], f"{name}, {batch}: {other}, best {p['decode_tok_s']}")
            one = one or p["decode_tok_s"]["value"]
            check(p["decode_tok_s"]["value"] >= 0.98 * one, f"{name}: {batch} sequences {p['decode_tok_s']}, one {one}")


def test_a_written_plan_that_packs_in_vram():
    """All in VRAM with half of it packed takes less than it does plain, and is priced."""
    machine = "h200-sapphire-rapids"  # whose GPU takes longer with packed weights
    plain = plan("qwen3-8b", machine, "--ctx", 2048, "--strategy", "all-gpu")
    check_object(plain, 36, "all-gpu")
    same((packed_units(plain, "gpu"), "head_format" in plain, packed_room(plain)), (0, False, 0), "plain")
    with tempfile.TemporaryDirectory() as folder:
        kept = os.path.join(folder, "kept.json")

        def taken(*options, units=0, **changed):
            with open(kept, "w") as f:
                json.dump(dict(with_formats(plain, lambda unit, home: unit < units), **changed), f)
            return run("--model", model("qwen3-8b"), "--profile", profile(machine), "--plan", kept, *options)
        status, out, err = taken("--json", units=36, head_format="bf16-packed")
        same(status, 0, err)
        packed = json.loads(out)
        check_object(packed, 36, None)
        same((packed_units(packed, "gpu"), packed["head_format"]), (36, "bf16-packed"), "kept")
        same(sum(s["bytes"] for s in packed["stages"]["decode"]), sum(s["bytes"] for s in plain["stages"]["decode"]),
             "stages count plain bytes")
        check(packed["gpu"]["read_bytes"] < 0.87 * packed["gpu"]["weight_bytes"], packed["gpu"])
        check(packed["vram"]["total"] < plain["vram"]["total"] - (1 << 30), "less VRAM")
        check(packed["decode_tok_s"]["value"] < plain["decode_tok_s"]["value"], "the GPU takes longer with packed ones")
        status, out, err = taken(units=36, head_format="bf16-packed")
        line = next(line for line in out.splitlines() if line.startswith("vram "))
        check(status == 0 and "36 of 72 half layers there and the head lie packed: " in line, f"{line} {err}")
        for name in "pack", "pack_cpu", "pack_gpu", "pack_head", "pack_gpu_bytes":
            status, _, err = taken(**{name: 1})
            check(status == 1 and f"'{name}' is a member of older plans" in err and "bf16-packed" in err, f"{status}: {err}")
        status, _, err = taken(head_format="f32")
        check(status == 1 and "'head_format' is 'f32', which this head cannot have" in err, f"{status}: {err}")
        status, out, err = taken("--json", "--pack", "off", units=36)
        same((status, packed_units(json.loads(out), "gpu")), (0, 0), err)
        status, out, err = taken("--json", "--pack", "off", "--vram", "13GiB", units=72)
        same(status, 4, err)
        check(check_refusal(out, "plain in 13 GiB")["needed"] > 15 << 30, out)


def test_a_refusal_names_what_would_fit():
    status, out, err = run("--model", model("qwen3-32b"), "--profile", profile(MACHINES[1]), "--host-memory", "20GiB",
                           "--json")
    same(status, 4, err)
    r = check_refusal(out, "32B in 20 GiB beside 24")
    check(r["needed"] > 10 << 30, r)
    status, out, err = run("--model", model("qwen3-32b"), "--profile", profile(MACHINES[1]), "--host-memory", "20GiB")
    check(status == 4 and out == "" and "GiB" in err and err.startswith("helm-plan: "), err)
    # one of the ways that it names is enough, and is one that helm-plan takes
    common = ["--model", model("qwen3-8b"), "--profile", profile(MACHINES[1]), "--vram", "6GiB", "--strategy"]
    status, _, err = run(*common, "all-gpu")
    check(status == 4 and "--strategy best, or --device cpu (helm-plan: --strategy all-cpu)" in err, f"{status}: {err}")
    same([run(*common, strategy)[0] for strategy in ("best", "all-cpu")], [0, 0], "the strategies that it names")
    if SLOW == 1:  # sanitized, the search for it takes three seconds, and is other tests'
        status, _, err = run("--model", model("qwen3-32b"), "--profile", profile(MACHINES[1]), "--host-memory", "60GiB")
        same(status, 0, err)


def test_the_table():
    status, out, err = run("--model", model("qwen3-8b"), "--profile", profile(MACHINES[0]))
    same(status, 0, err)
    same(err, "", "nothing else is said")
    for word in ("token/s", "bound by", "VRAM", "host memory", "in all, of", "strategies", "<- this plan", "embedding",
                 "does not fit: needs", "qwen3-8b", "RTX 4060", "no tensors there", "after a prompt of 128 tokens"):
        check(word in out, f"no '{word}' in:\n{out}")
    p = plan("qwen3-8b", MACHINES[0])
    check(f"{p['decode_tok_s']['value']:.2f} token/s" in out, "the table's numbers are the object's")
    for ledger in ("vram", "host"):
        for line in p[ledger]["lines"]:
            check(line["what"] in out, line)


def test_snapshots_are_a_line_of_the_ledger():
    record = 2 * 3 * 262144  # three layers: four v heads of 128 by 128 numbers of fp32, and a convolution's inputs
    for options, count in (((), 32), (("--state-snapshots", "5MiB"), 6), (("--state-snapshots", 1), 0)):
        words = ("--model", "tests/data/golden/qwen35", "--profile", PROFILE, *options)
        status, out, err = run(*words, "--json")
        same(status, 0, err)
        p = json.loads(out)
        lines = {line["what"]: line["bytes"] for line in p["host"]["lines"] if "snapshots" in line["what"]}
        same((p.get("state_snapshots", 0), list(lines)), (count, [f"{count} snapshots of fixed states"] if count else []), "snapshots")
        check(not count or record // 2 < lines[f"{count} snapshots of fixed states"] // count < record, f"{lines}")
        check(not count or f"  {count} snapshots of fixed states" in run(*words)[1], "the table")
    for options, slots in (((), 8), (("--parallel", 2), 2), (("--batch", 4, "--parallel", 2), 4)):
        out = run("--model", "tests/data/golden/qwen35", "--profile", PROFILE, *options)[1]
        check(f"fixed states of {slots} slots" in out, f"{slots} slots: {out}")


def test_steps_with_drafts_have_forecasts():
    """Alone as many as asked for, with several sequences as many as a step of 16 tokens has room for; a hybrid pays for its snapshots."""
    for name, batch, count in (("qwen3", 1, 6), ("qwen3", 5, 3), ("qwen3", 16, 1), ("qwen35", 1, 6)):
        for invariant in ("on", "off"):
            words = ("--model", "tests/data/golden/" + name, "--profile", PROFILE, "--batch", batch, "--invariant", invariant)
            p = json.loads(run(*words, "--draft-tokens", 5, "--json")[1])
            rows, title = p["with_drafts"], f"{name}, {batch} at once, invariant {invariant}"
            same(([r["drafts"] for r in rows], p["draft_tokens"]), (list(range(count)), 5), title)
            check(math.isclose(rows[0]["tok_s_all_right"], p["decode_tok_s"]["value"], rel_tol=1e-6), title)
            for r in rows:
                most = 1e3 * batch * (1 + r["drafts"]) / r["step_ms"]
                check(r["step_ms"] > 0 and r["tok_s_half_right"] <= r["tok_s_most_right"] <= r["tok_s_all_right"], f"{title}: {r}")
                same(math.isclose(r["tok_s_all_right"], most, rel_tol=1e-6), name == "qwen3" or not r["drafts"], f"{title}: {r}")
            same("decode with drafts" in run(*words, "--draft-tokens", 5)[1], True, "the table")
            check("with_drafts" not in json.loads(run(*words, "--json")[1]), "asked for none")
    status, out, err = run("--model", "tests/data/golden/qwen3", "--profile", PROFILE, "--draft-tokens", 5, "--at", 1)
    same(status, 0, err) # drafts attend to themselves, however short the context is
    same(run("--model", "tests/data/golden/qwen3", "--draft-tokens", 16)[0], 2, "too many")


def test_a_draft_model_takes_its_memory_first():
    """The plan is for what it leaves, and the forecast counts its time for each draft."""
    words = ("--model", "tests/data/golden/qwen3", "--profile", PROFILE, "--json", "--vram", "1GiB", "--host-memory", "2GiB")
    plain, draft, on_cpu = (json.loads(run(*words, *more)[1]) for more in (("--draft-tokens", 4), ("--draft-model", "tests/data/golden/qwen3"),
                                                                          ("--draft-model", "tests/data/golden/qwen3", "--draft-device", "cpu")))
    said = [re.match(r"by the draft model \(([0-9.]+) MiB of host memory, ([0-9.]+) (MiB|B) of VRAM, ([0-9.]+) ms each\), as many as pay: ", p["drafts_why"])
            for p in (draft, on_cpu)]
    check(all(said), [p["drafts_why"] for p in (draft, on_cpu)])
    for p, words_of in ((draft, said[0]), (on_cpu, said[1])):
        taken = [plain[m]["limit"] - p[m]["limit"] for m in ("host", "vram")]
        same([f"{b / 2**20:.2f}" for b in taken], [words_of[1], f"{float(words_of[2]):.2f}"], "memory that it takes")
    check(float(said[0][2]) > 8 and said[1][2] == "0", said)
    more = [b["step_ms"] - a["step_ms"] for a, b in zip(plain["with_drafts"], draft["with_drafts"])]
    check(len(more) == 5 and all(abs(ms - n * float(said[0][4])) < 0.006 * (n + 1) for n, ms in enumerate(more)), f"{more} {said}")
    for more, words_of in ((("--draft-model", "tests/data/golden/qwen35"), "--draft-model: "), (("--draft-model", "none"), "--draft-model: "),
                           (("--draft-model", "tests/data/golden/qwen3", "--draft-device", "gpu"), "is not cpu")):
        status, _, err = run("--model", "tests/data/golden/qwen3", "--profile", PROFILE, *more)
        check(status in (1, 2) and words_of in err, f"{more}: {status} {err}")
    status, _, err = run("--model", "tests/data/golden/qwen3", "--profile", PROFILE, "--draft-device", "cpu")
    check(status == 2 and "--draft-device cpu is for --draft-model" in err, f"{status} {err}")


def test_drafts_are_decided_as_helmd_does():
    words = ("--model", "tests/data/golden/qwen3", "--profile", PROFILE, "--speculate")
    for kind, most in (("off", 0), ("ngram", 4), ("auto", 15)):
        p = json.loads(run(*words, kind, "--json")[1])
        same((p.get("draft_tokens", 0), len(p.get("with_drafts", [])), "drafts_why" in p), (most, most and most + 1, kind == "auto"), kind)
    found = re.fullmatch(r"found in the text, as many as pay: ([0-9.]+) token/s with ([0-9]+), if 80 % are right; ([0-9.]+) without",
                         p["drafts_why"])
    check(found and (float(found[1]) > float(found[3]) or found[2] == "0"), p["drafts_why"])
    check(f"drafts   {p['drafts_why']}" in run(*words, "auto")[1], "the table's line is the object's")
    out = run(*words, "auto", "--batch", 16)[1]
    check("drafts   none: the plan is for 16 sequences at once, drafts are for less than 16" in out, out)
    for kind in ("auto", "mtp"):
        status, _, err = run(*words, kind, "--draft-tokens", 0)
        check(status == 2 and f"--speculate {kind} needs --draft-tokens 1 or more" in err, f"{status}: {err}")
    status, _, err = run(*words, "draft")
    check(status == 2 and "needs --draft-model" in err, f"{status}: {err}")
    status, _, err = run(*words, "mtp")
    check(status == 1 and "no layer that makes drafts" in err, f"{status}: {err}")


def test_more_vram_than_the_card_has():
    status, _, err = run("--model", model("qwen3-8b"), "--profile", profile(MACHINES[1]), "--vram", "100GiB")
    check(status == 0 and "--vram 100.00 GiB: the profile's GPU has 24.00 GiB" in err, f"{status}: {err}")
    status, _, err = run("--model", model("qwen3-8b"), "--profile", profile(MACHINES[1]), "--vram", "20GiB")
    same((status, err), (0, ""), "less than it has")


def test_the_picture():
    with tempfile.TemporaryDirectory() as folder:
        cases = ("qwen3-8b", MACHINES[0]), ("qwen3-4b", MACHINES[2]), ("qwen3-32b", MACHINES[1])
        for name, machine in cases[:1 if SLOW > 1 else 3 if os.environ.get("HELM_TEST_FULL") else 2]:
            path = os.path.join(folder, "plan & <one>.svg")
            status, out, err = run("--model", model(name), "--profile", profile(machine), "--plot", path, "--json")
            same(status, 0, err)
            check_object(json.loads(out), MODELS[name])
            root = xml.dom.minidom.parse(path).documentElement
            same(root.tagName, "svg", "the document")
            texts = ["".join(n.data for n in t.childNodes if n.nodeType == n.TEXT_NODE)
                     for t in root.getElementsByTagName("text")]
            for word in ("CPU", "GPU", "link", "layers on the GPU"):
                check(word in texts, f"{word} in {texts}")
            classes = [c.getAttribute("class") for c in root.getElementsByTagName("circle")]
            check(0 < len([c for c in classes if c in ("fits", "misfit")]) <= MODELS[name] + 1, classes)
            check(classes.count("point") in (4, 8), f"256, 1,024, 4,096 and 8,192 tokens, one plan or two: {classes}")
            check("prefers-color-scheme" in root.getElementsByTagName("style")[0].firstChild.data, "dark")
        status, _, err = run("--model", model("qwen3-8b"), "--profile", profile(MACHINES[0]), "--plot",
                             os.path.join(folder, "none", "a.svg"))
        check(status == 1 and "a.svg" in err, err)


def test_usage_and_failures():
    good = ["--model", model("qwen3-8b"), "--profile", profile(MACHINES[1])]
    for options, status, word in (
            ([], 2, "--model"), (["--model"], 2, "--model"), (good + ["--strategy", "fastest"], 2, "--strategy"),
            (good + ["--batch", "0"], 2, "--batch"), (good + ["--batch", "65"], 2, "--batch"),
            (good + ["--prompt", "0"], 2, "--prompt"), (good + ["--ctx", "8"], 2, "--ctx"),
            (good + ["--vram", "much"], 2, "--vram"), (good + ["--node", "0"], 2, "--node"), (good + ["--device", "cuda:1"], 1, "'cuda:1' is none of its GPUs, which are: "),
            (good + ["operand"], 2, "operand"), (good + ["--nonsense"], 2, "--nonsense"),
            (["--model", "/nonexistent"] + good[2:], 1, "/nonexistent"),
            (good[:2] + ["--profile", "/nonexistent.json"], 1, "/nonexistent.json"),
            (good[:2] + ["--profile", model("qwen3-8b") + "/config.json"], 1, "profile")):
        got, out, err = run(*options)
        check(got == status and word in err and out == "", f"{options}: {got}, {out!r}, {err!r}")
    status, out, err = run("--help")
    check(status == 0 and "exit status" in out and "share/helm/profiles" in out, out)
    same(run("--version")[0], 0, "--version")
    with open("/dev/full", "w") as full:
        status, _, err = run(*good, "--json", stdout=full)
        check(status == 1 and "standard output" in err, f"{status}: {err}")


def test_one_gpu_of_a_profile_is_planned_for():
    """The first, or the one that --device names; none for cpu. A file with one GPU beside its link is a list of one."""
    with open(profile(MACHINES[1])) as f:
        described = json.load(f)
    listed = {k: v for k, v in described.items() if k not in ("gpu", "link")}
    first = dict(described["gpu"], link=described["link"])
    half = dict(first, name="half of it", uuid="GPU-half", vram_bytes=first["vram_bytes"] // 2, vram_free=first["vram_free"] // 2)
    listed["gpus"] = [first, half]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "two.json")
        with open(path, "w") as f:
            json.dump(listed, f)

        def planned(file, *options):
            status, out, err = run("--model", model("qwen3-8b"), "--profile", file, "--json", *options)
            same(status, 0, err)
            return json.loads(out)
        alone, limit = planned(profile(MACHINES[1])), 0
        for options in (), ("--device", "auto"), ("--device", "cuda:0"):
            p = planned(path, *options)
            same((p["stages"], p["decode_tok_s"], p["vram"]), (alone["stages"], alone["decode_tok_s"], alone["vram"]), f"{options}")
            limit = p["vram"]["limit"]
        for name in "cuda:1", "GPU-half", "half of it":
            p = planned(path, "--device", name)
            check(p["vram"]["limit"] <= limit // 2 < p["vram"]["limit"] * 1.2, f"{name}: {p['vram']}")
        p = planned(path, "--device", "cpu")
        same({s["home"] for s in p["stages"]["decode"]}, {"cpu"}, "homes")
        status, _, err = run("--model", model("qwen3-8b"), "--profile", path, "--device", "cuda:2")
        check(status == 1 and f"{path}: 'cuda:2' is none of its GPUs, which are: {first['name']}, half of it" in err, f"{status}: {err}")


def test_two_gpus_of_a_profile_are_planned_for():
    """The second is used where it pays, and the plan says why it is not elsewhere."""
    said = plan("qwen3-14b", "rtx4090-rtx3060", "--vram", "23GiB,11GiB", "--ctx", 4096, "--pack", "off")
    homes = {stage["home"] for stage in said["stages"]["decode"]}
    same((homes, said["head"]), ({"gpu", "gpu1"}, "gpu1"), "homes and head")
    check(said["second_device"].startswith("used: "), said["second_device"])
    for memory, most in ("vram", 23 << 30), ("vram1", 11 << 30):
        check(0 < said[memory]["total"] <= said[memory]["limit"] <= most, f"{memory}: {said[memory]}")
    alone = plan("qwen3-14b", "rtx4090-rtx3060", "--vram", "23GiB", "--ctx", 4096, "--pack", "off")
    check("second_device" not in alone and said["decode_tok_s"]["value"] > alone["decode_tok_s"]["value"], "one GPU is slower")
    left = plan("qwen3-4b", "rtx4090-rtx3060", "--ctx", 4096)
    same({stage["home"] for stage in left["stages"]["decode"]}, {"gpu"}, "homes of what fits in the first")
    check(left["second_device"].startswith("left out: "), left["second_device"])
    # a GPU that is alone in its file stands for two
    both = plan("qwen3-14b", "thesis-rtx3090", "--vram", "16GiB,16GiB", "--ctx", 4096, "--pack", "off")
    same({stage["home"] for stage in both["stages"]["decode"]}, {"gpu", "gpu1"}, "homes")
    for options, why in [(("--vram", "1GiB,1GiB,1GiB"), "3 ceilings"), (("--device", "cuda:0,cuda:7"), "'cuda:7' is none of its GPUs"),
                         (("--device", "cuda:0,cuda:1", "--vram", "8GiB"), "--vram has 1 ceiling, --device names 2 devices")]:
        status, _, err = run("--model", model("qwen3-8b"), "--profile", profile("rtx4090-rtx3060"), *options)
        check(status in (1, 2) and why in err, f"{options}: {status}, {err}")


def test_this_machine_needs_a_profile():
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if k != "STATE_DIRECTORY"}
        env["XDG_CACHE_HOME"] = folder
        status, out, err = run("--model", model("qwen3-4b"), "--device", "cpu", env=env)
        check(status == 1 and "helm-profile --device cpu" in err and "--profile" in err, f"{status}: {err}")
        # the path that is missing is where one would be found
        path = err[err.index("(") + 1:err.index(".json)") + 5]
        with open(PROFILE) as f:
            described = json.load(f)
        described["gpu"] = described["link"] = None
        os.makedirs(os.path.dirname(path))
        with open(path, "w") as f:
            json.dump(described, f)
        small = os.path.join(folder, "model")
        write_checkpoint(small)
        status, out, err = run("--model", small, "--device", "cpu", "--json", env=env)
        same(status, 0, err)
        p = json.loads(out)
        check_object(p, 2)
        same({s["home"] for s in p["stages"]["decode"]}, {"cpu"}, "homes")
        same([s["name"] for s in p["strategies"] if s["feasible"]], ["best", "all-cpu"], "without a GPU")
        status, _, err = run("--model", small, "--device", "cpu", "--strategy", "thesis", env=env)
        check(status == 1 and "--strategy thesis needs a device" in err, f"{status}: {err}")
        # more than there is is said, not silently cut
        status, _, err = run("--model", small, "--device", "cpu", "--host-memory", "900TiB", env=env)
        check(status == 0 and "--host-memory 900.00 TiB: only " in err, f"{status}: {err}")
        # another device is another profile
        status, _, err = run("--model", small, "--device", "emulated", env=env)
        check(status == 1 and "helm-profile --device emulated" in err, f"{status}: {err}")
        shutil.copy(PROFILE, err[err.index("(") + 1:err.index(".json)") + 5])
        status, out, err = run("--model", small, "--device", "emulated", "--vram", "64MiB", "--strategy", "all-gpu",
                               "--json", env=env)
        same(status, 0, err)
        p = json.loads(out)
        check_object(p, 2, "all-gpu")
        same(p["vram"]["limit"], 64 << 20, "--vram")


def test_headers_are_enough():
    """The weights may be cut off or missing: the answer is the same."""
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(folder, hidden=64, intermediate=128, head_dim=32)
        options = ["--model", folder, "--profile", profile(MACHINES[1]), "--json"]
        path = os.path.join(folder, "model.safetensors")
        status, whole, err = run(*options)
        same(status, 0, err)
        with open(path, "r+b") as f:
            length, = struct.unpack("<Q", f.read(8))
            f.truncate(8 + length)
        status, cut, err = run(*options)
        same((status, cut), (0, whole), "without the weights: " + err)
        with open(path, "r+b") as f:
            f.truncate(8 + length - 1)
        same(run(*options)[0], 1, "without all of the header")
        os.unlink(path)
        status, implied, err = run(*options)
        same((status, implied), (0, whole), "config.json alone: " + err)


def test_weights_that_are_there_are_looked_at():
    """The room in VRAM is that of the weights as they are, not of their shapes; without them it is the other."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("config.json", "model.safetensors"):
            shutil.copy(os.path.join(DEMO, name), folder)
        options = ["--model", folder, "--profile", profile(MACHINES[1]), "--json"]
        status, out, err = run(*options, "--strategy", "all-gpu", "--pack", "off")
        same(status, 0, err)
        kept = os.path.join(folder, "plan.json")
        with open(kept, "w") as f:
            json.dump(with_formats(json.loads(out), lambda unit, home: unit < 16), f)
        rooms = []
        path = os.path.join(folder, "model.safetensors")
        for _ in range(2):
            status, out, err = run(*options, "--plan", kept)
            same((status, err), (0, ""), "the plan with packed weights")
            p = json.loads(out)
            weights = sum(s["bytes"] for s in p["stages"]["decode"])
            rooms.append(packed_room(p) / weights)
            with open(path, "r+b") as f:
                length, = struct.unpack("<Q", f.read(8))
                f.truncate(8 + length)
        check(0.68 < rooms[0] < 0.78 and 0.68 < rooms[1] < 0.8 and rooms[0] != rooms[1], rooms)


def test_a_plan_that_was_made_before():
    folder = tempfile.mkdtemp(prefix="helm-plan-test-")
    path = os.path.join(folder, "plan.json")
    try:
        made = plan("qwen3-8b", "h200-sapphire-rapids", "--vram", "8GiB", "--ctx", 4352)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(made, file)
        arguments = ["--vram", "8GiB", "--plan", path, "--at"]
        early = plan("qwen3-8b", "h200-sapphire-rapids", *arguments, 128)
        late = plan("qwen3-8b", "h200-sapphire-rapids", *arguments, 4096)
        same(early["stages"]["decode"][0]["home"], made["stages"]["decode"][0]["home"], "the first home")
        same([s["layers"] for s in early["stages"]["decode"]], [s["layers"] for s in made["stages"]["decode"]], "stages")
        same((early["ring_bytes"], early["vram"]["total"]), (made["ring_bytes"], made["vram"]["total"]), "sizes")
        check(late["decode_tok_s"]["value"] < early["decode_tok_s"]["value"], "a longer context is not slower")
        common = ["--model", model("qwen3-8b"), "--profile", profile("h200-sapphire-rapids")]
        status, _, err = run(*common, *arguments, 4353)
        check(status == 1 and "--at 4353: the context is 4352 tokens" in err, f"{status}: {err}")
        status, out, err = run(*common, "--vram", "4GiB", "--plan", path, "--json")
        same(status, 4, f"a plan too large: {err}")
        same(set(json.loads(out)), {"error", "needed", "available", "nearest"}, "refusal")
        made["stages"]["decode"][0]["home"] = "moon"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(made, file)
        status, _, err = run(*common, "--vram", "8GiB", "--plan", path)
        check(status == 1 and path in err and "moon" in err, f"{status}: {err}")
    finally:
        shutil.rmtree(folder)


def test_a_plan_that_was_edited():
    """It is none of the strategies', has its own sizes, and what is asked for beside it must agree with them."""
    common = ["--model", model("qwen3-8b"), "--profile", profile("thesis-rtx3090"), "--vram", "8GiB"]
    made = plan("qwen3-8b", "thesis-rtx3090", "--vram", "8GiB")
    edited = dict(made, stages=[{"layers": [0, 35], "home": "cpu", "bytes": 1}], embed="cpu", head="cpu", ring_bytes=0,
                  prefill_from_tokens=None, prefill_short_from_tokens=None, placements=None)
    for member in ("head_format", "vram_page_count", "kv_direct_permille"):
        edited.pop(member, None)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "plan.json")

        def explain(p, *options):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(p, file)
            return run(*common, "--plan", path, *options)

        if "vram_page_count" in made:
            status, _, err = explain(dict(edited, vram_page_count=made["vram_page_count"]))
            check(status == 1 and "no layer's cache is the GPU's" in err, err)
        status, out, err = explain(edited, "--json")
        same(status, 0, err)
        p = json.loads(out)
        by_name = check_object(p, 36, None)
        check(by_name["best"]["decode_tok_s"] > 1.5 * p["decode_tok_s"]["value"], "best is what was edited")
        same(p["decode_tok_s"]["value"], by_name["all-cpu"]["decode_tok_s"], "all on the CPU")
        same(p["assumed"], made["assumed"], "what forecasts are for")
        picture = os.path.join(folder, "plan.svg")
        status, out, err = explain(edited, "--plot", picture)
        check(out.count("<- this plan") == 1 and "as given" in out, out)
        check("this plan (as given)" in open(picture, encoding="utf-8").read(), "the picture's name of the plan")
        # lists are priced with the plan's own KV cache
        status, out, err = explain(dict(edited, kv_dtype="f32"), "--json", "--at", 8192, "--host-memory", "64GiB")
        same(status, 0, err)
        p = json.loads(out)
        check(sum(s["ms"] for s in p["stages"]["decode"]) > 0.9 * 1000 / p["decode_tok_s"]["value"],
              "stages of a cache in f32")
        pages = made["page_count"]
        for change, options, expected, words in (
                ({"step_tokens": 2}, [], 1, ["'step_tokens' is 2", "8 'slots'"]),
                ({"context_tokens": 50000}, [], 1, ["'context_tokens' is 50000", "40960"]),
                ({"placements": made["placements"]}, [], 1, ["are made anew: placements: model.", "where no stage of the plan"]),
                ({"placements": made["placements"][1:] + made["placements"][:1]}, [], 1, ["in host is listed after"]),
                ({"placements": [["model.layers.36.mlp.up_proj.weight", "bf16", "host", 0, 1]]}, [], 1,
                 ["placement 0: 'model.layers.36.mlp.up_proj.weight' is no tensor of a model of 36 layers"]),
                ({}, ["--ctx", 8192], 0, []),
                ({}, ["--ctx", 100], 1, ["--ctx 100", "8192"]),
                ({}, ["--batch", 9], 1, ["--batch 9", "8 slots"]),
                ({}, ["--batch", 8, "--at", 8192], 1, ["8 sequences of 8192", "2048 KV pages", f"has {pages}"]),
                ({}, ["--batch", 8, "--at", 1024], 0, []),
                ({}, ["--strategy", "thesis"], 2, ["--strategy", "--plan"])):
            status, _, err = explain(dict(edited, **change), *options)
            check(status == expected and all(word in err for word in words), f"{change} {options}: {status}, {err}")


def test_many_layers_take_no_more_processor_time_each():
    """Layers of Qwen3-8B, split between both memories alike: 512 take at most eight times what 64 do. 1,024 fit in no way. Other
    work on the machine only lengthens processor time, so the shortest of up to four rounds counts."""
    took = {64: math.inf, 512: math.inf, 1024: math.inf}
    for layers, vram, status in 4 * ((64, "16GiB", 0), (512, "128GiB", 0), (1024, "128GiB", 4)):
        if layers == 64 and max(took.values()) < 8 * took[64] < math.inf:
            break
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(model("qwen3-8b"), "config.json")) as f:
                config = dict(json.load(f), num_hidden_layers=layers)
            with open(os.path.join(folder, "config.json"), "w") as f:
                json.dump(config, f)
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            said, out, err = run("--model", folder, "--profile", profile("h200-sapphire-rapids"), "--vram", vram, "--json")
            took[layers] = min(took[layers], resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
        same(said, status, f"{layers} layers: {err}")
    check(max(took.values()) < 8 * took[64], f"seconds of a processor: {took}")


def test_helmd_takes_what_it_prints():
    for strategy in ("all-cpu", "best"):
        status, out, err = run("--model", DEMO, "--profile", PROFILE, "--strategy", strategy, "--host-memory", "2GiB",
                               "--ctx", 512, "--json")
        same(status, 0, err)
        p = json.loads(out)
        device = ["--device", "cpu"] if strategy == "all-cpu" else ["--device", "emulated", "--vram", "1GiB"]
        apart = dict(p, placements=[[name, form, memory, offset + (i + 1) * {"host": 64, "vram": 256}[memory], size]
                                    for i, (name, form, memory, offset, size) in enumerate(p["placements"])])
        for taken in p, apart:
            daemon = Daemon(*device, real=True, plan=taken)
            try:
                check(daemon.ready.startswith("ready"), f"{strategy}: {daemon.ready}\n{daemon.log()[-2000:]}")
            finally:
                daemon.stop()
            daemon.close()


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
