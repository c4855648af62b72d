"""The end of a model that makes vectors, from its last hidden states on."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T
from trunkline_server.models.pooling import Kind


def taken(ops: Ops[T], config: ModelConfig, x: T) -> tuple[T, Kind]:
    """Returns rows from x [T, N] that hold what a vector is made of, and the row of a sequence that has it.

    The mean of a prompt that may be cut is known only behind its last chunk, so it is left to `Ops.pooled`. Only linear
    functions may follow then.
    """
    assert config.pooling is not None, "the model makes vectors"
    if config.pooling.kind == "mean" and config.pooling.whole:
        return ops.mean(x), "last"
    return x, config.pooling.kind


def embedding(ops: Ops[T], config: ModelConfig, x: T) -> T:
    """Ends a model whose vectors are embeddings. Returns the rows that sample, [S, N]."""
    assert config.pooling is not None, "the model makes vectors"
    x, kind = taken(ops, config, x)
    for index, dense in enumerate(config.pooling.dense):
        x = ops.linear(x, f"vector.{index}.weight", f"vector.{index}.bias" if dense.has_bias else None)
        x = ops.tanh(x) if dense.has_tanh else x
    return ops.pooled(x, kind)
