"""Compiles kernels for GPUs that are not present, because the interpreter accepts code that the compiler refuses.

Run as a program without TRITON_INTERPRET, it compiles the variants that modules list, for Hopper or, if they list them
for a card, for the given compute capabilities, and prints one JSON line per result. `make test` compiles the variants
in a module's `FIRST`, one of each kind of kernel; `make test-all` compiles all.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.cuda.cubin import num_waits, resources
from tests.tiers import IS_FULL
from trunkline_server.backends.cuda.kernels.card import Card

HOPPER = Card((9, 0), 132)
# Other compute capabilities to compile for, with the number of multiprocessors of an A100, L4, B200 and RTX 5090.
OTHER_CARDS = {
    "8.0": Card((8, 0), 108),
    "8.9": Card((8, 9), 58),
    "10.0": Card((10, 0), 148),
    "12.0": Card((12, 0), 170),
}
# Cached between runs and ignored by git, so that an unchanged kernel is not compiled again.
CACHE = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).resolve().parents[3] / "target")) / "triton-cache"
_WARP_THREADS = 32
_TIMEOUT_S = 300
_ACCESS = re.compile(r"\b(?:ld|st|atom|red|cp\.async)\b(?!\.(?:param|shared))")
_PRODUCT = re.compile(r"wgmma\.mma_async[\w.]*|mma\.sync[\w.]*|tcgen05\.mma[\w.:]*")


@dataclass(frozen=True)
class Variant:
    """One kernel with its constants.

    name: for messages. types: of arguments that are not i32, in Triton's spelling. aligned: arguments that are
    multiples of 16, besides pointers, which always are.
    """

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    aligned: frozenset[str] = field(default=frozenset())


@dataclass(frozen=True)
class Compiled:
    """The result of compiling a variant.

    spilled_bytes: per thread, in its stack and elsewhere. products: distinct tensor-core instructions. copies_tensors:
    True if the device's copy engine is used. inexact_divisions: those that IEEE 754 does not determine. warps: distinct
    ways in which warps share products. f32_sums: separate additions of f32. waits_first: True if the launch before has
    ended when memory is first accessed. waits_for_each: True if ptxas waits behind single products (wgmma), because
    something reads a sum before the compiler waits for it.
    """

    module: str
    name: str
    kernel: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    inexact_divisions: int
    products: list[str]
    copies_tensors: bool
    warps: list[str]
    f32_sums: int
    waits_first: bool
    waits_for_each: bool


def compiled_once(shared: Path, modules: Sequence[str], cards: Sequence[str] = ()) -> dict[str, Compiled]:
    """Compiles the `variants()` of modules and returns the results by name. cards: of `OTHER_CARDS`.

    shared: a folder that the processes of this test run share. One process compiles for all; the others wait for it.
    """
    file = shared / ("-".join([*modules, *cards]) + ".jsonl")
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(_compile_in_subprocess(modules, cards))
    lines = [Compiled(**json.loads(line)) for line in file.read_text().splitlines()]
    found = {compiled.name: compiled for compiled in lines}
    assert len(found) == len(lines), "names are told apart"
    return found


def _compile_in_subprocess(modules: Sequence[str], cards: Sequence[str]) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(CACHE), "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-m", "tests.cuda.compiled", ",".join(modules), *cards]
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def compile_variant(variant: Variant, card: Card) -> Any:
    """Returns Triton's compiled kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime import driver

    target = GPUTarget("cuda", 10 * card.capability[0] + card.capability[1], _WARP_THREADS)
    # Kernels query the target that they are compiled for.
    driver.set_active(SimpleNamespace(get_current_target=lambda: target))
    names = variant.kernel.arg_names
    types = {name: "constexpr" if name in variant.constants else variant.types.get(name, "i32") for name in names}
    is_aligned = [types[name].startswith("*") or name in variant.aligned for name in names]
    return triton.compile(
        ASTSource(
            variant.kernel,
            types,
            constexprs=variant.constants,
            attrs={(index,): [["tt.divisibility", 16]] for index, aligned in enumerate(is_aligned) if aligned},
        ),
        target=target,
        options={"num_warps": variant.num_warps, "num_stages": variant.num_stages, "enable_fp_fusion": False},
    )


def _compile(module: str, variant: Variant, card: Card) -> Compiled:
    compiled = compile_variant(variant, card)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        taken, waits = resources(Path(cubin.name)), num_waits(Path(cubin.name))
    return Compiled(
        module=module,
        name=variant.name,
        kernel=variant.kernel.__name__,
        registers=taken.registers,
        spilled_bytes=taken.spilled_bytes,
        shared_bytes=compiled.metadata.shared,
        inexact_divisions=compiled.asm["ptx"].count("div.full"),
        products=sorted(set(_PRODUCT.findall(compiled.asm["ptx"]))),
        warps=sorted(set(re.findall(r"warpsPerCTA = (\[[\d, ]+\])", _encodings(compiled.asm["ttgir"])))),
        f32_sums=len(re.findall(r"\badd(?:\.rn)?\.f32", compiled.asm["ptx"])),
        waits_first="griddepcontrol.wait" in _ACCESS.split(compiled.asm["ptx"])[0],
        copies_tensors="cp.async.bulk.tensor" in compiled.asm["ptx"],
        waits_for_each=waits > compiled.asm["ptx"].count("wgmma.commit_group"),
    )


def _encodings(ttgir: str) -> str:
    return "\n".join(line for line in ttgir.splitlines() if line.startswith("#mma"))


def _main(modules: Sequence[str], cards: Sequence[str]) -> None:
    for module in modules:
        found = importlib.import_module(f"tests.cuda.{module}")
        work = [(HOPPER, listed) for listed in found.variants()] if not cards else []
        work += [(OTHER_CARDS[card], listed) for card in cards for listed in found.variants(OTHER_CARDS[card])]
        for card, listed in work:
            if IS_FULL or listed.name in found.FIRST:
                print(json.dumps(asdict(_compile(module, listed, card))), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1].split(","), sys.argv[2:])
