"""Writes the shard's log lines to stderr in the format that all processes share (docs/parts/launcher.md).

Fields are passed as `extra={"fields": {...}}` and rendered as `key=value`, or as members of the JSON object. The names
of the Elastic Common Schema are those of `log/src/ecs.rs`.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import threading
import time
import traceback
from contextlib import nullcontext
from typing import TextIO

LEVELS = ("trace", "debug", "info", "warn", "error")
TARGET = "shard"
ECS_VERSION = "9.1.0"
SERVICE = "trunkline"

# The time after which warnings are written again, and those that were left out are reported.
PERIOD_S = 10
# Lines that one place in the code writes in a period.
MAX_LINES = 5
_MAX_KEPT_CHARACTERS = 200

# The level names of all Trunkline processes. Python has no trace level, so trace maps to debug.
_LEVEL_NAMES = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO",
    logging.WARNING: "WARN",
    logging.ERROR: "ERROR",
    logging.CRITICAL: "ERROR",
}
_LEVEL_NUMBERS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}


class _Formatter(logging.Formatter):
    def __init__(self, target: str) -> None:
        """target: the name of this process in its lines."""
        super().__init__()
        self._target = target


class TextFormatter(_Formatter):
    """Formats a record as one line: `2026-01-31T12:00:00.000Z  INFO shard: message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line. Line breaks are escaped; a traceback becomes the field `traceback`."""
        message = record.getMessage()
        fields = "".join(f" {key}={_quoted(value)}" for key, value in _fields(record).items())
        return f"{_timestamp(record)} {_level(record):>5} {self._target}: {_one_line(message)}{fields}"


class JsonFormatter(_Formatter):
    """Formats a record as one JSON object with timestamp, level, target, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "timestamp": _timestamp(record),
            "level": _level(record),
            "target": self._target,
            "message": record.getMessage(),
        }
        for key, value in _fields(record).items():
            entry.setdefault(key, value)
        return json.dumps(entry, ensure_ascii=False, default=str)


class EcsFormatter(_Formatter):
    """Formats a record as one JSON object with the names of the Elastic Common Schema, flat and with dots."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "@timestamp": _timestamp(record),
            "log.level": _level(record).lower(),
            "message": record.getMessage(),
            "ecs.version": ECS_VERSION,
            "log.logger": self._target,
            "process.pid": os.getpid(),
            "service.name": SERVICE,
        }
        fields = _fields(record)
        if record.exc_info and record.exc_info[0] is not None:
            entry["error.type"] = record.exc_info[0].__name__
            entry["error.message"] = str(record.exc_info[1])
            entry["error.stack_trace"] = fields.pop("traceback")
        entry.update((f"{SERVICE}.{key}", value) for key, value in fields.items())
        return json.dumps(entry, ensure_ascii=False, default=str)


_FORMATTERS = {"text": TextFormatter, "json": JsonFormatter, "ecs": EcsFormatter}
FORMATS = tuple(_FORMATTERS)


class Repeats(logging.Filter):
    """Counts warnings and errors that repeat in place of writing each, as the router's `repeats.rs` does.

    It holds one entry for each place in the code, whatever the texts are. Thread-safe.
    """

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        # An argument whose text is made under the lock may log as well.
        self._lock = threading.RLock()
        # The level and the message of the first record of each place in this period, and the number of its records.
        self._places: dict[tuple[str, int], tuple[int, str, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns True if the record is written."""
        if record.levelno < logging.WARNING:
            return True
        place = (record.pathname, record.lineno)
        with self._lock:
            if place not in self._places:
                self._places[place] = (record.levelno, record.getMessage()[:_MAX_KEPT_CHARACTERS], 0)
            level, message, count = self._places[place]
            self._places[place] = (level, message, count + 1)
        return count < MAX_LINES

    def next_period(self) -> None:
        """Ends a period and writes how many records were left out in it."""
        with self._lock:
            places, self._places = self._places, {}
        for level, message, count in places.values():
            if (left_out := count - MAX_LINES) > 0:
                report = logging.makeLogRecord(
                    {
                        "levelno": level,
                        "msg": f"{message} ... {left_out} more like this in the last {PERIOD_S} s",
                        "fields": {"left_out": left_out},
                    }
                )
                # Not by `handle`, which would ask this filter.
                with self._handler.lock or nullcontext():
                    self._handler.emit(report)

    def report_periods(self) -> None:
        """Starts a thread that reports what is left out, period by period, and reports the rest at the exit."""

        def run() -> None:
            while True:
                time.sleep(PERIOD_S)
                self.next_period()

        threading.Thread(target=run, name="log-repeats", daemon=True).start()
        atexit.register(self.next_period)


def configure(level: str, *, log_format: str, stream: TextIO | None = None, lane: int = 0) -> Repeats:
    """Sends all log records of this process to `stream`, by default stderr; returns what counts the repeated ones.

    level: one of LEVELS. log_format: one of FORMATS. lane: the shard's, which other lanes than the first have in their
    name, as in the launcher's lines.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_FORMATTERS[log_format](f"{TARGET}-l{lane}" if lane else TARGET))
    repeats = Repeats(handler)
    handler.addFilter(repeats)
    logging.basicConfig(level=_LEVEL_NUMBERS[level], handlers=[handler], force=True)
    return repeats


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = dict(getattr(record, "fields", {}))
    if record.exc_info and record.exc_info[0] is not None:
        fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
    return fields


def _timestamp(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.created * 1000) % 1000:03d}Z"


def _level(record: logging.LogRecord) -> str:
    return _LEVEL_NAMES.get(record.levelno, record.levelname)


def _one_line(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")


def _quoted(value: object) -> str:
    text = str(value)
    if text and not any(character.isspace() or character in '"=' or not character.isprintable() for character in text):
        return text
    return json.dumps(text, ensure_ascii=False)
