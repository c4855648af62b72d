"""Fixtures of the tests with third-party client packages: a server that requires an API key.

The tests run in a separate environment (`make test-clients`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

# Clients must not fetch price lists, send traces, or use keys and addresses from the user's shell.
for name in list(os.environ):
    if name.startswith(("OPENAI_", "ANTHROPIC_", "LITELLM_", "LANGCHAIN_", "LANGSMITH_", "HF_", "OLLAMA_")):
        del os.environ[name]
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "HF_HUB_DISABLE_TELEMETRY": "1"}

import httpx  # noqa: E402
import pytest  # noqa: E402
from clients.given import KEY, LIMITED_KEY  # noqa: E402
from clients.plain import Plain  # noqa: E402
from harness import EMBEDDED, Trunkline, serving  # noqa: E402
from tenants import write_keys  # noqa: E402


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trunkline]:
    """A server on the embedded model that requires `KEY` or `LIMITED_KEY`, and makes embeddings too."""
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    tables = {
        "clients": f'keys = "{KEY}"\n',
        "limited": f'keys = "{LIMITED_KEY}"\nrequests_per_minute = 30\ntokens_per_minute = 100000\n',
    }
    write_keys(keys, tables)
    flags = ("--threads", "1", "--pooling", "mean", "--api-keys", str(keys))
    with serving(*flags, model=EMBEDDED) as running:
        yield running


@pytest.fixture(scope="session")
def plain(server: Trunkline) -> Plain:
    """The server without a client package in between, for comparison."""
    return Plain(server)


@pytest.fixture(scope="session")
def model(server: Trunkline) -> str:
    """The served model's name in the list of models."""
    answer = httpx.get(f"{server.base_url}/v1/models", headers={"authorization": f"Bearer {KEY}"})
    name: str = answer.raise_for_status().json()["data"][0]["id"]
    return name
