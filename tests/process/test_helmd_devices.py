#!/usr/bin/python3
"""helmd with three real workers: one CPU and two emulated devices, by plans written by hand. Their output is compared with the
demo model's golden.json, and with that of one device alone."""
import json
import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import DEVICE, Client, Daemon, check, run_tests, running, same, wait_until, SLOW  # noqa: E402
from test_helmd_sessions import restore, save  # noqa: E402
from test_helmd_split import GOLDEN, check_golden, clear_stretch, demo_plan  # noqa: E402

BOTH = "cuda:0,cuda:1" if DEVICE == "cuda" else "emulated,emulated"
# homes by layer, embedding, head: c(pu), g(pu), G: gpu1
SHAPES = [("ggggGGGG", "g", "G"), ("ccggGGcc", "c", "G"), ("gGgGgGgG", "c", "g"), ("GcgGcgGc", "G", "c"),
          ("ccccGGGG", "c", "G"), ("GGGGGGGG", "G", "G")]


def devices(homes, embed, head, *options, **sizes):
    return running("--device", BOTH, *options, real=True, plan=demo_plan(homes, embed, head, **sizes))


def workers_of(homes, embed, head):
    names = {"c": "cpu", "g": "gpu", "G": "gpu1"}
    return [names[letter] for letter in "cgG" if letter in homes + embed + head]


def pid_of(d, name):
    """The pid of its newest life: two workers run the same program."""
    return int(re.findall(rf"worker {name}: pid (\d+)", d.log())[-1])


def test_plans_with_two_devices_agree_with_the_golden_run():
    for homes, embed, head in SHAPES if SLOW == 1 else SHAPES[1:3]:
        what = f"{homes}, embedding {embed}, head {head}"
        with devices(homes, embed, head) as d:
            status = Client(d.endpoint).ask("status").status
            same([w.name for w in status.workers], workers_of(homes, embed, head), f"{what}: workers")
            check_golden(d, what)


def test_each_device_has_its_layers_alone():
    """Weights and KV pages of a layer lie with its own device, and the ledgers of both say so."""
    with devices("cgggGGGc", "c", "c") as d:
        c = Client(d.endpoint)
        s = c.generate(GOLDEN[0]["prompt"], 4, ignore_eos=True)
        c.run(s)
        plan, status = json.loads(c.ask("plan").plan.json), c.ask("status").status
        by_name = {w.name: w for w in status.workers}
        same(sorted(by_name), ["cpu", "gpu", "gpu1"], "workers")
        for worker, memory, layers in ("gpu", "vram", [1, 3]), ("gpu1", "vram1", [4, 6]):
            ledger = plan[memory]
            # a described profile does not know what a real card's context takes
            check(0 < by_name[worker].vram_bytes and (DEVICE == "cuda" or by_name[worker].vram_bytes <= ledger["total"]),
                  f"{worker}: {by_name[worker].vram_bytes} of {ledger}")
            same({line["what"].split(",")[0] for line in ledger["lines"]} >= {"weights", "KV pool"}, True, f"{memory}: {ledger}")
            placed = {int(p[0].split(".")[2]) for p in plan["placements"] if p[2] == memory}
            same((min(placed), max(placed)), tuple(layers), f"layers in {memory}")
        pools = [line["bytes"] for memory in ("vram", "vram1") for line in plan[memory]["lines"] if "KV pool" in line["what"]]
        same(pools[0], pools[1], "three layers' pages each")
        # the two stages between them cross by the devices' own lane: each worker has read what its own layers weigh
        check(by_name["gpu"].weight_bytes_read > 0 and by_name["gpu1"].weight_bytes_read > 0, "weights read")


def test_any_worker_killed_mid_stream_costs_no_token():
    prompt, want = clear_stretch()
    with devices("ccggGGcc", "c", "G") as d:
        for n, who in enumerate(["gpu1", "gpu", "cpu"] if SLOW == 1 else ["gpu1"]):
            c = Client(d.endpoint)
            s = c.generate(prompt, len(want), ignore_eos=True)
            check(wait_until(lambda: c.receive(1) is not None and len(s.tokens) >= 5, 60), "no token came")
            os.kill(pid_of(d, who), signal.SIGKILL)
            c.run(s, timeout=120)
            same(s.tokens, want, f"{who}: greedy tokens")
            status = c.ask("status").status
            same([(w.name, w.restarts, w.state) for w in status.workers],
                 [(name, n + 1, "ready") for name in ("cpu", "gpu", "gpu1")], f"{who}: workers")


def test_sessions_are_saved_and_restored_from_both_devices():
    """Pages of both devices' layers pass through the arena's session region, each at its own place."""
    prompt, want = clear_stretch()
    half = len(want) // 2
    with devices("cgggGGGc", "c", "c") as d:
        c = Client(d.endpoint)
        s = c.generate(prompt, half, ignore_eos=True)
        c.run(s)
        same(s.tokens, want[:half], "before")
        opened, pages = save(c, prompt + s.tokens)
    with devices("cgggGGGc", "c", "c") as d:
        c = Client(d.endpoint)
        same(restore(c, (prompt + want[:half])[:32 * len(pages)], opened, pages), (0, len(pages), False), "restored")
        s = c.generate(prompt + want[:half], len(want) - half, ignore_eos=True)
        c.run(s)
        same(s.tokens, want[half:], "after")
        check(s.done.usage.cached_tokens > 0, f"nothing of the session was used: {s.done}")


def test_two_tiers_of_the_second_device_alone():
    """The plan says of each device how many pages it has room for; the CPU attends to a part of gpu1's cache."""
    with devices("ccGGGGGG", "c", "G", page_count=128, devices={"gpu1": {"vram_page_count": 24}}, kv_direct_permille=300) as d:
        check_golden(d, "two tiers of gpu1")
        plan = json.loads(Client(d.endpoint).ask("plan").plan.json)
        same((plan["devices"]["gpu1"]["vram_page_count"], plan["vram_page_count"]), (24, 0), "places")
        check(any("KV places, of 24 pages" in line["what"] for line in plan["vram1"]["lines"]), plan["vram1"])


def test_what_two_devices_cannot_do_is_named():
    d = Daemon("--device", BOTH, real=True,
               plan=demo_plan("ccggGGcc", "c", "G", page_count=64, vram_page_count=32, kv_direct_permille=1000))
    same(processor.ended(d.process, 20 * SLOW), 4, d.log())
    check("two tiers of the KV cache are for plans with one" in d.ready, d.ready)
    same(d.left_behind(), [], "left behind")
    d.close()
    d = Daemon("--device", "emulated", "--vram", "12MiB,12MiB", real=True, plan=demo_plan("ggGGGGGG", "c", "c"))
    same(processor.ended(d.process, 20 * SLOW), 4, d.log())
    check("of the second device" in d.ready, d.ready)
    d.close()


def test_a_plan_of_the_second_device_alone_needs_a_device():
    d = Daemon("--device", "cpu", real=True, plan=demo_plan("GGGGGGGG", "G", "G"))
    check(processor.ended(d.process, 20 * SLOW) != 0, d.log())
    check("the plan needs a GPU" in d.ready, d.ready)
    same(d.left_behind(), [], "left behind")


if __name__ == "__main__":
    run_tests(globals())
