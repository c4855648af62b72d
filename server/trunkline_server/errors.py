"""The errors that Trunkline raises on purpose, one tree:

    TrunklineError
    ├── UserError                    the user can fix it; the process exits with code 2
    │   ├── InvalidArgument          invalid_argument          a flag or argument has an impossible value
    │   ├── ModelNotFound            model_not_found           no such file, folder or Hub repository
    │   ├── RevisionNotFound         revision_not_found        the repository has no such branch, tag or commit
    │   ├── AccessDenied             access_denied             gated or private repository, or a wrong token
    │   ├── HubUnreachable           hub_unreachable           offline, and not in the local cache
    │   ├── DamagedFile              damaged_file              the bytes contradict the format or each other
    │   ├── UnsupportedFormat        unsupported_format        an intact file in an unsupported format
    │   ├── UnsupportedArchitecture  unsupported_architecture  an intact model that is not implemented
    │   ├── DoesNotFit               does_not_fit              the model or the KV pool exceeds the memory
    │   └── BackendUnavailable       backend_unavailable       the backend cannot run here
    └── PlanError                    invalid_plan              the router sent an invalid plan

The second column is the stable `code`. A message is in lower case without a final period; it names what is wrong,
where, and the limit. The way out goes into `hint`. Messages never hold prompt text, token ids of a prompt, or
credentials.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

_MAX_QUOTED = 80


def quoted(text: str) -> str:
    """Formats untrusted text for a message: in backticks, on one line, cut to 80 characters."""
    shown = text[: _MAX_QUOTED + 1]
    if not shown.isprintable():
        shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in shown)
    return f"`{shown}`" if len(shown) <= _MAX_QUOTED else f"`{shown[:_MAX_QUOTED]}...`"


class TrunklineError(Exception):
    """Root of the tree. `str()` gives one line: the message, then `; hint: ...` if there is a hint."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}; hint: {self.hint}"


class UserError(TrunklineError):
    code = "user_error"


class InvalidArgument(UserError):
    code = "invalid_argument"


class ModelNotFound(UserError):
    code = "model_not_found"


class RevisionNotFound(UserError):
    code = "revision_not_found"


class AccessDenied(UserError):
    code = "access_denied"


class HubUnreachable(UserError):
    code = "hub_unreachable"


class DamagedFile(UserError):
    """path: the damaged file; what: the defect, with its offset or key."""

    code = "damaged_file"

    def __init__(
        self, path: str | os.PathLike[str], what: str, *, hint: str = "download or convert the file again"
    ) -> None:
        super().__init__(f"`{os.fspath(path)}` is damaged: {what}", hint=hint)
        self.path = os.fspath(path)


class UnsupportedFormat(UserError):
    code = "unsupported_format"


class UnsupportedArchitecture(UserError):
    """what: the architecture or feature and where it was found; supported: the accepted alternatives."""

    code = "unsupported_architecture"

    def __init__(self, what: str, *, supported: Sequence[str]) -> None:
        super().__init__(f"{what} is not supported", hint=f"supported: {', '.join(supported)}")


class DoesNotFit(UserError):
    code = "does_not_fit"


class BackendUnavailable(UserError):
    code = "backend_unavailable"


class PlanError(TrunklineError):
    code = "invalid_plan"
