"""Builds a CUDA backend from a checkpoint."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from trunkline_server import start_times
from trunkline_server.backends.cuda import flash
from trunkline_server.backends.cuda.adapters import DeviceAdapters, SlotLayout
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.cuda.calibrate import measure_key_scaling
from trunkline_server.backends.cuda.device import CudaDevice, Device
from trunkline_server.backends.cuda.flash import find_flash
from trunkline_server.backends.cuda.kernels.attention import AttentionSpace, stages_of
from trunkline_server.backends.cuda.kernels.attention_latent import latent_shape
from trunkline_server.backends.cuda.kernels.attention_plan import AttentionPlan, AttentionShape, whole_rows_of
from trunkline_server.backends.cuda.kernels.card import LEAST_CAPABILITY, card_of
from trunkline_server.backends.cuda.kernels.numerics import INTERPRETED
from trunkline_server.backends.cuda.kernels.rope_kv import rope_tables
from trunkline_server.backends.cuda.kernels.spills import spilling_kernels
from trunkline_server.backends.cuda.kernels.tokens import fill_tokens
from trunkline_server.backends.cuda.kv_pool import KvFormat, KvLayout, KvPool
from trunkline_server.backends.cuda.loading import default_dtype, load_weights
from trunkline_server.backends.cuda.memory import DeviceMemory, num_pool_blocks
from trunkline_server.backends.cuda.ops import CudaOps, DeviceModel, dense
from trunkline_server.backends.cuda.quantized.four_bits import TABLES, find_quantizer
from trunkline_server.backends.cuda.runner import ROW_MULTIPLE, StepRunner, chunk_shapes, decode_shapes, padded
from trunkline_server.backends.cuda.sampling import DeviceSampler
from trunkline_server.backends.cuda.state_pool import StatePool
from trunkline_server.backends.cuda.step_input import StepShape, StepTensors
from trunkline_server.backends.cuda.tier_build import TierOptions, make_tiers
from trunkline_server.backends.cuda.vectors import Vectors
from trunkline_server.backends.cuda.weights import DenseWeight
from trunkline_server.backends.interface import MAX_DRAFT_TOKENS, BackendInfo
from trunkline_server.backends.states import STATE_ELEMENT_BYTES, num_states, refuse_beside_states
from trunkline_server.errors import BackendUnavailable, DoesNotFit, InvalidArgument
from trunkline_server.models import registry
from trunkline_server.models.rope import local_rope, rope
from trunkline_server.weights.places import is_expert

if TYPE_CHECKING:
    from trunkline_server.backends.cuda.key_scaling import KeyScaling
    from trunkline_server.backends.cuda.weights import DeviceWeights
    from trunkline_server.models.config import ModelConfig
    from trunkline_server.weights.checkpoint import Checkpoint

logger = logging.getLogger(__name__)

# Changes whenever the bits of a result change.
NUMERICS_VERSION = 3
# Changes whenever the meaning of a block's bytes changes.
KV_LAYOUT_VERSION = 1
BLOCK_SIZE = 64
DEFAULT_STEP_TOKENS = 4096
DEFAULT_STEP_SEQUENCES = 256
MAX_ENCODER_TOKENS = 8192
# Most of the likeliest tokens that a row can ask for; no dialect allows more.
MAX_TOP_LOGPROBS = 128
# Limit for the partial results of split attention. Beyond it, rows are computed without splits, with the same bits.
MAX_PARTIAL_BYTES = 256 << 20
# Limit for unpacking a quantised weight into a dense matrix, which is done before a prompt is multiplied with it.
MAX_UNPACKED_BYTES = 512 << 20
# Memory of one captured graph beside its tensors, for nodes and their arguments.
GRAPH_BYTES = 4 << 20
# Sampler rows per program in the interpreter, where programs cost more than elements.
INTERPRETED_ROWS = 64
INTERPRETED_ROW_MULTIPLE = 2
_NO_TIERS = TierOptions()
_DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


def build(
    checkpoint: Checkpoint,
    *,
    kv_cache_dtype: str = "auto",
    max_batch_total_tokens: int | None = None,
    max_step_tokens: int | None = None,
    max_step_sequences: int | None = None,
    numerics: str = "exact",
    captures: bool = True,
    device: Device | None = None,
    dtype: torch.dtype | None = None,
    block_size: int = BLOCK_SIZE,
    tiers: TierOptions = _NO_TIERS,
    rounds_to: str | None = None,
    max_loras: int = 0,
    max_lora_rank: int = 0,
    on_progress: Callable[[float], None] | None = None,
) -> CudaBackend:
    """Loads the weights, measures the remaining memory, allocates the pool and captures steps.

    kv_cache_dtype: auto (as the weights), bf16, f16, fp8, int8 or int4. numerics: exact (a reply's bits depend only on
    its request) or fast (uses library products). device, dtype, block_size: for tests; None finds a GPU and uses the
    checkpoint's dtype. tiers: stores below the device. rounds_to: as in `load_weights`. max_loras: slots
    for adapters of at most max_lora_rank. on_progress: see `BackendOptions`. Raises BackendUnavailable,
    InvalidArgument, DoesNotFit.
    """
    began, began_ns = time.monotonic(), start_times.now()
    refuse_beside_states(checkpoint.config, tiers.disk, host_bytes=tiers.host_bytes)
    device = find_device() if device is None else device
    device.use()
    dtype = default_dtype(checkpoint) if dtype is None else dtype
    layout = _layout(checkpoint.config, kv_cache_dtype, dtype, block_size)
    # Refuses a layout that the card cannot run before any weights are read.
    if layout.latent_size is None:
        stages_of(card_of(device.torch_device), layout.format.value, layout.head_size)
    if parts := untested_parts(checkpoint.config, layout.format, tiers):
        logger.warning("untested on a card", extra={"fields": {"parts": ", ".join(parts)}})
    num_sequences = max_step_sequences or DEFAULT_STEP_SEQUENCES
    limits = StepShape(
        max_step_tokens or _step_tokens(checkpoint.config), num_sequences, num_sequences, num_adapters=max_loras
    )
    if checkpoint.config.is_encoder and max_batch_total_tokens is None:
        # Nothing is kept: two steps, and what waits for them.
        max_batch_total_tokens = 4 * limits.num_rows + 2 * block_size * num_sequences
    with torch.inference_mode():
        weights = load_weights(checkpoint, device.torch_device, dtype, rounds_to=rounds_to, on_progress=on_progress)
        rounded = "" if rounds_to is None else rounds_to
        if rounds_to in TABLES:
            rounded = f"{rounds_to} by {find_quantizer()[0]}"
            _log("weights quantised", to=rounded)
        start_times.note("pack", began_ns)
        _log("weights loaded", seconds=f"{time.monotonic() - began:.1f}", mib=weights.num_bytes >> 20)
        try:
            return _Assembly(
                checkpoint=checkpoint, device=device, weights=weights, layout=layout, dtype=dtype, limits=limits,
                is_fast=numerics == "fast", tiers=tiers, max_rank=max_lora_rank, rounded=rounded,
            ).build(max_batch_total_tokens, captures=captures and device.can_capture)  # fmt: skip
        except torch.OutOfMemoryError as error:
            free, total = device.free_bytes()
            raise DoesNotFit(
                f"the device is out of memory: {free >> 20} of {total >> 20} MiB are free with "
                f"{weights.num_bytes >> 20} MiB of weights",
                hint="lower `--max-batch-total-tokens` or `--max-batch-prefill-tokens`",
            ) from error


def untested_parts(config: ModelConfig, kv_format: KvFormat, tiers: TierOptions) -> list[str]:
    """Returns what a server uses beyond the path that `make gpu-check` measures first: dense layers, and K and V on the
    device. No card has run it.
    """
    parts = {
        "tiers below the device": not tiers.is_empty,
        "int4 keys and values": kv_format is KvFormat.INT4,
        "recurrent layers": config.state_size > 0,
        "latent attention": config.latent_size is not None,
        "experts": config.experts.num_experts > 0,
    }
    return [name for name, is_used in parts.items() if is_used]


def find_device() -> Device:
    """Returns the first GPU, or the CPU if Triton's interpreter is enabled (`TRITON_INTERPRET=1`).

    Raises BackendUnavailable.
    """
    if INTERPRETED.value:
        logger.warning("kernels run in Triton's interpreter because `TRITON_INTERPRET` is set; it is for tests only")
        return Device()
    if not torch.cuda.is_available():
        raise BackendUnavailable(
            f"the cuda backend finds no NVIDIA GPU (torch {torch.__version__}, built for CUDA {torch.version.cuda})",
            hint="check that `nvidia-smi` lists a GPU and that torch is a CUDA build, or use `--backend cpu`",
        )
    card = card_of(torch.device("cuda", 0))
    if card.capability < LEAST_CAPABILITY:
        least = ".".join(map(str, LEAST_CAPABILITY))
        raise BackendUnavailable(
            f"the GPU has compute capability {card.name}, but the cuda backend needs {least} (Ampere) or later",
            hint="use `--backend cpu`",
        )
    return CudaDevice()


def _step_tokens(config: ModelConfig) -> int:
    """Returns the default limit of a step. Encoders take whole prompts."""
    longest = min(config.max_position_embeddings, MAX_ENCODER_TOKENS) if config.is_encoder else 0
    return max(DEFAULT_STEP_TOKENS, longest)


def _layout(config: ModelConfig, kv_cache_dtype: str, dtype: torch.dtype, block_size: int) -> KvLayout:
    name = _DTYPE_NAMES[dtype] if kv_cache_dtype == "auto" else kv_cache_dtype
    if config.is_encoder and name == KvFormat.INT4.value:
        raise InvalidArgument(
            "`--kv-cache-dtype` is int4, but the model is an encoder, for which no scaling of keys is measured",
            hint="use auto; an encoder keeps nothing in the cache",
        )
    return KvLayout(
        block_size=block_size, num_kv_heads=config.num_kv_heads, head_size=config.head_size, format=KvFormat(name),
        latent_size=config.latent_size,
    )  # fmt: skip


def _log(message: str, **fields: object) -> None:
    logger.info(message, extra={"fields": fields})


@dataclass(kw_only=True)
class _Assembly:
    """Builds the parts of a backend in the order in which each needs the ones before it."""

    checkpoint: Checkpoint
    device: Device
    weights: DeviceWeights
    layout: KvLayout
    dtype: torch.dtype
    limits: StepShape
    is_fast: bool
    tiers: TierOptions
    max_rank: int
    # To what weights were rounded while they were loaded, and by what.
    rounded: str

    def __post_init__(self) -> None:
        self.config = self.checkpoint.config
        adapted = self.weights.matrices if self.limits.num_adapters else ()
        self.slots = SlotLayout(adapted, self.max_rank, self.device.torch_device)
        self.flash, why = find_flash(
            self.layout, self.dtype, is_fast=self.is_fast, has_sinks=self.config.attention.has_sinks,
            is_encoder=self.config.is_encoder,
        )  # fmt: skip
        _log("attention of long chunks", by="own kernels" if self.flash is None else self.flash.name, because=why)
        is_gpu = self.device.torch_device.type == "cuda"
        self.rows_per_program = 1 if is_gpu else INTERPRETED_ROWS
        self.row_multiple = ROW_MULTIPLE if is_gpu else INTERPRETED_ROW_MULTIPLE
        self.largest = padded(self.limits, self.row_multiple)

    def build(self, wanted_tokens: int | None, *, captures: bool) -> CudaBackend:
        config, device, limits, layout = self.config, self.device, self.limits, self.layout
        # Nothing is sampled without an output head, so the sampler gets no room for logits.
        num_tokens = config.vocab_size if config.has_output_head else 1
        sampler = DeviceSampler(device, num_tokens, limits.num_logits, MAX_TOP_LOGPROBS, self.rows_per_program)
        # flash-attn takes lengths from the host, so steps that use it cannot be replayed.
        max_rows = limits.num_rows if self.flash is None else min(limits.num_rows, flash.MIN_CHUNK_ROWS)
        chunks = chunk_shapes(max_rows, limits.num_entries, limits.num_logits)
        shapes = [*decode_shapes(limits.num_entries), *chunks] if captures else []
        if config.is_encoder:
            shapes = [shape for shape in shapes if not shape.is_decode]
        if limits.num_adapters:
            # Steps without adapters launch nothing for them.
            shapes += [replace(shape, num_adapters=limits.num_adapters) for shape in shapes]
        per_block = config.num_kv_layers * layout.piece_bytes
        key_scaling = self._measure_key_scaling()
        free, total = device.free_bytes()
        memory = DeviceMemory(
            total=total,
            free=free,
            weights=self.weights.num_bytes,
            steps=self._step_bytes(len(shapes)) + self.tiers.device_bytes(per_block),
            adapters=self.slots.num_bytes(limits.num_adapters, self.dtype.itemsize),
        )
        states = self._states(memory, per_block, wanted_tokens)
        memory = replace(memory, states=0 if states is None else states.states.nbytes)
        num_blocks = num_pool_blocks(
            memory, bytes_per_block=per_block, block_size=layout.block_size, wanted_tokens=wanted_tokens
        )
        _log(
            "memory divided", total_mib=total >> 20, weights_mib=memory.weights >> 20, steps_mib=memory.steps >> 20,
            adapters_mib=memory.adapters >> 20, reserve_mib=memory.reserve >> 20, pool_mib=num_blocks * per_block >> 20,
        )  # fmt: skip
        pool = KvPool(
            layout, num_layers=config.num_kv_layers, num_blocks=num_blocks, device=device.torch_device,
            key_scaling=key_scaling,
        )  # fmt: skip
        tiers, info = make_tiers(device, pool, self._info(pool, states), self.tiers)
        model = self._model(pool, states)
        if tiers is not None:
            model.enter_layer = tiers.gates.enter

        @torch.inference_mode()
        def forward(step: StepTensors) -> torch.Tensor:
            fill_tokens(step.token_ids, sampler.sampled)
            return dense(registry.forward(CudaOps(model, step), config))

        max_blocks = min(num_blocks, -(-config.max_position_embeddings // layout.block_size))
        runner = StepRunner(
            device, forward, max_shape=limits, max_blocks=max_blocks, block_size=layout.block_size,
            max_partial_rows=self._partial_rows(), row_multiple=self.row_multiple,
        )  # fmt: skip
        if captures:
            began, began_ns = time.monotonic(), start_times.now()
            runner.capture(shapes)
            if config.has_output_head:
                sampler.warm_up(model.logits[:1].zero_())
            start_times.note("capture", began_ns)
            if spilled := spilling_kernels():
                # Their code depends on the shapes of the model and on the card.
                logger.warning(
                    "kernels for `%s` spill registers on this card and are slow", self.checkpoint.path.name,
                    extra={"fields": {"capability": card_of(device.torch_device).name, **spilled}},
                )  # fmt: skip
            _log("steps captured", count=len(shapes), seconds=f"{time.monotonic() - began:.1f}")
        return CudaBackend(
            info=info, device=device, runner=runner, sampler=sampler, pool=pool, vocab_size=config.vocab_size,
            vectors=None if config.pooling is None else Vectors(model, config.pooling, config.has_output_head),
            states=states, tiers=tiers, slots=model.adapters,
        )  # fmt: skip

    def _measure_key_scaling(self) -> KeyScaling | None:
        """Measures int4's key scaling before memory is divided, and frees the memory that this took."""
        if self.layout.format is not KvFormat.INT4:
            return None
        began, began_ns = time.monotonic(), start_times.now()
        device = self.device.torch_device
        scaling = measure_key_scaling(self.weights, self.config, self.dtype, device)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        start_times.note("calibrate", began_ns)
        _log("key scaling measured", seconds=f"{time.monotonic() - began:.1f}")
        return scaling

    def _states(self, memory: DeviceMemory, bytes_per_block: int, wanted_tokens: int | None) -> StatePool | None:
        """Allocates the states of recurrent layers, in half of the memory that a pool of a stated size leaves."""
        config, block_size = self.config, self.layout.block_size
        if config.recurrent is None:
            return None
        left = memory.left - -(-(wanted_tokens or 0) // block_size) * bytes_per_block
        number = num_states(left, STATE_ELEMENT_BYTES * config.state_size, self.limits.num_entries)
        return StatePool(
            num_states=number, state_size=config.state_size, block_size=block_size, device=self.device.torch_device
        )

    def _model(self, pool: KvPool, states: StatePool | None) -> DeviceModel:
        config, device = self.config, self.device.torch_device
        shape = self._attention_shape()
        partial_rows = self._partial_rows()
        plans = {
            window: AttentionPlan(
                shape, max_rows=self.largest.num_rows, max_entries=self.largest.num_entries,
                max_partial_rows=partial_rows, window=window, device=device, sees_all=config.is_encoder,
            )
            for window in {config.window(layer) for layer in range(config.num_layers)}
        }  # fmt: skip
        ropes = {rope(config), local_rope(config)}
        return DeviceModel(
            weights=self.weights,
            pool=pool,
            space=AttentionSpace(shape, partial_rows, device),
            plans=plans,
            rope_tables={one: rope_tables(one, config.max_position_embeddings, device) for one in ropes},
            dtype=self.dtype,
            logits=torch.zeros(self._num_logits, config.vocab_size, dtype=torch.float32, device=device),
            is_fast=self.is_fast,
            flash=self.flash,
            vectors=self._vectors(),
            states=None if states is None else states.states,
            adapters=self._adapters(),
        )

    def _adapters(self) -> DeviceAdapters | None:
        num_slots = self.limits.num_adapters
        return DeviceAdapters(self.slots, num_slots, self.dtype, self.device) if num_slots else None

    @property
    def _num_logits(self) -> int:
        """Rows of logits of the largest step; 0 without an output head."""
        return self.largest.num_logits if self.config.has_output_head else 0

    def _vectors(self) -> torch.Tensor | None:
        """Returns room for the rows of a step that vectors are made of; None if the model makes none."""
        config, limits = self.config, self.largest
        if config.pooling is None:
            return None
        num_rows = limits.num_rows if config.pooling.is_summed else limits.num_logits
        return torch.zeros(num_rows, config.vector_size, dtype=torch.float32, device=self.device.torch_device)

    def _attention_shape(self) -> AttentionShape:
        config = self.config
        if config.latent_size is not None:
            return latent_shape(config.num_heads, config.latent_size)
        if config.num_heads // config.num_kv_heads > 64:
            raise InvalidArgument(
                f"{config.num_heads // config.num_kv_heads} query heads share a KV head, "
                "but the cuda backend supports at most 64"
            )
        return AttentionShape(
            num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, head_size=config.head_size,
            whole_rows=whole_rows_of(card_of(self.device.torch_device)),
        )  # fmt: skip

    def _partial_rows(self) -> int:
        return max(1, min(MAX_PARTIAL_BYTES // AttentionSpace.bytes_per_row(self._attention_shape()), 1 << 16))

    def _step_bytes(self, num_graphs: int) -> int:
        """Returns an upper bound of the memory for steps, beyond what is on the device already."""
        config, limits = self.config, self.limits
        size = self.dtype.itemsize
        heads = (2 * config.num_heads + 4 * config.num_kv_heads) * config.head_size
        if config.attention.latent is not None:
            # Queries and results of each head, outside the space of latents and before they are joined.
            parts = config.attention.latent.key_size + config.attention.latent.value_size + config.head_size
            heads += config.num_heads * parts + 2 * config.attention.latent.query_size
        features = 4 * (3 * config.hidden_size) + size * (4 * config.hidden_size + heads + 4 * config.mlp.size)
        # Each expert of a token has its own rows: gate and up, their product, and the outputs in f32.
        features += config.experts.num_used * (3 * size * config.experts.size + 4 * config.hidden_size + 16)
        if (recurrent := config.recurrent) is not None:
            # Inputs and results of convolutions and recurrences in f32, with what is between them.
            inner = recurrent.num_heads * recurrent.value_size
            features += 4 * 4 * (recurrent.conv_channels(config.hidden_size) + inner)
        rope_bytes = 2 * 4 * config.max_position_embeddings * config.head_size
        partial = self._partial_rows() * AttentionSpace.bytes_per_row(self._attention_shape())
        logits = 4 * self._num_logits * config.vocab_size + 4 * self.largest.num_rows * config.vector_size
        unpacked = max(
            (size * matrix.num_outputs * matrix.num_inputs for matrix in self.weights.matrices
             if not isinstance(matrix, DenseWeight) and not is_expert(next(iter(matrix.slices)))), default=0,
        )  # fmt: skip
        unpacked = min(unpacked, MAX_UNPACKED_BYTES)
        gathered = 0 if self.flash is None else flash.MAX_GATHERED_BYTES
        steps = limits.num_rows * features + unpacked + self.slots.sums_bytes(limits.num_rows)
        if num_graphs:
            # The memory of graphs is their own, and launched steps need as much again.
            steps += steps + num_graphs * GRAPH_BYTES
        return steps + gathered + logits + partial + rope_bytes

    def _info(self, pool: KvPool, states: StatePool | None) -> BackendInfo:
        layout, limits = self.layout, self.limits
        return BackendInfo(
            device=f"{self.device.describe()}, {'fast' if self.is_fast else 'exact'}",
            block_size=layout.block_size,
            bytes_per_block=pool.bytes_per_block,
            num_device_blocks=pool.num_blocks,
            max_step_tokens=limits.num_rows,
            max_step_sequences=limits.num_entries,
            kv_dtype=layout.format.value,
            weight_bytes=self.weights.num_bytes,
            numeric_fingerprint=self._fingerprint(pool.key_scaling),
            # A wrong draft would have changed the state.
            max_draft_tokens=MAX_DRAFT_TOKENS if states is None else 0,
            num_window_parts=0 if states is None else states.num_free,
            bytes_per_window_part=STATE_ELEMENT_BYTES * self.config.state_size,
            window_size=0 if states is None else 2,
            recurrent=states is not None,
            num_adapter_slots=limits.num_adapters,
            adapter_bytes=self.slots.num_bytes(limits.num_adapters, self.dtype.itemsize),
        )

    def _fingerprint(self, key_scaling: KeyScaling | None) -> str:
        """Returns a hash of everything that the bits of a result depend on."""
        import triton

        parts = (
            self.checkpoint.identity().digest.hex(), "cuda", str(NUMERICS_VERSION), _DTYPE_NAMES[self.dtype],
            self.layout.format.value, str(self.is_fast), "" if self.flash is None else self.flash.name,
            triton.__version__, torch.__version__, self.device.kernel_traits(), str(KV_LAYOUT_VERSION),
            str(self.layout.block_size), self.rounded,
        )  # fmt: skip
        digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=16)
        if key_scaling is not None:
            digest.update(key_scaling.content())
        return digest.hexdigest()
