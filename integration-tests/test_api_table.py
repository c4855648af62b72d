"""Each row of docs/api.md's tables of fields is sent to a server, on each route that takes the field."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from api_samples import BESIDE, KEPT_RESPONSE, PROMPT, SAMPLES, USER
from api_table import Row, neutral_values, parse_rows, read_rows
from harness import ROOT, Trunkline, serving

ROWS = read_rows((ROOT / "docs/api.md").read_text())
CHAT = {"messages": USER, "max_tokens": 2, "temperature": 0}
COMPLETION = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0}
GENERATE = {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}}
# Requests under way at once: they share steps, and are fewer than the server's limit even where each has two outputs.
NUM_SENDERS = 16
# No field takes a list of a list of an empty list.
WRONG: list[Any] = [[[]]]
# A value of each type: a field is refused whatever it is, but for its neutral values.
OF_EACH_TYPE: list[Any] = [True, 2, "x", ["x"], {"x": 1}]
# Their largest values ask for so many outputs; those just beyond are refused all the same.
COSTLY = {"n", "best_of"}
# Rows whose range counts elements.
LISTS = {"messages", "instances"}
# Fields that a route refuses though others of its table take them: route → field → its values that are let through.
EXCEPT: dict[str, dict[str, list[Any]]] = {
    "/generate_stream": {"best_of": [1], "decoder_input_details": []},
    "/vertex": {
        "n": [1],
        "stream": [False],
        "logprobs": [],
        "prompt_logprobs": [],
        "tools": [],
        "best_of": [1],
        "details": [],
        "decoder_input_details": [],
        "top_n_tokens": [0],
    },
}


@dataclass(frozen=True)
class Place:
    """A route that takes the fields of a table. `holder` is where they stand in its body, `text` what it answers."""

    table: str
    route: str
    body: str
    holder: str = ""
    status: int = 400
    text: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return f"{self.table}-{self.route}"

    @property
    def is_first(self) -> bool:
        """Whether no other route before takes the fields of this table."""
        return next(place for place in PLACES if place.table == self.table) is self


def in_instance(body: dict[str, Any]) -> str:
    return json.dumps({"instances": [body]})


CHAT_TEXT = ("choices", 0, "message", "content")
PLACES = [
    Place("chat", "/v1/chat/completions", json.dumps(CHAT), text=CHAT_TEXT),
    Place("chat", "/invocations", json.dumps(CHAT), text=CHAT_TEXT),
    Place("chat", "/chat_tokenize", json.dumps(CHAT), status=422, text=("templated_text",)),
    Place("chat", "/vertex", in_instance(CHAT), "instances[]", 422, ("predictions", 0)),
    Place("message", "/v1/chat/completions", json.dumps(CHAT), "messages[]"),
    Place("completion", "/v1/completions", json.dumps(COMPLETION), text=("choices", 0, "text")),
    Place("completion", "/invocations", json.dumps(COMPLETION), text=("choices", 0, "text")),
    Place(
        "response",
        "/v1/responses",
        json.dumps({"input": PROMPT, "max_output_tokens": 2, "temperature": 0}),
        text=("output", 0, "content", 0, "text"),
    ),
    Place("messages", "/v1/messages", json.dumps(CHAT), text=("content", 0, "text")),
    Place("count_tokens", "/v1/messages/count_tokens", json.dumps({"messages": USER}), text=("input_tokens",)),
    *(Place("generate", route, json.dumps(GENERATE), status=422) for route in ("/generate", "/generate_stream", "/")),
    Place("generate", "/invocations", json.dumps(GENERATE), status=422),
    *(
        Place("parameters", route, json.dumps(GENERATE), "parameters", 422)
        for route in ("/generate", "/generate_stream", "/", "/invocations")
    ),
    Place("parameters", "/vertex", in_instance(GENERATE), "instances[].parameters", 422),
    Place("tokenize", "/tokenize", json.dumps({"inputs": PROMPT}), status=422),
    Place("vertex", "/vertex", in_instance(GENERATE), status=422),
    Place("pin", "/v1/kv/tree/{id}/pin", "{}"),
]
# Table → schema of the OpenAPI document.
SCHEMAS = {
    "chat": "ChatCompletionRequest",
    "message": "ChatMessage",
    "completion": "CompletionRequest",
    "response": "ResponsesRequest",
    "messages": "MessagesRequest",
    "count_tokens": "CountTokensRequest",
    "generate": "GenerateRequest",
    "parameters": "GenerateParameters",
    "tokenize": "TokenizeRequest",
    "vertex": "VertexRequest",
    "pin": "PinRequest",
}


@dataclass(frozen=True)
class Probe:
    """A value of a row's field (None where it is left out), as JSON, and what is expected of the answer.

    `answered`: 200, no error in it. `same`: besides, the text is that of a request without the field. `unsupported`: an
    error of the code `unsupported_field` that names it. `wrong`: an error of another code that names it.
    """

    place: Place
    row: Row
    value: str | None
    expected: str

    def __str__(self) -> str:
        return f"{'left out' if self.value is None else self.value}, expected to be {self.expected}"


def holder_of(body: Any, path: str) -> Any:
    """The object at a path like `instances[].parameters`: of lists the first element."""
    for name in filter(None, path.split(".")):
        body = body[name.removesuffix("[]")]
        body = body[0] if name.endswith("[]") else body
    return body


def body_of(probe: Probe) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(probe.place.body)
    parent, _, name = probe.row.field.rpartition(".")
    beside = copy.deepcopy(BESIDE.get((probe.place.table, probe.row.field), {}))
    holder_of(body, probe.place.holder).update(beside)
    holder = holder_of(holder_of(body, probe.place.holder), parent)
    holder.pop(name, None)
    if probe.value is not None:
        holder[name] = json.loads(probe.value)
    return body


def supported_probes(place: Place, row: Row) -> Iterator[Probe]:
    beside, excepted = BESIDE.get((row.table, row.field), {}), EXCEPT.get(place.route, {})

    def probe(value: Any, expected: str) -> Probe:
        sent = {row.field: value} | beside
        if any(name in excepted and given not in excepted[name] for name, given in sent.items()):
            expected = "unsupported" if place.route == "/vertex" else "wrong"
        return Probe(place, row, json.dumps(value), expected)

    inside, outside = row.ends() if row.field not in LISTS else ([], [])
    inside = [value for value in inside if row.field not in COSTLY or value <= 2]
    samples = SAMPLES[row.table].get(row.field, [])
    yield from (probe(value, "answered") for value in ([*samples, *inside] if place.is_first else samples[-1:]))
    # Of what the template is not told this route looks at the type alone, and not at all at that of some.
    if place.route != "/chat_tokenize":
        yield from (probe(value, "wrong") for value in (outside if place.is_first else outside[-1:]))
        # What stands beside it would be refused there.
        if not beside.keys() & excepted.keys():
            yield Probe(place, row, json.dumps(WRONG), "wrong")
    if place.is_first and re.match(r"required(,|:|$)", row.allowed):
        yield Probe(place, row, None, "wrong")


def probes() -> Iterator[Probe]:
    """Every value at the first place of a table, and at the others what shows that the field means the same there."""
    for place in PLACES:
        yield Probe(place, Row(place.table, "no_table_names_it", "ignored", "", ()), '"x"', "answered")
        for row in (row for row in ROWS if row.table == place.table):
            if row.status == "supported":
                yield from supported_probes(place, row)
            elif row.status == "ignored":
                yield from (Probe(place, row, json.dumps(value), "same") for value in ["x", WRONG])
            else:
                neutral = ["null", *row.neutral]
                others = [text for text in map(json.dumps, OF_EACH_TYPE) if text not in neutral]
                end = None if place.is_first else 1
                yield from (Probe(place, row, value, "answered") for value in neutral[:end])
                yield from (Probe(place, row, value, "unsupported") for value in others[:end])


PROBES = list(dict.fromkeys(probes()))


class Walk:
    """One server, asked everything; what it answered to each probe and to each place's body without any."""

    def __init__(self, server: Trunkline) -> None:
        with httpx.Client(base_url=server.base_url, timeout=300) as client:
            self.openapi: dict[str, Any] = client.get("/openapi.json").json()
            self.kept = client.post("/v1/responses", json={"input": PROMPT, "max_output_tokens": 1}).json()["id"]
            # A pin is of whole blocks; nobody else's prompt continues this one.
            keyed = COMPLETION | {"prompt": f"{PROMPT} " * 40, "cache_salt": "pin", "prompt_cache_key": "pin"}
            client.post("/v1/completions", json=keyed).raise_for_status()
            nodes = client.get("/v1/kv/tree", params={"prompt_cache_key": "pin"}).json()["data"]
            self.node: str = nodes[0]["id"]
            self.client = client
            with ThreadPoolExecutor(NUM_SENDERS) as pool:
                self.plain = dict(zip(PLACES, pool.map(self.send_plain, PLACES), strict=True))
                self.answers = dict(zip(PROBES, pool.map(self.send, PROBES), strict=True))

    def send_plain(self, place: Place) -> httpx.Response:
        return self.client.post(place.route.format(id=self.node), json=json.loads(place.body))

    def send(self, probe: Probe) -> httpx.Response:
        body = json.dumps(body_of(probe)).replace(KEPT_RESPONSE, self.kept)
        route = probe.place.route.format(id=self.node)
        return self.client.post(route, content=body, headers={"content-type": "application/json"})


