"""The command `serve`: loads a model and answers the router until SIGTERM."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import signal
import threading
import time
from dataclasses import fields, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from trunkline_server import cores, lifeline, start_times, telemetry
from trunkline_server.errors import InvalidArgument
from trunkline_server.settings import Settings

if TYPE_CHECKING:
    from trunkline_server.adapter_loader import AdapterLoader
    from trunkline_server.adapters.base import BaseModel
    from trunkline_server.backends.interface import Backend, Store
    from trunkline_server.backends.registry import BackendOptions
    from trunkline_server.backends.store_files import StoreOptions
    from trunkline_server.engine import Engine
    from trunkline_server.models.config import ModelShape

logger = logging.getLogger(__name__)

# EX_SOFTWARE of sysexits.h. The launcher restarts the shard after any exit code except 0 and 2.
EXIT_CODE_BUG = 70
# Time for an open stream to send its last result after SIGTERM and the end of the running step.
STOP_GRACE_S = 2.0


def serve(settings: Settings, options: argparse.Namespace, began_ns: int | None = None) -> int:
    """Runs the shard and returns its exit code. Raises UserError while loading.

    options: the arguments that tell this shard from others with the same settings. began_ns: when a spare process got
    them, in nanoseconds since 1970.
    """
    began, entered_ns = time.monotonic(), start_times.now()
    _take_cores(settings, options)
    signals = _Signals(ignore_interrupt=options.lifeline)
    if options.lifeline:
        lifeline.watch(lifeline.STANDARD_INPUT, Path(options.socket))
    # Imports the service's packages meanwhile: the kernels pack weights without the interpreter's lock.
    threading.Thread(target=importlib.import_module, args=("trunkline_server.service",), daemon=True).start()
    model, base, backend = _load(settings, options)
    start_times.note("load", entered_ns)
    loaded_ns = start_times.now()

    from trunkline_server.backends.host_memory import process_memory
    from trunkline_server.engine import Engine
    from trunkline_server.loop import EngineLoop
    from trunkline_server.service import ShardServer, ShardService

    engine = Engine(backend, vocab_size=model.vocab_size)
    adapters = _adapter_loader(settings, engine, base, backend)
    loop = EngineLoop(engine, _end_process)
    info = backend.info
    if info.memory_bytes:
        info = replace(info, memory_bytes=info.memory_bytes + process_memory(info.weight_bytes))
    if (observer := telemetry.begin(settings, options.lane, began_ns)) is not None:
        engine.observe_with(observer)
    service = ShardService(model, info, backend.store, adapters, loop, _end_process)
    server = ShardServer(service, Path(options.socket))
    signals.hold()
    loop.start()
    server.start()
    start_times.note("serve", loaded_ns)
    if observer is not None:
        observer.ready()
    # The objects so far live as long as the process. Without this, each full garbage collection would look through all
    # of them between two tokens.
    gc.freeze()
    logger.info(
        "ready",
        extra={
            "fields": {
                "seconds": f"{time.monotonic() - began:.2f}",
                "device": info.device,
                "weight_mib": info.weight_bytes >> 20,
                "pool_tokens": info.num_device_blocks * info.block_size,
                "pool_mib": info.pool_bytes >> 20,
            }
        },
    )
    threading.Thread(target=backend.after_start, name="after-start", daemon=True).start()
    signals.wait(backend.store)
    loop.stop_taking_plans()
    logger.info("stopping")
    loop.stop()
    server.stop(STOP_GRACE_S)
    if backend.store is not None:
        backend.store.sync()
    if observer is not None:
        observer.stop()
    return 0


def _take_cores(settings: Settings, options: argparse.Namespace) -> None:
    """Keeps to this lane's part of the cores, if lanes share them. Raises InvalidArgument."""
    compute = settings.compute
    if compute.replicas > 1 and options.lane >= compute.replicas:
        raise InvalidArgument(f"`--lane` is {options.lane}, but `--replicas` is {compute.replicas}")
    if _num_shares(compute) > 1:
        num_threads = cores.take_part(options.lane, compute.replicas)
        compute.threads = compute.threads or num_threads


def _num_shares(compute: Settings) -> int:
    """Returns the number of shards of this server that share cores and memory. Each GPU has its own."""
    num_replicas: int = compute.replicas
    return 1 if compute.backend == "cuda" else num_replicas


def _load(settings: Settings, options: argparse.Namespace) -> tuple[ModelShape, BaseModel | None, Backend]:
    """Loads the model, which is also the base of adapters if the server takes them. Raises UserError."""
    from trunkline_server.adapters.base import BaseModel
    from trunkline_server.backends import registry
    from trunkline_server.weights.checkpoint import open_checkpoint
    from trunkline_server.weights.pooling import refuse_pooling, with_pooling

    compute, path = settings.compute, Path(settings.model_path)
    own = backend_options(settings, options)
    logger.debug("loading model", extra={"fields": {"path": path, "backend": compute.backend}})
    if compute.backend == registry.TRANSFORMERS:
        refuse_pooling(compute.pooling, compute.backend)
        model, backend = registry.build_transformers(path, own)
        return model, None, backend
    opening_ns = start_times.now()
    checkpoint = open_checkpoint(path)
    start_times.note("headers", opening_ns)
    checkpoint.config = config = with_pooling(checkpoint.config, compute.pooling, compute.backend)
    logger.debug(
        "model opened",
        extra={"fields": {"architecture": config.architecture, "tensors": len(checkpoint.names())}},
    )
    # The files are unmapped when this returns; the backend keeps what it needs.
    base = BaseModel.of(checkpoint) if own.max_loras else None
    return config, base, registry.build(compute.backend, checkpoint, own)


