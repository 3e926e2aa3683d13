#!/usr/bin/python3
"""helmd that plans for two emulated devices by itself: which layers lie where, the same tokens as ever, deaths of either, sessions,
invariant plans, and what cannot be asked for."""
import json
import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
import test_golden_cli as golden  # noqa: E402
from helmd_harness import DATA, Client, Daemon, check, plan_json, run_tests, running, same, wait_until, SLOW  # noqa: E402
from test_helmd_devices import pid_of  # noqa: E402
from test_helmd_sessions import restore, save  # noqa: E402
from test_helmd_split import GOLDEN, LAYERS, SIZES, check_golden, clear_stretch  # noqa: E402

RESIDENT, OVER = "20MiB,20MiB", "13MiB,13MiB"  # all fits in the two; the CPU, or the link, does the rest


def planned(vram, *options):
    return running("--device", "emulated", "--vram", vram, *SIZES, *options, real=True)


def homes_of(client):
    """By layer, of decode: the homes of its halves; and the plan."""
    plan, homes = json.loads(client.ask("plan").plan.json), [[] for _ in range(LAYERS)]
    for stage in plan["stages"]["decode"]:
        for layer in range(stage["layers"][0], stage["layers"][1] + 1):
            homes[layer] += [stage["home"]] * (2 if stage["ops"] == "all" else 1)
    return homes, plan


def test_what_fits_in_two_devices_is_all_resident():
    with planned(RESIDENT) as d:
        c = Client(d.endpoint)
        homes, plan = homes_of(c)
        flat = [home for layer in homes for home in layer]
        second = flat.count("gpu1")
        same(flat, ["gpu"] * (2 * LAYERS - second) + ["gpu1"] * second, "homes")
        check(4 <= second <= 12, f"both have a part: {flat}")
        same((plan["head"], [w.name for w in c.ask("status").status.workers]), ("gpu1", ["gpu", "gpu1"]), "head and workers")
        for memory in "vram", "vram1":
            check(0 < plan[memory]["total"] <= plan[memory]["limit"] == 20 << 20, plan[memory])
        check("second device: used: " in d.log() and "is not measured itself" in d.log(), d.log())
        check_golden(d, "two devices")


def test_what_fits_in_neither_is_shared_with_the_host():
    with planned(OVER, "--strategy", "best") as d:
        homes, plan = homes_of(Client(d.endpoint))
        flat = [home for layer in homes for home in layer]
        check("gpu1" in flat and {"cpu", "stream"} & set(flat), f"{flat}")
        same(flat[flat.index("gpu1"):], ["gpu1"] * flat.count("gpu1"), "the second device has the last ones")
        check_golden(d, "two devices and the host")


def test_devices_of_different_sizes():
    with planned("20MiB,12MiB") as d:
        homes, plan = homes_of(Client(d.endpoint))
        flat = [home for layer in homes for home in layer]
        check(flat.count("gpu") > flat.count("gpu1") > 0, f"{flat}")
        same((plan["vram"]["limit"], plan["vram1"]["limit"]), (20 << 20, 12 << 20), "ceilings")
        check_golden(d, "20 and 12 MiB")


def test_slots_of_experts_are_the_first_devices_alone():
    """Experts of layer 0 in slots of the first device, all of layer 1 on the second, which holds no more than its ledger says."""
    model = os.path.join(DATA, "golden", "mixtral")
    plan = plan_json(2, "gmGG", "g", "G", ring_bytes=4 << 20, mixed={"slots": 3, "direct_permille": 400, "moves": 2, "move_cost": 0})
    with running("--device", "emulated,emulated", "--vram", "64MiB,64MiB", real=True, model=model, plan=plan) as d:
        cases = [case for case in json.load(open(os.path.join(model, "golden.json")))["cases"] if len(case["prompt"]) < 200][:3]
        for n, case in enumerate(cases):
            _, fine, gap = golden.compare(case, golden.generate(d.endpoint, case["prompt"]), golden.CLASSES["bf16"][3],
                                          golden.CLASSES["bf16"][1], golden.MARGIN["bf16"])
            check(fine, f"case {n}: {gap}")
        c = Client(d.endpoint)
        plan, status = json.loads(c.ask("plan").plan.json), c.ask("status").status
        for worker, memory in ("gpu", "vram"), ("gpu1", "vram1"):
            held = {w.name: w.vram_bytes for w in status.workers}[worker]
            check(0 < held <= plan[memory]["total"], f"{worker} holds {held} of {plan[memory]}")
            lines = {line["what"].split(",")[0]: line["bytes"] for line in plan[memory]["lines"]}
            same("experts" in lines, worker == "gpu", memory)
            weights = float(re.search(rf"worker {worker}: .*VRAM in use.*: weights ([\d.]+) MiB", d.log())[1])
            planned = (lines["weights"] + lines.get("experts", 0)) / 2**20
            check(abs(weights - planned) < 0.02, f"{worker}: weights of {weights} MiB, the ledger has {planned}")
        check(status.experts_used_total > 0, "experts were counted")


def test_a_second_device_that_is_not_needed_is_left_out():
    with planned("64MiB,64MiB") as d:
        c = Client(d.endpoint)
        same([w.name for w in c.ask("status").status.workers], ["gpu"], "workers")
        check("second device: left out: all layers fit in the first device" in d.log(), d.log())
    with planned("64MiB") as d:
        check("second device" not in d.log(), d.log())


