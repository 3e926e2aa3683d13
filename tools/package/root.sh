# Fresh roots of Debian and Ubuntu, which the makers and tests of packages, image and README share. Sourced by
# scripts that set `work`, a folder for the roots, and `suite`: one of $SUITES.
#   base_root                unpacks $work/base/$suite with debootstrap, once
#   fresh_root ROOT          copies it, with the machine's /proc, /sys and /dev, and with apt's lists
#   inside ROOT COMMAND...   runs a command there as root
#   check NAME COMMAND...    counts in passed and failed; COMMAND may be `logged LOG COMMAND...`
# They need root, debootstrap and the network of two archives: this machine's own mirror, and the public one of the
# other distribution. Every archive is verified, by keys of this machine or of Debian's package ubuntu-keyring.
SUITES="bookworm trixie noble"
[ "$(id -u)" = 0 ] || { echo "${0##*/}: needs root for debootstrap and chroot" >&2; exit 4; }
need_tools() {
    local tool missing=
    for tool in "$@"; do command -v "$tool" >/dev/null || missing="$missing $tool"; done
    [ -z "$missing" ] || { echo "${0##*/}: apt-get install$missing" >&2; exit 4; }
}
need_tools debootstrap git curl
# what fresh installations have in their apt: an archive, its components; and the keys that sign it
describe_suite() { # SUITE
    case $1 in
    bookworm | trixie | testing) distribution=debian archive=http://deb.debian.org/debian components=main script=sid ;;
    noble) distribution=ubuntu archive=http://archive.ubuntu.com/ubuntu components=main,universe script=gutsy ;;
    *) echo "${0##*/}: suite '$1' is none of $SUITES" >&2; exit 2 ;;
    esac
    local own
    if [ "$(. /etc/os-release && echo "$ID")" = $distribution ]; then
        own=$( (cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null || true) |
            sed -n '/^#/d;/^deb \|^URIs:/p' | grep -oE 'https?://[^ ]+' | head -n 1)
        archive=${own:-$archive}
    fi
}
passed=0 failed=0
check() { # NAME COMMAND...
    if "${@:2}"; then echo "ok   $1"; passed=$((passed + 1)); else echo "FAIL $1"; failed=$((failed + 1)); fi
}
logged() { # LOG COMMAND...: for `check`, whose own line is seen
    "${@:2}" >>"$1" 2>&1
}
mkdir -p "$work"
work=$(cd "$work" && pwd)
roots=()
unmount_below() { # ROOT: also what an interrupted run left
    local m
    for m in $(awk -v root="$1" 'index($2 "/", root "/") == 1 { print $2 }' /proc/mounts | sort -r); do
        umount -l "$m" || true
    done
}
unmount_roots() {
    local root
    for root in "${roots[@]}"; do unmount_below "$root"; done
}
apt_of() { # ROOT SUITE: sources, and how this machine reaches archives
    local pocket
    describe_suite "$2"
    for pocket in "$2" "$2-updates"; do
        [ $pocket != testing-updates ] || continue
        echo "deb $archive $pocket ${components//,/ }"
    done >"$1/etc/apt/sources.list"
    apt-config dump | grep -E '^Acquire::(http|https|Check-Valid-Until)[: ]' >"$1/etc/apt/apt.conf.d/90machine" || true
    rm -f "$1/etc/resolv.conf" && cp -L /etc/resolv.conf "$1/etc/"
    inside "$1" apt-get update -qq
}
# keys: a file with those of Ubuntu's archive. Debian 12 has no package of it; Debian 13 does, and apt verifies that.
ubuntu_keys() {
    keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    [ ! -e $keys ] || return 0
    keys=$work/base/ubuntu-keyring$keys
    [ ! -e "$keys" ] || return 0
    make_base trixie
    local root=$work/base/for-keys
    rm -rf "$root" "$work/base/ubuntu-keyring"
    cp -a "$work/base/trixie" "$root"
    apt_of "$root" trixie
    inside "$root" sh -c 'cd /tmp && apt-get download -qq ubuntu-keyring'
    dpkg-deb -x "$root"/tmp/ubuntu-keyring_*.deb "$work/base/ubuntu-keyring"
    rm -rf "$root"
}
make_base() { # SUITE
    local base=$work/base/$1 keys=
    [ ! -d "$base" ] || return 0
    describe_suite "$1"
    if [ $distribution = ubuntu ]; then
        ubuntu_keys
        describe_suite "$1"
    else
        keys=/usr/share/keyrings/debian-archive-keyring.gpg
        [ -e $keys ] || { echo "${0##*/}: apt-get install debian-archive-keyring" >&2; exit 4; }
    fi
    mkdir -p "$work/base"
    # debootstrap of an older release has no script of a newer one
    [ ! -e "/usr/share/debootstrap/scripts/$1" ] || script=$1
    rm -rf "$base.new"
    debootstrap --variant=minbase --keyring="$keys" --components=$components \
        "$1" "$base.new" "$archive" "$script" >"$base.log" 2>&1 || { tail -n 5 "$base.log" >&2; exit 1; }
    mv "$base.new" "$base"
}
base_root() { make_base "$suite"; }
fresh_root() { # ROOT
    local root=$1 m
    base_root
    unmount_below "$root"
    rm -rf --one-file-system "$root" && cp -a "$work/base/$suite" "$root"
    roots+=("$root")
    mount --bind "$root" "$root" # as a system's root is one; `unshare --mount` asks for it
    for m in proc sys dev dev/pts dev/shm; do mount --bind /$m "$root/$m"; done
    apt_of "$root" "$suite"
}
inside() { chroot "$1" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root "${@:2}"; }
