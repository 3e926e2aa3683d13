#!/usr/bin/python3
"""Activations rounded to int8: helmd --activations, the model's own check, what it keeps of it and when it goes back to exact
ones; on the CPU, and where the emulated device computes a part and the head."""
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processor  # noqa: E402
from helmd_harness import BIN, Client, PROFILE, check, plan_json, run_tests, running, same, wait_until  # noqa: E402

MODEL = os.path.abspath("tests/data/golden-gguf/llama-Q4_K_M/model.gguf")
FAILS = os.path.abspath("tests/data/golden-gguf/qwen3-Q2_K/model.gguf")  # a divergence of more than 0.001
LAYERS = 3  # of both
SIZES = ["--threads", 2, "--ctx", 512]
CPU = ["--device", "cpu", *SIZES]
PROMPT = [(7 * i * i + 3) % 2048 for i in range(23)]
COUNT = 16
CHECKING = "checking what rounding them to int8 does"
FOUND = re.compile(r"KL divergence (\S+) over (\d+) positions, (\d+) of them with one token a step")
MIXED = dict(homes="cgc", embed="c", head="g")  # the head's rows are copied from the device


class World:
    """A cache folder, and a profile by which the CPU is faster with int8."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.env = {"XDG_CACHE_HOME": self.folder.name, "STATE_DIRECTORY": ""}
        self.profile = os.path.join(self.folder.name, "int8.json")
        with open(PROFILE) as f:
            profile = json.load(f)
        rate = profile["cpu"]["gemv"]["value"]
        profile["formats"] = {f: {"cpu_gemv": {"value": rate / 2, "source": "sheet"},
                                  "cpu_int8_gemv": {"value": rate, "source": "sheet"}} for f in ("q4_k", "q6_k")}
        with open(self.profile, "w") as f:
            json.dump(profile, f)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.folder.cleanup()

    def running(self, *options, **named):
        return running(*options, **{"real": True, "model": MODEL, "env": self.env, "profile": self.profile, **named})

    def verdicts(self):
        return glob.glob(os.path.join(self.folder.name, "helm", "profiles", "activations-*.json"))

    def positions(self):
        """Positions of the check so far."""
        return self.verdict()[1]["positions"] if self.verdicts() else 0

    def verdict(self):
        """The path of the one that is kept, and what it says."""
        paths = self.verdicts()
        same(len(paths), 1, "verdicts that are kept")
        with open(paths[0]) as f:
            return paths[0], json.load(f)

    def rewrite(self, **members):
        path, verdict = self.verdict()
        with open(path, "w") as f:
            json.dump({**verdict, **members}, f)


def decode(daemon):
    """[(token, {token: logprob})] of a greedy request, and the connection."""
    c = Client(daemon.endpoint)
    s = c.generate(PROMPT, COUNT, logprobs=20, ignore_eos=True)
    c.run(s)
    same(len(s.tokens), COUNT, f"tokens: {s.error or s.done}")
    return [(x.token, {t.token: t.logprob for t in x.top}) for x in s.first], c


def tokens(got):
    return [token for token, _ in got]


def status(client):
    return client.ask("status").status.activations


def checked(daemon):
    """Waits for the end of the check, which a slow processor takes between requests."""
    c = Client(daemon.endpoint)
    check(wait_until(lambda: "between requests" not in status(c), 240), status(c))


def exact(world, *options, **named):
    with world.running(*options, "--exact", **named) as d:
        got, c = decode(d)
        same(status(c), "exact, as asked", "status")
        check(CHECKING not in d.log(), "there was a check")
        return got


def inputs(client):
    return json.loads(client.ask("plan").plan.json)["activations"]


def near(got, expected, what):
    """Rounding moves logprobs, a little: of the steps up to the first other token."""
    worst = 0
    for (mine, top), (token, wanted) in zip(got, expected):
        worst = max([worst] + [abs(top[t] - wanted[t]) for t in list(wanted)[:10] if t in top])
        if mine != token:
            break
    check(1e-5 < worst < 0.4, f"{what}: logprobs off by {worst}")


def helm_cli(daemon, command):
    return subprocess.run([os.path.join(BIN, "helm-cli"), "--connect", daemon.endpoint, command], capture_output=True,
                          text=True, check=True).stdout


def asked(world, *options, **named):
    """--activations int8: measured at the first start, kept for the second."""
    expected = exact(world, *options, **named)
    for start in range(2):
        with world.running(*options, "--activations", "int8", **named) as d:
            checked(d)
            got, c = decode(d)
            near(got, expected, "int8")
            text = status(c)
            same(CHECKING in d.log(), start == 0, f"a check at start {start}")
            same(inputs(c)["cpu"], "int8", "the plan")
            check("int8" in c.ask("status").status.workers[0].kernels, "the worker's kernels")
            same("blocks multiplied with int8 activations on cpu" in helm_cli(d, "plan"), True, "helm-cli plan")
            check("products   " + status(c) in helm_cli(d, "status"), "helm-cli status")
        check(text.startswith("int8 on cpu, as asked: KL divergence "), text)
        kl, positions, one = FOUND.search(text).groups()
        check(0 < float(kl) < 0.02 and 128 <= int(positions) <= 512 and int(one) >= 16, text)
        found = world.verdict()[1]
        check(abs(max(found["one_token_kl"], found["tokens_kl"]) / float(kl) - 1) < 0.01, f"{found}: {text}")
        same((found["positions"], found["one_token_positions"]), (int(positions), int(one)), "positions")


def test_int8_as_asked_is_measured_once():
    with World() as world:
        asked(world, *CPU)


def test_int8_beside_a_device_that_has_the_head():
    with World() as world:
        plan = plan_json(LAYERS, **MIXED)
        asked(world, "--device", "emulated", "--threads", 2, plan=plan)


def auto(world, *options, **named):
    """By itself, int8 where it is faster and the check passes; else exact, with exact's tokens."""
    expected = exact(world, *options, **named)
    with world.running(*options, **named) as d:
        checked(d)
        got, c = decode(d)
        text, log = status(c), d.log()
        failed = float(FOUND.search(text).group(1)) > 0.001
        check(CHECKING in log, "no check")
        check(text.startswith("exact: int8 on cpu would be faster, but: KL" if failed else "int8 on cpu: KL"), text)
        same(inputs(c)["cpu"], "exact" if failed else "int8", "the plan")
        if failed:
            same(got, expected, "tokens and logprobs after a failed check")
    # what was found is believed at the next start, whatever it says
    world.rewrite(one_token_kl=0.0005, tokens_kl=0.0009)
    with world.running(*options, **named) as d:
        got, c = decode(d)
        near(got, expected, "int8")
        check(status(c).startswith("int8 on cpu: KL divergence 0.0009 over"), status(c))
        check(CHECKING not in d.log(), "checked again")
    world.rewrite(one_token_kl=0.0005, tokens_kl=0.0011)
    with world.running(*options, **named) as d:
        got, c = decode(d)
        same(got, expected, "tokens and logprobs after a check that failed before")
        check(status(c).startswith("exact: int8 on cpu would be faster, but: KL divergence 0.0011 over"), status(c))
        check(CHECKING not in d.log(), "checked again")


