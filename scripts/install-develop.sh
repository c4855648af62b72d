#!/bin/sh
# install-develop.sh BINARIES ROUTER ENVIRONMENT: makes a checkout runnable from a virtual environment. The binaries of
# the folder BINARIES go into its bin/ (ROUTER under the name trunkline-router), the kernels into the package beside the
# Python sources, which the environment imports from here.
set -eu
cd "$(dirname "$0")/.."
bin=$1 router=$2 environment=$3

# Installs by rename, so that a running binary is never written over.
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
    # What `trunkline env` and package tools read.
    about="$packages/trunkline_server-$version.dist-info"
    mkdir -p "$about"
    printf 'Metadata-Version: 2.1\nName: trunkline-server\nVersion: %s\n' "$version" >"$about/METADATA"
    printf 'make build\n' >"$about/INSTALLER"
done
