#!/usr/bin/env bash
# Runs a test program for cargo, and adds its seconds to target/reports/rust.txt, because libtest measures no test.
began=$EPOCHREALTIME
"$@"
status=$?
seconds=$(LC_ALL=C awk -v begin="$began" -v end="$EPOCHREALTIME" 'BEGIN { printf "%.1f", end - begin }')
name=$(basename "$1")
echo "$seconds ${name%-*}" >>"$(dirname "$0")/../target/reports/rust.txt"
exit $status
