"""The operations from which every architecture is built.

Dimension letters, for the whole package: `T` tokens of the step (all chunks back to back), `S` rows that sample, `H`
query heads, `G` key/value heads, `D` head size, `B` block size, `V` vocabulary.

The `Ops` instance, not the model, knows the step's tokens, positions and blocks. A model file is a pure function of
`Ops` and its config. An eager backend calls it once per step, a tracing backend once at load. Weights have their
safetensors names; the backend resolves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from trunkline_server.models.pooling import Kind

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary embedding of the first `dim` elements of each head, half-split ("NeoX") layout: arXiv:2104.09864.

    inv_freq: `dim / 2` angular frequencies in radians per position, scaling already applied.
    attention_factor: multiplies cos and sin (YaRN; 1.0 otherwise).
    """

    dim: int
    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0


class Scores(NamedTuple):
    """Turns products of queries and keys into the scores of attention.

    scale: their factor.
    window: the query at position p sees p - window + 1 to p (arXiv:2310.06825); None: 0 to p.
    soft_cap: a scaled score s becomes soft_cap * tanh(s / soft_cap) (arXiv:2408.00118); None: it stays s.
    sinks: a weight [H] of scores that take part in the softmax of their head and have no value (arXiv:2309.17453);
        None: there are none.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClampedSwiglu:
    """The activation (u + 1) * g * sigmoid(alpha * g): g is gate up to limit, and u is up between -limit and limit."""

    alpha: float
    limit: float


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The experts of a layer: gated MLPs, of which each token uses a few (arXiv:1701.06538).

    gate, up, down: names of each expert's weights, [I, N], [I, N] and [N, I].
    biases: names of each expert's biases, [I], [I] and [N], in the same order; None: there are none.
    activation: None: `silu_mul`.
    num_used: experts that a token uses.
    renormalise: the weights of the used experts add up to 1; otherwise those of all experts do.
    sigmoid: an expert's score is the sigmoid of its logit, and so is its weight, which `renormalise` divides by the
        sum; otherwise its score is its logit.
    choice_bias: name of numbers [E] that are added to scores for the choice alone; only with `sigmoid`.
    num_groups, num_used_groups: experts are groups of neighbours, and a token uses experts of its best groups alone. A
        group is as good as its best expert, with `sigmoid` as the sum of its two best.
    """

    gate: tuple[str, ...]
    up: tuple[str, ...]
    down: tuple[str, ...]
    num_used: int
    renormalise: bool
    biases: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None = None
    activation: ClampedSwiglu | None = None
    sigmoid: bool = False
    choice_bias: str | None = None
    num_groups: int = 1
    num_used_groups: int = 1


