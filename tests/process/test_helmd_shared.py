#!/usr/bin/python3
"""Dense MLPs of which the GPU has the first rows and the CPU the others, through helmd and both workers on the emulated device: the
references' tokens, by a plan written by hand and by one that the planner makes when it is asked to; workers that are killed; found
prefixes, sessions and drafts; what is refused."""
import json
import os
import signal
import subprocess
import sys
import tempfile

import helmd_harness as h
import processor
import test_golden_cli as golden
from test_helmd_sessions import restore, save

MODEL, LAYERS, ROWS = os.path.join(h.DATA, "golden", "qwen3"), 4, 704
BLOCKS = os.path.join(h.DATA, "golden-gguf", "llama-Q4_K_M", "model.gguf")
_, WORST, MEAN, GAP = golden.CLASSES["bf16"]
DEVICE = h.DEVICE
VRAM = "64M" if DEVICE == "emulated" else "2G"  # with a GPU's context
counts = {True: 0, False: 0}


def check(name, ok, detail=""):
    counts[bool(ok)] += 1
    print("%s %s%s" % ("ok  " if ok else "FAIL", name, "" if ok else "  [%s]" % (detail,)), flush=True)


def agrees(daemon, name, cases):
    differences = []
    for n, case in enumerate(cases):
        found, fine, gap = golden.compare(case, golden.generate(daemon.endpoint, case["prompt"]), GAP, WORST, golden.MARGIN["bf16"])
        differences += found
        check("%s: tokens of case %d" % (name, n), fine, gap)
    mean, worst = sum(differences) / len(differences), max(differences)
    check("%s: log probabilities, mean %.5f, worst %.4f" % (name, mean, worst), mean <= MEAN and worst <= WORST)


def shared_plan(homes="gh" * LAYERS, rows=320, **sizes):
    return h.plan_json(LAYERS, homes, "g", "g", prefill="".join("s" if home == "h" else home for home in homes), prefill_from=17,
                       ring_bytes=4 << 20, shared_rows=rows, **sizes)


def opened(plan, *options, model=MODEL):
    return h.Daemon("--device", DEVICE, "--vram", VRAM, *options, real=True, model=model, plan=plan)


def close(daemon, name):
    check(name + ": helmd ends with 0", daemon.stop() == 0)
    daemon.close()


def plan_of(daemon):
    return json.loads(h.Client(daemon.endpoint).ask("plan").plan.json)


def run_written(cases):
    daemon = opened(shared_plan())
    try:
        agrees(daemon, "written", cases)
        for worker in ("gpu", "cpu"):
            before = daemon.children()
            os.kill(before[worker], signal.SIGKILL)
            check("%s worker killed: another one comes" % worker,
                  h.wait_until(lambda: daemon.children().get(worker, before[worker]) != before[worker], 20))
            agrees(daemon, "%s worker killed" % worker, cases[:1])
        places = {(role, memory) for role, _, memory, *_ in ((p[0], 0, p[2]) for p in plan_of(daemon)["placements"]) if "layers.0.mlp" in role}
        check("each part lies in one memory", places == {("model.layers.0.mlp." + part, memory) for memory, parts in (
            ("vram", ("own_gate_proj.weight", "own_up_proj.weight", "own_down_proj.weight")),
            ("host", ("gate_proj.weight", "up_proj.weight", "down_proj.weight"))) for part in parts}, places)
    finally:
        close(daemon, "written")
    # between other homes, with the ends on the CPU, and drafts: several tokens of a sequence in a step
    plan = dict(shared_plan("ghccshgh", 64), embed="cpu", head="cpu", draft_tokens=3)
    daemon = opened(plan, "--draft-tokens", 3)
    try:
        agrees(daemon, "between others, with drafts", cases[:2])
    finally:
        close(daemon, "between others")


def tokens_of(client, prompt, count=24):
    s = client.generate(prompt, count, ignore_eos=True, logprobs=1)
    client.run(s)
    return [(t.token, t.logprob) for t in s.first], s.done.usage.cached_tokens


def run_prefixes():
    """A prefix that is found, and pages that come back from a session, give the tokens of a prompt that is computed: to the bit, of
    an invariant plan."""
    prompt = [5 + i * 7 % 400 for i in range(100)]
    daemon = opened(shared_plan(invariant=True))
    try:
        c = h.Client(daemon.endpoint)
        first, found = tokens_of(c, prompt)
        again, cached = tokens_of(c, prompt)
        check("a prefix is found", found == 0 and cached >= 64 and again == first, (found, cached))
        session, pages = save(c, prompt)
    finally:
        close(daemon, "prefixes")
    daemon = opened(shared_plan(invariant=True))
    try:
        c = h.Client(daemon.endpoint)
        told = restore(c, prompt[:96], session, pages)
        after, cached = tokens_of(c, prompt)
        check("a session comes back", told == (0, 3, False) and cached == 96 and after == first, (told, cached))
    finally:
        close(daemon, "session")


def run_planned():
    """The planner's own share, of blocks, when it is asked for one: the same tokens as on the CPU."""
    prompt, tokens = [5 + i * 7 % 400 for i in range(40)], {}
    options = ("--ctx", 512, "--parallel", 2, "--activations", "exact", "--prefix-cache", "off")
    for name, device in (("cpu", ("--device", "cpu")), ("shared", ("--device", DEVICE, "--vram", VRAM, "--share", "on"))):
        daemon = h.Daemon(*device, *options, real=True, model=BLOCKS)
        try:
            if name == "shared":
                plan = plan_of(daemon)
                homes = {s["home"] for s in plan["stages"]["decode"] if s["ops"] == "mlp"}
                check("the plan shares MLPs of 768 rows at a whole block", "shared" in homes and plan["shared_rows"] in (256, 512), (homes, plan.get("shared_rows")))
            tokens[name] = [[token for token, _ in tokens_of(h.Client(daemon.endpoint), prompt[:n], 16)[0]] for n in (1, 9, 40)]
        finally:
            close(daemon, name)
    check("its tokens are the CPU's", tokens["cpu"] == tokens["shared"], tokens)


def refused(plan, text, *options, model=MODEL):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(plan, file)
        file.flush()
        run = processor.run([os.path.join(h.BIN, "helm-plan"), "--model", model, "--profile", h.PROFILE, "--vram", "2G", *options,
                             *(["--plan", file.name] if plan else [])], capture_output=True, timeout=60 * h.SLOW)
    said = run.stderr.decode()
    check("refused: " + text, run.returncode != 0 and text in said, said[-300:])


def main():
    cases = [c for c in json.load(open(os.path.join(MODEL, "golden.json")))["cases"] if len(c["prompt"]) < 200]
    cases = cases[:2] if h.SLOW > 1 else cases[:4]
    run_written(cases)
    run_prefixes()
    run_planned()
    refused(shared_plan(rows=ROWS), "cannot be shared at row 704")
    refused(dict(shared_plan(), shared_rows=1 << 30), "'shared_rows'")
    refused(None, "--share on is for dense MLPs", "--share", "on", model=os.path.join(h.DATA, "golden", "mixtral"))
    refused(None, "--share on: the MLP of model.layers.0.mlp.down_proj.weight has 704 rows, must be a multiple of 256 and at least 512",
            "--share", "on", model=os.path.join(h.DATA, "golden", "qwen3"))
    print("%d passed, %d failed" % (counts[True], counts[False]))
    return 1 if counts[False] else 0


if __name__ == "__main__":
    sys.exit(main())
