"""Exact snapshots of whole HTTP exchanges. Filters replace ids, times and properties of the machine."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

from harness import http

FOLDER = Path(__file__).parent / "snapshots"
KEPT_HEADERS = ("content-type", "retry-after")
FILTERS = [
    (re.compile(r'"id": "(chatcmpl|cmpl)-[^"]+"'), r'"id": "\1-<id>"'),
    (re.compile(r'"created": \d+'), '"created": "<time>"'),
    (re.compile(r'"system_fingerprint": "[^"]+"'), '"system_fingerprint": "<fingerprint>"'),
    # These depend on the machine's processor, cores and memory.
    (re.compile(r'"validation_workers": \d+'), '"validation_workers": "<cores>"'),
    (re.compile(r'"model_device_type": "[^"]+"'), '"model_device_type": "<device>"'),
    (re.compile(r'"max_batch_total_tokens": \d+'), '"max_batch_total_tokens": "<pool>"'),
    (re.compile(r'"(max_concurrent_requests|max_client_batch_size)": \d+'), r'"\1": "<by memory>"'),
    (re.compile(r'"request_id": "[^"]+"'), '"request_id": "<id>"'),
]


def exchange(base_url: str, method: str, path: str, body: Any = None) -> str:
    """Sends one request and returns it and its whole response as filtered, readable JSON."""
    answer = http.request(method, base_url + path, json=body, timeout=120)
    content_type = answer.headers.get("content-type", "")
    parsed: Any
    if content_type.startswith("text/event-stream"):
        parsed = [_parse(line) for line in answer.text.splitlines() if line and not line.startswith(":")]
    elif content_type.startswith("application/json"):
        parsed = answer.json()
    else:
        parsed = answer.text
    record = {
        "request": {"method": method, "path": path, "body": shortened(body)},
        "response": {
            "status": answer.status_code,
            "headers": {name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers},
            "body": parsed,
        },
    }
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    for pattern, replacement in FILTERS:
        text = pattern.sub(replacement, text)
    return text


def _parse(line: str) -> Any:
    data = line.removeprefix("data:").strip()
    return {"data": json.loads(data)} if line.startswith("data:") and data.startswith("{") else line


def shortened(body: Any) -> Any:
    """Returns the body with each long list abbreviated, as in `["9000 times", 5]`."""
    if isinstance(body, dict):
        return {name: shortened(value) for name, value in body.items()}
    if isinstance(body, list) and len(body) > 100:
        return [each for value, run in itertools.groupby(body) for each in (f"{len(list(run))} times", value)]
    return body


def request_of(name: str) -> dict[str, Any]:
    """Returns the request of a snapshot, with its abbreviated lists restored."""
    request: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())["request"]
    for field, value in (request["body"] or {}).items():
        if isinstance(value, list) and value and isinstance(value[0], str) and value[0].endswith(" times"):
            runs = zip(value[::2], value[1::2], strict=True)
            request["body"][field] = [each for count, each in runs for _ in range(int(count.split()[0]))]
    return request


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def openapi_summary(document: dict[str, Any]) -> str:
    """Summarises an OpenAPI document in one line for each operation and schema, with digests of the details.

    `!` marks the required properties of a schema.
    """
    operations, schemas = {}, {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            parts = [body.get("$ref", "").rpartition("/")[2], *operation["responses"], digest(operation)]
            operations[f"{method.upper()} {path}"] = " ".join(filter(None, parts))
    for name, schema in document["components"]["schemas"].items():
        required = schema.get("required", ())
        names = [f"{each}!" if each in required else each for each in schema.get("properties", {})]
        schemas[name] = " ".join([*names, digest(schema)])
    whole = {"document": digest(document), "operations": operations, "schemas": schemas}
    return json.dumps(whole, indent=1) + "\n"


def compare(name: str, text: str, *, record: bool) -> None:
    """Compares the text with the recorded snapshot, or records it."""
    path = FOLDER / f"{name}.json"
    if record:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    assert path.exists(), f"no snapshot {path.name}; record with `make snapshots`"
    expected = path.read_text()
    if text != expected:
        diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), "recorded", "received", lineterm="", n=4)
        raise AssertionError(f"{name} differs (record again with `make snapshots`):\n" + "\n".join(diff))
