#!/usr/bin/python3
"""Plans a matrix of models, machines and options with helm-plan, and compares two such runs.

    tools/plan/matrix.py plan build/bin/helm-plan before.json     writes forecasts, plans and processor time of every cell
    tools/plan/matrix.py compare before.json after.json           fails if a forecast got worse by more than 0.1 %

For changes of the planner that must not change what is chosen. Run from the repository's root; a run takes 9 s of a
processor."""
import json
import os
import resource
import subprocess
import sys
import tempfile

WORSE = 1.001
SPARSE = {"architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 32,
          "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 40960, "dtype": "bfloat16",
          "vocab_size": 151936, "num_hidden_layers": 48, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "num_experts": 128}
MADE_UP = {
    "dense-8": {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8,
                "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000,
                "max_position_embeddings": 40960, "dtype": "bfloat16"},
    "tied-3": {"architectures": ["LlamaForCausalLM"], "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 3,
               "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 64000,
               "max_position_embeddings": 8192, "dtype": "bfloat16", "tie_word_embeddings": True},
    "shared": dict(SPARSE, architectures=["Qwen2MoeForCausalLM"], num_hidden_layers=28, hidden_size=3584, num_experts=64,
                   moe_intermediate_size=2560, shared_expert_intermediate_size=20480, num_key_value_heads=4,
                   num_attention_heads=28, intermediate_size=18944),
    "large-experts": {"architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
                      "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                      "vocab_size": 32000, "max_position_embeddings": 32768, "num_local_experts": 8,
                      "num_experts_per_tok": 2, "dtype": "bfloat16"},
    "windows": {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
                "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
                "use_sliding_window": True, "sliding_window": 2048, "max_window_layers": 14, "dtype": "bfloat16"},
}
H200, L40S, R3090, R4060 = "h200-sapphire-rapids", "thesis-l40s", "thesis-rtx3090", "thesis-rtx4060-laptop"


def cells():
    """Model, machine, options. Each option of the planner meets dense models and mixtures, and several sizes of VRAM."""
    for machine in H200, R3090:
        for gib in 4, 6, 8, 12, 16, 24:
            yield "qwen3-8b", machine, f"--vram {gib}GiB"
            yield "qwen3-30b-a3b", machine, f"--vram {gib}GiB --weights q4_k_m"
    for machine in L40S, R4060:
        for gib in 4, 8, 24:
            yield "qwen3-4b", machine, f"--vram {gib}GiB --host-memory 48GiB"
            yield "qwen3-14b", machine, f"--vram {gib}GiB --host-memory 48GiB --weights q4_k_m"
            yield "qwen3-30b-a3b", machine, f"--vram {gib}GiB --host-memory 96GiB"
    for gib in 4, 8, 16:
        for ctx in 256, 2048, 32768:
            yield "qwen3-8b", H200, f"--vram {gib}GiB --ctx {ctx}"
            yield "qwen3-8b", R3090, f"--vram {gib}GiB --ctx {ctx} --weights q8_0"
            yield "qwen3-30b-a3b", H200, f"--vram {gib}GiB --ctx {ctx} --weights q4_k_m"
    for strategy in "all-gpu", "all-cpu", "thesis", "stream", "experts-cpu", "mixed":
        yield "qwen3-8b", H200, f"--vram 24GiB --strategy {strategy}"
        yield "qwen3-30b-a3b", H200, f"--vram 12GiB --strategy {strategy}"
        yield "dense-8", R3090, f"--vram 3GiB --strategy {strategy}"
    for tiers in "one", "two":
        yield "qwen3-8b", H200, f"--vram 8GiB --ctx 32768 --kv-tiers {tiers}"
        yield "qwen3-14b", R3090, f"--vram 12GiB --weights q4_k_m --ctx 16384 --kv-tiers {tiers}"
        yield "qwen3-30b-a3b", H200, f"--vram 6GiB --ctx 32768 --weights q4_k_m --kv-tiers {tiers}"
        yield "windows", H200, f"--vram 8GiB --ctx 32768 --kv-tiers {tiers}"
    for invariant in "on", "off":
        yield "qwen3-8b", H200, f"--vram 8GiB --invariant {invariant}"
        yield "qwen3-30b-a3b", H200, f"--vram 8GiB --weights q4_k_m --invariant {invariant}"
    for batch in 2, 8:
        yield "qwen3-8b", H200, f"--vram 8GiB --batch {batch} --ctx 4096"
        yield "qwen3-30b-a3b", H200, f"--vram 8GiB --batch {batch} --ctx 4096 --weights q4_k_m"
    for pack in "all", "off":
        yield "qwen3-8b", H200, f"--vram 12GiB --pack {pack}"
        yield "qwen3-30b-a3b", H200, f"--vram 24GiB --pack {pack}"
    for name in MADE_UP:
        for machine in H200, R3090:
            for gib in 2, 6:
                yield name, machine, f"--vram {gib}GiB --host-memory 160GiB"
    yield "qwen3-8b", H200, "--vram 8GiB --kv-dtype q8_0 --kv-page-tokens 128"
    yield "qwen3-32b", H200, "--vram 16GiB --host-memory 20GiB"
    yield "qwen3-32b", R3090, "--vram 6GiB --strategy all-gpu"
    yield "qwen3-30b-a3b", R3090, "--vram 1GiB --host-memory 40GiB --strategy mixed"


