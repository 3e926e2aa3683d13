#!/usr/bin/python3
"""helmd with two fake workers: every order of stages, choosing the device, and what happens when one of them dies.
Each fake worker checks its KV against the other's, so what one lost or a lane left over ends it and is seen here."""
import json
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import (Client, Daemon, check, expected_tokens, pb, plan_json, run_tests, running, same,  # noqa: E402
                           wait_until, SLOW)

LAYERS = 6
# layers, embedding, head: all on one, single splits, alternation, ends that stand alone
SHAPES = [("gggggg", "g", "g"), ("cccccc", "c", "g"), ("cccccc", "g", "c"), ("gggggg", "c", "c"), ("cccggg", "c", "g"),
          ("gggccc", "g", "c"), ("cgcgcg", "c", "g"), ("gcgcgc", "c", "g"), ("ggcccg", "g", "c"), ("gcccgc", "c", "c")]


def split(shape, *options, faults="", **named):
    homes, embed, head = shape
    return running("--device", "emulated", *options, gpu=True, layers=LAYERS, faults=faults,
                   plan=plan_json(LAYERS, homes, embed, head, **named))


def stream_through(d, count=60, requests=4, disturb=None):
    c = Client(d.endpoint)
    streams = [c.generate([5 + n, 6, 7] * (n * 20 + 1), count, seed=n) for n in range(requests)]
    end = processor.clock() + 60 * SLOW
    while not all(s.ended for s in streams) and processor.clock() < end:
        c.receive(30)
        if disturb:
            disturb(sum(len(s.tokens) for s in streams))
    for n, s in enumerate(streams):
        same(s.tokens, expected_tokens([5 + n, 6, 7] * (n * 20 + 1), count, seed=n), f"stream {n} ({s.error or s.done})")
    return c.ask("status").status


def test_every_order_of_stages_gives_the_expected_tokens():
    for shape in SHAPES:
        with split(shape) as d:
            status = stream_through(d)
            want = sorted({"g": "gpu", "c": "cpu"}[x] for x in set("".join(shape)))
            same([w.name for w in status.workers], want, f"{shape}: workers")
            same([(w.state, w.restarts) for w in status.workers], [("ready", 0)] * len(want), f"{shape}: states")
            same(sorted(set(d.children()) - {"keeper", "worker"}), want, f"{shape}: processes")


def test_64_requests_and_a_small_pool():
    # steps take a millisecond: the first requests are not over before the last ones come
    with split(("cgcgcg", "c", "g"), faults="step_us=1000", slots=64, step_tokens=128, page_count=96) as d:
        c = Client(d.endpoint)
        streams = [(c.generate([2 + n % 90] * (1 + n), 60, seed=n), n) for n in range(64)]
        c.run(*[s for s, _ in streams], timeout=60)
        for s, n in streams:
            same(s.tokens, expected_tokens([2 + n % 90] * (1 + n), 60, seed=n), f"stream {n}")
        check("gives its KV pages" in d.log(), "nothing was preempted: the test tests nothing")
        same(c.ask("status").status.kv_pages_used, 0, "pages in use at the end")


def test_either_worker_killed_mid_stream_costs_no_token():
    for shape in [("cccggg", "c", "g"), ("cgcgcg", "g", "c"), ("cccccc", "c", "g")]:
        for who in "cpu", "gpu":
            with split(shape, faults="step_us=2000") as d:
                killed = []

                def disturb(tokens):
                    if tokens > 50 * (len(killed) + 1) and len(killed) < 3:
                        pid = d.children().get(who)
                        if pid and pid not in killed:
                            os.kill(pid, signal.SIGKILL)
                            killed.append(pid)

                stream_through(d, disturb=disturb)
                check(len(killed) >= 2, f"killed only {len(killed)}")
                # The last one may have been killed when all tokens were on their way already.
                c = Client(d.endpoint)
                wait_until(lambda: all(w.restarts == len(killed) and w.state == "ready"
                                       for w in c.ask("status").status.workers), 5)
                status = c.ask("status").status
                same([w.restarts for w in status.workers], [len(killed)] * 2, "restarts")
                same({w.epoch for w in status.workers}, {len(killed) + 1}, "epochs")
                same([w.kernels for w in status.workers], ["fake reused", "fake"], "weights that were kept")


