# Sourced on the device, from the folder of pack.sh's archives: unpacks them into /root/d (once a machine) and goes there, with what
# programs and tests look for in the environment. /usr/bin/python3 gets modules that Debian's would have; PyTorch's python3 has its own.
carry=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export HELM_D=${HELM_D:-/root/d}
unpacking=$EPOCHREALTIME
for archive in "$carry"/*.txz; do
    stamp=$HELM_D/.$(basename "$archive").$(stat -c %Y.%s "$archive")
    [ -e "$stamp" ] || { mkdir -p "$HELM_D" && xz -dc "$archive" | tar -C "$HELM_D" -xm && touch "$stamp"; } &
done
wait
cd "$HELM_D" || exit 1
export HELM_BIN=$HELM_D/build/bin HELM_PYPROTO=$HELM_D/build/release/pyproto HELM_TEST_BIN=$HELM_D/build/release/tests/process
export PYTHONPATH=$HELM_D/build/python PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH=$HELM_D/build/lib:/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OUT=${OUT:-$HELM_D/out}
mkdir -p "$OUT"
echo "unpacked into $HELM_D in $(echo "$unpacking $EPOCHREALTIME" | awk '{ printf "%.1f", $2 - $1 }') s"
