#!/bin/bash
# Installs what was built, or removes what this would install. Called by `make install` and `make uninstall`.
#   install.sh install|uninstall BIN_DIR LIB_DIR ROOT PREFIX PROGRAM...
# ROOT is DESTDIR; LIB_DIR holds lib/ and include/ of libhelm. Manual pages and what shells complete come from the
# programs' own tables.
set -euo pipefail
what=${1:?usage: install.sh install|uninstall BIN_DIR LIB_DIR ROOT PREFIX PROGRAM...} bin=$2 lib=$3 root=$4 prefix=$5
shift 5
here=$(cd "$(dirname "$0")/.." && pwd)
# that people call
people="helm-cli helmd helm-gateway helm-plan helm-profile helm-inspect helm-quantize helm-mkmodel helm-bench"

put() # MODE TO FILE...
{
    install -D -m "$1" -t "$2" "${@:3}"
}

install_all() # TO PROGRAM...
{
    local to=$1$prefix program command
    shift
    for program in "$@"; do put 755 "$to/bin" "$bin/$program"; done
    mkdir -p "$to/lib/systemd/system" "$to/share/man/man1"
    cp -a "$lib/lib" "$lib/include" "$to/"
    cd "$here"
    put 644 "$to/share/helm" proto/helm.proto
    put 644 "$to/share/helm/demo" $(find tools/models/demo -maxdepth 1 -type f ! -name '*.md')
    put 644 "$to/share/helm/profiles" profiles/*.json
    put 644 "$to/share/doc/helm" README.md CHANGELOG.md systemd/helmd.ini
    put 644 "$to/share/doc/helm/docs" docs/*.md
    for folder in grafana images notes results; do put 644 "$to/share/doc/helm/docs/$folder" "docs/$folder"/*; done
    for unit in helmd helm-gateway; do
        sed "s|@PREFIX@|$prefix|g" "systemd/$unit.service" >"$to/lib/systemd/system/$unit.service"
    done
    install -D -m 644 systemd/helm.sysusers "$to/lib/sysusers.d/helm.conf"
    install -D -m 644 systemd/helm.tmpfiles "$to/lib/tmpfiles.d/helm.conf"
    for program in $people; do "$bin/$program" --print-man >"$to/share/man/man1/$program.1"; done
    for command in $("$bin/helm-cli" --print-options | sed -n '/^[a-z]/s/\t.*//p' | grep -v '^help$'); do
        "$bin/helm-cli" "$command" --print-man >"$to/share/man/man1/helm-cli-$command.1"
    done
    install -D -m 644 client/completion/helm.bash "$to/share/bash-completion/completions/helm-cli"
    for program in ${people#helm-cli }; do ln -sf helm-cli "$to/share/bash-completion/completions/$program"; done
    put 644 "$to/share/zsh/site-functions" client/completion/_helm
    put 644 "$to/share/fish/vendor_completions.d" client/completion/helm.fish
}

bin=$(cd "$bin" && pwd) lib=$(cd "$lib" && pwd)
if [ "$what" = install ]; then
    install_all "$root" "$@"
    exit
fi
[ "$what" = uninstall ] || { echo "install.sh: '$what' is neither install nor uninstall" >&2; exit 2; }
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
install_all "$stage" "$@"
cd "$stage"
find . ! -type d -print0 | (cd "${root:-/}" && xargs -0 rm -f)
# folders of HELM's own, which are empty then
find . -depth -type d -path '*/helm*' -print0 | (cd "${root:-/}" && xargs -0 -r rmdir --ignore-fail-on-non-empty 2>/dev/null) || true
echo "removed from $root$prefix; configuration in /etc/helm, profiles and models stay"