@pytest.fixture(scope="module")
def walk() -> Iterator[Walk]:
    # Its own server: what is pinned here would stay in the cache of others.
    with serving() as server:
        yield Walk(server)


def error_of(answer: httpx.Response) -> tuple[str, str]:
    """Code and message of an error in any dialect."""
    body = answer.json()
    error = body if isinstance(body["error"], str) else body["error"]
    return error["code"], body["error"] if error is body else error["message"]


def text_of(answer: httpx.Response, path: tuple[str | int, ...]) -> Any:
    assert path, "where the text stands is not told"
    found: Any = answer.json()
    for key in path:
        found = found[key]
    return found


def problem(walk: Walk, probe: Probe) -> str | None:
    """What an answer has that was not expected."""
    answer = walk.answers[probe]
    if probe.expected in ("answered", "same"):
        if answer.status_code != 200 or re.search(r'^event: error$|^data: ?\{"error"', answer.text, re.MULTILINE):
            return f"{answer.status_code} {answer.text}"
        path = probe.place.text
        if probe.expected == "same" and text_of(answer, path) != text_of(walk.plain[probe.place], path):
            return f"another text than without it: {answer.text}"
        return None
    if answer.status_code != probe.place.status:
        return f"{answer.status_code} in place of {probe.place.status}: {answer.text}"
    code, message = error_of(answer)
    if (code == "unsupported_field") != (probe.expected == "unsupported"):
        return f"the code is {code}: {message}"
    # Or what has to stand beside it, where the route refuses that.
    beside = BESIDE.get((probe.row.table, probe.row.field), {}).keys() & EXCEPT.get(probe.place.route, {}).keys()
    names = {probe.row.field.rpartition(".")[2], *beside}
    is_named = any(re.search(rf"`[^`]*\b{name}\b[^`]*`", message) for name in names)
    return None if is_named else f"does not name the field: {message}"


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_fields_are_what_their_rows_say(walk: Walk, place: Place) -> None:
    asked = [probe for probe in PROBES if probe.place is place]
    assert {probe.row.field for probe in asked} > {row.field for row in ROWS if row.table == place.table}
    problems = {f"`{probe.row.field}` {probe}": problem(walk, probe) for probe in asked}
    assert {name: told for name, told in problems.items() if told} == {}