def test_auto_goes_by_the_check():
    with World() as world:
        auto(world, *CPU)


def test_auto_beside_a_device_that_has_the_head():
    with World() as world:
        plan = plan_json(LAYERS, **MIXED, activations={"cpu": "int8"})
        auto(world, "--device", "emulated", "--threads", 2, plan=plan)


def test_without_a_gain_there_is_no_check():
    with World() as world:
        expected = exact(world, *CPU)
        with world.running(*CPU, profile=PROFILE) as d:
            got, c = decode(d)
            same(got, expected, "tokens and logprobs")
            same(status(c), "exact: int8 would gain nothing by what the profile says", "status")


def test_files_that_are_no_verdict_are_measured_anew():
    with World() as world:
        with world.running(*CPU, "--activations", "int8") as d:
            checked(d)
        path, good = world.verdict()
        for text in "{", json.dumps({**good, "key": "00"}), json.dumps({**good, "positions": 1}):
            with open(path, "w") as f:
                f.write(text)
            with world.running(*CPU, "--activations", "int8") as d:
                check(CHECKING in d.log() and "warn: activations: " in d.log(), "it was believed")
                checked(d)
            same(world.verdict()[1]["positions"] >= 128, True, "what is kept")


def test_nothing_is_served_before_it_is_decided_and_a_dead_worker_is_replaced():
    with World() as world:  # the reference is slow enough to be met in the middle
        with world.running(*CPU, "--kv-tokens", 512, "--activations", "int8", "--kernels", "ref", wait=False) as d:
            check(wait_until(lambda: CHECKING in d.log(), 30), "no check")
            c = Client(d.endpoint)
            early = c.generate(PROMPT, 4)
            c.run(early)
            check(early.error and "being checked" in early.error.message, f"{early.error}: {early.tokens}")
            same(c.ask("status").status.state, "loading", "state")
            os.kill(d.children()["cpu"], signal.SIGKILL)
            check(d.wait_ready().startswith("ready "), d.log()[-2000:])
            same(d.log().count(CHECKING), 2, "checks")
            # a check that takes longer than its time goes on between requests
            check(wait_until(lambda: status(c).startswith("int8 on cpu, as asked: KL"), 60), status(c))
            check(len(decode(d)[0]) == COUNT, "tokens")