class Ops(Protocol[T]):
    """The operations that a backend implements. Activations are f32 [rows, features], rows in the tokens' order."""

    def embedding(self, weight: str) -> T:
        """Returns the rows of `weight` [V, N] for the tokens of the step, [T, N]."""

    def position_embedding(self, weight: str, offset: int) -> T:
        """Returns the rows of `weight` for the positions of the tokens, behind its first `offset` rows, [T, N]."""

    def text_embedding(self, weight: str) -> T:
        """Returns row 1 of `weight` for tokens of the second of two texts, and row 0 for others, [T, N].

        With one row, all tokens have that.
        """

    def rms_norm(self, x: T, weight: str, eps: float) -> T:
        """Returns x / sqrt(mean(x^2) + eps) * weight, over the last dimension. arXiv:1910.07467."""

    def layer_norm(self, x: T, weight: str, bias: str | None, eps: float) -> T:
        """Returns (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, over the last dimension.

        arXiv:1607.06450.
        """

    def head_rms_norm(self, x: T, weight: str, eps: float, head_size: int) -> T:
        """Applies `rms_norm` to each head separately: x [T, heads * D], weight [D]."""

    def linear(self, x: T, weight: str, bias: str | None = None) -> T:
        """Returns x [T, K] times the transpose of weight [N, K], plus bias [N]: [T, N]."""

    def head_linear(self, x: T, weights: Sequence[str]) -> T:
        """Multiplies each head by a matrix of its own: x [T, H * K], weights [N, K] of each head, result [T, H * N]."""

    def join_heads(self, x: T, y: T, num_heads: int) -> T:
        """Returns each head of x [T, H * N] followed by the same head of y [T, H * M]: [T, H * (N + M)]."""

    def rope(self, x: T, rope: Rope, head_size: int) -> T:
        """Rotates each head of x [T, heads * D] by its token's position."""

    def write_kv(self, layer: int, key: T, value: T | None) -> None:
        """Stores key and value [T, G * D] of the step's tokens in their slots of `layer`, in the pool's dtype.

        value: None if the model has latent attention: a key's last `ModelConfig.latent_size` elements are its value.
        """

    def paged_attention(self, layer: int, query: T, scores: Scores) -> T:
        """Returns causal attention of query [T, H * D] over the sequence's blocks, K and V as stored.

        The result is [T, H * D], or [T, H * latent_size] with latent attention.

        In an encoder (`Pooling.whole`) the query at each position sees all positions of its sequence, and with a
        window also p to p + window - 1.
        `write_kv` must store the step's keys and values first.
        Sums in f32 over tiles at fixed absolute positions, so the bits do not depend on how a prompt is chunked.
        Cost: O(T * min(context, window)). Online softmax: arXiv:1805.02867, algorithm 3.
        """

    def silu_mul(self, gate: T, up: T) -> T:
        """Returns silu(gate) * up, elementwise. arXiv:2002.05202."""

    def gelu_mul(self, gate: T, up: T) -> T:
        """Returns gelu(gate) * up, elementwise, with the tanh approximation. arXiv:2002.05202, arXiv:1606.08415."""

    def gelu(self, x: T) -> T:
        """Returns gelu(x), elementwise, with the tanh approximation. arXiv:1606.08415."""

    def gelu_erf(self, x: T) -> T:
        """Returns x / 2 * (1 + erf(x / sqrt(2))), elementwise: GELU without approximation. arXiv:1606.08415."""

    def tanh(self, x: T) -> T:
        """Returns tanh(x), elementwise."""

    def relu_squared(self, x: T) -> T:
        """Returns max(x, 0)^2, elementwise. arXiv:2109.08668."""

    def experts(self, x: T, router_logits: T, experts: Experts) -> T:
        """Returns the weighted sum of the outputs of each token's experts, [T, N], for x [T, N].

        A token uses the experts with the largest scores, by default its router_logits [T, E], ties by the lower index.
        Their weights are the softmax of the logits. A row's bits do not depend on the rows beside it. Each expert's
        weights are read once.
        """

    def sigmoid_scale(self, x: T, gate: T) -> T:
        """Returns x [T, N] times the sigmoid of gate [T, 1]."""

    def mul(self, x: T, y: T) -> T:
        """Returns x * y, elementwise."""

    def add(self, x: T, y: T) -> T:
        """Returns x + y, elementwise."""

    def scale(self, x: T, factor: float) -> T:
        """Returns x * factor, elementwise."""

    def mean(self, x: T) -> T:
        """Returns the mean of x over all positions of a sequence, in each of its rows, [T, N].

        Sums are in f64, in the order of positions. Only in encoders, and only rows that sample may be used.
        """

    def pooled(self, x: T, kind: Kind) -> T:
        """Keeps x [T, N] as the output from which the vectors of pooled sequences are made, by their `kind`.

        Returns its rows that sample, [S, N]. Only `logits` may follow.
        """

    def logits(self, x: T, weight: str, soft_cap: float | None = None) -> T:
        """Applies `linear` without bias to the rows that sample, then the soft cap as in `paged_attention`: [S, V]."""


# The rule by which the state of `RecurrentOps.recurrence` takes in keys and values.
Recurrence = Literal["scan", "delta"]


@dataclass(frozen=True, kw_only=True)
class RecurrenceOperands(Generic[T]):
    """The operands of `RecurrentOps.recurrence` for `H` heads.

    value: [T, H * P]. key, query: [T, G * N]; H / G neighbouring heads share each of them. decay, strength: [T, H].
    skip: a weight [H], the factor of values in the result; None: 0.
    """

    value: T
    key: T
    query: T
    decay: T
    strength: T
    skip: str | None = None


class RecurrentOps(Ops[T], Protocol[T]):
    """The operations of models with recurrent layers."""

    def columns(self, x: T, begin: int, end: int) -> T:
        """Returns the columns begin to end of x [T, N]: [T, end - begin]."""

    def silu(self, x: T) -> T:
        """Returns x * sigmoid(x), elementwise. arXiv:1606.08415."""

    def sigmoid(self, x: T) -> T:
        """Returns 1 / (1 + exp(-x)), elementwise."""

    def head_l2_norm(self, x: T, eps: float, head_size: int) -> T:
        """Returns x / sqrt(sum(x^2) + eps), each head of x [T, heads * D] by itself."""

    def softplus(self, x: T, bias: str) -> T:
        """Returns log(1 + exp(x + bias)) for x [T, N] and bias [N]."""

    def decay(self, x: T, log_rate: str) -> T:
        """Returns exp(-x * exp(log_rate)) for x [T, N] and log_rate [N]."""

    def short_conv(self, x: T, weight: str, bias: str | None = None) -> T:
        """Convolves each channel of x [T, C] over the last positions of its sequence, without an activation.

        weight: the taps of each channel, [C * width], that of the oldest position first. Positions before the sequence
        are 0. The inputs of the last width - 1 positions are a part of the sequence's state.
        """

    def recurrence(self, kind: Recurrence, operands: RecurrenceOperands[T], num_heads: int, key_size: int) -> T:
        """Returns what each head reads from its state: [T, num_heads * P].

        A head's state S [P, N] is 0 before the sequence. At each position, with the head's decay d, strength s, value v
        [P], key k and query q [N], it becomes

            "scan"   d S + s v k^T, Mamba-2's selective scan (arXiv:2405.21060)
            "delta"  d S + s (v - d S k) k^T, the gated delta rule (arXiv:2412.06464)

        and the result is S q + skip v. States are f32, and positions are computed one after the other, so the bits do
        not depend on how a prompt is chunked. Cost: O(T * num_heads * P * N).
        """
