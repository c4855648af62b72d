"""Builds a CPU backend from a checkpoint."""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline_server import start_times
from trunkline_server.backends.cpu.backend import CpuBackend
from trunkline_server.backends.cpu.draft_model import DraftModel
from trunkline_server.backends.cpu.memory import MemoryNeed
from trunkline_server.backends.cpu.memory_plan import MemoryOptions, plan_memory, window_size
from trunkline_server.backends.cpu.ops import TracingOps
from trunkline_server.backends.cpu.store import open_store
from trunkline_server.backends.cpu.weight_cache import PackedWeights, WeightsPlace, fingerprint_of, weights_place
from trunkline_server.backends.cpu.window_sizes import PoolSizes
from trunkline_server.backends.interface import MAX_DRAFT_TOKENS, PROGRESS_INTERVAL_S, BackendInfo
from trunkline_server.backends.states import refuse_beside_states
from trunkline_server.backends.store_files import StoreOptions
from trunkline_server.errors import BackendUnavailable, DamagedFile, DoesNotFit, InvalidArgument
from trunkline_server.models import registry
from trunkline_server.weights.quantize import NONE

if TYPE_CHECKING:
    from trunkline_server._kernels import Executor, ProgramBuilder
    from trunkline_server.backends.interface import AdapterSlots
    from trunkline_server.models.config import ModelConfig
    from trunkline_server.weights.checkpoint import Checkpoint
    from trunkline_server.weights.tensor import Weight

logger = logging.getLogger(__name__)

# A report comes each half second, so a line each five seconds.
REPORTS_PER_LOG_LINE = 10


def build(
    checkpoint: Checkpoint,
    *,
    threads: int | None = None,
    pinning: str = "off",
    available_bytes: int | None = None,
    weights_cache: Path | None = None,
    store: StoreOptions | None = None,
    draft: Checkpoint | None = None,
    on_progress: Callable[[float], None] | None = None,
    **memory_options: Any,
) -> CpuBackend:
    """Loads all weights into the kernels and traces the model.

    pinning: auto, on or off; available_bytes: for tests. threads: None uses the default of `--threads`.
    weights_cache: folder of packed weights, None packs at every start; store: None keeps blocks only in the pool.
    draft: a smaller model with the same vocabulary, which drafts tokens. on_progress: see `BackendOptions`.
    memory_options: see `MemoryOptions`.
    Raises BackendUnavailable, InvalidArgument or DoesNotFit, the last before anything is loaded.
    """
    _require_kernels()
    config = checkpoint.config
    refuse_beside_states(config, store, draft)
    memory = MemoryOptions(**memory_options)
    if memory.kv_memory is not None:
        _check_spill(config, store, draft)
    plan = plan_memory(checkpoint, memory, draft=draft, available_bytes=available_bytes)
    need, sizes, step, kv_dtype, bits = plan.need, plan.sizes, plan.step, plan.kv_dtype, plan.bits
    block_size, num_shares, max_loras = memory.block_size, memory.num_shares, memory.max_loras
    max_rank = memory.max_lora_rank if max_loras else 0
    options = _LoadOptions(threads=threads, pinning=pinning, kv_dtype=kv_dtype, block_size=block_size, tell=on_progress)
    with _named_errors(sizes.num_blocks, checkpoint):
        place = weights_place(weights_cache, memory.weights_memory)
        spill = None if memory.kv_memory is None else (memory.kv_memory, _spill_folder())
        executor, packed, weight_ids = _load(checkpoint, step, sizes, place, options, bits, max_rank, spill)
        draft_model = (
            None if draft is None else _load_draft(draft, plan.draft_step, sizes.num_blocks, options, plan.draft_dtype)
        )
    fingerprint = _log_load(executor, checkpoint, packed) + ("" if bits == NONE else f" {bits}")
    adapters = (max_loras, plan.adapter_bytes)
    info = _info(executor, fingerprint, kv_dtype, block_size, sizes, step, config, adapters)
    if draft_model is not None:
        info = replace(info, weight_bytes=info.weight_bytes + draft_model.weight_bytes, max_own_drafts=MAX_DRAFT_TOKENS)
    info = replace(info, memory_bytes=_buffer_bytes(info, executor, need, draft_model, num_shares))
    disk, info = (None, info) if store is None else open_store(executor, info, store)
    return CpuBackend(
        executor,
        info,
        vocab_size=config.vocab_size,
        store=disk,
        after_start=None if packed is None else packed.keep,
        draft_model=draft_model,
        adapters=_adapter_slots(executor, weight_ids, max_loras),
    )


