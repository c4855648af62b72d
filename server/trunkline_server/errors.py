"""The errors that Trunkline raises on purpose, one tree:

    TrunklineError
    ├── UserError                    a person can fix it; the process ends with exit code 2
    │   ├── InvalidArgument          invalid_argument          a flag or argument cannot be what it is
    │   ├── ModelNotFound            model_not_found           no such file, folder or Hub repository
    │   ├── RevisionNotFound         revision_not_found        the repository has no such branch, tag or commit
    │   ├── AccessDenied             access_denied             gated or private repository, wrong token
    │   ├── HubUnreachable           hub_unreachable           offline, and not in the local cache
    │   ├── DamagedFile              damaged_file              the bytes contradict the format or each other
    │   ├── UnsupportedFormat        unsupported_format        an intact file in a format that is not read
    │   ├── UnsupportedArchitecture  unsupported_architecture  an intact model that is not implemented
    │   ├── DoesNotFit               does_not_fit              model or KV pool is larger than the memory
    │   └── BackendUnavailable       backend_unavailable       the backend cannot run here
    └── PlanError                    invalid_plan              the router sent a plan that cannot be

The second column is the stable `code`. Wording: lower case, no final period, what was wrong, where, the limit; the way
out goes into `hint`. Never prompt text, token ids of a prompt, or credentials.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import ClassVar

_MAX_QUOTED = 80


def quoted(text: str) -> str:
    """Text from outside for use in a message: in backticks, on one line, cut to 80 characters."""
    shown = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[: _MAX_QUOTED + 1])
    return f"`{shown}`" if len(shown) <= _MAX_QUOTED else f"`{shown[:_MAX_QUOTED]}...`"


class TrunklineError(Exception):
    """Root of the tree. `str()` is one line: the message, then `; hint: ...` where there is a way out."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}; hint: {self.hint}"


class UserError(TrunklineError):
    """A person can fix it. The shard prints one line and ends with exit code 2."""

    code: ClassVar[str] = "user_error"


class InvalidArgument(UserError):
    """A flag or argument cannot be what it is."""

    code: ClassVar[str] = "invalid_argument"


class ModelNotFound(UserError):
    """No such file, folder or Hub repository."""

    code: ClassVar[str] = "model_not_found"


class RevisionNotFound(UserError):
    """The repository is there, the branch, tag or commit is not."""

    code: ClassVar[str] = "revision_not_found"


class AccessDenied(UserError):
    """A gated or private repository and no token that opens it."""

    code: ClassVar[str] = "access_denied"


class HubUnreachable(UserError):
    """The Hub does not answer, or may not be asked, and the local cache does not hold the model."""

    code: ClassVar[str] = "hub_unreachable"


class DamagedFile(UserError):
    """The bytes of a file contradict its format, its own header or another file of the model.

    path: which file; what: what is wrong in it, with the offset or key; hint: the way out.
    """

    code: ClassVar[str] = "damaged_file"

    def __init__(
        self, path: str | os.PathLike[str], what: str, *, hint: str = "download or convert the file again"
    ) -> None:
        super().__init__(f"`{os.fspath(path)}` is damaged: {what}", hint=hint)
        self.path = os.fspath(path)


class UnsupportedFormat(UserError):
    """An intact file, or a tensor in it, in a format that is not read."""

    code: ClassVar[str] = "unsupported_format"


class UnsupportedArchitecture(UserError):
    """An intact model whose architecture, or a feature of it, is not implemented.

    what: names the architecture or the feature, and where it was found; supported: what would be accepted instead.
    """

    code: ClassVar[str] = "unsupported_architecture"

    def __init__(self, what: str, *, supported: Sequence[str]) -> None:
        super().__init__(f"{what} is not supported", hint=f"supported are {', '.join(supported)}")


class DoesNotFit(UserError):
    """The model, or the smallest KV pool that makes sense, is larger than the memory."""

    code: ClassVar[str] = "does_not_fit"


class BackendUnavailable(UserError):
    """The backend that was asked for cannot run here: a missing package, kernel module or device."""

    code: ClassVar[str] = "backend_unavailable"


class PlanError(TrunklineError):
    """The router sent a plan that cannot be: an unknown sequence, a gap in the step ids."""

    code: ClassVar[str] = "invalid_plan"
