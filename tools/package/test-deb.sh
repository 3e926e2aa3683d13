#!/bin/bash
# Builds the packages in a fresh Debian root, installs and starts them in a second one, and asks for an answer by HTTP.
#   test-deb.sh WORK_DIR [SUITE]          as root; SUITE: bookworm
# Called by `make test-deb`. Needs debootstrap and the network of apt's own mirror (the first of this machine's sources).
# There is no systemd in a root that was only unpacked: the services' own command lines are started as their users.
set -euo pipefail
work=${1:?usage: test-deb.sh WORK_DIR [SUITE]} suite=${2:-bookworm}
here=$(cd "$(dirname "$0")/../.." && pwd)
. "$here/tools/package/root.sh"
cleanup() {
    [ -z "${pids:-}" ] || kill $pids 2>/dev/null || true
    unmount_roots
}
trap cleanup EXIT

began=$SECONDS
fresh_root "$work/make"
inside "$work/make" apt-get install -y -qq --no-install-recommends build-essential debhelper git lintian >"$work/make.log" 2>&1
git clone -q "$here" "$work/make/helm"
cp -a "$here/tools/debian" "$work/make/tmp/debian"
inside "$work/make" sh -c 'cd /tmp && apt-get build-dep -y -qq --no-install-recommends ./' >>"$work/make.log" 2>&1
check "built in a fresh root" inside "$work/make" sh -c 'git config --global --add safe.directory /helm && cd /helm && tools/package/deb.sh /deb' >>"$work/make.log" 2>&1
check "four packages" [ "$(ls "$work/make/deb"/*.deb | grep -vc dbgsym)" = 4 ]
check "lintian is content" inside "$work/make" sh -c 'lintian --fail-on error,warning /deb/*.changes'
echo "built after $((SECONDS - began)) s"

began=$SECONDS
fresh_root "$work/use"
for p in helm helm-gateway libhelm0 libhelm-dev; do cp "$work/make/deb"/${p}_*.deb "$work/use/tmp/"; done
check "installed in a second root" inside "$work/use" sh -c 'apt-get install -y -qq --no-install-recommends curl python3-minimal /tmp/*.deb' >"$work/use.log" 2>&1
check "its user is there" inside "$work/use" id helm
mkdir -p "$work/use/etc/helm" "$work/use/run/helm" "$work/use/var/lib/helm"
printf '[helmd]\nmodel = /usr/share/helm/demo\nctx = 512\n' >"$work/use/etc/helm/helmd.ini"
inside "$work/use" chown helm:helm /run/helm /var/lib/helm
command_of() { sed -n 's/^ExecStart=//p' "$work/use/usr/lib/systemd/system/$1.service" | sed 's/ \$OPTIONS//'; }
# what systemd would set, and each the process that is killed: no shell between
start() { exec chroot "$work/use" setpriv "$@"; }
start --reuid helm --regid helm --init-groups env RUNTIME_DIRECTORY=/run/helm STATE_DIRECTORY=/var/lib/helm HOME=/var/lib/helm \
    $(command_of helmd) >"$work/helmd.log" 2>&1 &
pids=$!
# the gateway ends where there is no daemon yet, and systemd starts it again
for _ in $(seq 120); do [ -S "$work/use/run/helm/helmd.sock" ] || sleep 1; done
start --reuid nobody --regid nogroup --groups "$(inside "$work/use" getent group helm | cut -d: -f3)" \
    $(command_of helm-gateway) --listen 127.0.0.1:18080 >"$work/gateway.log" 2>&1 &
pids="$pids $!"
answer() {
    for _ in $(seq 120); do
        curl -sf http://127.0.0.1:18080/v1/completions -H 'Content-Type: application/json' \
            -d '{"prompt": "And it came to pass", "max_tokens": 8}' | grep -q '"text"' && return 0
        sleep 1
    done
    tail -n 5 "$work/helmd.log" "$work/gateway.log"
    return 1
}
check "curl gets an answer" answer
check "helm-cli talks to it" inside "$work/use" setpriv --reuid helm --regid helm --init-groups env HOME=/var/lib/helm helm-cli status
echo "installed and answered after $((SECONDS - began)) s (package downloads included)"
kill $pids
wait $pids || true
pids=
check "stopped, and nothing is left of them" [ -z "$(ls -A "$work/use/run/helm")" ]
check "removed without a trace" inside "$work/use" sh -c 'apt-get purge -y -qq helm helm-gateway libhelm0 libhelm-dev && ! ls /usr/bin/helm* 2>/dev/null' >>"$work/use.log" 2>&1
echo "$passed passed, $failed failed"
[ $failed = 0 ]
