#!/bin/sh
# require.sh NAME...: checks prerequisites, and fails with one line that says what to install. `disk` requires
# MIN_FREE_MB megabytes of free space.
set -eu
fail() {
    echo "error: $1; hint: $2" >&2
    exit 1
}
for name in "$@"; do
    case "$name" in
    cargo)
        command -v cargo >/dev/null 2>&1 ||
            fail "Rust is missing (no \`cargo\` on PATH)" "install Rust 1.90 or newer with rustup"
        ;;
    cc)
        command -v "${CC:-cc}" >/dev/null 2>&1 ||
            fail "a C compiler is missing (no \`${CC:-cc}\` on PATH)" "on Debian: apt-get install build-essential"
        ;;
    python)
        python=${PYTHON:-python3}
        command -v "$python" >/dev/null 2>&1 ||
            fail "Python is missing (no \`$python\` on PATH)" "install Python 3.11 or newer; on Debian: apt-get install python3 python3-venv"
        "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
            fail "\`$python\` is $("$python" --version 2>&1), but 3.11 or newer is needed" "make PYTHON=/path/to/python3.11"
        "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
            fail "\`$python\` cannot create virtual environments (no module ensurepip)" "on Debian: apt-get install python3-venv"
        ;;
    npm)
        command -v npm >/dev/null 2>&1 ||
            fail "npm is missing, which builds the page in web/" "install node 20.19 or newer with npm"
        ;;
    go)
        command -v go >/dev/null 2>&1 ||
            fail "Go is missing (no \`go\` on PATH), which the chart's tests build helm with" "install Go 1.26 or newer"
        minor=$(go env GOVERSION | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
        [ "${minor:-0}" -ge 26 ] ||
            fail "\`go\` is $(go env GOVERSION), but 1.26 or newer is needed" "install Go 1.26 or newer"
        ;;
    disk)
        free_mb=$(df -Pm . | awk 'NR == 2 {print $4}')
        [ "$free_mb" -ge "$MIN_FREE_MB" ] ||
            fail "only $free_mb MB are free on this disk, but $MIN_FREE_MB are needed" "free some space, or use another disk"
        ;;
    *) fail "unknown prerequisite \`$name\`" "see scripts/require.sh" ;;
    esac
done
