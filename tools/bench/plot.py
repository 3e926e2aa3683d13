#!/usr/bin/env python3
"""Draws a table of speeds as bars: plot.py TABLE.tsv PLOT.svg. README's picture is docs/images/speed.tsv.

The first line of the table that is not a comment names its columns: model, VRAM, then a program each. Each model is a panel with a scale
of its own, each row a group of bars. A value that is no number is written where the bar would be. Standard library only."""
import sys
from xml.sax.saxutils import escape

WIDTH, TOP, BOTTOM, LEFT, GAP = 860, 74, 300, 44, 40
STYLE = """<style>
.page{fill:#fff} text{fill:#1f2328;font:13px system-ui,'Segoe UI',Helvetica,Arial,sans-serif}
.title{font-size:15px;font-weight:600} .small{fill:#59636e;font-size:11px} .line{stroke:#59636e}
.side0{fill:#cf222e} .side1{fill:#8c959f} .side2{fill:#0a6fc2}
@media (prefers-color-scheme: dark){.page{fill:#0d1117} text{fill:#e6edf3} .small{fill:#9198a1} .line{stroke:#9198a1}
.side0{fill:#ff7b72} .side1{fill:#6e7681} .side2{fill:#58a6ff}}
</style>"""


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


def read(path):
    """(names of the programs, {model: [(VRAM, [value, ...])]})"""
    with open(path, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file if line.strip() and not line.startswith("#")]
    models = {}
    for model, vram, *values in rows[1:]:
        assert len(values) == len(rows[0]) - 2, "%s: %s %s: a value for each program" % (path, model, vram)
        models.setdefault(model, []).append((vram, values))
    return rows[0][2:], models


def label(x, y, text, kind="", anchor="middle", more=""):
    return '<text x="%.1f" y="%.1f" class="%s" text-anchor="%s"%s>%s</text>' % (x, y, kind, anchor, more, escape(text))


def panel(left, width, model, groups):
    """A model's bars, on a scale of their own."""
    highest = max(number(value) or 0 for _, values in groups for value in values)
    step = width / len(groups)
    yield label(left, TOP - 22, model, "title", "start")
    for i, (vram, values) in enumerate(groups):
        bar = 0.8 * step / len(values)
        for k, value in enumerate(values):
            x, size = left + i * step + 0.1 * step + k * bar, number(value)
            middle = x + bar / 2
            if size is None:
                yield label(middle + 4, BOTTOM - 6, value, "small", "start", ' transform="rotate(-90 %.1f %.1f)"' % (middle + 4, BOTTOM - 6))
                continue
            height = (BOTTOM - TOP) * size / highest
            yield '<rect class="side%d" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>' % (k, x, BOTTOM - height, bar - 3, height)
            yield label(middle - 1.5, BOTTOM - height - 5, "%.0f" % size if size >= 100 else "%.1f" % size)
        yield label(left + (i + 0.5) * step, BOTTOM + 18, vram)
    yield '<line class="line" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>' % (left, left + width, BOTTOM, BOTTOM)


def draw(programs, models):
    groups = sum(len(rows) for rows in models.values())
    room = WIDTH - 2 * LEFT - GAP * (len(models) - 1)
    yield '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="350" viewBox="0 0 %d 350" role="img">' % (WIDTH, WIDTH)
    yield "<title>Decode speed over VRAM: %s</title>%s" % (escape(", ".join(programs)), STYLE)
    yield '<rect class="page" width="%d" height="350"/>' % WIDTH
    left = LEFT
    for model, rows in models.items():
        width = room * len(rows) / groups
        yield from panel(left, width, model, rows)
        left += width + GAP
    yield label(LEFT, 24, "Decode, token/s, over the VRAM that may be used", "", "start")
    for k, program in enumerate(programs):
        x = WIDTH - LEFT - 110 * (len(programs) - k)
        yield '<rect class="side%d" x="%d" y="13" width="12" height="12"/>' % (k, x)
        yield label(x + 18, 24, program, "", "start")
    yield label(LEFT, 340, "One H200, VRAM held to a ceiling; the two programs of a pair in one call, llama.cpp with the fastest settings tried.",
                "small", "start")
    yield "</svg>"


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: plot.py TABLE.tsv PLOT.svg")
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write("\n".join(draw(*read(sys.argv[1]))) + "\n")


if __name__ == "__main__":
    main()
