#!/bin/sh
# install-if-changed.sh FILE... FOLDER: installs by rename, so that a running binary is never written over.
set -eu
for last; do :; done
while [ $# -gt 1 ]; do
    target="$last/$(basename "$1")"
    if ! cmp -s "$1" "$target"; then
        cp "$1" "$target.new"
        mv "$target.new" "$target"
    fi
    shift
done
