#!/usr/bin/env bash
# measure-build.sh [FOLDER]: measures builds in a new clone of HEAD with an empty HOME and empty caches, in FOLDER or a
# temporary folder. Prints wall and CPU seconds of `make serve` until it is ready, of the first `make test` after it, and
# of `make test` after a change of one file in each part.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=${1:-$(mktemp -d)}
mkdir -p "$scratch/home"
git clone --quiet "$root" "$scratch/trunkline"
# Some tests read files next to the checkout.
[ ! -e "$root/../shared" ] || ln -sfn "$(cd "$root/../shared" && pwd)" "$scratch/shared"
cd "$scratch/trunkline"
export RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} HOME="$scratch/home"
unset CARGO_TARGET_DIR UV_CACHE_DIR XDG_CACHE_HOME
export CARGO_HOME="$HOME/.cargo"
log="$scratch/measure.log"

# measure WHAT COMMAND...: prints a line with wall and CPU seconds of the command and its children.
measure() {
    local what=$1 status=0
    shift
    TIMEFORMAT='%R %U %S'
    { time "$@" >>"$log" 2>&1 || status=$?; } 2>"$scratch/time"
    awk -v what="$what" -v status="$status" '{printf "| %s | %.0f | %.0f |%s\n", what, $1, $2 + $3, status == 0 ? "" : " failed"}' "$scratch/time"
    return "$status"
}

# Runs `make serve` until the server answers, then stops it by its process id.
serve_until_ready() {
    setsid make serve PORT=31999 &
    local server=$!
    # Polls with the shell's own sockets, because polling with curl would add a twentieth to the CPU time.
    until (exec 3<>/dev/tcp/127.0.0.1/31999) 2>/dev/null; do
        kill -0 "$server" 2>/dev/null || { wait "$server"; return 1; }
        sleep 0.5
    done
    curl --silent --fail --output /dev/null --retry 100 --retry-all-errors --retry-delay 1 http://127.0.0.1:31999/readyz
    pkill -TERM -P "$server" 2>/dev/null || kill -TERM "$server"
    wait "$server" || true
}

change() {
    case $1 in
    router) sed -i '0,/^use /s//const _: u8 = 1;\nuse /' router/generation/src/request/checked.rs ;;
    scheduler) sed -i '0,/^use /s//const _: u8 = 1;\nuse /' router/scheduler/src/scheduler.rs ;;
    kernels) sed -i '0,/^use /s//const _: u8 = 1;\nuse /' kernels/linear/src/quantized.rs ;;
    server) printf '\n\n_CHANGED = 1\n' >>server/trunkline_server/engine.py ;;
    esac
}

echo "| | wall s | CPU s |"
echo "|---|--:|--:|"
measure '`make serve` until it is ready' serve_until_ready
measure '`make test` after it' make test
for part in ${PARTS:-router scheduler kernels server}; do
    change "$part"
    measure "\`make test\` after a change in one file: $part" make test
done
echo "log: $log" >&2
