"""Plans the memory of a shard before anything is loaded: the formats, the limits of steps and the size of the pool.

The start, `trunkline fit`, and the estimates for the models of a server all ask `plan_memory`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from trunkline_server.backends.cpu.memory import (
    BLOCK_SIZE,
    KV_ELEMENT_BITS,
    MAX_POOL_TOKENS,
    MIN_POOL_TOKENS,
    MemoryNeed,
    layer_bytes_of,
    memory_need,
    plan_pool,
    slots_bytes,
)
from trunkline_server.backends.cpu.window_sizes import PoolSizes, WindowNeed
from trunkline_server.backends.host_memory import PROCESS_BYTES, available_memory
from trunkline_server.backends.interface import MAX_DRAFT_TOKENS
from trunkline_server.backends.states import STATE_ELEMENT_BYTES, num_states
from trunkline_server.errors import DoesNotFit, InvalidArgument, UserError
from trunkline_server.weights.quantize import NONE, QUANTIZED, bits_of, has_floats

if TYPE_CHECKING:
    from trunkline_server.models.config import ModelConfig
    from trunkline_server.weights.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

# Long enough for the matrix kernels, and short enough for the sequences that decode in the same step.
DEFAULT_STEP_TOKENS = 256
DEFAULT_STEP_SEQUENCES = 64
MAX_ENCODER_TOKENS = 8192
# The meaning of `auto`; docs/decisions/0010-int8-kv-rotated.md has the reasons.
KV_DTYPE = "int8"
ENCODER_DTYPE = "f16"
# The same for latents, which are stored as floats; docs/decisions/0040-latent-attention.md has the reasons.
LATENT_DTYPE = "f16"
LATENT_DTYPES = ("f16", "bf16")
# The smallest dtype, to which no default leads.
SMALLEST_KV_DTYPE = "int4"
# More than any machine has, for a plan that takes what it needs.
_UNLIMITED_BYTES = 1 << 62


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """The options on which the memory of a shard depends, beside its model.

    kv_cache_dtype: auto, int8, int4, f16 or bf16. num_shares, model_memory, weights_memory, kv_memory: see
        `BackendOptions`.
    window_parts: number of blocks that hold K and V of layers with a window at the same time; plans drop those out of
        every window's reach. "auto" splits blocks if that saves memory; None keeps them in one piece.
    quantize: a value of `--quantize`. max_loras: slots for adapters, with matrices of at most max_lora_rank.
    overcommit: plans with more memory than is available, if it has to.
    """

    kv_cache_dtype: str = "auto"
    num_shares: int = 1
    max_batch_total_tokens: int | None = None
    model_memory: int | None = None
    weights_memory: int | None = None
    kv_memory: int | None = None
    max_step_tokens: int | None = None
    max_step_sequences: int | None = None
    block_size: int = BLOCK_SIZE
    window_parts: int | Literal["auto"] | None = None
    quantize: str = NONE
    max_loras: int = 0
    max_lora_rank: int = 0
    overcommit: bool = False


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The parts of a shard's memory.

    bits: see `bits_of`. step, draft_step: the limits of steps, and those of a draft model's. need: of both models and
    the adapters. pool_bytes: K and V in all blocks and parts of windows; state_bytes: all states of recurrent layers.
    """

    bits: str
    kv_dtype: str
    draft_dtype: str
    step: dict[str, int]
    draft_step: dict[str, int]
    need: MemoryNeed
    adapter_bytes: int
    sizes: PoolSizes
    pool_bytes: int
    state_bytes: int

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers of one shard once they are in use, its weights included."""
        return self.need.weight_bytes + self.need.scratch_bytes + self.pool_bytes + self.state_bytes

    def bytes_of_shards(self, num_shards: int, *, share_weights: bool) -> int:
        """Returns what so many shards take with their processes. share_weights: they map the same packed weights."""
        shared_bytes = (self.need.weight_bytes - self.adapter_bytes) * (num_shards - 1) if share_weights else 0
        return num_shards * (PROCESS_BYTES + self.buffer_bytes) - shared_bytes


def plan_memory(
    checkpoint: Checkpoint,
    options: MemoryOptions,
    *,
    draft: Checkpoint | None = None,
    available_bytes: int | None = None,
) -> MemoryPlan:
    """Plans the memory of one shard. Raises InvalidArgument, and DoesNotFit with the flags with which it would fit.

    draft: a smaller model that drafts tokens. available_bytes: None is what this process can still take.
    """
    available_bytes = available_memory() if available_bytes is None else available_bytes
    try:
        return _planned(checkpoint, options, draft, available_bytes)
    except DoesNotFit as error:
        if options.overcommit and options.model_memory is None:
            plan = unlimited(checkpoint, options, draft)
            fields = {"planned_mib": plan.buffer_bytes >> 20, "available_mib": available_bytes >> 20}
            logger.warning("more memory is planned than is available", extra={"fields": fields})
            return plan
        ways = _ways_out(checkpoint, options, draft, available_bytes)
        if ways is None and options.weights_memory is None:
            ways = f"{error.hint}, or leave a part of the weights on disk with `--weights-memory`"
        error.hint = ways or error.hint
        if options.model_memory is None:
            error.hint = f"{error.hint}; `--overcommit` starts anyway"
        raise


def smaller_options(checkpoint: Checkpoint, options: MemoryOptions) -> Iterator[MemoryOptions]:
    """Yields the options with formats that take less memory and that the user has left open, the most exact first."""
    kinds, dtypes = [options.quantize], [options.kv_cache_dtype]
    if options.quantize == NONE and has_floats(checkpoint):
        kinds += QUANTIZED
    if checkpoint.config.latent_size is None and not checkpoint.config.is_encoder and options.kv_cache_dtype == "auto":
        dtypes.append(SMALLEST_KV_DTYPE)
    for kind in kinds:
        for dtype in dtypes:
            if (kind, dtype) != (options.quantize, options.kv_cache_dtype):
                yield replace(options, quantize=kind, kv_cache_dtype=dtype)


def flags_of(options: MemoryOptions, before: MemoryOptions) -> list[str]:
    """Returns the flags of `serve` by which the formats of `options` differ from those of `before`."""
    flags = []
    if options.quantize != before.quantize:
        flags.append(f"--quantize {options.quantize}")
    if options.kv_cache_dtype != before.kv_cache_dtype:
        flags.append(f"--kv-cache-dtype {options.kv_cache_dtype}")
    return flags


def _ways_out(
    checkpoint: Checkpoint, options: MemoryOptions, draft: Checkpoint | None, available_bytes: int
) -> str | None:
    """Returns a hint with the flags with which a model fits that does not; None if there are none."""

    def fits(changed: MemoryOptions) -> bool:
        try:
            _planned(checkpoint, changed, draft, available_bytes)
        except UserError:
            return False
        return True

    ways = []
    if options.max_batch_total_tokens is not None:
        for tokens in _smaller_pools(checkpoint, options, draft, available_bytes):
            if fits(replace(options, max_batch_total_tokens=tokens)):
                # Each shard gets an equal part of the flag's value.
                ways.append(f"`--max-batch-total-tokens {tokens * options.num_shares}`")
                break
    fitting = next(filter(fits, smaller_options(checkpoint, options)), None)
    if fitting is not None:
        ways.append(f"`{' '.join(flags_of(fitting, options))}`")
    return f"it fits with {' or with '.join(ways)}" if ways else None


def _smaller_pools(
    checkpoint: Checkpoint, options: MemoryOptions, draft: Checkpoint | None, available_bytes: int
) -> Iterator[int]:
    """Yields tokens of a pool that may fit, the largest first."""
    need = unlimited(checkpoint, options, draft).need
    if options.model_memory is not None:
        available_bytes = min(available_bytes, options.model_memory - options.num_shares * PROCESS_BYTES)
    left_bytes = max(available_bytes - need.weight_bytes - need.scratch_bytes, 0)
    # States of recurrent layers take a part of it.
    for divisor in (1, 2, 4):
        tokens = left_bytes // divisor // max(need.kv_bytes_per_token, 1) // options.block_size * options.block_size
        if tokens >= MIN_POOL_TOKENS:
            yield min(tokens, MAX_POOL_TOKENS)


def unlimited(checkpoint: Checkpoint, options: MemoryOptions, draft: Checkpoint | None = None) -> MemoryPlan:
    """Plans without regard to what is available, with the smallest pool unless another size is asked for."""
    tokens = options.max_batch_total_tokens or MIN_POOL_TOKENS
    options = replace(options, max_batch_total_tokens=tokens, model_memory=None)
    return _planned(checkpoint, options, draft, _UNLIMITED_BYTES)


def _planned(
    checkpoint: Checkpoint, options: MemoryOptions, draft: Checkpoint | None, available_bytes: int
) -> MemoryPlan:
    config, block_size = checkpoint.config, options.block_size
    kv_dtype, draft_dtype = (
        kv_dtype_of(options.kv_cache_dtype, model.config) for model in (checkpoint, draft or checkpoint)
    )
    step, wanted_tokens = (
        step_limits(options.max_step_tokens, options.max_step_sequences),
        options.max_batch_total_tokens,
    )
    if config.is_encoder:
        step, wanted_tokens = _encoder_limits(config, step, options.max_step_tokens, wanted_tokens)
    # A pool with a file keeps all of its blocks in one piece.
    window_parts = None if options.kv_memory is not None else options.window_parts
    window_tokens = block_size * (window_parts if isinstance(window_parts, int) else 0)
    bits = bits_of(options.quantize, checkpoint)
    need = memory_need(checkpoint, bits, kv_dtype=kv_dtype, block_size=block_size, window_tokens=window_tokens, **step)
    need = need.with_weights_in(options.weights_memory)
    adapter_bytes = slots_bytes(config, options.max_loras, options.max_lora_rank if options.max_loras else 0)
    need += MemoryNeed(weight_bytes=adapter_bytes)
    draft_step = _draft_step_limits(step)
    if draft is not None:
        _check_vocabulary(draft.config, config)
        need += memory_need(draft, NONE, kv_dtype=draft_dtype, block_size=block_size, **draft_step)
    num_blocks = plan_pool(
        need,
        available_bytes=available_bytes,
        block_size=block_size,
        wanted_tokens=wanted_tokens,
        num_shares=options.num_shares,
        model_memory=options.model_memory,
        kv_memory=options.kv_memory,
    )
    pool_bytes, state_bytes = num_blocks * block_size * need.kv_bytes_per_token, 0
    if options.kv_memory is not None:
        pool_bytes = min(pool_bytes, options.kv_memory)
    if config.recurrent is None:
        sizes = _divide(num_blocks, window_parts, config, kv_dtype, block_size, step)
    else:
        bytes_of_one, num_parts = STATE_ELEMENT_BYTES * config.state_size, options.window_parts
        if not isinstance(num_parts, int):
            left_bytes = (available_bytes - need.weight_bytes - need.scratch_bytes - pool_bytes) // options.num_shares
            num_parts = num_states(left_bytes, bytes_of_one, step["max_step_sequences"])
        sizes = PoolSizes(num_blocks=num_blocks, num_window_parts=num_parts)
        state_bytes = num_parts * bytes_of_one
    return MemoryPlan(
        bits=bits,
        kv_dtype=kv_dtype,
        draft_dtype=draft_dtype,
        step=step,
        draft_step=draft_step,
        need=need,
        adapter_bytes=adapter_bytes,
        sizes=sizes,
        pool_bytes=pool_bytes,
        state_bytes=state_bytes,
    )


def step_limits(max_step_tokens: int | None, max_step_sequences: int | None) -> dict[str, int]:
    return {
        "max_step_tokens": max_step_tokens or DEFAULT_STEP_TOKENS,
        "max_step_sequences": max_step_sequences or DEFAULT_STEP_SEQUENCES,
    }


def _draft_step_limits(step: dict[str, int]) -> dict[str, int]:
    """Returns the limits of the draft model's steps, which also catch up on drafts that were right."""
    num_sequences = step["max_step_sequences"]
    return step | {"max_step_tokens": step["max_step_tokens"] + (MAX_DRAFT_TOKENS + 1) * num_sequences}


