"""The base model of adapters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trunkline_server.errors import ModelNotFound
from trunkline_server.models.config import ModelConfig
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A model whose files are opened again when an adapter needs them. digest: see `SourceIdentity`."""

    path: Path
    config: ModelConfig
    digest: bytes

    @staticmethod
    def of(checkpoint: Checkpoint) -> BaseModel:
        return BaseModel(checkpoint.path, checkpoint.config, checkpoint.identity().digest)

    def open(self) -> Checkpoint:
        """Raises ModelNotFound if the files are others than at the start."""
        checkpoint = open_checkpoint(self.path)
        if checkpoint.identity().digest != self.digest:
            raise ModelNotFound(f"model `{self.path}` has changed since it was loaded", hint="restart the server")
        return checkpoint
