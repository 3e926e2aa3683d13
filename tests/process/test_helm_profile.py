#!/usr/bin/python3
"""helm-profile and helm-worker-gpu --measure, end to end: quick profiles of this machine without a device (instrumented) and
with the emulated one (the release build), what must hold between their values, the cache and its fingerprint, exit statuses.

Values are there, in order and read back on any machine. How they compare (measured()) is asked where nothing else ran meanwhile.
HELM_BIN: folder of the programs. Run from the repository's root."""
import json
import os
import subprocess
import tempfile
import time

import processor
import test_helm_profile_formats
from test_helm_profile_formats import begin, check, first_lines, is_alone, is_value, measured, sum_up

BIN = os.path.abspath(os.environ["HELM_BIN"])
PROFILE = os.path.join(BIN, "helm-profile")
WORKER = os.path.join(BIN, "helm-worker-gpu")
SLOW = 4 if "asan" in BIN or "tsan" in BIN or "ubsan" in BIN else 1
COPY = 10**9  # bytes a second
LEAST = 0.6 if SLOW == 1 else 0.1  # of it: the instrumented worker is slow
THREADS = len(os.sched_getaffinity(0))  # the emulated device and the CPU compute by turns
# The loaded data is a multiple of the caches: without a bound the test takes three times as long where they have 300 MiB.
CACHES = test_helm_profile_formats.CACHES
# Instrumented, one thread finds as much as two.
CPU = ["--device", "cpu", "--quick", *CACHES, *["--threads", "1"] * (SLOW > 1)]
EMULATED = ["--device", "emulated", "--quick", "--emulated-copy", str(COPY), *CACHES]
# The one that is measured, and in the cache from then on: the release build's is a device's, which the CPU's is part of, the
# instrumented one the CPU's, and what its worker measures of a device (test_worker).
# `make test-full` measures both in both.
FULL = bool(os.environ.get("HELM_TEST_FULL"))
WITH_CPU, WITH_DEVICE = SLOW > 1 or FULL, SLOW == 1 or FULL
FIRST = CPU if WITH_CPU else EMULATED
PACKED = ("cpu.gemv_packed", "cpu.gemv_packed_beside", "link.h2d_beside_packed")


def environment(cache):
    env = dict(os.environ, XDG_CACHE_HOME=cache)
    env.pop("STATE_DIRECTORY", None)
    return env


def profile(cache, *args):
    """Status, output, messages, and the seconds of processor time that it took: others' programs add none."""
    env = environment(cache)
    before = processor.spent_by_children()
    begin()
    run = processor.run([PROFILE, *args], 120 * SLOW, stdin=subprocess.DEVNULL, capture_output=True, env=env)
    return run.returncode, run.stdout.decode(), run.stderr.decode(), processor.spent_by_children() - before


def cached(cache):
    folder = os.path.join(cache, "helm", "profiles")
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def values(part):
    """Every value of a part of a profile: name, number."""
    for name, member in part.items():
        if isinstance(member, dict):
            yield name, member
        elif isinstance(member, list):
            for point in member:
                yield "%s at %d" % (name, point["x"]), point


def parts_of(profile_json):
    """A profile's objects by name, those of its one GPU among them."""
    gpu = next(iter(profile_json["gpus"]), None)
    return dict(profile_json, gpu=gpu and {name: member for name, member in gpu.items() if name != "link"}, link=gpu and gpu["link"])


def has_packed_kernels():
    """Whether this processor computes with packed weights (common/cpu/kernels/linear.h)."""
    return processor.LEFT["avx512-vbmi2"] <= processor.flags()


def check_values(what, profile_json, parts, unknown=()):
    for part in parts:
        for name, value in values(profile_json[part]):
            name = "%s.%s" % (part, name)
            if name in unknown:
                check("%s: %s is unknown" % (what, name), value["source"] == "unknown" and value["value"] == 0, value)
                continue
            ok = is_value(value)
            if name in ("cpu.gemv_beside", "cpu.gemv_packed_beside", "cpu.read_beside", "cpu.attention_host") and profile_json["gpu"] is None:
                ok = value["source"] == "unknown"
            elif name == "cpu.attention_host" and SLOW > 1 or not is_alone():  # it may be too late for what is measured last
                ok = ok or value["source"] == "unknown"
            if name in PACKED and not has_packed_kernels():
                ok = value["source"] == "unknown" and value["value"] == 0
            check("%s: %s has a median inside its spread" % (what, name), ok, value)


