"""Measures int4's key scaling in the same way as kernels/src/executor/calibrate.rs."""

from __future__ import annotations

import torch

from trunkline_server.backends.reference.kv_pool import KvPool
from trunkline_server.backends.reference.ops import ChunkRows, ReferenceOps, Step, Weights
from trunkline_server.backends.reference.rounding import KeyScaling, KeySums
from trunkline_server.backends.reference.turn import Turn
from trunkline_server.models import registry
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Scores
from trunkline_server.sampling.philox import uniforms

_NUM_TOKENS = 1024
_SEED = 0x6B65_7973
# The kernels compute only one in this many of the last layer's queries.
_SAMPLE_EVERY = 16


class _ProbingOps(ReferenceOps):
    """Adds the keys and queries that pass through it to `KeySums`."""

    def __init__(
        self, weights: Weights, pool: KvPool, step: Step, sums: KeySums, config: ModelConfig, block_size: int
    ) -> None:
        super().__init__(weights, pool, step)
        self._sums = sums
        self._config = config
        self._block_size = block_size
        self._is_rotated = False

    def write_kv(self, layer: int, key: torch.Tensor, value: torch.Tensor | None) -> None:
        turn = Turn(self._step.positions, self._block_size, self._key_rope(key))
        self._is_rotated = turn.rope is not None
        self._sums.set_keys(layer, key.view(key.shape[0], -1, self._config.head_size), turn)
        super().write_kv(layer, key, value)

    def paged_attention(self, layer: int, query: torch.Tensor, scores: Scores) -> torch.Tensor:
        is_last = layer == self._config.num_kv_layers - 1
        sampled = query[_SAMPLE_EVERY - 1 :: _SAMPLE_EVERY] if is_last else query
        if scores.soft_cap is not None or (scores.sinks is not None and not self._is_rotated):
            self._sums.take_no_mean(layer)
        self._sums.add_queries(layer, sampled.reshape(sampled.shape[0], -1, self._config.head_size))
        return super().paged_attention(layer, query, scores)


@torch.inference_mode()
def measure_key_scaling(weights: Weights, config: ModelConfig, num_embeddings: int, block_size: int) -> KeyScaling:
    """Measures key scaling on random tokens of the vocabulary, with K and V in f32.

    num_embeddings: number of tokens to draw from; block_size: in positions, the key means rotate once per block.
    """
    layers, heads, head_size = config.num_kv_layers, config.num_kv_heads, config.head_size
    pool = KvPool(num_layers=layers, num_blocks=1, block_size=_NUM_TOKENS, num_kv_heads=heads, head_size=head_size)
    sums = KeySums(num_layers=layers, num_kv_heads=heads, head_size=head_size)
    token_ids = [int(uniforms(_SEED, 0, position)[0] * num_embeddings) for position in range(_NUM_TOKENS)]
    step = Step(
        token_ids=torch.tensor(token_ids),
        positions=torch.arange(_NUM_TOKENS),
        rows=[ChunkRows(0, _NUM_TOKENS, 0, torch.arange(_NUM_TOKENS))],
        sampling_rows=torch.tensor([_NUM_TOKENS - 1]),
    )
    registry.forward(_ProbingOps(weights, pool, step, sums, config, block_size), config)
    return sums.scaling()
