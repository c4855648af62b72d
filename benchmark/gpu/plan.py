"""The phases of a run, with their order and time limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu.phases import Phase
from gpu.shapes import NAMES, SHAPES

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = ROOT / "server/tests/cuda"
# Files of tests without this fixture have nothing to do on a GPU.
DEVICE_FIXTURE = "device: str"
PROGRAMS = ("steps", "requests", "transformers", "tiers", "fast")
# The model whose K and V are copied to the host and back.
TIERS_MODEL = "llama-8b"
KV_DTYPES = ("auto", "int8", "fp8", "int4")
# The kernels compiled without a GPU: model, KV dtype, dtype of activations, compute capability.
COMPILED = (
    *(("llama-1b", dtype, "bf16", "9.0") for dtype in KV_DTYPES), ("llama-8b-fp8", "auto", "bf16", "9.0"),
    ("llama-1b", "auto", "f32", "9.0"), ("llama-8b-fp8", "fp8", "bf16", "8.0"), ("llama-1b", "auto", "bf16", "8.9"),
    ("llama-1b", "auto", "bf16", "10.0"), ("llama-8b-fp8", "auto", "bf16", "12.0"),
)  # fmt: skip
# A window of 45 minutes on a GPU in commands of at most 10: the minutes of each command, and its phases.
WINDOW = (
    (6.0, ("assumptions",)), (9.0, ("weights", "start", "steps", "limits")), (9.0, ("requests", "tiers", "fast")),
    (9.0, ("traffic", "tests")),
)  # fmt: skip
INTERPRETED = {
    "TRITON_INTERPRET": "1", "GPU_CHECK_PATCH_ONCE": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip


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

    def __init__(self, unknown: Sequence[str], known: Sequence[str]) -> None:
        names = ", ".join(f"`{name}`" for name in unknown)
        super().__init__(
            f"`--only` is {names}, which no phase begins with; the phases are {' '.join(known)}; "
            "hint: `traffic` and `requests` need `--launcher`"
        )


def device_stages(scratch: Path, launcher: Path | None, models: Sequence[str], cores: int) -> list[Stage]:
    """Returns the stages on a GPU: checks, concurrently because compiling takes most of the time, then measurements."""
    small = scratch / "small"
    assumptions = [
        _module(f"assumptions-{name}", "gpu.assumptions", [name], 150) for name in ("products", "attention", "steps")
    ]
    weights = [_measure("weights", name, scratch, 100) for name in models]
    starts = [_measure("start", name, scratch, 140, after=[f"weights-{name}"]) for name in models]
    traffic = [] if launcher is None else [
        _traffic(dtype, launcher, small, "small", 150, after=["weights-small"]) for dtype in KV_DTYPES
    ]  # fmt: skip
    small_weights = _module("weights-small", "gpu.measure", ["weights", "--model", "small", "--path", str(small)], 60)
    tests = [_pytest(path, 150) for path in sorted(TESTS.glob("test_*.py")) if DEVICE_FIXTURE in path.read_text()]
    checks = [*assumptions, small_weights, *weights, *traffic, *starts, *tests]
    speed = [_module("limits", "gpu.measure", ["limits"], 30)]
    # Llama-3-8B comes first, then its FP8 version, then the smaller model.
    ranked = [phase for name in models for phase in _speed(name, scratch, launcher)]
    speed += sorted(ranked, key=lambda phase: (phase.name.endswith("1b"), PROGRAMS.index(phase.name.split("-")[0])))
    return [Stage("checks", checks, max(4, cores - 2), 0.38), Stage("speed", speed, 1, 1.0)]


def _speed(name: str, scratch: Path, launcher: Path | None) -> list[Phase]:
    after = [f"weights-{name}"]
    phases = [_measure("steps", name, scratch, 75, after=after)]
    if not name.endswith("-fp8"):
        if launcher is not None:
            phases.append(_measure("requests", name, scratch, 75, ["--launcher", str(launcher)], after=after))
        phases.append(_measure("transformers", name, scratch, 90, after=after))
        phases.append(_measure("steps", name, scratch, 50, ["--numerics", "fast"], after=after, label="fast-"))
    if name == TIERS_MODEL:
        phases.append(_measure("tiers", name, scratch, 60))
    return phases


def interpreter_stages(scratch: Path, launcher: Path | None, cores: int) -> list[Stage]:
    """Returns one stage with the same programs on the smallest shapes, on the CPU."""
    tiny = scratch / "tiny"
    path = ["--model", "tiny", "--path", str(tiny)]
    weights = _module("weights-tiny", "gpu.measure", ["weights", *path], 120)
    after = [weights.name]
    phases = [weights]
    if launcher is not None:
        # The longest phases come first.
        phases += [_traffic(dtype, launcher, tiny, "tiny", 900, after=after) for dtype in ("auto", "int8")]
    phases += [_module(f"assumptions-{name}", "gpu.assumptions", [name], 900) for name in ("products", "steps")]
    phases.append(_module("assumptions-attention", "gpu.assumptions", ["attention"], 900))
    phases += [_dry(*one) for one in COMPILED]
    phases += [_pytest(path, 900) for path in sorted(TESTS.glob("test_*.py"))]
    phases.append(_module("limits", "gpu.measure", ["limits"], 120))
    phases.append(_module("tiers-tiny", "gpu.measure", ["tiers", "--model", "tiny"], 120))
    phases.append(_module("steps-tiny", "gpu.measure", ["steps", *path], 300, after=after))
    if launcher is not None:
        more = ["--launcher", str(launcher)]
        phases.append(_module("requests-tiny", "gpu.measure", ["requests", *path, *more], 300, after=after))
    phases.append(_module("transformers-tiny", "gpu.measure", ["transformers", *path], 120, after=after))
    return [Stage("checks", phases, max(1, cores), 1.0)]


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
        raise UnknownPhaseError(unknown, sorted(phases))
    wanted = {name for name in phases if name.startswith(tuple(only))}
    while True:
        more = {needed for name in wanted for needed in phases[name].after} - wanted
        if not more:
            break
        wanted |= more
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


def model_names(asked: Sequence[str] | None) -> list[str]:
    return list(asked or NAMES)


def _module(name: str, module: str, arguments: Sequence[str], limit_s: float, after: Sequence[str] = ()) -> Phase:
    return Phase(name, ["-m", module, *arguments], limit_s, after=after)


def _measure(
    program: str,
    model: str,
    scratch: Path,
    limit_s: float,
    more: Sequence[str] = (),
    *,
    after: Sequence[str] = (),
    label: str = "",
) -> Phase:
    arguments = [program, "--model", model, "--path", str(scratch / model), *more]
    return _module(f"{label}{program}-{model}", "gpu.measure", arguments, limit_s, after)


def _traffic(dtype: str, launcher: Path, model: Path, shape: str, limit_s: float, *, after: Sequence[str]) -> Phase:
    arguments = [
        "--launcher", str(launcher), "--model", str(model), "--vocab-size", str(SHAPES[shape].vocab_size),
        "--kv-cache-dtype", dtype, *(["--chunks"] if dtype in ("auto", "int8") else []),
        *(["--size", "tiny"] if shape == "tiny" else []),
    ]  # fmt: skip
    return _module(f"traffic-{dtype}", "gpu.traffic", arguments, limit_s, after)


def _dry(model: str, kv_dtype: str, dtype: str, capability: str) -> Phase:
    """Returns a phase that compiles kernels, and so does not use the interpreter."""
    arguments = [
        "-m", "gpu.dry", "--model", model, "--kv-cache-dtype", kv_dtype, "--dtype", dtype, "--capability", capability
    ]  # fmt: skip
    name = f"compile-{model}-{dtype}-{kv_dtype}-{capability}"
    return Phase(name, arguments, 600, environment={"TRITON_INTERPRET": "0"})


def _pytest(path: Path, limit_s: float) -> Phase:
    arguments = [
        "-m", "pytest", "-p", "gpu.pytest_lines", "-p", "no:cacheprovider", "-W", "default", "--rootdir", str(ROOT),
        str(path),
    ]  # fmt: skip
    return Phase(f"tests-{path.stem.removeprefix('test_')}", arguments, limit_s)
