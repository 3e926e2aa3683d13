#!/usr/bin/python3
"""helmd and its planner, with fake workers: what is forecast, what is measured beside it, and how long a prompt may hold
up others."""
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import Client, Daemon, PROFILE, SLOW, check, expected_tokens, plan_json, run_tests, running, same  # noqa: E402
from profile_machine import Machine  # noqa: E402


def test_a_profile_that_cannot_be_used_is_refused():
    with tempfile.TemporaryDirectory() as folder:
        described = json.load(open(PROFILE))

        def write(name, value):
            path = os.path.join(folder, name)
            with open(path, "w") as f:
                json.dump(value, f)
            return path
        without = {k: v for k, v in described.items() if k not in ("gpu", "link")}
        cases = [("/nonexistent/p.json", [], "/nonexistent/p.json"),
                 (write("list", [1]), [], "not an object"),
                 (write("cpu", dict(described, cpu=dict(described["cpu"], gemv={"value": 0, "source": "estimate"}))), [],
                  "gemv"),
                 (write("typo", dict(described, ccpu={})), [], "ccpu"),
                 (write("no-gpu", without), ["--device", "emulated"], "without a device")]
        for path, options, word in cases:
            d = Daemon(*options, profile=path, gpu=True)
            same(processor.ended(d.process, 5 * SLOW), 4, f"{path}: {d.log()}")
            check(d.ready.startswith("error ") and "--profile" in d.ready and word in d.ready, f"{path}: {d.ready}")
            d.close()
        with running(profile=write("no-gpu", without)) as d:  # enough for the CPU alone
            check("a machine that is described" in d.log(), d.log())
        # of several GPUs the one that --device names, else the first
        entry = dict(described["gpu"], link=described["link"])
        listed = dict(without, gpus=[dict(entry, device="cuda", name="the first"), dict(entry, device="emulated", name="the second")])
        for gpus, name in (listed["gpus"], "the second"), (listed["gpus"][:1], "the first"):
            with running("--device", "emulated", "--vram", "64MiB", gpu=True, profile=write(name, dict(listed, gpus=gpus))) as d:
                check(f"its GPU: {name}\n" in d.log(), d.log())


def test_strategies():
    def homes(*options):
        with running("--device", "emulated", *options, gpu=True, layers=6) as d:
            plan = json.loads(Client(d.endpoint).ask("plan").plan.json)
            return [s["home"] for s in plan["stages"]["decode"]]
    same(homes("--strategy", "all-gpu"), ["gpu"], "all-gpu")
    with running("--strategy", "all-cpu", gpu=True, layers=6) as d:
        plan = json.loads(Client(d.endpoint).ask("plan").plan.json)
        same([s["home"] for s in plan["stages"]["decode"]], ["cpu"], "all-cpu")
    check(set(homes("--strategy", "thesis")) <= {"gpu", "cpu"}, "thesis")
    check("cpu" not in homes("--strategy", "stream"), "stream")
    same(homes("--strategy", "best"), ["gpu"], "best, on the machine that is described, where all of it fits")
    d = Daemon("--strategy", "all-gpu", "--device", "cpu")
    same(processor.ended(d.process, 5 * SLOW), 4, d.log())
    check(d.ready.startswith("error ") and "--device cpu" in d.ready, d.ready)
    d.close()


def test_what_memory_gives_is_measured_where_the_profile_is_this_machines():
    m = Machine()
    path = m.place("--device", "cpu")
    with open(PROFILE, encoding="utf-8") as f:
        profile = dict(json.load(f), fingerprint=os.path.basename(path).removesuffix(".json"))
    with open(path, "w", encoding="utf-8") as f:
        json.dump(profile, f)
    for option, script, status, words, ran in [
            ("auto", """echo '{"helm_now": 1, "read": 1e9}'""", "ready ", "host memory reads 1 GB/s now", 1),
            ("auto", "echo out of luck >&2; exit 1", "ready ", "it could not be measured; the forecast goes by the profile: ", 1),
            ("on", "echo out of luck >&2; exit 1", "error ", "out of luck", 1),
            ("off", "exit 1", "ready ", "not measured, --now off; the forecast goes by the profile", 0)]:
        m.helm_profile(script)
        d = m.start("--device", "cpu", "--now", option)
        check(d.ready.startswith(status) and words in d.log(), f"--now {option}: {d.ready}\n{d.log()}")
        same(m.arguments(), ran * [f"--device cpu --worker-dir {m.workers} --now"], f"--now {option}")
        d.stop()
        os.unlink(d.log_path)
    d.close()


