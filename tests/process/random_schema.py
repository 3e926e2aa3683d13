#!/usr/bin/python3
"""Random JSON schemas of the keywords that docs/grammars.md lists. Imported by test_structured.py."""
import random

WORDS = ["name", "city", "count", "tags", "when", "id", "note", "left", "right", "a b", "quo\"te", "\u00fcber", "x/y~z"]


def random_schema(r, depth=0):
    """A schema of what docs/grammars.md lists, mostly small."""
    kinds = ["string", "string", "integer", "number", "boolean", "null", "enum", "const", "format", "pattern"]
    if depth < 3:
        kinds += ["object"] * (8 if depth == 0 else 3) + ["array"] * 3 + ["any", "prefix", "ref", "all"]
    kind = r.choice(kinds)
    inner = lambda: random_schema(r, depth + 1)  # noqa: E731
    if kind == "string":
        return r.choice([{"type": "string", "maxLength": r.randint(0, 12)}, {"type": "string", "minLength": 1, "maxLength": r.randint(1, 8)}])
    if kind == "integer":
        low = r.randint(-2000, 2000)
        return r.choice([{"type": "integer"}, {"type": "integer", "minimum": low, "maximum": low + r.randint(0, 3000)},
                         {"type": "integer", "exclusiveMinimum": low}, {"type": "integer", "exclusiveMaximum": low, "title": "n"}])
    if kind == "number":
        low = r.randint(-50, 50)
        return r.choice([{"type": "number"}, {"type": "number", "minimum": low, "exclusiveMaximum": low + r.randint(1, 40)}])
    if kind in ("boolean", "null"):
        return {"type": kind}
    if kind == "enum":
        return {"enum": r.sample(["red", "gr\u00fcn", 1, 2.5, None, True, {"a": [1]}, "a\"b\\c\n"], r.randint(1, 4))}
    if kind == "const":
        return {"const": r.choice(["fixed", 42, {"k": "v"}, [1, "two"]])}
    if kind == "format":
        return {"type": "string", "format": r.choice(["date", "time", "date-time", "uuid", "ipv4"])}
    if kind == "pattern":
        return {"type": "string", "pattern": r.choice(["^[a-z]{2,6}$", "^(ab|cd)+[0-9]?$", "^\\d{3}-\\w{1,4}$", "^[^x\"]{1,5}$", "^.{0,4}$"])}
    if kind == "any":
        return {"anyOf": [inner() for _ in range(r.randint(1, 3))], "description": "one of them"}
    if kind == "prefix":
        return {"type": "array", "prefixItems": [inner() for _ in range(r.randint(1, 3))], "items": r.choice([False, {"type": "boolean"}]),
                "maxItems": 4}
    if kind == "ref":
        return {"$ref": "#/$defs/leaf"}
    if kind == "all":
        return {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": r.randint(3, 99)}]}
    if kind == "array":
        low = r.randint(0, 2)
        return {"type": "array", "items": inner(), "minItems": low, "maxItems": low + r.randint(0, 3)}
    names = r.sample(WORDS, r.randint(0, 4))
    out = {"type": "object", "properties": {name: inner() for name in names}, "required": [n for n in names if r.random() < 0.6]}
    more = r.choice([None, False, False, {"type": "integer", "minimum": 0, "maximum": 9}])
    return out if more is None else {**out, "additionalProperties": more}


def schema_of(number):
    return {**random_schema(random.Random(1000 + number)), "$defs": {"leaf": {"type": ["boolean", "null"]}}}
