#!/usr/bin/env python3
"""Takes out of programs with CUDA code the parts that a known device does not read: slim.py PROGRAM... (in place).

The PTX beside machine code, and the text of PTX inside machine code (nvcc -lineinfo keeps it, two thirds of the bytes); lines of
the source stay, for compute-sanitizer. Machine code that was compressed is compressed again. Zeros take the room, so an archive of
several programs is a fifth as large. `zstd` must be there. Standard library only."""
import functools
import struct
import subprocess
import sys

from peer import FATBIN_HEAD, IMAGE_HEAD, SECTION, ZSTD, modules_of, sections

ELF, TEXT_OF_PTX = 2, ".nv_debug_ptx_txt"


def without_text(cubin):
    """The same machine code whose section of PTX's text is empty; the bytes after it move to the front of what it had."""
    cubin = bytearray(cubin)
    names = sections(cubin)
    if TEXT_OF_PTX not in names:
        return cubin
    offset, _, size = names[TEXT_OF_PTX]
    table, = struct.unpack_from("<Q", cubin, 40)
    count, = struct.unpack_from("<H", cubin, 60)
    for n in range(count):
        if SECTION.unpack_from(cubin, table + SECTION.size * n)[4] == offset:
            struct.pack_into("<Q", cubin, table + SECTION.size * n + 32, 0)
    cubin[offset:offset + size] = bytes(size)
    return cubin


@functools.cache
def compressed_without_text(data):
    """Programs share their kernels."""
    raw = subprocess.run(["zstd", "-dc"], input=data, check=True, stdout=subprocess.PIPE).stdout
    return subprocess.run(["zstd", "-12", "-c"], input=bytes(without_text(raw)), check=True, stdout=subprocess.PIPE).stdout


def slim_image(head, data):
    """An image's header and bytes, padded as before."""
    fields = list(IMAGE_HEAD.unpack_from(head))
    if fields[10] & ZSTD:
        data = compressed_without_text(bytes(data))
        fields[4] = len(data)
    else:
        data = bytes(without_text(data))
    fields[3] = -(-len(data) // 8) * 8
    head[:IMAGE_HEAD.size] = IMAGE_HEAD.pack(*fields)
    return bytes(head) + data + bytes(fields[3] - len(data))


def slim(elf):
    for at in modules_of(elf):
        magic, version, head_bytes, size = FATBIN_HEAD.unpack_from(elf, at)
        kept, p = b"", at + head_bytes
        while p < at + head_bytes + size:
            kind, _, head, padded, compressed, *_ = IMAGE_HEAD.unpack_from(elf, p)
            if kind == ELF:
                kept += slim_image(bytearray(elf[p:p + head]), elf[p + head:p + head + (compressed or padded)])
            p += head + padded
        if kept and len(kept) <= size:
            FATBIN_HEAD.pack_into(elf, at, magic, version, head_bytes, len(kept))
            elf[at + head_bytes:at + head_bytes + size] = kept + bytes(size - len(kept))


def main():
    for path in sys.argv[1:]:
        with open(path, "r+b") as file:
            elf = bytearray(file.read())
            if ".nv_fatbin" in sections(elf):
                slim(elf)
                file.seek(0)
                file.write(elf)


if __name__ == "__main__":
    main()
