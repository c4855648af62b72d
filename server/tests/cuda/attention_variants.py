"""Variants of attention's kernels that are compiled for Hopper; see `compiled`."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from tests.cuda.compiled import HOPPER, Variant
from trunkline_server.backends.cuda.kernels.attention_latent import (
    NUM_STAGES,
    NUM_WARPS,
    ROWS,
    TILE,
    latent_split_kernel,
    latent_whole_kernel,
)
from trunkline_server.backends.cuda.kernels.attention_plan import SPLIT, SPLIT_ROWS, WHOLE_ROWS, _plan_kernel
from trunkline_server.backends.cuda.kernels.attention_split import FEW_SPLITS, merge_kernel, merge_options, split_kernel
from trunkline_server.backends.cuda.kernels.attention_whole import whole_kernel
from trunkline_server.backends.cuda.kernels.hadamard import _transform_heads_kernel
from trunkline_server.backends.cuda.kernels.kv_elements import FLOAT, FP8, INT4, INT8
from trunkline_server.backends.cuda.kernels.rope_kv import _rope_and_write_kernel

# The variants that `make test` compiles: one of each kind.
FIRST = {"split bf16", "whole bf16", "rope and write bf16", "merge", "plan", "latent split", "latent whole"}
_STORED = {FLOAT.value: "*bf16", FP8.value: "*u8", INT8.value: "*i8", INT4.value: "*u8"}
_POINTERS = {
    **dict.fromkeys(("q", "k", "v", "x", "out", "scales", "means"), "*bf16"),
    **dict.fromkeys(("partial_mixed", "partial_sums", "sinks", "cos", "sin", "factors"), "*fp32"),
    **dict.fromkeys(("counts", "items", "split_items", "whole_items", "merge_rows", "positions", "slots"), "*i32"),
    **dict.fromkeys(("query_begin", "context_length", "block_tables", "block_ids", "row_count"), "*i32"),
    "pieces": "*i64",
}
OUTPUT = {"OUT": tl.bfloat16, "HAS_SINKS": False}
_FLOATS = dict.fromkeys(("scale", "soft_cap", "factor", "transform_factor"), "fp32")
_ALIGNED = frozenset({"q_stride", "k_stride", "v_stride", "out_stride", "x_stride", "piece_elements", "values_offset"})


def _variant(
    name: str, kernel: Any, num_warps: int, kind: int = FLOAT.value, num_stages: int = 3, **constants: Any
) -> Variant:
    types = dict.fromkeys(kernel.arg_names, "i32") | _POINTERS | _FLOATS | {"pool": _STORED[kind]}
    return Variant(name, kernel, types, constants, num_warps, num_stages, aligned=_ALIGNED)


def attention(
    kernel: Any, name: str, kind: int, head_size: int, rows: int, *, sees_all: bool = False, **constants: Any
) -> Variant:
    return _variant(
        name, kernel, rows // 16, kind,
        GROUP=4, D=head_size, D_PAD=head_size, BLOCK=16, KIND=kind, DTYPE=tl.bfloat16, ROWS=rows, TILE=64,
        SPLIT=SPLIT, HAS_WINDOW=sees_all, HAS_CAP=False, MOVED=kind == INT4.value, SEES_ALL=sees_all, **constants,
    )  # fmt: skip


def latent(kernel: Any, name: str, **constants: Any) -> Variant:
    """A kernel with the sizes of DeepSeek-V2-Lite."""
    return _variant(
        name, kernel, NUM_WARPS, num_stages=NUM_STAGES,
        GROUP=16, ROTATED=64, LATENT=512, BLOCK=64, DTYPE=tl.bfloat16, ROWS=ROWS, TILE=TILE, SPLIT=SPLIT, **constants,
    )  # fmt: skip


def latents() -> list[Variant]:
    return [
        latent(latent_split_kernel, "latent split"),
        latent(latent_whole_kernel, "latent whole", OUT=tl.bfloat16),
    ]


def variants() -> list[Variant]:
    kinds = {"bf16": FLOAT.value, "fp8": FP8.value, "int8": INT8.value, "int4": INT4.value}
    found = [attention(split_kernel, f"split {name}", kind, 128, SPLIT_ROWS) for name, kind in kinds.items()]
    found += [
        attention(whole_kernel, f"whole {name}", kinds[name], 128, WHOLE_ROWS, OUT=tl.bfloat16, HAS_SINKS=name == "fp8")
        for name in ("bf16", "fp8", "int4")
    ]
    for name, kernel, rows, out in (
        ("split", split_kernel, SPLIT_ROWS, {}), ("whole", whole_kernel, WHOLE_ROWS, OUTPUT)
    ):  # fmt: skip
        found.append(attention(kernel, f"{name} of an encoder", FLOAT.value, 64, rows, sees_all=True, **out))
    heads = {"D": 128, "D_PAD": 128}
    found += [
        _variant(
            f"rope and write {name}",
            _rope_and_write_kernel,
            4,
            kind,
            **heads,
            ROTARY=128,
            BLOCK=16,
            KIND=kind,
            LOG_RUN=7 if name in ("int8", "int4") else 0,
            SCALED=name == "int4",
            OUT=tl.bfloat16,
            STORED=tl.bfloat16,
            ROWS=8,
        )
        for name, kind in kinds.items()
        if name != "int8"
    ]
    found += latents()
    for name, head_size, num_rows in (("merge", 128, 1), ("merge many", 128, 64), ("merge latents", 512, 1)):
        options = merge_options(32 * num_rows, head_size, HOPPER.num_processors)
        sizes = {"D": head_size, "D_PAD": head_size, "MANY": options["MANY"], "FEW": FEW_SPLITS}
        found.append(_variant(name, merge_kernel, options["num_warps"], **sizes, OUT=tl.bfloat16, HAS_SINKS=True))
    found += [
        _variant("transform heads", _transform_heads_kernel, 4, **heads, LOG_RUN=7, OUT=tl.bfloat16, ROWS=16),
        _variant(
            "plan",
            _plan_kernel,
            4,
            SPLIT=SPLIT,
            SHORT=64,
            SPLIT_TOKENS=16,
            WHOLE_TOKENS=32,
            ENTRIES=256,
            BLOCK=128,
            HAS_WINDOW=False,
            SEES_ALL=False,
        ),
    ]
    return found