@dataclass(frozen=True, kw_only=True)
class _LoadOptions:
    """The options that main and draft model share."""

    threads: int | None
    pinning: str
    kv_dtype: str
    block_size: int
    tell: Callable[[float], None] | None


def _load(
    checkpoint: Checkpoint,
    step: dict[str, int],
    sizes: PoolSizes,
    weights: WeightsPlace | None,
    options: _LoadOptions,
    bits: str = NONE,
    max_adapter_rank: int = 0,
    spill: tuple[int, Path] | None = None,
) -> tuple[Executor, PackedWeights | None, Mapping[str, int]]:
    """Builds the executor of a model, and returns the ids of the weights that adapters may change.

    spill: the memory of the KV pool in bytes, and the folder of the file that has the rest.

    Raises MemoryError, or ValueError if the kernels do not support its shape.
    """
    from trunkline_server import _kernels

    config = checkpoint.config
    builder = _kernels.ProgramBuilder(
        **step,
        block_size=options.block_size,
        num_blocks=sizes.num_blocks,
        num_layers=config.num_kv_layers,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        kv_dtype=options.kv_dtype,
        latent_size=config.latent_size,
    )
    if max_adapter_rank:
        builder.take_adapters(max_adapter_rank)
    if spill is not None:
        builder.spill_kv(*spill)
    ops = _trace(builder, checkpoint, sizes.num_window_parts, bits)
    _log_formats(checkpoint, ops.tensors)
    packed = None if weights is None else PackedWeights(checkpoint, ops.tensors, weights, bits)
    return _build_executor(builder, packed, **vars(options)), packed, ops.linear_ids


def _load_draft(
    draft: Checkpoint, step: dict[str, int], num_blocks: int, options: _LoadOptions, kv_dtype: str
) -> DraftModel:
    options = replace(options, kv_dtype=kv_dtype, tell=None)
    # The cache keeps one model's weights, so those of the draft model are packed at each start.
    return DraftModel(_load(draft, step, PoolSizes(num_blocks=num_blocks), None, options)[0])


def _check_spill(config: ModelConfig, store: StoreOptions | None, draft: Checkpoint | None) -> None:
    """Raises InvalidArgument for what cannot be used with `--kv-memory`."""
    if config.recurrent is not None:
        raise InvalidArgument(
            "the model has recurrent layers, whose states are not left on disk", hint="leave out `--kv-memory`"
        )
    if store is not None or draft is not None:
        flag = "--kv-disk-path" if store is not None else "--speculative-model"
        raise InvalidArgument(f"`--kv-memory` cannot be used with `{flag}`", hint="leave one of them out")


def _spill_folder() -> Path:
    """Returns the folder of files for what exceeds its memory. /tmp is often in memory itself."""
    return Path(os.environ.get("TMPDIR") or "/var/tmp")


@contextmanager
def _named_errors(num_blocks: int, checkpoint: Checkpoint) -> Iterator[None]:
    """Raises DoesNotFit, DamagedFile and BackendUnavailable for the errors of `_load`."""
    try:
        yield
    except MemoryError as error:
        raise DoesNotFit(
            f"cannot allocate {num_blocks} KV blocks and the weights: {error}", hint="lower `--max-batch-total-tokens`"
        ) from error
    except OSError as error:
        message, _, hint = str(error).partition("; hint: ")
        raise BackendUnavailable(message, hint=hint or None) from error
    except FloatingPointError as error:
        raise DamagedFile(checkpoint.path, str(error)) from error
    except ValueError as error:
        # The model is intact and known, but the kernels do not support its shape.
        raise BackendUnavailable(f"the cpu backend cannot run this model: {error}") from error


