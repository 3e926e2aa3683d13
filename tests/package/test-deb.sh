#!/bin/bash
# For each release: builds the packages in a fresh root, installs them in a second one by docs/deploy.md's own
# commands, which pull a model, start the services and ask for an answer by HTTP, and removes them.
#   test-deb.sh WORK_DIR [SUITE...]          as root; SUITE: bookworm, trixie, noble (all)
# Called by `make test-deb`. Needs debootstrap and the network of the archives (root.sh). There is no systemd in a
# root that was only unpacked: follow.py starts the services' own command lines as their users.
set -euo pipefail
work=${1:?usage: test-deb.sh WORK_DIR [SUITE...]}
shift
here=$(cd "$(dirname "$0")/../.." && pwd)
. "$here/tools/package/root.sh"
trap unmount_roots EXIT

one_version() { # PACKAGES NUMBER: all are of the release with this number
    local p
    for p in "$1"/*.deb; do dpkg-deb -f "$p" Version; done | sort -u | grep -qxE "[0-9.]+-1~(deb$2u1|ubuntu$2\.1)"
}
test_suite() {
    local packages=$work/packages-$suite use=$work/use-$suite began=$SECONDS make=$work/deb-$suite p
    echo "--- $suite"
    rm -f "$packages.log"
    check "make deb in a fresh root" logged "$packages.log" \
        env ROOTS="$work" "$here/tools/package/deb.sh" "$packages" "$suite"
    check "four packages" [ "$(ls "$packages"/*.deb | grep -vc dbgsym)" = 4 ]
    check "... of this release" one_version "$packages" "$(. "$make/etc/os-release" && echo "$VERSION_ID")"
    echo "built after $((SECONDS - began)) s; helm needs $(dpkg-deb -f "$packages"/helm_*.deb Depends)"

    began=$SECONDS
    fresh_root "$use"
    inside "$use" apt-get install -y -qq --no-install-recommends curl sudo >"$use.log" 2>&1
    # what a person types or has: yes; and the stand-in of the hub for what sudo starts
    echo 'APT::Get::Assume-Yes "true";' >"$use/etc/apt/apt.conf.d/90yes"
    echo 'Defaults env_keep += "HF_ENDPOINT HELM_CPU"' >"$use/etc/sudoers.d/hub"
    mkdir "$use/packages"
    for p in helm helm-gateway libhelm0 libhelm-dev; do cp "$packages"/${p}_*.deb "$use/packages/"; done
    check "docs/deploy.md, word by word" python3 "$here/tests/package/follow.py" deploy "$use" /packages
    echo "installed and answered after $((SECONDS - began)) s (package downloads included)"
    check "a changed helmd.ini is kept by an upgrade" logged "$use.log" inside "$use" \
        sh -c 'apt-get install -qq --reinstall /packages/*.deb && grep -q ^model /etc/helm/helmd.ini'
    check "removed; what was pulled stays" logged "$use.log" inside "$use" sh -c '
        apt-get purge -qq helm helm-gateway libhelm0 libhelm-dev &&
        ! ls -d /usr/bin/helm* /etc/helm 2>/dev/null && ls -d /var/lib/helm'
    cp "$packages"/* "$use/packages/"
    inside "$use" apt-get install -qq --no-install-recommends lintian >>"$use.log" 2>&1
    check "lintian is content" inside "$use" sh -c 'lintian --fail-on error,warning /packages/*.changes'
    unmount_roots
    roots=()
}
for suite in ${*:-$SUITES}; do test_suite; done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
