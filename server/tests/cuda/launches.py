"""Launches of every kernel with the shapes of real models, for `compiled`, where a launch only compiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from tests.cuda.kv_oracle import Scene, make_rope, make_scene
from trunkline_server._proto.shard_pb2 import TokenBias, Watermark
from trunkline_server.backends.cuda.adapters import DeviceAdapters, SlotLayout
from trunkline_server.backends.cuda.device import Device
from trunkline_server.backends.cuda.kernels.activation import (
    GELU,
    GELU_ERF,
    IDENTITY,
    RELU_SQUARED,
    SIGMOID,
    SILU,
    activate,
)
from trunkline_server.backends.cuda.kernels.attention_decode import decode_attention
from trunkline_server.backends.cuda.kernels.embedding import embedding
from trunkline_server.backends.cuda.kernels.experts import combine, expert_product, route
from trunkline_server.backends.cuda.kernels.grouped import dequantized_rows
from trunkline_server.backends.cuda.kernels.head_linear import head_linear
from trunkline_server.backends.cuda.kernels.linear import linear
from trunkline_server.backends.cuda.kernels.linear_dense import dense_linear
from trunkline_server.backends.cuda.kernels.linear_gated import gated_linear
from trunkline_server.backends.cuda.kernels.low_rank import add_low_rank
from trunkline_server.backends.cuda.kernels.mean import mean
from trunkline_server.backends.cuda.kernels.norm import add_rms_norm, head_l2_norm, head_rms_norm, layer_norm, rms_norm
from trunkline_server.backends.cuda.kernels.product import ProductEnd, Unsummed
from trunkline_server.backends.cuda.kernels.recurrence import decay, recurrence, softplus
from trunkline_server.backends.cuda.kernels.rope_kv import rope_and_write_kv, rope_tables
from trunkline_server.backends.cuda.kernels.short_conv import short_conv
from trunkline_server.backends.cuda.kernels.tokens import fill_tokens
from trunkline_server.backends.cuda.key_scaling import KeyScaling
from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight
from trunkline_server.backends.cuda.quantized.scaled import ScaledWeight
from trunkline_server.backends.cuda.sampling import DeviceSampler, RowRequest
from trunkline_server.backends.cuda.sampling_rules import SamplingRules
from trunkline_server.backends.cuda.step_input import AdapterUse, Entry, StepLayout, shape_of
from trunkline_server.backends.cuda.weights import DenseWeight, DeviceWeight
from trunkline_server.backends.interface import sampling_params
from trunkline_server.models.ops import ClampedSwiglu, RecurrenceOperands

BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
# Llama-3-8B: gate and up, and down.
WIDE, NARROW = (28672, 4096), (4096, 14336)
EPS = 1e-5


def new(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Returns a tensor that nothing reads, so that it takes no memory."""
    return torch.empty(shape, dtype=dtype)


def product(dtype: torch.dtype, shape: tuple[int, int], num_rows: int, *, is_tma: bool | None = None) -> None:
    """Multiplies rows with a dense weight, or one with a scale for each row."""
    num_outputs, num_inputs = shape
    values, x = new(*shape, dtype=dtype), new(num_rows, num_inputs)
    if dtype == BF16:
        plan = DenseWeight.of("w", values).plan
        dense_linear(x, values, plan, ProductEnd(), new(num_rows, num_outputs), is_tma=is_tma)
    else:
        scales = new(num_outputs, dtype=F32)
        linear(
            x, ScaledWeight(num_outputs=num_outputs, num_inputs=num_inputs, dtype=BF16, values=values, scales=scales)
        )


def gated(num_rows: int) -> None:
    gated_linear(new(num_rows, WIDE[1]), DenseWeight.of("w", new(*WIDE)), SILU)