def _encoder_limits(
    config: ModelConfig, step: dict[str, int], asked_step_tokens: int | None, asked_total_tokens: int | None
) -> tuple[dict[str, int], int]:
    """Returns the limits of steps, which take whole prompts, and the tokens of the pool, which keeps nothing."""
    if asked_step_tokens is None:
        longest = min(config.max_position_embeddings, MAX_ENCODER_TOKENS)
        step = step | {"max_step_tokens": max(DEFAULT_STEP_TOKENS, longest)}
    # Two steps, and what waits for them.
    needed = 4 * step["max_step_tokens"] + 2 * BLOCK_SIZE * step["max_step_sequences"]
    return step, asked_total_tokens or needed


def kv_dtype_of(kv_cache_dtype: str, config: ModelConfig) -> str:
    """Returns the dtype that the flag stands for. Raises InvalidArgument."""
    if config.latent_size is not None:
        if kv_cache_dtype not in ("auto", *LATENT_DTYPES):
            raise InvalidArgument(
                f"`--kv-cache-dtype` is {kv_cache_dtype}, but the cpu backend keeps the latents of "
                f"{config.architecture} as {' or '.join(LATENT_DTYPES)}",
                hint="use auto",
            )
        return LATENT_DTYPE if kv_cache_dtype == "auto" else kv_cache_dtype
    if kv_cache_dtype != "auto" and kv_cache_dtype not in KV_ELEMENT_BITS:
        raise InvalidArgument(
            f"`--kv-cache-dtype` is {kv_cache_dtype}, but the cpu backend supports {', '.join(KV_ELEMENT_BITS)}",
            hint="use auto",
        )
    if kv_cache_dtype != "auto":
        return kv_cache_dtype
    return ENCODER_DTYPE if config.is_encoder else KV_DTYPE


