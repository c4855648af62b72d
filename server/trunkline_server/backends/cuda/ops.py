"""Implements `Ops` with the kernels, combining operations that one kernel does at once.

A sum waits for the norm that follows it, and a rotation for the write of the keys. Projections of the same x are one
product if their weights are stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch
import triton.language as tl

from trunkline_server.backends.cuda.adapters import DeviceAdapters
from trunkline_server.backends.cuda.flash import FlashAttention, LongChunk
from trunkline_server.backends.cuda.kernels import activation as activations
from trunkline_server.backends.cuda.kernels import recurrence as recurrences
from trunkline_server.backends.cuda.kernels.activation import activate
from trunkline_server.backends.cuda.kernels.attention import AttentionSpace, paged_attention
from trunkline_server.backends.cuda.kernels.attention_decode import decode_attention, joins_decodes
from trunkline_server.backends.cuda.kernels.attention_latent import latent_attention
from trunkline_server.backends.cuda.kernels.attention_plan import AttentionPlan, AttentionStep
from trunkline_server.backends.cuda.kernels.embedding import embedding
from trunkline_server.backends.cuda.kernels.experts import combine, expert_product, route
from trunkline_server.backends.cuda.kernels.head_linear import head_linear
from trunkline_server.backends.cuda.kernels.linear import library_linear, linear, unsummed_linear
from trunkline_server.backends.cuda.kernels.linear_gated import gated_linear, is_gated
from trunkline_server.backends.cuda.kernels.low_rank import add_low_rank
from trunkline_server.backends.cuda.kernels.mean import mean
from trunkline_server.backends.cuda.kernels.norm import add_rms_norm, head_l2_norm, head_rms_norm, layer_norm, rms_norm
from trunkline_server.backends.cuda.kernels.product import Unsummed, summed
from trunkline_server.backends.cuda.kernels.rope_kv import RopeTables, rope_and_write_kv
from trunkline_server.backends.cuda.kernels.short_conv import short_conv
from trunkline_server.backends.cuda.kv_pool import KvPool
from trunkline_server.backends.cuda.step_input import StepTensors
from trunkline_server.backends.cuda.weights import DenseWeight, DeviceWeight, DeviceWeights
from trunkline_server.models.ops import Experts, Recurrence, RecurrenceOperands, Rope, Scores
from trunkline_server.models.pooling import Kind


@dataclass(slots=True, eq=False)
class Sum:
    """The sum residual + delta (a whole product or a tensor), which the next norm computes. total: None until then."""

    residual: torch.Tensor
    delta: torch.Tensor | Part
    total: torch.Tensor | None = None


@dataclass(slots=True, eq=False)
class Rotated:
    """A value x [T, heads * D] that is rotated when keys are written."""

    x: torch.Tensor
    rope: Rope


@dataclass(slots=True, eq=False)
class Product:
    """A product of x [T, K] with a stack of weights, which is launched when the first member of the stack is needed.

    add: adds to the result, of x and the result, what adapters add; None if the step has none that may change it.
    """

    x: torch.Tensor
    matrix: DeviceWeight
    has_bias: bool
    is_fast: bool
    add: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    _result: torch.Tensor | Unsummed | None = None

    def unsummed(self) -> torch.Tensor | Unsummed:
        if self._result is None:
            multiply = library_linear if self.is_fast else unsummed_linear
            self._result = multiply(self.x, self.matrix, has_bias=self.has_bias)
            if self.add is not None:
                self._result = self.add(self.x, summed(self._result))
        return self._result

    def summed(self) -> torch.Tensor:
        self._result = summed(self.unsummed())
        return self._result


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The columns [begin, end) of a product."""

    product: Product
    begin: int
    end: int

    @property
    def is_whole(self) -> bool:
        return self.end - self.begin == self.product.matrix.num_outputs


Value: TypeAlias = torch.Tensor | Sum | Rotated | Part


@dataclass(kw_only=True)
class DeviceModel:
    """Everything that steps of a model share, at fixed addresses.

    dtype: of activations between operations; the residual is f32. plans: by window. rope_tables: by rope, made before
    any step needs them. logits: [most rows, V] f32, of the last step. enter_layer: called before a layer's K and V are
    read or written. flash: for long chunks of uncaptured steps. vectors: [most rows, N] f32, of the last step, if the
    model makes vectors. states: [n, size] f32, see `StatePool`, if layers are recurrent. adapters: None without slots.
    """

    weights: DeviceWeights
    pool: KvPool
    space: AttentionSpace
    plans: dict[int | None, AttentionPlan]
    rope_tables: dict[Rope, RopeTables]
    dtype: torch.dtype
    logits: torch.Tensor
    is_fast: bool = False
    enter_layer: Callable[[int], None] = lambda layer: None
    flash: FlashAttention | None = None
    vectors: torch.Tensor | None = None
    states: torch.Tensor | None = None
    adapters: DeviceAdapters | None = None


