"""Reads from a GGUF the words that are one token each."""

from __future__ import annotations

import re
from pathlib import Path

from gguf import GGUFReader

# As byte-level BPE writes a space before a word.
WORD = re.compile(r"\u0120[a-z]{3,10}")


def single_token_words(gguf: Path) -> list[tuple[int, str]]:
    """(token id, text with its leading space) of every plain lower-case word in the vocabulary."""
    field = GGUFReader(gguf).fields["tokenizer.ggml.tokens"]
    words = []
    for token_id, part in enumerate(field.data):
        token = bytes(field.parts[part]).decode(errors="replace")
        if WORD.fullmatch(token):
            words.append((token_id, " " + token[1:]))
    return words
