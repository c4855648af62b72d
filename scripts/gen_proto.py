"""Generates the Python stubs from `shard.proto`; run by `make proto`.

    python scripts/gen_proto.py [--output FOLDER]

The stubs are checked in, so that users and wheel builds do not need the generator. A test compares them with the output
of this script.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grpc_tools import protoc

REPOSITORY = Path(__file__).resolve().parents[1]
PROTO_FOLDER = REPOSITORY / "proto" / "trunkline" / "shard" / "v1"
# The proto folder is mapped to the package's path, so that generated imports are correct.
PACKAGE_PATH = "trunkline_server/_proto"


def generate(output: Path) -> None:
    """Writes the stubs to `PACKAGE_PATH` below `output`. Raises RuntimeError if protoc fails."""
    output.mkdir(parents=True, exist_ok=True)
    status = protoc.main(
        [
            "protoc",
            f"--proto_path={PACKAGE_PATH}={PROTO_FOLDER}",
            f"--python_out={output}",
            f"--pyi_out={output}",
            f"{PACKAGE_PATH}/shard.proto",
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc exited with {status} for `{PROTO_FOLDER / 'shard.proto'}`")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "server", help="folder that holds the package")
    generate(parser.parse_args().output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
