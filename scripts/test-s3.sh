#!/bin/sh
# Runs the tests of the object tier against an S3-compatible server over HTTP. Needs cargo, curl and Python. Installs the
# server (moto) into the virtual environment .venv-s3.
set -eu
cd "$(dirname "$0")/.."
MOTO="moto[server]==5.1.4"

if [ ! -e .venv-s3/bin/moto_server ]; then
    python3 -m venv .venv-s3
    .venv-s3/bin/python -m pip install --quiet "$MOTO"
fi
port=$(.venv-s3/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cargo test --release --quiet --workspace --test cloud --no-run
.venv-s3/bin/moto_server -H 127.0.0.1 -p "$port" >/dev/null 2>&1 &
server=$!
trap 'kill "$server"' EXIT
endpoint="http://127.0.0.1:$port"
curl --silent --show-error --fail --retry 30 --retry-connrefused --retry-delay 1 -X PUT "$endpoint/blocks" >/dev/null
AWS_ENDPOINT="$endpoint" AWS_ALLOW_HTTP=true AWS_REGION=us-east-1 AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test \
    TRUNKLINE_TEST_S3_URL="s3://blocks/some/prefix" \
    cargo test --release --quiet --workspace --test cloud -- --ignored "$@"