def grouped_weight(
    bits: int, group_size: int, *has: str, num_experts: int = 1, shape: tuple[int, int] = NARROW
) -> GroupedWeight:
    num_outputs, num_inputs = shape[0] * num_experts, shape[1]
    of_groups = partial(new, num_outputs, num_inputs // group_size, dtype=torch.float16)
    optional = {
        "zeros": of_groups, "minima": of_groups, "table": partial(new, 16, dtype=F32),
        "bias": partial(new, num_outputs, dtype=F32),
    }  # fmt: skip
    stored = torch.uint8 if bits == 4 or "e4m3" in has else torch.int8
    return GroupedWeight(
        num_outputs=num_outputs, num_inputs=num_inputs, dtype=BF16, bits=bits, group_size=group_size,
        quants=new(num_outputs, num_inputs * bits // 8, dtype=stored), scales=of_groups(),
        zero_point=8 if bits == 4 else 0, **{name: optional[name]() for name in has if name in optional},
    )  # fmt: skip


def grouped(num_rows: int, bits: int, group_size: int, *has: str) -> None:
    weight = grouped_weight(bits, group_size, *has)
    linear(new(num_rows, weight.num_inputs), weight)


def adapters(shape: tuple[int, int]) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    layout = SlotLayout([DenseWeight.of(name, new(*shape))], 64, torch.device("cpu"))
    slots, place = DeviceAdapters(layout, 4, BF16, Device()), layout.place(name)
    entries = [Entry([0] * 64, 0, [0] * 4, [], adapter=AdapterUse(1, 1.0))]
    rows = StepLayout(shape_of(entries, 1, 4), max_blocks=4)
    step = rows.tensors(new(rows.num_words, dtype=torch.int32)).adapter_rows
    assert place is not None and step is not None
    bias = new(shape[0], dtype=torch.float32)
    add_low_rank(new(64, shape[1]), new(64, shape[0]), place, slots.tensors, step, bias)


def experts(num_rows: int, weight: GroupedWeight | None = None, **routing: int) -> None:
    """Uses 8 of 128 experts, or 4 of 32 that are quantised."""
    num_experts, num_used = (128, 8) if weight is None else (32, 4)
    entries, logits = new(num_rows, dtype=torch.int32), new(num_rows, num_experts)
    routes = route(logits, entries, num_used, renormalise=True, **routing)
    if weight is None:
        bias = new(num_experts * 768, dtype=F32) if num_rows > 64 else None
        stacked: DeviceWeight = DenseWeight.of("w", new(num_experts * 768, 2048), bias)
    else:
        stacked = weight
    expert_product(new(num_rows, stacked.num_inputs), stacked, routes, is_sorted=False, out_dtype=BF16)
    combine(new(num_rows * num_used, 2048, dtype=F32), routes, entries, BF16)


def routes_by_groups(*, sigmoid: bool) -> None:
    """Chooses as DeepSeek-V3 does, and as DeepSeek-V2."""
    bias = new(256, dtype=F32) if sigmoid else None
    entries = new(64, dtype=torch.int32)
    route(
        new(64, 256), entries, 8, renormalise=sigmoid, sigmoid=sigmoid, choice_bias=bias, num_groups=8,
        num_used_groups=4,
    )  # fmt: skip


def norms() -> None:
    rows, wide, weight = new(64, 4096), new(64, 4096, dtype=F32), new(4096, dtype=F32)
    rms_norm(rows, weight, EPS, BF16)
    add_rms_norm(wide, rows, weight, EPS, BF16)
    layer_norm(wide, weight, weight, EPS, BF16)
    head_rms_norm(rows, new(128, dtype=F32), EPS, 128)


def sum_of_splits() -> None:
    partials = Unsummed(new(2, 64, 4096, dtype=F32), ProductEnd(), new(64, 4096))
    add_rms_norm(new(64, 4096, dtype=F32), partials, new(4096, dtype=F32), EPS, BF16)


def activations() -> None:
    rows = new(64, 4096)
    activate(GELU, rows, rows)
    activate(ClampedSwiglu(alpha=1.702, limit=7.0), rows, rows)
    activate(RELU_SQUARED, rows)
    activate(GELU_ERF, rows)


def rows_of_all_kinds() -> None:
    fill_tokens(new(64, dtype=torch.int32), new(64, dtype=torch.int32))
    embedding(new(64, dtype=torch.int32), DenseWeight.of("w", new(1024, 4096)))
    mean(new(64, 4096), new(3, dtype=torch.int32))
    dequantized_rows(grouped_weight(4, 32), None, new(*NARROW))


def scene(format: str, entries: list[tuple[int, int]] | None = None, **sizes: int) -> Scene:
    """Makes a step of a decode and a chunk of a model with 32 heads of 128 elements and 8 of keys."""
    shape = {"num_heads": 32, "num_kv_heads": 8, "head_size": 128, "block_size": 64, **sizes}
    made = make_scene(entries or [(600, 1), (100, 70)], device="cpu", format=format, **shape)
    if format == "int4":
        means = new(2, made.shape.num_kv_heads, 20, made.shape.head_size)
        made.pool.key_scaling = KeyScaling(new(2, 2, *means.shape[1::2], dtype=F32), means)
    return made


def attention(format: str, **options: bool | int) -> None:
    scene(format).attend(sinks=new(32, dtype=F32) if format == "fp8" else None, **options)


def decodes(format: str) -> None:
    made = scene(format, [(600, 1), (300, 1)])
    q, k = (new(2, heads * made.shape.head_size) for heads in (made.shape.num_heads, made.shape.num_kv_heads))
    tables = rope_tables(make_rope(128), 1024, "cpu")
    decode_attention(q, k, k, tables, made.pool, 1, *made.prepared(), 0.125)


def writes(format: str) -> None:
    pool, rows = scene(format).pool, new(64, dtype=torch.int32)
    q, k = new(64, 4096), new(64, 1024)
    rope_and_write_kv(q, k, k, rows, rows, rope_tables(make_rope(128), 64, "cpu"), pool, 1)


def latents() -> None:
    """The sizes of DeepSeek-V2-Lite."""
    sizes = {"num_heads": 16, "num_kv_heads": 1, "head_size": 576, "latent_size": 512}
    scene("bf16", **sizes).attend()
    for num_rows in (16, 512):
        head_linear(new(num_rows, 16 * 128), new(16, 512, 128))


def recurrent() -> None:
    """Layers of LFM2, Granite 4 and Qwen3-Next: decodes and a chunk."""
    states, parameters = new(8, 1 << 20, dtype=F32), new(4096, dtype=F32)
    for width, num_rows in ((3, 1), (4, 64)):
        entries = [Entry([0] * num_rows, 0, [0] * 4, [])]
        layout = StepLayout(shape_of(entries, 1), max_blocks=4)
        step = layout.tensors(new(layout.num_words, dtype=torch.int32))
        short_conv(
            new(num_rows, 4096), new(4096 * width, dtype=F32), parameters if width == 4 else None, states, 16, step
        )
    value, key, scalars = (new(64, size, dtype=F32) for size in (4096, 1024, 32))
    operands = RecurrenceOperands(value=value, key=key, query=key, decay=scalars, strength=scalars)
    recurrence("scan", operands, parameters, 32, 128, states, 16, step)
    recurrence("delta", operands, None, 32, 128, states, 16, step)
    decay(softplus(new(64, 4096), parameters), parameters)
    head_l2_norm(activate(IDENTITY, activate(SIGMOID, new(64, 4096)), value), EPS, 128)


def all_filters() -> None:
    """The most demanding form of each of the sampler's kernels."""
    params = sampling_params(
        temperature=1.0, top_p=0.9, typical_p=0.9, top_n_sigma=1.0, logit_bias=[TokenBias(bias=1.0)], logprobs=True,
        repetition_penalty=1.1, num_top_logprobs=1, watermark=Watermark(gamma=0.5, delta=2.0, key=1),
        allowed_tokens=b"\xff" * (1 << 14),
    )  # fmt: skip
    rules = SamplingRules(params, [0], 1, 1 << 17)
    request = RowRequest(rules=rules, num_top=1, mask=rules.allowed)
    DeviceSampler(Device(), 1 << 17, 64, 20).launch(new(1, 1 << 17, dtype=F32), [request])


# Launches that `make test` compiles: one of each kind.
FIRST = {
    "8192 rows", "gated 8192 rows", "4 bits zeros", "e4m3", "experts", "experts of 4 bits", "norms",
    "sum of splits", "adapters", "attention bf16", "decodes bf16", "writes bf16", "latents", "recurrent", "all filters",
}  # fmt: skip


# Launches that are compiled for other cards: of each kernel that depends on the card one or two.
ON_OTHER_CARDS = {
    "8.0": {"8192 rows of one split", "latents", "e4m3 made bf16", "attention bf16", "decodes bf16"},
    # The widest heads on the least shared memory.
    "8.9": {"8192 rows of one split", "latents", "e4m3", "wide heads", "adapters"},
    "10.0": {"8192 rows of one split", "1 row", "e4m3", "attention bf16", "decodes bf16"},
    "12.0": {"8192 rows of one split", "latents", "e4m3", "4 bits zeros"},
}


def launches() -> dict[str, Callable[[], object]]:
    return {
        "1 row": partial(product, BF16, NARROW, 1),
        "1 row by pointers": partial(product, BF16, NARROW, 1, is_tma=False),
        "64 rows": partial(product, BF16, WIDE, 64),
        "8192 rows": partial(product, BF16, NARROW, 8192),
        "8192 rows of one split": partial(product, BF16, WIDE, 8192),
        **{f"gated {rows} rows": partial(gated, rows) for rows in (1, 32, 64, 8192)},
        "e4m3": partial(product, E4M3, WIDE, 64),
        "e4m3 8192 rows": partial(product, E4M3, NARROW, 8192),
        "i8": partial(product, torch.int8, NARROW, 1),
        "4 bits minima": partial(grouped, 16, 4, 32, "minima"),
        "4 bits zeros": partial(grouped, 64, 4, 128, "zeros"),
        "4 bits table": partial(grouped, 16, 4, 64, "table"),
        "8 bits": partial(grouped, 16, 8, 32),
        "e4m3 made bf16": partial(grouped, 64, 8, 3584, "e4m3"),
        "adapters": partial(adapters, NARROW),
        "experts": partial(experts, 16),
        "experts of many rows": partial(experts, 8192),
        "experts of 4 bits": lambda: experts(
            16, grouped_weight(4, 32, "table", "bias", num_experts=32, shape=(768, 2048))
        ),
        "experts zeros": lambda: experts(8192, grouped_weight(4, 128, "zeros", num_experts=32, shape=(768, 2048))),
        "experts e4m3": lambda: experts(8192, grouped_weight(8, 2048, "e4m3", num_experts=32, shape=(768, 2048))),
        "groups of experts": partial(routes_by_groups, sigmoid=True),
        "groups of experts, softmax": partial(routes_by_groups, sigmoid=False),
        "norms": norms,
        "sum of splits": sum_of_splits,
        "activations": activations,
        "rows": rows_of_all_kinds,
        **{f"attention {format}": partial(attention, format) for format in ("bf16", "fp8", "int8", "int4")},
        "attention of encoders": partial(attention, "bf16", sees_all=True, window=128),
        "wide heads": lambda: scene("bf16", head_size=256).attend(),
        "attention of one": lambda: scene("bf16", [(300, 1)]).attend(),
        **{f"decodes {format}": partial(decodes, format) for format in ("bf16", "fp8")},
        **{f"writes {format}": partial(writes, format) for format in ("bf16", "fp8", "int4")},
        "latents": latents,
        "recurrent": recurrent,
        "all filters": all_filters,
        "sampler": lambda: DeviceSampler(Device(), 1 << 17, 64, 20).warm_up(new(64, 1 << 17, dtype=F32)),
    }