def plan_cell(program, folder, model, machine, options):
    path = os.path.join("tests/data/configs", model)
    if model in MADE_UP:
        path = os.path.join(folder, model)
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "config.json"), "w") as f:
            json.dump(MADE_UP[model], f)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([program, "--model", path, "--profile", f"profiles/{machine}.json", "--json", *options.split()],
                          stdin=subprocess.DEVNULL, capture_output=True)
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    said = json.loads(done.stdout) if done.stdout else {"error": done.stderr.decode()}
    if "error" in said:
        return {"status": done.returncode, "took": took, "refusal": said}
    known = {"decode_tok_s", "ttft_ms", "strategies", "placements", "proof", "over_context", "profile", "machine", "rates"}
    for step in said["stages"].values():
        for stage in step:
            stage.pop("ms", None)
    return {"status": done.returncode, "took": took, "decode_s": 1 / said["decode_tok_s"]["value"], "ttft_ms": said["ttft_ms"]["value"],
            "strategies": {s["name"]: [s["decode_tok_s"], s["ttft_ms"]] for s in said["strategies"]},
            "over_context": said["over_context"], "plan": {key: value for key, value in said.items() if key not in known}}


def plan_all(program, path):
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        for cell in cells():
            out[" ".join(cell)] = plan_cell(program, folder, *cell)
    with open(path, "w") as f:
        json.dump(out, f, indent=1)
    took = sorted(cell["took"] for cell in out.values())
    print(f"{len(out)} cells, {sum(took):.1f} s of a processor, median {took[len(took) // 2]:.2f} s, most {took[-1]:.2f} s")


def compare(before, after):
    """Prints every cell whose outcome is not the same; returns the number of those that are worse."""
    worse = 0
    for name in sorted(set(before) | set(after)):
        a, b = before.get(name), after.get(name)
        notes = []
        if not a or not b or a["status"] != b["status"]:
            notes.append(f"WORSE: exit status {a and a['status']}, now {b and b['status']}")
        elif a["status"]:
            notes += [f"refusal: {key} {a['refusal'].get(key)}, now {b['refusal'].get(key)}" for key in a["refusal"]
                      if a["refusal"][key] != b["refusal"].get(key)]
        else:
            for key in "decode_s", "ttft_ms":
                part = b[key] / a[key]
                if abs(part - 1) > 1e-9:
                    notes.append(f"{'WORSE: ' if part > WORSE else ''}{key} {part:.6f} times")
            for key in sorted(set(a["plan"]) | set(b["plan"])):
                if a["plan"].get(key) != b["plan"].get(key):
                    notes.append(f"plan: {key}")
            for key in "strategies", "over_context":
                if a[key] != b[key]:
                    notes.append(f"{key}: {a[key]}, now {b[key]}")
        worse += any(note.startswith("WORSE") for note in notes)
        if notes:
            print(name, *notes, sep="\n    ")
    print(f"{len(before)} cells: {sum(c['took'] for c in before.values()):.1f} s of a processor before, "
          f"{sum(c['took'] for c in after.values()):.1f} s now; worse: {worse}")
    return worse


def main(arguments):
    if len(arguments) == 3 and arguments[0] == "plan":
        plan_all(arguments[1], arguments[2])
    elif len(arguments) == 3 and arguments[0] == "compare":
        loaded = []
        for path in arguments[1:]:
            with open(path) as f:
                loaded.append(json.load(f))
        sys.exit(compare(*loaded) > 0)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
