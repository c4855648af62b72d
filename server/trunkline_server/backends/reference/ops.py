"""Implements `Ops` on torch tensors, computing each operation at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from trunkline_server.backends.reference.kv_pool import KvPool
from trunkline_server.backends.reference.turn import Turn, rotate
from trunkline_server.models.ops import ClampedSwiglu, Experts, Recurrence, RecurrenceOperands, Rope, Scores
from trunkline_server.models.pooling import Kind

Weights = Callable[[str], torch.Tensor]


class Change(NamedTuple):
    """What an adapter does to a weight W [N, K]: gain * (W + B A). a: [R, K]; b: [N, R], scaled; gain: [N] or None."""

    a: torch.Tensor
    b: torch.Tensor
    gain: torch.Tensor | None

    def scaled(self, scale: float) -> Change:
        """Returns this change `scale` times, as the sum of W, multiplied by the gain, and B A."""
        if self.gain is None:
            return Change(self.a, scale * self.b, None)
        return Change(self.a, scale * self.gain[:, None] * self.b, 1 + scale * (self.gain - 1))


# The changes of an adapter, by the names of weights.
Adapter = Mapping[str, Change]


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """The rows of one chunk: rows `begin` to `end` are positions from `first_position` on.

    slots: of all positions up to the chunk's last, [first_position + end - begin].
    second_text: position of the second of two texts, or 0.
    adapter: what the sequence's adapter adds to weights.
    """

    begin: int
    end: int
    first_position: int
    slots: torch.Tensor
    second_text: int = 0
    adapter: Adapter | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The inputs of one forward pass. token_ids, positions: [T] int64; sampling_rows: [S] int64."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    rows: list[ChunkRows]
    sampling_rows: torch.Tensor
    sees_all: bool = False


class ReferenceOps:
    """Implements `Ops[torch.Tensor]` for one step. weights: maps a name to an f32 tensor."""

    def __init__(self, weights: Weights, pool: KvPool, step: Step) -> None:
        self._weights = weights
        self._pool = pool
        self._step = step
        self._adapted = [row for row in step.rows if row.adapter is not None]
        # Tensors that `rope` returned in this layer, with their rotations.
        self._rotated: list[tuple[torch.Tensor, Rope]] = []
        self._num_recurrences = 0
        # The operand of `pooled`, [T, N].
        self.output: torch.Tensor | None = None

    def embedding(self, weight: str) -> torch.Tensor:
        return F.embedding(self._step.token_ids, self._weights(weight))

    def position_embedding(self, weight: str, offset: int) -> torch.Tensor:
        return F.embedding(self._step.positions + offset, self._weights(weight))

    def text_embedding(self, weight: str) -> torch.Tensor:
        table = self._weights(weight)
        texts = torch.zeros_like(self._step.positions)
        for row in self._step.rows:
            if row.second_text:
                texts[row.begin : row.end] = (self._step.positions[row.begin : row.end] >= row.second_text).long()
        return F.embedding(texts.clamp(max=table.shape[0] - 1), table)

    def rms_norm(self, x: torch.Tensor, weight: str, eps: float) -> torch.Tensor:
        return self._weights(weight) * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))

    def layer_norm(self, x: torch.Tensor, weight: str, bias: str | None, eps: float) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], self._weights(weight), None if bias is None else self._weights(bias), eps)

    def head_rms_norm(self, x: torch.Tensor, weight: str, eps: float, head_size: int) -> torch.Tensor:
        return self.rms_norm(_heads(x, head_size), weight, eps).flatten(-2)

    def linear(self, x: torch.Tensor, weight: str, bias: str | None = None) -> torch.Tensor:
        product = F.linear(x, self._weights(weight), None if bias is None else self._weights(bias))
        for row in self._adapted:
            if row.adapter is not None and weight in row.adapter:
                a, b, gain = row.adapter[weight]
                rows = product[row.begin : row.end]
                if gain is not None:
                    offset = 0 if bias is None else self._weights(bias)
                    rows.sub_(offset).mul_(gain).add_(offset)
                rows += F.linear(F.linear(x[row.begin : row.end], a), b)
        return product

    def head_linear(self, x: torch.Tensor, weights: Sequence[str]) -> torch.Tensor:
        heads = x.chunk(len(weights), dim=-1)
        products = [F.linear(head, self._weights(name)) for head, name in zip(heads, weights, strict=True)]
        return torch.cat(products, dim=-1)

    def join_heads(self, x: torch.Tensor, y: torch.Tensor, num_heads: int) -> torch.Tensor:
        parts = [part.view(part.shape[0], num_heads, -1) for part in (x, y)]
        return torch.cat(parts, dim=-1).flatten(-2)

    def rope(self, x: torch.Tensor, rope: Rope, head_size: int) -> torch.Tensor:
        rotated = rotate(_heads(x, head_size), self._step.positions, rope, rope.attention_factor).flatten(-2)
        self._rotated.append((rotated, rope))
        return rotated

    def write_kv(self, layer: int, key: torch.Tensor, value: torch.Tensor | None) -> None:
        slots = torch.cat([row.slots[row.first_position :] for row in self._step.rows])
        head_size = self._pool.keys.shape[-1]
        turn = Turn(self._step.positions, self._pool.block_size, self._key_rope(key))
        values = None if value is None else _heads(value, head_size)
        self._pool.write(layer, slots, _heads(key, head_size), values, turn)

    def _key_rope(self, key: torch.Tensor) -> Rope | None:
        """Returns the rotation of a layer's keys, or None if they are not rotated. Forgets the layer's tensors."""
        ropes = [rope for rotated, rope in self._rotated if rotated is key]
        self._rotated.clear()
        return ropes[0] if ropes else None

    def paged_attention(self, layer: int, query: torch.Tensor, scores: Scores) -> torch.Tensor:
        """Computes one chunk after the other, over the sequence's slots gathered into one tensor."""
        scale, window, soft_cap, sinks = scores
        head_size = self._pool.keys.shape[-1]
        value_size = self._pool.values.shape[-1]
        mixed = query.new_empty(query.shape[0], query.shape[1] // head_size * value_size)
        for row in self._step.rows:
            queries = _heads(query[row.begin : row.end], head_size).transpose(0, 1)
            keys = self._pool.keys[layer, row.slots].transpose(0, 1)
            values = self._pool.values[layer, row.slots].transpose(0, 1)
            shared_by = queries.shape[0] // keys.shape[0]
            keys, values = keys.repeat_interleave(shared_by, 0), values.repeat_interleave(shared_by, 0)
            products = _soft_capped(queries @ keys.transpose(1, 2) * scale, soft_cap)
            positions = torch.arange(row.first_position, row.slots.shape[0])[:, None]
            key_positions = torch.arange(row.slots.shape[0])[None, :]
            is_hidden = (key_positions > positions) & (not self._step.sees_all)
            if window is not None:
                is_hidden |= key_positions <= positions - window
                if self._step.sees_all:
                    is_hidden |= key_positions >= positions + window
            products = products.masked_fill(is_hidden, -torch.inf)
            if sinks is not None:
                sink = self._weights(sinks)[:, None, None].expand(-1, products.shape[1], 1)
                products = torch.cat([products, sink], dim=-1)
            weights = torch.softmax(products, dim=-1)[..., : len(row.slots)]
            mixed[row.begin : row.end] = (weights @ values).transpose(0, 1).flatten(-2)
        return mixed

    def silu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up

    def gelu_mul(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.gelu(gate, approximate="tanh") * up

    def gelu(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")

    def gelu_erf(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x)

    def tanh(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x)

    def relu_squared(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x).square()

    def experts(self, x: torch.Tensor, router_logits: torch.Tensor, experts: Experts) -> torch.Tensor:
        chosen, weights = self.routes(router_logits, experts)
        mixed = torch.zeros_like(x)
        for expert, names in enumerate(zip(experts.gate, experts.up, experts.down, strict=True)):
            rows, choices = torch.nonzero(chosen == expert, as_tuple=True)
            if len(rows):
                biases = (None,) * 3 if experts.biases is None else tuple(part[expert] for part in experts.biases)
                gate, up = (self.linear(x[rows], names[part], biases[part]) for part in range(2))
                out = self.linear(_activated(gate, up, experts.activation), names[2], biases[2])
                mixed.index_add_(0, rows, out * weights[rows, choices, None])
        return mixed

    def routes(self, router_logits: torch.Tensor, experts: Experts) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the experts that each token uses, the best first, and their weights, [T, num_used] each."""
        scores = torch.sigmoid(router_logits) if experts.sigmoid else router_logits
        if experts.choice_bias is not None:
            scores = scores + self._weights(experts.choice_bias)
        if experts.num_used_groups < experts.num_groups:
            groups = scores.view(scores.shape[0], experts.num_groups, -1)
            best = groups.topk(2 if experts.sigmoid else 1, dim=-1).values.sum(-1)
            order = torch.sort(best, descending=True, stable=True).indices
            left_out = torch.ones_like(best, dtype=torch.bool).scatter(1, order[:, : experts.num_used_groups], False)
            scores = groups.masked_fill(left_out[..., None], -torch.inf).flatten(1)
        chosen = torch.sort(scores, descending=True, stable=True).indices[:, : experts.num_used]
        masses = torch.sigmoid(router_logits) if experts.sigmoid else torch.softmax(router_logits, dim=-1)
        weights = masses.gather(1, chosen)
        return chosen, weights / weights.sum(-1, keepdim=True) if experts.renormalise else weights

    def sigmoid_scale(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(gate)

    def mul(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y

    def columns(self, x: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        return x[:, begin:end]

    def silu(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(x)

    def sigmoid(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x)

    def head_l2_norm(self, x: torch.Tensor, eps: float, head_size: int) -> torch.Tensor:
        heads = _heads(x, head_size)
        return (heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + eps)).flatten(-2)

    def softplus(self, x: torch.Tensor, bias: str) -> torch.Tensor:
        return F.softplus(x + self._weights(bias))

    def decay(self, x: torch.Tensor, log_rate: str) -> torch.Tensor:
        return torch.exp(-x * torch.exp(self._weights(log_rate)))

    def short_conv(self, x: torch.Tensor, weight: str, bias: str | None = None) -> torch.Tensor:
        taps = self._weights(weight).view(x.shape[1], -1)
        mixed = torch.empty_like(x)
        for row in self._step.rows:
            inputs = self._state(row, weight, torch.zeros(taps.shape[1] - 1, x.shape[1]))
            for index in range(row.begin, row.end):
                inputs = torch.cat([inputs, x[index : index + 1]])
                mixed[index] = (inputs.T * taps).sum(1)
                inputs = inputs[1:]
                self._keep_state(row, index, weight, inputs)
        return mixed if bias is None else mixed + self._weights(bias)

    def recurrence(
        self, kind: Recurrence, operands: RecurrenceOperands[torch.Tensor], num_heads: int, key_size: int
    ) -> torch.Tensor:
        values = operands.value.view(operands.value.shape[0], num_heads, -1)
        keys, queries = (
            _heads(x, key_size).repeat_interleave(num_heads * key_size // x.shape[1], 1)
            for x in (operands.key, operands.query)
        )
        read = torch.empty_like(values)
        name = f"recurrence {self._num_recurrences}"
        self._num_recurrences += 1
        for row in self._step.rows:
            state = self._state(row, name, torch.zeros(num_heads, values.shape[2], key_size))
            for index in range(row.begin, row.end):
                key, value = keys[index][:, None, :], values[index][..., None]
                state = state * operands.decay[index][:, None, None]
                if kind == "delta":
                    value = value - (state * key).sum(-1, keepdim=True)
                state = state + operands.strength[index][:, None, None] * value * key
                read[index] = (state * queries[index][:, None, :]).sum(-1)
                self._keep_state(row, index, name, state)
        if operands.skip is not None:
            read = read + self._weights(operands.skip)[:, None] * values
        return read.flatten(-2)

    def _state(self, row: ChunkRows, name: str, initial: torch.Tensor) -> torch.Tensor:
        """Returns a state before the rows of a chunk."""
        if row.first_position == 0:
            return initial
        return self._pool.states[int(row.slots[row.first_position - 1]) // self._pool.block_size][name]

    def _keep_state(self, row: ChunkRows, index: int, name: str, state: torch.Tensor) -> None:
        """Keeps a state behind row `index` if a block or the chunk ends there."""
        position = row.first_position + index - row.begin
        if (position + 1) % self._pool.block_size == 0 or index == row.end - 1:
            block_id = int(row.slots[position]) // self._pool.block_size
            self._pool.states.setdefault(block_id, {})[name] = state

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    def mean(self, x: torch.Tensor) -> torch.Tensor:
        means = torch.empty_like(x)
        for row in self._step.rows:
            means[row.begin : row.end] = x[row.begin : row.end].double().mean(0)
        return means

    def pooled(self, x: torch.Tensor, kind: Kind) -> torch.Tensor:
        self.output = x
        return x[self._step.sampling_rows]

    def logits(self, x: torch.Tensor, weight: str, soft_cap: float | None = None) -> torch.Tensor:
        return _soft_capped(F.linear(x[self._step.sampling_rows], self._weights(weight)), soft_cap)


def _activated(gate: torch.Tensor, up: torch.Tensor, activation: ClampedSwiglu | None) -> torch.Tensor:
    if activation is None:
        return F.silu(gate) * up
    gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
    return (up + 1) * (gate * torch.sigmoid(activation.alpha * gate))


def _soft_capped(x: torch.Tensor, cap: float | None) -> torch.Tensor:
    return x if cap is None else cap * torch.tanh(x / cap)


def _heads(x: torch.Tensor, head_size: int) -> torch.Tensor:
    """Views [T, heads * D] as [T, heads, D]."""
    return x.view(x.shape[0], -1, head_size)
