#!/usr/bin/python3
"""helmd with the real workers on the demo model and the emulated device: splits, alternation, ceilings, deaths. Their output is
compared with the demo model's golden.json, as in the golden tests."""
import functools
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from helmd_harness import (BIN, Client, DEMO, Daemon, PROFILE, check, plan_json, run_tests, running, same, wait_until,  # noqa: E402
                           SLOW)
import processor  # noqa: E402
from plan_formats import packed_units, with_formats  # noqa: E402

LAYERS = 8
FULL = bool(os.environ.get("HELM_TEST_FULL"))  # `make test-full`: every plan, also of those that are alike
SIZES = ["--ctx", 1024, "--parallel", 4, "--step-tokens", 64]
# 16-bit activations: logprobs within 0.4 (0.08 in the mean), the same token wherever the gap exceeds 0.4
GAP, WORST, MEAN = 0.4, 0.4, 0.08
GOLDEN = json.load(open(os.path.join(DEMO, "golden.json")))["cases"]
# instrumented workers are many times slower: all cases but the longest (another has several chunks), fewer of their steps
CHECKED = [dict(case, steps=case["steps"] if SLOW == 1 else case["steps"][:20]) for case in GOLDEN
           if SLOW == 1 or len(case["prompt"]) <= 200]


def demo_plan(homes, embed, head, **sizes):
    return plan_json(LAYERS, homes, embed, head, **{"context_tokens": 1024, "slots": 4, **sizes})


def emulated(homes, embed, head, *options, **sizes):
    return running("--device", "emulated", *options, real=True, plan=demo_plan(homes, embed, head, **sizes))


def check_golden(d, what):
    """Every golden case (CHECKED), all at once. Returns the mean and the worst error and how many tokens were compared."""
    c = Client(d.endpoint)
    streams = [c.generate(case["prompt"], len(case["steps"]), logprobs=20, ignore_eos=True) for case in CHECKED]
    c.run(*streams, timeout=120)
    errors, compared = [], 0
    for n, (case, s) in enumerate(zip(CHECKED, streams)):
        same(len(s.tokens), len(case["steps"]), f"{what}: case {n}: {s.error or s.done}")
        for at, (step, got) in enumerate(zip(case["steps"], s.first)):
            mine = {t.token: t.logprob for t in got.top}
            errors += [abs(mine[token] - logprob) for token, logprob in step["top"][:10] if token in mine]
            compared += 1
            if got.token != step["token"]:
                check(step["gap"] <= GAP, f"{what}: case {n}, step {at}: token {got.token}, not {step['token']}, "
                      f"at a gap of {step['gap']}")
                break
    check(compared > 60, f"{what}: only {compared} tokens were compared")
    mean, worst = sum(errors) / len(errors), max(errors)
    check(mean <= MEAN and worst <= WORST, f"{what}: logprobs off by {mean:.4f} in the mean, {worst:.3f} at worst")
    print(f"     {what}: {compared} tokens, logprobs off by {mean:.4f} in the mean, {worst:.3f} at worst", flush=True)


@functools.lru_cache(1)
def clear_stretch():
    """A prompt whose continuation has no near tie for at least 150 tokens, so that any way of computing it must give the
    same ones; and these tokens. Found on the CPU, which is quickest, once for all tests and plans. Release builds are so
    quick that all of it is needed for them not to be through when the signal comes."""
    with running("--device", "cpu", *SIZES, real=True) as d:
        prompt, tokens = find_clear_stretch(d, 150)
    return prompt, tokens if SLOW == 1 else tokens[:100]


def find_clear_stretch(d, least):
    c = Client(d.endpoint)
    streams = [(case["prompt"], c.generate(case["prompt"], 500, logprobs=2, ignore_eos=True)) for case in GOLDEN[:3]]
    c.run(*[s for _, s in streams], timeout=120)
    best = ([], [])
    for prompt, s in streams:
        start = 0
        for at in range(len(s.first) + 1):
            if at < len(s.first) and s.first[at].top[0].logprob - s.first[at].top[1].logprob > 2 * GAP:
                continue
            if at - start > len(best[1]):
                best = (prompt + s.tokens[:start], s.tokens[start:at])
            start = at + 1
    check(len(best[1]) >= least, f"the longest stretch without a near tie has {len(best[1])} tokens")
    return best


