"""The imports of each command. A shard starts in less than a second because it imports only what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SERVER = Path(__file__).resolve().parents[2]
SERVE = "import trunkline_server.serve, trunkline_server.service, trunkline_server.backends.cpu.build"
CHECKPOINT = "import trunkline_server.weights.checkpoint, trunkline_server.backends.registry"
MODELS = (
    "import trunkline_server.models.registry, trunkline_server.weights.dequantize, trunkline_server.sampling.sampler"
)
FILES = "import trunkline_server.weights.gguf_checkpoint, trunkline_server.weights.safetensors_checkpoint"
RESOLVE = "import trunkline_server.cli, trunkline_server.hub"


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        (f"{SERVE}; {CHECKPOINT}; {MODELS}", {"torch", "transformers", "huggingface_hub", "safetensors"}),
        # Numpy takes longer to import than all else together.
        (f"{SERVE}; {CHECKPOINT}; {FILES}", {"numpy"}),
        (RESOLVE, {"torch", "numpy", "grpc", "google.protobuf", "huggingface_hub"}),
    ],
    ids=["serve", "serve without numpy", "resolve"],
)
def test_commands_import_only_what_they_need(statement: str, unwanted: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": str(SERVER)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert unwanted & set(done.stdout.split()) == set()