def late(world, *options):
    """A daemon whose check was too slow to end before requests are served: its worker stands still meanwhile."""
    d = world.running(*CPU, "--kernels", "ref", *options, wait=False).__enter__()
    check(wait_until(lambda: CHECKING in d.log(), 30), "no check")
    time.sleep(0.4)  # some positions
    os.kill(d.children()["cpu"], signal.SIGSTOP)
    time.sleep(10.5)
    check("ready" not in (d.ready or ""), d.ready)
    os.kill(d.children()["cpu"], signal.SIGCONT)
    check(d.wait_ready().startswith("ready "), d.log()[-2000:])
    return d


def goes_on(d, client, until):
    """The check between requests, interrupted by a few; the last status."""
    n, end = 0, processor.clock() + 100
    while processor.clock() < end:
        text = status(client)
        if until in text:
            return text
        check(text.startswith("exact until the check of int8 on cpu has ended"), text)
        time.sleep(0.5)
        n += 1
        if n <= 10 and n % 5 == 0:  # idle for more than 2 s: it is at work again
            s = client.generate(PROMPT, 2, ignore_eos=True)
            client.run(s)
            same(len(s.tokens), 2, f"tokens: {s.error or s.done}")
    raise AssertionError(f"it never ended: {text}")


def test_a_slow_check_is_finished_between_requests():
    with World() as world:
        expected = exact(world, *CPU, "--kernels", "ref")
        d = late(world, "--invariant", "off")
        try:
            check("it goes on between requests" in d.log(), d.log()[-2000:])
            got, c = decode(d)
            same(got, expected, "tokens and logprobs while it is not decided")
            check(world.positions() < 128, world.positions())
            text = goes_on(d, c, "int8 on cpu: KL")
            positions = int(FOUND.search(text).group(2))
            check(positions >= 128, text)
            near(decode(d)[0], expected, "int8, and no page that was computed exact")
            same(world.verdict()[1]["positions"], positions, "positions that are kept")
        finally:
            d.stop()
            d.close()
        with world.running(*CPU, "--kernels", "ref") as d:
            check(CHECKING not in d.log(), "checked again")


def test_an_invariant_plan_waits_for_the_next_start():
    with World() as world:
        expected = exact(world, *CPU, "--kernels", "ref", "--invariant", "on")
        d = late(world, "--invariant", "on")
        try:
            same(decode(d)[0], expected, "tokens and logprobs while it is not decided")
            c = Client(d.endpoint)
            goes_on(d, c, "exact until the next start, since the plan is invariant")
            same(decode(d)[0], expected, "tokens and logprobs once it is")
        finally:
            d.stop()
            d.close()
        with world.running(*CPU, "--kernels", "ref", "--invariant", "on") as d:
            check(CHECKING not in d.log(), "checked again")
            check(status(Client(d.endpoint)).startswith("int8 on cpu: KL"), "the verdict is not used")


