"""The cuda backend is exact under traffic, through launcher, router and shard, in Triton's interpreter.

This is a short version of what `make gpu-check` runs on a GPU, with a model of two small layers. `make test` runs the
backend's own tests from `server/tests` in the same interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT, TRUNKLINE

TIMEOUT_S = 600


@pytest.mark.full
def test_replies_do_not_change_with_other_requests_or_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmark"))
    monkeypatch.syspath_prepend(str(ROOT / "server"))
    from gpu.shapes import SHAPES, write_model

    model = write_model(SHAPES["tiny"], tmp_path / "model", "cpu")
    results = tmp_path / "results.jsonl"
    paths = [ROOT / "benchmark/gpu/interpreted", ROOT / "benchmark", ROOT / "server"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)), "TRITON_INTERPRET": "1",
        "GPU_CHECK_RESULTS": str(results), "TRUNKLINE_PYTHON": sys.executable, "TRUNKLINE_WEIGHTS_CACHE": "off",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "gpu.measure", "traffic", "--launcher", str(TRUNKLINE), "--path", str(model),
        "--size", "least",
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = [json.loads(line) for line in results.read_text().splitlines()]
    assert [check for check in checks if not check["holds"]] == []
    assert [check["name"].split(": ", 2)[2] for check in checks] == [
        "recorded alone", "from the prefix cache", "all at once", "among 2 others, turn 1", "others were answered",
        "after the shard was killed, among others", "a shard was killed",
        "after the shard was killed, one at a time", "nothing is held without requests",
    ]  # fmt: skip