@dataclass
class CudaOps:
    """Implements `RecurrentOps[Value]` for one step.

    Padding rows are computed like others, but their results are not used.
    """

    model: DeviceModel
    step: StepTensors
    _updated: set[int | None] = field(default_factory=set)
    # Chunks that flash-attn computes, and context lengths [S] in which these are 0.
    _long: tuple[list[LongChunk], torch.Tensor] | None = None
    # The last x and its product with a stack of weights, of which other members of the stack are parts.
    _product: tuple[Value, Product] | None = None
    _written: tuple[int, Value, torch.Tensor | None] | None = None
    # Elements of a state that the layers so far have taken.
    _state_size: int = 0

    def embedding(self, weight: str) -> Value:
        matrix, begin, _ = self.model.weights.matrix(weight)
        assert begin == 0, "the embedding is not stacked"
        return embedding(self.step.token_ids, matrix)

    def rms_norm(self, x: Value, weight: str, eps: float) -> Value:
        """Normalises the residual into the products' dtype; a product into f32, as it is then added to the residual."""
        factors = self.model.weights.vector(weight)
        if isinstance(x, Sum) and x.total is None:
            delta = x.delta.product.unsummed() if isinstance(x.delta, Part) else x.delta
            x.total, normed = add_rms_norm(x.residual, delta, factors, eps, self.model.dtype)
            return normed
        x = dense(x)
        is_residual = x.dtype == torch.float32
        return rms_norm(x, factors, eps, self.model.dtype if is_residual else torch.float32)

    def layer_norm(self, x: Value, weight: str, bias: str | None, eps: float) -> Value:
        """Normalises the residual into the products' dtype."""
        vector = self.model.weights.vector
        return layer_norm(dense(x), vector(weight), None if bias is None else vector(bias), eps, self.model.dtype)

    def head_rms_norm(self, x: Value, weight: str, eps: float, head_size: int) -> Value:
        x = dense(x)
        return head_rms_norm(x, self.model.weights.vector(weight), eps, head_size, out=x)

    def linear(self, x: Value, weight: str, bias: str | None = None) -> Value:
        matrix, begin, end = self.model.weights.matrix(weight)
        has_bias = bias is not None
        known = self._product
        if known is None or known[0] is not x or known[1].matrix is not matrix or known[1].has_bias != has_bias:
            rows = dense(x)
            # A residual that no norm has narrowed.
            rows = rows.to(self.model.dtype) if rows.dtype == torch.float32 else rows
            known = self._product = (
                x,
                Product(rows, matrix, has_bias, self.model.is_fast, self._adapters(weight, has_bias)),
            )
        return Part(known[1], begin, end)

    def _adapters(self, weight: str, has_bias: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
        """Returns `Product.add` of the stack that a weight is in."""
        slots, step = self.model.adapters, self.step.adapter_rows
        place = None if slots is None or step is None else slots.layout.place(weight)
        if slots is None or step is None or place is None:
            return None
        bias = self.model.weights.matrix(weight)[0].bias if has_bias else None
        return partial(add_low_rank, place=place, slots=slots.tensors, step=step, bias=bias)

    def head_linear(self, x: Value, weights: Sequence[str]) -> Value:
        matrix, _, _ = self.model.weights.matrix(weights[0])
        assert isinstance(matrix, DenseWeight), "the loader makes matrices of heads dense"
        stack = matrix.values.view(len(weights), -1, matrix.num_inputs)
        return head_linear(dense(x).to(self.model.dtype), stack)

    def join_heads(self, x: Value, y: Value, num_heads: int) -> Value:
        rows = [dense(part).to(self.model.dtype) for part in (x, y)]
        parts = [part.view(part.shape[0], num_heads, -1) for part in rows]
        return torch.cat(parts, dim=-1).flatten(1)

    def rope(self, x: Value, rope: Rope, head_size: int) -> Value:
        return Rotated(dense(x), rope)

    def write_kv(self, layer: int, key: Value, value: Value | None) -> None:
        """Keeps key and value until `paged_attention`, whose kernel rotates queries and keys together."""
        assert self._written is None, "a layer without attention"
        self._written = layer, key, None if value is None else dense(value)

    def _take_written(self, layer: int) -> tuple[Value, torch.Tensor | None]:
        """Returns the layer's key and value, which `write_kv` has kept."""
        assert self._written is not None and self._written[0] == layer, "write_kv must come first"
        _, key, value = self._written
        self._written = None
        return key, value

    def paged_attention(self, layer: int, query: Value, scores: Scores) -> Value:
        scale, window, soft_cap, sinks = scores
        key, value = self._take_written(layer)
        ropes = [x.rope if isinstance(x, Rotated) else None for x in (query, key)]
        assert ropes[0] == ropes[1], "queries and keys of a layer are rotated alike"
        tables = None if ropes[0] is None else self.model.rope_tables[ropes[0]]
        sink_scores = None if sinks is None else self.model.weights.vector(sinks)
        self.model.enter_layer(layer)
        chunks, contexts = self._long_chunks()
        step = AttentionStep(self.step.block_tables, self.step.query_begin, contexts)
        model, is_decode = self.model, self.step.shape.is_decode
        plan = self.model.plans[window]
        if window not in self._updated:
            plan.update(step, self.step.shape.num_rows)
            self._updated.add(window)
        q, k = _unrotated(query), _unrotated(key)
        if is_decode and value is not None and joins_decodes(model.pool):
            return decode_attention(
                q, k, value, tables, model.pool, layer, step, plan, model.space, scale, soft_cap, sinks=sink_scores
            )
        turned = rope_and_write_kv(q, k, value, self.step.positions, self.step.slots, tables, model.pool, layer)
        if model.pool.layout.latent_size is not None:
            assert soft_cap is None, "latent attention has no soft caps"
            return latent_attention(turned, model.pool, layer, step, plan, model.space, scale, decode_only=is_decode)
        out = paged_attention(
            turned, model.pool, layer, step, plan, model.space, scale, soft_cap, decode_only=is_decode,
            sinks=sink_scores,
        )  # fmt: skip
        for chunk in chunks:
            assert self.model.flash is not None
            self.model.flash.attend(
                turned, self.model.pool, layer, chunk, self.step.block_tables[chunk.index],
                scale=scale, window=window, soft_cap=soft_cap, out=out,
            )  # fmt: skip
        return out

    def _long_chunks(self) -> tuple[list[LongChunk], torch.Tensor]:
        """Returns the chunks that flash-attn computes, and the context lengths, with 0 for these chunks."""
        if self._long is None:
            flash, entries, contexts = self.model.flash, self.step.entries, self.step.context_length
            chunks = [] if flash is None or entries is None else flash.long_chunks(entries, self.model.pool.layout)
            if chunks:
                contexts = contexts.clone()
                for chunk in chunks:
                    contexts[chunk.index] = 0
            self._long = chunks, contexts
        return self._long

    def silu_mul(self, gate: Value, up: Value) -> Value:
        return _gated(activations.SILU, gate, up)

    def gelu_mul(self, gate: Value, up: Value) -> Value:
        return _gated(activations.GELU, gate, up)

    def gelu(self, x: Value) -> Value:
        return activate(activations.GELU, dense(x))

    def relu_squared(self, x: Value) -> Value:
        return activate(activations.RELU_SQUARED, dense(x))

    def experts(self, x: Value, router_logits: Value, experts: Experts) -> Value:
        x, row_entry = dense(x), self.step.row_entry
        bias = None if experts.choice_bias is None else self.model.weights.vector(experts.choice_bias)
        routes = route(
            dense(router_logits), row_entry, experts.num_used, renormalise=experts.renormalise,
            sigmoid=experts.sigmoid, choice_bias=bias, num_groups=experts.num_groups,
            num_used_groups=experts.num_used_groups,
        )  # fmt: skip
        # One matrix has those of all experts, and gate and up of an expert are joined in it.
        joined, down = (self.model.weights.matrix(names[0])[0] for names in (experts.gate, experts.down))
        both = expert_product(x, joined, routes, is_sorted=False, out_dtype=x.dtype)
        gate, up = both.chunk(2, dim=1)
        hidden = activate(experts.activation or activations.SILU, gate, up)
        parts = expert_product(hidden, down, routes, is_sorted=True, out_dtype=torch.float32)
        return combine(parts, routes, row_entry, x.dtype)

    def sigmoid_scale(self, x: Value, gate: Value) -> Value:
        x = dense(x)
        return (x.float() * torch.sigmoid(dense(gate).float())).to(x.dtype)

    def add(self, x: Value, y: Value) -> Value:
        return Sum(dense(x), y if isinstance(y, Part) and y.is_whole else dense(y))

    def scale(self, x: Value, factor: float) -> Value:
        return dense(x) * factor

    def position_embedding(self, weight: str, offset: int) -> Value:
        return embedding(self.step.positions + offset, self.model.weights.matrix(weight)[0])

    def text_embedding(self, weight: str) -> Value:
        matrix = self.model.weights.matrix(weight)[0]
        second = self.step.second_text[self.step.row_entry]
        is_second = (second > 0) & (self.step.positions >= second)
        return embedding(is_second.int().clamp(max=matrix.num_outputs - 1), matrix)

    def gelu_erf(self, x: Value) -> Value:
        return activate(activations.GELU_ERF, dense(x))

    def tanh(self, x: Value) -> Value:
        x = dense(x)
        return torch.tanh(x.float()).to(x.dtype)

    def mul(self, x: Value, y: Value) -> Value:
        return activate(activations.IDENTITY, dense(y), dense(x))

    def columns(self, x: Value, begin: int, end: int) -> Value:
        return dense(x)[:, begin:end]

    def silu(self, x: Value) -> Value:
        return activate(activations.SILU, dense(x))

    def sigmoid(self, x: Value) -> Value:
        return activate(activations.SIGMOID, dense(x), out_dtype=torch.float32)

    def head_l2_norm(self, x: Value, eps: float, head_size: int) -> Value:
        return head_l2_norm(dense(x), eps, head_size)

    def softplus(self, x: Value, bias: str) -> Value:
        return recurrences.softplus(dense(x), self.model.weights.vector(bias))

    def decay(self, x: Value, log_rate: str) -> Value:
        return recurrences.decay(dense(x), self.model.weights.vector(log_rate))

    def short_conv(self, x: Value, weight: str, bias: str | None = None) -> Value:
        taps, vector = self.model.weights.vector(weight), self.model.weights.vector
        x = dense(x)
        states, offset = self._states(len(taps) - x.shape[1])
        return short_conv(x, taps, None if bias is None else vector(bias), states, offset, self.step)

    def recurrence(self, kind: Recurrence, operands: RecurrenceOperands[Value], num_heads: int, key_size: int) -> Value:
        rows = RecurrenceOperands(
            value=dense(operands.value), key=dense(operands.key), query=dense(operands.query),
            decay=dense(operands.decay), strength=dense(operands.strength),
        )  # fmt: skip
        skip = None if operands.skip is None else self.model.weights.vector(operands.skip)
        states, offset = self._states(rows.value.shape[1] * key_size)
        return recurrences.recurrence(kind, rows, skip, num_heads, key_size, states, offset, self.step)

    def _states(self, size: int) -> tuple[torch.Tensor, int]:
        """Returns the states, and where the next `size` elements of each begin, which belong to one operation."""
        assert self.model.states is not None, "the model has recurrent layers"
        begin = self._state_size
        self._state_size += size
        return self.model.states, begin

    def mean(self, x: Value) -> Value:
        return mean(dense(x), self.step.query_begin)

    def pooled(self, x: Value, kind: Kind) -> Value:
        """Copies the rows to `DeviceModel.vectors`: those that sample, or all of which the mean is taken."""
        assert self.model.vectors is not None, "the model makes vectors"
        x = dense(x)
        sampled = x[self.step.sampling_rows]
        rows = x if kind == "mean" else sampled
        self.model.vectors[: len(rows)].copy_(rows)
        return sampled

    def logits(self, x: Value, weight: str, soft_cap: float | None = None) -> Value:
        matrix, _, _ = self.model.weights.matrix(weight)
        out = self.model.logits[: self.step.shape.num_logits]
        rows = torch.index_select(dense(x), 0, self.step.sampling_rows)
        if self.model.is_fast:
            return out.copy_(library_linear(rows, matrix, soft_cap=soft_cap, out_dtype=torch.float32))
        return linear(rows, matrix, soft_cap=soft_cap, out=out)


def _gated(kind: tl.constexpr, gate: Value, up: Value) -> torch.Tensor:
    """Computes activation(gate) * up, in one launch with the product if they are the halves of one that allows it."""
    if isinstance(gate, Part) and isinstance(up, Part) and gate.product is up.product and gate.begin < up.begin:
        product = gate.product
        if not product.is_fast and product.add is None and is_gated(product.matrix):
            return gated_linear(product.x, product.matrix, kind, has_bias=product.has_bias)
    return activate(kind, dense(gate), dense(up))


def _unrotated(x: Value) -> torch.Tensor:
    return x.x if isinstance(x, Rotated) else dense(x)


def dense(x: Value) -> torch.Tensor:
    """Returns a value as a tensor. Launches a product, and a sum that no norm has computed."""
    if isinstance(x, Sum):
        if x.total is None:
            # In f32, even if neither is the residual of the model.
            x.total = x.residual.float() + dense(x.delta)
        return x.total
    if isinstance(x, Part):
        return x.product.summed()[:, x.begin : x.end]
    assert not isinstance(x, Rotated), "a rotated value is only for write_kv and paged_attention"
    return x
