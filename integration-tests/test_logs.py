"""No process logs a key, a prompt or an output, even at the most verbose level."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import EMBEDDED, Trunkline

KEY = "sk-marker-key-0123456789"
WRONG_KEY = "sk-marker-key-wrong-0000"
MARKER = "marker-prompt"
# Text that grammars force the model to write.
OUTPUT = "marker-output"
STREAM = {"stream": True, "stream_options": {"include_usage": True}}


def requests() -> list[tuple[str, dict[str, Any], int]]:
    """Returns path, body and expected status of requests that cover every path of text through the server."""
    messages = [{"role": "user", "content": f"Say {MARKER}."}]
    chat: dict[str, Any] = {"messages": messages, "max_tokens": 40, "temperature": 0}
    schema = {
        "type": "object",
        "description": MARKER,
        "properties": {MARKER: {"const": OUTPUT}},
        "required": [MARKER],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "note", "description": MARKER, "parameters": schema}}
    answer = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    chats, completions = "/v1/chat/completions", "/v1/completions"
    return [
        (chats, chat | {"user": MARKER, "stop": [f"{MARKER}-stop"]}, 200),
        (chats, chat | STREAM | {"prompt_cache_key": MARKER, "cache_salt": MARKER}, 200),
        (chats, chat | {"tools": [tool], "tool_choice": "required"}, 200),
        (chats, chat | STREAM | {"tools": [tool], "tool_choice": "required"}, 200),
        (chats, chat | {"response_format": answer}, 200),
        (chats, chat | {"guided_choice": [OUTPUT]}, 200),
        (completions, {"prompt": f"The {MARKER} is", "max_tokens": 4, "echo": True, "logprobs": 1}, 200),
        ("/v1/messages", {"messages": messages, "system": MARKER, "max_tokens": 4}, 200),
        ("/v1/responses", {"input": MARKER, "max_output_tokens": 4, "metadata": {"a": MARKER}}, 200),
        ("/generate", {"inputs": MARKER, "parameters": {"max_new_tokens": 4, "details": True}}, 200),
        ("/tokenize", {"inputs": MARKER}, 200),
        # The messages of these errors quote the request.
        (chats, chat | {"temperature": MARKER}, 400),
        (chats, chat | {"model": MARKER}, 404),
        (chats, {"messages": [{"role": MARKER, "content": "x"}]}, 400),
        (chats, chat | {"guided_regex": f"{MARKER}("}, 400),
        (chats, chat | {"guided_grammar": f'start: "{MARKER}'}, 400),
        (chats, chat | {"guided_json": {"type": MARKER}}, 400),
        (f"/generate?{MARKER}", {"inputs": 5, MARKER: MARKER}, 422),
        (f"/{MARKER}", {"inputs": MARKER}, 404),
    ]


@pytest.mark.parametrize(
    ("form", "given"),
    [
        ((), "file"),
        (("--log-format", "ecs"), "environment"),
        pytest.param((), "environment", marks=pytest.mark.full),
        pytest.param(("--log-format", "json"), "file", marks=pytest.mark.full),
    ],
)
def test_no_process_logs_a_key_a_prompt_or_an_output(tmp_path: Path, form: tuple[str, ...], given: str) -> None:
    keys = tmp_path / "keys.toml"
    keys.touch(mode=0o600)
    keys.write_text(f'[tenants.one]\nkeys = "{KEY}"\n')
    args, env = ((), {"TRUNKLINE_API_KEY": KEY}) if given == "environment" else (("--api-keys", str(keys)), {})
    server = Trunkline("--log-level", "trace", *form, *args, env=env, model=EMBEDDED)
    try:
        server.wait_ready()
        texts = []
        with httpx.Client(base_url=server.base_url, timeout=300) as client:
            for path, body, status in requests():
                answer = client.post(path, json=body, headers={"authorization": f"Bearer {KEY}"})
                assert answer.status_code == status, (path, body, answer.text)
                texts.append(answer.text)
            refused = client.get("/v1/models", headers={"x-api-key": WRONG_KEY})
            assert refused.status_code == 401
        assert sum(OUTPUT in text for text in texts) >= 3, "the model did not write the marker"
        assert any(MARKER in text for text in texts[-8:]), "no error quotes the marker"
        commands = [server.process.args, *server.pids_commands()]
    finally:
        server.stop()
    log = server.log() + "".join(server.banner)
    levels = {(): (" TRACE ", " DEBUG "), ("--log-format", "json"): ('"level":"TRACE"', '"level":"DEBUG"')}.get(
        form, ('"log.level":"trace"', '"log.level":"debug"')
    )
    assert all(level in log for level in levels), f"the log level is not `trace`:\n{log[:2000]}"
    assert "marker" not in str(commands), "a key is in a command line"
    for line in log.splitlines():
        assert "marker" not in line


def test_a_trace_shows_steps_and_not_the_frames_of_libraries() -> None:
    server = Trunkline("--log-level", "trace", "--json-output")
    try:
        server.wait_ready()
        server.complete("Once upon a time", max_tokens=4)
    finally:
        server.stop()
    events = [json.loads(line) for line in server.log().splitlines()]
    planned = {event["step_id"]: event for event in events if event["message"] == "step planned"}
    finished = {event["step_id"]: event for event in events if event["message"] == "step finished"}
    assert planned.keys() >= finished.keys()
    assert len(finished) >= 4, "the steps of four tokens are not traced"
    assert all(finished[step_id]["at_us"] >= planned[step_id]["at_us"] for step_id in finished)
    assert any(event["rows"] == 1 for event in planned.values()), "no step of one token is traced"
    assert not [event for event in events if "frame" in event or "frame" in event["message"]]


def test_each_request_ends_with_a_line() -> None:
    body = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}
    server = Trunkline("--log-format", "ecs")
    try:
        server.wait_ready()
        with httpx.Client(base_url=server.base_url, timeout=60) as client:
            for name in ("first", "again"):
                client.post("/v1/completions", json=body | {"max_tokens": 4}, headers={"x-request-id": name})
            client.get("/v1/models", headers={"x-request-id": "models"})
            client.post("/v1/completions", json=body | {"max_tokens": 0.5}, headers={"x-request-id": "refused"})
            long = body | {"max_tokens": 4000, "stream": True}
            with client.stream("POST", "/v1/completions", json=long, headers={"x-request-id": "left"}) as stream:
                next(stream.iter_lines())
    finally:
        server.stop()
    events = [json.loads(line) for line in server.log().splitlines()]
    assert {(event["ecs.version"], event["service.name"]) for event in events} == {("9.1.0", "trunkline")}
    writers = {(event["log.logger"], event["process.pid"]) for event in events}
    assert sorted(name for name, _ in writers) == ["launcher", "router", "shard"], "each process writes this form"
    assert len({pid for _, pid in writers}) == 3
    ended = {event["http.request.id"]: event for event in events if event["message"] == "request ended"}
    assert ended.keys() == {"first", "again", "left"}, "neither other routes nor refusals end with this line"
    refused = {event["http.request.id"]: event for event in events if event["message"] == "request refused"}
    assert refused.keys() == {"refused"}
    assert (refused["refused"]["trunkline.field"], refused["refused"]["error.code"]) == ("max_tokens", "invalid_type")
    assert refused["refused"]["event.outcome"] == "failure"
    tokens = ("gen_ai.usage.input_tokens", "trunkline.cached_tokens", "gen_ai.usage.output_tokens")
    counts = {name: [event[key] for key in tokens] for name, event in ended.items()}
    assert (counts["first"], counts["again"]) == ([4, 0, 4], [4, 3, 4])
    outcomes = {name: (event["event.outcome"], event["trunkline.outcome"]) for name, event in ended.items()}
    length = ("success", "length")
    assert outcomes == {"first": length, "again": length, "left": ("unknown", "aborted")}
    assert 0 < counts["left"][2] < 4000
    for event in ended.values():
        assert event["log.level"] == "info" and event["trunkline.route"] == "/v1/completions"
        assert event["http.response.status_code"] == 200
        milliseconds = event["event.duration"] / 1e6
        assert event["trunkline.queue_ms"] <= event["trunkline.ttft_ms"] <= milliseconds
