#!/usr/bin/python3
"""Drafts by the model's own layer (docs/speculation.md) through real processes: every answer has the tokens, and in an invariant plan
the logprobs, that it has without. draft_models.py makes the checkpoints: of one the layer is always right, of others as often as the
model's layers add little."""
import json
import os
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from draft_models import draft_model  # noqa: E402
from hybrid_files import multimodal, write_gguf  # noqa: E402
from helmd_harness import BIN, DATA, DEVICE, PROFILE, Client, Daemon, check, pb, plan_json, run_tests, running, same, status_of, wait_until  # noqa: E402
from test_families import write_gguf as write_family  # noqa: E402

OFF, NGRAM, MTP, AUTO = pb.SPECULATE_OFF, pb.SPECULATE_NGRAM, pb.SPECULATE_MTP, pb.SPECULATE_AUTO
EXACT = ("--kv-dtype", "f32", "--threads", 2, "--activations", "exact", "--kernels", "avx2")
FOLDER = tempfile.mkdtemp(prefix="helm-mtp-")
PROMPTS = [[5 + 7 * n + k * k % 50 for k in range(length)] for n, length in enumerate((3, 17, 40))]
SAMPLINGS = {"greedy": {}, "seeded": {"temperature": 1.5}, "penalties": {"temperature": 0.9, "top_k": 40, "repetition_penalty": 1.3,
                                                                         "presence_penalty": 0.4, "frequency_penalty": 0.3}}


# Homes of the last three or all of four layers and of the one that makes drafts, of the embedding and of the head: on the device alone, with weights
# that cross the link, and on both processors with either of them at the ends.
PLANS = {"gpu": ("ggggg", "g", "g"), "stream": ("ssssg", "g", "g"), "split": ("gcgcg", "g", "g"), "cpu ends": ("gcgcc", "c", "c"),
         "gpu head": ("cgcgg", "c", "g"), "cpu head": ("cgcgc", "g", "c")}


def model(name, adds, own_adds=None):
    folder = os.path.join(FOLDER, f"{name}{adds}{own_adds}")
    return folder if os.path.exists(folder) else draft_model(name, folder, adds, own_adds)


def start(name, adds, *options, kind="cpu", invariant="on", speculate="mtp", ctx=512, own_adds=None, **named):
    options = (*EXACT, "--speculate", speculate, "--invariant", invariant, *options)
    if kind == "cpu":
        return running(*options, "--ctx", ctx, "--device", "cpu", real=True, model=model(name, adds, own_adds), **named)
    homes, embed, head = PLANS[kind]
    homes = homes if name.startswith("qwen") else homes[1:]
    plan = plan_json(len(homes), homes, embed, head, kv_dtype="f32", context_tokens=ctx, ring_bytes=1 << 20, draft_layers=1, draft_tokens=3)
    return running(*options, "--device", DEVICE, real=True, model=model(name, adds, own_adds), plan=plan, **named)


def answer(c, prompt, count, **fields):
    s = c.generate(prompt, count, seed=7, ignore_eos=True, **fields)
    c.run(s)
    check(not s.error, s.error)
    return s


def used(stream):
    return stream.done.usage.drafted_tokens, stream.done.usage.accepted_tokens


def test_a_layer_that_is_right_is_believed():
    count = 60
    for name in ("qwen35", "qwen35moe", "glm4moe", "deepseekv3", "glm47flash"):
        with start(name, None) as d:
            c = Client(d.endpoint)
            for title, sampling in SAMPLINGS.items():
                plain = answer(c, PROMPTS[1], count, speculate=OFF, sampling=sampling)
                got = answer(c, PROMPTS[1], count, sampling=sampling)
                drafted, right = used(got)
                same((got.tokens, used(plain)), (plain.tokens, (0, 0)), f"{name} {title}")
                # 15 steps of 4 tokens; fewer drafts at the end of a page
                check(drafted >= 36 and right >= drafted - 3, f"{name} {title}: {right} of {drafted} drafts were right")
            st = status_of(d)
            same((st.speculate, st.draft_tokens), ("mtp", 3), "status")


