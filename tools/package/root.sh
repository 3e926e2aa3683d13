# Fresh Debian roots: what the tests of packages, image and README share. Sourced by test-*.sh, which set `work` and `suite`.
#   fresh_root ROOT          unpacks one, from $work/base that is made once
#   inside ROOT COMMAND...   runs a command there
#   check NAME COMMAND...    counts in passed and failed
# Needs root, debootstrap and the network of apt's own mirror (the first of this machine's sources).
[ "$(id -u)" = 0 ] || { echo "${0##*/}: needs root for debootstrap and chroot" >&2; exit 4; }
need_tools() {
    local tool
    for tool in "$@"; do command -v "$tool" >/dev/null || { echo "${0##*/}: apt-get install $*" >&2; exit 4; }; done
}
need_tools debootstrap git curl
mirror=$( (cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null || true) |
    sed -n '/^#/d;/^deb \|^URIs:/p' | grep -oE 'https?://[^ ]+' | head -n 1)
[ -n "$mirror" ] || { echo "${0##*/}: apt has no mirror here" >&2; exit 4; }
passed=0 failed=0
check() { # NAME COMMAND...
    if "${@:2}"; then echo "ok   $1"; passed=$((passed + 1)); else echo "FAIL $1"; failed=$((failed + 1)); fi
}
mkdir -p "$work"
work=$(cd "$work" && pwd)
mounted=()
unmount_roots() {
    local m
    for m in "${mounted[@]}"; do umount -l "$m" 2>/dev/null || true; done
}
base_root() { [ -d "$work/base/etc" ] || debootstrap --variant=minbase "$suite" "$work/base" "$mirror" >"$work/debootstrap.log"; }
fresh_root() { # ROOT
    local root=$1 m
    base_root
    rm -rf --one-file-system "$root" && cp -a "$work/base" "$root"
    cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
    cp -r /etc/apt/apt.conf.d "$root/etc/apt/" 2>/dev/null || true
    for m in proc sys dev; do
        mount --bind /$m "$root/$m"
        mounted+=("$root/$m")
    done
    mkdir -p "$root/dev/shm"
    chroot "$root" apt-get update -qq
}
inside() { chroot "$1" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root "${@:2}"; }
