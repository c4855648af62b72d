"""The format of log lines."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator

import pytest
from trunkline_server import logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], level = before[0], before[1]
    root.setLevel(level)


def test_text_lines_are_one_line_with_quoted_fields(stream: io.StringIO) -> None:
    logs.configure("info", log_format="text", stream=stream)
    record = logging.makeLogRecord(
        {
            "name": "x",
            "levelno": logging.WARNING,
            "msg": "two\nlines",
            "created": 1769860800.0425,
            "fields": {"plain": 7, "spaced": 'a "b"', "empty": "", "lines": "a\nb"},
        }
    )
    logging.getLogger().handle(record)
    assert stream.getvalue() == (
        '2026-01-31T12:00:00.042Z  WARN shard: two\\nlines plain=7 spaced="a \\"b\\"" empty="" lines="a\\nb"\n'
    )


def test_json_lines_hold_the_fields_and_the_traceback(stream: io.StringIO) -> None:
    logs.configure("debug", log_format="json", stream=stream)
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logging.getLogger("y").exception("it failed", extra={"fields": {"step": 3, "message": "never in the way"}})
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["target"], entry["message"], entry["step"]) == ("ERROR", "shard", "it failed", 3)
    assert "RuntimeError: broken" in entry["traceback"]


def test_ecs_lines_have_the_names_of_the_schema(stream: io.StringIO) -> None:
    logs.configure("info", log_format="ecs", stream=stream)
    record = logging.makeLogRecord(
        {"levelno": logging.INFO, "msg": "%d blocks", "args": (3,), "created": 1769860800.0425, "fields": {"mib": 7}}
    )
    logging.getLogger().handle(record)
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logging.getLogger("y").exception("it failed", extra={"fields": {"message": "never in the way"}})
    plain, failed = (json.loads(line) for line in stream.getvalue().splitlines())
    assert list(plain.items()) == [
        ("@timestamp", "2026-01-31T12:00:00.042Z"),
        ("log.level", "info"),
        ("message", "3 blocks"),
        ("ecs.version", logs.ECS_VERSION),
        ("log.logger", "shard"),
        ("process.pid", os.getpid()),
        ("service.name", "trunkline"),
        ("trunkline.mib", 7),
    ]
    assert (failed["log.level"], failed["message"]) == ("error", "it failed")
    assert (failed["error.type"], failed["error.message"]) == ("RuntimeError", "broken")
    assert "RuntimeError: broken" in failed["error.stack_trace"]
    assert failed["trunkline.message"] == "never in the way"
    assert "trunkline.traceback" not in failed


@pytest.mark.parametrize(("level", "expected"), [("trace", 4), ("debug", 4), ("info", 3), ("warn", 2), ("error", 1)])
def test_levels_have_the_names_of_all_processes(stream: io.StringIO, level: str, expected: int) -> None:
    logs.configure(level, log_format="text", stream=stream)
    logger = logging.getLogger("z")
    for log in (logger.debug, logger.info, logger.warning, logger.error):
        log("said")
    assert len(stream.getvalue().splitlines()) == expected


def test_a_warning_that_repeats_is_counted_until_the_next_period(stream: io.StringIO) -> None:
    repeats = logs.configure("info", log_format="json", stream=stream)
    logger = logging.getLogger("z")

    def taken() -> list[dict[str, object]]:
        lines = stream.getvalue().splitlines()
        stream.seek(0)
        stream.truncate()
        return [json.loads(line) for line in lines]

    def warn(number: int) -> None:
        logger.warning("request %d is slow", number)

    for number in range(100):
        warn(number)
        logger.info("said")
    logger.error("another place")
    written = [entry["message"] for entry in taken()]
    assert written.count("said") == 100
    warnings = [f"request {number} is slow" for number in range(logs.MAX_LINES)]
    assert [message for message in written if message != "said"] == [*warnings, "another place"]
    repeats.next_period()
    (report,) = taken()
    assert (report["level"], report["left_out"]) == ("WARN", 95)
    assert report["message"] == "request 0 is slow ... 95 more like this in the last 10 s"
    repeats.next_period()
    assert taken() == []
    warn(5)
    assert [entry["message"] for entry in taken()] == ["request 5 is slow"]
