"""Sends the field of each row in docs/api to a server, on every route that accepts the field."""

from __future__ import annotations

import copy
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import pytest
from api_places import PLACES, Place, holder_of
from api_samples import BESIDE, KEPT_RESPONSE, PROMPT, SAMPLES
from api_table import Row, api_pages, neutral_values, parse_rows, read_rows
from harness import ROOT, Trunkline, http, serving, write_infilling
from vector_models import write_bert

ROWS = read_rows(api_pages(ROOT))
# Concurrent requests. They share steps and stay below the server's limit even if each has two outputs.
NUM_SENDERS = 16
# The server closes a connection that is not used for 10 s after an answer. A request of a thread can take as long.
MAX_IDLE_S = 3.0
# A value that no field accepts.
WRONG: list[Any] = [[[]]]
# A value of each type. A refused field accepts none of them except its neutral values.
OF_EACH_TYPE: list[Any] = [True, 2, "x", ["x"], {"x": 1}]
# Fields whose largest values would generate too many outputs for a test. Values just beyond the range are still sent.
COSTLY = {"n", "best_of"}
# Rows whose least value is allowed only with other fields, or too small for the prompt.
NOT_ALONE = {("completion", "max_tokens"), ("ollama_options", "num_ctx")}
# Fields that a route refuses although other routes of its table accept them: route → field → accepted values.
EXCEPT: dict[str, dict[str, list[Any]]] = {
    "/generate_stream": {"best_of": [1], "decoder_input_details": []},
    "/v1/rerank": {"texts": []},
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


# Routes whose few fields the text describes.
IN_WORDS = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/history/{id}", "/api/delete", "/api/pull"}


@dataclass(frozen=True)
class Probe:
    """A value of a row's field as JSON, or None to omit the field, and the expected kind of answer.

    - `answered`: status 200 without an error.
    - `same`: like `answered`, and with the text of a request without the field.
    - `unsupported`: an error with the code `unsupported_field` that names the field.
    - `wrong`: an error with another code that names the field.
    """

    place: Place
    row: Row
    value: str | None
    expected: str

    def __str__(self) -> str:
        return f"{'left out' if self.value is None else self.value}, expected to be {self.expected}"


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


def ends(row: Row) -> tuple[list[float], list[float]]:
    """Returns the ends of a row's range that a test can afford, and the nearest values outside it."""
    inside, outside = row.ends()
    inside = [] if (row.table, row.field) in NOT_ALONE else inside
    return [value for value in inside if row.field not in COSTLY or value <= 2], outside


def supported_probes(place: Place, row: Row) -> Iterator[Probe]:
    beside, excepted = BESIDE.get((row.table, row.field), {}), EXCEPT.get(place.route, {})

    def probe(value: Any, expected: str) -> Probe:
        sent = {row.field: value} | beside
        if any(name in excepted and given not in excepted[name] for name, given in sent.items()):
            expected = "unsupported" if place.route == "/vertex" else "wrong"
        return Probe(place, row, json.dumps(value), expected)

    inside, outside = ends(row)
    samples = SAMPLES[row.table].get(row.field, [])
    values = [*samples, *inside] if place.is_first else (samples or inside)[-1:]
    yield from (probe(value, "answered") for value in values)
    # This route renders only the template. It checks no ranges of other fields, and not even all their types.
    if place.route != "/chat_tokenize":
        yield from (probe(value, "wrong") for value in (outside if place.is_first else outside[-1:]))
        # Skipped if the route refuses a field that this one requires.
        if not beside.keys() & excepted.keys():
            yield Probe(place, row, json.dumps(WRONG), "wrong")
    if place.is_first and re.match(r"required(,|:|$)", row.allowed):
        yield Probe(place, row, None, "wrong")


def probes() -> Iterator[Probe]:
    """Yields every value for the first place of a table, and for the others one value of each kind."""
    for place in PLACES:
        unknown = Row(place.table, "no_table_names_it", "ignored", "", ())
        yield Probe(place, unknown, '"x"', "unsupported" if place.table == "ollama_options" else "answered")
        for row in (row for row in ROWS if row.table == place.table):
            if row.status == "supported":
                yield from supported_probes(place, row)
            elif row.status == "ignored":
                yield from (
                    Probe(place, row, json.dumps(value), "same") for value in ["x", WRONG][: 2 if place.is_first else 1]
                )
            else:
                neutral = ["null", *row.neutral]
                refused = [text for text in map(json.dumps, OF_EACH_TYPE) if text not in neutral]
                end = None if place.is_first else 1
                yield from (Probe(place, row, value, "answered") for value in neutral[:end])
                yield from (Probe(place, row, value, "unsupported") for value in refused[:end])


PROBES = list(dict.fromkeys(probes()))


@dataclass(frozen=True)
class Answer:
    status_code: int
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class Walk:
    """Sends all probes to one server. Holds the answer to each probe, and to the unchanged body of each place.

    The threads keep their connections, because thousands of requests through `httpx` would take half a minute.
    """

    def __init__(self, server: Trunkline, classifier: Trunkline) -> None:
        self._ports = {False: server.port, True: classifier.port}
        self._local = threading.local()
        self._connections: list[HTTPConnection] = []
        self.openapi: dict[str, Any] = http.get(f"{server.base_url}/openapi.json").json()
        kept = http.post(f"{server.base_url}/v1/responses", json={"input": PROMPT, "max_output_tokens": 1})
        self._kept: str = kept.json()["id"]
        # Only whole blocks can be pinned. No other request has this prompt's beginning.
        server.complete(f"{PROMPT} " * 40, cache_salt="pin", prompt_cache_key="pin")
        nodes = http.get(f"{server.base_url}/v1/kv/tree", params={"prompt_cache_key": "pin"}).json()["data"]
        self._node: str = nodes[0]["id"]
        with ThreadPoolExecutor(NUM_SENDERS) as pool:
            plain = pool.map(lambda place: self._post(place, place.body), PLACES)
            self.plain = dict(zip(PLACES, plain, strict=True))
            answers = pool.map(lambda probe: self._post(probe.place, json.dumps(body_of(probe))), PROBES)
            self.answers = dict(zip(PROBES, answers, strict=True))
        for connection in self._connections:
            connection.close()

    def _post(self, place: Place, body: str) -> Answer:
        connection = self._connection(place.classifies)
        content = body.replace(KEPT_RESPONSE, self._kept).encode()
        connection.request("POST", place.route.format(id=self._node), content, {"content-type": "application/json"})
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode())

    def _connection(self, to_classifier: bool) -> HTTPConnection:
        """Returns this thread's connection to a server."""
        name = f"connection_{to_classifier}"
        if not hasattr(self._local, name):
            opened = HTTPConnection("127.0.0.1", self._ports[to_classifier], timeout=300)
            self._connections.append(opened)
            setattr(self._local, name, opened)
        connection: HTTPConnection = getattr(self._local, name)
        now = time.monotonic()
        if now - getattr(self._local, f"used_{to_classifier}", now) > MAX_IDLE_S:
            # The next request opens it again.
            connection.close()
        setattr(self._local, f"used_{to_classifier}", now)
        return connection


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    classes = write_bert(tmp_path_factory.mktemp("classes"), "BertForSequenceClassification", num_labels=2)
    infilling = tmp_path_factory.mktemp("infilling") / "infilling.gguf"
    write_infilling(infilling)
    # Separate servers, because pinned blocks would stay in the cache of other tests.
    with serving("--pooling", "mean", model=str(infilling)) as server, serving(model=classes) as classifier:
        yield Walk(server, classifier)


