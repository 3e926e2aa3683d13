#!/usr/bin/python3
"""Hybrids of gated delta nets and attention through real processes, in every form that their files have: from Hugging Face alone
and as the text part of a multimodal checkpoint, and as GGUF with v heads in their other order. Tokens are held against the references of
transformers, alone, several at once, from snapshots and in an invariant plan; what is not computed is refused by name."""
import json
import os
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import hybrid_files  # noqa: E402
import processor  # noqa: E402
from helmd_harness import BIN, DEVICE, SLOW, Client, Daemon, check, plan_json, run_tests, running, same, status_of  # noqa: E402

NAMES = ["qwen35", "qwen35moe", "qwen3next"]
FOLDER = tempfile.TemporaryDirectory(prefix="helm-hybrids-")
OPTIONS = ("--kv-dtype", "f32", "--threads", 2, "--activations", "exact", "--kernels", "avx2")
NEAR = 0.002  # logprobs agree to 0.0002 with exact kernels: tokens are equal wherever the two best are further apart


def path_of(name):
    return os.path.join(FOLDER.name, name)


def cases_of(name):
    with open(os.path.join(hybrid_files.GOLDEN, name, "golden.json")) as f:
        return json.load(f)["cases"]


def sure(case):
    """The reference's tokens up to the first whose choice, or whose experts' choice, is too near."""
    tokens = []
    for step in case["steps"]:
        if step["gap"] < NEAR or step["router_margin"] < 0.001:
            break
        tokens.append(step["token"])
    return tokens


# By half layers of four layers, of which the last attends; chunks of few tokens, so that prompts are cut.
SMALL = {"kv_dtype": "f32", "context_tokens": 1024, "ring_bytes": 1 << 20}
PLANS = {"gpu": plan_json(4, "gggg", "g", "g", **SMALL),
         "stream": plan_json(4, "ssss", "g", "g", **SMALL),
         "split": plan_json(4, "gcggcgcg", "g", "g", **SMALL)}


def start(model, *options, plan=None, **sizes):
    if not plan:
        return running("--device", "cpu", *OPTIONS, *options, real=True, model=model)
    return running("--device", DEVICE, *OPTIONS, *options, real=True, model=model, plan={**PLANS[plan], **sizes})


def misses(d, name, cases=None):
    """Requests of all cases at once; how many answers are not the reference's."""
    c, wrong = Client(d.endpoint), 0
    cases = [case for case in cases or cases_of(name) if sure(case)]
    streams = [c.generate(case["prompt"], len(sure(case)), ignore_eos=True) for case in cases]
    c.run(*streams)
    for case, stream in zip(cases, streams):
        check(not stream.error, f"{name}: {stream.error}")
        wrong += stream.tokens != sure(case)
    return wrong


def test_tokens_are_the_references():
    total = 0
    for name in NAMES:
        total += sum(len(sure(case)) for case in cases_of(name))
        with start(os.path.join(hybrid_files.GOLDEN, name), "--parallel", 8) as d:
            same(misses(d, name), 0, f"{name}: eight at once")
            same(misses(d, name), 0, f"{name}: eight from snapshots")
            for case in cases_of(name)[-3:]:
                same(misses(d, name, [case]), 0, f"{name}: {len(case['prompt'])} alone")
    check(total > 300, f"only {total} tokens are sure")


def test_gpus_and_splits_give_the_references_tokens():
    """Chunks multiply in 16 bits, so prompts of up to 16 tokens: their states are the references'."""
    total = 0
    for name, plan in (("qwen35", "gpu"), ("qwen35", "stream"), ("qwen35", "split"), ("qwen35moe", "gpu"), ("qwen3next", "split")):
        cases = [case for case in cases_of(name) if len(case["prompt"]) <= 16]
        total += sum(len(sure(case)) for case in cases)
        check(len(cases) > 2, "too few short prompts")
        with start(os.path.join(hybrid_files.GOLDEN, name), "--parallel", 8, plan=plan) as d:
            for case in cases:
                same(misses(d, name, [case]), 0, f"{name} {plan}: {len(case['prompt'])} alone")
    check(total > 100, f"only {total} tokens are sure")


def answers(d, prompts, tokens):
    """Answers to all prompts at once; then to each alone, prompts found in the cache."""
    c = Client(d.endpoint)
    streams = [c.generate(prompt, tokens, ignore_eos=True) for prompt in prompts]
    c.run(*streams)
    alone, found = [], []
    for prompt in prompts:
        stream = c.generate(prompt, tokens, ignore_eos=True)
        c.run(stream)
        alone.append(stream)
        found.append(stream.done.usage.cached_tokens)
    check(not any(s.error for s in streams + alone), f"{[s.error for s in streams + alone]}")
    return [s.tokens for s in streams], [s.tokens for s in alone], found


