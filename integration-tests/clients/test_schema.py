"""Requests that schemathesis generates from `/openapi.json` get answers that the document describes, and no 5xx.

The requests are the same in every run. The server has a short context, so that no request runs long.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import schemathesis
from clients.given import KEY
from harness import Trunkline, serving, sse_events
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
HEADERS = {"authorization": f"Bearer {KEY}"}
# Generated requests per operation, in addition to the document's own examples.
EXAMPLES = 30 if os.environ.get("TRUNKLINE_TEST_ALL") == "1" else 4
TIMEOUT_S = 30.0
# This stream never ends.
ENDLESS = "/v1/kv/events"
MIN_OPERATIONS = 20


@pytest.fixture(scope="module")
def small() -> Iterator[Trunkline]:
    with serving(
        "--threads", "1", "--max-total-tokens", "96", "--max-best-of", "2", env={"TRUNKLINE_API_KEY": KEY}
    ) as running:
        yield running


def conforms(context: Any, response: Any, case: Any) -> None:
    """Checks the answer, or the data of each event of a stream, against the document's schema."""
    content_type = response.headers.get("content-type", [""])[0].split(";")[0]
    if content_type not in (EVENTS, LINES):
        response_schema_conformance(context, response, case)
        return
    document = case.operation.schema.raw_schema
    post = document["paths"][case.operation.path]["post"]
    described = post["responses"]["200"]["content"][content_type].get("schema")
    lines = response.text.splitlines()
    for event in sse_events(iter(lines)) if content_type == EVENTS else map(json.loads, lines):
        if described and isinstance(event, dict) and "error" not in event:
            jsonschema.validate(event, described | {"components": document["components"]})


def keeps_going(context: Any, response: Any, case: Any) -> None:
    """Checks that the answer is not a 5xx, except for a request that sets too short a timeout."""
    is_late = response.status_code == 504 and "deadline_exceeded" in response.text
    if not (is_late and "timeout" in str(case.body)):
        not_a_server_error(context, response, case)


CHECKS = [keeps_going, status_code_conformance, content_type_conformance, conforms]


def check(operation: Any) -> None:
    """Generates requests of one operation and checks their answers."""

    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def draw(case: Any) -> None:
        case.call_and_validate(checks=CHECKS, headers=HEADERS, timeout=TIMEOUT_S)

    draw()


def test_answers_conform_to_the_openapi_document(small: Trunkline) -> None:
    document = schemathesis.openapi.from_url(f"{small.base_url}/openapi.json", headers=HEADERS)
    operations = [found.ok() for found in document.exclude(path=ENDLESS).get_all_operations()]
    assert len(operations) >= MIN_OPERATIONS
    wrong = []
    for operation in operations:
        try:
            check(operation)
        except FailureGroup as problems:
            wrong.append(f"{operation.label}: {problems.message}")
    assert not wrong, "\n\n".join([*wrong, small.log()])
