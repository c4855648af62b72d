"""The Vercel AI SDK, unchanged: runs `ai-sdk/*.test.mjs` with node."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from clients.given import KEY, WRONG_KEY
from harness import Trunkline

FOLDER = Path(__file__).resolve().parent / "ai-sdk"
DEADLINE_S = 120


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed: nothing to run the AI SDK with")
def test_every_test_of_the_ai_sdk_passes(server: Trunkline, model: str) -> None:
    assert (FOLDER / "node_modules").is_dir(), "no AI SDK; hint: rm .venv-clients/.stamp, make test-clients"
    given = {
        "TRUNKLINE_URL": server.base_url,
        "TRUNKLINE_KEY": KEY,
        "TRUNKLINE_WRONG_KEY": WRONG_KEY,
        "TRUNKLINE_MODEL": model,
    }
    ran = subprocess.run(
        ["node", "--test", "--test-reporter=tap"],
        cwd=FOLDER,
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "\n# pass 6\n" in ran.stdout, ran.stdout
