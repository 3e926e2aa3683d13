#!/bin/bash
# Writes a tarball that runs on another x86-64 Linux with none of our packages installed: the programs, the demo model
# and every shared library that is not part of glibc, the GPU driver or the CUDA toolkit (half a gigabyte: a build
# with a CUDA device finds cuBLASLt in /usr/local/cuda or in LD_LIBRARY_PATH). Called by `make dist`.
#   dist.sh BIN_DIR VERSION OUT.tar.gz          HELM_DIST_LEVEL: gzip's (6)
# Programs find the libraries by $ORIGIN/../lib: the Makefile links them with that as DT_RPATH, which (unlike
# DT_RUNPATH) also serves the libraries' own dependencies.
set -euo pipefail
bin=${1:?usage: dist.sh BIN_DIR VERSION OUT.tar.gz} version=${2:?} out=${3:?}
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/helm-$version
mkdir -p "$root/bin" "$root/lib" "$root/share/helm"
for program in "$bin"/*; do
    [[ $program == */helm-test-* ]] && continue
    [ -f "$program" ] && [ -x "$program" ] && cp "$program" "$root/bin/"
done
strip --strip-debug "$root"/bin/*
# glibc's own, the loader and the driver stay the machine's
glibc='^(linux-vdso|ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv|libutil|libanl|libnss_.*|libmvec|libcuda|libnvidia.*|libcublas.*|libcudart.*)\.so'
ldd "$root"/bin/* | awk '/=>/ {print $1, $3} /not found/ {print "MISSING " $1 > "/dev/stderr"; bad = 1} END {exit bad}' |
    sort -u | while read -r name path; do
    [[ $name =~ $glibc ]] && continue
    cp -L "$path" "$root/lib/$name"
done
cp -r "$here/tools/models/demo" "$root/share/helm/demo"
cp -r "$here/profiles" "$root/share/helm/profiles"
cp "$here/README.md" "$here/CHANGELOG.md" "$root/" 2>/dev/null || true
tar -C "$work" -I "gzip -${HELM_DIST_LEVEL:-6}" -cf "$out" "helm-$version"
echo "$out: $(du -h "$out" | cut -f1), $(ls "$root/bin" | wc -l) programs, $(ls "$root/lib" | wc -l) libraries"
