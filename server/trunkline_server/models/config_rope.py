"""Reads the scaling of rotary embedding from a `config.json`."""

from __future__ import annotations

import math

from trunkline_server.errors import UnsupportedArchitecture, quoted
from trunkline_server.models.config import RopeScaling
from trunkline_server.models.keys import Keys

_ROPE_KINDS = ("default", "dynamic", "linear", "llama3", "longrope", "yarn")
# Another name of a kind.
_ALIASES = {"su": "longrope"}


def rope_scaling(keys: Keys, rope: Keys, max_positions: int) -> RopeScaling:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    kind = _ALIASES.get(str(kind), kind)
    if kind not in _ROPE_KINDS:
        raise UnsupportedArchitecture(f"rope scaling {quoted(str(kind))} of `{keys.path}`", supported=_ROPE_KINDS)
    trained = keys.integer("original_max_position_embeddings", max_positions)
    trained = rope.integer("original_max_position_embeddings", trained)
    if kind == "linear":
        return RopeScaling(kind="linear", factor=rope.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            kind="llama3",
            factor=rope.number("factor"),
            original_max_position_embeddings=trained,
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
        )
    if kind == "yarn":
        return RopeScaling(
            kind="yarn",
            factor=rope.number("factor", max_positions / max(trained, 1)),
            original_max_position_embeddings=trained,
            beta_fast=rope.number("beta_fast", 32.0) or 32.0,
            beta_slow=rope.number("beta_slow", 1.0) or 1.0,
            attention_factor=rope.optional_number("attention_factor"),
            mscale=rope.number("mscale", 0.0),
            mscale_all_dim=rope.number("mscale_all_dim", 0.0),
            truncate=rope.boolean("truncate", True),
        )
    if kind == "longrope":
        return _longrope(keys, rope, max_positions, trained)
    # "dynamic" changes nothing within the context of the model, and no sequence is longer.
    return RopeScaling()


def _longrope(keys: Keys, rope: Keys, max_positions: int, trained: int) -> RopeScaling:
    """Reads the scaling of arXiv:2402.13753.

    A context beyond the trained one has the factors for long sequences from the first position on, as in vLLM and
    llama.cpp: keys that change with the length of a sequence could not be cached.
    """
    name = "long_factor" if max_positions > trained else "short_factor"
    factors = rope.get(name)
    if not isinstance(factors, list) or not all(
        type(factor) in (int, float) and 0 < factor < 1e6 for factor in factors
    ):
        raise rope.wrong(name, "a list of positive numbers")
    factor = rope.number("factor", max_positions / max(trained, 1))
    attention = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 and trained > 1 else 1.0
    attention_factor = rope.optional_number("attention_factor") or attention
    return RopeScaling(kind="factors", factors=tuple(map(float, factors)), attention_factor=attention_factor)
