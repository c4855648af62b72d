"""No request costs much more than its own bytes, and none holds up the others.

Sends the most expensive bodies to every route, and looks at the router's memory, at the longest time that a request
held a thread of the HTTP runtime, and at how long `/livez` took meanwhile.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from amplifiers import MAX_BODY_BYTES, Amplifier, generating, pooling
from api_places import PLACES
from harness import ALL_TIERS, Trunkline, cpu_seconds, http, peak_bytes, resident_bytes, serving
from vector_models import write_bert

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]

# The most bytes of memory for a byte of a body.
MAX_AMPLIFICATION = 64
# The memory that small requests may take: `UNCOUNTED_ANSWER_BYTES`, logprobs, and pages that the allocator keeps.
SMALL_REQUEST_BYTES = (64 if ALL_TIERS else 32) << 20
# The most CPU time for which a request may hold a thread of the HTTP runtime, one of the histogram's bounds.
MAX_POLL_S = 0.02
MAX_LIVEZ_S = 0.1
# The most CPU time that the router may take for a request. Tokenizing a megabyte takes two seconds.
MAX_CPU_S = 10.0 * MAX_BODY_BYTES / (1 << 20)

# Makes the allocator give freed memory back, so that a request does not find what an earlier one has left.
ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_TOP_PAD_": "0",
}

# Prints how long `/livez` took, as the 99th percentile and the maximum, once its input ends. It has its own process,
# because this one makes bodies.
PROBE = """
import http.client, sys, threading, time
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
longest = []
while not over.wait(0.005):
    begin = time.perf_counter()
    connection.request("GET", "/livez")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    longest.append(time.perf_counter() - begin)
longest.sort()
print(longest[len(longest) * 99 // 100], longest[-1])
"""


@dataclass
class Cost:
    """What the router took for a request."""

    num_bytes: int = 0
    cpu_s: float = 0.0


@contextlib.contextmanager
def measured(server: Trunkline) -> Iterator[Cost]:
    """Measures the router inside a `with` block. The memory is what its peak exceeds that before the block by."""
    router, cost = server.router_pid(), Cost()
    # Lets the kernel forget the peak (proc(5)).
    Path(f"/proc/{router}/clear_refs").write_text("5")
    num_bytes, cpu_s = resident_bytes(router), cpu_seconds(router)
    yield cost
    cost.num_bytes, cost.cpu_s = max(0, peak_bytes(router) - num_bytes), cpu_seconds(router) - cpu_s


def drive(server: Trunkline, amplifiers: Iterator[Amplifier]) -> list[str]:
    """Sends all requests and returns a line for each one that costs too much. Prints a table of all."""
    excess = []
    probe = subprocess.Popen(
        [sys.executable, "-c", PROBE, str(server.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    print(f"\n{'route':30} {'request':28} {'body':>9} {'grew':>9} {'ratio':>6} {'CPU s':>5}  status")
    for amplifier in amplifiers:
        content = amplifier.content()
        fields = {"content-type": "application/json"}
        with measured(server) as cost:
            answer = http.post(server.base_url + amplifier.path, content=content, headers=fields, timeout=120)
        grown, status = cost.num_bytes, answer.status_code
        sizes = f"{len(content):9} {grown:9} {grown / len(content):6.1f} {cost.cpu_s:5.2f}"
        row = f"{amplifier.path:30} {amplifier.name:28} {sizes}  {status}"
        print(row)
        is_large = grown > MAX_AMPLIFICATION * len(content) + SMALL_REQUEST_BYTES
        if is_large or cost.cpu_s > MAX_CPU_S or status >= 500:
            excess.append(f"{row} {answer.text[:200]}")
    out, _ = probe.communicate("")
    assert probe.returncode == 0
    usual, longest = (float(seconds) for seconds in out.split())
    print(f"/livez: 99 % within {usual * 1000:.1f} ms, all within {longest * 1000:.1f} ms")
    if usual > MAX_LIVEZ_S:
        excess.append(f"/livez took {usual} s")
    return excess + long_polls(server)


def long_polls(server: Trunkline) -> list[str]:
    """Returns the routes whose requests held a thread of the HTTP runtime for too long, with the counts by time."""
    routes: dict[str, dict[float, float]] = {}
    for name, count in server.metrics().items():
        found = re.fullmatch(r'trunkline_http_longest_poll_seconds_bucket\{le="([^"]+)",route="([^"]+)"\}', name)
        if found:
            routes.setdefault(found[2], {})[float(found[1].replace("+Inf", "inf"))] = count
    assert routes
    for route, counts in sorted(routes.items()):
        longest = min(bound for bound, count in counts.items() if count == counts[float("inf")])
        print(f"{route:30} longest poll ≤ {longest * 1000:g} ms")
    return [f"{route} {counts}" for route, counts in routes.items() if counts[MAX_POLL_S] < counts[float("inf")]]


def test_every_route_with_a_body_is_amplified() -> None:
    paths = {amplifier.path.replace("0-0", "{id}") for amplifier in (*generating(), *pooling())}
    assert {place.route for place in PLACES} - paths == set()


def test_no_request_to_a_generating_model_costs_more_than_its_bytes() -> None:
    with serving("--max-body-bytes", str(MAX_BODY_BYTES), env=ENVIRONMENT) as server:
        excess = drive(server, generating())
        assert not excess, "\n".join(excess)


def test_no_request_to_a_model_of_vectors_costs_more_than_its_bytes(tmp_path: Path) -> None:
    model = write_bert(tmp_path, "BertForSequenceClassification", num_labels=1)
    with serving("--max-body-bytes", str(MAX_BODY_BYTES), env=ENVIRONMENT, model=model) as server:
        excess = drive(server, pooling())
        assert not excess, "\n".join(excess)
