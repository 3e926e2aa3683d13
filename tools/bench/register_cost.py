#!/usr/bin/env python3
"""What registering host memory piece by piece costs while a device works (10 s; needs libcuda.so.1, no CUDA toolkit).

  register_cost.py [--pieces 32]

A memfd on 2 MiB pages where the kernel gives them is mapped, as the arena is. Pieces of 2, 16, 64 and 256 MiB of it are touched by
their first write and registered (cuMemHostRegister, as the GPU worker does with the whole at load), beside a device that is idle and
one that copies all the time; of each call the median and the worst, and by how much the copies of that time were longer. Says whether a
pool that grows in use could be registered ahead of it without a step's noticing (docs/architecture.md, "Memory")."""
import argparse
import ctypes
import mmap
import os
import statistics
import threading
import time

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *values):
    status = getattr(cuda, name)(*values)
    if status:
        raise SystemExit(f"{name}: error {status}")


class Copies(threading.Thread):
    """Copies of 16 MiB from registered memory, one after another; the time of each."""

    def __init__(self, context):
        super().__init__()
        self.context, self.over, self.took = context, False, []

    def run(self):
        call("cuCtxSetCurrent", self.context)
        host, device = ctypes.c_void_p(), ctypes.c_uint64()
        call("cuMemAllocHost_v2", ctypes.byref(host), ctypes.c_size_t(16 * MIB))
        call("cuMemAlloc_v2", ctypes.byref(device), ctypes.c_size_t(16 * MIB))
        while not self.over:
            begin = time.perf_counter()
            call("cuMemcpyHtoD_v2", device, host, ctypes.c_size_t(16 * MIB))
            self.took.append(time.perf_counter() - begin)


def register(size, pieces):
    """Seconds of touching and of registering each piece of a fresh memfd."""
    fd = os.memfd_create("register")
    os.ftruncate(fd, size * pieces)
    memory = mmap.mmap(fd, size * pieces)
    memory.madvise(mmap.MADV_HUGEPAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    touched, registered = [], []
    for i in range(pieces):
        begin = time.perf_counter()
        ctypes.memset(base + i * size, 1, size)
        middle = time.perf_counter()
        call("cuMemHostRegister_v2", ctypes.c_void_p(base + i * size), ctypes.c_size_t(size), 3)
        registered.append(time.perf_counter() - middle)
        touched.append(middle - begin)
    for i in range(pieces):
        call("cuMemHostUnregister", ctypes.c_void_p(base + i * size))
    return touched, registered


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pieces", type=int, default=32)
    pieces = parser.parse_args().pieces
    context, device = ctypes.c_void_p(), ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    print("| MiB | device | touch ms | register ms, median | worst | a copy's ms, median | worst |\n" + "| --- " * 7 + "|")
    for busy in (False, True):
        for size in (2, 16, 64, 256):
            copies = Copies(context)
            if busy:
                copies.start()
                time.sleep(0.2)
            before = len(copies.took)
            touched, registered = register(size * MIB, min(pieces, 4096 // size))
            took = copies.took[before:] or [0]
            copies.over = True
            if busy:
                copies.join()
            print(f"| {size} | {'copies' if busy else 'idle'} | {1e3 * statistics.median(touched):.2f} | {1e3 * statistics.median(registered):.2f} | "
                  f"{1e3 * max(registered):.2f} | {1e3 * statistics.median(took):.3f} | {1e3 * max(took):.3f} |", flush=True)


if __name__ == "__main__":
    main()
