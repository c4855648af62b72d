"""The declarations of a family about each architecture: for file readers, the forward pass and docs/models.md.

The fields are defaults: an architecture that declares nothing is Llama.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trunkline_server.models import decoder
from trunkline_server.models.config import NORMS_BEFORE, Activation, LayerNorms, ModelConfig, RopeScaling
from trunkline_server.models.keys import Keys
from trunkline_server.models.ops import ClampedSwiglu
from trunkline_server.models.places import Places
from trunkline_server.models.shape_parts import Shapes

# Fields for `ModelConfig.from_fields` that replace those which are read for all architectures.
Fields = dict[str, Any]
# Returns the rows of the file's tensor with this GGUF name, None if there is none.
NumRows = Callable[[str], int | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonKeys:
    """The defaults of transformers for keys that `config.json` lacks, and which keys have a meaning."""

    spelling: Mapping[str, str] = field(default_factory=dict)  # see `Keys`
    attention_bias: bool | None = None  # None: as the key says
    attention_output_bias: bool | None = None  # None: as the key says, which by default is `attention_bias`
    biased: bool = False  # the default of the keys
    output_biased: bool | None = None  # the default of `attention_out_bias`; None: `attention_bias`
    has_mlp_bias: bool = False
    norm_eps: float = 1e-6
    # The fraction of a head that is rotated if the key is absent. None: another fraction than 1 is refused.
    rotated: float | None = None
    head_size: int | None = None  # None: hidden_size / num_heads
    rope_theta: float = 10_000.0
    tied: bool = False
    # The window if the key is absent. Without `has_windows`, a window that is on (`use_sliding_window`) and shorter
    # than the context is refused. With `has_windows` it applies to every layer, except every n-th one if there is a
    # pattern, and except the first ones if there is `max_window_layers`.
    window: int | None = None
    has_windows: bool = False
    window_pattern: int | None = None
    # Used instead of a pattern: if `use_sliding_window` is on, layers from this one on have the window.
    max_window_layers: int | None = None
    # Layers with a window rotate without scaling, by a base of their own if there is one.
    has_local_rope: bool = False
    local_rope_theta: float | None = None
    # Experts: the key of an expert's inner features; None: there are no experts, or `fields` reads them.
    expert_size_key: str | None = None
    renormalises: bool | None = None  # None: as the key says
    chooses_layers: bool = False  # keys may name layers without experts
    # Reads what only this architecture's files state. Arguments: the keys, the number of layers, the rope scaling.
    fields: Callable[[Keys, int, RopeScaling], Fields] = lambda keys, num_layers, scaling: {}


@dataclass(frozen=True, kw_only=True, slots=True)
class GgufKeys:
    """The values that the metadata of GGUF files lacks, and what only this architecture's files state.

    The first architecture of a name is read from files without experts, the first that has experts from others.
    """

    name: str
    # The weights of a token's experts add up to 1; None: there are no experts.
    renormalises: bool | None = None
    rope_theta: float = 10_000.0
    has_windows: bool = False  # in all layers
    window_pattern: int | None = None  # every n-th layer has no window, if the file does not say which
    truncates_yarn: bool = True
    # Reads the scaling of YaRN: metadata, factor, trained context.
    yarn: Callable[[Keys, float, int], RopeScaling] | None = None
    # Returns the rotary base of layers with a window, which then have no rope scaling.
    local_rope_theta: Callable[[Keys], float | None] = lambda keys: None
    # Arguments: the metadata, the number of layers, the rope scaling, rows of tensors.
    fields: Callable[[Keys, int, RopeScaling, NumRows], Fields] = lambda keys, num_layers, scaling, num_rows: {}


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """Readers of an encoder's whole config, and its weights."""

    # Arguments: the architecture's name, the keys. They raise DamagedFile or UnsupportedArchitecture.
    from_json: Callable[[str, Keys], ModelConfig]
    # The names and shapes of all weights but those of `vector` and `score`.
    shapes: Callable[[ModelConfig], Shapes]
    # Also the size of the vocabulary, and rows of tensors.
    from_gguf: Callable[[str, Keys, int, NumRows], ModelConfig] | None = None
    # The key of `config.json` that says how a classifier pools; None: by the first token.
    classifier_pooling_key: str | None = None


_JSON, _PLACES = JsonKeys(), Places()


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A `model_type` of `config.json`. forward: returns the hidden rows; classifier: see `head.finish`.

    models: the models that have it, for people. gguf: None: llama.cpp does not have it, or it is not read from there.
    """

    models: str
    forward: Callable[[Any, ModelConfig], Any] = decoder.forward
    classifier: Callable[[Any, ModelConfig, Any], Any] | None = None
    encoder: Encoder | None = None
    json: JsonKeys = _JSON
    gguf: GgufKeys | None = None
    places: Places = _PLACES
    # The shapes of a recurrent layer's weights, without its norms and its MLP; None: there are no such layers.
    mixer_shapes: Callable[[ModelConfig], Shapes] | None = None
    # These are fields of `ModelConfig`, whatever the file says.
    activation: Activation = "silu"
    layer_norms: LayerNorms = NORMS_BEFORE
    is_layer_norm: bool = False
    norm_bias: bool = False
    gated_mlp: bool = True
    query_key_norm: bool = False
    wide_query_key_norm: bool = False
    attention_sinks: bool = False
    has_shared_expert: bool = False
    expert_bias: bool = False
    expert_activation: ClampedSwiglu | None = None
    # Layers without a window do not rotate, if any layer has one.
    rotates_in_windows: bool = False

    def facts(self) -> Fields:
        """Returns the fields of a config that no file states."""
        return {
            "norms.are_layer_norms": self.is_layer_norm,
            "norms.bias": self.norm_bias,
            "norms.layer": self.layer_norms,
            "attention.query_key_norm": self.query_key_norm,
            "attention.wide_query_key_norm": self.wide_query_key_norm,
            "attention.has_sinks": self.attention_sinks,
            "mlp.is_gated": self.gated_mlp,
            "mlp.activation": self.activation,
            "experts.bias": self.expert_bias,
            "experts.activation": self.expert_activation,
        }
