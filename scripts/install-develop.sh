#!/bin/sh
# install-develop.sh BINARIES ROUTER ENVIRONMENT: makes a checkout runnable from a virtual environment. Copies launcher
# and router (ROUTER, as trunkline-router) from the folder BINARIES to the environment's bin/, and the kernels to the
# Python package in this checkout, from which the environment imports it.
set -eu
cd "$(dirname "$0")/.."
bin=$1 router=$2 environment=$3

# Replaces the file by a rename, because a running binary cannot be overwritten.
install_file() {
    if ! cmp -s "$1" "$2"; then
        cp "$1" "$2.new"
        mv "$2.new" "$2"
    fi
}

install_file "$bin/trunkline" "$environment/bin/trunkline"
install_file "$bin/$router" "$environment/bin/trunkline-router"
install_file "$bin/libtrunkline_kernels_python.so" server/trunkline_server/_kernels.abi3.so

version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml | head -n 1)
for packages in "$environment"/lib/python3*/site-packages; do
    printf '%s\n' "$(pwd)/server" >"$packages/trunkline_server.pth"
    # The metadata that `trunkline env` and package tools read.
    about="$packages/trunkline_server-$version.dist-info"
    mkdir -p "$about"
    printf 'Metadata-Version: 2.1\nName: trunkline-server\nVersion: %s\n' "$version" >"$about/METADATA"
    printf 'make build\n' >"$about/INSTALLER"
done
