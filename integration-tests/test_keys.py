"""Reloading of the API key file."""

from __future__ import annotations

import os
import signal

import pytest
from harness import http, wait_for
from tenants import TABLES, Tenants, headers, write_keys

# Shares its server with other tests of tenants, which run alone.
pytestmark = pytest.mark.alone


def status_for(tenants: Tenants, tenant: str) -> int:
    return http.get(f"{tenants.server.base_url}/v1/models", headers=headers(tenant)).status_code


def test_sighup_makes_the_router_reload_its_key_file(tenants: Tenants) -> None:
    server = tenants.server
    router = server.router_pid()
    assert (status_for(tenants, "late"), status_for(tenants, "calm")) == (401, 200)
    write_keys(tenants.path, TABLES | {"late": 'keys = "sk-late-0123456789abcdef"\n'})
    assert status_for(tenants, "late") == 401, "the file was reloaded before SIGHUP"
    os.kill(router, signal.SIGHUP)
    wait_for(lambda: status_for(tenants, "late") == 200, "the new key to be accepted")
    assert status_for(tenants, "calm") == 200

    # A key that was removed from the file is refused.
    write_keys(tenants.path)
    os.kill(router, signal.SIGHUP)
    wait_for(lambda: status_for(tenants, "late") == 401, "the removed key to be refused")

    # An invalid file changes nothing.
    tenants.path.write_text("[tenants.calm\n")
    os.kill(router, signal.SIGHUP)
    wait_for(lambda: "cannot reload the API keys" in server.log(), "a line in the log")
    assert (status_for(tenants, "calm"), status_for(tenants, "late")) == (200, 401)
    write_keys(tenants.path)
    assert server.router_pid() == router, "the router was restarted"
