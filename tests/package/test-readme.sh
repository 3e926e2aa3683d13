#!/bin/bash
# Follows README.md word by word in fresh roots: `apt-get install make`, then every command of "Try it" and "The
# first real model" as it stands there, `make test` among them (follow.py).
#   test-readme.sh WORK_DIR [SUITES [HOWS [BESIDES]]]          as root; each a list in one word
#     SUITES   bookworm, trixie, noble (all)
#     HOWS     root: in root's home, which no other user may enter; user: as a user with sudo (root)
#     BESIDES  quiet; busy: while two other processes compute all the time (quiet)
#   README_TEST=0 leaves out `make test`, counted as skipped; HELM_CPU=avx2 hides what the processor has beside.
# Called by `make test-readme`. Every combination has a root of its own; with `make test` it takes half an hour or
# more. The last commit is followed. Needs debootstrap and the network of the archives (root.sh).
set -euo pipefail
work=${1:?usage: test-readme.sh WORK_DIR [SUITES [HOWS [BESIDES]]]} suite=
here=$(cd "$(dirname "$0")/../.." && pwd)
. "$here/tools/package/root.sh"
suites=${2:-$SUITES} hows=${3:-root} besides=${4:-quiet} busy=
be_quiet() {
    [ -z "$busy" ] || kill $busy
    busy=
}
trap 'be_quiet; unmount_roots' EXIT

follow() { # HOW BESIDE
    local root=$work/readme-$suite-$1 home=/root user=root
    fresh_root "$root"
    chmod 700 "$root/root"
    inside "$root" apt-get install -y -qq --no-install-recommends make >"$root.log" 2>&1
    if [ "$1" = user ]; then
        inside "$root" apt-get install -y -qq --no-install-recommends sudo >>"$root.log" 2>&1
        user=reader home=/home/reader
        inside "$root" useradd --create-home --shell /bin/bash $user
        echo "$user ALL=(ALL) NOPASSWD: ALL" >"$root/etc/sudoers.d/$user"
    fi
    git clone -q --no-hardlinks "$here" "$root$home/helm"
    inside "$root" chown -R $user: $home/helm
    if [ "$2" = busy ]; then
        for _ in 1 2; do
            (while :; do :; done) &
            busy="$busy $!"
        done
    fi
    check "README.md in $suite, $1, $2${HELM_CPU:+, HELM_CPU=$HELM_CPU}" \
        python3 "$here/tests/package/follow.py" readme "$root" $home/helm $user
    be_quiet
    unmount_roots
    roots=()
}
for how in $hows; do
    case $how in root | user) ;; *) echo "test-readme.sh: '$how' is neither root nor user" >&2; exit 2 ;; esac
done
for beside in $besides; do
    case $beside in quiet | busy) ;; *) echo "test-readme.sh: '$beside' is neither quiet nor busy" >&2; exit 2 ;; esac
done
for suite in $suites; do
    for how in $hows; do
        for beside in $besides; do
            echo "--- $suite, $how, $beside"
            began=$SECONDS
            follow $how $beside
            echo "after $((SECONDS - began)) s"
        done
    done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
