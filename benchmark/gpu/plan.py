"""The phases of a run, with their order and time limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu.phases import Phase
from gpu.shapes import is_fp8

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = ROOT / "server/tests/cuda"
# Files of tests without this fixture have nothing to do on a GPU.
DEVICE_FIXTURE = "device: str"
# Measurements in the order of phases: the first letters of their names.
MEASUREMENTS = ("steps", "requests", "tiers", "fast")
# The model whose K and V are copied to the host and back, and that of the interpreter.
TIERS_MODELS = ("llama-8b", "tiny")
KV_DTYPES = ("auto", "int8", "fp8", "int4")
# A window of 45 minutes on a GPU in commands of at most 10: the minutes of each command, and its phases.
WINDOW = (
    (6.0, ("assumptions",)), (9.0, ("weights", "start", "steps")), (9.0, ("requests", "tiers", "fast")),
    (9.0, ("traffic", "tests")),
)  # fmt: skip
INTERPRETED = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
INTERPRETER_LIMIT_S = 900.0


@dataclass(frozen=True)
class Stage:
    """Phases that run concurrently, up to `width` at a time.

    The stage must end when `share` of the total time has passed since the beginning of the run.
    """

    name: str
    phases: Sequence[Phase]
    width: int
    share: float


class UnknownPhaseError(Exception):
    """`--only` has a name with which no phase of this run begins."""


def device_stages(scratch: Path, launcher: Path | None, models: Sequence[str], cores: int) -> list[Stage]:
    """Returns the stages on a GPU: checks, concurrently because compiling takes most of the time, then measurements."""
    tests = [path for path in sorted(TESTS.glob("test_*.py")) if DEVICE_FIXTURE in path.read_text()]
    checks = _checks("small", KV_DTYPES, tests, scratch, launcher)
    checks += [_measure("weights", name, scratch, 100) for name in models]
    checks += [_measure("start", name, scratch, 140) for name in models]
    # Llama-3-8B comes first, then its FP8 version, then the smaller model.
    speed = [phase for name in models for phase in _speed(name, scratch, launcher)]
    speed.sort(key=lambda phase: (phase.name.endswith("1b"), MEASUREMENTS.index(phase.name.split("-")[0])))
    return [Stage("checks", checks, max(4, cores - 2), 0.38), Stage("speed", speed, 1, 1.0)]


def interpreter_stages(scratch: Path, launcher: Path | None, cores: int) -> list[Stage]:
    """Returns one stage with the same programs on the smallest shapes, on the CPU."""
    tests = sorted(TESTS.glob("test_*.py"))
    phases = _checks("tiny", ("auto", "int8"), tests, scratch, launcher) + _speed("tiny", scratch, launcher)
    phases = [replace(phase, limit_s=INTERPRETER_LIMIT_S) for phase in phases]
    return [Stage("checks", phases, max(1, cores), 1.0)]


def _checks(
    model: str, kv_dtypes: Sequence[str], tests: Sequence[Path], scratch: Path, launcher: Path | None
) -> list[Phase]:
    phases = [_measure("weights", model, scratch, 60)]
    # The longest phases come first.
    for dtype in kv_dtypes if launcher is not None else ():
        more = [
            "--launcher",
            str(launcher),
            "--kv-cache-dtype",
            dtype,
            *(["--size", "tiny"] if model == "tiny" else []),
        ]
        phases.append(replace(_measure("traffic", model, scratch, 150, more), name=f"traffic-{dtype}"))
    phases += [
        Phase(f"assumptions-{name}", ["-m", "gpu.assumptions", name], 150)
        for name in ("products", "attention", "steps")
    ]
    return phases + [_pytest(path, 150) for path in tests]


def _speed(name: str, scratch: Path, launcher: Path | None) -> list[Phase]:
    phases = [_measure("steps", name, scratch, 75)]
    if not is_fp8(name):
        if launcher is not None:
            phases.append(_measure("requests", name, scratch, 75, ["--launcher", str(launcher)]))
        phases.append(replace(_measure("steps", name, scratch, 50, ["--numerics", "fast"]), name=f"fast-steps-{name}"))
    if name in TIERS_MODELS:
        phases.append(replace(_measure("tiers", name, scratch, 60), after=()))
    return phases


def _measure(program: str, model: str, scratch: Path, limit_s: float, more: Sequence[str] = ()) -> Phase:
    command = ["-m", "gpu.measure", program, "--model", model, "--path", str(scratch / model), *more]
    return Phase(f"{program}-{model}", command, limit_s, after=() if program == "weights" else (f"weights-{model}",))


def _pytest(path: Path, limit_s: float) -> Phase:
    arguments = [
        "-m", "pytest", "-v", "-p", "no:cacheprovider", "-W", "default", "--tb", "short", "--rootdir", str(ROOT),
        str(path),
    ]  # fmt: skip
    return Phase(f"tests-{path.stem.removeprefix('test_')}", arguments, limit_s)


def selected(stages: Sequence[Stage], only: Sequence[str]) -> list[Stage]:
    """Returns the phases whose names begin with one of `only`, and those that they need.

    The last stage with such a phase gets the whole rest of the time.
    Raises UnknownPhaseError if no phase begins with one of them, because a run without phases would report no problem.
    """
    if not only:
        return list(stages)
    phases = {phase.name: phase for stage in stages for phase in stage.phases}
    unknown = [beginning for beginning in only if not any(name.startswith(beginning) for name in phases)]
    if unknown:
        raise UnknownPhaseError(
            f"`--only` is {', '.join(f'`{name}`' for name in unknown)}, which no phase begins with; "
            f"the phases are {' '.join(sorted(phases))}; hint: `traffic` and `requests` need `--launcher`"
        )
    wanted = {name for name in phases if name.startswith(tuple(only))}
    # The phases that others need, need none.
    wanted |= {needed for name in wanted for needed in phases[name].after}
    chosen = [replace(stage, phases=[one for one in stage.phases if one.name in wanted]) for stage in stages]
    chosen = [stage for stage in chosen if stage.phases]
    return [*chosen[:-1], replace(chosen[-1], share=1.0)]


def window(stages: Sequence[Stage]) -> list[str]:
    """Returns the commands of a window, each with a comment: its time, and the sum of its phases' limits."""
    lines = []
    for number, (minutes, names) in enumerate(WINDOW, start=1):
        phases = [phase for stage in selected(stages, names) for phase in stage.phases]
        limits = sum(phase.limit_s for phase in phases) / 60
        lines += [
            f"# {number}: at most {minutes:.0f} min; {len(phases)} phases, whose limits add up to {limits:.0f} min",
            f"scripts/gpu-check.sh --minutes {minutes:.0f} --keep-scratch --output /tmp/gpu-{number} "
            f'--archive "$OUT/gpu-{number}.tar.gz" --only {" ".join(names)}',
        ]
    return lines
