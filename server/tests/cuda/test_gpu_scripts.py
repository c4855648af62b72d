"""`make gpu-check`: a failure in one phase loses nothing of the others, and tiny shapes can be measured."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpu import __main__ as program
from gpu import measure, phases, plan, report
from gpu.dry import POOL_TOKENS
from gpu.lines import Lines, of_kind, read_lines
from gpu.phases import Conductor, Phase
from gpu.process import end_with
from gpu.shapes import NAMES, SHAPES, shape_of, write_model
from tests.cuda import conftest
from tests.cuda.compiled import CACHE, run_without_interpreter
from tests.tiers import first, first_of_each_kind
from trunkline_server.backends.cuda.build import BLOCK_SIZE
from trunkline_server.weights.checkpoint import open_checkpoint

ROOT = Path(__file__).resolve().parents[3]
PATHS = [str(ROOT / "benchmark"), str(ROOT / "server")]
SAYS = "from gpu.process import phase_lines; lines = phase_lines(); lines.figure('m', 'decode', {'batch': 1, 'n': 2}); "


def run(folder: Path, phases: Sequence[Any], *, seconds: float = 60.0, width: int = 2) -> dict[str, str]:
    """Returns how each phase of a run ended."""
    conductor = Conductor(folder, {"PYTHONPATH": os.pathsep.join(PATHS)})
    conductor.run(phases, width, time.monotonic() + seconds)
    return conductor.statuses()


def phase(name: str, program: str, limit_s: float = 30.0, **more: Any) -> Any:
    return Phase(name, ["-c", SAYS + program], limit_s, least_s=more.pop("least_s", 0.0), **more)


def test_a_phase_that_fails_or_is_killed_loses_only_itself(tmp_path: Path) -> None:
    statuses = run(
        tmp_path,
        [
            phase("raises", "raise RuntimeError('no memory')"),
            phase("dies", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
            phase("needs", "", after=["raises"]),
            phase("good", "lines.check('sums are exact', holds=True)"),
            phase("wrong", "lines.check('graphs are as launched', holds=False, detail='row 3 differs')"),
            phase("late", "", least_s=1000.0),
        ],
    )
    assert statuses == {
        "raises": "failed with 1", "dies": "killed by SIGKILL", "needs": "skipped: raises did not end well",
        "good": "ok", "wrong": "ok", "late": "skipped: no time was left",
    }  # fmt: skip
    report.write(tmp_path)
    text = (tmp_path / "gpu.md").read_text()
    # Figures printed before a phase's end are kept.
    assert text.count("| 1 | 2 |") == 4
    assert "- raises: failed with 1: `RuntimeError: no memory`" in text
    assert "- wrong: graphs are as launched: row 3 differs" in text
    assert "RuntimeError: no memory" in (tmp_path / "log.txt").read_text()
    assert sorted(report.problems(tmp_path)) == [
        "dies: killed by SIGKILL", "late: skipped: no time was left", "needs: skipped: raises did not end well",
        "raises: failed with 1",
        "wrong: graphs are as launched: row 3 differs",
    ]  # fmt: skip


def has_ended(process: int, within_s: float = 10.0) -> bool:
    """Returns True if a process ends in that time, even if no parent has waited for it."""
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], within_s)[0])
    finally:
        os.close(descriptor)


def test_a_hanging_phase_reports_where_and_its_children_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child, log = tmp_path / "child", tmp_path / ".hangs.log"
    program = f"""