def test_either_worker_failing_by_itself_costs_no_token():
    for who in "cpu", "gpu":
        for fault, word in [("crash_step=20", "signal 6"), ("hang_step=20", "PING is not answered")]:
            with split(("cgcgcg", "c", "g"), "--step-timeout-ms", 300, faults=f"{who}.{fault} crash_epoch=1") as d:
                status = stream_through(d)
                same([w.epoch for w in status.workers], [2, 2], f"{who} {fault}: epochs")
                check(word in d.log(), f"{who} {fault}: no reason in the log")
                check(f"worker {who} (pid" in d.log(), f"{who} {fault}: the wrong one was blamed")


def test_a_bad_result_is_the_heads_workers():
    with split(("cccggg", "c", "g"), faults="gpu.bad_result=20 crash_epoch=1") as d:
        status = stream_through(d)
        same(status.workers[0].epoch, 2, "epoch")
        check("sampled token" in d.log() and "worker gpu" in d.log(), "no reason in the log")


def test_a_request_that_kills_one_worker_fails_alone():
    with split(("cccggg", "c", "g"), "--restart-limit", 50, faults="cpu.crash_step=1") as d:
        c = Client(d.endpoint)
        s = c.generate([3], 10)
        c.run(s)
        same(s.done.finish_reason, pb.FINISH_ERROR, "reason")
        check("3 workers died" in s.done.detail and "worker cpu" in s.done.detail, s.done.detail)
        check(wait_until(lambda: c.ask("status").status.state == "ready", 10), "not ready again")


def test_one_worker_that_never_starts_is_refused_with_its_reason():
    for fault, code, word in [("gpu.fault_load=1", "capacity", "worker gpu: the fake weights do not fit"),
                              ("cpu.exit_load=1", "peer", "worker cpu: exited with status 9"),
                              ("gpu.bad_abi=1", "mismatch", "ABI")]:
        d = Daemon("--device", "emulated", gpu=True, layers=LAYERS, faults=fault,
                   plan=plan_json(LAYERS, "cccggg", "c", "g"))
        same(processor.ended(d.process, 20 * SLOW), 4, f"{fault}: {d.log()}")
        check(d.ready.startswith(f"error {code} ") and word in d.ready, f"{fault}: {d.ready}")
        same(d.left_behind(), [], "left behind")
        d.close()


def test_the_weights_bell_is_quiet_until_they_were_ready_once():
    """The GPU worker registers the arena's weights when that bell rings: never because of a loader that died."""
    def bells(d):
        return re.findall(r"fake worker gpu: weights bell (\d)", d.log())
    d = Daemon("--device", "emulated", gpu=True, layers=LAYERS, faults="cpu.load_ms=200 cpu.exit_loaded=1",
               plan=plan_json(LAYERS, "cccggg", "c", "g"))
    same(processor.ended(d.process, 20 * SLOW), 4, d.log())
    same(bells(d), ["0"] * 3, "bells at the starts of three lives of a loader that died after it rang")
    d.close()
    with split(("cccggg", "c", "g"), faults="cpu.load_ms=200") as d:
        same(bells(d), ["0"], "bell at the first start")
        os.kill(d.children()["gpu"], signal.SIGKILL)
        wait_until(lambda: len(bells(d)) == 2, 10)
        same(bells(d), ["0", "1"], "bell after weights that are there")
        stream_through(d)


def test_loading_lasts_until_both_are_ready():
    with running("--device", "emulated", gpu=True, layers=LAYERS, faults="gpu.load_ms=600", wait=False,
                 plan=plan_json(LAYERS, "cccggg", "c", "g")) as d:
        c = Client(d.endpoint)
        check(wait_until(lambda: [w.state for w in c.ask("status").status.workers] == ["ready", "loading"], 5), d.log())
        same(c.ask("status").status.state, "loading", "state")
        s = c.generate([3], 3)
        c.run(s)
        same(s.error.code, pb.ERROR_NOT_READY, "code")
        check(d.wait_ready().startswith("ready ipc://"), "ready line")