def test_a_gpus_states_are_kept_apart():
    """Eight sequences at once have the tokens of each alone, which begins at a snapshot; so do those that give way to others."""
    for name, plan in (("qwen35", "gpu"), ("qwen35moe", "split")):
        prompts = [case["prompt"] for case in cases_of(name)]
        with start(os.path.join(hybrid_files.GOLDEN, name), "--invariant", "on", "--parallel", 8, plan=plan) as d:
            together, alone, found = answers(d, prompts, 24)
            same(together, alone, f"{name} {plan}: eight at once, and each alone")
            check(max(found) >= 128 and min(found) == 0, f"tokens found: {found}")
    few = {**SMALL, "context_tokens": 192, "page_count": 7}
    prompts = [case["prompt"] for case in cases_of("qwen35") if len(case["prompt"]) in (16, 33, 64)]
    with running("--device", DEVICE, *OPTIONS, "--invariant", "on", real=True, model=os.path.join(hybrid_files.GOLDEN, "qwen35"),
                 plan=plan_json(4, "gcgg", "g", "g", **few)) as d:
        together, alone, _ = answers(d, prompts, 110)
        check(status_of(d).preemptions_total > 0, "nothing was preempted")
        same(together, alone, "answers that gave way, and alone")


def test_a_gpu_workers_death():
    name = "qwen35"
    prompts = [case["prompt"] for case in cases_of(name)]
    with start(os.path.join(hybrid_files.GOLDEN, name), "--invariant", "on", "--parallel", 8, plan="split") as d:
        for worker in ("gpu", "cpu"):
            c = Client(d.endpoint)
            streams = [c.generate(prompt, 60, ignore_eos=True) for prompt in prompts]
            while min(len(s.tokens) for s in streams) < 4:
                c.receive()
            os.kill(d.children()[worker], signal.SIGKILL)
            c.run(*streams, timeout=60)
            for prompt, stream in zip(prompts, streams):
                alone = c.generate(prompt, 60, ignore_eos=True)
                c.run(alone)
                check(not stream.error, f"{stream.error}")
                same(stream.tokens, alone.tokens, f"{len(prompt)}: an answer whose {worker} worker died")


def test_prompts_begin_at_snapshots():
    for name in NAMES[:2]:
        case = cases_of(name)[6]  # of 130 tokens
        with start(os.path.join(hybrid_files.GOLDEN, name), "--invariant", "on") as d:
            found, answers = [], []
            for _ in range(2):
                c = Client(d.endpoint)
                s = c.generate(case["prompt"], 24, ignore_eos=True)
                c.run(s)
                found.append(s.done.usage.cached_tokens)
                answers.append(s.tokens)
            same(found, [0, 128], f"{name}: tokens found")
            same(answers[0], answers[1], f"{name}: the answer from a snapshot")


