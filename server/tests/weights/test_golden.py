"""Names and checksums of files on disk that Python computes. If they changed, every existing file would go unused.

A change of a constant here is a change of format. It must be intended, and costs each user one slow start.
"""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace

from trunkline_server.backends.cpu.key_scaling import KeyScalingFile
from trunkline_server.weights.fingerprint import fingerprint_bytes
from trunkline_server.weights.identity import identify

# A page and a half, and less than a page.
LONG, SHORT = bytes(range(256)) * 24, b"{}\n"
FINGERPRINT = "b3e593b35dde42f340703a87c76fb964"
IDENTITY = "2c6596124dcb7325d0d2d86d03e0000c0ad9565e941bc75ccd3a94b1b94b843e"
NUMBERS = struct.pack("<4f", 1.0, -0.5, 0.0, 3.25)
KEY_SCALING = "0f0298ec2f849833bee62c9173b7a6b4c4a32883992048e07920f116a2a822040000803f000000bf0000000000005040"


def mapped(name: str, content: bytes, number: int) -> SimpleNamespace:
    """Returns a file whose status does not depend on the machine."""
    times = {"st_mtime_ns": 1_700_000_000_000_000_000 + number, "st_ctime_ns": 1_700_000_001_000_000_000 + number}
    return SimpleNamespace(
        path=Path("/models") / name,
        bytes=memoryview(content),
        num_bytes=len(content),
        status=SimpleNamespace(st_ino=40 + number, st_size=len(content), **times),
    )


def test_the_fingerprint_of_a_models_bytes() -> None:
    assert fingerprint_bytes([memoryview(LONG), memoryview(SHORT)]) == FINGERPRINT


def test_the_identity_of_a_models_files() -> None:
    weights, config = mapped("model.safetensors", LONG, 1), mapped("config.json", SHORT, 2)
    assert identify([(weights, 64)], [config]).digest.hex() == IDENTITY  # type: ignore[list-item]


def test_the_key_scaling_file(tmp_path: Path) -> None:
    path = tmp_path / "scaling.keys"
    KeyScalingFile(path).keep(NUMBERS)
    assert path.read_bytes().hex() == KEY_SCALING
    path.write_bytes(bytes.fromhex(KEY_SCALING))
    assert KeyScalingFile(path).load() == NUMBERS
