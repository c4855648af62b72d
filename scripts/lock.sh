#!/bin/sh
# Compiles requirements/*.in to lock files with versions and hashes, but without download addresses.
set -eu
cd "$(dirname "$0")/../requirements"
uv=${UV:-uv}
# gpu takes the versions of test.
for name in tools serve otel test gpu; do
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --no-emit-index-url "$@" "$name.in" -o "$name.txt"
done
for name in model flash; do
    "$uv" pip compile --quiet --no-deps --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --no-emit-index-url "$@" "$name.in" -o "$name.txt"
done
for name in clients open-webui; do
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
        --no-emit-index-url --override $name-overrides.txt "$@" "$name.in" -o "$name.txt"
done