def check_model(name, adds, *titles, kind="cpu", count=40, least=0.1, most=0.95):
    with start(name, adds, kind=kind) as d:
        c, drafted, right = Client(d.endpoint), 0, 0
        for title in titles:
            fields = {"sampling": SAMPLINGS[title], "logprobs": 2}
            plain = [answer(c, p, count, speculate=OFF, **fields) for p in PROMPTS]
            for n, s in enumerate(plain):
                got = answer(c, PROMPTS[n], count, **fields)
                same(got.tokens, s.tokens, f"{name} {title}: prompt {n} alone")
                same([t.logprob for t in got.first], [t.logprob for t in s.first], f"{name} {title}: logprobs of prompt {n}")
                drafted += used(got)[0]
                right += used(got)[1]
            streams = [c.generate(p, count, seed=7, ignore_eos=True, **fields) for p in PROMPTS]
            c.run(*streams)
            same([s.tokens for s in streams], [s.tokens for s in plain], f"{name} {title}: a batch")
            check(all(used(s)[0] for s in streams), f"{name} {title}: drafts of a batch: {[used(s) for s in streams]}")
        check(least * drafted < right < most * drafted, f"{name}: {right} of {drafted} drafts were right")
        plain = [answer(c, p, 2 * count, speculate=OFF) for p in PROMPTS]
        streams = [c.generate(p, 2 * count, seed=7, ignore_eos=True) for p in PROMPTS]
        killed = 0
        while not all(s.ended for s in streams):
            c.receive(60)
            if sum(len(s.tokens) for s in streams) > (killed + 1) * count and killed < 2:
                os.kill(d.children()["worker"], signal.SIGKILL)
                killed += 1
                wait_until(lambda: status_of(d).restarts_total >= killed and status_of(d).state == "ready", 30)
        same([s.tokens for s in streams], [s.tokens for s in plain], f"{name}: {killed} workers killed")


def test_answers_are_the_same():
    check_model("qwen35", -4, *SAMPLINGS)
    check_model("qwen35moe", -4, "greedy", "seeded")
    check_model("qwen3next", -4, "greedy")
    check_model("glm4moe", -6, *SAMPLINGS)
    check_model("deepseekv3", -6, "greedy", "seeded")


def test_answers_are_the_same_on_a_device():
    for kind, titles in (("gpu", SAMPLINGS), ("stream", ["greedy"]), ("split", ["seeded"]), ("gpu head", ["greedy"]), ("cpu head", ["greedy"]),
                         ("cpu ends", ["penalties"])):
        check_model("qwen35", -4, *titles, kind=kind)
    check_model("qwen35moe", -4, "seeded", kind="gpu")
    for kind in ("gpu", "split"):
        check_model("glm4moe", -6, "seeded", kind=kind)
        check_model("deepseekv3", -6, "greedy", kind=kind)


def test_a_device_makes_the_drafts_that_a_cpu_makes():
    """The layer adds something, by attention and by an MLP or experts: as many drafts are right, but for choices between equals."""
    for name, adds in ("qwen35", -5), ("qwen35moe", -5), ("glm4moe", -6), ("deepseekv3", -6):
        seen = []
        for kind in ("cpu", "gpu", "split"):
            with start(name, adds, kind=kind, own_adds=-3) as d:
                c = Client(d.endpoint)
                seen.append([used(answer(c, p, 120))[1] for p in PROMPTS])
        print(f"{name}: right drafts {seen}")
        check(all(abs(sum(s) - sum(seen[0])) <= sum(seen[0]) / 20 for s in seen), f"{name}: right drafts {seen}")
        check(sum(seen[0]) > 30, f"{name}: right drafts {seen}")
    for kind in PLANS:
        with start("qwen35", None, kind=kind) as d:
            drafted, right = used(answer(Client(d.endpoint), PROMPTS[2], 60, sampling=SAMPLINGS["seeded"]))
            check(drafted >= 36 and right >= drafted - 3, f"{kind}: {right} of {drafted} drafts were right")