def check_cpu(what, p):
    cpu = p["cpu"]
    threads = [point["x"] for point in cpu["read"]]
    check(what + ": reads of all threads", threads == [cpu["threads"]], threads)
    tokens = [point["x"] for point in cpu["linear"]]  # what a slow machine has no time for is left out
    check(what + ": tokens rise from 2", tokens[:1] == [2] and len(tokens) >= (3 if SLOW == 1 and is_alone() else 1) and
          set(tokens) <= {2, 4, 8, 16, 32, 64, 128, 256, 512} and tokens == sorted(set(tokens)), tokens)
    read = cpu["read"][-1]
    if SLOW == 1:  # a gemv is a read; what is compared is its slower half with the faster half of reads
        measured(what + ": one token's weights are not read faster than memory", cpu["gemv"]["low"] <= 1.5 * read["high"],
                 (cpu["gemv"], read))
    check(what + ": weights pass the caches by", cpu["weight_bytes"] >= 3 * cpu["l3_bytes"] and
          cpu["weight_bytes"] >= 256 << 20, cpu["weight_bytes"])
    linear = {point["x"]: point["value"] for point in cpu["linear"]}
    if has_packed_kernels() and SLOW == 1:  # 0.7 of the bytes are read; twice that gain is no measurement
        measured(what + ": packed weights are not read faster than memory", cpu["gemv_packed"]["low"] <= 2.2 * read["high"],
                 (cpu["gemv_packed"], read))
    if SLOW == 1:  # instrumented kernels have other speeds
        measured(what + ": many tokens at once are worth more than two", linear[tokens[-1]] > linear[2], linear)
    check(what + ": waking up and a step have medians inside their spreads", is_value(p["wake"]) and is_value(p["step"]),
          (p["wake"], p["step"]))
    measured(what + ": an operation takes microseconds", 1e-8 < cpu["operation"]["value"] < 5e-3, cpu["operation"])
    measured(what + ": so does waking up", 1e-7 < p["wake"]["value"] < 50e-3, p["wake"])
    measured(what + ": a step takes microseconds", 1e-7 < p["step"]["value"] < 50e-3, p["step"])


def test_cpu(cache):
    before = {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("helm-profile-")}  # others'
    rc, out, err, spent = profile(cache, *CPU, "--json")
    check("cpu: exit status 0", rc == 0, err)
    p = parts_of(json.loads(out))
    check("cpu: says what it does meanwhile", "CPU: loading" in err and "kept: " in err, err)
    check("cpu: no device, no link", p["gpu"] is None and p["link"] is None)
    check("cpu: marked as quick", p["quick"] is True)
    check("cpu: takes seconds", spent < 60 * SLOW * p["cpu"]["threads"], spent)
    check_values("cpu", p, ["cpu"])
    check_cpu("cpu", p)
    files = cached(cache)
    check("cpu: kept under its fingerprint", files == [p["fingerprint"] + ".json"], files)
    check("cpu: the file is what was printed", parts_of(json.load(open(os.path.join(cache, "helm", "profiles", files[0])))) == p)

    rc, out, err, again = profile(cache, *CPU, "--json")
    check("cpu: the second time it is cached", rc == 0 and "cached: " in err and parts_of(json.loads(out)) == p, err)
    check("cpu: and takes no time", again < 2 * SLOW, again)
    rc, out, err, _ = profile(cache, *CPU)
    check("cpu: a table for people", rc == 0 and "gemv" in out and "GFLOP/s" in out and p["fingerprint"] in out, out)
    own = os.path.join(cache, "own.json")
    rc, out, err, _ = profile(cache, *CPU, "--out", own)
    check("--out: what is cached, too", rc == 0 and parts_of(json.load(open(own))) == p, err)
    # what is measured again or anew, and kept where, is said before it is
    said = first_lines(None, *CPU, "--out", own, lines=2)
    check("--out: needs no other place", "not kept: " in said and "CPU: loading" in said, said)
    said = first_lines(cache, "--device", "cpu", "--quick", "--threads", "2" if SLOW > 1 else "1")
    check("cpu: other --threads are another machine, which is not in the cache", "CPU: loading" in said, said)
    said = first_lines(cache, *CPU, "--force")
    check("cpu: --force measures again", "CPU: loading" in said, said)
    kept = os.path.join(cache, "helm", "profiles", files[0])
    with open(kept, "w") as f:
        f.write("{\"helm_profile\": 1")
    said = first_lines(cache, *CPU)
    check("cpu: a damaged file is named before it is measured again", "cannot be used" in said and kept in said, said)
    with open(kept, "w") as f, open(own) as whole:
        f.write(whole.read())
    test_helm_profile_formats.test_cpu(cache, json.load(open(own)), CPU)
    left = [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("helm-profile-")]
    check("cpu: nothing is left in the temporary folder", not set(left) - before, left)