import pathlib, subprocess, time
pathlib.Path({str(child)!r}).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
time.sleep(600)
"""
    place = 'File "<string>", line 4'

    def monotonic() -> float:
        """Jumps past all limits while the phase says where it is, which leaves room for a slow start."""
        return time.monotonic() + (100.0 if log.exists() and place in log.read_text() else 0.0)

    # A phase learns that its limit has passed long ago, and then reports where it is.
    clock = SimpleNamespace(sleep=time.sleep, monotonic=monotonic, time=lambda: time.time() - 1000.0)
    monkeypatch.setattr(phases, "time", clock)
    hangs, good = phase("hangs", program, 60.0), phase("good", "", 60.0)
    assert run(tmp_path, [hangs, good], seconds=600.0, width=1) == {"hangs": "over its limit of 60 s", "good": "ok"}
    assert has_ended(int(child.read_text()))
    assert place in (tmp_path / "log.txt").read_text()
    report.write(tmp_path)
    text = (tmp_path / "gpu.md").read_text()
    assert text.count("| 1 | 2 |") == 2, "what it said before it hung is there"
    assert "- hangs: over its limit of 60 s" in text
    assert report.problems(tmp_path) == ["hangs: over its limit of 60 s"]


def test_phases_end_with_a_run_that_is_killed(tmp_path: Path) -> None:
    process = tmp_path / "process"
    hangs = f"import os, pathlib, time; pathlib.Path({str(process)!r}).write_text(str(os.getpid())); time.sleep(600)"
    program = f"""
