"""Structured output at temperature 1: every finished output parses and validates."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import pytest
from formats import CHECKS, checker
from harness import ALL_TIERS, ROOT, Trunkline, http
from streams import WatchedStream

OWN: list[dict[str, Any]] = [
    json.loads(line) for line in (ROOT / "router/grammar/tests/schemas/own.jsonl").read_text().splitlines()
]
REFUSED = [entry for entry in OWN if entry["name"].startswith("refused: ")]
# Schemas written by others, whose licences do not allow including them in this repository.
REAL_SCHEMAS = Path(os.environ.get("TRUNKLINE_SCHEMAS", ROOT / "../shared/schemas/sample.jsonl.gz"))
# Without `--all-schemas`, a run tests only every 36th of the real schemas.
STRIDE = 36
NUM_STREAMS = 16
# Rows of supported keywords in the table of the page on structured output.
KEYWORD_ROWS = ["Types", "Numbers", "Strings", "Objects", "Lists", "Combined", "Conditions"]
REFUSALS = {"unsupported_keyword", "invalid_schema", "schema_too_large", "schema_too_complex"}


def chat(server: Trunkline, content: str, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": content}], "temperature": 1, "max_tokens": 400} | fields
    return http.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=300)


def schema_format(schema: Any, *, strict: bool = True) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": strict, "schema": schema}}


def without(schema: Any, keywords: set[str]) -> Any:
    """Returns a schema without these keywords, and with `anyOf` in place of `oneOf`."""
    if isinstance(schema, list):
        return [without(each, keywords) for each in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {name: without(value, keywords) for name, value in schema.items() if name not in keywords}
    if "oneOf" in keywords & schema.keys():
        rest["allOf"] = [*rest.get("allOf", []), {"anyOf": without(schema["oneOf"], keywords)}]
    return rest


def finished(answer: dict[str, Any]) -> list[str]:
    return [choice["message"]["content"] for choice in answer["choices"] if choice["finish_reason"] == "stop"]


def check(text: str, schema: Any) -> None:
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator(schema, format_checker=checker()).validate(json.loads(text))


# Keywords whose value is a schema, a list of schemas, or an object of named schemas. `items` can be a schema or a list.
ONE_SCHEMA = {"additionalItems", "additionalProperties", "else", "if", "items", "not", "propertyNames", "then"}
LISTS = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
MAPS = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"}


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yields the schema and all its subschemas that are objects, but not values such as those of `enum`."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, value in schema.items():
        inner: list[Any] = []
        if keyword in MAPS:
            inner = list(value.values())
        elif keyword in LISTS and isinstance(value, list):
            inner = value
        elif keyword in ONE_SCHEMA:
            inner = [value]
        for each in inner:
            yield from subschemas(each)


def test_own_schemas_use_every_documented_keyword_and_format() -> None:
    text = (ROOT / "docs/api/structured-output.md").read_text()
    lines = [line.split("|") for line in text[text.index("\n## Structured output") :].splitlines() if line[:2] == "| "]
    cells = {line[1].strip(): set(re.findall(r"`([^`]+)`", line[2])) for line in reversed(lines)}
    used = [each for entry in OWN if entry not in REFUSED for each in subschemas(entry["schema"])]
    keywords = {keyword for each in used for keyword in each}
    assert set().union(*(cells[row] for row in KEYWORD_ROWS)) == keywords - cells["Ignored"]
    formats = {each["format"] for each in used if "format" in each}
    assert cells["Formats"] == formats == set(CHECKS)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", "0000-02-29", "2023-02-29"),
        ("date-time", "2024-02-29T23:59:59.5Z", "2024-02-29 23:59:59Z"),
        ("duration", "P1DT2H", "P"),
        ("email", "a.b@c.de", "a..b@c.de"),
        ("hostname", "a-b.c", "-a.b"),
        ("ipv4", "1.2.3.255", "1.2.3.256"),
        ("ipv6", "1::2", "1::2::3"),
        ("time", "23:59:59+01:30", "23:59:59"),
        ("uri", "http://a/%20", "a b:c"),
        ("uuid", "01234567-89ab-cdef-0123-456789abcdef", "0123456789abcdef0123456789abcdef"),
    ],
)
def test_format_checks_accept_good_and_reject_bad_values(name: str, good: str, bad: str) -> None:
    assert CHECKS[name](good) and not CHECKS[name](bad)


def outcome(server: Trunkline, entry: dict[str, Any], *, strict: bool) -> str:
    """Requests output for one schema and validates it by the keywords that the server promises to obey.

    Returns the error code if the schema is refused, else "finished" or "cut off".
    """
    schema = entry["schema"]
    fields = {"response_format": schema_format(schema, strict=strict), "seed": 3}
    answer = chat(server, "Give me a short example in JSON.", **fields)
    while answer.status_code == 503:
        # A few schemas take long to compile.
        assert answer.json()["error"]["code"] == "grammar_busy", answer.text
        time.sleep(int(answer.headers["retry-after"]))
        answer = chat(server, "Give me a short example in JSON.", **fields)
    if answer.status_code == 400:
        code: str = answer.json()["error"]["code"]
        assert code in REFUSALS, (entry["name"], answer.text)
        return code
    assert answer.status_code == 200, (entry["name"], answer.text)
    relaxed = set(filter(None, answer.headers.get("x-relaxed-keywords", "").split(", ")))
    assert not (strict and relaxed), (entry["name"], relaxed)
    texts = finished(answer.json())
    for text in texts:
        try:
            check(text, without(schema, relaxed))
        except (ValueError, jsonschema.ValidationError) as error:
            raise AssertionError(f"{entry['name']}: {text}") from error
    return "finished" if texts else "cut off"


def outcomes(server: Trunkline, entries: list[dict[str, Any]], *, strict: bool) -> Counter[str]:
    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        found = Counter(pool.map(lambda entry: outcome(server, entry, strict=strict), entries))
    print(dict(found))
    return found


# router/grammar/tests writes several outputs under each of them.
def test_own_schemas_are_refused_with_a_code_or_hold(server: Trunkline) -> None:
    found = outcomes(server, OWN if ALL_TIERS else OWN[::3], strict=True)
    assert found["finished"] >= 0.5 * found.total(), found


@pytest.mark.full
@pytest.mark.parametrize(("strict", "least_accepted"), [(True, 0.93), (False, 0.97)], ids=["strict", "relaxed"])
def test_real_schemas_are_refused_with_a_code_or_hold(
    server: Trunkline, request: pytest.FixtureRequest, strict: bool, least_accepted: float
) -> None:
    assert REAL_SCHEMAS.exists(), f"{REAL_SCHEMAS} does not exist; hint: set TRUNKLINE_SCHEMAS to a file of schemas"
    with gzip.open(REAL_SCHEMAS, "rt") as lines:
        entries = [json.loads(line) for line in lines]
    is_all = request.config.getoption("--all-schemas")
    found = outcomes(server, entries if is_all else entries[::STRIDE], strict=strict)
    assert found["finished"] > 0
    assert found["finished"] + found["cut off"] >= (least_accepted if is_all else 0.5) * found.total(), found


def test_schema_bomb_is_refused_without_pausing_a_stream(server: Trunkline) -> None:
    alternatives: dict[str, Any] = {"type": "string"}
    for depth in range(12):
        alternatives = {"anyOf": [{"type": "array", "items": alternatives, "minItems": depth}] * 2}
    bombs: list[dict[str, Any]] = [
        {"guided_regex": "(((a{1,200}b){1,200}c){1,200}d){1,200}"},
        {"guided_regex": "(.*a.{40}|.*b.{40}){9}c"},
        {"guided_json": {"enum": [f"value {i}" for i in range(5000)]}},
        {"guided_json": {"type": "string", "minLength": 10**9, "pattern": "^(a|aa)+$"}},
        {"guided_json": alternatives},
        {"guided_json": json.loads('{"items":' * 100 + "{}" + "}" * 100)},
    ]
    answers = []
    with WatchedStream(server) as stream:
        for bomb in bombs:
            began = time.monotonic()
            answer = chat(server, "x", max_tokens=4, **bomb)
            took_s = time.monotonic() - began
            pause_s = stream.longest_pause(began, began + took_s)
            print(f"{answer.status_code} after {took_s:.2f} s, the stream paused {pause_s:.3f} s")
            answers.append(answer)
            # If streams had to wait for the compiler, the pause would be as long as the compilation.
            assert pause_s < 0.1 + 0.6 * took_s, f"the stream paused for {pause_s:.2f} s"
    for answer in answers:
        # The parser can handle some of them, and accepts these.
        assert answer.status_code in (200, 400), answer.text
        assert answer.status_code == 200 or answer.json()["error"]["code"] in REFUSALS | {"grammar_failed"}
    assert sum(answer.status_code == 400 for answer in answers) >= 3
