"""`trunkline fit`: the memory that a model needs, whether this machine has it, and the command line to type.

The numbers are those of `plan_memory`, by which a start is refused.
"""

from __future__ import annotations

import json
import math
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trunkline_server import hub
from trunkline_server.backends.cpu.memory import BLOCK_SIZE, MIN_POOL_TOKENS
from trunkline_server.backends.cpu.memory_plan import (
    DEFAULT_STEP_SEQUENCES,
    DEFAULT_STEP_TOKENS,
    MemoryOptions,
    MemoryPlan,
    flags_of,
    plan_memory,
    smaller_options,
    unlimited,
    window_size,
)
from trunkline_server.backends.host_memory import PROCESS_BYTES, available_memory, process_memory
from trunkline_server.backends.states import LEAST_STATES, STATE_ELEMENT_BYTES
from trunkline_server.errors import DoesNotFit, HubUnreachable, InvalidArgument, ModelNotFound, UserError
from trunkline_server.hub_headers import Repository
from trunkline_server.tables import size, table
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint
from trunkline_server.weights.completeness import stored_shapes

DEFAULT_CONTEXT = 8192
# The memory of router and launcher. It is an allowance: 55 MiB were measured with a vocabulary of 49,152.
SERVER_BYTES = 96 << 20
# Models of a repository whose headers are read.
MAX_MODELS = 64
# A weight of Q8_0 has 8.5 bits. More than those change little in a reply and make it slower.
MOST_FILE_BITS = 9


@dataclass(frozen=True, kw_only=True)
class Question:
    """The use for which a model has to fit.

    context: None is the model's, up to `DEFAULT_CONTEXT`. available_bytes: None asks the system.
    """

    context: int | None = None
    streams: int = 1
    quantize: str = "none"
    kv_cache_dtype: str = "auto"
    available_bytes: int | None = None

    @property
    def options(self) -> MemoryOptions:
        """The options that are the same for all models. Steps have room for every stream."""
        return MemoryOptions(
            kv_cache_dtype=self.kv_cache_dtype,
            quantize=self.quantize,
            window_parts="auto",
            max_step_sequences=self.streams if self.streams > DEFAULT_STEP_SEQUENCES else None,
            max_step_tokens=self.streams if self.streams > DEFAULT_STEP_TOKENS else None,
        )


