"""Measures int4's key scaling: runs a text of random tokens through the model once, without storing K and V."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from trunkline_server.backends.cuda.kernels.attention import AttentionShape, AttentionSpace
from trunkline_server.backends.cuda.key_scaling import KeyScaling, rotated
from trunkline_server.backends.cuda.kv_pool import MIN_BLOCK_SIZE, KvFormat, KvLayout, KvPool
from trunkline_server.backends.cuda.ops import CudaOps, DeviceModel, Rotated, Value, dense
from trunkline_server.backends.cuda.step_input import Entry, StepLayout, StepShape
from trunkline_server.backends.cuda.weights import DeviceWeights
from trunkline_server.models import registry
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Scores
from trunkline_server.sampling.philox import uniforms

# Decision 13 gives the reasons for this number.
NUM_TOKENS = 1024
_SEED = 0x6B65_7973


@dataclass
class _ProbingOps(CudaOps):
    """Measures the scaling as queries and keys pass, and computes attention in torch, in f32, over unrounded K, V."""

    config: ModelConfig = field(kw_only=True)
    scaling: KeyScaling = field(kw_only=True)

    def paged_attention(self, layer: int, query: Value, scores: Scores) -> Value:
        scale, window, soft_cap, sinks = scores
        key, value = self._take_written(layer)
        assert value is not None, "keys with latents are not scaled"
        queries, keys, values = (self._heads(x) for x in (query, key, value))
        rope = key.rope if isinstance(key, Rotated) else None
        self.scaling.measure(layer, queries, keys, rope, takes_mean=soft_cap is None)
        queries, keys, values = (x.transpose(0, 1) for x in (queries, keys, values))
        positions = self.step.positions
        distance = positions[:, None] - positions[None, :]
        is_hidden = (distance < 0) | (distance >= window) if window is not None else distance < 0
        group = queries.shape[0] // keys.shape[0]
        mixed = torch.empty_like(queries)
        for head in range(queries.shape[0]):
            products = queries[head] @ keys[head // group].T * scale
            if soft_cap is not None:
                products = soft_cap * torch.tanh(products / soft_cap)
            products = products.masked_fill(is_hidden, -torch.inf)
            if sinks is not None:
                sink = self.model.weights.vector(sinks)[head]
                products = torch.cat([products, sink.expand(len(products), 1)], dim=1)
            mixed[head] = products.softmax(-1)[:, : len(positions)] @ values[head // group]
        return mixed.transpose(0, 1).flatten(1).to(self.model.dtype)

    def logits(self, x: Value, weight: str, soft_cap: float | None = None) -> Value:
        """Returns x, since no logits are needed."""
        return x

    def _heads(self, x: Value) -> torch.Tensor:
        """Returns [T, heads, D] f32, rotated if the value is to be rotated."""
        rows = x.x if isinstance(x, Rotated) else dense(x)
        heads = rows.float().reshape(rows.shape[0], -1, self.config.head_size)
        if not isinstance(x, Rotated):
            return heads
        turned = rotated(heads, self.step.positions, x.rope)
        turned[..., : x.rope.dim] *= x.rope.attention_factor
        return turned


def measure_key_scaling(
    weights: DeviceWeights, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> KeyScaling:
    """Measures the key scaling of a model. Equal weights on devices of one kind give the same bits at each start.

    Cost: a prompt of `NUM_TOKENS` tokens, and f32 attention scores of one head at a time.
    """
    num_embeddings = weights.matrix("model.embed_tokens.weight")[0].num_outputs
    tokens = [int(uniforms(_SEED, 0, position)[0] * num_embeddings) for position in range(NUM_TOKENS)]
    scaling = KeyScaling.neutral(
        num_layers=config.num_kv_layers, num_kv_heads=config.num_kv_heads, head_size=config.head_size,
        num_positions=config.max_position_embeddings, dtype=dtype, device=device,
    )  # fmt: skip
    layout = StepLayout(StepShape(NUM_TOKENS, 1, 1), max_blocks=1)
    words = torch.zeros(layout.num_words, dtype=torch.int32)
    layout.write(words.numpy(), [Entry(tokens, 0, [0], [NUM_TOKENS - 1])], block_size=NUM_TOKENS)
    ops = _ProbingOps(
        _model_without_pool(weights, config, dtype, device), layout.tensors(words.to(device)),
        config=config, scaling=scaling,
    )  # fmt: skip
    registry.forward(ops, config)
    return scaling


def _model_without_pool(
    weights: DeviceWeights, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> DeviceModel:
    """Returns a model for operations that store nothing: its pool has no blocks, and it has no attention plans."""
    shape = AttentionShape(num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, head_size=config.head_size)
    layout = KvLayout(
        block_size=MIN_BLOCK_SIZE, num_kv_heads=config.num_kv_heads, head_size=config.head_size, format=KvFormat.F32
    )
    return DeviceModel(
        weights=weights, pool=KvPool(layout, num_layers=1, num_blocks=0, device=device),
        space=AttentionSpace(shape, 0, device), plans={}, rope_tables={}, dtype=dtype,
        logits=torch.empty(0, device=device),
        states=torch.empty(0, config.state_size, device=device) if config.recurrent is not None else None,
    )  # fmt: skip
