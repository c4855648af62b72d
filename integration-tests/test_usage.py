"""The usage of tenants adds up with the metrics, under load and when shards are killed."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness import http, serving, wait_for
from tenants import TABLES, headers, write_keys

ADMIN = "sk-admin-0123456789abcdef"
NUM_REQUESTS = 12
REPLAYED = "trunkline_sequences_replayed_total"


def test_usage_adds_up_with_the_metrics_when_shards_are_killed(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    write_keys(keys, TABLES | {"admin": f'keys = "{ADMIN}"\nadmin = true\n'})
    with serving("--api-keys", str(keys), "--max-step-sequences", "4") as server:
        server.headers = {"authorization": f"Bearer {ADMIN}"}

        def wait_above(metric: str, value: float) -> None:
            wait_for(lambda: server.metrics()[metric] > value, f"{metric} above {value}")

        def complete(index: int) -> int:
            tenant = ("calm", "chats", "flood")[index % 3]
            body = {"prompt": [1000 + index] * 150, "max_tokens": 60, "ignore_eos": True}
            answer = http.post(f"{server.base_url}/v1/completions", json=body, headers=headers(tenant), timeout=120)
            answer.raise_for_status()
            tokens: int = answer.json()["usage"]["completion_tokens"]
            return tokens

        with ThreadPoolExecutor(NUM_REQUESTS) as pool:
            answers = [pool.submit(complete, index) for index in range(NUM_REQUESTS)]
            for num_tokens in (30, 300):
                wait_above("trunkline_output_tokens_total", num_tokens)
                replayed = server.metrics()[REPLAYED]
                os.kill(server.shard_pid(), signal.SIGKILL)
                wait_above(REPLAYED, replayed)
            assert sum(answer.result() for answer in answers) == NUM_REQUESTS * 60
        wait_for(lambda: server.metrics()["trunkline_steps_in_flight"] == 0, "the last step's result")

        rows: list[dict[str, Any]] = http.get(f"{server.base_url}/v1/usage", headers=server.headers).json()["data"]
        now = server.metrics()
        totals = {
            "prompt_tokens": "trunkline_prompt_tokens_total",
            "cached_tokens": "trunkline_prefix_hit_tokens_total",
            "output_tokens": "trunkline_output_tokens_total",
        }
        for field, metric in totals.items():
            assert sum(row[field] for row in rows) == now[metric], field
        for tenant in ("calm", "chats", "flood"):
            mine = [row for row in rows if row["tenant"] == tenant]
            for field in totals:
                assert sum(row[field] for row in mine) == now[f'trunkline_tenant_{field}_total{{tenant="{tenant}"}}']
            assert all(row["kv_byte_seconds"] > 0 for row in mine)
        device_seconds = sum(row["device_seconds"] for row in rows)
        assert device_seconds == pytest.approx(now["trunkline_step_duration_seconds_sum"], rel=1e-3)
