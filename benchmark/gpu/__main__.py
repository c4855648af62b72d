"""Checks the cuda backend and compares its speed with the card's limits, in a limited time.

PYTHONPATH=benchmark:server python -m gpu [--launcher PATH] [--minutes 8.7] [--output DIR] [--only NAME ...]

Each phase is a separate process with a time limit. It appends each result to `results.jsonl` at once, and the summary
and the archive are rewritten after each phase. Without a GPU, or with `--interpreter`, the same programs run on the
smallest shapes in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from gpu import plan, report
from gpu.compiled_cache import unpack
from gpu.lines import Lines
from gpu.phases import Conductor, ended_with_this_process
from gpu.shapes import NAMES, weight_bytes

MINUTES, INTERPRETER_MINUTES = 8.7, 40.0
LOOK_S = 90.0
# Room in memory beside the weights, for the phases themselves.
SPARE_BYTES = 16 << 30
MEMORY_FOLDER = Path("/dev/shm")
# The name of a scratch folder that is kept.
KEPT = "trunkline-gpu-check"
# In the bundle: kernels compiled for this card.
CACHE = "triton-cache.tar.gz"
CODE_IF_WRONG = 1
# The exit code of argparse for an invalid argument.
CODE_IF_REFUSED = 2
# Inspects the machine in a separate process, because a driver that hangs must not stop this one.
LOOK = "import json; from gpu.measure import machine; print(json.dumps(machine()))"


def main() -> int:
    began = time.monotonic()
    options = _options()
    cores = len(os.sched_getaffinity(0))
    if options.plan:
        stages = plan.device_stages(Path(), options.launcher or Path(), options.models, cores)
        print("# OUT: a folder whose files are kept", *plan.window(stages), sep="\n")
        return 0
    environment = _environment(options)
    facts = _look(environment)
    if "problem" in facts and not options.interpreter:
        print(f"error: the GPU cannot be examined: {facts['problem']}", file=sys.stderr)
        return CODE_IF_WRONG
    is_gpu = facts.get("is_gpu", False) and not options.interpreter
    if not is_gpu:
        environment |= plan.INTERPRETED
        print("== no NVIDIA GPU: kernels run in Triton's interpreter on tiny shapes, so times mean nothing", flush=True)
    bundled = options.bundle / CACHE if options.bundle is not None else None
    if is_gpu and bundled is not None and bundled.exists():
        facts["kernels_from_bundle"] = unpack(bundled, Path(environment["TRITON_CACHE_DIR"]))
    if facts.get("missing", "nothing") != "nothing":
        print(f"warning: phases will fail, because modules are missing: {facts['missing']}", file=sys.stderr)
    minutes = options.minutes or (MINUTES if is_gpu else INTERPRETER_MINUTES)
    needed = sum(map(weight_bytes, options.models)) if is_gpu else 0
    with _scratch(options.scratch, needed, keeps=options.keep_scratch) as folder:
        if is_gpu:
            stages = plan.device_stages(folder, options.launcher, options.models, cores)
        else:
            stages = plan.interpreter_stages(folder, options.launcher, cores)
        try:
            stages = plan.selected(stages, options.only, minutes)
        except plan.UnknownPhaseError as error:
            print(f"error: {error}", file=sys.stderr)
            return CODE_IF_REFUSED
        for old in (report.RESULTS, report.SUMMARY, "log.txt"):
            (options.output / old).unlink(missing_ok=True)
        save = partial(_save, options.output, options.archive)
        conductor = Conductor(options.output, environment, save)
        Lines(conductor.results, "machine").note(**facts, minutes=minutes, on_gpu=is_gpu)
        print(f"== {json.dumps(facts)}", flush=True)
        with ended_with_this_process(conductor):
            # All phases of an interrupted run are reported.
            for stage in stages:
                conductor.expect(stage.phases)
            for stage in stages:
                print(f"== {stage.name}", flush=True)
                conductor.run(stage.phases, stage.width, began + 60 * minutes * stage.share)
        save()
    print((options.output / report.SUMMARY).read_text(encoding="utf-8"))
    problems = report.problems(options.output)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return CODE_IF_WRONG if problems else 0


def _save(output: Path, archive: Path | None) -> None:
    """Writes the summary, and replaces the archive by one of the whole output folder."""
    report.write(output)
    if archive is not None:
        archive.parent.mkdir(parents=True, exist_ok=True)
        part = archive.with_name(f".{archive.name}")
        with tarfile.open(part, "w:gz", compresslevel=1) as tar:
            tar.add(output, arcname="gpu")
        part.replace(archive)


def _look(environment: dict[str, str]) -> dict[str, Any]:
    """Returns facts about the machine, or the problem that prevented finding them."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=LOOK_S, check=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        output = error.stderr if isinstance(error, subprocess.CalledProcessError) else f"nothing in {LOOK_S:.0f} s"
        return {"problem": str(output)[-1000:], "device": "unknown"}
    facts: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return facts


