"""The web page's views of server and cache in Chromium, tested by `web/tests/page/views.test.ts` in node."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from harness import ROOT, serving

FOLDER = ROOT / "web"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
DEADLINE_S = 240


def test_every_test_of_the_views_passes() -> None:
    if shutil.which("node") is None or CHROMIUM is None or not (FOLDER / "node_modules").is_dir():
        pytest.skip("the page's tests need node, Chromium and `make web`")
    with serving() as server:
        ran = subprocess.run(
            ["npx", "vitest", "run", "--reporter=verbose", "tests/page/views.test.ts"],
            cwd=FOLDER,
            env=os.environ | {"TRUNKLINE_URL": server.base_url, "CHROMIUM": CHROMIUM, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "12 passed" in ran.stdout, ran.stdout
