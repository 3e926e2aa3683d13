#!/usr/bin/env python3
"""Writes one source that includes several, so that a compiler reads their headers once: unite.py SOURCE... >UNITED.

For `make test` alone, which compiles GPU kernels and runs none of them on a GPU: an nvcc process and CUDA's headers take most of the time of
most kernels' files. The headers of all sources come first. A name at file scope that two sources define gets the source's name before it
while that source is included, and macros end with the source that defines them."""
import collections
import os
import re
import sys

INCLUDE = re.compile(r'^(?:extern "C" {\n(?:#include .*\n)+}|#include .*)$', re.M)
MACRO = re.compile(r"^#define (\w+)", re.M)
CONSTANTS = re.compile(r"^static (?:const|constexpr) [\w ]*?(?=\w+ =)(.*?);", re.M | re.S)
OTHERS = (re.compile(r"^(?:template <[^>]*>\s*)?(?:static |__global__ )[^=;{}()]*?(?:__launch_bounds__\([^()]*(?:\([^()]*\))?[^()]*\)\s*)?(\w+)\(", re.M),
          re.compile(r"^static const [\w ]*?\*?(?:const )?(\w+)(?:\[[^;=]*\])+ =", re.M),
          re.compile(r"^(?:struct|enum|union) (\w+)\s*{", re.M),
          re.compile(r"^template <[^>]*>\s*struct (\w+)\s*{", re.M),
          re.compile(r"^(?:template <[^>]*>\s*)?using (\w+) =", re.M))


def names_of(text):
    names = {name for pattern in OTHERS for name in pattern.findall(text)}
    for constants in CONSTANTS.findall(text):
        names.update(re.findall(r"(?:^|,)\s*(\w+) =", constants))
    return names


def main(paths):
    texts = {path: open(path).read() for path in paths}
    names = {path: names_of(text) for path, text in texts.items()}
    defined = collections.Counter(name for path in paths for name in names[path])
    print("\n".join(dict.fromkeys(line for text in texts.values() for line in INCLUDE.findall(text))))
    for path in paths:
        own = os.path.basename(path).split(".")[0]
        twice = sorted(name for name in names[path] if defined[name] > 1)
        for name in twice:
            print("#define %s %s_of_%s" % (name, name, own))
        print('#include "%s"' % path)
        for name in sorted({*twice, *MACRO.findall(texts[path])}):
            print("#undef %s" % name)


main(sys.argv[1:])
