"""Compiles this backend's product and row kernels for Hopper, with the compiler that Triton brings along. No GPU.

    python tests/cuda/hopper.py

prints a JSON object a line: kernel, case, what it takes of an SM, whether it spills, and its matrix instructions. Runs
in a process of its own: kernels that were decorated for the interpreter cannot be compiled.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
import triton.backends.nvidia as nvidia
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from trunkline_server.backends.cuda.kernels import (
    activation,
    embedding,
    grouped,
    linear_dense,
    linear_grouped,
    norm,
    product,
    quantize_rows,
)
from trunkline_server.backends.cuda.kernels.product_plan import ProductPlan

TARGET = GPUTarget("cuda", 90, 32)
_BINARIES = Path(nvidia.__file__).parent / "bin"
# Arguments that are multiples of 16 with the shapes of real models.
_ROUND = {"num_inputs", "num_outputs", "num_elements", "split_elements"}
_END = {"bias": "*fp32", "soft_cap": "fp32", "weight_scales": "*fp32", "row_scales": "*fp32", "out": "*bf16"}
_NO_END = {"HAS_BIAS": False, "HAS_SOFT_CAP": False, "HAS_SCALES": False, "OUT": tl.bfloat16}

Case = tuple[str, Any, dict[str, str], dict[str, Any], dict[str, int]]


def compiled(case: Case) -> dict[str, Any]:
    """What became of a kernel: (name, kernel, types of arguments that are not i32, constants, options)."""
    name, kernel, types, constants, options = case
    signature = {arg: "constexpr" if arg in constants else types.get(arg, "i32") for arg in kernel.arg_names}
    attributes = {
        (at,): [["tt.divisibility", 16]]
        for at, (arg, kind) in enumerate(signature.items())
        if kind.startswith("*") or arg in _ROUND or arg.endswith("stride")
    }
    source = ASTSource(kernel, signature, constants, attributes)
    binary = triton.compile(source, target=TARGET, options={"enable_fp_fusion": False, **options})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [_BINARIES / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", usage)
    assert found is not None, usage
    return {
        "kernel": kernel.__name__,
        "case": name,
        "shared_bytes": binary.metadata.shared,
        "registers": int(found[1]),
        "spilled_bytes": int(found[2]) + int(found[3]),
        "instructions": sorted(set(re.findall(r"(?:wgmma\.mma_async|mma)\.sync\S*", binary.asm["ptx"]))),
        "tensor_copies": "cp.async.bulk.tensor" in binary.asm["ptx"],
    }


def dense(kind: str, shape: tuple[int, int], num_rows: int, *, is_tma: bool = True) -> Case:
    plan = ProductPlan.of(*shape)
    tiles = plan.tiles(num_rows, {"bf16": 2, "fp8e4nv": 1, "i8": 1}[kind])
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
        constants["GROUP"] = product.GROUP_TILES
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    return f"{kind} {list(shape)} x {num_rows} {'tma' if is_tma else 'pointers'}", kernel, types, constants, options


def four_or_eight_bits(bits: int, group: int, block_t: int, **has: bool) -> Case:
    types = {"x": "*bf16", "quants": "*u8" if bits == 4 else "*i8", "partials": "*fp32", "table": "*fp32", **_END}
    types |= dict.fromkeys(("scales", "zeros", "minima"), "*fp16")
    constants = {
        **_NO_END, **_groups(bits, group, **has), "NUM_SPLITS": 2, "DTYPE": tl.bfloat16,
        "BLOCK_N": 64, "BLOCK_T": block_t, "BLOCK_K": 128,
    }  # fmt: skip
    name = f"{bits} bits, groups of {group}, {block_t} rows, {sorted(has)}"
    return name, linear_grouped._grouped_kernel, types, constants, {"num_warps": 4, "num_stages": 4}


def _groups(bits: int, group: int, **has: bool) -> dict[str, Any]:
    optional = {f"HAS_{name}": has.get(name.lower(), False) for name in ("TABLE", "ZEROS", "MINIMA")}
    return {"BITS": bits, "GROUP": group, "ZERO_POINT": 8 if bits == 4 else 0, **optional}


def cases() -> Iterator[Case]:
    yield dense("bf16", (4096, 14336), 1)
    yield dense("bf16", (4096, 14336), 1, is_tma=False)
    yield dense("bf16", (28672, 4096), 64)
    yield dense("bf16", (28672, 4096), 8192)
    yield dense("bf16", (4096, 14336), 8192)
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
    yield "4 bits", grouped._rows_kernel, types, constants, {"num_warps": 4}
    constants = {**_NO_END, "NUM_SPLITS": 3, "BLOCK": 1024}
    yield "three splits", product._add_splits_kernel, {"partials": "*fp32", **_END}, constants, {"num_warps": 4}
    row = {"OUT": tl.bfloat16, "BLOCK": 4096}
    floats = {"x": "*bf16", "weight": "*fp32", "out": "*bf16", "eps": "fp32"}
    yield "4096", norm._rms_norm_kernel, floats, row, {"num_warps": 8}
    floats |= {"residual": "*fp32", "delta": "*bf16", "total": "*fp32"}
    yield "4096", norm._add_rms_norm_kernel, floats, row, {"num_warps": 8}
    yield "heads", norm._head_rms_norm_kernel, floats, {**row, "HEADS": 32, "BLOCK": 128}, {"num_warps": 4}
    types = {"gate": "*bf16", "up": "*bf16", "out": "*bf16"}
    yield "gelu", activation._gated_kernel, types, {"IS_GELU": True, **row, "BLOCK": 1024}, {"num_warps": 4}
    types = {"token_ids": "*i32", "weight": "*bf16", "out": "*fp32"}
    yield "bf16", embedding._embedding_kernel, types, {"BLOCK": 1024}, {"num_warps": 4}
    types = {"x": "*bf16", "given_scale": "*fp32", "out": "*fp8e4nv", "scales": "*fp32", "limit": "fp32"}
    constants = {"IS_GIVEN": False, "HAS_LIMIT": True, "IS_INT8": False, "BLOCK": 4096}
    yield "e4m3", quantize_rows._quantize_kernel, types, constants, {"num_warps": 8}


if __name__ == "__main__":
    for case in cases():
        print(json.dumps(compiled(case)), flush=True)