def test_every_plan_agrees_with_the_golden_run():
    with running("--device", "cpu", *SIZES, real=True) as d:
        check_golden(d, "cpu")
    shapes = [("gggggggg", "g", "g"), ("cccccccc", "c", "g"), ("cggggggg", "c", "g"), ("cccccggg", "g", "g"),
              ("gggggccc", "g", "c"), ("ccgggggg", "c", "c"), ("cgcgcgcg", "c", "g"), ("gcgcgcgc", "c", "c"),
              ("gccggccg", "g", "g")]
    for homes, embed, head in shapes[::1 if FULL else 2 if SLOW == 1 else 6]:  # sanitized ones take a minute for all
        with emulated(homes, embed, head) as d:
            workers = [w.name for w in Client(d.endpoint).ask("status").status.workers]
            same(workers, ["gpu"] if set(homes + embed + head) == {"g"} else ["cpu", "gpu"], f"{homes}: workers")
            check_golden(d, f"{homes}, embedding {embed}, head {head}")


# homes, embedding, head, prefill list, from how many tokens on; half layers where two letters stand for one
STREAMED = [("ssssssss", "g", "g", None, None), ("gsgsgsgs", "c", "c", None, None), ("csgcsgcs", "c", "g", None, None),
            ("ccsscgccggsscsgc", "c", "g", None, None), ("cccccccc", "c", "c", "ssssssss", 20),
            ("ccgcsgcc", "c", "g", "ssgcsgss", 17), ("gcgcgcgcgcgcgcgc", "g", "g", "gsgsgsgsgsgsgsgs", 20)]


def test_streamed_weights_half_layers_and_prompt_lists_agree_with_the_golden_run():
    ring = 1 << 20
    for homes, embed, head, prefill, first in STREAMED[::1 if FULL else 2 if SLOW == 1 else 5]:
        with emulated(homes, embed, head, prefill=prefill, prefill_from=first, ring_bytes=ring) as d:
            what = f"{homes}, {prefill} from {first} on" if prefill else homes
            check_golden(d, what)
            status = Client(d.endpoint).ask("status").status
            moved = {w.name: (w.weight_bytes_read, w.link_bytes) for w in status.workers}
            check(moved["gpu"][1] > 0, f"{what}: nothing came over the link: {moved}")
            # what the GPU worker only copies the CPU worker still loads
            check("cpu" in moved, f"{what}: {moved}")


def test_steps_are_launched_behind_others_where_the_gpu_is_alone():
    prompt, tokens = clear_stretch()
    with emulated("gggggggg", "g", "g") as d:
        c = Client(d.endpoint)
        alone = c.generate(prompt, len(tokens), ignore_eos=True)
        c.run(alone)
        same(alone.tokens, tokens, "greedy tokens, launched behind others")
        both = [c.generate(prompt, len(tokens), ignore_eos=True) for _ in range(2)]
        c.run(*both)
        for s in both:
            same(s.tokens, tokens, "the same beside another request")
        d.stop()
        said = re.search(r"(\d+) of (\d+) steps were launched before the host had seen the one before end", d.log())
        check(said, "the worker's log says nothing of steps launched early")
        launched, steps = int(said[1]), int(said[2])
        # not the prompt's and the one after it; on a busy machine helmd is late now and then
        check(0.1 * steps < launched < steps and steps >= 2 * len(tokens), f"{launched} of {steps}, {len(tokens)} tokens")


def test_packed_weights_give_the_same_and_cross_in_fewer_bytes():
    runs, crossed, read = [], [], []
    for pack in "off", "auto":
        with emulated("csgcsgss", "c", "g", "--pack", pack, packed="s", ring_bytes=1 << 20) as d:
            c = Client(d.endpoint)
            s = c.generate(GOLDEN[4]["prompt"], 60 if SLOW == 1 else 24, logprobs=3)
            c.run(s)
            runs.append([[(t.token, t.logprob) for t in x.top] for x in s.first])
            gpu = c.ask("status").status.workers[-1]
            plan = json.loads(c.ask("plan").plan.json)
            same((gpu.name, packed_units(plan, "stream")), ("gpu", 8 if pack == "auto" else 0), "the plan")
            check(gpu.vram_bytes <= plan["vram"]["total"], f"{gpu.vram_bytes} of {plan['vram']}")
            same(any(line["what"] == "expanded slice" for line in plan["vram"]["lines"]), pack == "auto", "its ledger")
            same("are packed as" in d.log(), pack == "auto", "what the loader says")
            same("plan: decode streams" in d.log(), True, "what the plan says")
            crossed.append(gpu.link_bytes)
            read.append(gpu.weight_bytes_read)
    check(runs[0] == runs[1] and len(runs[0]) > 10, "not the same")
    same(read[0], read[1], "bytes of weights computed with")
    check(0.65 < crossed[1] / crossed[0] < 0.8, f"{crossed[1]} bytes instead of {crossed[0]}")