def test_experts_in_both_memories():
    """Few slots, whose experts move; the layer's own experts lie in VRAM. Tokens, and how many drafts are right, as without such slots."""
    plans = {"all layers": ("gmgmgmgmgg", None), "two, prompts by a list of their own": ("ggcmccgmgg", "ggssssgsgg")}
    seen = []
    for title, (homes, prefill) in {"none": ("ggggg", None), **plans}.items():
        more = {"mixed": {"slots": 2, "direct_permille": 300, "moves": 2}} if "m" in homes else {}
        plan = plan_json(5, homes, "g", "g", prefill, 20 if prefill else None, kv_dtype="f32", ring_bytes=1 << 20, draft_layers=1,
                         draft_tokens=3, **more)
        with running(*EXACT, "--speculate", "mtp", "--device", DEVICE, real=True, model=model("qwen35moe", -4), plan=plan) as d:
            c = Client(d.endpoint)
            plain = [answer(c, p, 40, speculate=OFF).tokens for p in PROMPTS]
            streams = [answer(c, p, 40) for p in PROMPTS]
            same([s.tokens for s in streams], plain, f"{title}: tokens")
            seen.append([used(s) for s in streams])
            batch = [c.generate(p, 40, seed=7, ignore_eos=True) for p in PROMPTS]
            c.run(*batch)
            same([s.tokens for s in batch], plain, f"{title}: a batch")
    same(seen[1:], seen[:1] * len(plans), "drafts, and right ones")
    check(all(right > 5 for _, right in seen[0]), f"right drafts: {seen[0]}")


def test_the_planner_places_the_layer_with_the_head():
    """Whatever it is asked for: one device, weights that cross the link, a memory too small for all layers, experts in both memories. A
    cache in two tiers is refused."""
    asked = ({}, {"--strategy": "stream"}, {"--vram": "13MiB"}, {"--strategy": "mixed"})
    for more in asked:
        options = [x for pair in more.items() for x in pair]
        with running(*EXACT, "--device", "emulated", "--speculate", "mtp", "--ctx", 512, *options, real=True, model=model("qwen35moe", None)) as d:
            c = Client(d.endpoint)
            plan = json.loads(c.ask("plan").plan.json)
            last = plan["stages"]["decode"][-1]
            same((plan["draft_layers"], last["layers"][1], last["home"]), (1, 4, plan["head"]), f"{more}: {plan['stages']}")
            same("mixed" in plan, more.get("--strategy") == "mixed", f"{more}: experts in both memories")
            drafted, right = used(answer(c, PROMPTS[1], 40))
            check(drafted >= 24 and right >= drafted - 3, f"{more}: {right} of {drafted} drafts were right")
    d = Daemon(*EXACT, "--device", "emulated", "--speculate", "mtp", "--kv-tiers", "two", real=True, model=model("qwen35", None))
    check("has one tier" in d.ready, d.ready)
    d.close()


def test_each_length_of_an_answer_and_each_number_of_drafts():
    for most in (1, 5, 15):
        with start("qwen35", -4, "--draft-tokens", most) as d:
            c = Client(d.endpoint)
            want = answer(c, PROMPTS[0], 20, speculate=OFF).tokens
            for count in range(1, 20):
                s = answer(c, PROMPTS[0], count)
                same((s.tokens, s.done.usage.completion_tokens), (want[:count], count), f"{count} tokens with {most} drafts")


def test_many_sequences_share_a_step():
    """More of them than a step has room for drafts of; some without; answers to long prompts in between."""
    prompts = [[3 + n, 4, 5 + n % 3] * (1 + 3 * (n % 6)) for n in range(20)]
    with start("qwen35", -4, "--parallel", 12) as d:
        c = Client(d.endpoint)
        plain = [answer(c, p, 30, speculate=OFF).tokens for p in prompts]
        streams = [c.generate(p, 30, seed=7, ignore_eos=True, speculate=(MTP, OFF, NGRAM, MTP)[n % 4]) for n, p in enumerate(prompts)]
        c.run(*streams)
        same([s.tokens for s in streams], plain, "tokens")


