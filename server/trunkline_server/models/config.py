"""The shape of a model, as its `config.json` or GGUF metadata states it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from trunkline_server.models.ops import ClampedSwiglu
from trunkline_server.models.pooling import Pooling

# Limits on what a config may claim. They keep the product of any two of these numbers far below 2^63.
MAX_LAYERS = 1 << 10
MAX_HEADS = 1 << 12
MAX_HEAD_SIZE = 1 << 10
MAX_FEATURES = 1 << 20
MAX_VOCAB_SIZE = 1 << 24
MAX_POSITIONS = 1 << 30
# The kernels' limit. Published models have up to 512 experts.
MAX_EXPERTS = 1 << 10
MAX_CONV_WIDTH = 4

Activation = Literal["silu", "gelu", "relu_squared"]


def layer_range(num_layers: int) -> range:
    """Returns the indices of the layers that a file states, of which there may be too many or too few."""
    return range(min(max(num_layers, 0), MAX_LAYERS))


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """The scaling of rotary frequencies beyond the trained context. Names are those of `rope_parameters` in
    config.json.

    kind: "default", "linear", "llama3" or "yarn" (arXiv:2309.00071); "factors" divides each frequency by its own
    number, for LongRoPE (arXiv:2402.13753) and for llama3 scaling in GGUF files.
    """

    kind: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    factors: tuple[float, ...] = ()

    def magnitude(self, weight: float) -> float:
        """Returns YaRN's factor of queries and keys, whose logarithmic term has this weight."""
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0

    def problem(self, num_frequencies: int) -> str | None:
        if not 0 < self.factor < 1e6:
            return f"the rope scaling factor is {self.factor}, must be positive"
        if self.kind in ("llama3", "yarn") and not 1 <= self.original_max_position_embeddings <= MAX_POSITIONS:
            return f"`original_max_position_embeddings` is {self.original_max_position_embeddings}, must be positive"
        if self.kind == "llama3" and not 0 < self.low_freq_factor < self.high_freq_factor < 1e6:
            return (
                f"`low_freq_factor` {self.low_freq_factor} and `high_freq_factor` {self.high_freq_factor} "
                "must be positive and rising"
            )
        if self.kind == "yarn" and not 0 < self.beta_slow <= self.beta_fast < 1e6:
            return f"`beta_slow` {self.beta_slow} and `beta_fast` {self.beta_fast} must be positive and rising"
        if self.attention_factor is not None and not 0 < self.attention_factor < 1e6:
            return f"the rope attention factor is {self.attention_factor}, must be positive"
        if self.kind == "factors":
            if len(self.factors) != num_frequencies:
                return f"there are {len(self.factors)} rope factors for {num_frequencies} frequencies"
            if not all(0 < factor < 1e6 for factor in self.factors):
                return "a rope factor is not positive"
        return None


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Attention over one latent for each token, from which all heads derive keys and values (arXiv:2405.04434, 2.1).

    size: elements of a latent. query_size: of the latent that queries derive from; 0: they derive from hidden states.
    key_size: features of a head's query and key that are not rotated. value_size: of its value.
    pairs_neighbours: files pair neighbours for the rotary embedding; see `weights/places.py`.
    """

    size: int
    query_size: int
    key_size: int
    value_size: int
    pairs_neighbours: bool = True

    def problem(self) -> str | None:
        for name, size, least in (
            ("latent", self.size, 1),
            ("latent of queries", self.query_size, 0),
            ("part of a key that is not rotated", self.key_size, 1),
            ("value", self.value_size, 1),
        ):
            if not least <= size <= MAX_FEATURES:
                return f"the {name} has {size} features, must be from {least} to {MAX_FEATURES}"
        return None


@dataclass(frozen=True, kw_only=True)
class Recurrent:
    """Layers that keep a state instead of keys and values.

    layers: for each layer of the model, True if it is recurrent.
    conv_width: positions that its convolution covers. conv_bias: that has a bias.
    num_heads, value_size, num_keys, key_size: heads and features of `RecurrentOps.recurrence`, H, P, G and N; all 0:
        there is only the convolution.
    """

    layers: tuple[bool, ...]
    conv_width: int
    conv_bias: bool = False
    num_heads: int = 0
    value_size: int = 0
    num_keys: int = 0
    key_size: int = 0

    def conv_channels(self, hidden_size: int) -> int:
        """The channels of a layer's convolution: values, keys and queries, or hidden features."""
        if not self.num_heads:
            return hidden_size
        return self.num_heads * self.value_size + 2 * self.num_keys * self.key_size

    def problem(self, num_layers: int) -> str | None:
        if len(self.layers) != num_layers:
            return f"{len(self.layers)} layers are marked as recurrent or not, but the model has {num_layers}"
        if all(self.layers):
            return "no layer has attention"
        if not 2 <= self.conv_width <= MAX_CONV_WIDTH:
            return f"a convolution covers {self.conv_width} positions, must be from 2 to {MAX_CONV_WIDTH}"
        sizes = (self.num_heads, self.value_size, self.num_keys, self.key_size)
        if any(sizes) and not all(1 <= size <= MAX_HEADS for size in sizes):
            return f"recurrent layers have sizes {sizes}, each must be from 1 to {MAX_HEADS}"
        if self.num_keys and self.num_heads % self.num_keys != 0:
            return f"{self.num_heads} recurrent heads cannot share {self.num_keys} keys evenly"
        return None