def make_model(folder, layers, intermediate, vocab):
    """One of bf16 in rows that packed kernels take."""
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 512, "intermediate_size": intermediate,
              "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": vocab,
              "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
              "dtype": "bfloat16"}
    with open(os.path.join(folder, "made.json"), "w") as f:
        json.dump(config, f)
    model = os.path.join(folder, "model")
    subprocess.run([os.path.join(BIN, "helm-mkmodel"), "--config", f.name, "--out", model, "--seed", "5"], check=True,
                   stdout=subprocess.DEVNULL)
    return model


def test_the_cpu_computes_with_packed_weights():
    can = "avx512_vbmi2" in processor.flags()
    runs, read, crossed = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(folder, layers=4, intermediate=1024, vocab=600)
        for pack in False, True:
            plan = plan_json(4, "ccsc", "c", "c", prefill="ssss", prefill_from=20, ring_bytes=1 << 20,
                             packed="cs" if pack else "")
            with running("--device", "emulated", real=True, plan=plan, model=model) as d:
                c = Client(d.endpoint)
                s = c.generate([7 * i % 600 for i in range(90)], 24, logprobs=3, ignore_eos=True)
                c.run(s)
                runs.append([(t.token, t.logprob) for x in s.first for t in x.top])
                status, shown = c.ask("status").status, json.loads(c.ask("plan").plan.json)
                same((packed_units(shown, "stream"), packed_units(shown, "cpu")), (2 * pack, 6 * (pack and can)), "the plan")
                same("no kernels for packed weights" in d.log(), pack and not can, "a word of it")
                same(any(line["what"] == "expanded slice" for line in shown["vram"]["lines"]), pack, "its ledger")
                same("are packed as" in d.log(), pack, "what the loader says")
                workers = {w.name: w for w in status.workers}
                check(workers["gpu"].vram_bytes <= shown["vram"]["total"], "VRAM")
                read.append(workers["cpu"].weight_bytes_read)
                crossed.append(workers["gpu"].link_bytes)
    same(len(runs[0]), 24 * 3, "logprobs")
    # random weights: near ties everywhere, so only the prompt's last token is compared as numbers
    off = max(abs(a[1] - b[1]) for a, b in zip(runs[0][:3], runs[1][:3]))
    check(off < 0.05, f"logprobs are off by {off}: {runs[0][:3]} {runs[1][:3]}")
    if can:
        check(0.65 < read[1] / read[0] < 0.85, f"{read[1]} bytes of weights instead of {read[0]}")
        check(0.65 < crossed[1] / crossed[0] < 0.8, f"{crossed[1]} bytes over the link instead of {crossed[0]}")


def test_steps_issued_anew_or_without_chains_give_the_same():
    runs = []
    for graphs, chains in ("on", "on"), ("off", "on"), ("on", "off"):
        with emulated("csgcsgcs", "c", "g", "--gpu-graphs", graphs, "--gpu-chains", chains, ring_bytes=1 << 20) as d:
            c = Client(d.endpoint)
            s = c.generate(GOLDEN[2]["prompt"], 60 if SLOW == 1 else 24, logprobs=3)
            c.run(s)
            runs.append([[(t.token, t.logprob) for t in x.top] for x in s.first])
            same("worker gpu: reduced: steps are issued anew" in d.log(), graphs == "off", "a word of it in the log")
            same("decode: chains (" in d.log(), chains == "on", "how it decodes")
            same("worker gpu: reduced: one token is decoded by a kernel an operation instead of chains: that was asked for"
                 in d.log(), chains == "off", "why it does without chains")
    check(runs[0] == runs[1] == runs[2] and len(runs[0]) > 10, "not the same")


def test_a_plan_of_helm_plan_runs():
    program = os.path.join(BIN, "helm-plan")
    with tempfile.TemporaryDirectory() as folder:
        for strategy in ("best", "thesis", "stream") if SLOW == 1 else ("best",):
            run = subprocess.run([program, "--model", DEMO, "--profile", PROFILE, "--vram", "384MiB", "--ctx", "1024",
                                  "--strategy", strategy, "--json"], capture_output=True, text=True)
            same(run.returncode, 0, run.stderr)
            path = os.path.join(folder, "plan.json")
            with open(path, "w") as f:
                f.write(run.stdout)
            with running("--device", "emulated", "--plan", path, real=True) as d:
                want, got = json.loads(run.stdout)["stages"], json.loads(Client(d.endpoint).ask("plan").plan.json)["stages"]
                same([(x["layers"], x["home"]) for x in got["decode"]], [(x["layers"], x["home"]) for x in want["decode"]],
                     "stages")
                check_golden(d, f"helm-plan's {strategy}")


