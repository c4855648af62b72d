"""Phases of a run. Each has its own process and time limit, so one that fails or hangs does not affect the others."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpu.lines import Lines
from gpu.process import end_with

POLL_S = 0.1
# Seconds that a phase has after its limit to report what it found, before it is killed.
GRACE_S = 4.0
# Servers that start beside each other share cores and the device's memory.
GROUP_WIDTH = 2
LAST_WORDS = 2000


@dataclass(frozen=True)
class Phase:
    """One program, with its limits.

    It is terminated after `limit_s` and not started if less than `least_s` is left. The phases named in `after` must
    have succeeded before. At most `GROUP_WIDTH` phases of a group run at once.
    """

    name: str
    command: Sequence[str]
    limit_s: float
    least_s: float = 10.0
    after: Sequence[str] = ()
    group: str = ""


@dataclass
class _Running:
    phase: Phase
    process: subprocess.Popen[bytes]
    began: float
    ends: float
    log: Path
    limit_s: float
    is_over: bool = False


class Conductor:
    """Runs phases, which share one file of results and one log in `folder`.

    at_end: called after each phase, so that a run that is killed loses only the phases that were running.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], at_end: Callable[[], None] = lambda: None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.results = folder / "results.jsonl"
        self.log = folder / "log.txt"
        self._environment = environment
        self._at_end = at_end
        self._status: dict[str, str] = {}
        self._known: dict[str, Phase] = {}
        self._running: list[_Running] = []

    def run(self, phases: Sequence[Phase], width: int, deadline: float) -> None:
        """Runs phases in order, up to `width` at a time, until the deadline of the monotonic clock."""
        waiting = list(phases)
        self.expect(phases)
        while waiting or self._running:
            self._end_some()
            for phase in list(waiting):
                reason = self._reason_to_skip(phase, deadline)
                if reason is not None:
                    waiting.remove(phase)
                    self._end(phase, f"skipped: {reason}", 0.0)
                elif len(self._running) < width and self._is_free(phase):
                    waiting.remove(phase)
                    self._begin(phase, deadline)
            time.sleep(POLL_S)

    def expect(self, phases: Sequence[Phase]) -> None:
        """Adds phases to this run. Those that never start are reported as skipped."""
        self._known.update({phase.name: phase for phase in phases})

    def statuses(self) -> dict[str, str]:
        return dict(self._status)

    def kill_all(self) -> None:
        """Kills running phases and reports those that never started as skipped."""
        for running in self._running:
            _kill(running.process)
            self._end(running.phase, "killed: the run was ended", time.monotonic() - running.began)
        self._running.clear()
        for name, phase in self._known.items():
            if name not in self._status:
                self._end(phase, "skipped: the run was ended", 0.0)

    def _reason_to_skip(self, phase: Phase, deadline: float) -> str | None:
        for name in phase.after:
            if self._status.get(name, "ok") != "ok":
                return f"{name} did not end well"
            if name not in self._known:
                return f"{name} is not part of this run"
        return "no time was left" if deadline - time.monotonic() < phase.least_s else None

    def _is_free(self, phase: Phase) -> bool:
        beside = sum(running.phase.group == phase.group for running in self._running) if phase.group else 0
        return beside < GROUP_WIDTH and all(self._status.get(name) == "ok" for name in phase.after)

    def _begin(self, phase: Phase, deadline: float) -> None:
        now = time.monotonic()
        limit_s = min(phase.limit_s, deadline - now)
        lines = Lines(self.results, phase.name)
        lines.begin(limit_s)
        log = self.log.with_name(f".{phase.name}.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *phase.command], stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True, preexec_fn=partial(end_with, os.getpid(), limit_s + 2 * GRACE_S),
                env={
                    **os.environ, **self._environment, "GPU_CHECK_PHASE": phase.name,
                    "GPU_CHECK_RESULTS": str(self.results), "GPU_CHECK_ENDS": str(time.time() + limit_s),
                },
            )  # fmt: skip
        self._running.append(_Running(phase, process, now, now + limit_s, log, limit_s))
        print(f"-- {phase.name}: started, at most {limit_s:.0f} s", flush=True)

    def _end_some(self) -> None:
        for running in list(self._running):
            code = running.process.poll()
            now = time.monotonic()
            if code is None and now < running.ends:
                continue
            if code is None and not running.is_over:
                running.is_over, running.ends = True, now + GRACE_S
                running.process.terminate()
                continue
            self._running.remove(running)
            # Kills child processes that the phase left behind.
            _kill(running.process)
            if running.is_over or code is None:
                status = f"over its limit of {running.limit_s:.0f} s"
            elif code < 0:
                status = f"killed by {signal.Signals(-code).name}"
            else:
                status = "ok" if code == 0 else f"failed with {code}"
            text = running.log.read_text(encoding="utf-8", errors="replace")
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"\n==== {running.phase.name}: {status}\n{text}")
            running.log.unlink()
            self._end(running.phase, status, now - running.began, "" if status == "ok" else text[-LAST_WORDS:])

    def _end(self, phase: Phase, status: str, seconds: float, said: str = "") -> None:
        self._status[phase.name] = status
        Lines(self.results, phase.name).end(status, seconds, said)
        print(f"-- {phase.name}: {status}, {seconds:.1f} s", flush=True)
        if said:
            print(said, flush=True)
        self._at_end()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a phase's process and its whole session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def ended_with_this_process(conductor: Conductor) -> Iterator[None]:
    """Turns signals that end this process into SystemExit, and kills the phases at the end of the block."""

    def stop(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        conductor.kill_all()
        for number, handler in before.items():
            signal.signal(number, handler)