def test_pages_that_others_computed_are_gone_on_from():
    """A second turn finds the first one's pages, those of drafts among them; so does another prompt that begins alike."""
    with start("qwen35", -4, invariant="off") as d:
        c = Client(d.endpoint)
        first = answer(c, PROMPTS[2], 120, speculate=OFF).tokens
        turn = PROMPTS[2] + first + [5, 6]
        want = answer(c, turn, 40, speculate=OFF).tokens
    with start("qwen35", -4, invariant="off") as d:
        c = Client(d.endpoint)
        same(answer(c, PROMPTS[2], 120).tokens, first, "the first turn")
        second = answer(c, turn, 40)
        same(second.tokens, want, "the second turn")
        check(second.done.usage.cached_tokens >= 64 and used(second)[1] > 0, f"{second.done.usage.cached_tokens} found, {used(second)}")


def test_preempted_sequences_keep_their_tokens():
    prompts = [[6 + n, 7] * 20 for n in range(3)]
    with start("qwen35", -4, "--kv-tokens", 320, "--parallel", 3, ctx=256) as d:
        c = Client(d.endpoint)
        wants = [answer(c, p, 150, speculate=OFF).tokens for p in prompts]
        streams = [c.generate(p, 150, seed=7, ignore_eos=True) for p in prompts]
        c.run(*streams)
        same([s.tokens for s in streams], wants, "tokens")
        check(status_of(d).preemptions_total > 0, "nothing was preempted")


def test_every_form_of_a_checkpoint_has_the_layer():
    """As published, and as a GGUF file: the same answers by as many right drafts."""
    for name in ("qwen35", "qwen35moe"):
        plain = model(name, -4)
        forms = (plain, multimodal(plain, plain + "-outer"), write_gguf(plain + ".gguf", plain))
        seen = []
        for form in forms:
            with running(*EXACT, "--device", "cpu", "--speculate", "mtp", real=True, model=form) as d:
                got = answer(Client(d.endpoint), PROMPTS[1], 60)
                seen.append((got.tokens, used(got)))
        same(seen[1:], seen[:1] * 2, f"{name}: tokens, drafts and right ones")
    for name in ("glm4moe", "deepseekv3", "glm47flash"):
        plain, seen = model(name, -6), []
        write_family(name, plain + ".gguf", folder=os.path.abspath(plain))
        for form in (plain, plain + ".gguf"):
            with running(*EXACT, "--device", "cpu", "--speculate", "mtp", real=True, model=form) as d:
                got = answer(Client(d.endpoint), PROMPTS[1], 60)
                seen.append((got.tokens, used(got)))
        same(seen[1], seen[0], f"{name}: tokens, drafts and right ones")


def plan_of(*options, **named):
    with start("qwen35", -4, "--kv-tokens", 1024, *options, **named) as d:
        return json.loads(Client(d.endpoint).ask("plan").plan.json)


def test_the_ledger_counts_the_layer_and_its_cache():
    """The same plan with and without: weights of the layer as they lie in the file, pages of one layer more."""
    without, plan = plan_of("--draft-tokens", 3, speculate="ngram"), plan_of()
    same((without["layers"], without.get("draft_layers", 0), plan["layers"], plan["draft_layers"]), (4, 0, 5, 1), "layers")
    lines = [{line["what"].split(",")[0]: line["bytes"] for line in p["host"]["lines"]} for p in (without, plan)]
    hidden, inner, heads, dim = 64, 96, 2, 64
    matrices = hidden * (2 * hidden + (2 * heads + 2) * dim + heads * dim + 3 * inner)
    weights = [sum(v for k, v in l.items() if "weights" in k) for l in lines]
    check(2 * matrices <= weights[1] - weights[0] <= 2 * matrices + (4 << 20), f"{weights[1] - weights[0]} bytes more of weights, not {2 * matrices}")
    cache = [sum(v for k, v in l.items() if "KV" in k) for l in lines]
    same(cache[1] >= 2 * cache[0] - (4 << 20), True, f"the cache of one layer and of two: {cache}; {lines}")
    same(plan["host"]["total"] > without["host"]["total"], True, "the totals")