def test_the_same_plan_gives_the_same_tokens_twice():
    runs = []
    for _ in range(2):
        with emulated("cgcggccg", "c", "g") as d:
            c = Client(d.endpoint)
            s = c.generate(GOLDEN[4]["prompt"], 100, logprobs=5)
            c.run(s)
            runs.append((s.tokens, [[(t.token, t.logprob) for t in x.top] for x in s.first]))
    check(runs[0] == runs[1], "not bit-identical")


def test_less_vram_takes_fewer_layers_and_the_ceiling_holds():
    layers = []
    for vram in (64, 18, 12, 8) if SLOW == 1 else (64, 8):
        with running("--device", "emulated", "--strategy", "thesis", "--vram", f"{vram}MiB", *SIZES, real=True) as d:
            plan = json.loads(Client(d.endpoint).ask("plan").plan.json)
            layers.append(sum(s["layers"][1] - s["layers"][0] + 1 for s in plan["stages"]["decode"] if s["home"] == "gpu"))
            gpu = Client(d.endpoint).ask("status").status.workers[-1]
            same(gpu.name, "gpu", "worker")
            check(0 < gpu.vram_bytes <= plan["vram"]["total"] <= vram << 20,
                  f"{gpu.vram_bytes} bytes in use, {plan['vram']['total']} in the ledger, {vram} MiB allowed")
            check(gpu.vram_bytes > 0.6 * plan["vram"]["total"], f"the ledger is far off: {gpu.vram_bytes} bytes in use, "
                  f"{plan['vram']['total']} counted")
            check_golden(d, f"{vram} MiB, {layers[-1]} layers on the device")
    same((layers[0], layers), (LAYERS, sorted(layers, reverse=True)), "layers on the device")
    check(len(set(layers)) >= min(3, len(layers)), f"{layers}")


def test_what_does_not_fit_the_ceiling_is_refused_before_loading():
    for options, plan, words in [
            (["--vram", "1MiB", *SIZES], None, ["error capacity", "of VRAM, or --device cpu", "weights", "workspace"]),
            (["--vram", "12MiB"], demo_plan("gggggggg", "g", "g"), ["error capacity", "of VRAM, has 12.00 MiB (--vram)"])]:
        d = Daemon("--device", "emulated", *options, real=True, plan=plan)
        same(processor.ended(d.process, 10 * SLOW), 4, f"{options}: {d.log()}")
        for word in words:
            check(word in d.ready, f"{options}: '{word}' is not in '{d.ready}'")
        check("worker gpu: pid" not in d.log(), "a worker was started")
        same(d.left_behind(), [], "left behind")
        d.close()


def scramble_layer(path, layer):
    """Writes values over its matrices that packing makes no smaller: of any mantissa and sign, and of 62 exponents."""
    exponents = bytes((b & 0x80) | (30 + (b & 0x7f) % 31) for b in range(256))
    with open(path, "r+b") as f:
        length, = struct.unpack("<Q", f.read(8))
        for name, t in json.loads(f.read(length)).items():
            if f"layers.{layer}." in name and len(t["shape"]) == 2:
                first, end = t["data_offsets"]
                values = bytearray(os.urandom(end - first))
                values[1::2] = values[1::2].translate(exponents)
                f.seek(8 + length + first)
                f.write(values)


def test_layers_that_pack_worse_than_others():
    """Weights of the first layer hardly become smaller: the room of a plan that packs it is its own, not a mean part."""
    packed = re.compile(r"of weights in VRAM are packed as ")
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(folder, layers=8, intermediate=1536, vocab=1008)
        scramble_layer(os.path.join(model, "model.safetensors"), 0)
        for pack_gpu in (0, 1, 3) if SLOW == 1 else (0, 3):
            plan = with_formats(plan_json(8, "gggggggg", "g", "g", context_tokens=256, slots=1), lambda unit, home: unit < pack_gpu)
            with running("--device", "emulated", real=True, model=model, plan=plan) as d:
                c = Client(d.endpoint)
                s = c.generate(list(range(2, 40)), 12, logprobs=2, ignore_eos=True)
                c.run(s, timeout=60)
                runs.append([(t.token, t.logprob) for t in s.first])
                same(bool(packed.search(d.log())), pack_gpu > 0, "packed")
                shown = subprocess.run([os.path.join(BIN, "helm-cli"), "--connect", d.endpoint, "plan"], check=True,
                                       stdout=subprocess.PIPE, text=True).stdout
                same(f"packed in VRAM: {pack_gpu} of its half layers" in shown, pack_gpu > 0, shown)
                # two linear operations of each half layer
                same(f"; {2 * pack_gpu} with packed weights" in d.log(), pack_gpu > 0, "the worker's line")
        check(len(runs[0]) == 12 and all(run == runs[0] for run in runs), runs)
        for vram in ("36MiB", "44MiB") if SLOW == 1 else ("36MiB",):  # made plans, too
            with running("--device", "emulated", "--ctx", 256, "--parallel", 1, "--step-tokens", 64, "--strategy", "stream",
                         "--vram", vram, real=True, model=model) as d:
                check("weights that would lie packed in VRAM come to more than others" in d.log(), vram)


