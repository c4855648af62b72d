"""Lists the tiny models that the tests of each backend and format compare, and writes the table of docs/models.md.

`python -m tests.models.compared` with `server/` as PYTHONPATH writes the table again.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.models.tiny import CASES
from trunkline_server.models import config_gguf, config_json
from trunkline_server.models.config_encoder import ENCODERS
from trunkline_server.weights.tensor import FORMATS

PAGE = Path(__file__).resolve().parents[3] / "docs/models.md"
# Excludes settings that GGUF cannot state: `mscale`, other limits of GPT-OSS, SmolLM3's unrotated layers, Qwen's
# windows and layers without experts, and which of Gemma's layers have a window. GLM has another name and joins more in
# GGUF. Granite 4 without recurrent layers is Granite there.
GGUF_CASES = sorted(
    CASES.keys()
    - {
        "llama_yarn_mscale", "smollm3_marked", "qwen2_window", "qwen3_window", "gemma3_shallow", "qwen3_moe_mixed",
        "glm", "gpt_oss_limited", "granitehybrid_attention",
    }
)  # fmt: skip
CUDA_CASES = [
    "llama3", "llama_yarn_mscale", "mistral_window", "gemma2", "gemma3", "gemma3_shallow", "qwen3", "smollm3",
    "smollm3_marked", "llama_biases", "qwen2_moe", "qwen3_moe", "mixtral", "qwen3_moe_mixed", "cohere2", "exaone4",
    "gemma", "glm4", "granite", "granitemoe", "nemotron", "olmo2", "olmo3", "phi3", "phi3_longrope", "starcoder2",
    "qwen2_shallow", "deepseek_v2", "deepseek_v2_groups", "deepseek_v3", "gpt_oss", "granitehybrid_attention",
    "lfm2", "lfm2_moe", "granitemoehybrid", "granitehybrid", "qwen3_next", "cohere", "ernie4_5", "glm", "olmoe",
    "seed_oss",
]  # fmt: skip
# transformers has no code for these, so they are compared with Llama of the same weights (tests/reference/).
LIKE_LLAMA = ("exaone", "internlm2", "internlm3")
NAMES = {
    "bert": "BERT, and most of sentence-transformers' models: bge, e5, gte, MiniLM",
    "camembert": "CamemBERT",
    "cohere": "Command R (without `use_qk_norm`)",
    "cohere2": "Command R7B, Command A",
    "deepseek_v2": "DeepSeek-V2, V2-Lite, V2.5",
    "deepseek_v3": "DeepSeek-V3, R1",
    "ernie4_5": "ERNIE 4.5, dense",
    "exaone": "EXAONE 3",
    "exaone4": "EXAONE 4",
    "gemma": "Gemma",
    "gemma2": "Gemma 2",
    "gemma3_text": "Gemma 3, text only",
    "glm": "GLM-4-9B",
    "glm4": "GLM-4-0414",
    "gpt_oss": "GPT-OSS",
    "granite": "Granite 3",
    "granitemoe": "Granite 3 with experts",
    "granitemoehybrid": "Granite 4",
    "internlm2": "InternLM 2",
    "internlm3": "InternLM 3",
    "lfm2": "LFM2",
    "lfm2_moe": "LFM2 with experts",
    "llama": "Llama 2 and 3, Falcon 3, SmolLM2, Yi, DeepSeek-LLM",
    "mistral": "Mistral",
    "mixtral": "Mixtral",
    "modernbert": "ModernBERT, gte-modernbert and its reranker",
    "nemotron": "Nemotron-4, Minitron",
    "olmo2": "OLMo 2",
    "olmo3": "OLMo 3",
    "olmoe": "OLMoE",
    "phi3": "Phi-3, Phi-3.5, Phi-4",
    "qwen2": "Qwen1.5, Qwen2, Qwen2.5",
    "qwen2_moe": "Qwen1.5-MoE, Qwen2-MoE",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3-MoE",
    "qwen3_next": "Qwen3-Next",
    "roberta": "RoBERTa",
    "seed_oss": "Seed-OSS",
    "smollm3": "SmolLM3",
    "starcoder2": "StarCoder2",
    "xlm-roberta": "XLM-RoBERTa: bge-m3, multilingual e5, bge-reranker-v2",
}

# tests/vectors/ reads these from GGUF files, which are the same for both.
GGUF_ENCODERS = ("bert", "roberta")


def table() -> str:
    """Returns one row for each architecture."""
    lines = ["| `model_type` | models | name in GGUF | compared with | from GGUF | on `cuda` |", "|---" * 6 + "|"]
    in_gguf: dict[str, list[str]] = {}
    for gguf_name, name in config_gguf.ARCHITECTURES.items():
        in_gguf.setdefault(name, []).append(f"`{gguf_name}`")
        if name in config_gguf._WITH_EXPERTS and (experts := config_gguf._WITH_EXPERTS[name]) != name:
            in_gguf.setdefault(experts, []).append(f"`{gguf_name}`")
    in_gguf |= {"roberta": ["`bert`"], "mistral": ["`llama`"], "olmo3": ["`olmo2`"], "deepseek_v3": ["`deepseek2`"]}
    for name in config_json.SUPPORTED:
        cases = {case for case, config in CASES.items() if config["model_type"] == name}
        other = "Llama of the same weights" if name in LIKE_LLAMA else "transformers"
        # Encoders and classifiers: tests/vectors/.
        other = "sentence-transformers" if name in ENCODERS else other
        is_gguf, is_cuda = ("yes" if cases & set(some) else "" for some in (GGUF_CASES, CUDA_CASES))
        is_gguf = "yes" if name in GGUF_ENCODERS else is_gguf
        # tests/cuda/test_vectors.py has all of them.
        is_cuda = "yes" if name in ENCODERS else is_cuda
        names = ", ".join(in_gguf.get(name, []))
        lines.append(f"| `{name}` | {NAMES[name]} | {names} | {other} | {is_gguf} | {is_cuda} |")
    return "\n".join(lines)


def formats() -> str:
    return ", ".join(FORMATS)


def with_tables(page: str) -> str:
    """Returns the page with its generated parts written again."""
    for mark, text in (("architectures", table()), ("formats", formats())):
        page = re.sub(
            rf"(<!-- {mark} -->\n).*?(<!-- end -->)", lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page,
            flags=re.DOTALL,
        )  # fmt: skip
    return page


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