def helm_plan(*options, profile=PROFILE, adds=-4):
    run = subprocess.run([os.path.join(BIN, "helm-plan"), "--profile", profile, "--model", model("qwen35", adds), *map(str, options)],
                         capture_output=True, text=True)
    same(run.returncode, 0, f"helm-plan {options}: {run.stderr}")
    return run.stdout


def test_helm_plan_makes_and_reads_plans_with_the_layer():
    without, made = (json.loads(helm_plan("--json", "--draft-tokens", 3, "--speculate", s)) for s in ("off", "mtp"))
    steps = [[row["step_ms"] for row in p["with_drafts"]] for p in (without, made)]
    check(all(a < b for a, b in zip(*steps)) and steps[1] == sorted(steps[1]), f"the layer takes time, and so does each draft: {steps}")
    same([s["layers"] for s in made["stages"]["decode"]][-1], [4, 4], "the layer's stage")
    path = os.path.join(FOLDER, "made.json")
    with open(path, "w") as f:
        json.dump(made, f)
    again = json.loads(helm_plan("--json", "--plan", path))
    same([again[k] for k in ("layers", "draft_layers", "stages")], [made[k] for k in ("layers", "draft_layers", "stages")], "read again")
    check("  4 " in helm_plan("--plan", path), "the row of the layer's stage")
    with running("--kernels", "avx2", "--threads", 2, "--speculate", "auto", "--device", "emulated", real=True, model=model("qwen35", -4), plan=made) as d:
        check(len(answer(Client(d.endpoint), PROMPTS[0], 10).tokens) == 10, "helmd takes it")


def test_the_layer_is_read_only_if_it_is_asked_for():
    with start("qwen35", -4, "--draft-tokens", 3, speculate="ngram") as d:
        c = Client(d.endpoint)
        s = c.generate(PROMPTS[0], 4, speculate=MTP)
        c.run(s)
        check("--speculate mtp" in s.error.message, s.error)
        check("mtp." in d.log(), "tensors that are not read")
    for folder in (os.path.join(DATA, "golden", "qwen35"), None):
        d = Daemon("--device", "cpu", "--speculate", "mtp", *EXACT, real=True, **({"model": folder} if folder else {}))
        check("--speculate mtp" in d.ready and "no layer that makes drafts" in d.ready, d.ready)
        d.close()


# ---- auto ----

STEP_US, TOKEN_US, DRAFT_US = 2000, 200, 300  # of a fake worker's step, of each of its tokens, of each draft that it makes


def priced(right, *options, prediction=None, count=300):
    """Three answers by fake workers whose drafts are right so often (of 1,000): tokens, drafts and right drafts of each."""
    plan = plan_json(5, "ccccc", "c", "c", kv_dtype="f32", draft_layers=1, draft_tokens=15)
    faults = f"step_us={STEP_US} token_us={TOKEN_US} draft_us={DRAFT_US} right_permille={right}"
    with running("--device", "cpu", "--kv-dtype", "f32", "--speculate", "auto", *options, model=model("qwen35", -4), faults=faults, plan=plan) as d:
        c = Client(d.endpoint)
        streams = [answer(c, [5 + n, 6, 7], count, prediction=prediction and prediction[n]) for n in range(3)]
        st = status_of(d)
        same((st.tokens_drafted_total, st.tokens_accepted_total), tuple(map(sum, zip(*map(used, streams)))), "status")
        return [s.tokens for s in streams], [used(s) for s in streams]