def error_of(answer: Answer) -> tuple[str, str]:
    """Returns code and message of an error in any dialect."""
    body = answer.json()
    error = body if isinstance(body["error"], str) else body["error"]
    return error["code"], body["error"] if error is body else error["message"]


def text_of(answer: Answer, path: tuple[str | int, ...]) -> Any:
    assert path, "the place has no path of the text"
    found: Any = answer.json()
    for key in path:
        found = found[key]
    return found


def problem(walk: Walk, probe: Probe) -> str | None:
    """Describes how an answer differs from the expected kind, or returns None."""
    answer = walk.answers[probe]
    if probe.expected in ("answered", "same"):
        if answer.status_code != 200 or re.search(r'^event: error$|^data: ?\{"error"', answer.text, re.MULTILINE):
            return f"{answer.status_code} {answer.text}"
        path = probe.place.text
        if probe.expected == "same" and text_of(answer, path) != text_of(walk.plain[probe.place], path):
            return f"the text differs from that without the field: {answer.text}"
        return None
    if answer.status_code != probe.place.status:
        return f"status {answer.status_code} instead of {probe.place.status}: {answer.text}"
    code, message = error_of(answer)
    if (code == "unsupported_field") != (probe.expected == "unsupported"):
        return f"the code is {code}: {message}"
    # The message may also name a required other field, if the route refuses that one.
    beside = BESIDE.get((probe.row.table, probe.row.field), {}).keys() & EXCEPT.get(probe.place.route, {}).keys()
    names = {probe.row.field.rpartition(".")[2], *beside}
    is_named = any(re.search(rf"`[^`]*\b{name}\b[^`]*`", message) for name in names)
    return None if is_named else f"does not name the field: {message}"


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_fields_behave_as_documented(walk: Walk, place: Place) -> None:
    sent = [probe for probe in PROBES if probe.place is place]
    assert {probe.row.field for probe in sent} > {row.field for row in ROWS if row.table == place.table}
    problems = {f"`{probe.row.field}` {probe}": problem(walk, probe) for probe in sent}
    assert {name: text for name, text in problems.items() if text} == {}


def test_every_supported_field_has_a_sample_or_a_range() -> None:
    supported = {(row.table, row.field): row for row in ROWS if row.status == "supported"}
    sampled = {(table, field) for table, samples in SAMPLES.items() for field, values in samples.items() if values}
    missing = {place for place, row in supported.items() if place not in sampled and not ends(row)[0]}
    assert missing == set(), "supported fields without a sample"
    assert {
        (table, field) for table, field in sampled - supported.keys() if table in ("message", "vertex", "pin")
    } == set()
    assert BESIDE.keys() <= supported.keys()


def test_every_route_with_a_request_body_has_a_place(walk: Walk) -> None:
    routes = {
        route
        for route, methods in walk.openapi["paths"].items()
        for method in methods.values()
        if "requestBody" in method
    }
    assert routes - IN_WORDS == {place.route for place in PLACES}
    assert {place.table for place in PLACES} == {row.table for row in ROWS}


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
def test_a_malformed_row_is_an_error(line: str) -> None:
    known = {("m", "supported"): Row("chat", "m", "supported", "", ())}
    with pytest.raises(ValueError):
        parse_rows("chat", line, known)


def test_rows_are_parsed() -> None:
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
    with pytest.raises(ValueError, match="missing tables of fields"):
        read_rows("")
