"""Checks the cuda backend and measures it beside the card's own limits and transformers, within a time that is given.

PYTHONPATH=benchmark:server python -m gpu [--launcher PATH] [--minutes 8.7] [--output DIR] [--only NAME ...]

Each phase is a process of its own with a limit; what it finds is a line of `results.jsonl` as it is found, and the
summary is written again after each stage. `--report` only writes the summary of what is there. Without a GPU, or with
`--interpreter`, the same programs run on the smallest shapes in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu import plan, report
from gpu.lines import Lines
from gpu.phases import Conductor, ended_with_this_process

MINUTES, INTERPRETER_MINUTES = 8.7, 40.0
LOOK_S = 90.0
# What the weights of all models take.
SCRATCH_BYTES = 40 << 30
MEMORY_FOLDER = Path("/dev/shm")
CODE_IF_WRONG = 1
# As argparse ends where an argument cannot be.
CODE_IF_REFUSED = 2
# A look at the machine in a process of its own: a driver that hangs must not take this one with it.
LOOK = "import json; from gpu.measure import machine; print(json.dumps(machine()))"


def main() -> int:
    began = time.monotonic()
    options = _options()
    if options.report:
        return _report(options.output)
    environment = _environment(options)
    facts = _look(environment)
    is_gpu = facts.get("is_gpu", False) and not options.interpreter
    if not is_gpu:
        environment |= plan.INTERPRETED
        print("== no NVIDIA GPU: kernels run in Triton's interpreter on tiny shapes, speed means nothing", flush=True)
    minutes = options.minutes or (MINUTES if is_gpu else INTERPRETER_MINUTES)
    with tempfile.TemporaryDirectory(dir=_scratch(options.scratch)) as folder:
        try:
            stages = plan.selected(_stages(options, Path(folder), is_gpu=is_gpu), options.only)
        except plan.UnknownPhaseError as error:
            print(f"error: {error}", file=sys.stderr)
            return CODE_IF_REFUSED
        for old in ("results.jsonl", "log.txt", *report.FILES):
            (options.output / old).unlink(missing_ok=True)
        conductor = Conductor(options.output, began + 60 * minutes, environment)
        Lines(conductor.results, "machine").note(**facts, minutes=minutes, on_gpu=is_gpu)
        print(f"== {json.dumps(facts)}", flush=True)
        with ended_with_this_process(conductor):
            _run(conductor, stages, began, minutes, options.output)
    return _report(options.output)


def _stages(options: argparse.Namespace, scratch: Path, *, is_gpu: bool) -> list[plan.Stage]:
    cores = len(os.sched_getaffinity(0))
    if is_gpu:
        return plan.device_stages(scratch, options.launcher, plan.model_names(options.models), cores)
    return plan.interpreter_stages(scratch, options.launcher, cores)


def _run(conductor: Conductor, stages: Sequence[plan.Stage], began: float, minutes: float, output: Path) -> None:
    """Stage by stage; the summary is written after each, and when the run is ended."""
    for stage in stages:
        conductor.expect(stage.phases)
    try:
        for stage in stages:
            print(f"== {stage.name}", flush=True)
            conductor.run(stage.phases, stage.width, began + 60 * minutes * stage.share)
            report.write(output)
    finally:
        conductor.kill_all()
        report.write(output)


def _report(folder: Path) -> int:
    report.write(folder)
    print((folder / "gpu.md").read_text(encoding="utf-8"))
    problems = report.problems(folder)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return CODE_IF_WRONG if problems else 0


def _look(environment: dict[str, str]) -> dict[str, Any]:
    """Facts about the machine; what went wrong, if they cannot be told."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=LOOK_S, check=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else f"nothing in {LOOK_S:.0f} s"
        return {"problem": str(said)[-1000:], "device": "unknown"}
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
        # On a card the whole matrices run, not the part that `make test` runs in the interpreter.
        "TRUNKLINE_TEST_ALL": "1",
        "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR", str(Path(tempfile.gettempdir()) / "trunkline-triton")),
        "TOKENIZERS_PARALLELISM": "false",
    }


def _scratch(asked: Path | None) -> Path | None:
    """Memory, if there is enough of it: 28 GB of weights are written and read several times."""
    if asked is not None or not MEMORY_FOLDER.is_dir():
        return asked
    return MEMORY_FOLDER if shutil.disk_usage(MEMORY_FOLDER).free >= SCRATCH_BYTES else None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launcher", type=Path, help="the built `trunkline`, beside it `trunkline-router`")
    parser.add_argument("--bundle", type=Path, help="what `make gpu-bundle` made")
    parser.add_argument("--minutes", type=float, help="for everything; default: 8.7, or 40 in the interpreter")
    parser.add_argument("--models", nargs="+", choices=plan.NAMES, help="default: all")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="phases whose names begin so")
    parser.add_argument("--scratch", type=Path, help="folder for 28 GB of weights; default: memory, or a temporary one")
    parser.add_argument("--output", type=Path, default=plan.ROOT / "benchmark/results/gpu", help="for the results")
    parser.add_argument("--interpreter", action="store_true", help="on the CPU, also where a GPU is")
    parser.add_argument("--report", action="store_true", help="only write the summary of the results in --output")
    options = parser.parse_args()
    options.output = options.output.absolute()
    for flag, path in (("--launcher", options.launcher), ("--bundle", options.bundle)):
        if path is not None and not path.exists():
            parser.error(f"`{flag}` is {path}, which does not exist; hint: `make gpu-bundle`")
    return options


if __name__ == "__main__":
    sys.exit(main())
