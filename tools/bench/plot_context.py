#!/usr/bin/env python3
"""Token/s over tokens in the context, as a picture: rows of context_cells.py's table, read from standard input.

  plot_context.py --title TEXT [--point 'NAME:TOKENS:TOK_S' ...] [--name GROUP=TEXT ...] < TABLE.md > PICTURE.svg

A row is '| group ... | tokens | token/s | ...'; other lines are passed over. --point adds what was measured elsewhere. Standard
library only."""
import argparse
import math
import re
import sys

COLOURS = ("#c8252c", "#1b7f37", "#8250df", "#57606a", "#bc6c0a")
LEFT, TOP, WIDTH, HEIGHT = 60, 60, 720, 320


def rows(lines):
    """{group: [(tokens, token/s)]} of what is in the table."""
    series = {}
    for line in lines:
        cells = [c.strip() for c in line.strip().strip("|").split("|")]
        if len(cells) < 3:
            continue
        tokens, speed = (re.match(r"[\d,]*\d(\.\d+)?", c) for c in cells[1:3])
        if tokens and speed:
            series.setdefault(cells[0], []).append((int(tokens[0].replace(",", "")), float(speed[0].replace(",", ""))))
    return {group: sorted(points) for group, points in series.items()}


def text(x, y, words, anchor="middle", size=12, more=""):
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="#24292f"{more}>{words}</text>'


def picture(title, series):
    tokens = [t for points in series.values() for t, _ in points]
    low, high = math.log2(min(tokens)), math.log2(max(tokens))
    top = max(s for points in series.values() for _, s in points)
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100) if top / s <= 8)
    top = step * math.ceil(top / step)
    place = lambda t, s: (LEFT + WIDTH * (math.log2(t) - low) / max(high - low, 1e-9), TOP + HEIGHT * (1 - s / top))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 30}" height="{TOP + HEIGHT + 60 + 20 * len(series)}" '
           'font-family="sans-serif">', '<rect width="100%" height="100%" fill="white"/>', text(LEFT, 28, title, "start", 15)]
    for value in range(0, top + 1, step):
        y = place(2 ** low, value)[1]
        out.append(f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d0d7de"/>')
        out.append(text(LEFT - 8, y + 4, str(value), "end"))
    for t in sorted(set(tokens)):
        out.append(text(place(t, 0)[0], TOP + HEIGHT + 18, f"{t:,}"))
    out.append(text(LEFT + WIDTH / 2, TOP + HEIGHT + 38, "tokens in the context"))
    out.append(text(LEFT, TOP - 10, "token/s", "start"))
    for i, (name, points) in enumerate(series.items()):
        colour, y = COLOURS[i % len(COLOURS)], TOP + HEIGHT + 58 + 20 * i
        placed = [place(*p) for p in points]
        if len(placed) > 1:
            out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="' +
                       " ".join(f"{x:.1f},{y0:.1f}" for x, y0 in placed) + '"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y0:.1f}" r="3.5" fill="{colour}"/>' for x, y0 in placed]
        out.append(f'<rect x="{LEFT}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        out.append(text(LEFT + 20, y, name, "start"))
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--title", required=True)
    parser.add_argument("--point", action="append", default=[])
    parser.add_argument("--name", action="append", default=[])
    options = parser.parse_args()
    names = dict(n.split("=", 1) for n in options.name)
    table = rows(sys.stdin)
    if not table:
        sys.exit("plot_context.py: no row '| group | tokens | token/s |' in what was read")
    missing = set(names) - set(table)
    if missing:
        sys.exit(f"plot_context.py: no group {', '.join(sorted(missing))}; there are {', '.join(table)}")
    series = {names[g]: table[g] for g in names} if names else table
    for point in options.point:
        name, tokens, speed = point.rsplit(":", 2)
        series.setdefault(name, []).append((int(tokens), float(speed)))
    sys.stdout.write(picture(options.title, series))


if __name__ == "__main__":
    main()