def _adapter_loader(
    settings: Settings, engine: Engine, base: BaseModel | None, backend: Backend
) -> AdapterLoader | None:
    if backend.adapters is None:
        return None
    from trunkline_server.adapter_loader import AdapterLimits, AdapterLoader

    assert base is not None, "a backend has slots only if the server takes adapters"
    limits = AdapterLimits(settings.adapter_slots.max_lora_rank, backend.info.adapter_bytes)
    loader = AdapterLoader(backend.adapters, base, limits, engine.wake)
    engine.load_adapters_with(loader)
    return loader


class _Signals:
    """Handles SIGTERM, and SIGINT unless the launcher forwards it. Until `hold` is called, a signal exits with 0.

    SIGUSR2 asks to leave the store on disk to another shard, SIGUSR1 to take it back because that one has ended.
    """

    def __init__(self, *, ignore_interrupt: bool) -> None:
        # The interpreter's C handler writes the signal number to the pipe in whichever thread receives it. A Python
        # handler runs only in the main thread, which a signal to another thread does not wake.
        self._read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end)
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignore_interrupt else self._handle)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda _number, _frame: None)
        self._is_held = False

    def hold(self) -> None:
        """From now on a signal does not exit the process but lets `wait` return."""
        self._is_held = True

    def wait(self, store: Store | None = None) -> None:
        """Waits for a signal to stop. Signals since `hold` count."""
        while (number := os.read(self._read_end, 1)[0]) in (signal.SIGUSR1, signal.SIGUSR2):
            if store is None:
                continue
            if number == signal.SIGUSR2:
                store.give_up()
            else:
                store.take_back()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._is_held:
            os._exit(0)


def backend_options(settings: Settings, options: argparse.Namespace) -> BackendOptions:
    """Returns the part of the backend's settings that the lane has among `--replicas`. Raises InvalidArgument.

    A setting whose name is that of an option is passed on as it is.
    """
    from trunkline_server.backends.load_progress import LoadProgress
    from trunkline_server.backends.registry import BackendOptions

    compute, limits, cache = settings.compute, settings.step_limits, settings.shard_cache
    num_shares = _num_shares(compute)
    groups = (compute, limits, cache, settings.adapter_slots)
    names = {field.name for field in fields(BackendOptions)}
    as_set = {name: value for group in groups for name, value in vars(group).items() if name in names}
    of_this_shard = {
        "num_shares": num_shares,
        "max_batch_total_tokens": _part(limits.max_batch_total_tokens, num_shares),
        "weights_memory": _part(limits.weights_memory, num_shares),
        "kv_memory": _part(limits.kv_memory, num_shares),
        "max_step_tokens": limits.max_batch_prefill_tokens,
        "weights_cache": _cache_folder(compute.weights_cache),
        "speculative_model": None if compute.speculative_model is None else Path(compute.speculative_model),
        "max_loras": settings.adapter_slots.max_loras or 0,
        "kv_disk": _kv_disk(cache, options, compute.replicas),
        "kv_host_bytes": _part(cache.kv_host_size, compute.replicas),
        "on_progress": LoadProgress() if options.lifeline else None,
    }
    assert names == as_set.keys() | of_this_shard.keys(), "each option has a setting, or is computed here"
    return BackendOptions(**(as_set | of_this_shard))


def _part(total: int | None, num_parts: int) -> int | None:
    return None if total is None else max(1, total // num_parts)


def _cache_folder(cache: Any) -> Path | None:
    from trunkline_server.backends.cpu.weight_cache import default_folder

    if cache == "off":
        return None
    return default_folder() if cache is None else Path(cache.folder)


def _kv_disk(cache: Settings, options: argparse.Namespace, num_lanes: int) -> StoreOptions | None:
    from trunkline_server.backends.store_files import StoreOptions

    if cache.kv_disk_path is None:
        return None
    if cache.kv_disk_size is None:
        raise InvalidArgument("the settings have `kv_disk_path`, but no `kv_disk_size`", hint="set it in bytes")
    return StoreOptions(
        path=Path(cache.kv_disk_path),
        max_bytes=cache.kv_disk_size,
        num_lanes=num_lanes,
        is_optional=cache.kv_disk_optional,
        lane=options.lane,
        awaits=options.await_store,
    )


def _end_process(_bug: BaseException) -> None:
    # The bug is already logged. No clean-up: the remaining state is unknown, and a thread may hang in the kernels.
    os._exit(EXIT_CODE_BUG)