def test_every_supported_field_has_a_sample() -> None:
    supported = {(row.table, row.field) for row in ROWS if row.status == "supported"}
    sampled = {(table, field) for table, samples in SAMPLES.items() for field, values in samples.items() if values}
    assert supported - sampled == set(), "supported fields without a sample"
    assert {(table, field) for table, field in sampled - supported if table in ("message", "vertex", "pin")} == set()
    assert set(BESIDE) <= supported


def properties(openapi: dict[str, Any], schema: str, path: str = "") -> dict[str, Any]:
    """The properties of the object at a path within a schema; none where it is described as no object."""
    schemas = openapi["components"]["schemas"]

    def forms(described: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What a schema may be: itself, or one of those that it names."""
        if "$ref" in described:
            yield from forms(schemas[described["$ref"].rpartition("/")[2]])
        elif "oneOf" in described:
            yield from itertools.chain.from_iterable(map(forms, described["oneOf"]))
        else:
            yield described

    found = [schemas[schema]]
    for name in filter(None, path.split(".")):
        children = [form["properties"].get(name.removesuffix("[]"), {}) for form in found if "properties" in form]
        found = [form for child in children for form in forms(child)]
        if name.endswith("[]"):
            found = [form for listing in found for form in forms(listing.get("items", {}))]
    return {name: described for form in found for name, described in form.get("properties", {}).items()}


@pytest.mark.parametrize("table", SCHEMAS)
def test_rows_and_properties_of_a_request_are_the_same(walk: Walk, table: str) -> None:
    supported = {row.field for row in ROWS if row.table == table and row.status == "supported"}
    described = set(properties(walk.openapi, SCHEMAS[table]))
    assert described and described - supported == set(), "properties without a row that says they are supported"
    missing = set()
    for row_field in supported:
        parent, _, name = row_field.rpartition(".")
        if name not in properties(walk.openapi, SCHEMAS[table], parent):
            missing.add(row_field)
    assert not missing, "rows that the document has no property for"


def test_every_route_that_takes_a_body_is_walked(walk: Walk) -> None:
    taking = {
        route
        for route, methods in walk.openapi["paths"].items()
        for method in methods.values()
        if "requestBody" in method
    }
    assert taking == {place.route for place in PLACES}
    assert {place.table for place in PLACES} == {row.table for row in ROWS} == set(SCHEMAS)


@pytest.mark.parametrize(
    "line",
    [
        "| `n` | supported | 1 to 2 |",
        "| n | supported | 1 to 2 | |",
        "| `n` and more | supported | | |",
        "| `n` | perhaps | | |",
        "| `n` | ignored | neutral: 1 | |",
        "| `n` | refused | 1 | |",
        "| `n` | refused | neutral: one | |",
        "| `n` | supported | as above | |",
        "| `m` | refused | neutral values as above | |",
    ],
)
def test_a_row_that_cannot_be_read_is_an_error(line: str) -> None:
    known = {("m", "supported"): Row("chat", "m", "supported", "", ())}
    with pytest.raises(ValueError):
        parse_rows("chat", line, known)


def test_rows_are_read() -> None:
    (first,) = parse_rows("chat", "| `n` | supported | above 0, to 1.5; default 1 | `x` |", {})
    assert first.ends() == ([1.5], [0, 1.55])
    both = parse_rows("pin", "| `n`, `a[].b` | ignored | | |", {})
    assert [(row.table, row.field, row.status) for row in both] == [
        ("pin", "n", "ignored"),
        ("pin", "a[].b", "ignored"),
    ]
    (again,) = parse_rows("pin", "| `n` | supported | as above | |", {("n", "supported"): first})
    assert (again.table, again.allowed) == ("pin", first.allowed)
    assert neutral_values('neutral: `["a"]`, 1, `""`') == ('["a"]', "1", '""')
    with pytest.raises(ValueError, match="no table of fields"):
        read_rows("")
