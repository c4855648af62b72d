"""Compiles kernels for GPUs that are not present, because the interpreter accepts code that the compiler refuses.

Run as a program without TRITON_INTERPRET, it makes the launches of `launches` for a card, on which they only compile,
and prints a JSON line for each kernel. `make test` makes those in `FIRST`, `make test-all` all.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.cuda.cubin import num_waits, resources
from tests.tiers import IS_FULL
from trunkline_server.backends.cuda.kernels import overlap
from trunkline_server.backends.cuda.kernels.card import Card

HOPPER = Card((9, 0), 132)
# Other compute capabilities to compile for, with the number of multiprocessors of an A100, L4, B200 and RTX 5090.
OTHER_CARDS = [Card((8, 0), 108), Card((8, 9), 58), Card((10, 0), 148), Card((12, 0), 170)]
# Cached between runs and ignored by git, so that an unchanged kernel is not compiled again.
CACHE = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).resolve().parents[3] / "target")) / "triton-cache"
ATTENTION = ("split_kernel", "decode_kernel", "whole_kernel")
_TIMEOUT_S = 300
_ACCESS = re.compile(r"\b(?:ld|st|atom|red|cp\.async)\b(?!\.(?:param|shared))")
_PRODUCT = re.compile(r"wgmma\.mma_async[\w.]*|mma\.sync[\w.]*|tcgen05\.mma[\w.:]*")


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel of a launch.

    spilled_bytes: per thread, in its stack and elsewhere. products: distinct tensor-core instructions. copies_tensors:
    True if the device's copy engine is used. inexact_divisions: those that IEEE 754 does not determine. warps: distinct
    ways in which warps share products. f32_sums: separate additions of f32. overlaps: True if it may begin before the
    launch before has ended; waits_first: if that has ended when memory is first accessed. waits_for_each: True if ptxas
    waits behind single products (wgmma), because something reads a sum before the compiler waits for it; examined only
    in `ATTENTION`.
    """

    launch: str
    kernel: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    inexact_divisions: int
    products: list[str]
    copies_tensors: bool
    warps: list[str]
    f32_sums: int
    overlaps: bool
    waits_first: bool
    waits_for_each: bool


def compiled_once(shared: Path, card: Card) -> list[Compiled]:
    """Compiles the launches for a card.

    shared: a folder that the processes of this test run share. One process compiles for all; the others wait for it.
    """
    file = shared / f"compiled-{card.name}.jsonl"
    with file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(run_without_interpreter(["-m", __name__, card.name], CACHE, _TIMEOUT_S))
    return [Compiled(**json.loads(line)) for line in file.read_text().splitlines()]


def run_without_interpreter(arguments: list[str], cache: Path, timeout_s: float) -> str:
    """Returns what a Python program prints. cache: Triton's folder of compiled kernels. Asserts that it ends well."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def compile_for(card: Card, launches: dict[str, Callable[[], object]], tell: Callable[[Compiled], None]) -> None:
    """Makes the launches and tells each kernel that they compile. A kernel of two launches is that of the first."""
    from gpu.dry import as_on
    from triton import knobs

    as_on(card)
    overlap.OVERLAPS_LAUNCHES = True
    for name, launch in launches.items():

        def listen(*, metadata: dict[str, Any], metadata_group: dict[str, str], name: str = name, **_: Any) -> None:
            tell(_examined(name, metadata, {Path(path).suffix: Path(path) for path in metadata_group.values()}))

        knobs.compilation.listener = listen
        launch()


def _examined(launch: str, metadata: dict[str, Any], files: dict[str, Path]) -> Compiled:
    ptx, taken = files[".ptx"].read_text(), resources(files[".cubin"])
    encodings = "\n".join(line for line in files[".ttgir"].read_text().splitlines() if line.startswith("#mma"))
    return Compiled(
        launch=launch, kernel=metadata["name"], registers=taken.registers, spilled_bytes=taken.spilled_bytes,
        shared_bytes=metadata["shared"], inexact_divisions=ptx.count("div.full"),
        products=sorted(set(_PRODUCT.findall(ptx))), copies_tensors="cp.async.bulk.tensor" in ptx,
        warps=sorted(set(re.findall(r"warpsPerCTA = (\[[\d, ]+\])", encodings))),
        f32_sums=len(re.findall(r"\badd(?:\.rn)?\.f32", ptx)), overlaps=metadata["launch_pdl"],
        waits_first="griddepcontrol.wait" in _ACCESS.split(ptx)[0],
        waits_for_each=metadata["name"] in ATTENTION and num_waits(files[".cubin"]) > ptx.count("wgmma.commit_group"),
    )  # fmt: skip


def _main(capability: str) -> None:
    from tests.cuda import launches

    (card,) = [card for card in (HOPPER, *OTHER_CARDS) if card.name == capability]
    found = launches.launches()
    names = (found.keys() if IS_FULL else launches.FIRST) if card == HOPPER else launches.ON_OTHER_CARDS[card.name]
    wanted = {name: launch for name, launch in found.items() if name in names}
    compile_for(card, wanted, lambda compiled: print(json.dumps(asdict(compiled)), flush=True))


if __name__ == "__main__":
    _main(sys.argv[1])
