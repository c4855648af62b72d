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
# Set where every client has to be there.
REQUIRED = "TRUNKLINE_TEST_ALL_CLIENTS"


@pytest.fixture(scope="session", autouse=True)
def node() -> None:
    """Fails without node where all clients are to be tested (`make test-clients` says so), skips in a run by hand."""
    if shutil.which("node") is not None:
        return
    missing = "node is not installed: nothing to run the AI SDK with"
    if os.environ.get(REQUIRED):
        pytest.fail(f"{missing}; hint: install node and npm, rm .venv-clients/.stamp, make test-clients")
    pytest.skip(f"{missing} (and {REQUIRED} is not set: this is no run of all clients)")


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
    assert "\n# pass 8\n" in ran.stdout, ran.stdout