def test_auto_makes_as_many_drafts_as_pay():
    """By nominal prices: the fastest of all fixed numbers, as expected, and the chosen ones. Sleeps of a busy machine are longer, and the
    choice goes by what was measured. test_draft_count.c holds the choice to 3 %, with prices that are right."""
    tokens, mean = [], []
    for permille in (0, 500, 800, 1000):
        right, (made, drafts) = permille / 1000, priced(permille)
        drafted, kept, count = sum(d for d, _ in drafts), sum(k for _, k in drafts), sum(map(len, made))
        spent = ((count - kept) * (STEP_US + TOKEN_US) + drafted * (TOKEN_US + DRAFT_US)) / count
        best, most = min(((STEP_US + TOKEN_US + d * (TOKEN_US + DRAFT_US)) / (1 + sum(right**i for i in range(1, d + 1))), d) for d in range(16))
        print(f"right {right}: {drafts}, {spent / best:.3f} of the time with {most} drafts")
        check(spent <= (1.02 if not permille else 1.2) * best, f"right {right}: {spent} us a token, {best} with {most} drafts")
        tokens.append(made)
        mean.append(drafted / (count - kept))
    same(tokens[1:], tokens[:1] * 3, "tokens")
    check(mean[0] < 0.05 and mean[1] > 0.5 and mean[2] > mean[1] and mean[3] > 7, f"drafts of a step: {mean}")


def test_auto_takes_drafts_that_are_free_first():
    """The text is predicted, and the layer always wrong."""
    answers, _ = priced(0, count=120)
    again, drafts = priced(0, prediction=answers, count=120)
    same(again, answers, "tokens")
    check(all(kept > 60 for _, kept in drafts), f"drafts of a prediction, and right ones: {drafts}")


def slow_memory(folder):
    """The described machine with memory so slow that a step takes as long as its weights are read."""
    with open(PROFILE) as f:
        profile = json.load(f)
    profile["cpu"]["gemv"]["value"] = profile["cpu"]["gemv_beside"]["value"] = 1e8
    path = os.path.join(folder, "slow.json")
    with open(path, "w") as f:
        json.dump(profile, f)
    return path


def test_auto_reads_the_layer_where_its_forecast_is_faster():
    for profile, layers in ((slow_memory(FOLDER), 1), (PROFILE, 0)):
        with start("qwen35", None, speculate="auto", profile=profile) as d:
            c = Client(d.endpoint)
            same(json.loads(c.ask("plan").plan.json).get("draft_layers", 0), layers, d.log())
            check(f"the model's layer is {'' if layers else 'not '}read" in d.log(), d.log())
            plain, got = (answer(c, PROMPTS[1], 60, speculate=s, sampling=SAMPLINGS["seeded"]) for s in (OFF, AUTO))
            same(got.tokens, plain.tokens, f"{layers} layers")
            check(not layers or used(got)[0] == used(got)[1] > 0, f"the layer is always right: {used(got)}")
        p = json.loads(helm_plan("--json", "--device", "cpu", "--speculate", "auto", profile=profile, adds=None))
        same((p.get("draft_layers", 0), p["draft_tokens"]), (layers, 15), f"helm-plan: {p['drafts_why']}")
        check(f"the model's layer is {'' if layers else 'not '}read" in p["drafts_why"], p["drafts_why"])


def test_auto_answers_are_the_same():
    """By a layer that is always right, and by one that never is, on a CPU and on a device."""
    for kind in ("cpu", "gpu", "cpu head"):
        homes, embed, head = PLANS.get(kind, ("ccccc", "c", "c"))
        plan = plan_json(5, homes, embed, head, kv_dtype="f32", ring_bytes=1 << 20, draft_layers=1, draft_tokens=15, invariant=True)
        for own_adds in (None, 2):
            with running(*EXACT, "--speculate", "auto", "--device", "cpu" if kind == "cpu" else DEVICE, real=True, plan=plan,
                         model=model("qwen35", None if own_adds is None else -4, own_adds)) as d:
                c = Client(d.endpoint)
                plain = [answer(c, p, 60, speculate=OFF, logprobs=2) for p in PROMPTS]
                streams = [c.generate(p, 60, seed=7, ignore_eos=True, logprobs=2) for p in PROMPTS]
                c.run(*streams)
                for s, want in zip(streams, plain):
                    same((s.tokens, [t.logprob for t in s.first]), (want.tokens, [t.logprob for t in want.first]), f"{kind}, {own_adds}")


if __name__ == "__main__":
    run_tests(dict(globals()))