def _require_kernels() -> None:
    try:
        import trunkline_server._kernels  # noqa: F401
    except ImportError as error:
        raise BackendUnavailable(f"cannot load the kernels: {error}", hint="run `make build`") from error


def _info(
    executor: Executor,
    fingerprint: str,
    kv_dtype: str,
    block_size: int,
    sizes: PoolSizes,
    step: dict[str, int],
    config: ModelConfig,
    adapters: tuple[int, int],
) -> BackendInfo:
    """Describes the backend. adapters: the number of slots, and their bytes."""
    bytes_per_part = executor.bytes_per_window_part
    return BackendInfo(
        device=executor.device,
        block_size=block_size,
        bytes_per_block=executor.bytes_per_block,
        num_device_blocks=sizes.num_blocks,
        max_step_tokens=step["max_step_tokens"],
        max_step_sequences=step["max_step_sequences"],
        max_draft_tokens=0 if config.recurrent is not None else MAX_DRAFT_TOKENS,
        kv_dtype=kv_dtype,
        weight_bytes=executor.weight_bytes,
        numeric_fingerprint=_fingerprint_of_results(executor, fingerprint, kv_dtype, block_size),
        num_window_parts=(sizes.num_window_parts or 0) if bytes_per_part else 0,
        bytes_per_window_part=bytes_per_part,
        window_size=window_size(config) if bytes_per_part else 0,
        recurrent=config.recurrent is not None,
        num_adapter_slots=adapters[0],
        adapter_bytes=adapters[1],
    )


def _buffer_bytes(
    info: BackendInfo, executor: Executor, need: MemoryNeed, draft_model: DraftModel | None, num_shares: int
) -> int:
    """Returns what all buffers take once they are in use."""
    pool_bytes = info.pool_bytes if executor.spill is None else executor.spill[0]
    num_bytes = info.weight_bytes + info.adapter_bytes + need.scratch_bytes + pool_bytes
    if draft_model is not None:
        num_bytes += info.num_device_blocks * draft_model.bytes_per_block
    if executor.cache_note is not None and executor.stream is None:
        # Lanes that map the same packed weights share their pages.
        num_bytes -= executor.weight_bytes - executor.weight_bytes // num_shares
    return num_bytes


def _trace(builder: ProgramBuilder, checkpoint: Checkpoint, window_parts: int | None, bits: str) -> TracingOps:
    """Traces the model into `builder`, and returns the operations, which know its weights."""
    if window_parts is not None:
        builder.keep_windows(window_parts)
    ops = TracingOps(builder, checkpoint, bits)
    if checkpoint.config.is_encoder:
        builder.see_all()
    registry.forward(ops, checkpoint.config)
    return ops


def _adapter_slots(executor: Executor, weight_ids: Mapping[str, int], max_loras: int) -> AdapterSlots | None:
    if not max_loras:
        return None
    from trunkline_server.backends.cpu.adapters import CpuAdapters  # it needs numpy, which serving may not

    return CpuAdapters(executor, weight_ids, max_loras)


def _build_executor(
    builder: ProgramBuilder,
    packed: PackedWeights | None,
    *,
    threads: int | None,
    pinning: str,
    kv_dtype: str,
    block_size: int,
    tell: Callable[[float], None] | None,
) -> Executor:
    """Builds the program. int4's key scaling comes from the cache, or is measured now and cached."""
    from trunkline_server import _kernels

    packing: Any = {"progress": _logged(tell), "interval_s": PROGRESS_INTERVAL_S}
    began_ns = start_times.now()
    if kv_dtype != "int4" or packed is None:
        began = time.monotonic()
        cache = None if packed is None else packed.cache
        executor = builder.build(threads, pinning, cache=cache, **packing)
        _note_load(executor, began_ns, measured=kv_dtype == "int4")
        if kv_dtype == "int4":
            _log_measured(began)
        return executor
    file = packed.key_scaling_file(_kernels.NUMERICS_VERSION, block_size)
    kept = file.load()
    began = time.monotonic()
    executor = builder.build(threads, pinning, cache=packed.cache, key_scaling=kept, **packing)
    scaling = executor.key_scaling
    assert scaling is not None
    _note_load(executor, began_ns, measured=scaling != kept)
    if scaling != kept:
        _log_measured(began)
        if packed.is_settled:
            file.keep(scaling)
    return executor


