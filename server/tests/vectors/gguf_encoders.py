"""GGUF files of BERT, written by the `gguf` package in the way of llama.cpp's converter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.numpy

_POOLING = {"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS, "rank": gguf.PoolingType.RANK}


def write_encoder(folder: Path, path: Path, pooling: str, leave_out: str = "") -> Path:
    """Writes the model in `folder`, a BERT or RoBERTa, with its WordPiece tokenizer. leave_out: a tensor."""
    config = json.loads((folder / "config.json").read_text())
    # Positions of RoBERTa begin behind that of padding.
    offset = 0 if config["model_type"] == "bert" else config["pad_token_id"] + 1
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(config["max_position_embeddings"] - offset)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config.get("layer_norm_eps", 1e-12))
    writer.add_causal_attention(False)
    writer.add_pooling_type(_POOLING[pooling])
    writer.add_token_type_count(config.get("type_vocab_size", 2))
    _write_tokenizer(writer, folder)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, config["num_hidden_layers"])
    for name, values in safetensors.numpy.load_file(folder / "model.safetensors").items():
        if name.endswith("position_ids") or "pooler" in name:
            continue
        module, kind = name.removeprefix("bert.").removeprefix("roberta.").rsplit(".", 1)
        stored_name = f"{names.get_name(module)}.{kind}"
        if stored_name == "position_embd.weight":
            values = values[offset:]
        # The format lacks the first dimension of a matrix with one row.
        values = values[0] if values.ndim == 2 and len(values) == 1 else values
        if stored_name != leave_out:
            writer.add_tensor(stored_name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_tokenizer(writer: gguf.GGUFWriter, folder: Path) -> None:
    tokenizer: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    special = {token["content"] for token in tokenizer["added_tokens"]}
    if tokenizer["model"].get("type") == "Unigram":
        _write_unigram(writer, tokenizer["model"]["vocab"], special)
    else:
        _write_word_pieces(writer, tokenizer["model"]["vocab"], special)


def _write_unigram(writer: gguf.GGUFWriter, pieces: list[tuple[str, float]], special: set[str]) -> None:
    types = {"<unk>": gguf.TokenType.UNKNOWN} | dict.fromkeys(special - {"<unk>"}, gguf.TokenType.CONTROL)
    texts = [text for text, _ in pieces]
    writer.add_tokenizer_model("t5")
    writer.add_token_list(texts)
    writer.add_token_types([types.get(text, gguf.TokenType.NORMAL) for text in texts])
    writer.add_token_scores([score for _, score in pieces])
    writer.add_bos_token_id(texts.index("<s>"))
    writer.add_eos_token_id(texts.index("</s>"))
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(True)


def _write_word_pieces(writer: gguf.GGUFWriter, ids: dict[str, int], special: set[str]) -> None:
    tokens = sorted(ids, key=ids.__getitem__)

    def spelled(token: str) -> str:
        return token if token in special else token[2:] if token.startswith("##") else "\u2581" + token

    writer.add_tokenizer_model("bert")
    writer.add_token_list([spelled(token) for token in tokens])
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in special else normal for token in tokens])
    writer.add_token_scores(np.zeros(len(tokens), np.float32).tolist())
    writer.add_bos_token_id(ids["[CLS]"])
    writer.add_sep_token_id(ids["[SEP]"])
    writer.add_pad_token_id(ids["[PAD]"])
    writer.add_unk_token_id(ids["[UNK]"])
