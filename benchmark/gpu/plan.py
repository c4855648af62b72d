"""The phases of a run, with their order and time limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu.phases import Phase
from gpu.shapes import is_fp8, weight_bytes
from gpu.traffic import CHUNKED_DTYPES

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = ROOT / "server/tests/cuda"
# Files of tests without this fixture have nothing to do on a GPU.
DEVICE_FIXTURE = "device: str"
# Measurements in the order of phases: the first letters of their names.
MEASUREMENTS = ("steps", "requests", "tiers", "fast")
# The model whose K and V are copied to the host and back, and that of the interpreter.
TIERS_MODELS = ("llama-8b", "tiny")
KV_DTYPES = ("auto", "int8", "fp8", "int4")
# A window of 30 minutes on a GPU in commands of at most 10, in which a machine also starts and files are carried: the
# minutes of each command, and its phases. What is not here is for a second window.
WINDOW = (
    (8.0, ("assumptions", "races", "tests-linear", "tests-attention", "tests-choose")),
    (8.0, ("weights-llama-8b", "start-llama-8b", "steps-llama-8b", "requests-llama-8b")), (8.0, ("traffic",)),
)  # fmt: skip
# Seconds of `traffic` with one server, whose shard starts again, and with a server for each size of chunks.
TRAFFIC_LIMIT_S, CHUNKED_TRAFFIC_LIMIT_S = 130.0, 280.0
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
    checks = [*_checks("small", KV_DTYPES, tests, scratch, launcher), Phase("races", ["-m", "gpu.races"], 100)]
    # Room may be short, so small models are written first.
    checks += [_measure("weights", name, scratch, 100) for name in sorted(models, key=weight_bytes)]
    checks += [_measure("start", name, scratch, 140) for name in models]
    # Llama-3-8B comes first, then its FP8 version, then the smaller model.
    speed = [phase for name in models for phase in _speed(name, scratch, launcher)]
    speed.sort(key=lambda phase: (phase.name.endswith("1b"), MEASUREMENTS.index(phase.name.split("-")[0])))
    # Triton builds its launchers with the C compiler at the first launch, which all other phases would do at once.
    compiler = Phase("compiler", ["-m", "gpu.measure", "compiler"], 40)
    stages = [Stage("checks", checks, max(4, cores - 2), 0.38), Stage("speed", speed, 1, 1.0)]
    return [Stage("compiler", [compiler], 1, 0.1), *stages]


def interpreter_stages(scratch: Path, launcher: Path | None, cores: int) -> list[Stage]:
    """Returns one stage with the same programs on the smallest shapes, on the CPU."""
    tests = sorted(TESTS.glob("test_*.py"))
    phases = _checks("tiny", ("auto", "int8"), tests, scratch, launcher) + _speed("tiny", scratch, launcher)
    phases = [replace(phase, limit_s=INTERPRETER_LIMIT_S) for phase in phases]
    return [Stage("checks", phases, max(1, cores), 1.0)]


def _checks(
    model: str, kv_dtypes: Sequence[str], tests: Sequence[Path], scratch: Path, launcher: Path | None
) -> list[Phase]:
    phases = [_measure("weights", model, scratch, 30)]
    # The longest phases come first.
    for dtype in kv_dtypes if launcher is not None else ():
        more = [
            "--launcher",
            str(launcher),
            "--kv-cache-dtype",
            dtype,
            *(["--size", "tiny"] if model == "tiny" else []),
        ]
        limit_s = CHUNKED_TRAFFIC_LIMIT_S if dtype in CHUNKED_DTYPES else TRAFFIC_LIMIT_S
        traffic = _measure("traffic", model, scratch, limit_s, more)
        phases.append(replace(traffic, name=f"traffic-{dtype}", group="traffic"))
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


def selected(stages: Sequence[Stage], only: Sequence[str], minutes: float) -> list[Stage]:
    """Returns the phases of a run of so many minutes that `only` names, those that they need, and the compiler's.

    One of `only` is a phase's name, or the beginning of the names of several. The last stage with such a phase gets the
    whole rest of the time, and those before it what it does not need.
    Raises UnknownPhaseError if no phase begins with one of them, because a run without phases would report no problem.
    """
    if not only:
        return list(stages)
    phases = {phase.name: phase for stage in stages for phase in stage.phases}
    named = {one: [one] if one in phases else [name for name in phases if name.startswith(one)] for one in only}
    unknown = [one for one, names in named.items() if not names]
    if unknown:
        raise UnknownPhaseError(
            f"`--only` is {', '.join(f'`{name}`' for name in unknown)}, which no phase begins with; "
            f"the phases are {' '.join(sorted(phases))}; hint: `traffic` and `requests` need `--launcher`"
        )
    wanted = {name for names in named.values() for name in names}
    # The phases that others need, need none.
    wanted |= {needed for name in wanted for needed in phases[name].after} | {"compiler"}
    chosen = [replace(stage, phases=[one for one in stage.phases if one.name in wanted]) for stage in stages]
    chosen = [stage for stage in chosen if stage.phases]
    needed_s = sum(phase.limit_s for phase in chosen[-1].phases) / chosen[-1].width
    share = 1 - needed_s / (60 * minutes)
    earlier = [replace(stage, share=max(stage.share, share)) for stage in chosen[1:-1]]
    return [*(stages[:1] if len(chosen) > 1 else []), *earlier, replace(chosen[-1], share=1.0)]


def window(stages: Sequence[Stage]) -> list[str]:
    """Returns the commands of a window, each with a comment: its time, and the sum of its phases' limits."""
    lines = []
    for number, (minutes, names) in enumerate(WINDOW, start=1):
        phases = [phase for stage in selected(stages, names, minutes) for phase in stage.phases]
        limits = sum(phase.limit_s for phase in phases) / 60
        lines += [
            f"# {number}: at most {minutes:.0f} min; {len(phases)} phases, whose limits add up to {limits:.0f} min",
            f"scripts/gpu-check.sh --minutes {minutes:.0f} --keep-scratch --output /tmp/gpu-{number} "
            f'--archive "$OUT/gpu-{number}.tar.gz" --only {" ".join(names)}',
        ]
    return lines
