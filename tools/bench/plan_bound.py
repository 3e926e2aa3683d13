"""The least time of a token by bytes: the bytes that a plan moves, and how long they take at least.

Imported by cells.py. Pure functions over what helm-plan and helm-profile print."""

# A home's member of the plan, and its bytes.
MOVED = {"cpu": ("cpu", "read_bytes"), "stream": ("link", "link_bytes"), "gpu": ("gpu", "read_bytes")}


def moved_bytes(plan):
    """Bytes of weights that a decode step moves, packed where they are: to the CPU, over the link, from VRAM."""
    return {home: plan[member][what] for home, (member, what) in MOVED.items()}


def gpu_of(profile):
    """The first GPU of a profile, and its link in it. None without one. Files from before there were lists have one beside the other."""
    old = [dict(profile["gpu"], link=profile["link"])] if profile.get("gpu") else []
    return next(iter(profile.get("gpus", old)), None)


def limits_of(profile):
    """The bound's divisors, in GB/s: reads of CPU and link beside each other, and of VRAM. None without a
    device."""
    gpu = gpu_of(profile) if profile else None
    return gpu and {"both_gb_s": (profile["cpu"]["gemv_beside"]["value"] + gpu["link"]["h2d_beside"]["value"]) / 1e9,
                    "vram_gb_s": gpu["read"]["value"] / 1e9}


def bound_seconds(total, limits):
    """A token's least time, all of the host's bytes at once by CPU and link, then those in VRAM."""
    return (total["cpu"] + total["stream"]) / (limits["both_gb_s"] * 1e9) + total["gpu"] / (limits["vram_gb_s"] * 1e9)


def mixture_bound_seconds(plan, hits, now, vram_gb_s):
    """The least time of a step of a mixture with experts in both memories, by what helm-plan says of it: VRAM's bytes at its read, in
    each layer in both memories the shared expert and the chosen ones that lie in VRAM (the part `hits`) while CPU and link bring the others at what they
    were measured at beside each other (helm-profile --now), and the hand-overs. Experts of layers of one memory are in its bytes."""
    experts, vram = plan["experts"], vram_gb_s * 1e9
    both = now["read_beside"] + now["h2d_beside"]
    each = experts["step_bytes"] / experts["layers"]
    shared = experts.get("shared_bytes", 0) / experts["layers"]
    mixed = plan["mixed_forecast"]["layers"] if plan.get("mixed_forecast") else 0
    host = plan["cpu"]["read_bytes"] + plan["link"]["link_bytes"]
    return (plan["gpu"]["read_bytes"] / vram + host / both + mixed * max((each * hits + shared) / vram, each * (1 - hits) / both) +
            plan["parts"]["decode"]["hand_overs_ms"] / 1000)
