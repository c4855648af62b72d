"""Plans the size of the KV pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trunkline_server.errors import DoesNotFit
from trunkline_server.weights.tensor import stored_bytes

if TYPE_CHECKING:
    from trunkline_server.weights.checkpoint import Checkpoint

# The pool's size without `--max-batch-total-tokens`: this many tokens, but at most this share of the available memory.
DEFAULT_POOL_TOKENS = 131_072
DEFAULT_POOL_MEMORY_DIVISOR = 4
# A smaller pool has no room for even one prompt of moderate length and its answer.
MIN_POOL_TOKENS = 512

_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """The memory that a model needs, in bytes. scratch_bytes: activations and logits of the largest step."""

    weight_bytes: int
    scratch_bytes: int
    kv_bytes_per_token: int

    def bytes_with(self, num_tokens: int) -> int:
        """Returns the bytes of everything, with a KV pool of `num_tokens`."""
        return self.weight_bytes + self.scratch_bytes + num_tokens * self.kv_bytes_per_token

    def __add__(self, other: MemoryNeed) -> MemoryNeed:
        return MemoryNeed(
            weight_bytes=self.weight_bytes + other.weight_bytes,
            scratch_bytes=self.scratch_bytes + other.scratch_bytes,
            kv_bytes_per_token=self.kv_bytes_per_token + other.kv_bytes_per_token,
        )


def plan_pool(need: MemoryNeed, *, available_bytes: int, block_size: int, wanted_tokens: int | None) -> int:
    """Returns the number of blocks in the pool. Raises DoesNotFit.

    wanted_tokens: `--max-batch-total-tokens`, rounded up to whole blocks and either met or refused; None: the pool
    takes its default size, or less if weights and scratch leave less.
    """
    left_bytes = available_bytes - need.weight_bytes - need.scratch_bytes
    if wanted_tokens is not None:
        num_blocks = -(-wanted_tokens // block_size)
        pool_bytes = num_blocks * block_size * need.kv_bytes_per_token
        if pool_bytes > left_bytes:
            raise DoesNotFit(
                f"a KV pool of {wanted_tokens} tokens takes {_mib(pool_bytes)}, but {_mib(available_bytes)} of memory "
                f"are available and weights and activations take {_mib(need.weight_bytes + need.scratch_bytes)}",
                hint="lower `--max-batch-total-tokens`",
            )
        return num_blocks
    budget_bytes = min(available_bytes // DEFAULT_POOL_MEMORY_DIVISOR, left_bytes)
    num_tokens = min(DEFAULT_POOL_TOKENS, max(budget_bytes, 0) // need.kv_bytes_per_token)
    if num_tokens < MIN_POOL_TOKENS:
        raise DoesNotFit(
            f"weights and activations take {_mib(need.weight_bytes + need.scratch_bytes)} and the smallest KV pool "
            f"({MIN_POOL_TOKENS} tokens) {_mib(MIN_POOL_TOKENS * need.kv_bytes_per_token)}, but "
            f"{_mib(available_bytes)} of memory are available",
            hint="choose a smaller or more quantised model (`--quantize int4` quantises one that is not), or lower "
            "`--max-batch-total-tokens`",
        )
    return num_tokens // block_size


def _mib(num_bytes: int) -> str:
    return f"{-(-num_bytes // _MIB)} MiB"


def packed_bytes(checkpoint: Checkpoint) -> int:
    """Returns the bytes of all weights once they are packed, in the formats to which the kernels decode them."""
    from trunkline_server import _kernels

    tensors = {tensor.name: tensor for tensor in map(checkpoint.encoded, checkpoint.names())}
    return sum(
        _kernels.packed_bytes(each.format, *each.shape) if len(each.shape) == 2 else stored_bytes("F32", each.shape)
        for each in tensors.values()
    )
