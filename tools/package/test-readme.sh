#!/bin/bash
# Follows README.md word by word in a fresh Debian root: `apt-get install make`, then every command of "Try it" and "The first
# real model" as it stands there. No hub can be asked, so a stand-in on this machine serves the demo model under the name that
# README pulls.
#   test-readme.sh WORK_DIR [SUITE]          as root; SUITE: bookworm
# Called by `make test-readme`. Needs debootstrap and the network of apt's own mirror. What is followed is the last commit.
set -euo pipefail
work=${1:?usage: test-readme.sh WORK_DIR [SUITE]} suite=${2:-bookworm}
here=$(cd "$(dirname "$0")/../.." && pwd)
. "$here/tools/package/root.sh"
trap unmount_roots EXIT
root=$work/readme
fresh_root "$root"
inside "$root" apt-get install -y -qq --no-install-recommends make >"$work/readme.log" 2>&1
git clone -q "$here" "$root/root/helm"
python3 "$here/tools/package/follow_readme.py" "$root" /root/helm
