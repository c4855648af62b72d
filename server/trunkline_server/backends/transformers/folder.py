"""Reads a model from its folder with transformers. Code in the folder never runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trunkline_server.backends.host_memory import available_memory
from trunkline_server.errors import (
    DamagedFile,
    DoesNotFit,
    ModelNotFound,
    UnsupportedArchitecture,
    UnsupportedFormat,
    quoted,
)
from trunkline_server.weights.fingerprint import fingerprint_bytes
from trunkline_server.weights.mapping import MappedFile
from trunkline_server.weights.safetensors import SafetensorsFile, open_shards, read_json_object

_SUPPORTED = (
    "decoders whose only state is the keys and values of each layer, with attention through transformers' "
    "`AttentionInterface`",
)
_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
_HINT = "give a folder with `config.json` and safetensors, or the id of such a repository"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder whose files can be loaded. name: its `model_type`; files: those of the weights, by name."""

    path: Path
    name: str
    config: PretrainedConfig
    files: list[SafetensorsFile]

    @property
    def context(self) -> int:
        """The number of positions up to which no position's result depends on the length of the text.

        Beyond the trained context, `longrope` rotates every position of a text in another way.
        """
        text = self.config.get_text_config()
        num_positions = getattr(text, "max_position_embeddings", None)
        if not isinstance(num_positions, int) or num_positions < 1:
            raise self.refusal("does not say how many positions it has (`max_position_embeddings`)")
        rope = getattr(text, "rope_parameters", None)
        ropes: list[dict[str, Any]] = [rope, *rope.values()] if isinstance(rope, dict) else []
        trained: list[int] = [
            rope.get("original_max_position_embeddings", num_positions)
            for rope in ropes
            if isinstance(rope, dict) and rope.get("rope_type") == "longrope"
        ]
        return min([num_positions, *trained])

    def refusal(self, reason: str) -> UnsupportedArchitecture:
        """Returns the error for a model, of which `reason` is a predicate."""
        return UnsupportedArchitecture(
            f"architecture {quoted(self.name)} of `{self.path}`, which {reason},", supported=_SUPPORTED
        )

    def fingerprint(self) -> str:
        """Returns a hash of all bytes of config and weights."""
        return fingerprint_bytes(
            [MappedFile(self.path / "config.json").bytes, *(file.file.bytes for file in self.files)]
        )

    def load(self) -> PreTrainedModel:
        """Loads the weights in their own dtype, with `eager` attention."""
        num_bytes, available = sum(file.file.num_bytes for file in self.files), available_memory()
        if num_bytes > available:
            raise DoesNotFit(
                f"the weights of `{self.path}` take {num_bytes >> 20} MiB, but {available >> 20} MiB of memory are "
                "available",
                hint="choose a smaller model",
            )
        try:
            model, info = AutoModelForCausalLM.from_pretrained(
                self.path,
                config=self.config,
                dtype="auto",
                attn_implementation="eager",
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except Exception as error:
            raise DamagedFile(self.path, f"transformers cannot load it: {first_line(error)}") from error
        if info["missing_keys"]:
            raise DamagedFile(
                self.path, f"tensor `{min(info['missing_keys'])}` is missing", hint="the download may be incomplete"
            )
        return model.eval()


def open_folder(path: Path) -> Folder:
    """Reads config and headers, and refuses what cannot be served before any weight is loaded. Raises UserError."""
    if not path.is_dir():
        raise UnsupportedFormat(f"`{path}` is not a folder, which the transformers backend needs", hint=_HINT)
    config_path = path / "config.json"
    if not config_path.exists():
        raise ModelNotFound(f"folder `{path}` has no `config.json`", hint=_HINT)
    values = read_json_object(config_path)
    name = values.get("model_type")
    if not isinstance(name, str):
        raise DamagedFile(config_path, "key `model_type` is missing or not a string")
    if values.get("quantization_config") is not None:
        raise UnsupportedFormat(
            f"`{path}` is quantised (`quantization_config`), which the transformers backend does not support",
            hint="use the unquantised model",
        )
    if name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UnsupportedArchitecture(
            f"architecture {quoted(name)} of `{config_path}` in transformers {transformers.__version__}",
            supported=[f"its {len(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)} causal language models"],
        )
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        classes = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except Exception as error:
        raise DamagedFile(config_path, f"transformers cannot read it: {first_line(error)}") from error
    folder = Folder(path, name, config, [])
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False):
        raise folder.refusal("has an encoder")
    if any(model_class._is_stateful for model_class in (classes if isinstance(classes, tuple) else (classes,))):
        raise folder.refusal("keeps a recurrent state")
    layer_types = set(getattr(config.get_text_config(), "layer_types", None) or ()) - _LAYER_TYPES
    if layer_types:
        raise folder.refusal(f"has layers of type {quoted(min(layer_types))}")
    files = {file.path.name: file for file in open_shards(path).values()}
    return Folder(path, name, config, [files[file] for file in sorted(files)])


def first_line(error: Exception) -> str:
    """Returns what a library says in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
