#!/bin/bash
# Builds the Containerfile with buildah from a debootstrap, starts the image's own command and asks it by HTTP.
#   test-image.sh WORK_DIR [SUITE]          as root; SUITE: bookworm
# Called by `make test-image`. Needs buildah, podman, debootstrap and the network of apt's mirror, no registry: its base is what
# debootstrap unpacks, not the image of the hub. The context is the last commit.
set -euo pipefail
work=${1:?usage: test-image.sh WORK_DIR [SUITE]} suite=${2:-bookworm}
here=$(cd "$(dirname "$0")/../.." && pwd)
. "$here/tools/package/root.sh"
need_tools buildah podman debootstrap git curl
store=(--root "$work/store" --runroot "$work/run" --storage-driver overlay)
trap '[ -z "${pid:-}" ] || kill $pid 2>/dev/null || true; for m in proc dev; do [ -z "${root:-}" ] || umount -l "$root/$m" 2>/dev/null || true; done
    [ -z "${container:-}" ] || buildah "${store[@]}" rm "$container" >/dev/null 2>&1 || true' EXIT

base_root
tar -C "$work/base/$suite" -c . | podman "${store[@]}" import - localhost/debian:base >/dev/null
rm -rf "$work/context" && git clone -q --no-hardlinks "$here" "$work/context"
began=$SECONDS
check "the image is built" logged "$work/build.log" buildah "${store[@]}" bud --isolation chroot -t helm \
    --build-arg BUILD=localhost/debian:base --build-arg RUN=localhost/debian:base "$work/context"
echo "built after $((SECONDS - began)) s: $(buildah "${store[@]}" images --format '{{.Size}}' localhost/helm)"

# Its own command in its own root and as its user, as a runtime starts it; a chroot, since not every machine lets containers nest.
container=$(buildah "${store[@]}" from localhost/helm)
root=$(buildah "${store[@]}" mount "$container")
config=$(buildah "${store[@]}" inspect --type image localhost/helm |
    python3 -c 'import json, sys; print(json.dumps(json.load(sys.stdin)["OCIv1"]["config"]))')
of() { python3 -c 'import json, sys; c = json.loads(sys.argv[1]); print(" ".join(c[sys.argv[2]] if isinstance(c[sys.argv[2]], list) else [c[sys.argv[2]]]))' "$config" "$1"; }
check "it runs as a user of its own" [ "$(of User)" = helm ]
mkdir -p "$root/etc/helm"
echo sk-of-the-test >"$root/etc/helm/keys"
chroot "$root" chown helm:helm /etc/helm/keys
chmod 400 "$root/etc/helm/keys"
for m in proc dev; do mount --bind /$m "$root/$m"; done
command=$(of Entrypoint | sed 's/0\.0\.0\.0:8080/127.0.0.1:18081/')
(exec chroot "$root" setpriv --reuid helm --regid helm --init-groups env HOME=/var/lib/helm $command $(of Cmd)) >"$work/gateway.log" 2>&1 &
pid=$!
began=$SECONDS
answer() {
    for _ in $(seq 120); do
        curl -sf http://127.0.0.1:18081/v1/completions -H 'Authorization: Bearer sk-of-the-test' \
            -d '{"prompt": "And it came to pass", "max_tokens": 8}' | grep -q '"text"' && return 0
        sleep 1
    done
    tail -n 5 "$work/gateway.log"
    return 1
}
check "curl gets an answer" answer
echo "answered after $((SECONDS - began)) s"
check "... not without its key" [ "$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:18081/v1/models)" = 401 ]
check "... and /health needs none" curl -sf -o /dev/null http://127.0.0.1:18081/health
kill $pid
wait $pid && code=0 || code=$?
pid=
check "it ends with 0" [ $code = 0 ]
for m in proc dev; do umount -l "$root/$m"; done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
