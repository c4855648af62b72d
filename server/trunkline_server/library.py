"""Models on this machine: `trunkline list`, `trunkline show` and `trunkline rm`."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline_server import hub
from trunkline_server.backends.cpu.build import kv_dtype_of, step_limits
from trunkline_server.backends.cpu.memory import BLOCK_SIZE, DEFAULT_POOL_TOKENS, memory_need, plan_pool
from trunkline_server.backends.host_memory import PROCESS_BYTES, available_memory
from trunkline_server.backends.states import LEAST_STATES, STATE_ELEMENT_BYTES
from trunkline_server.errors import InvalidArgument, ModelNotFound
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.gguf import GgufFile
from trunkline_server.weights.gguf_splits import split_names
from trunkline_server.weights.quantization import (
    Awq,
    EightBits,
    FourBitFloats,
    Gptq,
    Mxfp4,
    PackedIntegers,
    Quantization,
)
from trunkline_server.weights.quantize import NONE, QUANTIZED, has_floats

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

    from trunkline_server.hub import ResolvedModel
    from trunkline_server.models.pooling import Pooling
    from trunkline_server.weights.checkpoint import Checkpoint

_WEIGHTS = (".safetensors", ".gguf")
_MIB, _GIB = 2**20, 2**30
_LICENCE = "general.license"


def listed() -> list[str]:
    """Returns a table of the models in the cache of the Hub, those used last first."""
    repos = sorted(_repos(), key=lambda repo: -repo.last_accessed)
    if not repos:
        return ["no models are downloaded; hint: run `trunkline download org/name`"]
    rows = [("MODEL", "SIZE", "LAST USED")]
    for repo in repos:
        used = time.strftime("%Y-%m-%d", time.localtime(repo.last_accessed))
        rows += [(name, _size(num_bytes), used) for name, num_bytes in sorted(_models(repo).items())]
    return _table(rows)


def removed(model: str) -> str:
    """Deletes a repository from the cache of the Hub, with all its revisions. Raises InvalidArgument, ModelNotFound."""
    from huggingface_hub import scan_cache_dir

    repo_id, _, file = model.partition(":")
    if file:
        raise InvalidArgument(
            f"`{model}` is one file of a repository, which is removed as a whole", hint=f"run `trunkline rm {repo_id}`"
        )
    for repo in _repos():
        if repo.repo_id == repo_id:
            # Copies of a repository share commits, which name the revisions, so no other repository may be in view.
            only = replace(scan_cache_dir(), repos=frozenset({repo}))
            plan = only.delete_revisions(*(revision.commit_hash for revision in repo.revisions))
            plan.execute()
            return f"removed {repo_id}, {_size(plan.expected_freed_size)}"
    raise ModelNotFound(f"`{model}` is not downloaded", hint="`trunkline list` shows the names")


def shown(model: str | None, revision: str | None) -> list[str]:
    """Describes a model that is on this machine. Raises UserError."""
    resolved = hub.resolve(model, revision=revision, downloads=False)
    checkpoint = open_checkpoint(resolved.path)
    config = checkpoint.config
    shapes = weight_shapes(config)
    if config.tie_word_embeddings:
        shapes.pop("lm_head.weight", None)
    rows = [("model", resolved.model_id), ("path", str(resolved.path))]
    if resolved.revision is not None:
        rows.append(("revision", resolved.revision))
    rows += [
        ("architecture", config.architecture),
        ("parameters", f"{sum(map(math.prod, shapes.values())):,}"),
        ("weights", _weights(checkpoint)),
        ("context", f"{config.max_position_embeddings:,} tokens"),
    ]
    if config.pooling is not None:
        rows.append(("vectors", _vectors(config.pooling, config.vector_size)))
    if licence := _licence(resolved):
        rows.append(("licence", licence))
    return _table(rows + list(_memory(checkpoint)))


def _licence(resolved: ResolvedModel) -> str | None:
    """Returns the licence that the GGUF file or the description of the repository names."""
    from huggingface_hub import metadata_load
    from yaml import YAMLError

    if resolved.path.suffix == ".gguf" and (licence := GgufFile(resolved.path).metadata.get(_LICENCE)):
        return str(licence)
    if resolved.card is None or not resolved.card.is_file():
        return None
    try:
        metadata = metadata_load(resolved.card) or {}
    except (ValueError, YAMLError):
        return f"unknown, because the metadata of `{resolved.card.name}` is not valid YAML"
    names = metadata.get("license")
    licence = ", ".join(map(str, names)) if isinstance(names, list) else str(names or "")
    # A licence that the Hub does not know is `other` and has a name of its own.
    return str(metadata.get("license_name") or licence) if licence == "other" else licence or None


def _vectors(pooling: Pooling, size: int) -> str:
    if pooling.labels:
        return f"logits of {size} classes" if size > 1 else "the logit of one class"
    return f"{size} elements, {'mean of all tokens' if pooling.kind == 'mean' else f'{pooling.kind} token'}"


def _repos() -> list[CachedRepoInfo]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return []
    return [repo for repo in repos if repo.repo_type == "model" and _models(repo)]


def _models(repo: CachedRepoInfo) -> dict[str, int]:
    """Maps what `serve` takes as MODEL to bytes: the repository of safetensors, or each of its GGUF models."""
    sizes: dict[str, int] = Counter()
    # Revisions share the files that they have in common.
    counted = set[tuple[str, Path]]()
    for revision in repo.revisions:
        for file in revision.files:
            is_new = (file.file_name, file.blob_path) not in counted
            counted.add((file.file_name, file.blob_path))
            if is_new and file.file_name.endswith(_WEIGHTS):
                path = file.file_path.relative_to(revision.snapshot_path)
                first = path.with_name(split_names(path.name)[0]).as_posix()
                key = f"{repo.repo_id}:{first}" if path.suffix == ".gguf" else repo.repo_id
                sizes[key] += file.size_on_disk
    return sizes


def _weights(checkpoint: Checkpoint) -> str:
    if checkpoint.quantization is not None:
        return _method(checkpoint.quantization)
    tensors = {tensor.name: tensor for tensor in map(checkpoint.tensor, checkpoint.names())}
    sizes = Counter[str]()
    for tensor in tensors.values():
        sizes[tensor.format] += math.prod(tensor.shape)
    total = sum(sizes.values())
    return ", ".join(f"{name} {100 * size / total:.0f} %" for name, size in sizes.most_common())


def _method(scheme: Quantization) -> str:
    match scheme:
        case Gptq():
            return f"GPTQ, {scheme.bits} bits"
        case Awq():
            return "AWQ, 4 bits"
        case PackedIntegers():
            return f"compressed-tensors, {scheme.bits} bits"
        case EightBits():
            return "FP8" if scheme.is_float else "INT8"
        case FourBitFloats():
            return "bitsandbytes, 4 bits"
        case Mxfp4():
            return "MXFP4"


def expected_memory(path: Path, pool_tokens: int | None) -> int:
    """Returns the bytes that a shard on the cpu backend is expected to take: process, weights, activations and KV pool.

    pool_tokens: `--max-batch-total-tokens`; None: the default for the memory that is available now. Raises UserError.
    """
    checkpoint = open_checkpoint(path)
    need = memory_need(checkpoint, NONE, kv_dtype=kv_dtype_of("auto", checkpoint.config), **step_limits(None, None))
    num_blocks = plan_pool(need, available_bytes=available_memory(), block_size=BLOCK_SIZE, wanted_tokens=pool_tokens)
    return PROCESS_BYTES + need.bytes_with(num_blocks * BLOCK_SIZE)


def _memory(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yields the memory that the cpu backend needs with its default flags."""
    kv_dtype = kv_dtype_of("auto", checkpoint.config)
    need = memory_need(checkpoint, NONE, kv_dtype=kv_dtype, **step_limits(None, None))
    yield "weights need", _size(need.weight_bytes)
    if has_floats(checkpoint):
        for bits in QUANTIZED:
            less = memory_need(checkpoint, bits, kv_dtype=kv_dtype, **step_limits(None, None)).weight_bytes
            if less < 0.9 * need.weight_bytes:
                yield f"with --quantize {bits}", _size(less)
    yield "activations need", _size(need.scratch_bytes)
    tokens = min(DEFAULT_POOL_TOKENS, checkpoint.config.max_position_embeddings)
    yield "KV cache needs", f"{_size(tokens * need.kv_bytes_per_token)} for {tokens:,} tokens"
    if checkpoint.config.recurrent is not None:
        states = LEAST_STATES * STATE_ELEMENT_BYTES * checkpoint.config.state_size
        yield "states need", f"{_size(states)} for each running sequence"
    yield "available", _size(available_memory())


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB else f"{-(-num_bytes // _MIB)} MiB"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]
