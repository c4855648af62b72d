"""Input and output of `python -m trunkline_server watermark`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import BinaryIO

from trunkline_server.errors import InvalidArgument
from trunkline_server.sampling.watermark import DEFAULT_KEY, detect

KEY_VARIABLE = "TRUNKLINE_WATERMARK_KEY"
MAX_TOKEN_ID = (1 << 32) - 1


def report(stream: BinaryIO, key_file: str | None, gamma: float) -> dict[str, float]:
    """Measures the watermark of the tokens in `stream`. Raises InvalidArgument for bad or short input or a bad key."""
    key = _read_key(key_file, os.environ.get(KEY_VARIABLE))
    try:
        tokens = _token_ids(json.load(stream))
    except (ValueError, TypeError, LookupError, RecursionError):
        raise InvalidArgument(
            "standard input holds no tokens",
            hint="pipe the answer of `/tokenize`, or of `/generate` with `details`, or a JSON list of token ids",
        ) from None
    try:
        score = detect(tokens, gamma=gamma, key=key)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    return {
        "num_tokens": len(tokens),
        "num_scored": score.num_scored,
        "num_green": score.num_green,
        "green_fraction": round(score.green_fraction, 4),
        "z_score": round(score.z, 3),
        "p_value": float(f"{score.p:.3g}"),
    }


def _token_ids(answer: object) -> list[int]:
    """Extracts ids from a list of ids or of objects with `id`, which may be under `tokens`, also in `details`."""
    if isinstance(answer, dict):
        return _token_ids(answer["details"] if "details" in answer else answer["tokens"])
    if not isinstance(answer, list):
        raise TypeError
    token_ids = [token["id"] if isinstance(token, dict) else token for token in answer]
    # A `bool` is also an `int`.
    if not all(type(token_id) is int and 0 <= token_id <= MAX_TOKEN_ID for token_id in token_ids):
        raise TypeError
    return token_ids


def _read_key(file: str | None, variable: str | None) -> int:
    """Reads the key in the same way as the router. No error message shows the text found in place of a key."""
    if file is not None and variable:
        raise InvalidArgument(f"both `{KEY_VARIABLE}` and `--key-file` are set", hint="set only one of them")
    if file is None and not variable:
        return DEFAULT_KEY
    text, problem = variable or "", f"`{KEY_VARIABLE}` is not a key"
    if file is not None:
        problem = f"`--key-file`: `{file}` holds no key"
        try:
            text = Path(file).read_text("ascii", "replace")
        except OSError as error:
            raise InvalidArgument(f"`--key-file`: cannot read `{file}`: {error.strerror}") from None
    match = re.fullmatch(r"\s*(0x[0-9a-fA-F]{1,62}|[0-9]{1,64})\s*", text)
    key = int(match[1], 16 if match[1].startswith("0x") else 10) if match else 1 << 64
    if key >> 64:
        hint = "a whole number below 2^64, such as 0x followed by the output of `openssl rand -hex 8`"
        raise InvalidArgument(problem, hint=hint)
    return key
