"""A pytest plugin that writes each test's outcome at once, so that a crash loses only the running test's."""

from __future__ import annotations

from typing import Any

from gpu.process import phase_lines

DETAIL = 500


class Outcomes:
    def __init__(self) -> None:
        self._lines = phase_lines()

    def pytest_runtest_logreport(self, report: Any) -> None:
        # A test can fail in its setup, call or teardown. A test that passes is recorded only for its call.
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            detail = str(report.longrepr)[-DETAIL:] if crash is None else str(crash.message)[:DETAIL]
            self._lines.check(report.nodeid, holds=False, detail=f"{report.when}: {detail}")
        elif report.when == "call" and report.passed:
            self._lines.check(report.nodeid, holds=True)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._lines.check(report.nodeid, holds=False, detail=str(report.longrepr)[-DETAIL:])


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(Outcomes(), "gpu-outcomes")
