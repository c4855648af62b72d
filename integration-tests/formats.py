"""Independent checks for JSON Schema's `format` keyword, based on the standard library where possible."""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Callable
from urllib.parse import urlsplit

import jsonschema  # type: ignore[import-untyped]

LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
NUMBERS = r"(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+S)?)?"


def is_hostname(text: str) -> bool:
    """Checks for a host name as in RFC 1123."""
    return len(text) <= 253 and re.fullmatch(rf"{LABEL}(?:\.{LABEL})*", text) is not None


def is_email(text: str) -> bool:
    """Checks for an address as in RFC 5321 whose local part is not quoted."""
    local, at, host = text.rpartition("@")
    word = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
    if not at or len(local) > 64 or re.fullmatch(rf"{word}(?:\.{word})*", local) is None:
        return False
    return is_hostname(host)


def is_duration(text: str) -> bool:
    """Checks for a duration as in RFC 3339, appendix A, except that any unit may be missing."""
    return re.fullmatch(rf"P(?=[\dT])(?:\d+W|{NUMBERS})", text) is not None


def is_time(text: str) -> bool:
    """Checks for a time with an offset, as in RFC 3339."""
    matched = re.fullmatch(r"(\d\d:\d\d:\d\d)(?:\.\d+)?(?:[Zz]|[+-](\d\d:\d\d))", text)
    if matched is None:
        return False
    parts = [part for part in matched.groups() if part is not None]
    return all(parses(datetime.time.fromisoformat, part) for part in parts)


def is_date_time(text: str) -> bool:
    """Checks for a date and time as in RFC 3339."""
    return len(text) > 11 and text[10] in "Tt" and is_date(text[:10]) and is_time(text[11:])


def is_date(text: str) -> bool:
    """Checks for a full date as in RFC 3339.

    RFC 3339 allows the year 0 and Python does not, so the check uses the year 2000, which has the same days.
    """
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text) is None:
        return False
    return parses(datetime.date.fromisoformat, "2000" + text[4:] if text.startswith("0000") else text)


def is_uri(text: str) -> bool:
    """Checks the characters, scheme and authority of a URI as in RFC 3986."""
    allowed = r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*"
    if re.fullmatch(rf"[A-Za-z][A-Za-z0-9+.-]*:{allowed}", text) is None:
        return False
    return parses(urlsplit, text)


def is_uuid(text: str) -> bool:
    """Checks for a UUID in the hyphenated form of RFC 9562."""
    return re.fullmatch(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", text) is not None


def parses(parse: Callable[[str], object], text: str) -> bool:
    """Returns True if `parse` accepts the text."""
    try:
        parse(text)
    except ValueError:
        return False
    return True


CHECKS: dict[str, Callable[[str], bool]] = {
    "date": is_date,
    "date-time": is_date_time,
    "duration": is_duration,
    "email": is_email,
    "hostname": is_hostname,
    "ipv4": lambda text: parses(ipaddress.IPv4Address, text),
    "ipv6": lambda text: "%" not in text and parses(ipaddress.IPv6Address, text),
    "time": is_time,
    "uri": is_uri,
    "uuid": is_uuid,
}


def checker() -> jsonschema.FormatChecker:
    """Returns a checker of the formats in `CHECKS`, which accepts any value that is not a string."""
    formats = jsonschema.FormatChecker(formats=())
    for name, check in CHECKS.items():
        formats.checks(name)(lambda value, check=check: not isinstance(value, str) or check(value))
    return formats
