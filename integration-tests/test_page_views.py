"""The web page's views of server and cache in Chromium, tested by `web/tests/browser/views.test.mjs` in node."""

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
            ["node", "--test", "--test-reporter=tap", "tests/browser/views.test.mjs"],
            cwd=FOLDER,
            env=os.environ | {"TRUNKLINE_URL": server.base_url, "CHROMIUM": CHROMIUM},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "\n# pass 12\n" in ran.stdout, ran.stdout
