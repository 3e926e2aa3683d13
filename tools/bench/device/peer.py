#!/usr/bin/env python3
"""Gives a published llama.cpp's libggml-cuda.so machine code for one architecture, and takes out the others'.

  peer.py LIBRARY OUT [--work DIR] [--arch 90] [--cuda /usr/local/cuda] [--jobs N] [--first N,N,...] [--only-first]

The library has PTX of a newer version than a driver or assembler may read, compressed, and machine code for other devices: hundreds of
MB that start slowly or not at all. Each module's PTX of --arch is said to be of the version that --cuda has, assembled with its ptxas, and put
in the modules' place. Assembled code lies in --work, so that a call that was ended goes on with the next.
--first: these modules before the others; --only-first: no others, which keep their PTX. `zstd` decompresses.
Standard library only."""
import argparse
import concurrent.futures
import os
import re
import struct
import subprocess
import sys

FATBIN, FATBIN_HEAD = b"\x50\xed\x55\xba", struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes after it
IMAGE_HEAD = struct.Struct("<HHIQIIHHIQQQQ")  # kind, version, bytes of this header, padded, compressed, options; version, version, arch, name; flags, 0, bytes
PTX, ZSTD = 1, 0x8000
SECTION, RELOCATION, RELATIVE = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<QQq"), 8


def sections(elf):
    """File offset, address and size by name."""
    table, = struct.unpack_from("<Q", elf, 40)
    count, names = struct.unpack_from("<HH", elf, 60)
    heads = [SECTION.unpack_from(elf, table + SECTION.size * n) for n in range(count)]
    at = heads[names][4]
    return {elf[at + head[0]:elf.index(b"\0", at + head[0])].decode(): (head[4], head[3], head[5]) for head in heads}


def modules_of(elf):
    """Where each module of CUDA code is in the file."""
    offset, _, size = sections(elf)[".nv_fatbin"]
    starts, p = [], offset
    while (p := elf.find(FATBIN, p, offset + size)) >= 0:
        starts.append(p)
        _, _, head, length = FATBIN_HEAD.unpack_from(elf, p)
        p += head + length
    return starts


def images(elf, at):
    """The images of the module at `at`: kind, architecture, flags and bytes of each; its bytes in all."""
    magic, _, head, size = FATBIN_HEAD.unpack_from(elf, at)
    if magic != int.from_bytes(FATBIN, "little"):
        sys.exit(f"no module at {at:#x}")
    found, p = [], at + head
    while p < at + head + size:
        kind, _, head_bytes, padded, compressed, _, _, _, arch, _, flags, _, _ = IMAGE_HEAD.unpack_from(elf, p)
        data = elf[p + head_bytes:p + head_bytes + (compressed or padded)]
        found.append((kind, arch, flags, data))
        p += head_bytes + padded
    return found


def version_of(cuda):
    """PTX of the version that this ptxas writes about itself: 13.0 reads 9.0."""
    said = subprocess.run([f"{cuda}/bin/ptxas", "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    major, minor = map(int, re.search(r"release (\d+)\.(\d+)", said).groups())
    if major < 13:
        sys.exit(f"{cuda}: CUDA {major}.{minor}, not 13 or later")
    return f"{major - 4}.{minor}"


def extract(elf, at, arch, version, path):
    """The PTX of `arch`, as of `version`, into a file."""
    data = next((data for kind, its, flags, data in images(elf, at) if kind == PTX and its == arch and flags & ZSTD), None)
    if data is None:
        sys.exit(f"the module at {at:#x} has no compressed PTX for {arch}")
    text = subprocess.run(["zstd", "-dc"], input=data, check=True, stdout=subprocess.PIPE).stdout.rstrip(b"\0")
    with open(path, "wb") as file:
        file.write(re.sub(rb"(?m)^\.version [\d.]+$", b".version " + version.encode(), text, count=1))


def assemble(cuda, arch, base):
    """BASE.cubin of BASE.ptx."""
    subprocess.run([f"{cuda}/bin/ptxas", f"-arch=sm_{arch}", base + ".ptx", "-o", base + ".new"], check=True)
    os.replace(base + ".new", base + ".cubin")


def module(cuda, arch, base):
    """A module of the machine code if it was assembled, or of the PTX."""
    kind, path = ("elf", base + ".cubin") if os.path.exists(base + ".cubin") else ("ptx", base + ".ptx")
    subprocess.run([f"{cuda}/bin/fatbinary", "-64", f"--create={base}.fatbin", f"--image3=kind={kind},sm={arch},file={path}"] +
                   (["--compress=false"] if kind == "elf" else []), check=True)
    with open(base + ".fatbin", "rb") as file:
        return file.read()


def replace(elf, starts, modules):
    """Modules one after another from the section's start, the rest zeros, and the relocations of their wrappers."""
    offset, address, size = sections(elf)[".nv_fatbin"]
    moved, at = {}, 0
    for start, data in zip(starts, modules):
        moved[start - offset + address] = at + address
        if at + len(data) > size:
            sys.exit(f".nv_fatbin has {size} bytes, fewer than the modules")
        elf[offset + at:offset + at + len(data)] = data
        at += -(-len(data) // 16) * 16
    elf[offset + at:offset + size] = bytes(size - at)
    wrappers, first, length = sections(elf)[".nvFatBinSegment"]
    table, _, rows = sections(elf)[".rela.dyn"]
    changed = 0
    for row in range(table, table + rows, RELOCATION.size):
        where, kind, addend = RELOCATION.unpack_from(elf, row)
        if kind == RELATIVE and first <= where < first + length and addend in moved:
            RELOCATION.pack_into(elf, row, where, kind, moved[addend])
            struct.pack_into("<Q", elf, wrappers + where - first, moved[addend])
            changed += 1
    if changed != len(starts):
        sys.exit(f"{changed} of {len(starts)} modules have a wrapper")
    return at


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("out")
    parser.add_argument("--work", default="peer-modules")
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--cuda", default="/usr/local/cuda")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", default="")
    parser.add_argument("--only-first", action="store_true")
    o = parser.parse_args()
    with open(o.library, "rb") as file:
        elf = bytearray(file.read())
    starts = modules_of(elf)
    os.makedirs(o.work, exist_ok=True)
    bases = [os.path.join(o.work, f"{n:03d}") for n in range(len(starts))]
    version = version_of(o.cuda)
    for base, start in zip(bases, starts):
        if not os.path.exists(base + ".ptx"):
            extract(elf, start, o.arch, version, base + ".ptx")
    first = [int(n) for n in o.first.split(",") if n]
    order = first + ([] if o.only_first else [n for n in range(len(starts)) if n not in first])
    with concurrent.futures.ThreadPoolExecutor(o.jobs) as pool:
        for _ in pool.map(lambda n: os.path.exists(bases[n] + ".cubin") or assemble(o.cuda, o.arch, bases[n]), order):
            pass
    used = replace(elf, starts, [module(o.cuda, o.arch, base) for base in bases])
    with open(o.out, "wb") as file:
        file.write(elf)
    os.chmod(o.out, 0o755)
    assembled = sum(os.path.exists(base + ".cubin") for base in bases)
    print(f"{o.out}: {len(starts)} modules, {assembled} assembled for sm_{o.arch}, {used >> 20} MiB")


if __name__ == "__main__":
    main()
