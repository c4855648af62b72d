#!/usr/bin/env bash
# Runs a test program for cargo, and adds its seconds to the report of `make test-rust`: libtest measures no test.
began=${EPOCHREALTIME/,/.}
"$@"
status=$?
seconds=$(LC_ALL=C awk -v begin="$began" -v end="${EPOCHREALTIME/,/.}" 'BEGIN { printf "%.1f", end - begin }')
name=$(basename "$1")
echo "$seconds ${name%-*}" >>"${CARGO_TARGET_DIR:?}/reports/rust.txt"
exit $status
