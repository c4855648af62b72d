"""Where the weights of a family are in its files. `weights/places.py` has what is the same for all."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from trunkline_server.models.config import ModelConfig

EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(gate_proj|up_proj|down_proj)")
HEAD_PART = re.compile(r"self_attn\.(k|v)_up\.(\d+)")
QUERY_KEY_VALUE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor of a file, or the part of it that is a weight.

    index: of a matrix in a stack [E, N, K]. rows: the runs of rows [begin, end) that make up the weight; empty: all.
    step: of the rows of a run. is_transposed: the stack is [E, K, N]. transposes_rows: the weight is the transpose of
    the rows. flattens: the weight is all elements in a row. is_exponential: it is the logarithm of the negated
    elements. subtracts_rows: the weight is the first row minus the second. num_rows: of the whole tensor, if the weight
    may be far from its end.
    """

    tensor: str
    index: int | None = None
    rows: tuple[tuple[int, int], ...] = ()
    step: int = 1
    is_transposed: bool = False
    transposes_rows: bool = False
    flattens: bool = False
    is_exponential: bool = False
    subtracts_rows: bool = False
    num_rows: int | None = None

    @property
    def is_copied(self) -> bool:
        """True if the weight is a large copy of the tensor's bytes instead of a view."""
        is_apart = self.step > 1 or len(self.rows) > 1
        return self.transposes_rows or self.is_transposed or (is_apart and not self.subtracts_rows)


# Arguments: the prefix of the layer's tensors, the module in the layer, "weight" or "bias", the config, and for GGUF
# the names in the file. Returns None for weights that have the usual place.
Part = Callable[[str, str, str, ModelConfig], Place | None]
GgufPart = Callable[[str, str, str, ModelConfig, Container[str]], Place | None]


@dataclass(frozen=True, kw_only=True)
class Places:
    """How the files of an architecture differ from Llama's."""

    # The prefix of layers in safetensors, and names of modules outside and inside of layers.
    layers: str = "model.layers"
    whole: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    part: Part = lambda layer, module, kind, config: None
    # The same in GGUF.
    gguf_whole: Mapping[str, str] = field(default_factory=dict)
    gguf_modules: Mapping[str, str] = field(default_factory=dict)
    gguf_part: GgufPart = lambda layer, module, kind, config, tensors: None
    # Files where the rotary embedding pairs neighbours; only GGUF: `LlamaModel.permute` in llama.cpp's converter.
    pairs_neighbours: Literal["nowhere", "in GGUF", "everywhere"] = "nowhere"
    # Safetensors hold norm weights minus 1.
    has_offset_norms: bool = False
    # Encoders have places of their own: the names of all weights, the names in the files, the config.
    encoder: Callable[[Iterable[str], Collection[str], ModelConfig], dict[str, Place]] | None = None
    gguf_encoder: Callable[[str], Place] | None = None


def joined_rows(config: ModelConfig, module: str) -> tuple[tuple[int, int]]:
    """Returns the rows of one projection among those of queries, keys and values, or of gate and up."""
    if module in GATE_UP:
        modules: tuple[str, ...] = GATE_UP
        sizes = [config.mlp.size] * 2
    else:
        modules = QUERY_KEY_VALUE
        sizes = [count * config.head_size for count in (config.num_heads, config.num_kv_heads, config.num_kv_heads)]
    index = modules.index(module)
    begin = sum(sizes[:index])
    return ((begin, begin + sizes[index]),)


def joined_gate_and_up(layer: str, module: str, kind: str, config: ModelConfig) -> Place | None:
    """The place of gate and up in the `gate_up_proj` of safetensors."""
    if module not in GATE_UP:
        return None
    return Place(f"{layer}.mlp.gate_up_proj.{kind}", rows=joined_rows(config, module))


def gguf_joined_gate_and_up(
    layer: str, module: str, kind: str, config: ModelConfig, tensors: Container[str]
) -> Place | None:
    """The place of gate and up in the `ffn_up` of GGUF."""
    return Place(f"{layer}.ffn_up.{kind}", rows=joined_rows(config, module)) if module in GATE_UP else None


_SCAN_PARAMETERS = {"mixer.dt.bias": "dt_bias", "mixer.rate.weight": "A_log", "mixer.skip.weight": "D"}
_GGUF_SCAN = {
    "in_proj": "in", "conv": "conv1d", "dt": "dt", "rate": "a", "skip": "d", "norm": "norm", "out_proj": "out",
}  # fmt: skip


def safetensors_scan(holder: str, module: str, kind: str) -> Place:
    """Returns the place of a weight of a layer with a recurrence in safetensors."""
    if module == "mixer.conv":
        return Place(f"{holder}.conv1d.{kind}", flattens=kind == "weight")
    name = f"{module}.{kind}"
    return Place(f"{holder}.{_SCAN_PARAMETERS.get(name, name.removeprefix('mixer.'))}")


def gguf_scan(layer: str, module: str, kind: str) -> Place:
    """Returns the place of a weight of a layer with a recurrence in GGUF, which has some vectors as matrices."""
    part = module.removeprefix("mixer.")
    is_bare = part in ("rate", "skip")
    return Place(
        f"{layer}.ssm_{_GGUF_SCAN[part]}{'' if is_bare else f'.{kind}'}",
        flattens=is_bare or part == "norm" or (part == "conv" and kind == "weight"),
        is_exponential=part == "rate",
    )
