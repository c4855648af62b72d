"""GGUF files written by the `gguf` package in the way of llama.cpp's converter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tests.models.tiny import TinyModel
from tests.weights.k_quants import quantize_k

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
_ARCHITECTURES = {
    "gemma3_text": "gemma3", "mistral": "llama", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
}  # fmt: skip


def gguf_name(name: str, *, is_gemma: bool = False) -> str:
    module, kind = name.rsplit(".", 1)
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", module):
        if is_gemma and match[2] == "post_attention_layernorm":
            return f"blk.{match[1]}.post_attention_norm.{kind}"
        return f"blk.{match[1]}.{_NAMES[match[2]]}.{kind}"
    return f"{_NAMES[module]}.{kind}"


def permute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorders query and key rows as llama.cpp's converter does for Llama."""
    return (
        rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
    )


def quantize(values: np.ndarray, format_name: str) -> np.ndarray:
    """Returns a tensor's bytes in a format, or the array itself for a format that is its dtype."""
    if format_name.endswith("_K"):
        return quantize_k(values, format_name)
    return gguf.quantize(values, gguf.GGMLQuantizationType[format_name])


def write_model(model: TinyModel, path: Path, quantization: str = "F32") -> Path:
    """Writes a model as llama.cpp's converter would; matrices in `quantization`, vectors in F32."""
    config = model.config
    architecture = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    is_gemma = architecture.startswith("gemma")
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_token_list([f"token {index} é" for index in range(config["vocab_size"])])
    writer.add_token_types([1] * config["vocab_size"])
    if config.get("sliding_window") and (is_gemma or config["model_type"] == "mistral"):
        writer.add_sliding_window(config["sliding_window"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config.get("num_experts_per_tok"):
        writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config.get("moe_intermediate_size") or config["intermediate_size"])
        if "shared_expert_intermediate_size" in config:
            writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    _write_rope(writer, config, head_size)
    for name, weight in _stacked(model.weights).items():
        values = weight[0] if name.endswith("shared_expert_gate.weight") else weight
        if architecture in ("llama", "smollm3") and (".q_proj." in name or ".k_proj." in name):
            values = permute(values, config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"])
        if is_gemma and name.endswith("norm.weight"):
            values = values + np.float32(1.0)
        is_matrix = values.ndim >= 2 and not name.endswith("mlp.gate.weight")
        stored_as = gguf.GGMLQuantizationType[quantization if is_matrix else "F32"]
        writer.add_tensor(gguf_name(name, is_gemma=is_gemma), quantize(values, stored_as.name), raw_dtype=stored_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _stacked(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Stacks the weights of a layer's experts, under a name that `gguf_name` knows."""
    stacks: dict[str, list[np.ndarray]] = {}
    for name, weight in weights.items():
        stacks.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", name), []).append(weight)
    return {name: np.stack(stack) if ".experts." in name else stack[0] for name, stack in stacks.items()}


def _write_rope(writer: gguf.GGUFWriter, config: dict[str, Any], head_size: int) -> None:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, head_size))


def _llama3_factors(rope: dict[str, float], head_size: int) -> np.ndarray:
    """Returns factors as `LlamaModel.generate_extra_tensors` of llama.cpp's converter does."""
    factors = []
    low_wavelength = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high_wavelength = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for index in range(0, head_size, 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (index / head_size)
        if wavelength < high_wavelength:
            factors.append(1.0)
        elif wavelength > low_wavelength:
            factors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.asarray(factors, dtype=np.float32)