def _note_load(executor: Executor, began_ns: int, *, measured: bool) -> None:
    """Notes the part of the start in which weights were mapped from the cache, or packed, and keys were measured."""
    start_times.note(("map" if executor.cache_note is not None else "pack") + " and calibrate" * measured, began_ns)


def _log_measured(began: float) -> None:
    """The measurement is part of loading, so only their sum is known."""
    fields = {"seconds_with_loading": f"{time.monotonic() - began:.2f}"}
    logger.info("key scaling measured", extra={"fields": fields})


def _log_formats(checkpoint: Checkpoint, tensors: list[Weight]) -> None:
    """Logs the formats of quantised modules in memory, since some of them are larger than in their file."""
    if checkpoint.quantization is None:
        return
    counts = Counter(tensor.format for tensor in tensors if checkpoint.stored_parts(tensor.name))
    logger.info("quantised weights repacked", extra={"fields": {name.lower(): n for name, n in sorted(counts.items())}})


def _logged(tell: Callable[[float], None] | None) -> Callable[[float], None]:
    """Returns a function that also logs now and then what it passes on."""
    calls = itertools.count(1)

    def report(done: float) -> None:
        if tell is not None:
            tell(done)
        if next(calls) % REPORTS_PER_LOG_LINE == 0:
            logger.info("packing weights", extra={"fields": {"percent": f"{100 * done:.0f}"}})

    return report


def _log_load(executor: Executor, checkpoint: Checkpoint, packed: PackedWeights | None) -> str:
    """Logs the threads and the origin of the weights, and returns the checkpoint's fingerprint."""
    _log_threads(executor)
    if executor.spill is not None:
        memory_bytes, file_bytes = executor.spill
        fields = {"memory_mib": memory_bytes >> 20, "file_mib": file_bytes >> 20, "folder": _spill_folder()}
        logger.info("KV cache exceeds `--kv-memory`, and the rest of it is in a file", extra={"fields": fields})
    if packed is not None:
        return packed.log_lookup(executor, checkpoint)
    logger.info("weights packed", extra={"fields": {"weight_mib": executor.weight_bytes >> 20}})
    return fingerprint_of(checkpoint)


def _fingerprint_of_results(executor: Executor, weights: str, kv_dtype: str, block_size: int) -> str:
    from trunkline_server import _kernels

    parts = [weights, kv_dtype, str(_kernels.NUMERICS_VERSION), str(block_size)]
    if (scaling := executor.key_scaling) is not None:
        parts.append(hashlib.blake2b(scaling).hexdigest())
    return numeric_fingerprint(*parts)


def _log_threads(executor: Executor) -> None:
    from trunkline_server import _kernels

    num_threads, is_pinned, nodes = executor.threads
    fields: dict[str, object] = {"count": num_threads, "pinned": is_pinned, "numa_nodes": len(nodes)}
    logger.debug("threads started", extra={"fields": fields})
    if num_threads > (usable := _kernels.max_parallel_threads()):
        logger.warning(
            f"{num_threads} threads share {usable} CPUs, which makes every step slower; hint: omit `--threads`, or use "
            f"at most {usable}"
        )
    if len(nodes) > 1:
        # Weights stay on the node where they were packed, so threads of other nodes read them over the link between
        # nodes.
        logger.warning(
            "threads span NUMA nodes; hint: run one server per node, each under `numactl --cpunodebind --membind`",
            extra={"fields": {"nodes": ",".join(map(str, nodes))}},
        )


def numeric_fingerprint(*parts: str) -> str:
    """Returns a hash of everything that the bits of a result depend on, as 32 hex digits."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
