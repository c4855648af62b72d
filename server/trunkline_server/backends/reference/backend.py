"""Implements `Backend` on torch, in f32 throughout."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch

from trunkline_server.adapters.memory import planned_bytes
from trunkline_server.backends.interface import AdapterSlots, BackendInfo
from trunkline_server.backends.reference.adapters import TorchAdapters, matrix_bytes
from trunkline_server.backends.reference.calibrate import measure_key_scaling
from trunkline_server.backends.reference.kv_pool import DTYPES, KvPool
from trunkline_server.backends.reference.ops import ReferenceOps, Step
from trunkline_server.backends.reference.rounding import KeyScaling
from trunkline_server.backends.reference.steps import StepBackend
from trunkline_server.errors import InvalidArgument
from trunkline_server.models import registry
from trunkline_server.weights.dequantize import dequantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trunkline_server.weights.checkpoint import Checkpoint

DEFAULT_BLOCK_SIZE = 16
DEFAULT_POOL_TOKENS = 8192
DEFAULT_STEP_TOKENS = 512
DEFAULT_STEP_SEQUENCES = 32
KV_DTYPE = "f32"


class ReferenceBackend(StepBackend):
    """Implements `Backend`. Dequantises every weight once, on construction, to 4 bytes per element.

    max_batch_total_tokens: positions in the KV pool, rounded up to whole blocks; None: the model's context, at most
    8,192. max_step_tokens, max_step_sequences: limits of one step. kv_cache_dtype: auto, f32, int8 or int4; the last
    two round as the CPU backend does. threads: torch's, None leaves their number unchanged. num_shares: see
    `BackendOptions`. max_loras: slots for adapters; their ranks were checked when they were opened. Raises
    InvalidArgument.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        max_batch_total_tokens: int | None = None,
        max_step_tokens: int = DEFAULT_STEP_TOKENS,
        max_step_sequences: int = DEFAULT_STEP_SEQUENCES,
        kv_cache_dtype: str = "auto",
        threads: int | None = None,
        num_shares: int = 1,
        block_size: int = DEFAULT_BLOCK_SIZE,
        max_loras: int = 0,
        max_lora_rank: int = 0,
    ) -> None:
        config, kv_dtype = checkpoint.config, KV_DTYPE if kv_cache_dtype == "auto" else kv_cache_dtype
        if kv_dtype not in DTYPES:
            raise InvalidArgument(
                f"`--kv-cache-dtype` is {kv_cache_dtype}, but the reference backend supports {', '.join(DTYPES)}",
                hint="use auto",
            )
        if config.latent_size is not None and kv_dtype != KV_DTYPE:
            raise InvalidArgument(
                f"`--kv-cache-dtype` is {kv_cache_dtype}, but the reference backend keeps latents as {KV_DTYPE}",
                hint="use auto",
            )
        if max_batch_total_tokens is None:
            max_batch_total_tokens = min(config.max_position_embeddings, DEFAULT_POOL_TOKENS) // num_shares
        for name, value in {
            "max_batch_total_tokens": max_batch_total_tokens,
            "max_step_tokens": max_step_tokens,
            "max_step_sequences": max_step_sequences,
            "block_size": block_size,
        }.items():
            if value < 1:
                raise InvalidArgument(f"`{name}` is {value}, must be at least 1")
        if threads is not None:
            torch.set_num_threads(threads)
        self._config = config
        self._weights = _load_weights(checkpoint)
        pool = KvPool(
            num_layers=config.num_kv_layers,
            num_blocks=-(-max_batch_total_tokens // block_size),
            block_size=block_size,
            num_kv_heads=config.num_kv_heads,
            head_size=config.head_size,
            dtype=kv_dtype,
            key_scaling=self._key_scaling(block_size) if kv_dtype == "int4" else None,
            latent_size=config.latent_size,
        )
        info = BackendInfo(
            device=f"reference, torch {torch.__version__}, {torch.get_num_threads()} threads",
            block_size=block_size,
            bytes_per_block=pool.bytes_per_block,
            num_device_blocks=pool.num_blocks,
            max_step_tokens=max_step_tokens,
            max_step_sequences=max_step_sequences,
            kv_dtype=kv_dtype,
            weight_bytes=sum(weight.nbytes for weight in {id(w): w for w in self._weights.values()}.values()),
            numeric_fingerprint=_numeric_fingerprint(checkpoint, kv_dtype),
            # Every block may have a state.
            num_window_parts=pool.num_blocks if config.recurrent is not None else 0,
            bytes_per_window_part=4 * config.state_size,
            window_size=2 if config.recurrent is not None else 0,
            recurrent=config.recurrent is not None,
            num_adapter_slots=max_loras,
            adapter_bytes=planned_bytes(config, max_loras, max_lora_rank, matrix_bytes),
        )
        super().__init__(info, pool, config.vocab_size, config.pooling)
        self._pool: KvPool = pool
        self.adapters: AdapterSlots | None = TorchAdapters() if max_loras else None

    def _key_scaling(self, block_size: int) -> KeyScaling:
        num_embeddings = self._weights["model.embed_tokens.weight"].shape[0]
        return measure_key_scaling(self._weights.__getitem__, self._config, num_embeddings, block_size)

    @torch.inference_mode()
    def _run(self, step: Step) -> NDArray[np.float32]:
        ops = ReferenceOps(self._weights.__getitem__, self._pool, step)
        logits: NDArray[np.float32] = registry.forward(ops, self._config).numpy()
        if ops.output is not None:
            self._output = ops.output.numpy()
        return logits


def _numeric_fingerprint(checkpoint: Checkpoint, kv_dtype: str) -> str:
    """Returns a hash of what the bits of a result depend on. Torch chooses kernels by version and number of threads."""
    parts = (checkpoint.fingerprint(), "reference", torch.__version__, str(torch.get_num_threads()), kv_dtype)
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _load_weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Returns every weight as f32; a tied head is the same tensor as the embedding."""
    weights: dict[str, torch.Tensor] = {}
    by_stored_name: dict[str, torch.Tensor] = {}
    for name in checkpoint.names():
        tensor = checkpoint.tensor(name)
        if tensor.name not in by_stored_name:
            by_stored_name[tensor.name] = torch.from_numpy(dequantize(tensor))
        weights[name] = by_stored_name[tensor.name]
    return weights