def test_memory_is_read_as_the_models_main_format_is():
    """By its kernel, with the plan's activations, where the profile has its rate."""
    m = Machine()
    path = m.place("--device", "cpu", "--weights", "q8_0")
    with open(PROFILE, encoding="utf-8") as f:
        profile = dict(json.load(f), fingerprint=os.path.basename(path).removesuffix(".json"))
    rates = {name: {"value": value, "source": "measured"} for name, value in (("cpu_gemv", 15e9), ("cpu_int8_gemv", 18e9), ("gpu_gemv", 50e9))}
    profile["formats"] = dict(profile.get("formats", {}), q8_0=rates)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(profile, f)
    for activations, more in ("exact", ""), ("int8", " --activations int8"):
        m.helm_profile("""echo '{"helm_now": 1, "format": "q8_0", "activations": "%s", "read": 9e9}'""" % activations)
        d = m.start("--device", "cpu", "--weights", "q8_0", "--activations", activations)
        then = rates["cpu_int8_gemv" if more else "cpu_gemv"]["value"] / 1e9
        check(f"one token of q8_0 with {activations} activations reads host memory at 9 GB/s now, {then:.4g} in the profile" in d.log(), d.log())
        same(m.arguments(), [f"--device cpu --formats q8_0 --worker-dir {m.workers} --now{more}"], activations)
        d.stop()
        os.unlink(d.log_path)
    m.helm_profile("""echo '{"helm_now": 1, "format": "q2_k", "read": 9e9}'""")
    d = m.start("--device", "cpu", "--weights", "q8_0", "--now", "on")
    check(d.ready.startswith("error ") and "q2_k" in d.ready, d.ready)
    d.close()


