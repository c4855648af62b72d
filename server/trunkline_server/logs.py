"""Writes the shard's log lines to stderr in the format that all processes share (docs/parts/launcher.md).

Fields are passed as `extra={"fields": {...}}` and rendered as `key=value`, or as members of the JSON object. The names
of the Elastic Common Schema are those of `log/src/ecs.rs`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from typing import TextIO

LEVELS = ("trace", "debug", "info", "warn", "error")
TARGET = "shard"
ECS_VERSION = "9.1.0"
SERVICE = "trunkline"

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


class TextFormatter(logging.Formatter):
    """Formats a record as one line: `2026-01-31T12:00:00.000Z  INFO shard: message key=value`."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line. Line breaks are escaped; a traceback becomes the field `traceback`."""
        message = record.getMessage()
        fields = "".join(f" {key}={_quoted(value)}" for key, value in _fields(record).items())
        return f"{_timestamp(record)} {_level(record):>5} {TARGET}: {_one_line(message)}{fields}"


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object with timestamp, level, target, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "timestamp": _timestamp(record),
            "level": _level(record),
            "target": TARGET,
            "message": record.getMessage(),
        }
        for key, value in _fields(record).items():
            entry.setdefault(key, value)
        return json.dumps(entry, ensure_ascii=False, default=str)


class EcsFormatter(logging.Formatter):
    """Formats a record as one JSON object with the names of the Elastic Common Schema, flat and with dots."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "@timestamp": _timestamp(record),
            "log.level": _level(record).lower(),
            "message": record.getMessage(),
            "ecs.version": ECS_VERSION,
            "log.logger": TARGET,
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


def configure(level: str, *, log_format: str, stream: TextIO | None = None) -> None:
    """Sends all log records of this process to `stream`, by default stderr.

    level: one of LEVELS. log_format: one of FORMATS.
    """
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(_FORMATTERS[log_format]())
    logging.basicConfig(level=_LEVEL_NUMBERS[level], handlers=[handler], force=True)


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
