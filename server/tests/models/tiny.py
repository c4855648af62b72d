"""Tiny random models of every architecture, generated from a seed without transformers, which takes seconds to import.

`recorded/` has the configs as transformers writes them, and what transformers computes for these models; see
`record.py`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from trunkline_server.models.config_json import config_from_json
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.places import safetensors_place

RECORDED = Path(__file__).parent / "recorded"
# Maps a case to its `config.json`. A new case needs only the keys that differ from transformers' defaults; recording
# adds the others. Rows of `llama_wide` are whole blocks in every format, those of `gpt_oss` whole groups of MXFP4.
# Gates of `gpt_oss_limited` reach their limit. The shallow ones are for whole backends in Triton's interpreter.
# `deepseek_v2`, like DeepSeek-V2-Lite, has no latent of queries, and its experts are one group. `granitehybrid` has
# only the expert of all tokens, and `granitehybrid_attention` no recurrent layer. The trained context of
# `phi3_longrope` is so short that transformers, too, has the long factors for every prompt. With a tied head, the
# text of `gemma` would repeat.
CASES: dict[str, dict[str, Any]] = json.loads((RECORDED / "configs.json").read_text())
VOCAB_SIZE = 160
# Other seeds where the text from seed 0 repeats itself: a text with two tokens tests little.
_SEEDS = {"smollm3": 4}


class TinyModel:
    """A model: its `config.json`, and f32 weights under a checkpoint's names; a tied head is not among them."""

    def __init__(self, case: str) -> None:
        self.case = case
        self.config = CASES[case]
        self._seed = _SEEDS.get(case, 0)
        # Set where the model is saved once for all tests; see the fixture `tiny_model`.
        self.folder = Path()

    @cached_property
    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Returns random weights: norms around 1, biases not 0, logits of a few units."""
        config = config_from_json(Path("config.json"), self.config)
        shapes = weight_shapes(config)
        if config.tie_word_embeddings:
            del shapes["lm_head.weight"]
        return {name: self._random(name, shape) for name, shape in shapes.items()}

    @property
    def stored_weights(self) -> dict[str, NDArray[np.float32]]:
        """The weights under the names that files of the architecture have."""
        config = config_from_json(Path("config.json"), self.config)
        stored: dict[str, NDArray[np.float32]] = {}
        parts: dict[str, list[tuple[int | None, slice, NDArray[np.float32]]]] = {}
        transposed = set[str]()
        for name, weight in self.weights.items():
            place = safetensors_place(name, config)
            weight = weight.T if place.transposes_rows else weight
            if place.flattens and config.recurrent is not None:
                # Torch keeps the taps of a depthwise convolution in this shape.
                weight = weight.reshape(-1, 1, config.recurrent.conv_width)
            begin = 0
            for first, end in place.rows or ((0, len(weight)),):
                part = weight[begin : begin + len(range(first, end, place.step))]
                parts.setdefault(place.tensor, []).append((place.index, slice(first, end, place.step), part))
                begin += len(part)
            if place.is_transposed:
                transposed.add(place.tensor)
        for tensor, found in parts.items():
            stack = [1 + index for index, _, _ in found if index is not None][-1:]
            shape = (*stack, max(rows.stop for _, rows, _ in found), *found[0][2].shape[1:])
            stored[tensor] = np.zeros(shape, np.float32)
            for index, rows, part in found:
                stored[tensor][rows if index is None else (index, rows)] = part
        return stored | {tensor: np.ascontiguousarray(stored[tensor].swapaxes(1, 2)) for tensor in transposed}

    def _random(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        # The legacy generator, whose numbers no release of NumPy changes.
        values = np.random.RandomState(self._seed + zlib.crc32(f"{self.case} {name}".encode())).standard_normal(shape)
        if len(shape) > 1:
            return (values / shape[1] ** 0.5).astype(np.float32)
        # Some norms add 1 to their weight.
        adds_1 = self.config["model_type"].startswith(("gemma", "nemotron", "qwen3_next")) and ".mixer." not in name
        is_centred = name.endswith("norm.weight") and not adds_1
        return (0.3 * values + is_centred).astype(np.float32)

    def save(self, folder: Path) -> Path:
        """Writes safetensors and `config.json`; returns the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.stored_weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder

    def save_in_shards(self, folder: Path, num_shards: int) -> None:
        """Writes the model as transformers shards larger ones, with an index that names the file of each weight."""
        weights = self.stored_weights
        names = list(weights)
        weight_map = {}
        for shard in range(num_shards):
            file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
            chosen = {name: weights[name] for name in names[shard::num_shards]}
            save_file(chosen, folder / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(chosen, file)
        size = sum(weight.nbytes for weight in weights.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "config.json").write_text(json.dumps(self.config))


TinyModels = Callable[[str], TinyModel]
