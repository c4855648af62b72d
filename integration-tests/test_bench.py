"""`trunkline bench` against a real server: the lengths that were asked for, the cache, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

from harness import TRUNKLINE, Trunkline, wait_for


def command(server: Trunkline, *flags: str) -> list[str]:
    return [str(TRUNKLINE), "bench", server.base_url, *flags]


def result(server: Trunkline, folder: Path, *flags: str) -> Any:
    """Runs a measurement to its end and returns what it writes."""
    file = folder / "result.json"
    run = subprocess.run(
        command(server, "--json", str(file), *flags), capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stderr) == (0, ""), run.stdout + run.stderr
    return json.loads(file.read_text())


def test_prompts_and_outputs_have_the_lengths_that_were_asked_for(server: Trunkline, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    flags = ("--requests", "4", "--concurrency", "1,2", "--input-tokens", "96", "--output-tokens", "8")
    report = result(server, tmp_path, *flags, "--prefix-tokens", "64", "--html", str(page))
    first, second = (load["figures"] for load in report["loads"])
    assert [load["title"] for load in report["loads"]] == ["concurrency 1", "concurrency 2"]
    for figures in (first, second):
        assert (figures["completed"], figures["failed"]) == (4, 0)
        assert (figures["prompt_tokens"], figures["output_tokens"]) == (4 * 160, 4 * 8)
        assert 0 < figures["ttft_ms"]["median"] < figures["e2el_ms"]["median"]
    # The prefix is in the cache from the first load on; the rest of a prompt never is.
    assert 4 * 48 <= second["cached_tokens"] <= 4 * 72
    assert page.read_text().startswith("<!doctype html>")


def test_a_second_turn_is_a_hit(server: Trunkline, tmp_path: Path) -> None:
    flags = ("--turns", "2", "--requests", "2", "--concurrency", "1", "--input-tokens", "64", "--output-tokens", "16")
    report = result(server, tmp_path, *flags, "--endpoint", "chat", "--seed", "5")
    turns = report["loads"][0]["requests"]
    assert [turn["turn"] for turn in turns] == [0, 1]
    assert turns[1]["cached_tokens"] >= 64 > turns[0]["cached_tokens"]


def test_ctrl_c_shows_what_was_measured(server: Trunkline) -> None:
    flags = ("--duration", "60", "--concurrency", "2", "--input-tokens", "16", "--output-tokens", "4")
    before = requests_done(server)
    run = subprocess.Popen(command(server, *flags), stdout=subprocess.PIPE, text=True)
    wait_for(lambda: requests_done(server) > before + 4, "some requests")
    run.send_signal(signal.SIGINT)
    printed, _ = run.communicate(timeout=20)
    assert run.returncode == 130
    assert "TTFT ms" in printed and printed.endswith("that were answered until then\n"), printed


def requests_done(server: Trunkline) -> float:
    """Returns the number of answers to completions that have begun."""
    counted = server.metrics().items()
    return sum(value for name, value in counted if "http_requests_total" in name and "/v1/completions" in name)
