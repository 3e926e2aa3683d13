#!/usr/bin/env python3
"""Fails if a function takes more than seven parameters: a struct whose members are named at the call reads better.

    tools/check-parameters.py [FILE...]     definitions in these files, without any in all that git tracks

Left out is what has its parameters from elsewhere: kernels (functions marked __global__, and the folders of kernels) and the
callbacks of libmicrohttpd.
"""
import re
import subprocess
import sys

MOST = 7
FOREIGN = ("__global__", "MHD_Result")  # what others say how to call: kernels, libmicrohttpd's callbacks
KERNELS = re.compile(r"(^|/)kernels/")
NOISE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|^[ \t]*#(?:\\\n|[^\n])*', re.S | re.M)
HEAD = re.compile(r"^(?P<before>[A-Za-z_][\w \t\n*<>:,]*?[\s*&])(?P<name>\w+)\s*\((?P<parameters>[^;{}]*)\)\s*(?:const\s*)?\{", re.M)


def blank(match):
    """White space with as many lines."""
    return re.sub(r"[^\n]", " ", match.group())


def count(parameters):
    """Commas outside brackets, and one."""
    depth, commas = 0, 0
    for c in parameters:
        depth += (c in "(<[") - (c in ")>]")
        commas += c == "," and depth == 0
    return 0 if parameters.strip() in ("", "void") else commas + 1


def definitions(text):
    text = NOISE.sub(blank, text)
    for match in HEAD.finditer(text):
        if match["name"] in ("if", "for", "while", "switch", "return") or any(mark in match["before"] for mark in FOREIGN):
            continue
        yield text.count("\n", 0, match.start("name")) + 1, match["name"], count(match["parameters"])


def main():
    files = sys.argv[1:] or subprocess.run(
        ["git", "ls-files", "*.c", "*.h", "*.cu", "*.cuh"], check=True, capture_output=True, text=True).stdout.split()
    failed = False
    for path in files:
        if KERNELS.search(path):
            continue
        with open(path, encoding="utf-8") as file:
            for line, name, parameters in definitions(file.read()):
                if parameters > MOST:
                    print(f"{path}:{line}: {name} takes {parameters} parameters, more than {MOST}", file=sys.stderr)
                    failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