import pathlib, time
from gpu.phases import Conductor, Phase
conductor = Conductor(pathlib.Path({str(tmp_path)!r}), {{}})
conductor.run([Phase("hangs", ["-c", {hangs!r}], 600.0)], 1, time.monotonic() + 600)
"""
    environment = {**os.environ, "PYTHONPATH": PATHS[0]}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.DEVNULL) as conductor:
        deadline = time.monotonic() + 30
        while not (process.exists() and process.read_text()):
            assert time.monotonic() < deadline, "the phase did not start"
            time.sleep(0.02)
        conductor.kill()
    assert has_ended(int(process.read_text()))


def test_a_phase_is_killed_after_its_limit_even_if_it_ignores_every_request(tmp_path: Path) -> None:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], preexec_fn=partial(end_with, os.getpid(), 0.2)) as process:
        assert process.wait(30) == -signal.SIGALRM


def test_weights_without_room_are_refused_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure.shutil, "disk_usage", lambda _path: SimpleNamespace(free=1 << 20))
    monkeypatch.setattr(sys, "argv", ["measure", "weights", "--model", "llama-1b", "--path", str(tmp_path / "model")])
    with pytest.raises(SystemExit, match="1 MiB free, 2357 needed"):
        measure.main()
    assert not list((tmp_path / "model").iterdir())


def test_one_archive_has_all_results_and_weights_are_kept(tmp_path: Path) -> None:
    output = tmp_path / "results"
    output.mkdir()
    Lines(output / "results.jsonl", "steps").begin(60.0)
    program._save(output, tmp_path / "new/all.tar.gz")
    with tarfile.open(tmp_path / "new/all.tar.gz") as tar:
        assert {"gpu/results.jsonl", "gpu/gpu.md"} <= set(tar.getnames())
    with program._scratch(tmp_path, 0, keeps=True) as kept:
        (kept / "model").touch()
    with program._scratch(tmp_path, 0, keeps=True) as again:
        assert (again / "model").exists()
    with program._scratch(tmp_path, 0, keeps=False) as other:
        assert not list(other.iterdir())
    assert not other.exists()


def test_an_ended_run_lists_the_phases_not_reached(tmp_path: Path) -> None:
    conductor = Conductor(tmp_path, {"PYTHONPATH": os.pathsep.join(PATHS)})
    good, later = phase("good", ""), phase("later", "")
    conductor.expect([good, later])
    conductor.run([good], 1, time.monotonic() + 60)
    conductor.kill_all()
    assert conductor.statuses() == {"good": "ok", "later": "skipped: the run was ended"}
    report.write(tmp_path)
    assert report.problems(tmp_path) == ["later: skipped: the run was ended"]


def test_a_run_that_was_cut_off_has_a_summary(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "results.jsonl", "steps")
    lines.begin(60.0)
    lines.figure("m", "prefill", {"tokens": 512, "tokens_per_s": 9.0})
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"phase": "steps", "wh')
    report.write(tmp_path)
    assert report.problems(tmp_path) == ["steps: was running when the run ended"]
    text = (tmp_path / "gpu.md").read_text()
    assert "| 512 | 9 |" in text and "The times mean nothing" not in text
    (tmp_path / "results.jsonl").unlink()
    lines.note(device="none", on_gpu=False)
    report.write(tmp_path)
    assert "The times mean nothing" in (tmp_path / "gpu.md").read_text()


@pytest.mark.full
def test_every_figure_is_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_CHECK_RESULTS", str(tmp_path / "results.jsonl"))
    for name in ("weights", "steps"):
        model = ["--model", "tiny", "--path", str(tmp_path / "model")]
        monkeypatch.setattr(sys, "argv", ["measure", name, *model])
        assert measure.main() == 0
    rows: dict[str, list[dict[str, float]]] = {}
    for line in of_kind(read_lines(tmp_path / "results.jsonl"), "figure"):
        rows.setdefault(line["table"], []).append(line["row"])
    assert set(rows["limits"][0]) == {"bytes_per_s", "operations_per_s"}
    assert [row["batch"] for row in rows["decode"]] == [1, 2]
    assert all(row["tokens_per_s"] > 0 for row in rows["decode"] + rows["prefill"])


def test_fp8_weights_form_a_readable_checkpoint(tmp_path: Path) -> None:
    path = write_model(SHAPES["tiny"], tmp_path, "cpu", is_fp8=True)
    checkpoint = open_checkpoint(path)
    assert checkpoint.config.hidden_size == SHAPES["tiny"].hidden_size
    assert len([name for name in checkpoint.names() if name.endswith("_proj.weight")]) == 14


def test_the_phases_of_a_run_fit_into_its_time() -> None:
    stages = plan.device_stages(Path("/scratch"), Path("/bin/trunkline"), NAMES, 16)
    names = [phase.name for stage in stages for phase in stage.phases]
    assert len(names) == len(set(names))
    assert not {"tests-gpu_scripts", "tests-tiers", "tests-compile"} & set(names), "they need no GPU"
    assert {"assumptions-products", "traffic-int4", "tests-linear", "steps-llama-8b", "requests-llama-1b"} <= set(names)
    for stage in stages:
        known = [phase.name for phase in stage.phases]
        for phase in stage.phases:
            assert set(phase.after) <= set(names)
            assert all(needed not in known or known.index(needed) < known.index(phase.name) for needed in phase.after)
    only = plan.selected(stages, ["traffic-int8"], 8.0)
    assert [phase.name for stage in only for phase in stage.phases] == ["compiler", "weights-small", "traffic-int8"]
    assert only[-1].share == 1.0, "the last stage gets all the time"
    both = plan.selected(stages, ["steps-llama-1b"], 8.0)
    assert [stage.share for stage in both] == [stages[0].share, 1 - 75 / 480, 1.0], "the rest of the time is used"
    one = plan.selected(stages, ["steps-llama-8b"], 8.0)
    assert [phase.name for phase in one[-1].phases] == ["steps-llama-8b"], "a whole name names one phase"


def test_the_window_of_a_rare_machine_is_long_enough() -> None:
    stages = plan.device_stages(Path("/scratch"), Path("/bin/trunkline"), NAMES, 16)
    assert all(minutes <= 8 for minutes, _ in plan.WINDOW) and sum(minutes for minutes, _ in plan.WINDOW) <= 26
    for minutes, wanted in plan.WINDOW:
        began_s = 0.0
        for stage in plan.selected(stages, wanted, minutes):
            # The longest chain of phases that wait for each other, and all phases by the number that run at once.
            limits = {phase.name: phase.limit_s for phase in stage.phases}
            chain = max(phase.limit_s + sum(limits.get(name, 0) for name in phase.after) for phase in stage.phases)
            grouped = [phase for phase in stage.phases if phase.group]
            needed = max((limits.get(name, 0) for phase in grouped for name in phase.after), default=0.0)
            of_group = sum(phase.limit_s for phase in grouped) / phases.GROUP_WIDTH + needed
            needs_s = max(chain, of_group, sum(limits.values()) / stage.width)
            assert began_s + needs_s <= 60 * minutes * stage.share, (stage.name, wanted)
            began_s += needs_s


def test_servers_that_start_beside_each_other_are_few(tmp_path: Path) -> None:
    program = f"""