def test_forecasts_go_by_what_memory_gives_now():
    """A stated rate in the place of a measured one: half of the profile's makes another forecast, and another plan."""
    with open(PROFILE, encoding="utf-8") as f:
        profile = json.load(f)
    read = max(profile["cpu"]["read"], key=lambda point: point["x"])["value"]
    with tempfile.TemporaryDirectory() as folder:
        def planned(part):
            path = os.path.join(folder, "now.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump({"helm_now": 1, "read": part * read}, f)
            with running("--device", "cpu", "--now", path) as d:
                plan = Client(d.endpoint).ask("plan").plan
                check(f"profile: {plan.now}" in d.log(), d.log())
                return plan
        whole, near, half = planned(1), planned(0.95), planned(0.5)
        check(near.now.endswith("the forecast goes by that, the plan by the profile"), near.now)
        check(half.now.endswith("and so does the plan"), half.now)
        seconds = [plan.forecast.decode_seconds for plan in (whole, near, half)]
        check(seconds[0] < seconds[1] < seconds[2] < 2 * seconds[0] + 1e-9, f"{seconds}")
        with running("--device", "cpu") as d:  # the profile is a described machine's
            plan = Client(d.endpoint).ask("plan").plan
            same(plan.forecast.decode_seconds, seconds[0], "without a measurement")
            check("not measured, the profile is not this machine's" in plan.now, plan.now)
        for homes, why in ("gg", "not measured, a step reads nothing there"), ("cg", "not measured beside an emulated device"):
            with running("--device", "emulated", gpu=True, plan=plan_json(2, homes, "g", "g")) as d:
                now = Client(d.endpoint).ask("plan").plan.now
                same(now, f"host memory now: {why}; the forecast goes by the profile", homes)
        d = Daemon("--device", "cpu", "--now", folder + "/none")
        same(processor.ended(d.process, 5 * SLOW), 4, d.log())
        check(d.ready.startswith("error ") and "--now" in d.ready, d.ready)
        d.close()


def test_what_is_measured_stands_beside_what_was_planned():
    with running("--device", "cpu", "--prompt", 64, "--batch", 2, faults="step_us=20000") as d:
        c = Client(d.endpoint)
        plan = c.ask("plan").plan
        f = plan.forecast
        same((f.batch, f.context, f.prompt), (2, 256, 64), "what the forecast is for: half the context")
        check(0 < f.decode_seconds_low <= f.decode_seconds <= f.decode_seconds_high, f"{f}")
        check(0 < f.ttft_seconds_low <= f.ttft_seconds <= f.ttft_seconds_high, f"{f}")
        same((len(plan.decode), len(plan.ttft), len(plan.resources), plan.drifting), (0, 0, 0, False), "measured so far")
        s = c.generate([3] * 40, 20)
        c.run(s)
        two = [c.generate([4 + n] * 100, 30) for n in range(2)]
        c.run(*two)
        plan = c.ask("plan").plan
        same([p.batch for p in plan.decode], [1, 2], "kinds of decode steps")
        check(plan.decode[0].count >= 19 and plan.decode[1].count >= 25, f"{plan.decode}")
        for p in list(plan.decode) + list(plan.ttft):
            check(0.015 < p.measured_seconds < 0.2 * SLOW and 0 < p.planned_seconds < p.measured_seconds, f"{p}")
        check(45 <= plan.decode[0].tokens <= 60, f"context: {plan.decode[0].tokens}")
        check(40 in [p.tokens for p in plan.ttft], f"{plan.ttft}")
        names = [r.name for r in plan.resources]
        same(names, ["cpu"], "resources")
        r = plan.resources[0]
        check(0.5 < r.busy <= 1 and 0 < r.busy_planned <= 1 and r.bytes_per_second_planned > 1e7 and
              0 < r.bytes_per_second < 1e6, f"{r}")


def test_workers_totals_never_fall():
    with running("--device", "emulated", gpu=True, layers=6, plan=plan_json(6, "cccggg", "c", "g"),
                 faults="step_us=1000 gpu.crash_step=30 crash_epoch=1") as d:
        c = Client(d.endpoint)
        before = {}
        for n in range(4):
            s = c.generate([5, 6], 20, seed=n)
            c.run(s)
            same(s.tokens, expected_tokens([5, 6], 20, seed=n), "tokens")
            status = c.ask("status").status
            for w in status.workers:
                now = (w.busy_seconds, w.wait_seconds, w.weight_bytes_read, w.link_bytes)
                check(all(a <= b for a, b in zip(before.get(w.name, (0, 0, 0, 0)), now)), f"{w.name}: {before} {now}")
                check(w.busy_seconds + w.wait_seconds <= status.seconds_steps * 1.001, f"{w}")
                before[w.name] = now
        same(status.workers[0].epoch, 2, "epoch")
        steps = status.steps_total
        same((before["cpu"][2], before["cpu"][3], before["gpu"][3]), (1000 * steps, 0, 100 * steps), f"{steps} steps")
        check(status.seconds_steps > 0.001 * steps, f"{status.seconds_steps} s in {steps} steps")


def stalled(*options):
    """How many tokens a decoding client gets while another one's prompt of 400 tokens is computed, on a machine whose
    CPU should take 10 ms for each of them."""
    profile = json.load(open(PROFILE))
    profile["cpu"]["linear"] = [{"x": 2, "value": 6e6, "source": "estimate"}]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(profile, f)
        f.flush()
        with running("--device", "cpu", "--step-tokens", 512, *options, profile=f.name, faults="token_us=200") as d:
            # one connection: helmd's messages come in the order in which it sent them, however late they are read here
            c = Client(d.endpoint)
            a = c.generate([3], 500, ignore_eos=True)
            while len(a.tokens) < 10:
                c.receive()
            b = c.generate([4] * 400, 2)
            while not b.id:
                c.receive()
            begin = len(a.tokens)
            while not b.tokens:
                c.receive()
            same(b.tokens[:1], expected_tokens([4] * 400, 1), "the other's first token")
            return len(a.tokens) - begin


def test_a_prompt_holds_up_others_no_longer_than_told():
    unbounded = stalled("--max-stall-ms", 0)
    default = stalled()
    short = stalled("--max-stall-ms", 200)
    check(unbounded <= 4, f"{unbounded} tokens while a prompt was computed in one step")
    check(6 <= default <= 30, f"{default} tokens at 500 ms a step of 10 ms a token")
    check(short > 1.5 * default, f"{short} tokens at 200 ms, {default} at 500 ms")


if __name__ == "__main__":
    run_tests(globals())