def test_either_worker_killed_mid_stream_costs_no_token():
    plans = [("ccccgggg", "c", "g", {"packed": "g"}), ("csgcsgcs", "c", "g", {"ring_bytes": 1 << 20}),
             ("cccccccc", "c", "c", {"prefill": "ssssssss", "prefill_from": 20, "ring_bytes": 1 << 20}),
             ("cgcgcgcg", "g", "c", {})]
    for homes, embed, head, more in plans if FULL else plans[:3] if SLOW == 1 else plans[:2]:
        with emulated(homes, embed, head, **more) as d:
            prompt, want = clear_stretch()
            for who in "gpu", "cpu":
                c = Client(d.endpoint)
                before = c.ask("status").status.workers[0].restarts
                s = c.generate(prompt, len(want), ignore_eos=True)
                killed = None
                while not s.ended:
                    c.receive(60)
                    if not killed and len(s.tokens) > 30:
                        killed = d.children()[who]
                        os.kill(killed, signal.SIGKILL)
                same(s.tokens, want, f"{homes}, {who} killed ({s.error or s.done})")
                wait_until(lambda: c.ask("status").status.workers[0].restarts == before + 1, 5)
                status = c.ask("status").status
                same([w.restarts for w in status.workers], [before + 1] * 2, "restarts")
                check(killed not in d.children().values(), "still there")


def test_a_stopped_worker_is_replaced():
    with emulated("ccccgggg", "c", "g", "--step-timeout-ms", 1000 * SLOW) as d:
        prompt, want = clear_stretch()
        c = Client(d.endpoint)
        count = (1000 if SLOW == 1 else 350) - len(prompt)  # enough that it still runs when the signal comes
        check(count >= 200, f"a prompt of {len(prompt)} tokens")
        s = c.generate(prompt, count, ignore_eos=True)
        while len(s.tokens) < 20:
            c.receive(60)
        os.kill(d.children()["gpu"], signal.SIGSTOP)
        c.run(s, timeout=60)
        same(len(s.tokens), count, f"{s.error or s.done}")
        same(s.tokens[:100], want[:100], "tokens that no rounding can change")
        check("PING is not answered" in d.log(), "no reason in the log")


def test_both_end_in_time_on_sigterm():
    with emulated("ccccgggg", "c", "g") as d:
        c = Client(d.endpoint)
        s = c.generate(GOLDEN[0]["prompt"], 900, ignore_eos=True)
        while len(s.tokens) < 5:
            c.receive(60)
        started = processor.clock()
        same(d.stop(), 0, "exit status")
        check(processor.clock() - started < 1.5 * SLOW, f"took {processor.clock() - started:.2f} s")
        same(d.left_behind(), [], "left behind")


def machine_has_a_gpu():
    probe = subprocess.run([os.path.join(BIN, "helm-worker-gpu"), "--probe"], capture_output=True, text=True)
    try:
        return bool(json.loads(probe.stdout).get("devices"))
    except ValueError:
        return False


def test_a_gpu_that_is_not_there_is_refused_and_auto_says_so():
    if machine_has_a_gpu():
        print("     not tried: this machine has a GPU", flush=True)
        return
    d = Daemon("--device", "cuda", *SIZES, real=True)
    same(processor.ended(d.process, 30 * SLOW), 4, f"{d.log()}")
    why = ("no NVIDIA driver here", "this build has no CUDA device (no nvcc was found)")
    check(d.ready in ["error unsupported --device cuda: " + text for text in why], d.ready)
    d.close()
    with running(*SIZES, real=True) as d:
        same([w.name for w in Client(d.endpoint).ask("status").status.workers], ["cpu"], "workers")
        check("no GPU chosen (" in d.log() and "planned on the CPU" in d.log(), d.log())


if __name__ == "__main__":
    run_tests(globals())