def test_emulated(cache):
    args = EMULATED + ["--json"]
    rc, out, err, spent = profile(cache, *args)
    check("emulated: exit status 0", rc == 0, err)
    p = parts_of(json.loads(out))
    check("emulated: caches are those of --caches", p["cpu"]["l3_bytes"] == 20 << 20, p["cpu"]["l3_bytes"])
    check("emulated: takes seconds", spent < 60 * SLOW * THREADS, spent)
    check("emulated: says so", p["gpu"]["device"] == "emulated" and p["gpu"]["vram_free"] <= p["gpu"]["vram_bytes"])
    check_values("emulated", p, ["cpu", "gpu", "link"], unknown=["link.direct"])
    check_cpu("emulated", p)
    measured("emulated: a chunk with nothing to do takes microseconds", 1e-7 < p["gpu"]["begin"]["value"] < 50e-3,
             p["gpu"]["begin"])
    most = 1.02 if p["busy_percent"] < 10 else 1.1  # a profile that others disturbed says so
    for name in ("h2d", "d2h", "h2d_beside", "h2d_beside_read") + ("h2d_beside_packed",) * has_packed_kernels():
        rate = p["link"][name]["value"]
        measured("emulated: link.%s is what copies are held to" % name, LEAST * COPY < rate < most * COPY, rate)
    measured("emulated: one token's weights are not read faster than VRAM",
             p["gpu"]["gemv"]["low"] <= 1.5 * p["gpu"]["read"]["high"], p["gpu"])
    check("emulated: the device's tokens", [point["x"] for point in p["gpu"]["linear"]][:4] == [2, 4, 8, 16])
    measured("emulated: a hand-over takes microseconds", 1e-8 < p["link"]["hand_over"]["value"] < 20e-3,
             p["link"]["hand_over"])
    rc, out, err, _ = profile(cache, *EMULATED, "--now")
    now = json.loads(out)
    check("emulated: now, both alone and beside each other", rc == 0 and now["helm_now"] == 1 and
          all(0 < now[name] for name in ("read", "read_beside", "h2d")), (now, err))
    measured("emulated: now, copies at the speed they are held to", all(LEAST * COPY < now[name] < 1.1 * COPY
                                                                        for name in ("h2d", "h2d_beside")), (now, err))
    rc, out, err, _ = profile(cache, *EMULATED, "--now", "--formats", "q8_0", "--activations", "int8")
    now = json.loads(out)
    check("emulated: now by a format's products", rc == 0 and (now["format"], now["activations"]) == ("q8_0", "int8") and
          all(0 < now[name] for name in ("read", "read_beside", "h2d")), (now, err))
    measured("emulated: and copies beside them", all(LEAST * COPY < now[name] < 1.1 * COPY for name in ("h2d", "h2d_beside")), (now, err))
    rc, out, err, again = profile(cache, *args)
    check("emulated: the second time it is cached", rc == 0 and parts_of(json.loads(out)) == p and again < 2 * SLOW, err)
    rc, out, err, _ = profile(cache, *EMULATED)
    check("emulated: a table for people", rc == 0 and "hand-over" in out and p["fingerprint"] in out, out)
    args[args.index(str(COPY))] = str(2 * COPY)
    said = first_lines(cache, *args)
    check("emulated: another speed of copies is another machine, which is not in the cache", "device: emulated" in said, said)
    test_helm_profile_formats.test_emulated(cache, "--emulated-copy", str(COPY))  # the rest of the profile stays as it is


def test_refusals(cache):
    for args, said in ((["--device", "tpu"], "tpu"), (["--device", "cuda:x"], "cuda:x"),
                       (["--threads", "0"], "--threads"), (["--device", "cpu", "--emulated-copy", "1MB"], "emulated"),
                       (["extra"], "extra"), (["--now", "--device", "cpu", "--formats", "q4_k,q6_k"], "one format")):
        rc, out, err, _ = profile(cache, *args)
        check("refused: " + " ".join(args), rc == 2 and said in err and out == "", (rc, err))
    rc, out, err, _ = profile(cache, "--device", "emulated", "--worker-dir", "/nonexistent")
    check("refused: a device without helm-worker-gpu", rc == 1 and "helm-worker-gpu" in err, (rc, err))
    # what could not be kept in the end is not measured first
    rc, out, err, _ = profile(cache, "--device", "cpu", "--quick", "--force", "--out", "/nonexistent/p.json")
    check("refused: --out where no file can be", rc == 1 and "/nonexistent/p.json" in err and "loading" not in err,
          (rc, err))
    rc, out, err, _ = profile(cache, *FIRST, "--json")  # measured before
    kept = os.path.join(cache, "helm", "profiles", json.loads(out)["fingerprint"] + ".json")
    os.rename(kept, kept + ".aside")
    os.mkdir(kept)
    said = first_lines(cache, *FIRST, lines=2)
    check("a folder in the profile's place: that it cannot be kept is said before it is measured", "not kept: " in said and
          kept in said, said)
    os.rmdir(kept)
    os.rename(kept + ".aside", kept)
    for what, home in ("no HOME", {}), ("no such HOME", {"HOME": "/nonexistent"}), ("no folder", {"XDG_CACHE_HOME": "/dev/null"}):
        said = first_lines(None, "--device", "cpu", "--quick", lines=2, home=home)
        check(what + ": measured, and not kept", "not kept: " in said and "CPU: loading" in said, said)
    check("no home is made", not os.path.exists("/nonexistent"))


