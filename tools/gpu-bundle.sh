#!/bin/bash
# Packs what tests/gpu/check.sh runs, with the libraries a bare GPU machine lacks, into one archive:
#
#   make CUDA_ARCH=90 gpu-bundle        (tools/gpu-bundle.sh [--data] [--programs] [--dir] BIN OUT.tar.xz)
#
# --data adds the models of the tests, for a machine without this tree; --programs adds helmd and all that
# tools/bench/cells.py runs; --dir leaves a folder OUT instead of an archive (tools/bench/device/pack.sh). There:
#   tar xf helm-gpu-check.tar.xz && helm-gpu-check/check.sh --need-gpu
#   tools/bench/cells.py --bin helm-gpu-check/bin --out results --set forecast
# Programs are stripped, and have machine code alone (tools/bench/device/slim.py). The driver, CUDA's own libraries, the C library, OpenBLAS and libnuma are expected there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
data=0 dir=0 more=
while [ $# -gt 2 ]; do
    case $1 in
    --data) data=1 ;;
    --programs) more="helmd helm-cli helm-plan helm-profile helm-quantize helm-inspect helm-bench helm-bench-decode helm-bench-kernels helm-mkmodel helm-worker-cpu helm-worker-gpu" ;;
    --dir) dir=1 ;;
    *) break ;;
    esac
    shift
done
[ $# -eq 2 ] || { sed -n '2,12p' "$0" >&2; exit 2; }
bin=$1 out=$2
limit=$((40 << 20))
programs="helm-test-gpu-kernels helm-test-gpu-device helm-test-gpu-home helm-test-gpu-split helm-test-gpu-stream helm-test-gpu-tiers helm-test-gpu-gguf helm-bench-gpu-kernels $more"
there='^(linux-vdso|ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libutil|libanl|libnss_[a-z]*|libmvec|libstdc\+\+|libgcc_s|libgfortran|libquadmath|libgomp|libcublas|libcublasLt|libopenblas|libnuma|libblas|liblapack)[.-]'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
top=$work/helm-gpu-check
mkdir -p "$top/bin" "$top/lib"
for p in $programs; do
    [ -x "$bin/$p" ] || { echo "tools/gpu-bundle.sh: $bin/$p is missing" >&2; exit 1; }
    cp "$bin/$p" "$top/bin/" && strip "$top/bin/$p"
    ldd "$bin/$p" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' | while read -r name path; do
        [[ $name =~ $there ]] || cp -Ln "$path" "$top/lib/$name"
    done
done
"$here/bench/device/slim.py" "$top"/bin/*
if [ $dir = 1 ]; then
    cp -R "$top" "$out"
    exit
fi
cp "$here/../tests/gpu/check.sh" "$here/../tests/gpu/masks.py" "$top/"
if [ $data = 1 ]; then
    mkdir -p "$top/tests/data" "$top/tools/models"
    cp -R "$here/../tests/data/golden" "$top/tests/data/"
    cp -R "$here/models/demo" "$top/tools/models/"
fi
tar -C "$work" --owner=0 --group=0 -c helm-gpu-check | xz -T1 --lzma2=preset=6,dict=192MiB >"$out"
bytes=$(stat -c %s "$out")
echo "$out: $((bytes >> 10)) KiB; libraries: $(ls "$top/lib" | tr '\n' ' ')"
[ "$bytes" -le $limit ] || { echo "tools/gpu-bundle.sh: more than $((limit >> 20)) MiB" >&2; rm -f "$out"; exit 1; }