def test_a_check_that_was_interrupted_goes_on_at_the_next_start():
    with World() as world:
        d = late(world, "--invariant", "off")
        d.stop()
        d.close()
        before = world.positions()
        check(before < 128, before)
        with world.running(*CPU, "--kernels", "ref") as d:
            check(CHECKING in d.log(), "no check")
            # on a busy machine it may have to end between requests, too
            check(wait_until(lambda: world.positions() >= 128, 60), f"{before} and {world.positions()} positions")


def test_a_verdict_that_cannot_be_kept_is_no_reason_not_to_serve():
    with World() as world:
        for where in "/dev/null", os.path.join(world.folder.name, "int8.json"):
            with world.running(*CPU, env={**world.env, "XDG_CACHE_HOME": where}) as d:
                check(FOUND.search(status(Client(d.endpoint))), d.log())
                check("warn: activations: what the check found cannot be kept" in d.log(), d.log())
        with world.running(*CPU, env={"XDG_CACHE_HOME": "", "STATE_DIRECTORY": "", "HOME": ""}) as d:
            check("cannot be kept" in d.log() and "none of STATE_DIRECTORY" in d.log(), d.log())


def test_a_plan_that_cannot_be_made_again_ends_the_daemon():
    with World() as world:
        plan = plan_json(LAYERS, "ccc", "c", "c", activations={"cpu": "int8"}, page_count=32)
        with world.running("--device", "cpu", "--threads", 2, "--kernels", "ref", model=FAILS, plan=plan, wait=False) as d:
            check(wait_until(lambda: CHECKING in d.log(), 30), "no check")
            os.unlink(os.path.join(d.base, "plan.json"))
            c = Client(d.endpoint)
            r = c.request()
            r.plan.SetInParent()
            for _ in range(300):  # whenever the end comes, one of these is next
                c.socket.send(r.SerializeToString())
            check(d.wait_ready().startswith("error "), d.log()[-2000:])
            same(processor.ended(d.process, 30), 4, "exit status")
            check(wait_until(lambda: not d.left_behind(), 5), d.left_behind())


def test_a_cache_that_is_too_small_for_a_check():
    with World() as world:
        small = ["--device", "cpu", "--threads", 2, "--ctx", 64, "--kv-tokens", 64]
        expected = exact(world, *small)
        with world.running(*small) as d:
            got, c = decode(d)
            same(got, expected, "tokens and logprobs")
            check("it could not be checked" in status(c), status(c))
            check("too small for a check" in d.log(), "no warning")


def helm_plan(world, *options):
    out = subprocess.run([os.path.join(BIN, "helm-plan"), "--model", MODEL, "--profile", world.profile, "--strategy",
                          "all-cpu", *options], env={**os.environ, **world.env}, capture_output=True, text=True)
    same(out.returncode, 0, out.stderr)
    return out.stdout


def test_helm_plan_shows_which_and_why():
    with World() as world:
        def rate(*options):
            plan = json.loads(helm_plan(world, "--json", *options))
            return plan["decode_tok_s"]["value"], plan["activations"]["cpu"], plan["activations_why"]
        fast, slow = rate(), rate("--exact")
        same((fast[1:], slow[1:]), (("int8", "int8 on cpu, once the model's own check has passed"),
                                    ("exact", "exact, as asked")), "without a verdict")
        check(fast[0] > 1.2 * slow[0], f"{fast[0]} and {slow[0]} token/s")
        with world.running(*CPU, "--activations", "int8") as d:
            check(d.ready, "it runs")
        world.rewrite(tokens_kl=0.5)
        got = rate()
        check(got[:2] == slow[:2] and "KL divergence 0.5 over" in got[2], got)
        check("products exact: int8 on cpu would be faster" in helm_plan(world), "the table")


if __name__ == "__main__":
    run_tests(globals())
