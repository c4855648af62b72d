"""Quantises matrices of floats to NF4 and FP4 (arXiv:2305.14314), as bitsandbytes does.

Where bitsandbytes is installed, its kernels do it. Its division on a GPU is approximate, so a number between two codes
may get the other one; the fingerprint of the backend therefore names what has quantised.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import torch

# The elements that share a scale: the default of bitsandbytes.
BLOCK = 64
# The numbers of the codes, as the package prints them (`bitsandbytes.functional.get_4bit_type`).
TABLES = {
    "nf4": (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
    "fp4": (
        0.0, 0.0052083334885537624, 0.6666666865348816, 1.0, 0.3333333432674408, 0.5, 0.1666666716337204, 0.25,
        -0.0, -0.0052083334885537624, -0.6666666865348816, -1.0, -0.3333333432674408, -0.5, -0.1666666716337204, -0.25,
    ),
}  # fmt: skip
# Scales below this are those of blocks of zeros.
_TINY = 1e-38

# Maps rows and a kind to two codes in each byte, the first one above, and the f32 scale of each block.
Quantizer: TypeAlias = Callable[[torch.Tensor, str], tuple[torch.Tensor, torch.Tensor]]


@cache
def find_quantizer() -> tuple[str, Quantizer]:
    """Returns what quantises, and its name and version for the log and the fingerprint."""
    try:
        package = importlib.import_module("bitsandbytes")
    # The package loads libraries for the installed CUDA, and fails in several ways if they do not match.
    except (ImportError, OSError, RuntimeError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "bitsandbytes"
        return ("own code" if missing else f"own code, because bitsandbytes cannot be used: {error}"), quantized_blocks

    def by_package(values: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        codes, state = package.functional.quantize_4bit(values, blocksize=BLOCK, quant_type=kind)
        return codes.view(-1), state.absmax

    return f"bitsandbytes {package.__version__}", by_package


def quantized_blocks(values: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises rows of whole blocks, with memory for some copies of them in f32. kind: a key of `TABLES`."""
    table = torch.tensor(TABLES[kind], device=values.device)
    ordered, order = table.sort(stable=True)
    blocks = values.float().view(-1, BLOCK)
    scales = blocks.abs().amax(1)
    ratios = (blocks * (1.0 / scales.clamp_min(_TINY))[:, None]).clamp_(-1, 1)
    codes = order[torch.bucketize(ratios, (ordered[1:] + ordered[:-1]) / 2)].to(torch.uint8).view(-1, 2)
    return (codes[:, 0] << 4) | codes[:, 1], scales
