"""Builds backends by name. Imports a backend's packages only when it is requested, so the CPU path needs no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline_server.errors import BackendUnavailable, InvalidArgument
from trunkline_server.weights.quantize import NONE, ON_DEVICE, QuantizedCheckpoint, bits_of

if TYPE_CHECKING:
    from trunkline_server.backends.interface import Backend
    from trunkline_server.backends.store_files import StoreOptions
    from trunkline_server.models.config import ModelShape
    from trunkline_server.weights.checkpoint import Checkpoint

TRANSFORMERS = "transformers"


# The options that only the cpu backend has, with hints for those who use another one.
_CPU_ONLY = {
    "model_memory": "use the cpu backend, or set `--max-batch-total-tokens`",
    "overcommit": "leave it out",
    "weights_memory": "use the cpu backend",
    "kv_memory": "use the cpu backend",
}


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """Options from the settings; None leaves a choice to the backend."""

    kv_cache_dtype: str = "auto"
    # "auto": layers with a window may be stored separately; "off": blocks stay in one piece.
    kv_windows: str = "auto"
    # "exact" or "fast"; only for the cuda backend.
    numerics: str = "exact"
    threads: int | None = None
    # Shards that share this machine's memory; each sizes its pool to an equal part of what a single shard would take.
    num_shares: int = 1
    pin_threads: str = "off"
    max_batch_total_tokens: int | None = None
    # The memory of all shards of the model; only for the cpu backend.
    model_memory: int | None = None
    # Plans with more memory than is available, if it has to; only for the cpu backend.
    overcommit: bool = False
    # The memory of this shard's weights, of which the rest streams from the cache; only for the cpu backend.
    weights_memory: int | None = None
    # The memory of this shard's KV pool, of which the rest is in a file; only for the cpu backend.
    kv_memory: int | None = None
    max_step_tokens: int | None = None
    max_step_sequences: int | None = None
    weights_cache: Path | None = None
    # A value of `--quantize`; not for the transformers backend.
    quantize: str = "none"
    # A smaller model that drafts tokens; only for the cpu backend.
    speculative_model: Path | None = None
    kv_disk: StoreOptions | None = None
    # Slots for adapters and their largest rank; not for the transformers backend.
    max_loras: int = 0
    max_lora_rank: int = 0
    # Bytes of pinned host memory for KV blocks; only for the cuda backend.
    kv_host_bytes: int | None = None
    # Called while weights are loaded with their part that is, from 0 to 1; not by all backends.
    on_progress: Callable[[float], None] | None = None

    def given(self) -> dict[str, int]:
        """Returns the numeric options that are not None, except those that only some backends take."""
        others = ("kv_host_bytes", *_CPU_ONLY, *self.adapters())
        return {name: value for name, value in vars(self).items() if isinstance(value, int) and name not in others}

    def adapters(self) -> dict[str, int]:
        return {"max_loras": self.max_loras, "max_lora_rank": self.max_lora_rank}


def build(name: str, checkpoint: Checkpoint, options: BackendOptions) -> Backend:
    """Builds a backend that holds the checkpoint's model. Raises UserError."""
    for option, hint in _CPU_ONLY.items():
        if getattr(options, option) and name != "cpu":
            flag = f"--{option.replace('_', '-')}"
            raise InvalidArgument(f"`{flag}` is set, but the {name} backend does not support it", hint=hint)
    return _BUILDERS[name](checkpoint, options)


def _build_cpu(checkpoint: Checkpoint, options: BackendOptions) -> Backend:
    _refuse_host_tier("cpu", options)
    from trunkline_server.backends.cpu.build import build as build_cpu
    from trunkline_server.weights.checkpoint import open_checkpoint

    draft = None if options.speculative_model is None else open_checkpoint(options.speculative_model)
    return build_cpu(
        checkpoint,
        draft=draft,
        store=options.kv_disk,
        window_parts="auto" if options.kv_windows == "auto" else None,
        kv_cache_dtype=options.kv_cache_dtype,
        pinning=options.pin_threads,
        quantize=options.quantize,
        weights_cache=options.weights_cache,
        on_progress=options.on_progress,
        **{name: getattr(options, name) for name in _CPU_ONLY},
        **options.adapters(),
        **options.given(),
    )