@dataclass(frozen=True, kw_only=True)
class LayerNorms:
    """The names of a decoder layer's norms; None: there is none. are_shared: the MLP reads what attention reads."""

    before_attention: str | None = None
    after_attention: str | None = None
    before_mlp: str | None = None
    after_mlp: str | None = None
    are_shared: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        names = (self.before_attention, self.after_attention, self.before_mlp, self.after_mlp)
        return tuple(name for name in names if name is not None)


NORMS_BEFORE = LayerNorms(before_attention="input_layernorm", before_mlp="post_attention_layernorm")
NORMS_BEHIND = LayerNorms(after_attention="post_attention_layernorm", after_mlp="post_feedforward_layernorm")
NORMS_AROUND = LayerNorms(
    before_attention="input_layernorm",
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
ONE_NORM = LayerNorms(before_attention="input_layernorm", are_shared=True)


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The part of a model's shape that `DescribeResponse` in shard.proto tells the router. All counts are positive.

    pooling: how the vector of a prompt is made; None: not at all. has_output_head: the model can choose tokens.
    """

    architecture: str
    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position_embeddings: int
    pooling: Pooling | None = None
    has_output_head: bool = True

    @property
    def vector_size(self) -> int:
        """The number of elements of a vector; 0 if the model makes none."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Norms:
    """The norms outside of heads."""

    eps: float
    # LayerNorm instead of RMSNorm.
    are_layer_norms: bool = False
    bias: bool = False
    layer: LayerNorms = NORMS_BEFORE


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Attention of the layers that are not recurrent."""

    # The projections of queries, keys and values have a bias; so has the output projection.
    bias: bool = False
    output_bias: bool = False
    # Queries and keys are normalised: each head by itself, or all heads together.
    query_key_norm: bool = False
    wide_query_key_norm: bool = False
    # For each layer, how many positions a query sees, its own included; None: all. Empty: no layer has a window.
    windows: tuple[int | None, ...] = ()
    # The factor of scores. None: they are divided by the square root of the scalar, or of the head size.
    multiplier: float | None = None
    query_pre_attn_scalar: float | None = None
    # See `Ops.paged_attention`.
    soft_cap: float | None = None
    has_sinks: bool = False
    # The results pass a gate before the output projection.
    is_gated: bool = False
    # None: heads have keys and values. Otherwise the only key head holds `Positions.rotated_size` rotated features and
    # then the latent, and `head_size` is the sum of both.
    latent: LatentAttention | None = None

    def problem(self, num_layers: int) -> str | None:
        if (num := len(self.windows)) not in (0, num_layers):
            return f"{num} layers are marked with or without a window, but the model has {num_layers}"
        for window in self.windows:
            if window is not None and not 1 <= window <= MAX_POSITIONS:
                return f"the sliding window is {window}, must be from 1 to {MAX_POSITIONS}"
        return None


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """The MLP of layers without experts; experts have its activation unless they have their own."""

    # Features inside.
    size: int
    is_gated: bool = True
    bias: bool = False
    activation: Activation = "silu"


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """The experts of a layer. `ops.Experts` says what tokens do with them."""

    # 0: all layers have an MLP.
    num_experts: int = 0
    # Experts that a token uses.
    num_used: int = 0
    # For each layer, True if it has experts.
    layers: tuple[bool, ...] = ()
    # Features inside an expert, and inside the expert of all tokens (0: there is none), which may have a gate.
    size: int = 0
    shared_size: int = 0
    has_shared_gate: bool = True
    # Experts and routers have biases.
    bias: bool = False
    activation: ClampedSwiglu | None = None
    # The factor of the outputs of the experts that a token chooses.
    multiplier: float = 1.0
    renormalise: bool = True
    sigmoid: bool = False
    # Experts are chosen with a bias.
    has_choice_bias: bool = False
    num_groups: int = 1
    num_used_groups: int = 1

    def problem(self, num_layers: int) -> str | None:
        if not self.num_experts:
            return None
        if not 1 <= self.num_experts <= MAX_EXPERTS:
            return f"the number of experts is {self.num_experts}, must be from 1 to {MAX_EXPERTS}"
        if not 1 <= self.num_used <= self.num_experts:
            return f"a token uses {self.num_used} experts, must be from 1 to {self.num_experts}"
        for name, size, least in (("expert", self.size, 1), ("shared expert", self.shared_size, 0)):
            if not least <= size <= MAX_FEATURES:
                return f"the {name} has {size} features, must be from {least} to {MAX_FEATURES}"
        if problem := self._group_problem():
            return problem
        if len(self.layers) != num_layers:
            return f"{len(self.layers)} of {num_layers} layers are marked with or without experts"
        if (activation := self.activation) is not None:
            for name, value in (("swiglu_alpha", activation.alpha), ("swiglu_limit", activation.limit)):
                if not 1e-6 < value < 1e6:
                    return f"`{name}` is {value}, must be positive"
        return None

    def _group_problem(self) -> str | None:
        groups, used = self.num_groups, self.num_used_groups
        if not 1 <= groups <= self.num_experts or self.num_experts % groups != 0:
            return f"{self.num_experts} experts cannot be divided into {groups} groups evenly"
        if not 1 <= used <= groups:
            return f"a token uses {used} groups of experts, must be from 1 to {groups}"
        if self.has_choice_bias and not self.sigmoid:
            return "experts are chosen with a bias, which only scores by sigmoids have"
        size = self.num_experts // groups
        if used * size < self.num_used:
            return f"a token uses {self.num_used} experts, but {used} groups have {used * size}"
        if self.sigmoid and used < groups and size < 2:
            return f"groups of experts are chosen by their two best, but {self.num_experts} experts are {groups} groups"
        return None


@dataclass(frozen=True, kw_only=True)
class Positions:
    """The rotary embedding, or an encoder's embedding of positions."""

    # The rotary base.
    theta: float
    # For each layer, True if it rotates queries and keys (NoPE layers do not, arXiv:2501.18795).
    rotated_layers: tuple[bool, ...]
    # Features of each head that are rotated; None: all.
    rotated_size: int | None = None
    scaling: RopeScaling = RopeScaling()
    # The base of layers with a window, which then have no scaling; None: that of other layers.
    local_theta: float | None = None
    # Rows of an encoder's embedding of positions that come before position 0.
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ModelShape):
    """The shape of a model that a family of this package implements.

    All counts are positive, `num_heads` is a multiple of `num_kv_heads`, and `head_size` is even.
    architecture: a key of `models.registry.ARCHITECTURES`.
    """

    hidden_size: int
    norms: Norms
    mlp: Mlp
    positions: Positions
    attention: Attention = Attention()
    experts: Mixture = Mixture()
    # None: all layers have attention.
    recurrent: Recurrent | None = None
    # The output head is the embedding matrix.
    tie_word_embeddings: bool = False
    # Factors of embeddings, of what attention and MLP add to the residual, and of the hidden rows behind the last norm.
    embedding_multiplier: float | None = None
    residual_multiplier: float | None = None
    logit_multiplier: float | None = None
    # See `Ops.logits`.
    logit_soft_cap: float | None = None
    # Rows of an encoder's embedding of texts.
    num_text_types: int = 0

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Builds a config from its fields; those in groups have the name `GROUP.FIELD`."""
        groups: dict[str, dict[str, Any]] = {"": {}, **{name: {} for name in _GROUPS}}
        for name, value in fields.items():
            group, _, field = name.rpartition(".")
            groups[group][field] = value
        whole = groups.pop("")
        return cls(**whole, **{name: _GROUPS[name](**own) for name, own in groups.items()})

    def fields(self) -> dict[str, Any]:
        """Returns the fields by the names that `from_fields` takes."""
        found = dict(vars(self))
        for group in _GROUPS:
            found |= {f"{group}.{name}": value for name, value in vars(found.pop(group)).items()}
        return found

    def has_experts(self, layer: int) -> bool:
        """Returns True if the layer has experts instead of an MLP."""
        return bool(self.experts.layers) and self.experts.layers[layer]

    def is_recurrent(self, layer: int) -> bool:
        """Returns True if the layer has a state instead of attention."""
        return self.recurrent is not None and self.recurrent.layers[layer]

    @property
    def num_kv_layers(self) -> int:
        """The number of layers with keys and values."""
        return self.num_layers - (0 if self.recurrent is None else sum(self.recurrent.layers))

    def kv_layer(self, layer: int) -> int:
        """Returns the index of a layer among those with keys and values."""
        return layer - (0 if self.recurrent is None else sum(self.recurrent.layers[:layer]))

    @property
    def state_size(self) -> int:
        """The number of f32 elements in the state of all recurrent layers of a sequence."""
        if (recurrent := self.recurrent) is None:
            return 0
        conv = (recurrent.conv_width - 1) * recurrent.conv_channels(self.hidden_size)
        return sum(recurrent.layers) * (conv + recurrent.num_heads * recurrent.value_size * recurrent.key_size)

    def window(self, layer: int) -> int | None:
        """Returns how many positions a query of the layer sees; None: all."""
        return self.attention.windows[layer] if self.attention.windows else None

    @property
    def vector_size(self) -> int:
        """The number of elements of a vector; 0 if the model makes none."""
        if self.pooling is None:
            return 0
        dense = self.pooling.dense
        return len(self.pooling.labels) or (dense[-1].num_outputs if dense else self.hidden_size)

    @property
    def rotary_size(self) -> int:
        """The number of features of each head that are rotated."""
        return self.head_size if self.positions.rotated_size is None else self.positions.rotated_size

    @property
    def is_encoder(self) -> bool:
        """True if each position sees those behind it."""
        return self.pooling is not None and self.pooling.whole

    @property
    def latent_size(self) -> int | None:
        """The number of a key's last elements that are its value; None: values are stored apart."""
        return None if self.attention.latent is None else self.attention.latent.size

    @property
    def attention_scale(self) -> float:
        """The factor that scores are multiplied by."""
        if self.attention.multiplier is not None:
            return self.attention.multiplier
        scalar = self.attention.query_pre_attn_scalar
        return 1.0 / math.sqrt(float(self.head_size) if scalar is None else scalar)

    def problem(self) -> str | None:
        """Returns what is wrong with the numbers, or None. Readers turn it into an error that names their file."""
        for name, value, limit in (
            ("vocab_size", self.vocab_size, MAX_VOCAB_SIZE),
            ("hidden_size", self.hidden_size, MAX_FEATURES),
            ("intermediate_size", self.mlp.size, MAX_FEATURES),
            ("num_layers", self.num_layers, MAX_LAYERS),
            ("num_heads", self.num_heads, MAX_HEADS),
            ("num_kv_heads", self.num_kv_heads, MAX_HEADS),
            ("head_size", self.head_size, MAX_HEAD_SIZE),
            ("max_position_embeddings", self.max_position_embeddings, MAX_POSITIONS),
        ):
            if not 1 <= value <= limit:
                return f"`{name}` is {value}, must be from 1 to {limit}"
        if self.num_heads % self.num_kv_heads != 0:
            return f"{self.num_heads} query heads cannot share {self.num_kv_heads} key/value heads evenly"
        if self.head_size % 2 != 0:
            return f"head size {self.head_size} is odd, but rotary embedding needs pairs"
        if self.rotary_size % 2 != 0 or not 2 <= self.rotary_size <= self.head_size:
            return f"{self.rotary_size} of {self.head_size} features of a head are rotated, must be pairs"
        if not 0 < self.norms.eps < 1:
            return f"the epsilon of norms is {self.norms.eps}, must be between 0 and 1"
        if not 1 < self.positions.theta < 1e30:
            return f"`rope_theta` is {self.positions.theta}, must be above 1"
        if (num := len(self.positions.rotated_layers)) != self.num_layers:
            return f"{num} layers are marked as rotary or not, but the model has {self.num_layers}"
        if (latent := self.attention.latent) is not None:
            if problem := latent.problem():
                return problem
            assert (self.num_kv_heads, self.head_size) == (1, self.rotary_size + latent.size), "readers set them"
        if self.recurrent is not None and self.attention.windows:
            return "some layers are recurrent and others have a sliding window, which cannot be kept together"
        return (
            (self.recurrent.problem(self.num_layers) if self.recurrent is not None else None)
            or self.attention.problem(self.num_layers)
            or self._factor_problem()
            or self.positions.scaling.problem(self.rotary_size // 2)
            or self.experts.problem(self.num_layers)
        )

    def _factor_problem(self) -> str | None:
        if self.positions.local_theta is not None and not 1 < self.positions.local_theta < 1e30:
            return f"the `rope_theta` of layers with a window is {self.positions.local_theta}, must be above 1"
        for name, value in (
            ("query_pre_attn_scalar", self.attention.query_pre_attn_scalar),
            ("attention_soft_cap", self.attention.soft_cap),
            ("logit_soft_cap", self.logit_soft_cap),
            ("embedding_multiplier", self.embedding_multiplier),
            ("residual_multiplier", self.residual_multiplier),
            ("attention_multiplier", self.attention.multiplier),
            ("logit_multiplier", self.logit_multiplier),
            ("expert_multiplier", self.experts.multiplier),
        ):
            if value is not None and not 1e-6 < value < 1e6:
                return f"`{name}` is {value}, must be positive"
        return None


_GROUPS: dict[str, type] = {
    "norms": Norms, "attention": Attention, "mlp": Mlp, "experts": Mixture, "positions": Positions,
}  # fmt: skip
