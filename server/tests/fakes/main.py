"""The shard's command line over the fake backend: `python -m tests.fakes.main serve ...`.

FAKE_GATE names a pipe; each step waits until another process opens it for writing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import SimpleNamespace

from tests.fakes.backend import VOCAB_SIZE, FakeBackend
from trunkline_server import cli
from trunkline_server._proto.shard_pb2 import Chunk, StepResult
from trunkline_server.backends import registry
from trunkline_server.backends.interface import LateMasks
from trunkline_server.models.config import Mlp, ModelConfig, Norms, Positions
from trunkline_server.weights import checkpoint

# A sequence whose first token is this one makes the backend panic.
PANIC_TOKEN = 62

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=VOCAB_SIZE,
    hidden_size=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_size=8,
    max_position_embeddings=64,
    norms=Norms(eps=1e-5),
    mlp=Mlp(size=16),
    positions=Positions(theta=10000.0, rotated_layers=(True,)),
)


class PanicException(BaseException):
    """Like PyO3's, derives from BaseException and not from Exception."""


class PanickingBackend(FakeBackend):
    def step(self, chunks: Sequence[Chunk], late_masks: LateMasks | None = None) -> StepResult:
        if any(self._sequences[chunk.sequence_id].token_ids[0] == PANIC_TOKEN for chunk in chunks):
            raise PanicException("index out of bounds")
        if gate := os.environ.get("FAKE_GATE"):
            os.close(os.open(gate, os.O_RDONLY))
        return super().step(chunks, late_masks)


if __name__ == "__main__":
    checkpoint.open_checkpoint = lambda path: SimpleNamespace(config=CONFIG, names=list, path=path)
    registry.build = lambda *_: PanickingBackend()
    sys.exit(cli.main())
