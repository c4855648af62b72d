"""Settings of hypothesis tests: `make test` draws the same cases each time, `make test-all` draws more and new ones."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.tiers import IS_FULL

DRAWN = settings(
    max_examples=500 if IS_FULL else 30,
    derandomize=not IS_FULL,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
