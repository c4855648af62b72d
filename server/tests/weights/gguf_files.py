"""GGUF files written by the `gguf` package in the way of llama.cpp's converter."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tests.models.tiny import TinyModel
from tests.weights.quantizers import QUANTIZERS, quantize_rows
from trunkline_server.models.config_json import config_from_json

# The names that llama.cpp's converter makes up on its way or that are the server's own.
_NAMES = {
    "self_attn.k_b_proj": "attn_k_b", "self_attn.v_b_proj": "attn_v_b", "mlp.gate.choice": "exp_probs_b",
    "mixer.conv": "shortconv.conv", "mixer.in_proj": "shortconv.in_proj", "mixer.out_proj": "shortconv.out_proj",
}  # fmt: skip
_GLM_NORMS = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"}
_SCAN_NAMES = {
    "mixer.conv.weight": "ssm_conv1d.weight", "mixer.conv.bias": "ssm_conv1d.bias", "mixer.dt.bias": "ssm_dt.bias",
    "mixer.in_proj.weight": "ssm_in.weight", "mixer.out_proj.weight": "ssm_out.weight", "mixer.rate.weight": "ssm_a",
    "mixer.skip.weight": "ssm_d", "mixer.norm.weight": "ssm_norm.weight", "mixer.qkv_proj.weight": "attn_qkv.weight",
    "mixer.gate_proj.weight": "attn_gate.weight", "mixer.qkvz.weight": "ssm_in.weight",
    "mixer.ba.weight": "ssm_ba.weight",
}  # fmt: skip
_ARCHITECTURES = {
    "cohere": "command-r", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss", "granitemoehybrid": "granitehybrid", "lfm2_moe": "lfm2moe", "mistral": "llama",
    "mixtral": "llama", "olmo3": "olmo2", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "qwen3_next": "qwen3next",
}  # fmt: skip
_LAYER_NORM = ("cohere2", "command-r", "nemotron", "starcoder2")
_PERMUTED = ("granite", "granitehybrid", "granitemoe", "internlm2", "llama", "smollm3")
_PLUS_ONE = ("gemma", "gemma2", "gemma3", "nemotron", "qwen3next")


def gguf_name(name: str, architecture: str) -> str:
    module, kind = name.rsplit(".", 1)
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", module):
        if architecture == "glm4" and match[2] in _GLM_NORMS:
            return f"blk.{match[1]}.{_GLM_NORMS[match[2]]}.{kind}"
        if architecture in ("granitehybrid", "qwen3next") and (scan := _SCAN_NAMES.get(f"{match[2]}.{kind}")):
            return f"blk.{match[1]}.{scan}"
        if match[2] in _NAMES:
            return f"blk.{match[1]}.{_NAMES[match[2]]}.{kind}"
    own = {"lm_head": "output"} | ({"model.norm": "token_embd_norm"} if architecture.startswith("lfm2") else {})
    known = own.get(module) or _known_names(architecture).get_name(module)
    assert known is not None, f"llama.cpp knows no {name} in {architecture}"
    return f"{known}.{kind}"


@functools.cache
def _known_names(architecture: str) -> gguf.TensorNameMap:
    """Returns the map from transformers' names."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(kind, n_blocks=8)


def permute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Reorders query and key rows as llama.cpp's converter does for Llama."""
    return (
        rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
    )


def quantize(values: np.ndarray, format_name: str) -> np.ndarray:
    """Returns a tensor's bytes in a format, or the array itself for a format that is its dtype."""
    if format_name in QUANTIZERS:
        return quantize_rows(values, format_name)
    return gguf.quantize(values, gguf.GGMLQuantizationType[format_name])


