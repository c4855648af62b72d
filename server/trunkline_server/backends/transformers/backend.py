"""Implements `Backend` on any decoder that transformers knows."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import transformers

from trunkline_server import _kernels
from trunkline_server.backends.host_memory import available_memory
from trunkline_server.backends.interface import BackendInfo
from trunkline_server.backends.reference.steps import StepBackend
from trunkline_server.backends.transformers.attention import NotSupported
from trunkline_server.backends.transformers.folder import Folder, first_line, open_folder
from trunkline_server.backends.transformers.runner import Runner
from trunkline_server.backends.transformers.trial import Trial, try_model
from trunkline_server.errors import DoesNotFit, InvalidArgument
from trunkline_server.models.config import ModelShape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from trunkline_server.backends.reference.kv_pool import Blocks
    from trunkline_server.backends.reference.ops import Step

logger = logging.getLogger(__name__)

BLOCK_SIZE = 16
DEFAULT_STEP_TOKENS = 256
DEFAULT_STEP_SEQUENCES = 32
# The pool's size without `--max-batch-total-tokens`: this many tokens, but at most this share of the available memory.
DEFAULT_POOL_TOKENS = 32_768
DEFAULT_POOL_MEMORY_DIVISOR = 4
_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class TransformersBackend(StepBackend):
    """Implements `Backend`. Weights, K and V keep the dtype of the checkpoint.

    max_batch_total_tokens: positions in the KV pool, rounded up to whole blocks. max_step_tokens, max_step_sequences:
    limits of one step. kv_cache_dtype: auto, or the dtype of the weights. threads: torch's; None: one per core
    within the CPU quota. num_shares: see `BackendOptions`. Raises UserError.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_batch_total_tokens: int | None = None,
        max_step_tokens: int = DEFAULT_STEP_TOKENS,
        max_step_sequences: int = DEFAULT_STEP_SEQUENCES,
        kv_cache_dtype: str = "auto",
        threads: int | None = None,
        num_shares: int = 1,
    ) -> None:
        _log_through_ours()
        # By itself, torch knows no quota of CPU time.
        torch.set_num_threads(threads or min(torch.get_num_threads(), _kernels.max_parallel_threads()))
        folder = open_folder(path)
        context = folder.context
        model = folder.load()
        trial = _try(model, folder)
        kv_dtype = _DTYPES.get(trial.dtype, str(trial.dtype).removeprefix("torch."))
        if kv_cache_dtype not in ("auto", kv_dtype):
            raise InvalidArgument(
                f"`--kv-cache-dtype` is {kv_cache_dtype}, but the transformers backend keeps the dtype of the weights, "
                f"{kv_dtype}",
                hint="use auto",
            )
        pool = _make_pool(trial, max_batch_total_tokens, num_shares)
        sizes = ", ".join(map(str, trial.sizes))
        numbers = (
            f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
        )
        info = BackendInfo(
            device=f"transformers {transformers.__version__}, {numbers}",
            block_size=BLOCK_SIZE,
            bytes_per_block=pool.bytes_per_block,
            num_device_blocks=pool.num_blocks,
            max_step_tokens=max_step_tokens,
            max_step_sequences=max_step_sequences,
            kv_dtype=kv_dtype,
            weight_bytes=sum(tensor.nbytes for tensor in {*model.parameters(), *model.buffers()}),
            numeric_fingerprint=_digest(folder.fingerprint(), "transformers", transformers.__version__, numbers, sizes),
        )
        super().__init__(info, pool, trial.vocab_size)
        self.shape = ModelShape(
            architecture=folder.name,
            vocab_size=trial.vocab_size,
            num_layers=len(trial.layers),
            num_heads=model.config.get_text_config().num_attention_heads,
            num_kv_heads=trial.layers[0].num_heads,
            head_size=trial.layers[0].key_size,
            max_position_embeddings=context,
        )
        self._runner = Runner(model, pool, trial.sizes, is_packed=trial.is_packed)
        logger.warning(
            "the transformers backend is slower than a model file of this server: torch on the CPU, rows in batches of "
            "%s, and no KV tiers, rounded K and V, windows of blocks or drafts",
            sizes,
        )

    def _run(self, step: Step) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self._runner.run(step).numpy()
        return logits


def _try(model: PreTrainedModel, folder: Folder) -> Trial:
    try:
        return try_model(model)
    except NotSupported as error:
        raise folder.refusal(str(error)) from error
    except Exception as error:
        logger.debug("the trial failed", exc_info=error)
        raise folder.refusal(f"fails when it is computed in pieces ({first_line(error)})") from error


def _make_pool(trial: Trial, wanted_tokens: int | None, num_shares: int) -> Blocks:
    """Makes the pool. Raises DoesNotFit."""
    bytes_per_token, available = trial.bytes_per_token, available_memory()
    num_tokens = wanted_tokens
    if num_tokens is None:
        budget = available // DEFAULT_POOL_MEMORY_DIVISOR // bytes_per_token
        num_tokens = max(min(DEFAULT_POOL_TOKENS, budget) // num_shares, BLOCK_SIZE)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    if num_blocks * BLOCK_SIZE * bytes_per_token > available:
        raise DoesNotFit(
            f"a KV pool of {num_tokens} tokens takes {num_tokens * bytes_per_token >> 20} MiB, but {available >> 20} "
            "MiB of memory are available beside the weights",
            hint="lower `--max-batch-total-tokens`",
        )
    return trial.make_pool(num_blocks, BLOCK_SIZE)


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _log_through_ours() -> None:
    """Passes errors that transformers logs to this process's log, without its advice and its progress bars."""
    transformers.utils.logging.disable_default_handler()
    transformers.utils.logging.enable_propagation()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
