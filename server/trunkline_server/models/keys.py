"""Typed look-ups in the config of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

from trunkline_server.errors import DamagedFile, UnsupportedArchitecture, quoted

_MAX_INTEGER = 1 << 62


class Keys:
    """A JSON object, or the metadata of one architecture, whose errors name file and key. `null` counts as absent.

    prefix: what precedes the keys in errors; what: how errors call a key; spelling: the file's names for keys that have
    another name here.
    """

    def __init__(
        self,
        path: Path,
        values: Mapping[str, object],
        prefix: str = "",
        what: str = "key",
        spelling: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.path, self.prefix = path, prefix
        self._values, self._what, self._spelling = values, what, spelling

    def get(self, key: str) -> object:
        return self._values.get(self._spelling.get(key, key))

    def __contains__(self, key: str) -> bool:
        return self._spelling.get(key, key) in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or abs(value) > _MAX_INTEGER:
            raise self.wrong(key, "an integer of at most 2^62")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        # Integers beyond the largest float have no place in a config either.
        if type(value) not in (int, float) or not -1e300 < value < 1e300:  # type: ignore[operator]
            raise self.wrong(key, "a finite number")
        return float(value)  # type: ignore[arg-type]

    def optional_number(self, key: str) -> float | None:
        return None if self.get(key) is None else self.number(key)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def nested(self, key: str) -> Self | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return type(self)(self.path, value, f"{self.prefix}{key}.")

    def refuse_others(self, texts: Mapping[str, str], flags: tuple[str, ...]) -> None:
        """Raises UnsupportedArchitecture unless texts have these values, their defaults, and flags are false."""
        for key, known in texts.items():
            if (value := self.text(key, known)) != known:
                raise UnsupportedArchitecture(f"`{key}` {quoted(value)} of `{self.path}`", supported=(known,))
        for key in flags:
            if self.boolean(key, False):
                raise UnsupportedArchitecture(f"`{key}` in `{self.path}`", supported=("false",))

    def damaged(self, what: str) -> DamagedFile:
        return DamagedFile(self.path, what)

    def wrong(self, key: str, wanted: str) -> DamagedFile:
        """Returns the error for a key that is missing or has a value that is not `wanted`."""
        value, name = self.get(key), f"{self._what} `{self.prefix}{self._spelling.get(key, key)}`"
        if value is None:
            return self.damaged(f"{name} is missing")
        return self.damaged(f"{name} is {quoted(str(value))}, expected {wanted}")