def test_helmd_killed_leaves_neither_worker():
    with split(("cgcgcg", "c", "g"), faults="step_us=2000") as d:
        c = Client(d.endpoint)
        s = c.generate([3], 400)
        while len(s.tokens) < 3:
            c.receive()
        os.kill(d.pid, signal.SIGKILL)
        d.process.wait()
        check(wait_until(lambda: not d.left_behind(), 10), f"left behind: {d.left_behind()}")


def test_a_new_keeper_keeps_both():
    with split(("cgcgcg", "c", "g")) as d:
        keeper = d.keeper()
        os.kill(keeper, signal.SIGKILL)
        check(wait_until(lambda: d.children().get("keeper") not in (None, keeper), 3), "no new keeper")
        os.kill(d.pid, signal.SIGKILL)
        d.process.wait()
        check(wait_until(lambda: not d.left_behind(), 10), f"left behind: {d.left_behind()}")


def test_sigterm_ends_both_in_order():
    with split(("cgcgcg", "c", "g"), faults="step_us=2000") as d:
        c = Client(d.endpoint)
        s = c.generate([3], 400)
        while len(s.tokens) < 3:
            c.receive()
        same(d.stop(), 0, "exit status")
        same(d.left_behind(), [], "left behind")


def test_cuda_takes_the_gpu_that_the_probe_finds():
    with running("--device", "cuda", gpu=True, faults="probe_vram_mib=1000") as d:
        status = stream_through(d)
        same([(w.name, w.device) for w in status.workers], [("gpu", "a fake")], "workers")
        plan = json.loads(Client(d.endpoint).ask("plan").plan.json)
        same([s["home"] for s in plan["stages"]["decode"]], ["gpu"], "homes")
        same(plan["vram"]["limit"], 1000 << 20, "limit")
        check(status.workers[0].vram_bytes == plan["vram"]["total"], "VRAM in the status")
        check("Fake GPU" in d.log(), "the log does not name it")


def test_auto_takes_a_gpu_that_helps_or_says_why_not():
    for faults, words, workers in [("", ["no GPU", "on the CPU"], ["cpu"]),
                                   ("probe_vram_mib=60", ["Fake GPU", "planned on the CPU alone"], ["cpu"]),
                                   ("probe_vram_mib=1000", ["Fake GPU"], ["gpu"])]:
        with running(gpu=True, faults=faults) as d:
            same([w.name for w in stream_through(d, count=5).workers], workers, f"workers, {faults}")
            for word in words:
                check(word in d.log(), f"'{word}' is not in {d.log()}")


def test_devices_that_cannot_be_had_are_refused_with_numbers():
    for options, faults, status, words in [
            (["--device", "cuda"], "", 4, ["--device cuda", "the fake machine has no GPU"]),
            (["--device", "cuda:3"], "probe_vram_mib=999", 4, ["no device 3"]),
            (["--device", "cuda"], "probe_vram_mib=60", 4, ["of VRAM, has 60.00 MiB (free of", "would be"]),
            (["--device", "cuda", "--vram", "100MiB"], "probe_vram_mib=999", 4, ["has 100.00 MiB (--vram)"]),
            (["--device", "emulated", "--vram", "1MiB"], "", 4, ["has 1.00 MiB (--vram)", "--device cpu"]),
            (["--device", "emulated", "--vram", "100"], "", 2, ["--vram"])]:
        d = Daemon(*options, gpu=True, faults=faults)
        same(processor.ended(d.process, 5 * SLOW), status, f"{options}: {d.log()}")
        for word in words:
            check(word in d.ready, f"{options}: '{word}' is not in '{d.ready}'")
        d.close()


def test_plans_that_cannot_be_had_are_refused():
    for homes, options, word in [("cccggg", ["--device", "cpu"], "the plan needs a GPU: --device cpu"),
                                 ("cccggg", [], "no GPU"),
                                 ("gggggg", ["--device", "emulated", "--vram", "1MiB"], "of VRAM, has 1.00 MiB")]:
        d = Daemon(*options, gpu=True, layers=LAYERS, plan=plan_json(LAYERS, homes, "c", "g"))
        same(processor.ended(d.process, 5 * SLOW), 4, f"{options}: {d.log()}")
        check(word in d.ready, f"{options}: {d.ready}")
        d.close()


if __name__ == "__main__":
    run_tests(globals())