def _environment(options: argparse.Namespace) -> dict[str, str]:
    here = plan.ROOT
    paths = [here / "benchmark/gpu/interpreted", here / "benchmark", here / "server"]
    paths += [options.bundle / "site"] if options.bundle is not None else []
    known = os.environ.get("PYTHONPATH")
    return {
        "PYTHONPATH": os.pathsep.join([*map(str, paths), *([known] if known else [])]),
        "PYTHONUNBUFFERED": "1",
        "TRUNKLINE_PYTHON": sys.executable,
        "TRUNKLINE_WEIGHTS_CACHE": "off",
        # A GPU runs the full matrices, `make test` only a part of them in the interpreter.
        "TRUNKLINE_TEST_ALL": "1",
        "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir()) / "trunkline-triton")),
        "TOKENIZERS_PARALLELISM": "false",
        # Plugins that an environment has by chance would change collection and time limits.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


@contextlib.contextmanager
def _scratch(asked: Path | None, num_bytes: int, *, keeps: bool) -> Iterator[Path]:
    """Yields a folder for so many bytes of weights, in memory if it has room, because they are read several times.

    keeps: use a folder with a fixed name, and leave it for the next run.
    """
    place = asked or Path(tempfile.gettempdir())
    is_kept = (MEMORY_FOLDER / KEPT).exists()
    if asked is None and MEMORY_FOLDER.is_dir():
        # The folder may be larger than the memory that is free, and smaller.
        free = min(shutil.disk_usage(MEMORY_FOLDER).free, _available_bytes() - SPARE_BYTES)
        has_room = is_kept or free >= num_bytes
        place = MEMORY_FOLDER if has_room else place
    if keeps:
        (place / KEPT).mkdir(parents=True, exist_ok=True)
        yield place / KEPT
    else:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            yield Path(folder)


def _available_bytes() -> int:
    """Returns the memory that programs can still get."""
    with Path("/proc/meminfo").open() as file:
        (line,) = (line for line in file if line.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launcher", type=Path, help="the built `trunkline`, next to `trunkline-router`")
    parser.add_argument("--bundle", type=Path, help="the folder written by `make gpu-bundle`")
    parser.add_argument("--minutes", type=float, help="total time; default: 8.7, or 40 in the interpreter")
    parser.add_argument("--models", nargs="+", choices=NAMES, default=NAMES, help="default: all")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="run phases whose names begin with NAME")
    parser.add_argument("--scratch", type=Path, help="folder for 28 GB of weights; default: memory if it suffices")
    parser.add_argument("--keep-scratch", action="store_true", help="leave the weights for the next run, and use them")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="also write all results into one tar.gz")
    parser.add_argument("--output", type=Path, default=plan.ROOT / "benchmark/results/gpu", help="folder for results")
    parser.add_argument("--interpreter", action="store_true", help="run on the CPU even if there is a GPU")
    parser.add_argument("--plan", action="store_true", help="only print the commands of a window of 30 minutes")
    options = parser.parse_args()
    options.output = options.output.absolute()
    for flag, path in (("--launcher", options.launcher), ("--bundle", options.bundle)):
        if path is not None and not path.exists():
            parser.error(f"`{flag}` is {path}, which does not exist; hint: run `make gpu-bundle`")
    return options


if __name__ == "__main__":
    sys.exit(main())
