"""Estimates the memory that a model needs, and plans the size of the KV pool."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trunkline_server.adapters.memory import planned_bytes
from trunkline_server.backends.host_memory import PROCESS_BYTES
from trunkline_server.errors import DoesNotFit
from trunkline_server.weights.completeness import stored_shapes
from trunkline_server.weights.quantize import NONE, quantized_format
from trunkline_server.weights.tensor import stored_bytes

if TYPE_CHECKING:
    from trunkline_server.models.config import ModelConfig
    from trunkline_server.weights.checkpoint import Checkpoint

# A block is a tile of attention, and 64 positions fill the registers. A prefix hit that ends inside a block is shared
# by copy, so larger blocks cost no hits, only half a block of memory per sequence.
BLOCK_SIZE = 64
# The kernels take values of latent attention in whole vectors.
LATENT_ELEMENTS = 16
KV_ELEMENT_BITS = {"int8": 8, "int4": 4, "f16": 16, "bf16": 16}
# int4 stores a block's first key separately; bytes of it per element.
KV_FIRST_KEY_BYTES = {"int8": 0, "int4": 1, "f16": 0, "bf16": 0}
# Bytes of the scales of one token's key and value in one head.
KV_SCALE_BYTES = {"int8": 4, "int4": 4, "f16": 0, "bf16": 0}
# The kernels pad keys and rows of values to multiples of these, for whole quads or vectors of bytes.
KV_KEY_ELEMENTS = {"int8": 4, "int4": 8, "f16": 1, "bf16": 1}
KV_VALUE_ELEMENTS = {"int8": 16, "int4": 32, "f16": 16, "bf16": 16}
ACTIVATION_BYTES = 4
# The pool's size without `--max-batch-total-tokens`: this many tokens, but at most this share of the available memory.
DEFAULT_POOL_TOKENS = 131_072
DEFAULT_POOL_MEMORY_DIVISOR = 4
# The most of `--max-batch-total-tokens`.
MAX_POOL_TOKENS = 1 << 30
# A smaller pool has no room for even one prompt of moderate length and its answer.
MIN_POOL_TOKENS = 512

# In which format the kernels keep matrices of adapters, by that of the file. Others become F32.
ADAPTER_FORMATS = {"F32": "F32", "F16": "F16", "BF16": "F16"}

_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """The memory that a model needs, in bytes. scratch_bytes: activations and logits of the largest step."""

    weight_bytes: int
    scratch_bytes: int = 0
    kv_bytes_per_token: int = 0

    def bytes_with(self, num_tokens: int) -> int:
        """Returns the bytes of everything, with a KV pool of `num_tokens`."""
        return self.weight_bytes + self.scratch_bytes + num_tokens * self.kv_bytes_per_token

    def with_weights_in(self, max_bytes: int | None) -> MemoryNeed:
        """Returns the need if at most `max_bytes` of the weights are in memory."""
        if max_bytes is None:
            return self
        return replace(self, weight_bytes=min(self.weight_bytes, max_bytes))

    def __add__(self, other: MemoryNeed) -> MemoryNeed:
        return MemoryNeed(
            weight_bytes=self.weight_bytes + other.weight_bytes,
            scratch_bytes=self.scratch_bytes + other.scratch_bytes,
            kv_bytes_per_token=self.kv_bytes_per_token + other.kv_bytes_per_token,
        )


def plan_pool(
    need: MemoryNeed,
    *,
    available_bytes: int,
    block_size: int,
    wanted_tokens: int | None,
    num_shares: int = 1,
    model_memory: int | None = None,
    kv_memory: int | None = None,
) -> int:
    """Returns the number of blocks in the pool. Raises DoesNotFit.

    wanted_tokens: this shard's part of `--max-batch-total-tokens`, rounded up to whole blocks and either met or
    refused; None: the pool takes its default size, or less if weights and scratch leave less. num_shares: shards of
    this machine that divide that size among them. model_memory: what all of them may take; the pool takes what is left
    of it, unless `wanted_tokens` says otherwise. kv_memory: what the pool takes at most, because the rest is in a file.
    """
    if kv_memory is not None and wanted_tokens is None:
        wanted_tokens = DEFAULT_POOL_TOKENS // num_shares
    if model_memory is not None:
        available_bytes = min(available_bytes, model_memory - num_shares * PROCESS_BYTES)
    left_bytes = available_bytes - need.weight_bytes - need.scratch_bytes
    if wanted_tokens is not None:
        num_blocks = -(-wanted_tokens // block_size)
        pool_bytes = min(num_blocks * block_size * need.kv_bytes_per_token, kv_memory or sys.maxsize)
        if pool_bytes > left_bytes:
            raise DoesNotFit(
                f"a KV pool of {wanted_tokens} tokens takes {_mib(pool_bytes)}, but {_mib(available_bytes)} of memory "
                f"are available and weights and activations take {_mib(need.weight_bytes + need.scratch_bytes)}",
                hint="lower `--max-batch-total-tokens`" + (" or raise `--model-memory`" if model_memory else ""),
            )
        return num_blocks
    budget_bytes, max_tokens = left_bytes, MAX_POOL_TOKENS
    if model_memory is None:
        budget_bytes, max_tokens = min(available_bytes // DEFAULT_POOL_MEMORY_DIVISOR, left_bytes), DEFAULT_POOL_TOKENS
    num_tokens = min(max_tokens, max(budget_bytes, 0) // need.kv_bytes_per_token) // num_shares
    if num_tokens < MIN_POOL_TOKENS:
        raise DoesNotFit(
            f"weights and activations take {_mib(need.weight_bytes + need.scratch_bytes)} and the smallest KV pool "
            f"({MIN_POOL_TOKENS} tokens) {_mib(MIN_POOL_TOKENS * need.kv_bytes_per_token)}, but "
            f"{_mib(available_bytes)} of memory are available",
            hint="choose a smaller or more quantised model (`--quantize int4` quantises one that is not), or "
            + ("raise `--model-memory`" if model_memory else "lower `--max-batch-total-tokens`"),
        )
    return num_tokens // block_size


def _mib(num_bytes: int) -> str:
    return f"{-(-num_bytes // _MIB)} MiB"


def packed_bytes(checkpoint: Checkpoint, bits: str = NONE) -> int:
    """Returns the bytes of all weights once they are quantised to `bits` and packed, as the kernels state them."""
    from trunkline_server import _kernels

    matrices, others = stored_shapes(checkpoint.config, checkpoint.names())
    # Only headers are read, which may be all that there is.
    weights = map(checkpoint.encoded, matrices)
    packed = (_kernels.packed_bytes(quantized_format(each, bits) or each.format, *each.shape) for each in weights)
    return sum(packed) + sum(stored_bytes("F32", shape) for shape in others.values())


def memory_need(
    checkpoint: Checkpoint,
    bits: str = NONE,
    *,
    kv_dtype: str,
    max_step_tokens: int,
    max_step_sequences: int,
    block_size: int = BLOCK_SIZE,
    window_tokens: int = 0,
) -> MemoryNeed:
    """Estimates the memory that the model takes from its files' sizes and its config, before anything is loaded.

    bits: how the weights are quantised while they are packed; see `quantize.py`.
    window_tokens: positions for which layers with a window have room if they are stored separately, otherwise 0.
    """
    config = checkpoint.config
    layer_bytes = layer_bytes_of(config, kv_dtype, block_size)
    num_apart = sum(window is not None for window in config.attention.windows) if window_tokens else 0
    activations = max_step_tokens * _features_per_token(config) + max_step_sequences * config.vocab_size
    return MemoryNeed(
        weight_bytes=packed_bytes(checkpoint, bits),
        scratch_bytes=ACTIVATION_BYTES * activations + window_tokens * num_apart * layer_bytes,
        kv_bytes_per_token=(config.num_kv_layers - num_apart) * layer_bytes,
    )


def slots_bytes(config: ModelConfig, max_loras: int, max_rank: int) -> int:
    """Returns the bytes that loaded adapters may take."""
    if not max_loras:
        return 0
    from trunkline_server import _kernels

    def as_f32(num_rows: int, num_columns: int) -> int:
        return _kernels.packed_bytes("F32", num_rows, num_columns)

    return planned_bytes(config, max_loras, max_rank, as_f32)


def layer_bytes_of(config: ModelConfig, kv_dtype: str, block_size: int) -> int:
    """Returns the bytes of one token's K and V in one layer."""
    if config.latent_size is not None:
        return -(-config.head_size // LATENT_ELEMENTS) * LATENT_ELEMENTS * KV_ELEMENT_BITS[kv_dtype] // 8
    elements = sum(
        -(-config.head_size // padding) * padding
        for padding in (KV_KEY_ELEMENTS[kv_dtype], KV_VALUE_ELEMENTS[kv_dtype])
    )
    head_bytes = elements * KV_ELEMENT_BITS[kv_dtype] // 8 + KV_SCALE_BYTES[kv_dtype]
    # Stored once per block; rounded up to whole bytes per token.
    head_bytes += -(-config.head_size * KV_FIRST_KEY_BYTES[kv_dtype] // block_size)
    return config.num_kv_heads * head_bytes


def _features_per_token(config: ModelConfig) -> int:
    """Returns an upper bound of the elements that one token's activations take inside a layer."""
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_size
    if config.attention.latent is not None:
        # Queries and results of each head before they move into the space of latents and after they leave it.
        parts = config.attention.latent.key_size + config.rotary_size + config.attention.latent.value_size
        heads += config.num_heads * parts + 2 * config.attention.latent.query_size
    # Each expert of a token has its own rows: inputs, twice its inner features, and outputs.
    experts = config.experts.num_used * (2 * config.hidden_size + 3 * config.experts.size) + config.experts.num_experts
    # Joined projections, their parts, and what convolution and recurrence make of them.
    mixer = 0
    if (recurrent := config.recurrent) is not None:
        inner = recurrent.num_heads * recurrent.value_size or config.hidden_size
        mixer = 4 * recurrent.conv_channels(config.hidden_size) + 6 * inner + 4 * recurrent.num_heads
    return mixer + 4 * config.hidden_size + heads + 3 * config.mlp.size + experts + 3 * config.experts.shared_size
