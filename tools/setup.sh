#!/bin/bash
# Makes sure that the packages HELM is built and tested with are installed. Called by `make demo`, `make test` and `make deb`; where
# there is no make yet, run it by hand: it installs that, too.
#   setup.sh look         installs nothing: names the tools and headers that a build lacks, and the command that installs them
#   setup.sh build | test | deb | deploy | prometheus      installs for `make`, `make test`, `make deb`, `make test-deploy`,
#                                                          `make test-prometheus`
# On Debian and Ubuntu missing ones are installed with apt (through sudo when not root); elsewhere the list is printed
# and the script stops. A second run only looks (a fraction of a second).
set -euo pipefail
kind=${1:-build}
build="gcc make libc6-dev protobuf-c-compiler protobuf-compiler libzmq3-dev libsodium-dev libxxhash-dev libprotobuf-c-dev libnuma-dev libopenblas-dev
 libpcre2-dev libjansson-dev liburing-dev libutf8proc-dev libsystemd-dev libinih-dev libmicrohttpd-dev libcurl4-openssl-dev libedit-dev ca-certificates"
test="g++ libcmocka-dev python3 python3-zmq python3-protobuf python3-setuptools python3-jsonschema curl util-linux procps"
deb="dpkg-dev debhelper build-essential pkg-config git"
deploy="nginx-light haproxy openssl"
case $kind in
build | look) wanted=$build ;;
test) wanted="$build $test" ;;
deb) wanted="$build $deb" ;;
deploy) wanted="$build $test $deploy" ;;
prometheus) wanted="$build $test prometheus" ;;
*) echo "usage: setup.sh look|build|test|deb|deploy|prometheus" >&2; exit 2 ;;
esac

# Tools and headers, however they were installed.
lacking() {
    local tool header compiler
    read -ra compiler <<<"${CC:-gcc}" # CC may be several words, as in "ccache gcc"
    for tool in "${compiler[0]}" protoc-c; do command -v "$tool" >/dev/null || printf ' %s' "$tool"; done
    command -v "${compiler[0]}" >/dev/null || return 0
    for header in zmq.h sodium.h xxhash.h protobuf-c/protobuf-c.h numa.h cblas.h pcre2.h jansson.h utf8proc.h systemd/sd-daemon.h \
        ini.h liburing.h microhttpd.h curl/curl.h histedit.h; do
        echo "#include <$header>" | "${compiler[@]}" -E -DPCRE2_CODE_UNIT_WIDTH=8 - >/dev/null 2>&1 || printf ' %s' "$header"
    done
}
debian=
command -v dpkg-query >/dev/null && command -v apt-get >/dev/null && debian=1

if [ $kind = look ] || [ -z "$debian" ]; then
    missing=$(lacking)
    [ -z "$missing" ] && exit 0
    echo "setup: missing:$missing" >&2
    if [ -n "$debian" ]; then
        echo "setup: run \`make setup\` once: it installs the packages that HELM is built with (with sudo where you are not root)" >&2
    else
        echo "setup: this is not Debian or Ubuntu: install what these Debian packages hold, then run make again:" $wanted >&2
    fi
    exit 1
fi

missing=
for package in $wanted; do
    state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$state" = "install ok installed" ] || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

echo "setup: installing$missing"
sudo=
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "setup: not root and no sudo; as root run: apt-get install$missing" >&2; exit 1; }
    sudo=sudo
fi
$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq update
$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends $missing >/dev/null