import pathlib, time
place = pathlib.Path({str(tmp_path)!r})
mine = place / f"running-{{lines._phase}}"
mine.touch()
most = len(list(place.glob("running-*")))
time.sleep(0.3)
mine.unlink()
lines.check("few", holds=most <= {phases.GROUP_WIDTH}, detail=str(most))
"""
    four = [phase(f"s{number}", program, group="servers") for number in range(4)]
    assert set(run(tmp_path / "out", four, width=4).values()) == {"ok"}
    report.write(tmp_path / "out")
    assert not report.problems(tmp_path / "out")


def test_the_interpreted_run_has_every_program() -> None:
    stages = plan.device_stages(Path("/scratch"), Path("/bin/trunkline"), NAMES, 16)
    interpreted = plan.interpreter_stages(Path("/scratch"), Path("/bin/trunkline"), 16)
    commands = [phase.command for stage in [*stages, *interpreted] for phase in stage.phases]
    assert set(measure.PROGRAMS) == {command[2] for command in commands if list(command[:2]) == ["-m", "gpu.measure"]}


@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_bundle_finds_its_programs_in_any_folder(tmp_path: Path, is_absolute: bool) -> None:
    bundle, python = tmp_path / "bundle", tmp_path / "python"
    for file, content in ((bundle / "bin/trunkline", ""), (python, '#!/bin/sh\n[ "$1" = -c ] || echo "$@"\n')):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        file.chmod(0o755)
    place = str(bundle) if is_absolute else os.path.relpath(bundle, ROOT)
    environment = {**os.environ, "PYTHON": str(python), "TRUNKLINE_GPU_BUNDLE": place}
    command = ["bash", str(ROOT / "scripts/gpu-check.sh"), "--minutes", "3"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    words = ended.stdout.split()
    assert Path(words[words.index("--launcher") + 1]).samefile(bundle / "bin/trunkline")
    assert words[-2:] == ["--minutes", "3"]


def test_a_missing_launcher_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--launcher", str(tmp_path / "trunkline"), "--output", str(tmp_path)])
    with pytest.raises(SystemExit):
        program.main()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("on_gpu", [True, False])
def test_an_unknown_phase_is_refused_before_results_are_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], on_gpu: bool
) -> None:
    kept = {name: f"of before: {name}" for name in ("results.jsonl", "gpu.md", "log.txt")}
    for name, content in kept.items():
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(program, "_look", lambda _environment: {"is_gpu": on_gpu})
    monkeypatch.setattr(sys, "argv", ["gpu", "--output", str(tmp_path), "--only", "steps", "stesp"])
    assert program.main() == 2
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == kept
    said = capsys.readouterr().err
    assert "`--only` is `stesp`" in said
    assert ("steps-llama-8b" if on_gpu else "steps-tiny") in said


@pytest.mark.parametrize("flags", [[], ["--interpreter"]])
def test_a_gpu_that_cannot_be_examined_is_not_replaced_by_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    monkeypatch.setattr(program, "_look", lambda _environment: {"problem": "nothing in 90 s"})
    monkeypatch.setattr(sys, "argv", ["gpu", "--output", str(tmp_path), "--only", "stesp", *flags])
    assert program.main() == (program.CODE_IF_REFUSED if flags else program.CODE_IF_WRONG)
    assert ("the GPU cannot be examined: nothing in 90 s" in capsys.readouterr().err) == (not flags)


def test_a_gpu_runs_the_first_case_of_each_kind_and_none_in_f32_beside_others() -> None:
    def case(test: str, **params: object) -> Any:
        spec = {"callspec": SimpleNamespace(params=params)} if params else {}
        return SimpleNamespace(nodeid=test + "[...]" * bool(params), **spec)

    cases = [
        case("a", format="f32", rows=1), case("a", format="bf16", rows=1), case("a", format="bf16", rows=2),
        case("a", format="int4", rows=3), case("b"), case("c", dtype=torch.float32), case("c", dtype=torch.float32),
        case("d", kv_dtype=torch.float16, rows=torch.float32), case("e", rows=1), case("e", rows=2),
    ]  # fmt: skip
    assert first_of_each_kind(cases) == [cases[index] for index in (1, 3, 4, 5, 7, 8)]


@pytest.mark.parametrize("left_s", [100.0, 1.0])
def test_a_case_without_time_is_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_s: float
) -> None:
    results = tmp_path / "results.jsonl"
    monkeypatch.setattr(conftest, "is_gpu_check", lambda: True)
    monkeypatch.setenv("GPU_CHECK_ENDS", str(time.time() + left_s))
    monkeypatch.setenv("GPU_CHECK_RESULTS", str(results))
    monkeypatch.setenv("GPU_CHECK_PHASE", "tests-x")
    item: Any = SimpleNamespace(name="test_x[1]")
    if left_s > conftest.MIN_LEFT_S:
        conftest.pytest_runtest_setup(item)
        assert not results.exists()
        return
    with pytest.raises(pytest.skip.Exception, match="no time was left"):
        conftest.pytest_runtest_setup(item)
    assert "test_x[1] ran" in results.read_text()


_SPILLS = """
import sys
from types import SimpleNamespace
from triton import knobs
from gpu.dry import as_on
from tests.cuda.compiled import HOPPER
from tests.cuda.launches import gated
from trunkline_server.backends.cuda.kernels.spills import spilling_kernels

