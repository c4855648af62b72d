"""Models on this machine: `trunkline list`, `trunkline show` and `trunkline rm`."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline_server import hub
from trunkline_server.backends.cpu.memory import DEFAULT_POOL_TOKENS
from trunkline_server.backends.cpu.memory_plan import MemoryOptions, plan_memory, unlimited
from trunkline_server.backends.host_memory import available_memory
from trunkline_server.backends.states import LEAST_STATES, STATE_ELEMENT_BYTES
from trunkline_server.errors import DoesNotFit, InvalidArgument, ModelNotFound
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.tables import size, table
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
from trunkline_server.weights.quantize import QUANTIZED, has_floats

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

    from trunkline_server.backends.registry import BackendOptions
    from trunkline_server.hub import ResolvedModel
    from trunkline_server.models.pooling import Pooling
    from trunkline_server.weights.checkpoint import Checkpoint

_WEIGHTS = (".safetensors", ".gguf")
_LICENCE = "general.license"


def listed() -> list[str]:
    """Returns a table of the models in the cache of the Hub, those used last first."""
    repos = sorted(_repos(), key=lambda repo: -repo.last_accessed)
    if not repos:
        return ["no models are downloaded; hint: run `trunkline download org/name`"]
    rows = [("MODEL", "SIZE", "LAST USED")]
    for repo in repos:
        used = time.strftime("%Y-%m-%d", time.localtime(repo.last_accessed))
        rows += [(name, size(num_bytes), used) for name, num_bytes in sorted(_models(repo).items())]
    return table(rows)


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
            return f"removed {repo_id}, {size(plan.expected_freed_size)}"
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
    return table(rows + list(_memory(checkpoint)))


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


def expected_memory(path: Path, options: BackendOptions) -> int:
    """Returns the bytes that the shards of a model on the cpu backend are expected to take once all is in use.

    A pool of default size is that for the memory that is available now, or else the smallest one: other models may
    leave the memory before this one is loaded. Raises UserError.
    """
    checkpoint = open_checkpoint(path)
    draft = None if options.speculative_model is None else open_checkpoint(options.speculative_model)
    memory = memory_options(options)
    try:
        plan = plan_memory(checkpoint, memory, draft=draft)
    except DoesNotFit:
        plan = unlimited(checkpoint, memory, draft)
    return plan.bytes_of_shards(options.num_shares, share_weights=options.weights_cache is not None)


def memory_options(options: BackendOptions) -> MemoryOptions:
    """Returns the options on which memory depends."""
    names = {field.name for field in fields(MemoryOptions)}
    given = {name: value for name, value in vars(options).items() if name in names}
    return MemoryOptions(window_parts="auto" if options.kv_windows == "auto" else None, **given)


def _memory(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Yields the memory that the cpu backend needs with its default flags."""
    need = unlimited(checkpoint, MemoryOptions()).need
    yield "weights need", size(need.weight_bytes)
    if has_floats(checkpoint):
        for bits in QUANTIZED:
            less = unlimited(checkpoint, MemoryOptions(quantize=bits)).need.weight_bytes
            if less < 0.9 * need.weight_bytes:
                yield f"with --quantize {bits}", size(less)
    yield "activations need", size(need.scratch_bytes)
    tokens = min(DEFAULT_POOL_TOKENS, checkpoint.config.max_position_embeddings)
    yield "KV cache needs", f"{size(tokens * need.kv_bytes_per_token)} for {tokens:,} tokens"
    if checkpoint.config.recurrent is not None:
        states = LEAST_STATES * STATE_ELEMENT_BYTES * checkpoint.config.state_size
        yield "states need", f"{size(states)} for each running sequence"
    yield "available", size(available_memory())