def test_snapshots_inside_a_step():
    """A prompt of several snapshots is one step on every processor. It, and all that begins at one of these, have the tokens of a daemon
    that takes none."""
    model, prompt, marks = os.path.join(hybrid_files.GOLDEN, "qwen35"), [3 + (i * 7 + i // 30) % 250 for i in range(630)], [70, 230, 331, 560, 620]
    ends = [mark // 32 * 32 for mark in marks]
    prompts = [prompt] + [prompt[:end] + [3 + (i * 5 + end) % 250 for i in range(200)] for end in ends]  # of the same list
    for plan in (None, "gpu", "split"):
        sizes = {"step_tokens": 640} if plan else {}
        answers = []
        for options in (("--prefix-cache", "off"), ()):
            with start(model, "--invariant", "on", *options, plan=plan, **sizes) as d:
                c, found, steps = Client(d.endpoint), [], []
                for p in prompts:
                    before = status_of(d).steps_total
                    s = c.generate(p, 4, ignore_eos=True, marks=marks if p is prompt else [])
                    c.run(s)
                    check(not s.error, f"{plan}: {s.error}")
                    answers.append(s.tokens)
                    found.append(s.done.usage.cached_tokens)
                    steps.append(status_of(d).steps_total - before)
        same(found, [0] + ends, f"{plan}: tokens found")
        same(steps, [4 + (plan is None)] + [4] * len(ends), f"{plan}: steps of a prompt and four tokens")
        same(answers[len(prompts):], answers[:len(prompts)], f"{plan}: with snapshots, and without")


def test_preempted_sequences_and_a_workers_death():
    name = "qwen35"
    model = os.path.join(hybrid_files.GOLDEN, name)
    with start(model, "--ctx", 192, "--kv-tokens", 224, "--invariant", "on") as d:
        c, prompts = Client(d.endpoint), [case["prompt"] for case in cases_of(name) if len(case["prompt"]) in (16, 33, 64)]
        streams = [c.generate(prompt, 110, ignore_eos=True) for prompt in prompts]
        c.run(*streams)
        check(status_of(d).preemptions_total > 0, "nothing was preempted")
        for prompt, stream in zip(prompts, streams):
            alone = c.generate(prompt, 110, ignore_eos=True)
            c.run(alone)
            check(not stream.error and not alone.error, f"{stream.error} {alone.error}")
            same(stream.tokens, alone.tokens, f"{len(prompt)}: an answer that gave way, and alone")
    with start(model, "--parallel", 8) as d:
        c, cases = Client(d.endpoint), [case for case in cases_of(name) if sure(case)]
        streams = [c.generate(case["prompt"], 400, ignore_eos=True) for case in cases]
        while min(len(s.tokens) for s in streams) < 4:
            c.receive()
        os.kill(d.children()["cpu"], signal.SIGKILL)
        c.run(*streams, timeout=60)
        for case, stream in zip(cases, streams):
            check(not stream.error, f"{stream.error}")
            same(stream.tokens[:len(sure(case))], sure(case), "the beginning of an answer whose worker died")
        same(misses(d, name), 0, "afterwards")


def test_the_text_part_of_a_multimodal_checkpoint():
    for name in NAMES[:2]:
        model = hybrid_files.multimodal(name, path_of(name + "-multimodal"))
        with start(model) as d:
            same(misses(d, name), 0, f"{name}: as published")
        said = processor.run([os.path.join(BIN, "helm-inspect"), model], stdout=subprocess.PIPE, text=True, timeout=60 * SLOW).stdout
        check("2 more tensors" in said and "model.visual." in said, f"what is left out: {said}")


def test_gguf_files():
    for name in NAMES:
        path = hybrid_files.write_gguf(path_of(name + ".gguf"), name, drafts=name == "qwen35")
        with start(path) as d:
            same(misses(d, name), 0, f"{name}: from a GGUF file")
    flags = hybrid_files.write_gguf(path_of("flags.gguf"), "qwen35", change={
        "full_attention_interval": None, "attention.recurrent_layers": [True, True, True, False]})
    with start(flags) as d:
        same(misses(d, "qwen35", cases_of("qwen35")[:4]), 0, "a flag for each layer")


def test_the_order_of_v_heads_matters():
    path = hybrid_files.write_gguf(path_of("mixed-up.gguf"), "qwen35", reorder=False)
    with start(path) as d:
        check(misses(d, "qwen35") > 4, "heads that are mixed up give other tokens")


def refused(model, *options):
    d = Daemon(*OPTIONS, *options, real=True, model=model)
    d.close()
    check(d.ready.startswith("error"), f"{model} {options}: {d.ready}")
    return d.ready


def test_no_such_file_is_written():
    for model in (os.path.join(hybrid_files.GOLDEN, "qwen35"), hybrid_files.write_gguf(path_of("moe.gguf"), "qwen35moe")):
        done = processor.run([os.path.join(BIN, "helm-quantize"), "--model", model, "--to", "Q8_0", "--out", path_of("out.gguf")],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 * SLOW)
        check(done.returncode != 0 and "gated delta nets" in done.stderr, done.stderr)
        check(not os.path.exists(path_of("out.gguf")), "a file that cannot be read again")


def test_what_is_not_there_is_refused():
    model = os.path.join(hybrid_files.GOLDEN, "qwen35")
    config, tensors = hybrid_files.read("qwen35")
    for key in ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
                "linear_conv_kernel_dim", "layer_types", "head_dim", "partial_rotary_factor"):
        less = {k: v for k, v in config.items() if k != key}
        if key == "partial_rotary_factor":
            less["rope_parameters"] = {k: v for k, v in config["rope_parameters"].items() if k != key}
        folder = hybrid_files.write_safetensors(path_of("less"), less, tensors)
        check(f"'{key}'" in refused(folder, "--device", "cpu") and "missing" in refused(folder, "--device", "cpu"), key)
    for key in ("ssm.group_count", "ssm.time_step_rank", "ssm.state_size", "ssm.inner_size", "ssm.conv_kernel",
                "full_attention_interval", "rope.dimension_count"):
        path = hybrid_files.write_gguf(path_of("less.gguf"), "qwen35", change={key: None})
        said = refused(path, "--device", "cpu")
        check(key in said and "missing" in said, f"{key}: {said}")
    for key, value, text in (("ssm.conv_kernel", 3, "only 4"), ("ssm.state_size", 120, "multiples of 16"),
                             ("ssm.group_count", 3, "not a multiple"), ("rope.dimension_count", 66, "no even number")):
        path = hybrid_files.write_gguf(path_of("other.gguf"), "qwen35", change={key: value})
        check(text in refused(path, "--device", "cpu"), f"{key} {value}")


if __name__ == "__main__":
    run_tests(globals())
