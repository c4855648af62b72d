"""PEFT's `adapter_config.json`: https://huggingface.co/docs/peft/package_reference/lora."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from trunkline_server.errors import DamagedFile, UnsupportedFormat, quoted
from trunkline_server.models.keys import Keys
from trunkline_server.weights.safetensors import read_json_object

# Keys that `PeftConfig` reads, that describe training, or that say which modules have tensors, as the tensors do.
_KNOWN = frozenset({
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
    "exclude_modules", "inference_mode", "layers_pattern", "layers_to_transform", "loftq_config", "lora_alpha",
    "lora_dropout", "lora_ga_config", "megatron_config", "megatron_core", "peft_version", "qalora_group_size", "r",
    "rank_pattern", "revision", "runtime_config", "target_modules", "task_type", "use_dora", "use_rslora",
})  # fmt: skip
# All other keys must have one of these values, or be off. An unknown one may change the arithmetic.
_SUPPORTED: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian", "eva", "orthogonal"),
}
_OFF: tuple[Any, ...] = (None, False, "", [], {})
_DEFAULT_RANK, _DEFAULT_ALPHA = 8, 8.0
# Names in patterns are regular expressions. With few choices a match ends soon, whatever the file says.
_MAX_PATTERN_CHARACTERS = 256
_MANY_CHOICES = re.compile(r"(.*[*+?{]){3}|(.*\(){2}|.*\)[*+?{]", re.DOTALL)


class PeftConfig:
    """The keys of an `adapter_config.json`. Raises ModelNotFound, DamagedFile, and UnsupportedFormat by name."""

    def __init__(self, path: Path) -> None:
        self._keys = keys = Keys(path, read_json_object(path))
        for key in keys:
            value = keys.get(key)
            if key not in _KNOWN and value not in _OFF and value not in _SUPPORTED.get(key, ()):
                supported = ", ".join(map(str, _SUPPORTED.get(key, ("absent or off",))))
                raise UnsupportedFormat(
                    f"key {quoted(key)} of `{path}` is {quoted(str(value))}, which is not supported",
                    hint=f"supported: {supported}; or merge the adapter into the model with PEFT's `merge_and_unload`",
                )
        self.base_model = keys.text("base_model_name_or_path", "unknown")
        self._rank, self._alpha = keys.integer("r", _DEFAULT_RANK), keys.number("lora_alpha", _DEFAULT_ALPHA)
        self.is_dora = keys.boolean("use_dora", False)
        self._is_stabilised = keys.boolean("use_rslora", False)
        self._ranks, self._alphas = self._patterns("rank_pattern"), self._patterns("alpha_pattern")

    def scale(self, module: str, rank: int) -> float:
        """Returns what multiplies B A of a module with this name and this rank. Raises DamagedFile for another rank."""
        expected = _first(self._ranks, module, self._rank)
        if rank != expected:
            raise self._keys.damaged(f"module {quoted(module)} has rank {expected:g} here, but its tensors have {rank}")
        # rsLoRA: arXiv:2312.03732.
        return _first(self._alphas, module, self._alpha) / (math.sqrt(rank) if self._is_stabilised else rank)

    def _patterns(self, key: str) -> list[tuple[re.Pattern[str], float]]:
        values = self._keys.nested(key)
        return [] if values is None else [(self._pattern(key, name), values.number(name)) for name in values]

    def _pattern(self, key: str, name: str) -> re.Pattern[str]:
        """Compiles a name as PEFT does: it matches a module's whole name, or what follows one of its dots."""
        if len(name) > _MAX_PATTERN_CHARACTERS or _MANY_CHOICES.match(name):
            raise UnsupportedFormat(
                f"{quoted(name)} in `{key}` of `{self._keys.path}` is too complicated",
                hint="use at most two repetitions and one group, which is not repeated",
            )
        try:
            return re.compile(rf"(.*\.)?({name})$")
        except (re.error, OverflowError):
            raise DamagedFile(self._keys.path, f"{quoted(name)} in `{key}` is not a regular expression") from None


def _first(patterns: list[tuple[re.Pattern[str], float]], module: str, default: float) -> float:
    return next((value for pattern, value in patterns if pattern.match(module)), default)
