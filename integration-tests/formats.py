"""What the formats of JSON schema mean, by the standard library where it knows them."""

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
    """A name of RFC 1123."""
    return len(text) <= 253 and re.fullmatch(rf"{LABEL}(?:\.{LABEL})*", text) is not None


def is_email(text: str) -> bool:
    """An address of RFC 5321 whose local part is not quoted."""
    local, at, host = text.rpartition("@")
    word = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
    if not at or len(local) > 64 or re.fullmatch(rf"{word}(?:\.{word})*", local) is None:
        return False
    return is_hostname(host)


def is_duration(text: str) -> bool:
    """A duration of RFC 3339, appendix A; units between the largest and the smallest may be missing."""
    return re.fullmatch(rf"P(?=[\dT])(?:\d+W|{NUMBERS})", text) is not None


def is_time(text: str) -> bool:
    """A time of RFC 3339: with an offset."""
    matched = re.fullmatch(r"(\d\d:\d\d:\d\d)(?:\.\d+)?(?:[Zz]|[+-](\d\d:\d\d))", text)
    if matched is None:
        return False
    parts = [part for part in matched.groups() if part is not None]
    return all(parses(datetime.time.fromisoformat, part) for part in parts)


def is_date_time(text: str) -> bool:
    """A date and a time of RFC 3339."""
    return len(text) > 11 and text[10] in "Tt" and is_date(text[:10]) and is_time(text[11:])


def is_date(text: str) -> bool:
    """A full date of RFC 3339. The year 0 is one, but not to Python: it had the days of the year 2000."""
    if re.fullmatch(r"\d{4}-\d\d-\d\d", text) is None:
        return False
    return parses(datetime.date.fromisoformat, "2000" + text[4:] if text.startswith("0000") else text)


def is_uri(text: str) -> bool:
    """A URI of RFC 3986, as far as its characters, its scheme and its authority tell."""
    allowed = r"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*"
    if re.fullmatch(rf"[A-Za-z][A-Za-z0-9+.-]*:{allowed}", text) is None:
        return False
    return parses(urlsplit, text)


def is_uuid(text: str) -> bool:
    """The hyphenated form of RFC 9562."""
    return re.fullmatch(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}", text) is not None


def parses(parse: Callable[[str], object], text: str) -> bool:
    """Whether a parser takes it."""
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
    """For validators: knows the formats of `CHECKS` and no others, and says nothing of what is no string."""
    formats = jsonschema.FormatChecker(formats=())
    for name, check in CHECKS.items():
        formats.checks(name)(lambda value, check=check: not isinstance(value, str) or check(value))
    return formats