def _refuse_draft_model(name: str, options: BackendOptions) -> None:
    if options.speculative_model is not None:
        raise InvalidArgument(
            f"`--speculative-model` is set, but the {name} backend does not support it", hint="use the cpu backend"
        )


def _refuse_disk(name: str, options: BackendOptions) -> None:
    if options.kv_disk is not None:
        raise InvalidArgument(
            f"`--kv-disk-path` is set, but the {name} backend does not support it", hint="use the cpu or cuda backend"
        )


def _refuse_host_tier(name: str, options: BackendOptions) -> None:
    if options.kv_host_bytes is not None:
        raise InvalidArgument(
            f"`--kv-host-size` is set, but the {name} backend already keeps its blocks in host memory",
            hint="drop it, or set `--max-batch-total-tokens`",
        )


def _install(*packages: str) -> str:
    """Says how to add packages to this interpreter's environment, which may have no pip of its own."""
    return f"run `pip --python {sys.executable} install {' '.join(packages)}`"


def _build_reference(checkpoint: Checkpoint, options: BackendOptions) -> Backend:
    _refuse_host_tier("reference", options)
    _refuse_draft_model("reference", options)
    try:
        from trunkline_server.backends.reference.backend import ReferenceBackend
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise BackendUnavailable("the reference backend needs torch", hint=_install("torch")) from error
    _refuse_disk("reference", options)
    bits = bits_of(options.quantize, checkpoint)
    checkpoint = checkpoint if bits == NONE else QuantizedCheckpoint(checkpoint, bits)
    given = options.given() | options.adapters()
    return ReferenceBackend(checkpoint, kv_cache_dtype=options.kv_cache_dtype, **given)


def _build_cuda(checkpoint: Checkpoint, options: BackendOptions) -> Backend:
    _refuse_draft_model("cuda", options)
    if options.weights_cache is not None:
        # Triton reads this when it compiles its first kernel.
        os.environ.setdefault("TRITON_CACHE_DIR", str(options.weights_cache / "triton"))
    try:
        from trunkline_server.backends.cuda.build import build as build_on_gpu
        from trunkline_server.backends.cuda.tier_build import TierOptions
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("torch", "triton"):
            raise
        raise BackendUnavailable(
            f"the cuda backend needs {error.name.split('.')[0]}", hint=_install("torch", "triton")
        ) from error
    bits = bits_of(options.quantize, checkpoint, on_device=True)
    rounds_to = bits if bits in ON_DEVICE else None
    return build_on_gpu(
        checkpoint if bits == NONE or rounds_to else QuantizedCheckpoint(checkpoint, bits, keeps_heads=True),
        rounds_to=rounds_to,
        kv_cache_dtype=options.kv_cache_dtype,
        numerics=options.numerics,
        max_batch_total_tokens=options.max_batch_total_tokens,
        max_step_tokens=options.max_step_tokens,
        max_step_sequences=options.max_step_sequences,
        tiers=TierOptions(host_bytes=options.kv_host_bytes, disk=options.kv_disk),
        max_loras=options.max_loras,
        max_lora_rank=options.max_lora_rank,
        on_progress=options.on_progress,
    )


def build_transformers(path: Path, options: BackendOptions) -> tuple[ModelShape, Backend]:
    """Builds the backend that reads a folder by itself, with whatever model is in it. Raises UserError."""
    _refuse_host_tier(TRANSFORMERS, options)
    _refuse_draft_model(TRANSFORMERS, options)
    _refuse_disk(TRANSFORMERS, options)
    if options.max_loras:
        raise InvalidArgument(
            "adapters are on, but the transformers backend does not support them",
            hint="drop `--lora`, `--lora-folder` and `--max-loras`, or use another backend",
        )
    if options.quantize != "none":
        raise InvalidArgument(
            f"`--quantize` is {options.quantize}, but the transformers backend does not quantise weights",
            hint="use another backend, or `--quantize none`",
        )
    try:
        from trunkline_server.backends.transformers.backend import TransformersBackend
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise BackendUnavailable(
            f"the transformers backend needs {error.name}", hint=_install("torch", "transformers")
        ) from error
    backend = TransformersBackend(path, kv_cache_dtype=options.kv_cache_dtype, **options.given())
    return backend.shape, backend


_BUILDERS: dict[str, Callable[[Checkpoint, BackendOptions], Backend]] = {
    "cpu": _build_cpu,
    "cuda": _build_cuda,
    "reference": _build_reference,
}
