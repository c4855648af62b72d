"""The shape of a model, as its `config.json` or GGUF metadata states it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

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
class ModelConfig(ModelShape):
    """The shape of a model that a file of this package implements.

    All counts are positive, `num_heads` is a multiple of `num_kv_heads`, and `head_size` is even.
    architecture: a key of `models.registry.ARCHITECTURES`.
    intermediate_size: features inside the MLP. gated_mlp: it has a gate.
    norm_eps: of all norms. norm_bias: they have a bias. layer_norms: the names of a layer's norms.
    rope_layers: for each layer, True if it rotates queries and keys (NoPE layers do not, arXiv:2501.18795).
    tie_word_embeddings: the output head is the embedding matrix.
    windows: for each layer, how many positions a query sees, its own included; None: all. Empty: no layer has a window.
    local_rope_theta: rotary base of layers with a window, which then have no rope scaling; None: that of other layers.
    query_pre_attn_scalar: scores are divided by its square root; None: by that of `head_size`.
    attention_soft_cap, logit_soft_cap: caps of scores and of logits, see `Ops.paged_attention`.
    rotated_size: features of each head that are rotated; None: all.
    embedding_multiplier, residual_multiplier, logit_multiplier: factors of embeddings, of what attention and MLP add to
        the residual, and of logits. attention_multiplier: that of scores; None: see `query_pre_attn_scalar`.
    attention_bias: query, key and value projections have a bias; attention_output_bias: the output projection has one.
    query_key_norm: queries and keys are normalised, each head by itself, or all heads together with
        `wide_query_key_norm`.
    num_experts: of a layer with experts, of which a token uses `num_experts_per_token`; 0: all layers have an MLP.
    expert_size, shared_expert_size: features inside an expert, and inside the expert of all tokens (0: there is none).
    has_shared_gate: the expert of all tokens has a gate. expert_multiplier: factor of the other experts' outputs.
    renormalise_experts, sigmoid_experts, expert_groups, used_expert_groups, expert_activation: see `ops.Experts`.
    has_choice_bias: experts are chosen with a bias. expert_bias: experts and routers have biases.
    expert_layers: for each layer, True if it has experts.
    latent: None: heads have keys and values. Otherwise the only key head holds `rotated_size` rotated features and
        then the latent, and `head_size` is the sum of both.
    attention_sinks: see `Ops.paged_attention`. gated_attention: its results pass a gate before the output projection.
    recurrent: None: all layers have attention.
    position_offset: rows of an encoder's embedding of positions that come before position 0. num_text_types: rows of
        its embedding of texts.
    """

    hidden_size: int
    intermediate_size: int
    norm_eps: float
    rope_theta: float
    rope_layers: tuple[bool, ...]
    rope_scaling: RopeScaling = RopeScaling()
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    query_key_norm: bool = False
    wide_query_key_norm: bool = False
    windows: tuple[int | None, ...] = ()
    local_rope_theta: float | None = None
    query_pre_attn_scalar: float | None = None
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    layer_norms: LayerNorms = NORMS_BEFORE
    is_layer_norm: bool = False
    norm_bias: bool = False
    gated_mlp: bool = True
    activation: Activation = "silu"
    rotated_size: int | None = None
    embedding_multiplier: float | None = None
    residual_multiplier: float | None = None
    attention_multiplier: float | None = None
    logit_multiplier: float | None = None
    num_experts: int = 0
    num_experts_per_token: int = 0
    expert_size: int = 0
    shared_expert_size: int = 0
    has_shared_gate: bool = True
    expert_multiplier: float = 1.0
    renormalise_experts: bool = True
    sigmoid_experts: bool = False
    expert_groups: int = 1
    used_expert_groups: int = 1
    has_choice_bias: bool = False
    expert_activation: ClampedSwiglu | None = None
    expert_bias: bool = False
    expert_layers: tuple[bool, ...] = ()
    latent: LatentAttention | None = None
    attention_sinks: bool = False
    gated_attention: bool = False
    recurrent: Recurrent | None = None
    position_offset: int = 0
    num_text_types: int = 0

    def has_experts(self, layer: int) -> bool:
        """Returns True if the layer has experts instead of an MLP."""
        return bool(self.expert_layers) and self.expert_layers[layer]

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
        return self.windows[layer] if self.windows else None

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
        return self.head_size if self.rotated_size is None else self.rotated_size

    @property
    def is_encoder(self) -> bool:
        """True if each position sees those behind it."""
        return self.pooling is not None and self.pooling.whole

    @property
    def latent_size(self) -> int | None:
        """The number of a key's last elements that are its value; None: values are stored apart."""
        return None if self.latent is None else self.latent.size

    @property
    def attention_scale(self) -> float:
        """The factor that scores are multiplied by."""
        if self.attention_multiplier is not None:
            return self.attention_multiplier
        divisor = float(self.head_size) if self.query_pre_attn_scalar is None else self.query_pre_attn_scalar
        return 1.0 / math.sqrt(divisor)

    def problem(self) -> str | None:
        """Returns what is wrong with the numbers, or None. Readers turn it into an error that names their file."""
        limits = {
            "vocab_size": MAX_VOCAB_SIZE,
            "hidden_size": MAX_FEATURES,
            "intermediate_size": MAX_FEATURES,
            "num_layers": MAX_LAYERS,
            "num_heads": MAX_HEADS,
            "num_kv_heads": MAX_HEADS,
            "head_size": MAX_HEAD_SIZE,
            "max_position_embeddings": MAX_POSITIONS,
        }
        for name, limit in limits.items():
            if not 1 <= getattr(self, name) <= limit:
                return f"`{name}` is {getattr(self, name)}, must be from 1 to {limit}"
        if self.num_heads % self.num_kv_heads != 0:
            return f"{self.num_heads} query heads cannot share {self.num_kv_heads} key/value heads evenly"
        if self.head_size % 2 != 0:
            return f"head size {self.head_size} is odd, but rotary embedding needs pairs"
        if self.rotary_size % 2 != 0 or not 2 <= self.rotary_size <= self.head_size:
            return f"{self.rotary_size} of {self.head_size} features of a head are rotated, must be pairs"
        if not 0 < self.norm_eps < 1:
            return f"the epsilon of norms is {self.norm_eps}, must be between 0 and 1"
        if not 1 < self.rope_theta < 1e30:
            return f"`rope_theta` is {self.rope_theta}, must be above 1"
        if len(self.rope_layers) != self.num_layers:
            return f"{len(self.rope_layers)} layers are marked as rotary or not, but the model has {self.num_layers}"
        parts = (
            self._latent_problem,
            self._recurrent_problem,
            self._window_problem,
            self._rope_scaling_problem,
            self._expert_problem,
        )
        return next((problem for part in parts if (problem := part()) is not None), None)

    def _latent_problem(self) -> str | None:
        latent = self.latent
        if latent is None:
            return None
        for name, size, least in (
            ("latent", latent.size, 1),
            ("latent of queries", latent.query_size, 0),
            ("part of a key that is not rotated", latent.key_size, 1),
            ("value", latent.value_size, 1),
        ):
            if not least <= size <= MAX_FEATURES:
                return f"the {name} has {size} features, must be from {least} to {MAX_FEATURES}"
        assert (self.num_kv_heads, self.head_size) == (1, self.rotary_size + latent.size), "readers set them"
        return None

    def _recurrent_problem(self) -> str | None:
        recurrent = self.recurrent
        if recurrent is None:
            return None
        if len(recurrent.layers) != self.num_layers:
            return f"{len(recurrent.layers)} layers are marked as recurrent or not, but the model has {self.num_layers}"
        if self.windows:
            return "some layers are recurrent and others have a sliding window, which cannot be kept together"
        if all(recurrent.layers):
            return "no layer has attention"
        if not 2 <= recurrent.conv_width <= MAX_CONV_WIDTH:
            return f"a convolution covers {recurrent.conv_width} positions, must be from 2 to {MAX_CONV_WIDTH}"
        sizes = (recurrent.num_heads, recurrent.value_size, recurrent.num_keys, recurrent.key_size)
        if any(sizes) and not all(1 <= size <= MAX_HEADS for size in sizes):
            return f"recurrent layers have sizes {sizes}, each must be from 1 to {MAX_HEADS}"
        if recurrent.num_keys and recurrent.num_heads % recurrent.num_keys != 0:
            return f"{recurrent.num_heads} recurrent heads cannot share {recurrent.num_keys} keys evenly"
        return None

    def _expert_problem(self) -> str | None:
        if not self.num_experts:
            return None
        if not 1 <= self.num_experts <= MAX_EXPERTS:
            return f"the number of experts is {self.num_experts}, must be from 1 to {MAX_EXPERTS}"
        if not 1 <= self.num_experts_per_token <= self.num_experts:
            return f"a token uses {self.num_experts_per_token} experts, must be from 1 to {self.num_experts}"
        for name, size, least in (("expert", self.expert_size, 1), ("shared expert", self.shared_expert_size, 0)):
            if not least <= size <= MAX_FEATURES:
                return f"the {name} has {size} features, must be from {least} to {MAX_FEATURES}"
        if problem := self._expert_group_problem():
            return problem
        if len(self.expert_layers) != self.num_layers:
            return f"{len(self.expert_layers)} of {self.num_layers} layers are marked with or without experts"
        if (activation := self.expert_activation) is not None:
            for name, value in (("swiglu_alpha", activation.alpha), ("swiglu_limit", activation.limit)):
                if not 1e-6 < value < 1e6:
                    return f"`{name}` is {value}, must be positive"
        return None

    def _expert_group_problem(self) -> str | None:
        groups, used = self.expert_groups, self.used_expert_groups
        if not 1 <= groups <= self.num_experts or self.num_experts % groups != 0:
            return f"{self.num_experts} experts cannot be divided into {groups} groups evenly"
        if not 1 <= used <= groups:
            return f"a token uses {used} groups of experts, must be from 1 to {groups}"
        if self.has_choice_bias and not self.sigmoid_experts:
            return "experts are chosen with a bias, which only scores by sigmoids have"
        size = self.num_experts // groups
        if used * size < self.num_experts_per_token:
            return f"a token uses {self.num_experts_per_token} experts, but {used} groups have {used * size}"
        if self.sigmoid_experts and used < groups and size < 2:
            return f"groups of experts are chosen by their two best, but {self.num_experts} experts are {groups} groups"
        return None

    def _window_problem(self) -> str | None:
        if len(self.windows) not in (0, self.num_layers):
            return (
                f"{len(self.windows)} layers are marked with or without a window, but the model has {self.num_layers}"
            )
        for window in self.windows:
            if window is not None and not 1 <= window <= MAX_POSITIONS:
                return f"the sliding window is {window}, must be from 1 to {MAX_POSITIONS}"
        if self.local_rope_theta is not None and not 1 < self.local_rope_theta < 1e30:
            return f"the `rope_theta` of layers with a window is {self.local_rope_theta}, must be above 1"
        multipliers = [f"{what}_multiplier" for what in ("embedding", "residual", "attention", "logit", "expert")]
        for name in ("query_pre_attn_scalar", "attention_soft_cap", "logit_soft_cap", *multipliers):
            value = getattr(self, name)
            if value is not None and not 1e-6 < value < 1e6:
                return f"`{name}` is {value}, must be positive"
        return None

    def _rope_scaling_problem(self) -> str | None:
        scaling = self.rope_scaling
        if not 0 < scaling.factor < 1e6:
            return f"the rope scaling factor is {scaling.factor}, must be positive"
        if scaling.kind in ("llama3", "yarn") and not 1 <= scaling.original_max_position_embeddings <= MAX_POSITIONS:
            return f"`original_max_position_embeddings` is {scaling.original_max_position_embeddings}, must be positive"
        if scaling.kind == "llama3" and not 0 < scaling.low_freq_factor < scaling.high_freq_factor < 1e6:
            return (
                f"`low_freq_factor` {scaling.low_freq_factor} and `high_freq_factor` {scaling.high_freq_factor} "
                "must be positive and rising"
            )
        if scaling.kind == "yarn" and not 0 < scaling.beta_slow <= scaling.beta_fast < 1e6:
            return f"`beta_slow` {scaling.beta_slow} and `beta_fast` {scaling.beta_fast} must be positive and rising"
        if scaling.attention_factor is not None and not 0 < scaling.attention_factor < 1e6:
            return f"the rope attention factor is {scaling.attention_factor}, must be positive"
        if scaling.kind == "factors":
            if len(scaling.factors) != self.rotary_size // 2:
                return f"there are {len(scaling.factors)} rope factors for {self.rotary_size // 2} frequencies"
            if not all(0 < factor < 1e6 for factor in scaling.factors):
                return "a rope factor is not positive"
        return None
