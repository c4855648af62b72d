#!/bin/sh
# Checks what the lock files contain: licences and sources of crates, and known vulnerabilities of crates and Python
# packages. What cannot be looked up from here is named as skipped; a finding is an error.
set -eu
cd "$(dirname "$0")/.."
status=0
deny=.tools/bin/cargo-deny
[ -x $deny ] || deny=$(command -v cargo-deny) || {
    echo "building cargo-deny in .tools (five minutes)"
    cargo install --quiet --locked --root .tools --target-dir target/cargo-deny cargo-deny
    deny=.tools/bin/cargo-deny
}
$deny --log-level error check licenses bans sources || status=1
if $deny --log-level error fetch db; then
    $deny --log-level error check --disable-fetch advisories || status=1
else
    echo "skipped: advisories of crates, because the database of RustSec cannot be fetched"
fi
for lock in requirements/*.txt; do
    case $lock in *-overrides.txt) continue ;; esac
    echo "$lock"
    .tools/bin/uv tool run --quiet pip-audit --no-deps --disable-pip --progress-spinner off -r "$lock" || status=1
done
exit $status