def _divide(
    num_blocks: int,
    window_parts: int | Literal["auto"] | None,
    config: ModelConfig,
    kv_dtype: str,
    block_size: int,
    step: dict[str, int],
) -> PoolSizes:
    if window_parts != "auto":
        return PoolSizes(num_blocks=num_blocks, num_window_parts=window_parts)
    # Encoders keep nothing for longer than a step.
    if not any(config.attention.windows) or config.is_encoder:
        return PoolSizes(num_blocks=num_blocks)
    num_windowed = sum(window is not None for window in config.attention.windows)
    layer_bytes = block_size * layer_bytes_of(config, kv_dtype, block_size)
    need = WindowNeed(
        base_bytes=(config.num_layers - num_windowed) * layer_bytes,
        window_bytes=num_windowed * layer_bytes,
        window_size=window_size(config),
        block_size=block_size,
        max_positions=config.max_position_embeddings,
        **step,
    )
    sizes = need.divide(num_blocks)
    if sizes.num_window_parts is not None:
        fields = {"window": need.window_size, "blocks": sizes.num_blocks, "window_parts": sizes.num_window_parts}
        logger.info("window parts enabled", extra={"fields": fields})
    return sizes


def window_size(config: ModelConfig) -> int:
    """Returns the largest window; 0 if there is none. A position needs the state behind the one before it."""
    if config.recurrent is not None:
        return 2
    return max((window for window in config.attention.windows if window is not None), default=0)


def _check_vocabulary(draft: ModelConfig, config: ModelConfig) -> None:
    """Raises InvalidArgument unless the draft model has the main model's vocabulary."""
    if draft.vocab_size != config.vocab_size:
        raise InvalidArgument(
            f"`--speculative-model` has a vocabulary of {draft.vocab_size} tokens, but the model's has "
            f"{config.vocab_size}",
            hint="choose a smaller model of the same family",
        )
