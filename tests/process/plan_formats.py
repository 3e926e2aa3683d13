"""Formats of weights in plans' JSON form, by half layer."""


def units_of(plan, name="decode"):
    """(home, format or None) of every half layer of a list, in order."""
    units = []
    lists = plan["stages"]
    for stage in lists[name] if isinstance(lists, dict) else lists:
        halves = 1 if stage["ops"] != "all" else 2 * (stage["layers"][1] - stage["layers"][0] + 1)
        units += [(stage["home"], stage.get("format"))] * halves
    return units


def packed_units(plan, *homes):
    """How many half layers of these homes lie packed."""
    return sum(form == "bf16-packed" for home, form in units_of(plan) if home in homes)


def cpu_packs(plan):
    """Whether some list gives a half layer to the CPU that lies packed."""
    lists = [units_of(plan, name) for name in plan["stages"]] if isinstance(plan["stages"], dict) else [units_of(plan)]
    return any(form == "bf16-packed" and any(units[u][0] == "cpu" for units in lists)
               for u, (_, form) in enumerate(units_of(plan)))


def with_formats(plan, chosen):
    """The plan with its decode list cut anew: chosen(unit, home) says which half layers lie packed. Bytes are for the planner."""
    units = [(home, "bf16-packed" if chosen(u, home) else None) for u, (home, _) in enumerate(units_of(plan))]
    stages = []
    for layer in range(len(units) // 2):
        pair = units[2 * layer:2 * layer + 2]
        for ops, unit in [("all", pair[0])] if pair[0] == pair[1] else zip(("attention", "mlp"), pair):
            last = stages[-1] if stages else None
            if ops == "all" and last and (last["ops"], last["home"], last.get("format")) == (ops, *unit):
                last["layers"][1] = layer
                continue
            stages.append({"layers": [layer, layer], "ops": ops, "home": unit[0], "bytes": 1})
            if unit[1]:
                stages[-1]["format"] = unit[1]
    return dict(plan, stages={**(plan["stages"] if isinstance(plan["stages"], dict) else {}), "decode": stages}, placements=None)
