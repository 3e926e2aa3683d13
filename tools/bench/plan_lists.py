"""Lists of homes by half layer: of a plan as helm-plan prints it, and plans that differ from it in nothing else.

Imported by planner_bench.py. Pure functions over parsed JSON; standard library only."""
import random


def homes_text(plan):
    """Weights by home: "gpu 7.1 + cpu 4.2 + stream 2.8 GB"."""
    total = {}
    for stage in plan["stages"]["decode"]:
        total[stage["home"]] = total.get(stage["home"], 0) + stage["bytes"]
    return " + ".join(f"{home} {bytes / 1e9:.1f}" for home, bytes in total.items()) + " GB"


HALVES = "attention", "mlp"


def units_of(plan, what="home"):
    """Homes (or formats, None: as stored) by half layer."""
    found = {}
    for stage in plan["stages"]["decode"]:
        for layer in range(stage["layers"][0], stage["layers"][1] + 1):
            for half in HALVES:
                if stage["ops"] in ("all", half):
                    found[layer, half] = stage.get(what)
    return found


def formats_for(plan, home):
    """As much packed as the plan has. On the GPU the first half layers are packed, as many as in the plan; elsewhere
    all of a home, if the plan has any packed there."""
    before, packed = units_of(plan), {key for key, form in units_of(plan, "format").items() if form}
    left, homes = sum(before[key] == "gpu" for key in packed), {before[key] for key in packed} - {"gpu"}
    formats = {}
    for key in sorted(home):
        here = home[key] in homes or (home[key] == "gpu" and left > 0)
        left -= here and home[key] == "gpu"
        formats[key] = "bf16-packed" if here else None
    return formats


def with_homes(plan, home, packed):
    """The same sizes with other homes; prefill as decode: it is the daemon that checks and counts. packed: as much as the plan
    has, in VRAM and in host memory."""
    stages, formats = [], formats_for(plan, home) if packed else dict.fromkeys(home)
    for layer in range(plan["layers"]):
        pair = [(home[layer, half], formats[layer, half]) for half in HALVES]
        for ops, (where, form) in [("all", pair[0])] if pair[0] == pair[1] else zip(HALVES, pair):
            last = stages[-1] if stages else None
            if ops == "all" and last and (last["ops"], last["home"], last.get("format")) == (ops, where, form):
                last["layers"][1] = layer
                continue
            stages.append({"layers": [layer, layer], "ops": ops, "home": where, "bytes": 0})
            if form:
                stages[-1]["format"] = form
    empty = {"limit": None, "lines": [], "total": 0}
    other = {key: plan[key] for key in ("layers", "context_tokens", "step_tokens", "slots", "page_tokens", "page_count",
                                        "kv_dtype", "embed", "head", "ring_bytes") + (("head_format",) if packed else ())
             if key in plan}
    other.update(stages={"decode": stages}, host=empty, vram=empty)
    if all(where != "stream" for where in home.values()):
        other["ring_bytes"] = 0
    return other


def thesis_splits(plan, every):
    layers = plan["layers"]
    for on_gpu in range(layers, -1, -every):
        home = {(layer, half): "gpu" if layer >= layers - on_gpu else "cpu"
                for layer in range(layers) for half in ("attention", "mlp")}
        yield f"split-{on_gpu}", with_homes(plan, home, False)


def random_mixtures(plan, count, seed):
    """As many units on the GPU as the plan has, chosen at random; the others cpu or stream by a random share. Nothing streams
    where the plan has no ring for it."""
    rng = random.Random(seed)
    chosen = units_of(plan)
    on_gpu = {half: sum(1 for key, where in chosen.items() if where == "gpu" and key[1] == half)
              for half in ("attention", "mlp")}
    for i in range(count):
        share, home = rng.random() if plan["ring_bytes"] else 0, {}
        for half in ("attention", "mlp"):
            layers = list(range(plan["layers"]))
            rng.shuffle(layers)
            for rank, layer in enumerate(layers):
                home[layer, half] = "gpu" if rank < on_gpu[half] else "stream" if rng.random() < share else "cpu"
        yield f"random-{i}", with_homes(plan, home, True)
