"""An `Ops` that computes nothing but records the model, once, as a program of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trunkline_server.models.ops import Experts, Recurrence, RecurrenceOperands, Rope, Scores
from trunkline_server.models.pooling import Kind
from trunkline_server.weights.quantize import NONE, quantized_format
from trunkline_server.weights.tensor import Tensor, Weight

if TYPE_CHECKING:
    from trunkline_server._kernels import ProgramBuilder
    from trunkline_server.weights.checkpoint import Checkpoint


class TracingOps:
    """Implements `Ops[int]`: values are the builder's ids. A weight is passed to the builder on first use.

    tensors: the weights passed so far, in the order of their ids.
    linear_ids: the ids of the weights of `linear`, which adapters may change.
    """

    def __init__(self, builder: ProgramBuilder, checkpoint: Checkpoint, bits: str = NONE) -> None:
        self._builder = builder
        self._checkpoint = checkpoint
        self._bits = bits
        # Keyed by the name under which a weight is stored, so that a tied head is the embedding and not a copy of it.
        self._weight_ids: dict[str, int] = {}
        self.tensors: list[Weight] = []
        self.linear_ids: dict[str, int] = {}

    def embedding(self, weight: str) -> int:
        return self._builder.embedding(self._weight(weight))

    def position_embedding(self, weight: str, offset: int) -> int:
        return self._builder.position_embedding(self._weight(weight), offset)

    def text_embedding(self, weight: str) -> int:
        return self._builder.text_embedding(self._weight(weight))

    def rms_norm(self, x: int, weight: str, eps: float) -> int:
        return self._builder.rms_norm(x, self._weight(weight), eps)

    def layer_norm(self, x: int, weight: str, bias: str | None, eps: float) -> int:
        return self._builder.layer_norm(x, self._weight(weight), None if bias is None else self._weight(bias), eps)

    def head_rms_norm(self, x: int, weight: str, eps: float, head_size: int) -> int:
        return self._builder.head_rms_norm(x, self._weight(weight), eps, head_size)

    def linear(self, x: int, weight: str, bias: str | None = None) -> int:
        weight_id = self.linear_ids[weight] = self._weight(weight)
        return self._builder.linear(x, weight_id, None if bias is None else self._weight(bias))

    def head_linear(self, x: int, weights: Sequence[str]) -> int:
        return self._builder.head_linear(x, [self._weight(name) for name in weights])

    def join_heads(self, x: int, y: int, num_heads: int) -> int:
        return self._builder.join_heads(x, y, num_heads)

    def rope(self, x: int, rope: Rope, head_size: int) -> int:
        return self._builder.rope(x, list(rope.inv_freq), rope.attention_factor, head_size)

    def write_kv(self, layer: int, key: int, value: int | None) -> None:
        self._builder.write_kv(layer, key, value)

    def paged_attention(self, layer: int, query: int, scores: Scores) -> int:
        sinks = None if scores.sinks is None else self._weight(scores.sinks)
        return self._builder.paged_attention(layer, query, scores.scale, scores.window, scores.soft_cap, sinks)

    def silu_mul(self, gate: int, up: int) -> int:
        return self._builder.silu_mul(gate, up)

    def gelu_mul(self, gate: int, up: int) -> int:
        return self._builder.gelu_mul(gate, up)

    def gelu(self, x: int) -> int:
        return self._builder.gelu(x)

    def gelu_erf(self, x: int) -> int:
        return self._builder.gelu_erf(x)

    def tanh(self, x: int) -> int:
        return self._builder.tanh(x)

    def relu_squared(self, x: int) -> int:
        return self._builder.relu_squared(x)

    def experts(self, x: int, router_logits: int, experts: Experts) -> int:
        def weights(names: tuple[str, ...]) -> list[int]:
            return [self._weight(name) for name in names]

        gate, up, down = (weights(names) for names in (experts.gate, experts.up, experts.down))
        biases = None
        if experts.biases is not None:
            gate_bias, up_bias, down_bias = experts.biases
            biases = weights(gate_bias), weights(up_bias), weights(down_bias)
        activation = experts.activation
        return self._builder.experts(
            x,
            router_logits,
            gate=gate,
            up=up,
            down=down,
            num_used=experts.num_used,
            renormalise=experts.renormalise,
            sigmoid=experts.sigmoid,
            choice_bias=None if experts.choice_bias is None else self._weight(experts.choice_bias),
            num_groups=experts.num_groups,
            num_used_groups=experts.num_used_groups,
            biases=biases,
            clamp=None if activation is None else (activation.alpha, activation.limit),
        )

    def sigmoid_scale(self, x: int, gate: int) -> int:
        return self._builder.sigmoid_scale(x, gate)

    def mul(self, x: int, y: int) -> int:
        return self._builder.mul(x, y)

    def columns(self, x: int, begin: int, end: int) -> int:
        return self._builder.columns(x, begin, end - begin)

    def silu(self, x: int) -> int:
        return self._builder.silu(x)

    def sigmoid(self, x: int) -> int:
        return self._builder.sigmoid(x)

    def head_l2_norm(self, x: int, eps: float, head_size: int) -> int:
        return self._builder.head_l2_norm(x, eps, head_size)

    def softplus(self, x: int, bias: str) -> int:
        return self._builder.softplus(x, self._weight(bias))

    def decay(self, x: int, log_rate: str) -> int:
        return self._builder.decay(x, self._weight(log_rate))

    def short_conv(self, x: int, weight: str, bias: str | None = None) -> int:
        return self._builder.short_conv(x, self._weight(weight), None if bias is None else self._weight(bias))

    def recurrence(self, kind: Recurrence, operands: RecurrenceOperands[int], num_heads: int, key_size: int) -> int:
        return self._builder.recur(
            kind,
            operands.value,
            operands.key,
            operands.query,
            operands.decay,
            operands.strength,
            num_heads=num_heads,
            key_size=key_size,
            skip=None if operands.skip is None else self._weight(operands.skip),
        )

    def add(self, x: int, y: int) -> int:
        return self._builder.add(x, y)

    def scale(self, x: int, factor: float) -> int:
        return self._builder.scale(x, factor)

    def mean(self, x: int) -> int:
        return self._builder.mean(x)

    def pooled(self, x: int, kind: Kind) -> int:
        return self._builder.pooled(x, "all" if kind == "mean" else kind)

    def logits(self, x: int, weight: str, soft_cap: float | None = None) -> int:
        return self._builder.logits(x, self._weight(weight), soft_cap)

    def _weight(self, name: str) -> int:
        tensor = self._checkpoint.encoded(name)
        weight_id = self._weight_ids.get(tensor.name)
        if weight_id is None:
            weight_id = self._builder.weight(
                tensor.format,
                tensor.data if isinstance(tensor, Tensor) else lambda: tensor.read().data,
                tensor.shape,
                name=tensor.name,
                interleaved_heads=tensor.interleaved_heads,
                is_mapped=isinstance(tensor, Tensor) and tensor.is_mapped,
                quantize=quantized_format(tensor, self._bits),
            )
            self._weight_ids[tensor.name] = weight_id
            self.tensors.append(tensor)
        return weight_id
