"""Exact comparison of whole answers of every route with recorded snapshots.

Each file in `snapshots/` has its own request. To add one, write a file with only the request, and record it.
"""

from __future__ import annotations

import json

import pytest
import snapshots
from harness import Trunkline, http, wait_for

# Snapshots of exchanges. Those of other tests have no request.
NAMES = sorted(path.stem for path in snapshots.FOLDER.glob("*.json") if "request" in json.loads(path.read_text()))


@pytest.mark.parametrize("name", NAMES)
def test_snapshot(server: Trunkline, request: pytest.FixtureRequest, name: str) -> None:
    sent = snapshots.request_of(name)
    # Usage includes the prefix hit, which depends on earlier requests. The second time, the whole prompt is a hit.
    snapshots.exchange(server.base_url, **sent)
    # The last, partly filled block enters the cache shortly after the answer.
    wait_for(server.is_idle, "the end of the request")
    text = snapshots.exchange(server.base_url, **sent)
    snapshots.compare(name, text, record=request.config.getoption("--record"))


def test_snapshot_of_the_openapi_document(server: Trunkline, request: pytest.FixtureRequest) -> None:
    document = http.get(f"{server.base_url}/openapi.json").json()
    text = snapshots.openapi_summary(document)
    snapshots.compare("openapi", text, record=request.config.getoption("--record"))
