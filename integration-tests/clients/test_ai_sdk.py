"""The unmodified Vercel AI SDK and `ollama`, tested by `ai-sdk/*.test.mjs` in node."""

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
# Set by `make test-clients`, where a missing client is a failure.
REQUIRED = "TRUNKLINE_TEST_ALL_CLIENTS"


@pytest.fixture(scope="session", autouse=True)
def node() -> None:
    """Without node, fails under `make test-clients` and skips the tests otherwise."""
    if shutil.which("node") is not None:
        return
    missing = "the AI SDK needs node, which is not installed"
    if os.environ.get(REQUIRED):
        pytest.fail(f"{missing}; hint: install node and npm, rm .venv-clients/.stamp, make test-clients")
    pytest.skip(f"{missing} ({REQUIRED} is not set, so this is not a failure)")


def test_every_test_of_the_ai_sdk_passes(server: Trunkline, model: str) -> None:
    assert (FOLDER / "node_modules").is_dir(), "no `node_modules`; hint: rm .venv-clients/.stamp, make test-clients"
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
    assert "\n# pass 10\n" in ran.stdout, ran.stdout
