#!/usr/bin/env python3
"""The lists of models in README.md and docs/client-models.md, made of the architectures' files: of each, the line "Models:" of its
first comment, and the names that config.json and GGUF files call them. `make check-style` fails where a page has another list;
`tools/models-table.py --write` puts the right one there. Exit status: 0, 1 a list differs, 2 usage."""
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
BEGIN, END = "<!-- tools/models-table.py --write -->\n", "<!-- end -->\n"


def names(text, member):
    """The strings that a member of a file's architectures has, each once."""
    lists = re.findall(r"\.%s = (\{[^}]*\}|\"[^\"]*\")" % member, text)
    return [name for name in dict.fromkeys(re.findall(r'"([^"]+)"', " ".join(lists))) if "." not in name]


def families():
    """(models, names in config.json, names in GGUF files) in the order of the registry."""
    with open("common/model/arch.c", encoding="utf-8") as file:
        registry = re.findall(r"/\* (arch/\w+\.c) \*/", file.read())
    for name in registry:
        with open("common/model/" + name, encoding="utf-8") as file:
            text = file.read()
        if ".for_tests = true" in text:
            continue
        models = re.search(r"^ \* Models: (.*)\. \*/$", text, re.M)
        if not models:
            sys.exit(name + ": its first comment must end with a line 'Models: ...'")
        yield models.group(1), names(text, "architecture"), names(text, "gguf")


def sentence():
    return "; ".join(models for models, _, _ in families()) + ".\n"


def table():
    lines = ["| models | `architectures` in `config.json` | in GGUF |", "| --- | --- | --- |"]
    for row in families():
        lines.append("| %s | %s | %s |" % (row[0], *(", ".join("`%s`" % name for name in column) for column in row[1:])))
    return "\n".join(lines) + "\n"


def main():
    os.chdir(ROOT)
    if sys.argv[1:] not in ([], ["--write"]):
        print("usage: tools/models-table.py [--write]", file=sys.stderr)
        return 2
    differs = 0
    for page, wanted in (("README.md", sentence()), ("docs/client-models.md", table())):
        with open(page, encoding="utf-8") as file:
            before, rest = file.read().split(BEGIN)
        old, after = rest.split(END)
        if old != wanted and sys.argv[1:]:
            with open(page, "w", encoding="utf-8") as file:
                file.write(before + BEGIN + wanted + END + after)
        elif old != wanted:
            print(page + ": its models are not those of common/model/arch/: run tools/models-table.py --write", file=sys.stderr)
            differs = 1
    return differs


if __name__ == "__main__":
    sys.exit(main())
