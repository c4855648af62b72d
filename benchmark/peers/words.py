"""Finds the words in a GGUF's vocabulary that are a single token."""

from __future__ import annotations

import re
from pathlib import Path

from gguf import GGUFReader

# Byte-level BPE writes the space before a word as U+0120.
WORD = re.compile(r"\u0120[a-z]{3,10}")


def single_token_words(gguf: Path) -> list[tuple[int, str]]:
    """Returns (token id, text with leading space) for every plain lower-case word in the vocabulary."""
    field = GGUFReader(gguf).fields["tokenizer.ggml.tokens"]
    words = []
    for token_id, part in enumerate(field.data):
        token = bytes(field.parts[part]).decode(errors="replace")
        if WORD.fullmatch(token):
            words.append((token_id, " " + token[1:]))
    return words
