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
MAX_KEY_BYTES = 64
MAX_INPUT_BYTES = 1 << 30
MAX_TOKEN_ID = (1 << 32) - 1
_KEY_HINT = "a whole number below 2^64, such as 0x followed by the output of `openssl rand -hex 8`"
_INPUT_HINT = "pipe the answer of `/tokenize`, or of `/generate` with `details`, or a JSON list of token ids"


def report(stream: BinaryIO, key_file: str | None, gamma: float) -> dict[str, float]:
    """Measures the watermark of the tokens in `stream`. Raises InvalidArgument for bad or short input or a bad key."""
    key = _read_key(key_file, os.environ.get(KEY_VARIABLE))
    text = stream.read(MAX_INPUT_BYTES + 1)
    if len(text) > MAX_INPUT_BYTES:
        raise InvalidArgument(f"standard input has more than {MAX_INPUT_BYTES} bytes")
    try:
        tokens = _token_ids(json.loads(text))
    except (ValueError, RecursionError):
        raise InvalidArgument("standard input is not JSON", hint=_INPUT_HINT) from None
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
        for name in ("details", "tokens"):
            if name in answer:
                return _token_ids(answer[name])
    if not isinstance(answer, list):
        raise InvalidArgument("standard input holds no tokens", hint=_INPUT_HINT)
    token_ids: list[int] = []
    for index, token in enumerate(answer):
        token_id = token.get("id") if isinstance(token, dict) else token
        # A `bool` is also an `int`.
        if type(token_id) is not int or not 0 <= token_id <= MAX_TOKEN_ID:
            raise InvalidArgument(f"token {index} of standard input has no id", hint=_INPUT_HINT)
        token_ids.append(token_id)
    return token_ids


def _read_key(file: str | None, variable: str | None) -> int:
    """Reads the key in the same way as the router. No error message shows the text found in place of a key."""
    if file is not None and variable:
        raise InvalidArgument(f"both `{KEY_VARIABLE}` and `--key-file` are set", hint="set only one of them")
    if file is None:
        return _parse_key(variable, f"`{KEY_VARIABLE}` is not a key") if variable else DEFAULT_KEY
    try:
        with Path(file).open("rb") as opened:
            text = opened.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"`--key-file`: cannot read `{file}`: {error.strerror}") from None
    return _parse_key(text[: MAX_KEY_BYTES + 1].decode("ascii", "replace"), f"`--key-file`: `{file}` holds no key")


def _parse_key(text: str, problem: str) -> int:
    match = re.fullmatch(r"\s*(?:0x([0-9a-fA-F]+)|([0-9]+))\s*", text)
    key = int(match[1], 16) if match and match[1] else int(match[2]) if match else None
    if key is None or key >> 64 or len(text) > MAX_KEY_BYTES:
        raise InvalidArgument(problem, hint=_KEY_HINT)
    return key