knobs.cache.dir = sys.argv[1]
dry = as_on(HOPPER)
# The device's driver tells the words of local memory, the fourth of these numbers.
dry.utils.load_binary = lambda *_: (1, 1, 0, int(sys.argv[2]), 1024)
gated(1)
print(spilling_kernels())
"""


@pytest.mark.full
@pytest.mark.parametrize(("words", "named"), [(33, {"_gated_kernel": 132}), (32, {})])
def test_kernels_that_spill_are_named(tmp_path: Path, words: int, named: dict[str, int]) -> None:
    printed = run_without_interpreter(["-c", _SPILLS, str(CACHE), str(words)], CACHE, 300)
    assert printed == f"{named}\n"


_COMPILES_TWICE = """
import pathlib, shutil, sys
from triton import knobs
from gpu.compiled_cache import pack, unpack
from gpu.dry import as_on
from tests.cuda.compiled import HOPPER
from tests.cuda.launches import gated
from trunkline_server.backends.cuda.kernels.linear_gated import _gated_kernel

first, second, archive = (pathlib.Path(name) for name in sys.argv[1:])
as_on(HOPPER)
hits = []
knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
for folder in (first, second):
    knobs.cache.dir = str(folder)
    gated(1)
    if folder == first:
        assert pack(first, archive) == 1
        shutil.rmtree(first)
        assert unpack(archive, second) == 1
        _gated_kernel.device_caches.clear()
print(hits)
"""


@pytest.mark.full
def test_kernels_compiled_elsewhere_are_found(tmp_path: Path) -> None:
    """The second compilation has another folder, as on another machine, and the first folder is gone."""
    folders = [str(tmp_path / name) for name in ("one", "two", "all.tar.gz")]
    printed = run_without_interpreter(["-c", _COMPILES_TWICE, *folders], tmp_path / "cache", 120)
    assert printed == "[False, True]\n"


@pytest.mark.parametrize("name", [*NAMES, "small"])
def test_kernels_compiled_in_advance_have_tables_as_divisible_as_those_of_servers(name: str) -> None:
    """Triton compiles anew for an argument that is a multiple of 16. A server's pool holds the longest sequence."""
    longest = shape_of(name).max_position_embeddings
    assert longest // BLOCK_SIZE % 16 == min(POOL_TOKENS, longest) // BLOCK_SIZE % 16 == 0


@pytest.mark.parametrize("kv_cache_dtype", first(["auto", "fp8", "int8", "int4"], "auto"))
def test_servers_of_other_sizes_launch_the_kernels_compiled_in_advance(kv_cache_dtype: str, tmp_path: Path) -> None:
    found = json.loads(run_without_interpreter(["-m", "tests.cuda.launch_keys", kv_cache_dtype], tmp_path, 300))
    assert found["known"] > 40
    assert found["others"]["start"] == found["others"]["traffic"] == []
    # The test would see one argument that is divisible elsewhere.
    assert len(found["others"]["twenty blocks"]) >= 2


def test_a_missing_module_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_by_newer.py").write_text("raise RuntimeError('generated with version 9')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(measure, "NEEDED", ("json", "made_by_newer", "no_such_module"))
    found = measure.machine()["missing"]
    assert found == "made_by_newer (generated with version 9), no_such_module (No module named 'no_such_module')"
