"""Lists the tiny models that the tests of each backend and format compare, and writes the table of docs/models.md.

`python -m tests.models.compared` with `server/` as PYTHONPATH writes the table again.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.models.tiny import CASES
from trunkline_server.models.registry import ARCHITECTURES, ENCODERS
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
# tests/vectors/ reads these from GGUF files, which are the same for both.
GGUF_ENCODERS = ("bert", "roberta")


def table() -> str:
    """Returns one row for each architecture."""
    lines = ["| `model_type` | models | name in GGUF | compared with | from GGUF | on `cuda` |", "|---" * 6 + "|"]
    for name, architecture in sorted(ARCHITECTURES.items()):
        cases = {case for case, config in CASES.items() if config["model_type"] == name}
        other = "Llama of the same weights" if name in LIKE_LLAMA else "transformers"
        # Encoders and classifiers: tests/vectors/.
        other = "sentence-transformers" if name in ENCODERS else other
        is_gguf, is_cuda = ("yes" if cases & set(some) else "" for some in (GGUF_CASES, CUDA_CASES))
        is_gguf = "yes" if name in GGUF_ENCODERS else is_gguf
        # tests/cuda/test_vectors.py has all of them.
        is_cuda = "yes" if name in ENCODERS else is_cuda
        in_gguf = "" if architecture.gguf is None else f"`{architecture.gguf.name}`"
        lines.append(f"| `{name}` | {architecture.models} | {in_gguf} | {other} | {is_gguf} | {is_cuda} |")
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
