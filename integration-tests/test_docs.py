"""The pages in docs/ agree with the code on routes, fields, metrics, error codes and flags."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import api_docs
import pytest
from api_table import api_pages
from harness import ROOT, TRUNKLINE, Trunkline, http, wait_for

DOCS = ROOT / "docs"
# Routes that describe the others and are not in the OpenAPI document, with their statuses.
UNLISTED_ROUTES = {
    ("GET", "/"): 200,
    ("GET", "/assets/{file}"): 404,
    ("GET", "/favicon.svg"): 200,
    ("GET", "/openapi.json"): 200,
    ("GET", "/docs"): 200,
}
# Metrics that appear with their first sample, which may never come on a healthy server.
LATE_METRICS = {"trunkline_rejections_total"} | {
    f"trunkline_tenant_{name}"
    for name in (
        "kv_blocks",
        "kv_blocks_cached",
        "kv_blocks_pinned",
        "kv_share_blocks",
        "evicted_blocks_total",
        "requests_total",
        "prompt_tokens_total",
        "cached_tokens_total",
        "output_tokens_total",
        "device_seconds_total",
        "kv_byte_seconds_total",
        "rejections_total",
    )
}
# Schemas that cost too much: the first to compile, the second to continue.
PRODUCT = {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {"type": "string"}}} for j in "ab"]} for i in range(24)]}
ENDLESS = {"type": "string", "minLength": 10**9, "pattern": "^(a|aa)+$"}
# The costly part is too far into the output to be found at compile time.
LATE = {
    "type": "object",
    "properties": {"a": {"const": "x" * 600}, "b": ENDLESS},
    "required": ["a", "b"],
    "additionalProperties": False,
}
# Source file with a table of refused fields → the sections of docs/api that list them.
REFUSED = {
    "openai/foreign.rs": ["## `POST /v1/chat/completions`", "## `POST /v1/completions`"],
    "openai/chat.rs": ["## `POST /v1/chat/completions`"],
    "openai/completions.rs": ["## `POST /v1/completions`"],
    "tgi/generate.rs": ["## `POST /generate`"],
    "responses/route.rs": ["## `POST /v1/responses`"],
    "anthropic/messages.rs": ["## `POST /v1/messages`"],
    "ollama/chat.rs": ["## `POST /api/chat`"],
    "ollama/generate.rs": ["## `POST /api/chat`"],
    "ollama/options.rs": ["## `POST /api/chat`"],
    "ollama/models.rs": ["## `POST /api/show`"],
}


def page(name: str) -> str:
    return (DOCS / name).read_text()


def first_cells(text: str) -> list[str]:
    """Returns the first cell of every table row."""
    return [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]


def named(cells: list[str]) -> set[str]:
    """Returns all texts in backticks."""
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def section(text: str, header: str) -> str:
    start = text.index(f"\n{header}")
    end = text.find("\n## ", start + 1)
    return text[start : end if end > 0 else None]


def section_rows(header: str) -> list[str]:
    """Returns the table rows of a section of docs/api."""
    return [line for line in section(api_pages(ROOT), header).splitlines() if line.startswith("|")]


@pytest.fixture(scope="module")
def openapi(server: Trunkline) -> dict[str, Any]:
    document: dict[str, Any] = http.get(f"{server.base_url}/openapi.json").json()
    return document


def test_tables_are_snapshots_of_the_openapi_document(openapi: dict[str, Any], request: pytest.FixtureRequest) -> None:
    for path, (text, current) in api_docs.written(openapi).items():
        if request.config.getoption("--record"):
            path.write_text(current)
        else:
            assert text == current, f"{path.name} is out of date; write its tables again with `make snapshots`"


def test_routes_beside_the_document_are_documented(server: Trunkline) -> None:
    rows = section_rows("## Routes")[-len(UNLISTED_ROUTES) :]
    assert {tuple(re.findall(r"`([^`]+)`", row)[:2]) for row in rows} == set(UNLISTED_ROUTES)
    for (method, path), status in UNLISTED_ROUTES.items():
        assert http.request(method, server.base_url + path).status_code == status, path


@pytest.mark.parametrize("source", REFUSED)
def test_every_refused_field_is_in_its_table(source: str) -> None:
    text = (ROOT / "router/api/src" / source).read_text()
    fields = set(re.findall(r'(?:Refused \{\s*field: |refused\()"(\w+)"', text))
    assert fields, "no refused fields found in the source"
    for header in REFUSED[source]:
        rows = [line for line in section(api_pages(ROOT), header).splitlines() if "| refused |" in line]
        assert not fields - named([row.split("|")[1] for row in rows])


def test_documented_metrics_are_those_of_the_server(server: Trunkline) -> None:
    server.complete("The sea is", max_tokens=2)

    def text_with_ended_sequence() -> str | None:
        text = http.get(f"{server.base_url}/metrics").text
        return text if "\ntrunkline_sequences_ended_total{" in text else None

    # The client can have its last token before the driver counts the end of the sequence.
    text = wait_for(text_with_ended_sequence, "the end of the sequence to be counted")
    served = dict(re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE))
    documented = dict(re.findall(r"^\| `([\w:]+)` \| (\w+) \|", page("metrics.md"), re.MULTILINE))
    assert served.items() <= documented.items()
    assert documented.keys() - served.keys() <= LATE_METRICS


def codes_of(source: str, pattern: str) -> set[str]:
    found = set(re.findall(pattern, (ROOT / source).read_text()))
    assert found, f"no error codes found in {source}"
    return found


def test_documented_error_codes_are_those_of_the_code() -> None:
    codes = (
        codes_of("router/base/src/error.rs", r'=> \(\d+, "([a-z_]+)"\),')
        | codes_of("router/grammar/src/error.rs", r'=> "([a-z_]+)",')
        | codes_of("router/text/src/error.rs", r'=> "([a-z_]+)",')
        | codes_of("server/trunkline_server/errors.py", r'code(?:: ClassVar\[str\])? = "([a-z_]+)"')
        | {
            code.lower()
            for code in codes_of("proto/trunkline/shard/v1/shard.proto", r"SEQUENCE_ERROR_CODE_([A-Z_]+) = [1-9]")
        }
    )
    text = page("errors.md")
    cells = first_cells(section(text, "## Answers of the server")) + first_cells(section(text, "## Errors of a start"))
    assert named(cells) == codes


# Runs alone because a schema's error code depends on how long it takes to compile.
@pytest.mark.alone
def test_documented_statuses_of_error_codes_are_those_of_the_server(server: Trunkline) -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| request \| (\d+) \| (\d*) ?\|", page("errors.md"), re.MULTILINE)
    openai = {code: int(status) for code, status, _ in rows}
    tgi = {code: int(status) for code, _, status in rows if status}
    user = [{"role": "user", "content": "x"}]
    requests: list[tuple[str, bytes | dict[str, Any], dict[str, int]]] = [
        ("/v1/chat/completions", b"{", openai),
        ("/v1/chat/completions", {}, openai),
        ("/v1/chat/completions", {"messages": 1}, openai),
        ("/v1/chat/completions", {"messages": []}, openai),
        ("/v1/chat/completions", {"messages": user, "logits_processors": ["x"]}, openai),
        ("/v1/chat/completions", {"messages": user, "model": "other"}, openai),
        ("/v1/chat/completions", {"messages": user, "max_tokens": 10**9}, openai),
        ("/v1/chat/completions", {"messages": user, "chat_template_kwargs": {"tools": 1}}, openai),
        ("/v1/chat/completions", {"messages": user, "guided_regex": "("}, openai),
        ("/v1/chat/completions", {"messages": user, "guided_json": {"uniqueItems": True}}, openai),
        ("/v1/chat/completions", {"messages": user, "guided_choice": ["x" * 200_000]}, openai),
        ("/v1/chat/completions", {"messages": user, "guided_json": PRODUCT}, openai),
        ("/v1/chat/completions", {"messages": user, "guided_json": LATE}, openai),
        ("/v1/nothing", {}, openai),
        ("/v1/models", {}, openai),
        ("/generate", b"{", tgi),
        ("/generate", {"inputs": 1}, tgi),
        ("/generate", {"inputs": ""}, tgi),
        ("/generate", {"inputs": "x", "parameters": {"num_beams": 2}}, tgi),
        ("/generate", {"inputs": "x", "parameters": {"max_new_tokens": 10**9}}, tgi),
        ("/nothing", {}, tgi),
        ("/info", {}, tgi),
    ]
    seen = set()
    for path, body, statuses in requests:
        sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = http.post(server.base_url + path, timeout=60, **sent)
        error = answer.json()
        code = error["code"] if "code" in error else error["error"]["code"]
        assert answer.status_code == statuses[code], (path, body, code)
        seen.add(code)
    assert len(seen) == 15


def test_every_flag_is_documented_with_variable_and_default() -> None:
    text = subprocess.run([TRUNKLINE, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    # Splits at each option's line; its help extends to the next option.
    options = re.split(r"^ {2,6}(?:-\w, )?--([a-z][a-z-]+).*$", text, flags=re.MULTILINE)[1:]
    flags = dict(zip(options[::2], options[1::2], strict=True))
    rows = {row.split("`")[1]: row for row in page("operations.md").splitlines() if row.startswith("| `--")}
    assert set(rows) == {f"--{flag}" for flag in flags}
    for flag, described in flags.items():
        row = rows[f"--{flag}"]
        # A default value has its own line after the variable's. A default in words is part of the help's sentence.
        match = re.search(r"^ +\[env: (\w+)\](?:\n +\[default: (.+)\])?$", described, re.MULTILINE)
        assert flag == "help" or match, f"no variable found in the help of --{flag}"
        for value in match.groups() if match else ():
            assert value is None or f"`{value}`" in row, f"{value} of --{flag}"


@pytest.mark.parametrize(
    ("constant", "rows"),
    [
        ("KEYWORDS", ["Types", "Numbers", "Strings", "Objects", "Lists", "Combined"]),
        ("FORMATS", ["Formats"]),
        ("CONDITIONAL_KEYWORDS", ["Conditions"]),
        ("REFUSED_KEYWORDS", ["Refused"]),
        ("IGNORED_KEYWORDS", ["Ignored"]),
    ],
)
def test_documented_schema_keywords_are_those_of_the_code(constant: str, rows: list[str]) -> None:
    (source,) = (ROOT / "router/grammar/src").rglob("keywords.rs")
    block = re.search(rf"pub const {constant}: [^=]*=\s*\[(.*?)\];", source.read_text(), re.DOTALL)
    assert block, f"{constant} not found in the source"
    cells = {row.split("|")[1].strip(): row.split("|")[2] for row in section_rows("## Structured output")}
    assert named([cells[row] for row in rows]) == set(re.findall(r'"([^"]+)"', block.group(1)))


def test_documented_tool_formats_are_those_of_the_table() -> None:
    table = (ROOT / "settings/src/tool_formats.rs").read_text()
    rows = []
    for names, models in re.findall(r'^ +\w+ \w+ \w+ = ([^;]+), of "([^"]+)";$', table, re.MULTILINE):
        name, *aliases = (f"`{name}`" for name in re.findall(r'"([^"]+)"', names))
        rows.append([f"{name} ({', '.join(aliases)})" if aliases else name, models])
    _header, _line, *documented = section_rows("### Tools")
    assert rows == [[cell.strip() for cell in row.split("|")[1:3]] for row in documented]


def test_every_decision_is_in_the_index() -> None:
    pages = {path.name for path in (DOCS / "decisions").glob("[0-9]*.md")}
    assert pages == set(re.findall(r"\]\((\d{4}-[^)]+)\)", page("decisions/README.md")))