def test_either_worker_killed_costs_no_token():
    prompt, want = clear_stretch()
    with planned(RESIDENT) as d:
        for n, who in enumerate(["gpu1", "gpu"]):
            c = Client(d.endpoint)
            s = c.generate(prompt, len(want), ignore_eos=True)
            check(wait_until(lambda: c.receive(1) is not None and len(s.tokens) >= 5, 60), "no token came")
            os.kill(pid_of(d, who), signal.SIGKILL)
            c.run(s, timeout=120)
            same(s.tokens, want, f"{who}: greedy tokens")
            same([(w.name, w.restarts, w.state) for w in c.ask("status").status.workers],
                 [(name, n + 1, "ready") for name in ("gpu", "gpu1")], f"{who}: workers")


def test_a_session_goes_on_from_two_devices_to_one():
    prompt, want = clear_stretch()
    half = len(want) // 2
    with planned(RESIDENT) as d:
        c = Client(d.endpoint)
        s = c.generate(prompt, half, ignore_eos=True)
        c.run(s)
        same(s.tokens, want[:half], "before")
        opened, pages = save(c, prompt + s.tokens)
    for vram in RESIDENT, "64MiB":
        with planned(vram) as d:
            c = Client(d.endpoint)
            same(restore(c, (prompt + want[:half])[:32 * len(pages)], opened, pages), (0, len(pages), False), f"{vram}: restored")
            s = c.generate(prompt + want[:half], len(want) - half, ignore_eos=True)
            c.run(s)
            same(s.tokens, want[half:], f"{vram}: after")
            check(s.done.usage.cached_tokens > 0, f"nothing of the session was used: {s.done}")


def test_chunks_of_a_prompt_in_flight_give_the_same_bits():
    """Two devices each compute a chunk at the same time, of fourteen; one device alone computes one after another."""
    prompt = GOLDEN[7]["prompt"] + GOLDEN[6]["prompt"] * 2
    found = {}
    for vram in RESIDENT, "64MiB":
        for invariant in "off", "on":
            with planned(vram, "--invariant", invariant, "--prefix-cache", "off") as d:
                c = Client(d.endpoint)
                for length in 870, 129:
                    s = c.generate(prompt[:length], 12, logprobs=1, ignore_eos=True)
                    c.run(s, timeout=120)
                    same(s.done.usage.prompt_tokens, length, "prompt")
                    found.setdefault((length, invariant), []).append((s.tokens, [f.logprob for f in s.first]))
    for case, (two, one) in found.items():
        same(two, one, f"prompt and invariant: {case}")


def test_an_invariant_plan_gives_the_same_tokens_alone_and_with_others():
    prompts = [case["prompt"][:40 + 7 * n] for n, case in enumerate(GOLDEN[:3])]
    with planned(RESIDENT, "--invariant", "on") as d:
        c = Client(d.endpoint)
        check(c.ask("status").status.invariant.startswith("on"), "status")

        def ask(prompt, seed):
            return c.generate(prompt, 24, seed=seed, sampling={"temperature": 1.0}, logprobs=1, ignore_eos=True)

        alone = []
        for n, prompt in enumerate(prompts):
            s = ask(prompt, n)
            c.run(s, timeout=120)
            alone.append((s.tokens, [f.logprob for f in s.first]))
        together = [ask(prompt, n) for n, prompt in enumerate(prompts)]
        os.kill(pid_of(d, "gpu1"), signal.SIGKILL)
        c.run(*together, timeout=120)
        for n, s in enumerate(together):
            same((s.tokens, [f.logprob for f in s.first]), alone[n], f"request {n}")


def test_what_cannot_be_asked_for_is_named():
    for options, why in [(("--device", "emulated", "--vram", "8MiB,8MiB,8MiB"), "has 3 ceilings: a plan has 2 devices at most"),
                         (("--device", "cuda:0,cuda:1,cuda:2"), "names 3 devices: a plan has 2 at most"),
                         (("--device", "emulated,emulated", "--vram", "8MiB"), "--vram has 1 ceiling, --device names 2 devices"),
                         (("--device", "cuda:0", "--vram", "8GiB,8GiB"), "--vram has 2 ceilings, --device cuda:0 is one device"),
                         (("--device", "cpu", "--vram", "8GiB,8GiB"), "--vram has 2 ceilings, --device cpu is one device"),
                         (("--device", "cuda:1,cuda:1"), "a list has two different cuda:N"),
                         (("--device", "cuda:0,emulated"), "a list has two different cuda:N"),
                         (("--device", "emulated", "--vram", "8MiB,much"), "--vram")]:
        d = Daemon(*options, real=True, wait=False)
        same(processor.ended(d.process, 20 * SLOW), 2, f"{options}: {d.log()}")
        check(why in d.log(), d.log())
        d.close()
    d = Daemon("--device", "emulated,emulated", "--vram", "3MiB,3MiB", *SIZES, real=True)
    same(processor.ended(d.process, 20 * SLOW), 4, d.log())
    check(re.search("no plan .* fits", d.ready), d.ready)
    d.close()


if __name__ == "__main__":
    run_tests(globals())
