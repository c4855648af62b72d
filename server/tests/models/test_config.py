"""Valid values of `config.json` and GGUF metadata, and the refusal of others."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from trunkline_server.errors import DamagedFile, UnsupportedArchitecture
from trunkline_server.models.config import LatentAttention, ModelConfig
from trunkline_server.models.config_gguf import RopeFactors, config_from_gguf
from trunkline_server.models.config_json import config_from_json

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
}


DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 8,
    "v_head_dim": 24,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
GROUPS: dict[str, Any] = {**DEEPSEEK, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}


def read(**changes: Any) -> ModelConfig:
    return config_from_json(Path("m/config.json"), {**LLAMA, **changes})


def test_absent_keys_have_the_defaults_of_transformers() -> None:
    config = read()
    assert (config.head_size, config.norms.eps, config.positions.theta) == (16, 1e-6, 10_000.0)
    assert not config.tie_word_embeddings
    assert config.positions.rotated_layers == (True, True)
    assert read(num_key_value_heads=None).num_kv_heads == 4
    assert read(model_type="qwen3").head_size == 128
    assert read(model_type="qwen3", head_dim=32).head_size == 32
    smollm3 = read(model_type="smollm3", num_hidden_layers=5)
    assert smollm3.positions.rotated_layers == (True, True, True, False, True)
    assert smollm3.tie_word_embeddings
    assert smollm3.positions.theta == 2_000_000.0


def test_deepseek_has_a_key_that_ends_with_its_latent() -> None:
    config = read(**DEEPSEEK)
    assert (config.num_kv_heads, config.head_size, config.rotary_size, config.latent_size) == (1, 40, 8, 32)
    assert config.attention.latent == LatentAttention(size=32, query_size=0, key_size=24, value_size=24)
    assert config.attention_scale == 32**-0.5
    assert (config.experts.layers, config.experts.shared_size) == ((False, True), 64)
    assert (config.experts.num_groups, config.experts.sigmoid, config.experts.has_choice_bias) == (1, False, False)
    # Without the key, queries have the latent that transformers gives them.
    absent = read(**{key: value for key, value in DEEPSEEK.items() if key != "q_lora_rank"})
    assert absent.attention.latent is not None
    assert absent.attention.latent.query_size == 1536
    yarn = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 0.7}
    scaled = read(**DEEPSEEK, rope_scaling=yarn)
    assert scaled.attention_scale == pytest.approx(32**-0.5 * (0.07 * math.log(40) + 1) ** 2)
    v3 = read(**{**DEEPSEEK, "model_type": "deepseek_v3", "n_group": 4, "topk_group": 2})
    assert (v3.experts.num_groups, v3.experts.num_used_groups, v3.experts.sigmoid, v3.experts.has_choice_bias) == (
        4,
        2,
        True,
        True,
    )
    assert (v3.experts.renormalise, v3.experts.multiplier) == (True, 2.5)


def test_biases_are_those_of_the_architecture() -> None:
    def biases(**changes: Any) -> tuple[bool, bool, bool]:
        config = read(attention_bias=True, mlp_bias=True, **changes)
        return config.attention.bias, config.attention.output_bias, config.mlp.bias

    assert biases() == (True, True, True)
    assert biases(model_type="qwen2") == (True, False, False)
    assert biases(model_type="qwen3") == (True, True, False)
    assert biases(model_type="mistral", sliding_window=None) == (False, False, False)
    assert biases(model_type="seed_oss") == (True, False, True)
    assert biases(model_type="seed_oss", attention_out_bias=True) == (True, True, True)
    assert biases(model_type="starcoder2", use_bias=False) == (False, False, False)
    assert biases(model_type="internlm3", qkv_bias=True, bias=False) == (True, False, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 2048},
        {"model_type": "mistral"},  # transformers' default of 4,096 exceeds this context
        {"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": False},
        {"model_type": "qwen3", "sliding_window": 128, "layer_types": ["full_attention"] * 2},
        {"model_type": "qwen2", "sliding_window": None, "use_sliding_window": True},
    ],
)
def test_a_window_without_effect_is_accepted(changes: dict[str, Any]) -> None:
    assert read(**changes).attention.windows == ()


def test_windows_are_those_of_the_layers() -> None:
    assert read(model_type="mistral", sliding_window=2047).attention.windows == (2047, 2047)
    assert read(model_type="mistral", max_position_embeddings=8192).attention.windows == (4096, 4096)
    gemma2 = read(model_type="gemma2", num_hidden_layers=3)
    assert gemma2.attention.windows == (4096, None, 4096)
    assert [gemma2.window(layer) for layer in range(3)] == [4096, None, 4096]
    assert (gemma2.attention.soft_cap, gemma2.logit_soft_cap, gemma2.positions.local_theta) == (50.0, 30.0, None)
    assert (gemma2.head_size, gemma2.attention_scale, gemma2.tie_word_embeddings) == (256, 256**-0.5, True)
    kinds = ["full_attention", "sliding_attention"]
    assert read(model_type="gemma2", layer_types=kinds, sliding_window=7).attention.windows == (None, 7)
    assert read(model_type="gemma2", attn_logit_softcapping=None).attention.soft_cap is None
    gemma3 = read(model_type="gemma3_text", num_hidden_layers=7, query_pre_attn_scalar=168)
    assert gemma3.attention.windows == (4096,) * 5 + (None, 4096)
    assert (gemma3.positions.theta, gemma3.positions.local_theta) == (1_000_000.0, 10_000.0)
    assert (gemma3.attention.soft_cap, gemma3.logit_soft_cap, gemma3.attention_scale) == (None, None, 168**-0.5)
    assert read(model_type="gemma3_text", sliding_window_pattern=2, sliding_window=9).attention.windows == (9, None)
    assert read().attention.windows == ()
    cohere2 = read(model_type="cohere2", num_hidden_layers=4)
    assert (cohere2.attention.windows, cohere2.positions.rotated_layers) == (
        (4096, 4096, 4096, None),
        (True, True, True, False),
    )
    whole = read(model_type="exaone4", sliding_window=None, layer_types=["full_attention"] * 2)
    assert (whole.attention.windows, whole.positions.rotated_layers) == ((), (True, True))


def test_windows_of_qwen_begin_at_a_layer_and_are_off_by_default() -> None:
    def windows(**changes: Any) -> tuple[int | None, ...]:
        return read(num_hidden_layers=4, sliding_window=128, **changes).attention.windows

    for model_type in ("qwen2", "qwen3"):
        assert windows(model_type=model_type, max_window_layers=1) == ()
        on = {"model_type": model_type, "use_sliding_window": True}
        assert windows(**on, max_window_layers=1) == (None, 128, 128, 128)
        assert windows(**on, max_window_layers=0) == (128,) * 4
        # transformers' default of 28 exceeds the number of layers.
        assert windows(**on) == windows(**on, max_window_layers=4) == ()
        kinds = ["full_attention", "sliding_attention"] * 2
        assert windows(**on, max_window_layers=4, layer_types=kinds) == (None, 128, None, 128)
        with pytest.raises(DamagedFile, match="names layers with a window, but `use_sliding_window` is off"):
            windows(model_type=model_type, layer_types=kinds)


def test_rotary_embeddings_of_gemma3_are_read_in_both_spellings() -> None:
    old = read(
        model_type="gemma3_text",
        rope_theta=5e5,
        rope_local_base_freq=2e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    new = read(
        model_type="gemma3_text",
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    )
    assert old == new
    assert (new.positions.theta, new.positions.local_theta, new.positions.scaling.factor) == (5e5, 2e4, 8.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "llama", "sliding_window": 128, "use_sliding_window": True},
        {"model_type": "smollm3", "sliding_window": 128, "layer_types": ["full_attention", "sliding_attention"]},
    ],
)
def test_a_window_with_an_effect_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedArchitecture, match=r"a sliding window of \d+ tokens"):
        read(**changes)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"model_type": "gemma3"}, UnsupportedArchitecture, "architecture `gemma3`"),
        ({"model_type": None}, DamagedFile, "`model_type` is missing"),
        ({"hidden_act": "gelu"}, UnsupportedArchitecture, "activation `gelu`"),
        ({"rope_scaling": {"type": "ntk", "factor": 2}}, UnsupportedArchitecture, "rope scaling `ntk`"),
        ({"rope_scaling": {"rope_type": "longrope"}}, DamagedFile, "`rope_scaling.short_factor` is missing"),
        ({"rope_scaling": {"type": "su", "short_factor": [1.0] * 7}}, DamagedFile, "7 rope factors for 8 frequencies"),
        ({"model_type": "phi3", "partial_rotary_factor": 1.5}, DamagedFile, "expected a number from 0 to 1"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.2}, DamagedFile, "3 of 16 features of a head are rotated"),
        ({"model_type": "granite", "logits_scaling": 0}, DamagedFile, "`logits_scaling` is `0`"),
        ({"model_type": "cohere", "use_qk_norm": True}, UnsupportedArchitecture, "`use_qk_norm`"),
        ({"model_type": "starcoder2", "norm_epsilon": "x"}, DamagedFile, "`norm_epsilon` is `x`"),
        ({"model_type": "nemotron", "hidden_act": "silu"}, UnsupportedArchitecture, "supported: relu2"),
        ({"rope_parameters": {"rope_type": "linear"}}, DamagedFile, "`rope_parameters.factor` is missing"),
        ({"rope_parameters": 3}, DamagedFile, "`rope_parameters` is `3`, expected an object"),
        ({"partial_rotary_factor": 0.5}, UnsupportedArchitecture, "partial rotary"),
        ({"layer_types": ["linear_attention"] * 2}, UnsupportedArchitecture, "layer type"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"]}, DamagedFile, "1 entries for 2 layers"),
        ({"model_type": "gemma2", "hidden_activation": "gelu"}, UnsupportedArchitecture, "activation `gelu`"),
        ({"model_type": "gemma2", "attn_logit_softcapping": -1.0}, DamagedFile, "`attention_soft_cap` is -1.0"),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 0}, DamagedFile, "must be positive"),
        ({"model_type": "gemma3_text", "rope_local_base_freq": 0.5}, DamagedFile, "with a window is 0.5"),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, UnsupportedArchitecture, "bidirectional"),
        ({"model_type": "mistral", "sliding_window": -5}, DamagedFile, "the sliding window is -5"),
        ({**DEEPSEEK, "attention_bias": True}, UnsupportedArchitecture, "`attention_bias`"),
        ({**DEEPSEEK, "topk_method": "noaux_tc"}, UnsupportedArchitecture, "`topk_method` `noaux_tc`"),
        ({**DEEPSEEK, "scoring_func": "sigmoid"}, UnsupportedArchitecture, "`scoring_func` `sigmoid`"),
        ({**DEEPSEEK, "kv_lora_rank": 0}, DamagedFile, "the latent has 0 features, must be from 1"),
        ({**DEEPSEEK, "kv_lora_rank": 1 << 20}, DamagedFile, "`head_size` is 1048584, must be from 1 to 1024"),
        ({**DEEPSEEK, "v_head_dim": -1}, DamagedFile, "the value has -1 features"),
        ({**DEEPSEEK, "qk_nope_head_dim": -8}, DamagedFile, "a head has -8 plain and 8 rotated features"),
        ({**DEEPSEEK, "qk_rope_head_dim": 7}, DamagedFile, "head size 39 is odd"),
        ({**DEEPSEEK, "moe_layer_freq": 0}, DamagedFile, "`moe_layer_freq` is 0"),
        ({**DEEPSEEK, "n_routed_experts": None}, DamagedFile, "`n_routed_experts` is missing"),
        ({**GROUPS, "n_group": 5}, DamagedFile, "12 experts cannot be divided into 5 groups evenly"),
        ({**GROUPS, "topk_group": 5}, DamagedFile, "a token uses 5 groups of experts, must be from 1 to 4"),
        ({**GROUPS, "n_group": 6, "topk_group": 1}, DamagedFile, "a token uses 3 experts, but 1 groups have 2"),
        ({"vocab_size": None}, DamagedFile, "`vocab_size` is missing"),
        ({"vocab_size": "many"}, DamagedFile, "`vocab_size` is `many`, expected an integer"),
        ({"vocab_size": 0}, DamagedFile, "`vocab_size` is 0, must be from 1"),
        ({"num_hidden_layers": 1 << 40}, DamagedFile, "`num_layers` is 1099511627776"),
        ({"num_key_value_heads": 3}, DamagedFile, "4 query heads cannot share 3"),
        ({"head_dim": 15}, DamagedFile, "head size 15 is odd"),
        ({"rms_norm_eps": -1.0}, DamagedFile, "the epsilon of norms is -1.0"),
        ({"rope_theta": float("nan")}, DamagedFile, "`rope_theta` is `nan`"),
        ({"tie_word_embeddings": "yes"}, DamagedFile, "expected true or false"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, DamagedFile, "not a list of 2 zeros and ones"),
    ],
)
def test_an_impossible_config_is_refused_by_name(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        read(**changes)
    assert says in str(caught.value)
    assert "m/config.json" in str(caught.value)


GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 2048,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def read_gguf(
    changes: dict[str, Any], *, vocab_rows: int | None = 1000, factors: tuple[float, ...] | None = None
) -> ModelConfig:
    metadata = {**GGUF, **{f"llama.{key}": value for key, value in changes.items()}}
    return config_from_gguf(
        Path("m.gguf"),
        {key: value for key, value in metadata.items() if value is not None},
        num_rows={"token_embd.weight": vocab_rows, "output.weight": 1000, "blk.0.attn_q.bias": 64}.get,
        rope_factors=RopeFactors(all=factors),
    )


def test_gguf_metadata_is_read() -> None:
    config = read_gguf({})
    assert (config.vocab_size, config.head_size, config.num_kv_heads) == (1000, 16, 2)
    assert (config.attention.bias, config.attention.output_bias, config.tie_word_embeddings) == (True, False, False)
    assert read_gguf({"rope.scale_linear": 2.0}).positions.scaling.kind == "linear"
    assert read_gguf({"rope.scaling.type": "none"}).positions.scaling.kind == "default"
    assert read_gguf({}, factors=(1.0,) * 8).positions.scaling.factors == (1.0,) * 8
    assert read_gguf({"attention.sliding_window": 2048}) == config
    assert read_gguf({"attention.sliding_window": 512}).attention.windows == (512, 512)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"head_count_kv": 2}, DamagedFile, "`granitehybrid.attention.head_count_kv` is `2`, expected 2 integers"),
        ({"head_count_kv": [0, 2, 2]}, DamagedFile, "expected 2 integers"),
        ({"head_count_kv": [2, 1]}, DamagedFile, "expected one number for all layers with attention, 0 for others"),
        ({"head_count_kv": [0, 0]}, DamagedFile, "no layer has attention"),
        ({"head_count_kv": [0, -2]}, DamagedFile, "`num_kv_heads` is -2"),
        ({"group_count": 2}, UnsupportedArchitecture, "`ssm.group_count` 2"),
        ({"conv_kernel": 9}, DamagedFile, "a convolution covers 9 positions"),
        ({"inner_size": 65}, DamagedFile, "65 features (`ssm.inner_size`) cannot be divided into 4 heads evenly"),
        ({"state_size": 0}, DamagedFile, "recurrent layers have sizes"),
    ],
)
def test_impossible_recurrent_layers_in_gguf_are_refused(
    changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    attention = {"head_count_kv": [0, 2]}
    scan = {"conv_kernel": 4, "state_size": 8, "group_count": 1, "inner_size": 64, "time_step_rank": 4}
    keys = {f"attention.{key}": changes.get(key, value) for key, value in attention.items()}
    keys |= {f"ssm.{key}": changes.get(key, value) for key, value in scan.items()}
    shared = {key.removeprefix("llama."): value for key, value in GGUF.items() if key.startswith("llama.")}
    keys = {**shared, **keys, "logit_scale": 1.0}
    with pytest.raises(error) as caught:
        config_from_gguf(
            Path("m.gguf"),
            {"general.architecture": "granitehybrid", **{f"granitehybrid.{key}": keys[key] for key in keys}},
            num_rows={"token_embd.weight": 1000}.get,
            rope_factors=RopeFactors(),
        )
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"block_count": None}, DamagedFile, "`llama.block_count` is missing"),
        ({"block_count": "two"}, DamagedFile, "`llama.block_count` is `two`, expected an integer"),
        ({"embedding_length": 1 << 60}, DamagedFile, "`hidden_size` is"),
        ({"attention.head_count": 0}, DamagedFile, "`num_heads` is 0"),
        ({"attention.layer_norm_rms_epsilon": float("inf")}, DamagedFile, "expected a finite number"),
        ({"expert_count": 8}, DamagedFile, "`llama.expert_used_count` is missing"),
        ({"expert_count": 8, "expert_used_count": 9}, DamagedFile, "a token uses 9 experts, must be from 1 to 8"),
        ({"expert_count": 1 << 20, "expert_used_count": 1}, DamagedFile, "the number of experts is 1048576"),
        ({"attention.sliding_window": -1}, DamagedFile, "the sliding window is -1"),
        ({"attention.value_length": 32}, UnsupportedArchitecture, "value head size"),
        ({"rope.dimension_count": 7}, DamagedFile, "7 of 16 features of a head are rotated"),
        ({"rope.scaling.type": "longrope"}, UnsupportedArchitecture, "rope scaling `longrope`"),
        ({"rope.scaling.type": "yarn", "rope.scaling.yarn_ext_factor": 0.5}, UnsupportedArchitecture, "extrapolation"),
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 0.0}, DamagedFile, "scaling factor is 0.0"),
    ],
)
def test_impossible_gguf_metadata_is_refused(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        read_gguf(changes)
    assert says in str(caught.value)
    assert "m.gguf" in str(caught.value)


DEEPSEEK2: dict[str, Any] = {
    **{key.replace("llama.", "deepseek2."): value for key, value in GGUF.items()},
    "general.architecture": "deepseek2",
    "deepseek2.rope.dimension_count": 8,
    "deepseek2.attention.key_length": 32,
    "deepseek2.attention.value_length": 24,
    "deepseek2.attention.kv_lora_rank": 32,
    "deepseek2.expert_count": 12,
    "deepseek2.expert_used_count": 3,
    "deepseek2.expert_feed_forward_length": 32,
}


def read_deepseek2(changes: dict[str, Any], *tensors: str) -> ModelConfig:
    metadata = {**DEEPSEEK2, **{f"deepseek2.{key}": value for key, value in changes.items()}}
    return config_from_gguf(
        Path("m.gguf"),
        {key: value for key, value in metadata.items() if value is not None},
        num_rows=dict.fromkeys(["token_embd.weight", "output.weight", *tensors], 1000).get,
        rope_factors=RopeFactors(),
    )


def test_older_and_newer_files_of_deepseek_state_the_same() -> None:
    older = read_deepseek2({"attention.head_count_kv": 4})
    newer = read_deepseek2(
        {
            "attention.head_count_kv": 1,
            "attention.key_length": 40,
            "attention.value_length": 32,
            "attention.key_length_mla": 32,
            "attention.value_length_mla": 24,
        }
    )
    assert older == newer
    assert older.attention.latent == LatentAttention(size=32, query_size=0, key_size=24, value_size=24)
    # 0 stands for no factor.
    assert read_deepseek2({"expert_weights_scale": 0.0}).experts.multiplier == 1.0
    biased = read_deepseek2({"expert_gating_func": 2}, "blk.0.exp_probs_b.bias")
    assert (biased.experts.sigmoid, biased.experts.has_choice_bias) == (True, True)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"expert_gating_func": 3}, UnsupportedArchitecture, "`expert_gating_func` 3"),
        ({"attention.kv_lora_rank": None}, DamagedFile, "`deepseek2.attention.kv_lora_rank` is missing"),
        ({"attention.key_length": 8}, DamagedFile, "the part of a key that is not rotated has 0 features"),
        ({"expert_group_count": 5}, DamagedFile, "12 experts cannot be divided into 5 groups evenly"),
        ({}, DamagedFile, "experts are chosen with a bias, which only scores by sigmoids have"),
    ],
)
def test_impossible_metadata_of_deepseek_is_refused(changes: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        read_deepseek2(changes, *([] if changes else ["blk.0.exp_probs_b.bias"]))
    assert says in str(caught.value)


def test_contradictory_gguf_tensors_are_refused() -> None:
    with pytest.raises(DamagedFile, match=r"token_embd\.weight` is missing"):
        read_gguf({}, vocab_rows=None)
    with pytest.raises(DamagedFile, match="3 rope factors for 8 frequencies"):
        read_gguf({}, factors=(1.0,) * 3)
    with pytest.raises(DamagedFile, match="a rope factor is not positive"):
        read_gguf({}, factors=(1.0,) * 7 + (float("nan"),))