def write_model(
    model: TinyModel,
    path: Path,
    quantization: str = "F32",
    *,
    tensors_per_file: int = 0,
    divides_heads: bool = True,
    is_quantized: Callable[[str], bool] = lambda name: True,
    add: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """Writes a model as llama.cpp's converter would; matrices in `quantization`, vectors in F32.

    is_quantized: False for the names of other matrices that stay in F32.
    tensors_per_file: if not 0, divides the model into files of so many tensors, whose names begin with that of `path`.
    add: writes more metadata and tensors.
    divides_heads: as newer files of DeepSeek do, with a matrix of keys and one of values for each head, and those of
        Qwen3-Next, with a matrix of gates.
    """
    config = model.config
    architecture = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_per_file)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    whole = config_from_json(path, config)
    writer.add_feed_forward_length(whole.mlp.size)
    writer.add_head_count(config["num_attention_heads"])
    if architecture in _LAYER_NORM:
        keys = ("layer_norm_eps", "norm_epsilon", "norm_eps")
        writer.add_layer_norm_eps(next(config[key] for key in keys if key in config))
    else:
        writer.add_layer_norm_rms_eps(whole.norms.eps)
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if architecture == "deepseek2":
        _write_latent(writer, config, divides_heads)
    else:
        _write_kv_heads(writer, config)
        if architecture == "qwen3next":
            _write_delta(writer, config, divides_heads)
        writer.add_key_length(head_size)
        writer.add_value_length(head_size)
    writer.add_token_list([f"token {index} é" for index in range(config["vocab_size"])])
    writer.add_token_types([1] * config["vocab_size"])
    if config.get("sliding_window") and config["model_type"] not in ("qwen2", "qwen3"):
        writer.add_sliding_window(config["sliding_window"])
        if architecture in ("exaone4", "olmo2"):
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    _write_multipliers(writer, config)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config.get("num_experts_per_tok"):
        _write_experts(writer, config)
    _write_rope(writer, config, head_size)
    is_latent = architecture == "deepseek2"
    weights = _latent_weights(model, divides_heads) if is_latent else joined(model.weights, architecture)
    weights = _delta_weights(model, divides_heads) if architecture == "qwen3next" else weights
    for name, weight in _stacked(weights).items():
        values = stored_values(name, weight, architecture, config)
        is_matrix = values.ndim >= 2 and not name.endswith(("mlp.gate.weight", ".bias"))
        is_matrix = is_matrix and not re.search(r"\.mixer\.(conv|norm|rate|skip)\.", name) and is_quantized(name)
        stored_as = gguf.GGMLQuantizationType[quantization if is_matrix else "F32"]
        writer.add_tensor(gguf_name(name, architecture), quantize(values, stored_as.name), raw_dtype=stored_as)
    add(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored_values(name: str, weight: np.ndarray, architecture: str, config: dict[str, Any]) -> np.ndarray:
    """Returns a weight as `modify_tensors` of llama.cpp's converter does."""
    values = weight[0] if name.endswith("shared_expert_gate.weight") else weight
    if architecture in _PERMUTED and (".q_proj." in name or ".k_proj." in name):
        values = permute(values, config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"])
    if architecture in _PLUS_ONE and name.endswith("norm.weight") and ".mixer." not in name:
        values = values + np.float32(1.0)
    return _as_matrix(name, values, config) if ".mixer." in name else values


def _write_experts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    keys = ("num_experts", "num_local_experts", "n_routed_experts")
    writer.add_expert_count(next(config[key] for key in keys if key in config))
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config.get("moe_intermediate_size") or config["intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def _as_matrix(name: str, values: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """Returns the weight of a recurrent layer as `modify_tensors` of llama.cpp's converter does."""
    if name.endswith("mixer.conv.weight"):
        widths = (config.get(key) for key in ("conv_L_cache", "mamba_d_conv", "linear_conv_kernel_dim"))
        return values.reshape(-1, next(width for width in widths if width))
    if config["model_type"] == "qwen3_next":
        return -np.exp(values) if name.endswith("mixer.rate.weight") else values
    if name.endswith("mixer.rate.weight"):
        return -np.exp(values)[:, None]
    if name.endswith("mixer.skip.weight"):
        return values[:, None]
    return values[None] if name.endswith("mixer.norm.weight") else values


def _write_kv_heads(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    count = config["num_key_value_heads"]
    if config["model_type"] not in ("granitemoehybrid", "lfm2", "lfm2_moe"):
        writer.add_head_count_kv(count)
        return
    writer.add_head_count_kv([count if kind == "full_attention" else 0 for kind in config["layer_types"]])
    if config["model_type"] == "granitemoehybrid":
        writer.add_ssm_conv_kernel(config["mamba_d_conv"])
        writer.add_ssm_state_size(config["mamba_d_state"])
        writer.add_ssm_group_count(config["mamba_n_groups"])
        writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
        writer.add_ssm_time_step_rank(config["mamba_n_heads"])
        writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
        return
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    if config["model_type"] == "lfm2_moe":
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _write_delta(writer: gguf.GGUFWriter, config: dict[str, Any], is_new: bool) -> None:
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    if is_new:
        marks = [kind == "linear_attention" for kind in config["layer_types"]]
        writer.add_array("qwen3next.attention.recurrent_layers", marks)
    else:
        assert config["layer_types"][1::2] == ["full_attention"]
        writer.add_full_attention_interval(2)


def _delta_weights(model: TinyModel, divides_gates: bool) -> dict[str, np.ndarray]:
    """Returns weights with the projections that files join, under names that `gguf_name` knows."""
    names = {"linear_attn.in_proj_ba": "mixer.ba", "linear_attn.in_proj_qkvz": "mixer.qkvz"}
    left_out = ("self_attn.gate_proj", "mixer.strength_proj", "mixer.step_proj")
    left_out += ("mixer.qkvz",) if divides_gates else ("mixer.qkv_proj", "mixer.gate_proj")
    weights = dict(model.weights)
    for name, weight in model.stored_weights.items():
        if name.endswith("self_attn.q_proj.weight"):
            weights[name] = weight
        for stored, own in names.items():
            if f".{stored}." in name:
                weights[name.replace(stored, own)] = weight
    return {name: weight for name, weight in weights.items() if not name.removesuffix(".weight").endswith(left_out)}


def _write_latent(writer: gguf.GGUFWriter, config: dict[str, Any], divides_heads: bool) -> None:
    """Writes the keys of DeepSeek. Older files describe heads as if keys and values were not derived from latents."""
    rotated, latent = config["qk_rope_head_dim"], config["kv_lora_rank"]
    key_size, value_size = config["qk_nope_head_dim"] + rotated, config["v_head_dim"]
    writer.add_head_count_kv(1 if divides_heads else config["num_attention_heads"])
    writer.add_key_length(latent + rotated if divides_heads else key_size)
    writer.add_value_length(latent if divides_heads else value_size)
    if divides_heads:
        writer.add_key_length_mla(key_size)
        writer.add_value_length_mla(value_size)
    writer.add_kv_lora_rank(latent)
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    is_v3 = config["model_type"] == "deepseek_v3"
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config.get("norm_topk_prob") or False)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if is_v3 else gguf.ExpertGatingFuncType.SOFTMAX)
    if config.get("n_group"):
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if "mscale_all_dim" in config["rope_parameters"]:
        writer.add_rope_scaling_yarn_log_mul(0.1 * config["rope_parameters"]["mscale_all_dim"])


def _latent_weights(model: TinyModel, divides_heads: bool) -> dict[str, np.ndarray]:
    """Returns the weights as safetensors have them, except for experts, which `_stacked` stacks."""
    config, weights = model.config, {}
    for name, weight in model.stored_weights.items():
        if name.endswith("e_score_correction_bias"):
            weights[f"{name.removesuffix('_bias')}.bias"] = weight
        elif name.endswith("kv_b_proj.weight") and divides_heads:
            heads = weight.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
            keys, values = np.split(heads, [config["qk_nope_head_dim"]], axis=1)
            weights[name.replace("kv_b", "k_b")] = np.ascontiguousarray(keys.swapaxes(1, 2))
            weights[name.replace("kv_b", "v_b")] = np.ascontiguousarray(values)
        else:
            weights[name] = weight
    return weights


def _write_multipliers(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    if "logit_scale" in config:
        writer.add_logit_scale(config["logit_scale"])
    if "logits_scaling" in config:
        writer.add_logit_scale(config["logits_scaling"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])


def joined(weights: dict[str, np.ndarray], architecture: str) -> dict[str, np.ndarray]:
    """Joins what the architecture's files join, under names that `gguf_name` knows."""
    joins = {"mlp.gate_proj": "mlp.up_proj", "mlp.up_proj": "mlp.up_proj"} if architecture in ("glm4", "phi3") else {}
    if architecture == "phi3":
        joins |= {f"self_attn.{part}_proj": "self_attn.qkv_proj" for part in "qkv"}
    joined: dict[str, list[np.ndarray]] = {}
    for name, weight in weights.items():
        match = re.fullmatch(r"(model\.layers\.\d+\.)(.+)(\.weight|\.bias)", name)
        whole = name if match is None else f"{match[1]}{joins.get(match[2], match[2])}{match[3]}"
        joined.setdefault(whole, []).append(weight)
    return {name: np.concatenate(parts) for name, parts in joined.items()}


def _stacked(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Stacks the weights of a layer's experts, under a name that `gguf_name` knows."""
    stacks: dict[str, list[np.ndarray]] = {}
    for name, weight in weights.items():
        stacks.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", name), []).append(weight)
    return {name: np.stack(stack) if ".experts." in name else stack[0] for name, stack in stacks.items()}


def _write_rope(writer: gguf.GGUFWriter, config: dict[str, Any], head_size: int) -> None:
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    rotated_size = config.get("qk_rope_head_dim", head_size)
    writer.add_rope_dimension_count(int(rotated_size * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "longrope":
        trained = config["original_max_position_embeddings"]
        scale = rope.get("factor", config["max_position_embeddings"] / trained)
        writer.add_rope_scaling_orig_ctx_len(trained)
        writer.add_rope_scaling_attn_factors((1 + np.log(scale) / np.log(trained)) ** 0.5)
        for length in ("long", "short"):
            factors = np.asarray(rope[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)
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
