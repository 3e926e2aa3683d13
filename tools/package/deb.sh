#!/bin/bash
# Makes Debian packages of the last commit: helm, helm-gateway, libhelm0, libhelm-dev. Called by `make deb`.
#   deb.sh OUT_DIR [SUITE]
# Packages fit one release, whose libraries they need: this machine's, or SUITE (bookworm, trixie, noble), in a
# fresh root of it (root.sh, as root; $ROOTS is its folder). Their version ends in the release, so that an upgrade
# of the system finds newer ones: 0.1-1~deb12u1 of Debian 12, 0.1-1~deb13u1, 0.1-1~ubuntu24.04.1. Missing packages
# to build with are installed.
# The owner has given no address yet: the maintainer's is at example.org, which reaches no mailbox.
# Works in OUT_DIR/helm-VERSION, a copy with tools/debian as its debian/; packages land in OUT_DIR.
set -euo pipefail
out=${1:?usage: deb.sh OUT_DIR [SUITE]} suite=${2:-}
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$out"
out=$(cd "$out" && pwd)
rm -f "$out"/*.{deb,ddeb,changes,buildinfo}

if [ -n "$suite" ]; then
    work=${ROOTS:-$out/roots}
    . "$here/tools/package/root.sh"
    trap unmount_roots EXIT
    root=$work/deb-$suite
    fresh_root "$root"
    inside "$root" apt-get install -y -qq --no-install-recommends git make >"$root.log" 2>&1
    git clone -q --no-hardlinks "$here" "$root/helm"
    inside "$root" git config --global --add safe.directory /helm
    inside "$root" sh -c 'cd /helm && make deb' >>"$root.log" 2>&1 || { tail -n 30 "$root.log" >&2; exit 1; }
    find "$root/helm/build/deb" -maxdepth 1 -type f -exec cp -t "$out" {} +
    ls -l "$out"/*.deb
    exit
fi

cd "$here"
tools/setup.sh deb
. /etc/os-release
case $ID in
debian) release="deb${VERSION_ID:?deb.sh: this Debian has no number yet}u1" ;;
ubuntu) release="ubuntu$VERSION_ID.1" ;;
*) echo "deb.sh: packages are made on Debian and Ubuntu, not on '$ID' (with SUITE: in a root)" >&2; exit 4 ;;
esac
version=$(cat VERSION) commit=$(git rev-parse --short HEAD) tree=$out/helm-$(cat VERSION)
rm -rf "$tree"
mkdir -p "$tree"
git archive HEAD | tar -x -C "$tree"
cp -a tools/debian "$tree/debian"
cat >"$tree/debian/changelog" <<END
helm ($version-1~$release) $VERSION_CODENAME; urgency=medium

  * Commit $commit; the changelog beside this one says what changed.

 -- HELM maintainers <helm@example.org>  $(git log -1 --format=%cD)
END
cd "$tree"
DEB_BUILD_OPTIONS="parallel=$(nproc)" dpkg-buildpackage -us -uc -b
ls -l "$out"/*.deb