def worker(lines, *args):
    begin()
    run = processor.run([WORKER, "--measure", *args, "--quick"], 120 * SLOW, input=lines.encode(), capture_output=True)
    return run.returncode, [json.loads(line) for line in run.stdout.decode().splitlines()]


def copies_for(seconds):
    """Copies that are looked at twice."""
    begin()
    run = subprocess.Popen([WORKER, "--measure", "emulated", "--emulated-copy", str(COPY), "--quick"],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    answers = [json.loads(run.stdout.readline())]
    for command in ("stream", "copied", "copied", "stop"):
        if len(answers) > 3:
            time.sleep(seconds)
            seconds = 0
        run.stdin.write(command + "\n")
        run.stdin.flush()
        while "done" not in answers[-1] or answers[-1]["done"] != command:
            answers.append(json.loads(run.stdout.readline()))
    run.stdin.close()
    return processor.ended(run, 60 * SLOW), answers


def test_worker():
    rc, answers = worker("", "emulated")
    check("worker: ready, then the end of its input ends it", rc == 0 and list(answers[0]) == ["ready"] and
          len(answers) == 1, (rc, answers))
    rc, answers = worker("stream\n" + "copied\n" * 200 + "stop\nquit\n", "emulated", "--emulated-copy", str(COPY))
    names = [a.get("done") or a.get("name") for a in answers[1:]]
    check("worker: copies flow between stream and stop", rc == 0 and names == ["stream"] + ["link.copied", "copied"] * 200 +
          ["stop"], names)
    at = [a["samples"] for a in answers if a.get("name") == "link.copied"]
    check("worker: what was copied rises with time", all(a[0] < b[0] and a[1] < b[1] or a == b for a, b in zip(at, at[1:])),
          at)
    rc, answers = worker("measure\nquit\n", "emulated")
    at = {a["name"]: a["samples"] for a in answers if "name" in a}
    check("worker: all of a device is measured", rc == 0 and answers[-1] == {"done": "measure"} and
          {"gpu.read", "gpu.gemv", "gpu.linear", "gpu.begin", "link.h2d", "link.d2h"} <= set(at) and
          all(min(samples) > 0 for samples in at.values()), at)
    rc, answers = copies_for(0.3)
    (before, start), (after, end) = (a["samples"] for a in answers if a.get("name") == "link.copied")
    check("worker: they flow on", rc == 0 and before <= after and start <= end, answers)
    measured("worker: at the speed they are held to", LEAST * COPY * (end - start) < after - before < 1.1 * COPY * (end - start), answers)
    rc, answers = worker("link\nquit\n", "emulated", "--emulated-copy", str(COPY))
    check("worker: the link alone", rc == 0 and answers[1]["name"] == "link.h2d" and answers[2:] == [{"done": "link"}] and
          min(answers[1]["samples"]) > 0, answers)
    measured("worker: at that speed, too", LEAST * COPY < sorted(answers[1]["samples"])[len(answers[1]["samples"]) // 2] < 1.1 * COPY,
             answers)
    for lines, said in (("stop\n", "no copies"), ("copied\n", "no copies"), ("stream\nstream\n", "already"), ("stream\nmeasure\n", "flowing"), ("stream\nlink\n", "flowing"),
                        ("dance\n", "dance")):
        rc, answers = worker(lines, "emulated")
        check("worker: '%s' is refused" % lines.strip().replace("\n", ", "), rc == 5 and said in answers[-1]["error"],
              (rc, answers))
    rc, answers = worker("measure\n", "tpu")
    check("worker: an unknown device is named", rc == 5 and "tpu" in answers[-1]["error"], (rc, answers))
    rc, answers = worker("measure\n", "emulated", "--vram", "8MiB")
    check("worker: too little VRAM to measure with is said", rc == 5 and "VRAM" in answers[-1]["error"], (rc, answers))
    run = subprocess.run([os.path.join(BIN, "helm-worker-cpu"), "--measure", "emulated"], capture_output=True)
    check("worker: the CPU's measures no device", run.returncode == 2 and b"--measure" in run.stderr, run.stderr)


with tempfile.TemporaryDirectory() as cache_folder:
    test_worker()
    if WITH_CPU:
        test_cpu(cache_folder)
    if WITH_DEVICE:
        test_emulated(cache_folder)
    test_helm_profile_formats.test_refusals(cache_folder)
    test_helm_profile_formats.test_worker()
    test_refusals(cache_folder)
sum_up()
