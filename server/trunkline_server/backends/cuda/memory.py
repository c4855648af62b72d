"""Divides the device's memory into weights, memory for steps, a reserve, and blocks in the rest."""

from __future__ import annotations

from dataclasses import dataclass

from trunkline_server.errors import DoesNotFit

# The larger of these two is left free for library workspaces, compiled kernels and fragmentation.
RESERVE_BYTES = 768 << 20
RESERVE_SHARE = 0.02
# A smaller pool has no room for even one prompt of moderate length and its answer.
MIN_POOL_TOKENS = 512
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """The device's memory in bytes, measured once the weights are on it.

    total: of the device; free: of the total; weights: of this model; steps: most that steps take beyond the pool, for
    activations, logits, scratch and captured graphs; states: those of recurrent layers; adapters: their slots.
    """

    total: int
    free: int
    weights: int
    steps: int
    states: int = 0
    adapters: int = 0

    @property
    def reserve(self) -> int:
        return min(max(RESERVE_BYTES, int(self.total * RESERVE_SHARE)), self.total // 8)

    @property
    def left(self) -> int:
        """Bytes left for the pool."""
        return max(0, self.free - self.steps - self.states - self.adapters - self.reserve)


def num_pool_blocks(memory: DeviceMemory, *, bytes_per_block: int, block_size: int, wanted_tokens: int | None) -> int:
    """Returns the number of blocks in the pool. Raises DoesNotFit.

    wanted_tokens: `--max-batch-total-tokens`, rounded up to whole blocks and either met or refused; None: the pool
    takes all that is left.
    """
    states = f", {_mib(memory.states)} for states of recurrent layers" if memory.states else ""
    adapters = f", {_mib(memory.adapters)} for adapters" if memory.adapters else ""
    fixed = (
        f"the device has {_mib(memory.total)}, of which {_mib(memory.free)} are free with {_mib(memory.weights)} of "
        f"weights loaded, {_mib(memory.steps)} are for steps{states}{adapters} and {_mib(memory.reserve)} in reserve"
    )
    fewer = "lower `--max-loras`, " if memory.adapters else ""
    if wanted_tokens is not None:
        num_blocks = -(-wanted_tokens // block_size)
        if num_blocks * bytes_per_block > memory.left:
            raise DoesNotFit(
                f"a KV pool of {wanted_tokens} tokens takes {_mib(num_blocks * bytes_per_block)}, but {fixed}: "
                f"{_mib(memory.left)} are left",
                hint=f"{fewer}lower `--max-batch-total-tokens` to {memory.left // bytes_per_block * block_size}, or "
                "choose a smaller `--kv-cache-dtype`",
            )
        return num_blocks
    num_blocks = memory.left // bytes_per_block
    if num_blocks * block_size < MIN_POOL_TOKENS:
        raise DoesNotFit(
            f"the smallest KV pool ({MIN_POOL_TOKENS} tokens) takes "
            f"{_mib(-(-MIN_POOL_TOKENS // block_size) * bytes_per_block)}, but {fixed}: {_mib(memory.left)} are left",
            hint=f"{fewer}choose a smaller or quantised model, lower `--max-batch-prefill-tokens`, or stop other "
            "processes on the device",
        )
    return num_blocks


def _mib(num_bytes: int) -> str:
    return f"{-(-num_bytes // _MIB)} MiB"
