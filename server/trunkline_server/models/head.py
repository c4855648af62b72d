"""The end of each model, from its hidden rows on: logits, vectors, or both."""

from __future__ import annotations

from collections.abc import Callable

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.decoder import project, scaled
from trunkline_server.models.ops import Ops, T
from trunkline_server.models.pooling import Kind, Pooling


def finish(
    ops: Ops[T], config: ModelConfig, x: T, classifier: Callable[[Ops[T], ModelConfig, T], T] | None = None
) -> T:
    """Returns logits [S, V] of the rows that sample, from hidden rows x [T, N].

    classifier: what precedes the matrix of classes. A model without an output head has the result of `Ops.pooled`
    instead.
    """
    x = scaled(ops, x, config.logit_multiplier)
    if (pooling := config.pooling) is not None:
        rows, kind = taken(ops, pooling, x)
        if pooling.labels:
            rows = rows if classifier is None else classifier(ops, config, rows)
            rows = project(ops, "score", rows, config.is_encoder)
        for index, dense in enumerate(pooling.dense):
            rows = project(ops, f"vector.{index}", rows, dense.has_bias)
            rows = ops.tanh(rows) if dense.has_tanh else rows
        rows = ops.pooled(rows, kind)
        if not config.has_output_head:
            return rows
    return ops.logits(x, "lm_head.weight", config.logit_soft_cap)


def taken(ops: Ops[T], pooling: Pooling, x: T) -> tuple[T, Kind]:
    """Returns rows from x [T, N] that hold what a vector is made of, and the row of a sequence that has it.

    The mean of a prompt that may be cut is known only behind its last chunk, so it is left to `Ops.pooled`. Only linear
    functions may follow then.
    """
    if pooling.kind == "mean" and pooling.whole:
        return ops.mean(x), "last"
    return x, pooling.kind
