"""The operations in terms of which every architecture is stated.

Dimension letters, for the whole package: `T` tokens of the step (all chunks back to back), `S` rows that sample,
`H` query heads, `G` key/value heads, `D` head size, `B` block size, `V` vocabulary.

Which tokens, positions and blocks a step has is the business of the `Ops` instance, not of the model: a model file is
a pure function of `Ops` and its config, called once per step by an eager backend and once at load by a tracing one.
Weights are named, as in the model's safetensors; the backend resolves the name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

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


class Ops(Protocol[T]):
    """What a backend implements. Activations are f32 [rows, features], rows in the order of the step's tokens."""

    def embedding(self, weight: str) -> T:
        """Rows of `weight` [V, N] for the tokens of the step. Returns [T, N]."""
        ...

    def rms_norm(self, x: T, weight: str, eps: float) -> T:
        """x / sqrt(mean(x^2) + eps) * weight, over the last dimension. arXiv:1910.07467."""
        ...

    def head_rms_norm(self, x: T, weight: str, eps: float, head_size: int) -> T:
        """`rms_norm` of each head alone: x [T, heads * D], weight [D]."""
        ...

    def linear(self, x: T, weight: str, bias: str | None = None) -> T:
        """x [T, K] times the transpose of weight [N, K], plus bias [N]. Returns [T, N]."""
        ...

    def rope(self, x: T, rope: Rope, head_size: int) -> T:
        """Rotates each head of x [T, heads * D] by its token's position."""
        ...

    def write_kv(self, layer: int, key: T, value: T) -> None:
        """Stores key and value [T, G * D] of the step's tokens in their slots of `layer`, in the pool's dtype."""
        ...

    def paged_attention(
        self, layer: int, query: T, scale: float, window: int | None = None, soft_cap: float | None = None
    ) -> T:
        """Causal attention of query [T, H * D] over the sequence's blocks, K and V as stored (`write_kv` comes first).

        window: the query at position p sees p - window + 1 to p (arXiv:2310.06825); None: from 0.
        soft_cap: a score s, scaled, becomes soft_cap * tanh(s / soft_cap) (arXiv:2408.00118); None: it stays s.
        Sums in f32 over tiles fixed by absolute position, so the bits do not depend on how a prompt was cut.
        Cost O(T * min(context, window)). Online softmax: arXiv:1805.02867, algorithm 3. Returns [T, H * D].
        """
        ...

    def silu_mul(self, gate: T, up: T) -> T:
        """silu(gate) * up, elementwise. arXiv:2002.05202."""
        ...

    def gelu_mul(self, gate: T, up: T) -> T:
        """gelu(gate) * up, elementwise, GELU in its approximation by tanh. arXiv:2002.05202, arXiv:1606.08415."""
        ...

    def add(self, x: T, y: T) -> T:
        """x + y, elementwise."""
        ...

    def scale(self, x: T, factor: float) -> T:
        """x * factor, elementwise."""
        ...

    def logits(self, x: T, weight: str, soft_cap: float | None = None) -> T:
        """`linear` without bias on the rows that sample only, soft cap as in `paged_attention`. Returns [S, V]."""
        ...
