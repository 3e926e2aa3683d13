#!/usr/bin/env python3
"""Links of the documents: each relative link of a tracked .md file names a file that is there, and its anchor a heading of that file
(GitHub's rules). `make check-style` runs it. Exit status: 0, 1 with the broken links on standard error."""
import functools
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(path):
    """The lines of a page outside of code blocks."""
    inside = False
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.lstrip().startswith("```"):
                inside = not inside
            elif not inside:
                yield line


@functools.lru_cache(None)
def anchors(path):
    found = {}
    for line in prose(path):
        if not re.match(r"#{1,6} ", line):
            continue
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if i == 0 else "%s-%d" % (slug, i) for slug, n in found.items() for i in range(n + 1)}


def broken(page):
    """Why each bad link of a page is bad."""
    for line in prose(page):
        for link in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(page), name)) if name else page
            if not os.path.exists(path):
                yield "%s: %s: no such file" % (page, link)
            elif anchor and path.endswith(".md") and anchor not in anchors(path):
                yield "%s: %s: no such heading" % (page, link)


def main():
    os.chdir(ROOT)
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"], capture_output=True, text=True)
    pages = [page for page in listed.stdout.split("\0") if page and os.path.exists(page)]
    found = [why for page in pages for why in broken(page)]
    for why in found:
        print(why, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