@dataclass(frozen=True, kw_only=True)
class Need:
    """The memory that a model takes with some flags.

    model: MODEL of `serve`; state_bytes: of all states of recurrent layers.
    """

    model: str | None
    checkpoint: Checkpoint
    options: MemoryOptions
    plan: MemoryPlan
    context: int
    state_bytes: int
    fits: bool

    @property
    def needed_bytes(self) -> int:
        need = self.plan.need
        parts = (need.weight_bytes, need.scratch_bytes, self.plan.pool_bytes, self.state_bytes)
        return PROCESS_BYTES + SERVER_BYTES + sum(parts)

    @property
    def bits(self) -> float:
        """Bits of a weight in memory."""
        matrices, others = stored_shapes(self.checkpoint.config, self.checkpoint.names())
        return 8 * self.plan.need.weight_bytes / sum(map(math.prod, (matrices | others).values()))

    @property
    def file_bits(self) -> float:
        """Bits of a weight in the file, which are those that tell a good quantisation from a small one."""
        matrices, _ = stored_shapes(self.checkpoint.config, self.checkpoint.names())
        stored = sum(self.checkpoint.encoded(name).num_bytes for name in matrices)
        return 8 * stored / sum(map(math.prod, matrices.values()))


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A model that was not looked at, or cannot be served. file_bytes: of its weights, if that is why."""

    model: str | None
    reason: str
    file_bytes: int = 0


def answer(model: str | None, revision: str | None, question: Question, *, as_json: bool) -> tuple[str, bool]:
    """Returns what to print, and True if the model fits. Raises UserError."""
    # This process ends before the server starts.
    available = question.available_bytes or available_memory() + process_memory(0)
    with ExitStack() as stack:
        found = _compared(list(_models(model, revision, available, stack)), question, available)
        needs = [each for each in found if isinstance(each, Need)]
        if not needs and isinstance(first := found[0], Refused) and not first.file_bytes:
            raise InvalidArgument(f"`{first.model}` cannot be served: {first.reason}")
        chosen = _recommended(needs)
        shown = _as_json if as_json else _as_text
        return shown(found, chosen, revision, question, available), chosen is not None and chosen.fits


def _compared(
    models: list[tuple[str | None, Path | Refused]], question: Question, available: int
) -> list[Need | Refused]:
    """Returns what each model needs. Of one model, and where none fits as it is, also with smaller formats."""
    found: list[Need | Refused] = []
    for name, path in models:
        if isinstance(path, Refused):
            found.append(path)
            continue
        try:
            found.append(need_of(name, open_checkpoint(path), question.options, question, available))
        except InvalidArgument as error:
            if len(models) == 1:
                raise
            found.append(Refused(model=name, reason=error.message))
    needs = [each for each in found if isinstance(each, Need)]
    if len(models) == 1 or not any(need.fits for need in needs):
        found += [smaller for need in needs for smaller in _smaller(need, question, available, len(models) == 1)]
    return found


def _models(
    model: str | None, revision: str | None, available: int, stack: ExitStack
) -> Iterator[tuple[str | None, Path | Refused]]:
    """Yields each model that MODEL may mean, and where its headers are."""
    if not model or Path(model).expanduser().exists():
        yield model, hub.resolve(model, revision=revision).path
        return
    try:
        listing = hub.listing(model, revision)
    except HubUnreachable as unreachable:
        try:
            yield model, hub.resolve(model, revision=revision, downloads=False).path
        except ModelNotFound:
            raise unreachable from None
        return
    if len(listing.models) > MAX_MODELS:
        raise InvalidArgument(
            f"repository `{listing.repo}` has {len(listing.models)} `.gguf` models, of which `fit` compares at most "
            f"{MAX_MODELS}",
            hint=f"name one, as in `{min(listing.models)}`",
        )
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunkline-fit-")))
    repository = Repository(listing.repo, listing.revision, folder)
    for name, files in listing.models.items():
        file_bytes = sum(listing.sizes.get(file, 0) for file in files if file.endswith((".gguf", ".safetensors")))
        if listing.is_choice and file_bytes * 0.9 > available:
            yield name, Refused(model=name, reason=f"the file alone has {size(file_bytes)}", file_bytes=file_bytes)
            continue
        try:
            with repository.named():
                path = repository.fetch(files)
                open_checkpoint(path)
        except UserError as error:
            if not listing.is_choice:
                raise
            yield name, Refused(model=name, reason=error.message)
        else:
            yield name, path


def _smaller(need: Need, question: Question, available: int, is_only: bool) -> Iterator[Need]:
    """Yields the needs of a model with formats that take less.

    is_only: weights that are quantised are always of interest, and not only where that makes the model fit.
    """
    has_fit, weight_bytes = need.fits, need.plan.need.weight_bytes
    for options in smaller_options(need.checkpoint, question.options):
        smaller = need_of(need.model, need.checkpoint, options, question, available)
        is_quantized = options.kv_cache_dtype == question.kv_cache_dtype
        if is_quantized and smaller.plan.need.weight_bytes > 0.9 * weight_bytes:
            continue
        # A format of K and V to which no default leads is shown where nothing else fits.
        if (is_quantized and is_only) or (smaller.fits and not has_fit):
            yield smaller
        has_fit |= smaller.fits


def need_of(
    model: str | None, checkpoint: Checkpoint, options: MemoryOptions, question: Question, available: int
) -> Need:
    """Returns what a model takes with these options. Raises InvalidArgument."""
    config = checkpoint.config
    context = question.context or min(config.max_position_embeddings, DEFAULT_CONTEXT)
    if context > config.max_position_embeddings:
        raise InvalidArgument(
            f"`--context` is {context}, but the model's context is {config.max_position_embeddings} tokens"
        )
    options = _with_pool(checkpoint, options, context, question.streams)
    plan = unlimited(checkpoint, options)
    state_bytes = 0
    if config.recurrent is not None:
        # Later prompts keep as many states again.
        state_bytes = 2 * LEAST_STATES * question.streams * STATE_ELEMENT_BYTES * config.state_size
    need = Need(
        model=model,
        checkpoint=checkpoint,
        options=options,
        plan=plan,
        context=context,
        state_bytes=state_bytes,
        fits=False,
    )
    return replace(need, fits=need.needed_bytes <= available and _starts(need, available))


def _starts(need: Need, available: int) -> bool:
    """Returns True if a start would not refuse the model."""
    try:
        plan_memory(need.checkpoint, need.options, available_bytes=available - PROCESS_BYTES)
    except DoesNotFit:
        return False
    return True


def _with_pool(checkpoint: Checkpoint, options: MemoryOptions, context: int, streams: int) -> MemoryOptions:
    """Returns the options with the smallest pool in which so many streams of this context run at the same time."""
    if checkpoint.config.is_encoder:
        return options
    num_blocks = streams * -(-context // BLOCK_SIZE)

    def with_blocks(number: int) -> MemoryOptions:
        return replace(options, max_batch_total_tokens=max(number * BLOCK_SIZE, MIN_POOL_TOKENS))

    # The blocks that a window touches, and two more: one that is written, and one from which it is copied.
    window_blocks = streams * (3 + -(-(window_size(checkpoint.config) - 1) // BLOCK_SIZE))

    def has_room(number: int) -> bool:
        sizes = unlimited(checkpoint, with_blocks(number)).sizes
        parts = sizes.num_window_parts
        return sizes.num_blocks >= num_blocks and (parts is None or parts >= window_blocks)

    if checkpoint.config.recurrent is not None or not any(checkpoint.config.attention.windows):
        return with_blocks(num_blocks)
    # Layers with a window keep less, so a smaller pool has room for the same tokens.
    least, most = 1, num_blocks
    while not has_room(most):
        least, most = most, 2 * most
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if has_room(middle) else (middle + 1, most)
    return with_blocks(most)


def _recommended(needs: list[Need]) -> Need | None:
    """Returns the best model that fits, or else the smallest one.

    Of several files that is the one with the most bits a weight, up to `MOST_FILE_BITS`. A model is quantised further
    only if it does not fit as it is.
    """
    if not needs:
        return None
    fitting = [need for need in needs if need.fits]
    if not fitting:
        return min(needs, key=lambda need: need.needed_bytes)
    if len({need.model for need in needs}) == 1:
        return fitting[0]
    bits = {id(need): need.file_bits for need in fitting}
    lean = [need for need in fitting if bits[id(need)] <= MOST_FILE_BITS]
    return max(lean, key=lambda need: bits[id(need)]) if lean else min(fitting, key=lambda need: bits[id(need)])


def command(need: Need, revision: str | None, question: Question) -> str:
    """Returns the command line that serves the model so."""
    words = ["trunkline serve", *([shlex.quote(need.model)] if need.model else [])]
    words += [f"--revision {shlex.quote(revision)}"] if revision else []
    words += flags_of(need.options, MemoryOptions())
    if question.context is not None and question.context < need.checkpoint.config.max_position_embeddings:
        words.append(f"--max-total-tokens {question.context}")
    for name in ("max_batch_total_tokens", "max_step_sequences"):
        value = getattr(need.options, name)
        words += [] if value is None else [f"--{name.replace('_', '-')} {value}"]
    if need.options.max_step_tokens is not None:
        words.append(f"--max-batch-prefill-tokens {need.options.max_step_tokens}")
    return " ".join(words)


def _way_out(need: Need, question: Question, available: int) -> str:
    """Returns a hint for a model that does not fit, with the flags or the size that would."""
    plan, kv_bytes = need.plan.need, need.plan.need.kv_bytes_per_token
    left_bytes = available - (need.needed_bytes - need.plan.pool_bytes)
    context = left_bytes // max(kv_bytes, 1) // question.streams // BLOCK_SIZE * BLOCK_SIZE
    if context >= min(MIN_POOL_TOKENS, need.context // 4) and kv_bytes:
        return f"with `--context {min(context, need.context)}` it fits"
    if left_bytes > 0 and question.streams > 1:
        streams = left_bytes // max(need.plan.pool_bytes // question.streams, 1)
        if streams:
            return f"with `--streams {streams}` it fits"
    least = size(plan.weight_bytes + plan.scratch_bytes + PROCESS_BYTES + SERVER_BYTES)
    return (
        f"choose a smaller model, since this one takes {least} without any KV cache; or see `--weights-memory` of "
        "`serve`, with which a part of the weights stays on disk"
    )


def _as_text(
    found: list[Need | Refused], chosen: Need | None, revision: str | None, question: Question, available: int
) -> str:
    lines: list[str] = []
    if len(found) > 1:
        rows = [("MODEL", "WEIGHTS", "KV CACHE", "NEEDED", "FITS")]
        rows += [_row(each, each is chosen and chosen.fits) for each in found]
        lines += [*table(rows), ""]
    if chosen is None:
        lines += [f"available  {size(available)}", "it does not fit; hint: choose a smaller model"]
        return "\n".join(lines)
    streams = "1 stream" if question.streams == 1 else f"{question.streams} streams"
    tokens = f"{streams} of {chosen.context:,} tokens, {chosen.plan.kv_dtype}"
    details = [
        ("weights", size(chosen.plan.need.weight_bytes), f"{chosen.bits:.1f} bits each"),
        ("KV cache", size(chosen.plan.pool_bytes), tokens),
        *([("states", size(chosen.state_bytes), "of recurrent layers")] if chosen.state_bytes else []),
        ("activations", size(chosen.plan.need.scratch_bytes), "of the largest step"),
        ("processes", size(PROCESS_BYTES + SERVER_BYTES), ""),
        ("needed", size(chosen.needed_bytes), ""),
        ("available", size(available), ""),
    ]
    lines += [*table(details), ""]
    if chosen.fits:
        lines += ["it fits:", f"  {command(chosen, revision, question)}"]
    else:
        lines.append(f"it does not fit; hint: {_way_out(chosen, question, available)}")
    return "\n".join(lines)


def _name(need: Need) -> str:
    flags = flags_of(need.options, MemoryOptions())
    return " ".join([need.model or "the embedded model", *flags])


def _row(each: Need | Refused, is_chosen: bool) -> tuple[str, str, str, str, str]:
    if isinstance(each, Refused):
        return each.model or "", "-", "-", "-", f"no: {each.reason}"
    sizes = (each.plan.need.weight_bytes, each.plan.pool_bytes + each.state_bytes, each.needed_bytes)
    weights, cache, needed = map(size, sizes)
    return _name(each), weights, cache, needed, "yes, recommended" if is_chosen else "yes" if each.fits else "no"


def _as_json(
    found: list[Need | Refused], chosen: Need | None, revision: str | None, question: Question, available: int
) -> str:
    fits = chosen is not None and chosen.fits
    said: dict[str, Any] = {"fits": fits, "available_bytes": available, "streams": question.streams}
    if chosen is not None:
        said["context"] = chosen.context
        said["recommended"] = _entry(chosen) if fits else None
        said |= {"command": command(chosen, revision, question)} if fits else {}
        said |= {} if fits else {"hint": _way_out(chosen, question, available)}
    said["models"] = [_entry(each) for each in found]
    return json.dumps(said)


def _entry(each: Need | Refused) -> dict[str, Any]:
    if isinstance(each, Refused):
        return {"model": each.model, "fits": False, "reason": each.reason}
    return {
        "model": each.model,
        "quantize": each.options.quantize,
        "kv_cache_dtype": each.plan.kv_dtype,
        "fits": each.fits,
        "weight_bytes": each.plan.need.weight_bytes,
        "kv_bytes": each.plan.pool_bytes,
        "state_bytes": each.state_bytes,
        "activation_bytes": each.plan.need.scratch_bytes,
        "process_bytes": PROCESS_BYTES + SERVER_BYTES,
        "needed_bytes": each.needed_bytes,
        "max_batch_total_tokens": each.options.max_batch_total_tokens,
    }
