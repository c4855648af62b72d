"""A model on disk: its config, and its weights under their safetensors names, whatever the file format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from trunkline_server.errors import ModelNotFound, UnsupportedFormat
from trunkline_server.models.config import ModelConfig
from trunkline_server.weights.fingerprint import PageSums
from trunkline_server.weights.identity import SourceIdentity
from trunkline_server.weights.quantization import Quantization
from trunkline_server.weights.quantized_parts import Part
from trunkline_server.weights.tensor import Tensor, Weight


class Checkpoint(Protocol):
    """Config and weights of one model. Complete: every weight of `weight_shapes(config)` is present in its shape."""

    config: ModelConfig
    path: Path
    # The scheme of quantised linear modules; None if there are none, and for GGUF files, whose tensors have a format
    # instead.
    quantization: Quantization | None

    def names(self) -> Sequence[str]:
        """Returns the names of all weights of the model, in the order of the forward pass.

        Includes `lm_head.weight` even if the head is tied; `tensor` then returns the embedding under its own name.
        """

    def tensor(self, name: str) -> Tensor:
        """Returns the weight with this name.

        It is a view of the mapped file, except for some norms and for queries that lie between keys and values; see
        `places.py`, also for `interleaved_heads`. If the head is tied, `tensor("lm_head.weight").name` is
        "model.embed_tokens.weight".
        A weight that has `parts` is decoded by each call; see `affine.py`. Raises KeyError for a name that is not in
        `names()`, and UnsupportedFormat.
        """

    def encoded(self, name: str) -> Weight:
        """Returns the weight with this name as `tensor` does, but one that must be decoded or copied is read later.

        A start that finds the packed weights in the cache never reads it.
        """

    def stored_parts(self, name: str) -> Mapping[str, Part]:
        """Returns the tensors of the quantised module that a weight belongs to, by suffix; see `quantized_parts.py`.

        Weights that the file joins have the same ones. Empty if the weight is one tensor. Raises KeyError.
        """

    def parts(self, name: str) -> Mapping[str, Part]:
        """Returns the tensors that encode this weight alone, with its rows in the model's order.

        Views of the mapped file, or copies if the file joins the weight with others or stores its rows in another
        order. Empty if the weight is one tensor. Raises KeyError, UnsupportedFormat, and DamagedFile for scales that
        are not finite.
        """

    def fingerprint(self, page_sums: PageSums | None = None) -> str:
        """Returns a hash of all bytes of weights and config files; see `fingerprint.py` for its guarantees."""

    def identity(self) -> SourceIdentity:
        """Identifies the same content without reading all bytes; see `identity.py` for its guarantees."""


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a `.gguf` file or a folder with `config.json` and safetensors, and checks that the model is complete.

    Raises ModelNotFound, DamagedFile, UnsupportedFormat or UnsupportedArchitecture.
    """
    path = Path(path)
    if path.is_dir():
        from trunkline_server.weights.safetensors_checkpoint import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    if not path.is_file():
        what = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise ModelNotFound(f"`{path}` {what}", hint="give a `.gguf` file or a folder with `config.json`")
    if path.suffix == ".safetensors":
        raise UnsupportedFormat(f"`{path}` holds weights without a config", hint="give its folder, with `config.json`")
    from trunkline_server.weights.gguf_checkpoint import GgufCheckpoint

    return GgufCheckpoint(path)
