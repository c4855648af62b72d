"""Tracing a model into a program, with each weight passed once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from trunkline_server.backends.cpu.ops import TracingOps
from trunkline_server.models import registry
from trunkline_server.models.config import LatentAttention, ModelConfig, Recurrent
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.tensor import Tensor


class RecordingBuilder:
    """Accepts the calls of a `ProgramBuilder`; values and weights are numbered in order."""

    def __init__(self) -> None:
        self.weights: list[tuple[str, tuple[int, ...]]] = []
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def weight(self, format_name: str, data: Any, shape: tuple[int, ...], **how: Any) -> int:
        assert how.pop("name").endswith((".weight", ".bias"))
        assert how == {"interleaved_heads": None, "is_mapped": False, "quantize": None}
        assert data.nbytes == 4 * np.prod(shape)
        self.weights.append((format_name, shape))
        return len(self.weights) - 1

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **_: Any) -> int:
            self.calls.append((name, arguments))
            return 1000 + len(self.calls)

        return call


def checkpoint(config: ModelConfig) -> Any:
    shapes = weight_shapes(config)

    def tensor(name: str) -> Tensor:
        stored = "model.embed_tokens.weight" if name == "lm_head.weight" and config.tie_word_embeddings else name
        data = np.zeros(4 * int(np.prod(shapes[stored])), dtype=np.uint8)
        return Tensor(name=stored, format="F32", shape=shapes[stored], data=data)

    return SimpleNamespace(config=config, encoded=tensor, names=lambda: list(shapes))


def config(**changes: Any) -> ModelConfig:
    whole: dict[str, Any] = {
        "architecture": "llama", "vocab_size": 40, "hidden_size": 16, "mlp.size": 24, "num_layers": 2,
        "num_heads": 4, "num_kv_heads": 2, "head_size": 4, "norms.eps": 1e-5, "max_position_embeddings": 64,
        "positions.theta": 10000.0, "positions.rotated_layers": (True, True),
    }  # fmt: skip
    return ModelConfig.from_fields(whole | changes)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("architecture", sorted(registry.ARCHITECTURES.keys() - set(registry.ENCODERS)))
def test_every_weight_is_passed_once_and_a_tied_head_is_the_embedding(architecture: str, is_tied: bool) -> None:
    experts: dict[str, Any] = {}
    if architecture in (
        "deepseek_v2", "deepseek_v3", "gpt_oss", "granitemoe", "granitemoehybrid", "lfm2_moe", "mixtral", "olmoe",
        "qwen2_moe", "qwen3_moe", "qwen3_next",
    ):  # fmt: skip
        experts = {"experts.num_experts": 3, "experts.num_used": 2, "experts.size": 8, "experts.layers": (True, True)}
    if architecture.startswith("deepseek"):
        latent = LatentAttention(size=6, query_size=5 if is_tied else 0, key_size=4, value_size=3)
        experts |= {
            "attention.latent": latent,
            "num_kv_heads": 1,
            "head_size": 8,
            "positions.rotated_size": 2,
            "experts.has_shared_gate": False,
        }
        experts |= {"experts.has_choice_bias": is_tied, "experts.sigmoid": is_tied, "experts.num_groups": 3}
    if architecture in ("granitemoehybrid", "lfm2", "lfm2_moe", "qwen3_next"):
        num_keys = 1 if architecture == "granitemoehybrid" else 2
        heads = {"num_heads": 4, "value_size": 3, "num_keys": num_keys, "key_size": 5}
        recurrent = Recurrent(layers=(True, False), conv_width=3, **({} if architecture.startswith("lfm2") else heads))
        experts |= {"recurrent": recurrent, "attention.is_gated": architecture == "qwen3_next"}
        experts |= {"experts.has_shared_gate": architecture == "qwen3_next"}
    has_shared_expert = architecture in ("deepseek_v2", "granitemoehybrid", "qwen2_moe", "qwen3_next")
    model = config(
        **registry.ARCHITECTURES[architecture].facts(),
        **experts,
        **{
            "architecture": architecture,
            "experts.shared_size": 8 if has_shared_expert else 0,
            "tie_word_embeddings": is_tied,
            "attention.bias": architecture in ("gpt_oss", "qwen2", "qwen2_moe"),
            "attention.output_bias": architecture == "gpt_oss",
            "attention.windows": (16, None) if architecture.startswith("gemma") else (),
        },
    )
    builder = RecordingBuilder()
    ops = TracingOps(builder, checkpoint(model))
    registry.forward(ops, model)
    stored = {checkpoint(model).encoded(name).name for name in weight_shapes(model)}
    assert len(ops.tensors) == len(builder.weights) == len(stored)
    first, last = builder.calls[0], builder.calls[-1]
    assert (first[0], last[0]) == ("embedding", "logits")
    assert (first[1][0] == last[1][1]) is is_tied


def test_values_flow_from_one_call_to_the_next() -> None:
    model = config()
    builder = RecordingBuilder()
    registry.forward(TracingOps(builder, checkpoint(model)), model)
    names = [name for name, _ in builder.calls]
    assert names.count("paged_attention") == names.count("write_kv") == model.num_layers
    for number, (name, arguments) in enumerate(builder.calls):
        values = [value for value in arguments if isinstance(value, int) and value >= 1000]
        assert all(value <= 1000 + number for value in values), name
        if name == "rope":
            _, inv_freq, attention_factor, head_size = arguments
            assert isinstance(inv_freq, list)
            assert len(inv_freq) == head_size // 2
            assert attention_factor == 1.0
