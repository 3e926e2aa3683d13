"""Flags of the processor that HELM's programs see: the kernel's in /proc/cpuinfo, less those that HELM_CPU masks
(common/base/cpu.c). For tests whose expectation depends on the kernels of this machine. Owns nothing."""
import os

AVX2 = {"avx2"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
BF16 = AVX512 | {"avx512_bf16"}
# each name of HELM_CPU, and the flags that it leaves
LEFT = {"avx2": AVX2, "avx512": AVX512, "avx512-bf16": BF16, "amx-bf16": BF16 | {"amx_bf16", "amx_tile", "amx_int8"},
        "avx512-fp16": AVX512 | {"avx512_fp16"}, "avx512-vbmi2": AVX512 | {"avx512vbmi", "avx512_vbmi2"},
        "avx512-vnni": AVX512 | {"avx512_vnni"}, "none": set()}
KNOWN = set().union(*LEFT.values())


def flags(mask=None):
    with open("/proc/cpuinfo") as f:
        found = next((set(line.split()) for line in f if line.startswith("flags")), set())
    mask = os.environ.get("HELM_CPU", "") if mask is None else mask
    return found - KNOWN | found & set().union(*(LEFT[name] for name in mask.split(","))) if mask else found
