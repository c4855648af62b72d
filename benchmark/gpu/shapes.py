"""Models with random weights, in the shapes of Llama-3.2-1B and Llama-3-8B and in smaller ones for checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tests.weights.quantized_files import CASES

SPREAD = 0.02
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes as in config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool = False

    @property
    def layer_weights(self) -> int:
        """The number of elements in a layer's matrices."""
        heads = (2 * self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim
        return self.hidden_size * (heads + 3 * self.intermediate_size)

    @property
    def product_weights(self) -> int:
        """The number of weights that each token of a prompt is multiplied with, without the head."""
        return self.num_hidden_layers * self.layer_weights

    @property
    def head_weights(self) -> int:
        return self.vocab_size * self.hidden_size

    def attention_operations(self, num_tokens: int) -> float:
        """Returns the floating-point operations of causal attention over a prompt in all layers."""
        width = self.num_attention_heads * self.head_dim
        return 2.0 * num_tokens * num_tokens * width * self.num_hidden_layers


# The `quantization_config` of FP8 models, and the function that quantises one of their matrices.
FP8_CONFIG, QUANTIZE = CASES["fp8_dynamic"]
SHAPES = {
    "tiny": Shape(
        vocab_size=160, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=256,
    ),
    "small": Shape(
        vocab_size=8192, hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16,
        num_key_value_heads=4, head_dim=64, max_position_embeddings=8192,
    ),
    "llama-1b": Shape(
        vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, max_position_embeddings=131_072, tie_word_embeddings=True,
    ),
    "llama-8b": Shape(
        vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=131_072,
    ),
}  # fmt: skip
# The measured models. A name consists of a shape and an optional suffix for the weights' dtype.
NAMES = ("llama-8b", "llama-8b-fp8", "llama-1b")


def is_fp8(name: str) -> bool:
    return name.endswith("-fp8")


def weight_bytes(name: str) -> int:
    """Returns the size of a model's weights, a little too large for FP8."""
    shape = shape_of(name)
    embeddings = shape.head_weights * (1 if shape.tie_word_embeddings else 2)
    return 2 * embeddings + shape.product_weights * (1 if is_fp8(name) else 2)


def shape_of(name: str) -> Shape:
    return SHAPES[name.removesuffix("-fp8")]


def write_model(shape: Shape, folder: Path, device: str, *, is_fp8: bool = False) -> Path:
    """Writes a model with random bf16 weights from seed 0 and a tokenizer of one word per token. Returns the folder.

    With `is_fp8`, the matrices of layers are e4m3 with one scale per row, as compressed-tensors writes them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        **asdict(shape), "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}, "torch_dtype": "bfloat16",
        "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    if is_fp8:
        config["quantization_config"] = FP8_CONFIG
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    vocabulary = {f"\u0120t{number}": number for number in range(shape.vocab_size)}
    tokenizer: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": byte_level,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "\u0120t0"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "\u0120t0", "eos_token": "\u0120t1"})
    )
    _write_shards(shape, folder, device, is_fp8=is_fp8)
    return folder


def _write_shards(shape: Shape, folder: Path, device: str, *, is_fp8: bool) -> None:
    """Writes a file for each layer, to limit the weights in memory."""
    weight_map: dict[str, str] = {}
    generator = torch.Generator(device).manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator, device=device, dtype=torch.bfloat16)
        return values * SPREAD

    def write(file: str, weights: dict[str, torch.Tensor]) -> None:
        on_host = {name: tensor.cpu() for name, tensor in weights.items()}
        safetensors.torch.save_file(on_host, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(weights, file))

    outer = {
        "model.embed_tokens.weight": matrix(shape.vocab_size, shape.hidden_size),
        "model.norm.weight": torch.ones(shape.hidden_size, dtype=torch.bfloat16),
    }
    if not shape.tie_word_embeddings:
        outer["lm_head.weight"] = matrix(shape.vocab_size, shape.hidden_size)
    write("outer.safetensors", outer)
    del outer
    for layer in range(shape.num_hidden_layers):
        write(f"layer-{layer}.safetensors", _layer(shape, layer, matrix, is_fp8=is_fp8))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _layer(
    shape: Shape, layer: int, matrix: Callable[[int, int], torch.Tensor], *, is_fp8: bool
) -> dict[str, torch.Tensor]:
    hidden, inner, head = shape.hidden_size, shape.intermediate_size, shape.head_dim
    weights: dict[str, torch.Tensor] = {}
    name = f"model.layers.{layer}"
    for projection, rows, columns in (
        ("self_attn.q_proj", shape.num_attention_heads * head, hidden),
        ("self_attn.k_proj", shape.num_key_value_heads * head, hidden),
        ("self_attn.v_proj", shape.num_key_value_heads * head, hidden),
        ("self_attn.o_proj", hidden, shape.num_attention_heads * head),
        ("mlp.gate_proj", inner, hidden),
        ("mlp.up_proj", inner, hidden),
        ("mlp.down_proj", hidden, inner),
    ):
        values = matrix(rows, columns)
        stored = QUANTIZE(values.float())[0] if is_fp8 else {"weight": values}
        weights |= {f"{name}.{projection}.{suffix}": tensor for suffix, tensor in stored.items()}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        weights[f"{name}.{norm}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    return weights
