"""The error tree: codes are stable and documented, and messages have one line."""

from __future__ import annotations

from trunkline_server import errors
from trunkline_server.errors import DamagedFile, InvalidArgument, TrunklineError, UserError, quoted

CODES = {
    "InvalidArgument": "invalid_argument",
    "ModelNotFound": "model_not_found",
    "RevisionNotFound": "revision_not_found",
    "AccessDenied": "access_denied",
    "HubUnreachable": "hub_unreachable",
    "DamagedFile": "damaged_file",
    "UnsupportedFormat": "unsupported_format",
    "UnsupportedArchitecture": "unsupported_architecture",
    "DoesNotFit": "does_not_fit",
    "BackendUnavailable": "backend_unavailable",
    "PlanError": "invalid_plan",
}


def subclasses(cls: type[TrunklineError]) -> list[type[TrunklineError]]:
    return [
        leaf
        for child in cls.__subclasses__()
        for leaf in [child, *subclasses(child)]
        if leaf.__module__ == errors.__name__
    ]


def test_codes_are_stable_and_shown_in_the_docstring() -> None:
    found = {cls.__name__: cls.code for cls in subclasses(TrunklineError) if cls is not UserError}
    assert found == CODES
    assert errors.__doc__ is not None
    for name, code in CODES.items():
        assert any(name in line and code in line for line in errors.__doc__.splitlines()), name


def test_a_message_ends_with_its_hint() -> None:
    assert str(InvalidArgument("`x` is 0")) == "`x` is 0"
    assert str(InvalidArgument("`x` is 0", hint="raise it")) == "`x` is 0; hint: raise it"
    assert str(DamagedFile("a/b.gguf", "it is cut")).startswith("`a/b.gguf` is damaged: it is cut; hint: ")


def test_quoted_text_is_short_and_printable() -> None:
    assert quoted("blk.0") == "`blk.0`"
    assert quoted("a\nb\0") == r"`a\nb\x00`"
    assert quoted("x" * 80) == "`" + "x" * 80 + "`"
    assert quoted("x" * 81) == "`" + "x" * 80 + "...`"
    assert len(quoted("\n" * 1000)) < 90
