"""Variants of the product and row kernels that are compiled for Hopper; see `compiled`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton.language as tl
from tests.cuda.compiled import HOPPER, Variant
from trunkline_server.backends.cuda.kernels import (
    activation,
    embedding,
    experts,
    grouped,
    head_linear,
    linear_dense,
    linear_gated,
    linear_grouped,
    mean,
    norm,
    product,
    quantize_rows,
)
from trunkline_server.backends.cuda.kernels.card import Card
from trunkline_server.backends.cuda.kernels.product_plan import ProductPlan, gated_tiles

# The variants that `make test` compiles: one of each kind.
FIRST = {
    "bf16 [4096, 14336] x 1 tma",
    "bf16 [4096, 14336] x 8192 tma",
    "gated x 8192 tma",
    "4 bits, groups of 128, 64 rows, ['zeros']",
    "add_rms_norm of 2",
    "quantize to e4m3",
    "experts, 16 rows",
    "experts of 4 bits, groups of 32, 16 rows, ['table']",
}
# Arguments that are multiples of 16 with the shapes of real models.
_ROUND = {"num_inputs", "num_outputs", "num_elements", "split_elements"}
_END = {"bias": "*fp32", "soft_cap": "fp32", "weight_scales": "*fp32", "row_scales": "*fp32", "out": "*bf16"}
_NO_END = {"HAS_BIAS": False, "HAS_SOFT_CAP": False, "HAS_SCALES": False, "OUT": tl.bfloat16}


def _variant(name: str, kernel: Any, types: dict[str, str], constants: dict[str, Any], **options: int) -> Variant:
    aligned = frozenset(arg for arg in kernel.arg_names if arg in _ROUND or arg.endswith("stride"))
    return Variant(name, kernel, types, constants, aligned=aligned, **options)


def dense(kind: str, shape: tuple[int, int], num_rows: int, *, is_tma: bool = True, card: Card = HOPPER) -> Variant:
    plan = ProductPlan.of(*shape)
    tiles = plan.tiles(num_rows, {"bf16": 2, "fp8e4nv": 1, "i8": 1}[kind], card)
    kernel = linear_dense._parallel_kernel if tiles.is_parallel else linear_dense._persistent_kernel
    types = {"x": f"*{kind}", "weight": f"*{kind}", "partials": "*fp32", **_END}
    if is_tma:
        types["x"] = f"tensordesc<{kind}[{tiles.block_t},{tiles.block_k}]>"
        types["weight"] = f"tensordesc<{kind}[{tiles.block_n},{tiles.block_k}]>"
    constants = {
        **_NO_END, "HAS_SCALES": kind != "bf16", "NUM_SPLITS": plan.num_splits, "IS_TMA": is_tma,
        "IS_INT8": kind == "i8", "BLOCK_N": tiles.block_n, "BLOCK_T": tiles.block_t, "BLOCK_K": tiles.block_k,
    }  # fmt: skip
    if not tiles.is_parallel:
        types["sums"] = "*fp32"
        constants |= {"GROUP": product.GROUP_TILES, "IS_FLAT": card.products_are_async}
    name = f"{kind} {list(shape)} x {num_rows} {'tma' if is_tma else 'pointers'}"
    return _variant(name, kernel, types, constants, num_warps=tiles.num_warps, num_stages=tiles.num_stages)


def gated(num_rows: int, *, is_tma: bool = True, card: Card = HOPPER) -> Variant:
    """Gate and up of Llama-3-8B."""
    tiles = gated_tiles(num_rows, 2, card)
    types = {"x": "*bf16", "weight": "*bf16", "bias": "*fp32", "out": "*bf16"}
    if is_tma:
        types["x"] = f"tensordesc<bf16[{tiles.block_t},{tiles.block_k}]>"
        types["weight"] = f"tensordesc<bf16[{tiles.block_n},{tiles.block_k}]>"
    constants = {
        "KIND": activation.SILU.value, "HAS_BIAS": False, "OUT": tl.bfloat16, "IS_TMA": is_tma,
        "BLOCK_N": tiles.block_n, "BLOCK_T": tiles.block_t, "BLOCK_K": tiles.block_k, "GROUP": product.GROUP_TILES,
    }  # fmt: skip
    name, options = f"gated x {num_rows}", {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    return _variant(
        f"{name} {'tma' if is_tma else 'pointers'}", linear_gated._gated_kernel, types, constants, **options
    )


def four_or_eight_bits(bits: int, group: int, block_t: int, *, num_stages: int = 4, **has: bool) -> Variant:
    types = {
        "x": "*bf16",
        "quants": "*u8" if bits == 4 or "e4m3" in has else "*i8",
        "partials": "*fp32",
        "table": "*fp32",
        **_END,
    }
    types |= dict.fromkeys(("scales", "zeros", "minima"), "*fp16")
    constants = {
        **_NO_END, **_groups(bits, group, **has), "NUM_SPLITS": 2, "DTYPE": tl.bfloat16,
        "BLOCK_N": 64, "BLOCK_T": block_t, "BLOCK_K": 128,
    }  # fmt: skip
    name = f"{bits} bits, groups of {group}, {block_t} rows, {sorted(has)}"
    return _variant(name, linear_grouped._grouped_kernel, types, constants, num_stages=num_stages)


def of_experts(num_rows: int, bits: int = 16, group: int = 0, **has: bool) -> Variant:
    is_dense = bits == 16
    types = {"x": "*bf16", "table": "*fp32", "bias": "*fp32", "order": "*i32", "begins": "*i32", "out": "*bf16"}
    types["weight"] = "*bf16" if is_dense else "*u8" if bits == 4 or "e4m3" in has else "*i8"
    types |= dict.fromkeys(("scales", "zeros", "minima"), "*bf16" if is_dense else "*fp16")
    constants = {
        **(experts.DENSE_CONSTANTS if is_dense else _groups(bits, group, **has)),
        "HAS_BIAS": "table" in has or (is_dense and num_rows == experts.MANY_ROWS),
        "ROUTES_PER_ROW": 8 if is_dense else 4, "DTYPE": tl.bfloat16, "OUT": tl.bfloat16,
        "EXPERTS": 128 if is_dense else 32, "BLOCK_N": experts.BLOCK_N, "BLOCK_T": num_rows,
        "BLOCK_K": experts.BLOCK_K if is_dense else 128,
    }  # fmt: skip
    format = "" if is_dense else f" of {bits} bits, groups of {group}"
    name = f"experts{format}, {num_rows} rows{'' if is_dense else f', {sorted(has)}'}"
    return _variant(name, experts._product_kernel, types, constants, num_stages=3 if is_dense else 4)


def _groups(bits: int, group: int, **has: bool) -> dict[str, Any]:
    optional = {f"HAS_{name}": has.get(name.lower(), False) for name in ("TABLE", "ZEROS", "MINIMA")}
    return {"BITS": bits, "GROUP": group, "ZERO_POINT": 8 if bits == 4 else 0, "IS_E4M3": "e4m3" in has, **optional}


def _norms(row: dict[str, Any]) -> Iterator[Variant]:
    floats = {"x": "*bf16", "out": "*bf16", "eps": "fp32"}
    floats |= dict.fromkeys(("weight", "bias", "residual", "total", "weight_scales", "row_scales"), "*fp32")
    plain = {**row, "IS_CENTRED": False, "HAS_BIAS": False}
    yield _variant("rms_norm", norm._norm_kernel, floats, plain, num_warps=8)
    centred = {**row, "IS_CENTRED": True, "HAS_BIAS": True}
    yield _variant("layer_norm", norm._norm_kernel, floats | {"x": "*fp32"}, centred, num_warps=8)
    sums = {**row, "HAS_BIAS": False, "HAS_SCALES": False, "DELTA": tl.bfloat16}
    for splits, delta in ((1, "*bf16"), (2, "*fp32")):
        types = {**floats, "delta": delta}
        name = f"add_rms_norm of {splits}"
        yield _variant(name, norm._add_rms_norm_kernel, types, {**sums, "NUM_SPLITS": splits}, num_warps=8)
    head = {**row, "HAS_WEIGHT": True, "HEADS": 32, "BLOCK": 128}
    yield _variant("head_rms_norm", norm._head_norm_kernel, floats, head)


def variants() -> Iterator[Variant]:
    yield dense("bf16", (4096, 14336), 1)
    yield dense("bf16", (4096, 14336), 1, is_tma=False)
    yield dense("bf16", (28672, 4096), 64)
    yield dense("bf16", (28672, 4096), 8192)
    yield dense("bf16", (4096, 14336), 8192)
    yield from map(gated, (1, 32, 64, 8192))
    yield dense("fp8e4nv", (28672, 4096), 64)
    yield dense("fp8e4nv", (4096, 14336), 8192)
    yield dense("i8", (4096, 14336), 1)
    yield four_or_eight_bits(4, 32, 16, minima=True)
    yield four_or_eight_bits(4, 128, 64, zeros=True)
    yield four_or_eight_bits(4, 64, 16, table=True)
    yield four_or_eight_bits(8, 32, 16)
    types = {"row_ids": "*i32", "quants": "*u8", "table": "*fp32", "out": "*bf16"}
    types |= dict.fromkeys(("scales", "zeros", "minima"), "*fp16")
    constants = {**_groups(4, 32), "HAS_IDS": False, "OUT": tl.bfloat16, "ROWS": 16, "BLOCK": 128}
    yield _variant("rows of 4 bits", grouped._rows_kernel, types, constants)
    constants = {**_NO_END, "NUM_SPLITS": 3, "BLOCK": 1024}
    yield _variant("three splits", product._add_splits_kernel, {"partials": "*fp32", **_END}, constants)
    row = {"OUT": tl.bfloat16, "BLOCK": 4096}
    yield from _norms(row)
    yield of_experts(experts.FEW_ROWS)
    yield of_experts(experts.MANY_ROWS)
    yield of_experts(experts.FEW_ROWS, 4, 32, table=True)
    yield of_experts(experts.MANY_ROWS, 4, 128, zeros=True)
    yield of_experts(experts.MANY_ROWS, 8, 2048, e4m3=True)
    types = {"logits": "*bf16", "row_entry": "*i32", "weights": "*fp32", "experts": "*i32", "bias": "*fp32"}
    constants = {"NUM_USED": 8, "RENORMALISE": True, "EXPERTS": 128}
    plain = {"SIGMOID": False, "HAS_BIAS": False, "GROUPS": 1, "USED_GROUPS": 1}
    yield _variant("route", experts._route_kernel, types, {**constants, **plain})
    by_groups = {"EXPERTS": 256, "SIGMOID": True, "HAS_BIAS": True, "GROUPS": 8, "USED_GROUPS": 4}
    yield _variant("route by groups", experts._route_kernel, types, {**constants, **by_groups})
    by_groups |= {"RENORMALISE": False, "SIGMOID": False, "HAS_BIAS": False}
    yield _variant("route by groups, softmax", experts._route_kernel, types, {**constants, **by_groups})
    types = {"x": "*bf16", "weight": "*bf16", "out": "*bf16"}
    constants = {"OUT": tl.bfloat16, "BLOCK_N": experts.BLOCK_N, "BLOCK_K": experts.BLOCK_K}
    for rows in (experts.FEW_ROWS, experts.MANY_ROWS):
        name, tile = f"head linear of {rows}", {**constants, "BLOCK_T": rows}
        yield _variant(name, head_linear._head_linear_kernel, types, tile)
    types = {"outputs": "*fp32", "weights": "*fp32", "places": "*i32", "row_entry": "*i32", "out": "*bf16"}
    constants = {"NUM_USED": 8, "OUT": tl.bfloat16, "BLOCK": 1024}
    yield _variant("combine", experts._combine_kernel, types, constants)
    types = {"x": "*bf16", "factors": "*bf16", "out": "*bf16", "alpha": "fp32", "limit": "fp32"}
    constants = {"KIND": activation.GELU.value, "HAS_FACTORS": True, **row, "BLOCK": 1024}
    yield _variant("gelu_mul", activation._activation_kernel, types, constants)
    constants |= {"KIND": activation.CLAMPED.value}
    yield _variant("clamped_swiglu", activation._activation_kernel, types, constants)
    constants = {"KIND": activation.RELU_SQUARED.value, "HAS_FACTORS": False, **row, "BLOCK": 1024}
    yield _variant("relu_squared", activation._activation_kernel, types, constants)
    constants |= {"KIND": activation.GELU_ERF.value}
    yield _variant("gelu_erf", activation._activation_kernel, types, constants)
    types = {"x": "*bf16", "query_begin": "*i32", "out": "*bf16"}
    constants = {"OUT": tl.bfloat16, "ROWS": 8, "COLUMNS": 128}
    yield _variant("mean", mean._mean_kernel, types, constants)
    types = {"token_ids": "*i32", "weight": "*bf16", "out": "*fp32"}
    yield _variant("embedding", embedding._embedding_kernel, types, {"BLOCK": 1024})
    types = {"x": "*bf16", "given_scale": "*fp32", "out": "*fp8e4nv", "scales": "*fp32", "limit": "fp32"}
    constants = {"IS_GIVEN": False, "HAS_LIMIT": True, "IS_INT8": False, "BLOCK": 4096}
    yield _variant("quantize to e4m3", quantize_rows._quantize_kernel, types, constants, num_warps=8)
