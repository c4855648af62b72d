"""Requests that schemathesis draws from `/openapi.json`: no answer is a 5xx, each is one that the document tells of.

The draws are the same in every run. The server has little room, so that no request runs long.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from clients.given import KEY
from harness import Trunkline, serving
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
HEADERS = {"authorization": f"Bearer {KEY}"}
EXAMPLES = 25
TIMEOUT_S = 30.0
# A stream without an end.
ENDLESS = "/v1/kv/events"


@pytest.fixture(scope="module")
def small() -> Iterator[Trunkline]:
    with serving("--max-total-tokens", "96", "--max-best-of", "2", env={"TRUNKLINE_API_KEY": KEY}) as running:
        yield running


@pytest.fixture(scope="module")
def document(small: Trunkline) -> Any:
    return schemathesis.openapi.from_url(f"{small.base_url}/openapi.json", headers=HEADERS).exclude(path=ENDLESS)


schema = schemathesis.pytest.from_fixture("document")


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_those_of_the_document(case: Any) -> None:
    case.call_and_validate(checks=CHECKS, headers=HEADERS, timeout=TIMEOUT_S)
