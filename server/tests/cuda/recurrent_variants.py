"""Variants of the kernels of recurrent layers that are compiled for Hopper; see `compiled`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton.language as tl
from tests.cuda.compiled import Variant
from trunkline_server.backends.cuda.kernels import activation, norm, recurrence, short_conv

# The variants that `make test` compiles: one of each kind.
FIRST = {"chunk of width 4", "delta", "softplus"}
_STATES = {"states": "*fp32", "query_begin": "*i32", "state_source": "*i32", "kept_state": "*i32", "out": "*fp32"}


# Arguments that are multiples of 16 with the shapes of real models.
_ROUND = {"num_channels", "num_elements", "num_columns", "state_offset", "value_size", "key_size", "head_size"}


def _variant(name: str, kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> Variant:
    aligned = frozenset(arg for arg in kernel.arg_names if arg in _ROUND or arg.endswith("stride"))
    return Variant(name, kernel, types, constants, aligned=aligned)


def variants() -> Iterator[Variant]:
    types = {"x": "*bf16", "weight": "*fp32", "bias": "*fp32", **_STATES}
    for name, width, rows in (("decode of width 3", 3, 1), ("chunk of width 4", 4, 8)):
        constants: dict[str, Any] = {"HAS_BIAS": width == 4, "WIDTH": width, "ROWS": rows, "CHANNELS": 128}
        yield _variant(name, short_conv._short_conv_kernel, types, constants)
    types = dict.fromkeys(("value", "key", "query", "decay", "strength", "skip"), "*fp32") | _STATES
    for name, is_delta in (("scan", False), ("delta", True)):
        constants = {"IS_DELTA": is_delta, "HAS_SKIP": not is_delta, "VALUES": 16, "KEYS": 128}
        yield _variant(name, recurrence._recurrence_kernel, types, constants)
    types = {"x": "*bf16", "parameters": "*fp32", "out": "*fp32"}
    for name, is_decay in (("softplus", False), ("decay", True)):
        yield _variant(name, recurrence._step_kernel, types, {"IS_DECAY": is_decay, "BLOCK": 1024})
    types = {"x": "*bf16", "factors": "*fp32", "out": "*fp32", "alpha": "fp32", "limit": "fp32"}
    constants = {"KIND": activation.SIGMOID.value, "HAS_FACTORS": False, "OUT": tl.float32, "BLOCK": 1024}
    yield _variant("sigmoid", activation._activation_kernel, types, constants)
    constants |= {"KIND": activation.IDENTITY.value, "HAS_FACTORS": True}
    yield _variant("mul", activation._activation_kernel, types, constants)
    types = {"x": "*fp32", "weight": "*fp32", "out": "*fp32", "eps": "fp32"}
    constants = {"HAS_WEIGHT": False, "OUT": tl.float32, "HEADS": 32, "BLOCK": 128}
    yield _variant("head_l2_norm", norm._head_norm_kernel, types, constants)
