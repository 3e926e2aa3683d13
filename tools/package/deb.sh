#!/bin/bash
# Makes Debian packages of the last commit: helm, helm-gateway, libhelm0, libhelm-dev. Called by `make deb`.
#   deb.sh OUT_DIR
# The owner has given no address yet: the maintainer's is at example.org, which reaches no mailbox.
# Works in OUT_DIR/helm-VERSION, a copy with tools/debian as its debian/; packages land in OUT_DIR. Missing build
# packages are named, not installed: a package is built where its maker wants it built.
set -euo pipefail
out=${1:?usage: deb.sh OUT_DIR}
here=$(cd "$(dirname "$0")/../.." && pwd)
cd "$here"
for tool in dpkg-buildpackage dh; do
    command -v $tool >/dev/null || { echo "deb.sh: $tool is missing: apt-get install dpkg-dev debhelper" >&2; exit 4; }
done
version=$(cat VERSION) commit=$(git rev-parse --short HEAD)
mkdir -p "$out"
out=$(cd "$out" && pwd) tree=$out/helm-$version
rm -rf "$tree" "$out"/*.deb
mkdir -p "$tree"
git archive HEAD | tar -x -C "$tree"
cp -a tools/debian "$tree/debian"
cat >"$tree/debian/changelog" <<EOF
helm ($version-1) unstable; urgency=medium

  * Commit $commit; the changelog beside this one says what changed.

 -- HELM maintainers <helm@example.org>  $(git log -1 --format=%cD)
EOF
cd "$tree"
DEB_BUILD_OPTIONS="parallel=$(nproc)" dpkg-buildpackage -us -uc -b
ls -l "$out"/*.deb
