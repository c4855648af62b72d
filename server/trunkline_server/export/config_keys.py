"""Writes `ModelConfig` as GGUF's keys: the reverse of `models/config_gguf.py`, which says whether it is complete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline_server.errors import UnsupportedFormat, UserError
from trunkline_server.models.config import ModelConfig, RopeScaling
from trunkline_server.models.config_gguf import RopeFactors, architecture_of, config_from_gguf
from trunkline_server.models.registry import ARCHITECTURES
from trunkline_server.models.rope import local_rope, rope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trunkline_server.export.gguf_writer import Value

CONVERTER_HINT = "convert the model with llama.cpp's convert_hf_to_gguf.py, and quantise the file that it writes"


def as_written(config: ModelConfig) -> ModelConfig:
    """Returns the config with the architecture as which a GGUF file of it is read; Mistral is "llama" there."""
    gguf = ARCHITECTURES[config.architecture].gguf
    if gguf is None or (name := architecture_of(gguf.name, has_experts=config.experts.num_experts > 0)) is None:
        return config
    return replace(config, architecture=name)


def config_keys(config: ModelConfig, path: Path) -> dict[str, Value]:
    """Returns the metadata of a decoder.

    config: a result of `as_written`. path: of the model, for messages. Raises UnsupportedFormat.
    """
    gguf = ARCHITECTURES[config.architecture].gguf
    is_vector_or_state = (
        config.pooling is not None or config.attention.latent is not None or config.recurrent is not None
    )
    if (
        gguf is None
        or is_vector_or_state
        or architecture_of(gguf.name, has_experts=config.experts.num_experts > 0) != config.architecture
    ):
        raise UnsupportedFormat(f"`{path}` ({config.architecture}) cannot be written as GGUF", hint=CONVERTER_HINT)
    name = gguf.name
    norm = "layer_norm_epsilon" if config.norms.are_layer_norms else "layer_norm_rms_epsilon"
    keys: dict[str, Value] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.mlp.size,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_size,
        "attention.value_length": config.head_size,
        f"attention.{norm}": config.norms.eps,
        "rope.dimension_count": config.rotary_size,
        "rope.freq_base": config.positions.theta,
    }
    if window := next((window for window in config.attention.windows if window is not None), None):
        keys["attention.sliding_window"] = window
    if config.experts.num_experts:
        keys |= {
            "expert_count": config.experts.num_experts,
            "expert_used_count": config.experts.num_used,
            "expert_feed_forward_length": config.experts.size,
        }
    if config.experts.shared_size:
        keys["expert_shared_feed_forward_length"] = config.experts.shared_size
    return {"general.architecture": name} | {
        f"{name}.{key}": value
        for key, value in (keys | _multipliers(config) | _scaling(config.positions.scaling)).items()
    }


def rope_divisors(config: ModelConfig) -> tuple[float, ...] | None:
    """Returns the contents of `rope_freqs.weight`, which has the scaling of Llama 3; None for other scalings."""
    if config.positions.scaling.kind != "llama3":
        return None
    plain = rope(replace(config, positions=replace(config.positions, scaling=RopeScaling()))).inv_freq
    return tuple(before / after for before, after in zip(plain, rope(config).inv_freq, strict=True))


def check_complete(config: ModelConfig, keys: Mapping[str, Value], rows: Mapping[str, int], path: Path) -> None:
    """Reads the metadata again, and raises UnsupportedFormat if it lacks a property of the model.

    rows: the number of rows of each tensor of the file. path: of the model.
    """
    factors = RopeFactors(all=rope_divisors(config))
    try:
        found = config_from_gguf(path, keys, num_rows=rows.get, rope_factors=factors)
    except UserError as error:
        raise UnsupportedFormat(
            f"`{path}` ({config.architecture}) cannot be written as GGUF, which would be refused: {error.message}",
            hint=CONVERTER_HINT,
        ) from error
    read, meant = found.fields(), config.fields()
    wrong = [name for name in meant if name != "positions.scaling" and read[name] != meant[name]]
    pairs = zip(
        (*rope(found).inv_freq, *local_rope(found).inv_freq), (*rope(config).inv_freq, *local_rope(config).inv_freq),
        strict=False,
    )  # fmt: skip
    is_close = all(abs(one - other) <= 1e-6 * other for one, other in pairs)
    if not is_close or abs(rope(found).attention_factor - rope(config).attention_factor) > 1e-6:
        wrong.append("positions.scaling")
    if wrong:
        raise UnsupportedFormat(
            f"`{path}` ({config.architecture}) cannot be written as GGUF, whose metadata would lack {', '.join(wrong)}",
            hint=CONVERTER_HINT,
        )


def _multipliers(config: ModelConfig) -> dict[str, Value]:
    keys: dict[str, Value] = {}
    if (residual := config.residual_multiplier) is not None:
        # Only Granite has it, and divides logits by the number.
        assert config.embedding_multiplier is not None and config.logit_multiplier is not None
        keys = {
            "embedding_scale": config.embedding_multiplier,
            "residual_scale": residual,
            "logit_scale": 1.0 / config.logit_multiplier,
        }
    elif config.logit_multiplier is not None:
        keys = {"logit_scale": config.logit_multiplier}
    if config.attention.multiplier is not None:
        keys["attention.scale"] = config.attention.multiplier
    if config.attention.soft_cap is not None and config.logit_soft_cap is not None:
        keys["attn_logit_softcapping"] = config.attention.soft_cap
        keys["final_logit_softcapping"] = config.logit_soft_cap
    return keys


def _scaling(scaling: RopeScaling) -> dict[str, Value]:
    if scaling.kind not in ("linear", "yarn"):
        return {}
    keys: dict[str, Value] = {"rope.scaling.type": scaling.kind, "rope.scaling.factor": scaling.factor}
    if scaling.kind == "yarn":
        keys["rope.scaling.original_context_length"] = scaling.original_max_position_embeddings
    return keys
