"""The reference backend against transformers: tiny random models of every architecture, and the embedded model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tests.models.tiny import CASES, VOCAB_SIZE
from tests.weights.gguf_files import write_model
from transformers.convert_slow_tokenizer import bytes_to_unicode
from trunkline_server.backends.interface import Chunk, Sampled, SamplingParams
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.gguf import GgufFile

TOLERANCE = 1e-4
NUM_GREEDY_TOKENS = 32

TinyModel = Callable[[str], tuple[transformers.PreTrainedModel, Path]]


def random_prompt(num_tokens: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, num_tokens).tolist()


@torch.inference_mode()
def expected_logits(model: transformers.PreTrainedModel, token_ids: list[int]) -> np.ndarray:
    return model(torch.tensor([token_ids]), use_cache=False).logits[0].float().numpy()


def generate_greedily(backend: ReferenceBackend, prompt: list[int], num_tokens: int) -> list[int]:
    """One sequence, whole prompt first, through the paged path."""
    block_size = backend.info.block_size
    backend.start(1, prompt, len(prompt), SamplingParams())
    output: list[int] = []
    first, num_blocks = 0, 0
    while len(output) < num_tokens:
        end = len(prompt) + len(output)
        needed = -(-end // block_size)
        chunk = Chunk(1, first, end - first, list(range(num_blocks, needed)), True)
        (sampled,) = backend.step([chunk])
        assert isinstance(sampled, Sampled), sampled
        output.append(sampled.token_id)
        first, num_blocks = end, needed
    backend.end(1)
    return output


@pytest.mark.parametrize("case", CASES)
def test_tiny_model_agrees_with_transformers(case: str, tiny_model: TinyModel) -> None:
    model, folder = tiny_model(case)
    backend = ReferenceBackend(open_checkpoint(folder))
    prompt = random_prompt(300)
    expected = expected_logits(model, prompt)
    assert np.abs(expected).max() > 1.0, "the model is too flat to tell right from wrong"
    np.testing.assert_allclose(backend.score(prompt), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", CASES)
def test_tiny_model_generates_the_tokens_of_transformers(case: str, tiny_model: TinyModel) -> None:
    model, folder = tiny_model(case)
    prompt = random_prompt(21)
    token_ids = list(prompt)
    for _ in range(NUM_GREEDY_TOKENS):
        token_ids.append(int(expected_logits(model, token_ids)[-1].argmax()))
    output = generate_greedily(ReferenceBackend(open_checkpoint(folder)), prompt, NUM_GREEDY_TOKENS)
    assert output == token_ids[len(prompt) :]
    assert len(set(output)) > 2, "the output is too monotonous to tell right from wrong"


# What a GGUF file cannot state is left out: `mscale`, which layers of SmolLM3 do not rotate, and Qwen's windows.
@pytest.mark.parametrize(
    "case", sorted(CASES.keys() - {"llama_yarn_mscale", "smollm3_marked", "qwen2_window", "qwen3_window"})
)
def test_tiny_model_from_gguf_agrees_with_transformers(case: str, tiny_model: TinyModel, tmp_path: Path) -> None:
    model, _ = tiny_model(case)
    checkpoint = open_checkpoint(write_model(model, tmp_path / "model.gguf"))
    prompt = random_prompt(200)
    logits = ReferenceBackend(checkpoint).score(prompt)
    np.testing.assert_allclose(logits, expected_logits(model, prompt), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tiny_model_in_half_precision_is_read_exactly(
    dtype: torch.dtype, tiny_model: TinyModel, tmp_path: Path
) -> None:
    _, folder = tiny_model("qwen2")
    half = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    half.save_pretrained(tmp_path)
    logits = ReferenceBackend(open_checkpoint(tmp_path)).score(random_prompt(50))
    np.testing.assert_allclose(logits, expected_logits(half.float(), random_prompt(50)), rtol=0, atol=TOLERANCE)


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


def longest_matches(gguf_path: Path, text: str) -> list[int]:
    """Tokens of the model that spell the text, not always those of its tokenizer, which takes ten seconds to build."""
    as_char = bytes_to_unicode()
    vocabulary = {token: token_id for token_id, token in enumerate(GgufFile(gguf_path).array("tokenizer.ggml.tokens"))}
    rest = "".join(as_char[byte] for byte in text.encode())
    token_ids = []
    while rest:
        length = next(length for length in range(16, 0, -1) if rest[:length] in vocabulary)
        token_ids.append(vocabulary[rest[:length]])
        rest = rest[length:]
    return token_ids


@pytest.mark.filterwarnings("default")
def test_embedded_model_agrees_with_transformers(embedded_gguf: Path) -> None:
    token_ids = longest_matches(embedded_gguf, TEXT)
    assert len(token_ids) > 250
    model = transformers.AutoModelForCausalLM.from_pretrained(
        embedded_gguf.parent, gguf_file=embedded_gguf.name, dtype=torch.float32, attn_implementation="eager"
    )
    expected = torch.from_numpy(expected_logits(model, token_ids)).double().log_softmax(-1)
    logits = ReferenceBackend(open_checkpoint(embedded_gguf)).score(token_ids)
    actual = torch.from_numpy(logits).double().log_softmax(-1)
    following = torch.tensor(token_ids[1:])[:, None]
    difference = (actual[:-1].gather(1, following) - expected[:-1].gather(1, following)).abs()
    assert difference.max() <= TOLERANCE
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))
