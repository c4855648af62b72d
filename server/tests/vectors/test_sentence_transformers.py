"""Vectors of tiny random models, compared with what sentence-transformers computes from the same folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray
from tests.models.tiny import TinyModels
from tests.plans import new_chunk, new_start
from tests.vectors.gguf_encoders import write_encoder
from tests.weights.gguf_files import write_model as write_model_as_gguf
from trunkline_server.backends.cpu.build import build
from trunkline_server.backends.cpu.weight_cache import PackedWeights, WeightsPlace
from trunkline_server.backends.interface import Backend, sampling_params
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.weights.checkpoint import open_checkpoint

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"word{index}" for index in range(60))]
SHORT = [f"word{index}" for index in range(3)]
LONG = [f"word{7 * index % 60}" for index in range(90)]

_SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 130,
}
_DECODER: dict[str, Any] = {**_SIZES, "num_key_value_heads": 2, "pad_token_id": 0}
# Windows of 17 positions on either side; layers 0 and 3 have none.
_MODERNBERT: dict[str, Any] = {
    **_SIZES, "num_hidden_layers": 4, "local_attention": 33, "pad_token_id": 0, "cls_token_id": 2, "bos_token_id": 2,
    "sep_token_id": 3, "eos_token_id": 3,
}  # fmt: skip
_ROBERTA: dict[str, Any] = {**_SIZES, "type_vocab_size": 1, "pad_token_id": 0}

# Maps a case to its class of transformers, its config, and the pooling of `modules.json`; None: there is no such file.
EMBEDDERS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bert_mean": ("BertModel", "BertConfig", _SIZES, "mean"),
    "bert_first": ("BertModel", "BertConfig", _SIZES, "cls"),
    "xlm_roberta_mean": ("XLMRobertaModel", "XLMRobertaConfig", _ROBERTA, "mean"),
    "modernbert_mean": ("ModernBertModel", "ModernBertConfig", _MODERNBERT, "mean"),
    "modernbert_first": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**_MODERNBERT, "attention_bias": True, "mlp_bias": True, "norm_bias": True},
        "cls",
    ),
    "qwen3_last": ("Qwen3Model", "Qwen3Config", {**_DECODER, "head_dim": 16}, "lasttoken"),
    "qwen3_mean": (
        "Qwen3ForCausalLM",
        "Qwen3Config",
        {**_DECODER, "head_dim": 16, "tie_word_embeddings": True},
        "mean",
    ),
}
CLASSIFIERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", "BertConfig", {**_SIZES, "num_labels": 1}),
    "roberta": ("RobertaForSequenceClassification", "RobertaConfig", {**_ROBERTA, "num_labels": 1}),
    "qwen3": ("Qwen3ForSequenceClassification", "Qwen3Config", {**_DECODER, "head_dim": 16, "num_labels": 1}),
    "modernbert": (
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        {**_MODERNBERT, "num_labels": 1, "classifier_pooling": "mean"},
    ),
    "modernbert_first": (
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        {**_MODERNBERT, "num_labels": 2, "classifier_pooling": "cls"},
    ),
    "bert_classes": ("BertForSequenceClassification", "BertConfig", {**_SIZES, "num_labels": 3}),
}


def write_model(folder: Path, model: str, config: str, sizes: dict[str, Any]) -> None:
    """Writes a random model, whose tokens are words, and its tokenizer."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    torch.manual_seed(1)
    network = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    network.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ids = [(word, WORDS.index(word)) for word in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        # Only BERT tells texts apart.
        model_input_names=["input_ids", *(["token_type_ids"] if model.startswith("Bert") else []), "attention_mask"],
    )  # fmt: skip
    fast.save_pretrained(folder)


def write_modules(folder: Path, mode: str, dense: Sequence[dict[str, Any]] = ()) -> None:
    """Writes `modules.json` and the modules: pooling, then dense ones with these configs and random weights."""
    kind = "sentence_transformers.models."
    between = [(f"{2 + index}_Dense", "Dense") for index in range(len(dense))]
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), *between, ("9_Normalize", "Normalize")]
    for (path, _), config in zip(between, dense, strict=True):
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(config))
        random = np.random.default_rng(config["out_features"])
        shapes = {"linear.weight": (config["out_features"], config["in_features"])}
        shapes |= {"linear.bias": (config["out_features"],)} if config["bias"] else {}
        tensors = {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
        safetensors.numpy.save_file(tensors, folder / path / "model.safetensors")
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": kind + name}
        for index, (path, name) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir()
    key = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}[mode]
    pooling = {"word_embedding_dimension": 64, f"pooling_mode_{key}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


class Vectors:
    """Computes vectors with a backend. Unless torch computes them, they have the same bits beside another prompt."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.is_exact = not isinstance(backend, ReferenceBackend)
        self.num_started = 0

    def __call__(self, token_ids: Sequence[int], second_text: int = 0, cut: int = 0) -> NDArray[np.float64]:
        neighbour = [5, 6, 7, 8, 9]
        alone = self._compute([(token_ids, second_text)], cut)
        if not cut and self.is_exact:
            beside = self._compute([(neighbour, 0), (token_ids, second_text)], cut)
            assert beside[-1] == alone[-1], "the bits do not depend on neighbours"
        return np.array(alone[-1], np.float64)

    def _compute(self, prompts: Sequence[tuple[Sequence[int], int]], cut: int) -> list[list[float]]:
        size = self.backend.info.block_size
        vectors: list[list[float]] = []
        firsts = []
        for token_ids, second_text in prompts:
            self.num_started += 1
            self.backend.start(
                new_start(self.num_started, token_ids, len(token_ids), sampling_params(), pool=second_text)
            )
            firsts.append((self.num_started, len(token_ids)))
        if cut:
            ((sequence_id, count),) = firsts
            self.backend.step([new_chunk(sequence_id, 0, cut, list(range(-(-count // size))), sample=False)])
            result = self.backend.step([new_chunk(sequence_id, cut, count - cut, [], sample=True)])
        else:
            chunks, block = [], 0
            for sequence_id, count in firsts:
                blocks = list(range(block, block := block + -(-count // size)))
                chunks.append(new_chunk(sequence_id, 0, count, blocks, sample=True))
            result = self.backend.step(chunks)
        for outcome in result.sequences:
            assert outcome.WhichOneof("outcome") is None
            vectors.append(list(outcome.vector))
        for sequence_id, _ in firsts:
            self.backend.end(sequence_id)
        return vectors


def backend(name: str, folder: Path) -> Vectors:
    checkpoint = open_checkpoint(folder)
    if name == "reference":
        return Vectors(ReferenceBackend(checkpoint))
    return Vectors(build(checkpoint, threads=2, max_batch_total_tokens=1024, kv_cache_dtype="f16"))


def cosine(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


@pytest.mark.parametrize("case", EMBEDDERS)
def test_embeddings_are_those_of_sentence_transformers(case: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model, config, sizes, mode = EMBEDDERS[case]
    write_model(tmp_path, model, config, sizes)
    write_modules(tmp_path, mode)
    peer = SentenceTransformer(str(tmp_path), device="cpu")
    for name in ("reference", "cpu"):
        vectors = backend(name, tmp_path)
        for words in (SHORT, LONG):
            text = " ".join(words)
            ids = [2, *(WORDS.index(word) for word in words), 3]
            vector = vectors(ids)
            wanted = peer.encode(text).astype(np.float64)
            assert cosine(vector, wanted) >= 0.99999, f"{name}, {len(words)} words"
            if vectors.is_exact and not model.startswith(("Bert", "Modern", "XLM")) and len(words) > 40:
                assert (vectors(ids, cut=37) == vector).all(), "the bits do not depend on cuts"


@pytest.mark.parametrize("case", ["bert_mean", "bert_first", "modernbert_mean", "qwen3_mean", "qwen3_last"])
def test_dense_modules_are_those_of_sentence_transformers(case: str, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    model, config, sizes, mode = EMBEDDERS[case]
    write_model(tmp_path, model, config, sizes)
    activations = "torch.nn.modules."
    # Only linear functions may follow the mean of a decoder.
    first = "linear.Identity" if case == "qwen3_mean" else "activation.Tanh"
    dense = [
        {"in_features": 64, "out_features": 48, "bias": True, "activation_function": activations + first},
        {"in_features": 48, "out_features": 80, "bias": False, "activation_function": activations + "linear.Identity"},
    ]
    write_modules(tmp_path, mode, dense)
    wanted = SentenceTransformer(str(tmp_path), device="cpu").encode(" ".join(LONG)).astype(np.float64)
    ids = [2, *(WORDS.index(word) for word in LONG), 3]
    for name in ("reference", "cpu"):
        vectors = backend(name, tmp_path)
        vector = vectors(ids)
        assert vector.shape == (80,) and cosine(vector, wanted) >= 0.99999, name
        if vectors.is_exact and case.startswith("qwen3"):
            assert (vectors(ids, cut=37) == vector).all(), "the bits do not depend on cuts"


@pytest.mark.parametrize("case", CLASSIFIERS)
def test_logits_of_classes_are_those_of_transformers(case: str, tmp_path: Path) -> None:
    from sentence_transformers import CrossEncoder

    model, config, sizes = CLASSIFIERS[case]
    write_model(tmp_path, model, config, sizes)
    peer = CrossEncoder(str(tmp_path), device="cpu")
    first, second = SHORT, LONG[:40]
    head = [2, *(WORDS.index(word) for word in first), 3]
    ids = [*head, *(WORDS.index(word) for word in second), 3]
    import torch

    wanted = peer.predict([(" ".join(first), " ".join(second))], activation_fn=torch.nn.Identity())
    for name in ("reference", "cpu"):
        second_text = len(head) if model.startswith("Bert") else 0
        logits = backend(name, tmp_path)(ids, second_text)
        difference = np.abs(logits - np.asarray(wanted, np.float64).reshape(-1)).max()
        assert difference <= 1e-3 * max(1.0, float(np.abs(logits).max())), f"{name}: {logits} is not {wanted}"


ANSWERS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]] = {
    # The case: changes of the model, of its files, and the rows of its head.
    "tied": ({"tie_word_embeddings": True}, {"true_token_id": 40, "false_token_id": 7}, (40, 7)),
    "untied": ({}, {"true_token_id": 5, "false_token_id": 63}, (5, 63)),
    "one_token": ({}, {"true_token_id": 9, "false_token_id": None}, (9,)),
    "vllm": ({}, {"classifier_from_token": ["word1", "word2"]}, (6, 5)),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_answers_are_logits_of_the_language_model(case: str, tmp_path: Path) -> None:
    import torch
    import transformers

    change, files, rows = ANSWERS[case]
    write_model(tmp_path, "Qwen3ForCausalLM", "Qwen3Config", {**_DECODER, "head_dim": 16, **change})
    ids = [2, *(WORDS.index(word) for word in LONG), 3]
    with torch.no_grad():
        logits = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)(torch.tensor([ids])).logits[0, -1]
    wanted = float(logits[rows[0]] - (logits[rows[1]] if len(rows) == 2 else 0.0))
    if "classifier_from_token" in files:
        config = json.loads((tmp_path / "config.json").read_text())
        config |= {"architectures": ["Qwen3ForSequenceClassification"]} | files
        (tmp_path / "config.json").write_text(json.dumps(config))
    else:
        kind = "sentence_transformers."
        modules = [("", kind + "base.modules.Transformer"), ("1_LogitScore", kind + "cross_encoder.modules.LogitScore")]
        (tmp_path / "modules.json").write_text(json.dumps([{"path": path, "type": name} for path, name in modules]))
        (tmp_path / "1_LogitScore").mkdir()
        (tmp_path / "1_LogitScore/config.json").write_text(json.dumps(files))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.pooling is not None and checkpoint.config.pooling.answer_rows == rows
    for name in ("reference", "cpu"):
        (score,) = backend(name, tmp_path)(ids)
        assert abs(score - wanted) <= 1e-3 * max(1.0, abs(wanted)), f"{name}: {score} is not {wanted}"


@pytest.mark.parametrize(
    ("case", "pooling"),
    [("bert_mean", "mean"), ("bert_first", "cls"), ("roberta", "rank"), ("roberta_classes", "rank")],
)
def test_gguf_files_of_encoders_have_the_same_vectors(case: str, pooling: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    if case.startswith("bert"):
        model, config, sizes, mode = EMBEDDERS[case]
        write_model(tmp_path / "model", model, config, sizes)
        write_modules(tmp_path / "model", mode)
    else:
        model, config, sizes = CLASSIFIERS["roberta"]
        num_labels = 3 if case == "roberta_classes" else 1
        write_model(tmp_path / "model", model, config, {**sizes, "num_labels": num_labels})
    path = write_encoder(tmp_path / "model", tmp_path / "model.gguf", pooling)
    first, second = [2, *(WORDS.index(word) for word in SHORT), 3], [*(WORDS.index(word) for word in LONG), 3]
    for name in ("reference", "cpu"):
        wanted, found = backend(name, tmp_path / "model"), backend(name, path)
        for ids, second_text in ((first, 0), (first + second, len(first))):
            assert (wanted(ids, second_text) == found(ids, second_text)).all(), name


def test_gguf_files_of_decoders_say_how_they_make_vectors(tmp_path: Path, tiny_model: TinyModels) -> None:
    model = tiny_model("qwen3")
    rows = [9, 4]

    def answers(writer: gguf.GGUFWriter) -> None:
        writer.add_pooling_type(gguf.PoolingType.RANK)
        writer.add_tensor("cls.output.weight", model.weights["model.embed_tokens.weight"][rows])

    write_model_as_gguf(model, tmp_path / "rank.gguf", add=answers)
    write_model_as_gguf(
        model, tmp_path / "last.gguf", add=lambda writer: writer.add_pooling_type(gguf.PoolingType.LAST)
    )
    last, rank = (open_checkpoint(tmp_path / f"{name}.gguf") for name in ("last", "rank"))
    assert last.config.pooling is not None and (last.config.pooling.kind, last.config.has_output_head) == ("last", True)
    assert not rank.config.has_output_head
    ids = list(range(3, 40))
    for name in ("reference", "cpu"):
        vector = backend(name, tmp_path / "last.gguf")(ids)
        (score,) = backend(name, tmp_path / "rank.gguf")(ids)
        yes, no = vector @ model.weights["model.embed_tokens.weight"][rows].T.astype(np.float64)
        assert abs(score - (yes - no)) <= 1e-3 * max(1.0, abs(score)), name


def test_packed_weights_of_other_answers_are_not_used(tmp_path: Path) -> None:
    write_model(tmp_path, "Qwen3ForCausalLM", "Qwen3Config", {**_DECODER, "head_dim": 16})
    (tmp_path / "modules.json").write_text(json.dumps([{"path": "1_LogitScore", "type": "x.LogitScore"}]))
    (tmp_path / "1_LogitScore").mkdir()
    paths = set()
    for token_id in (5, 6):
        (tmp_path / "1_LogitScore/config.json").write_text(json.dumps({"true_token_id": token_id}))
        checkpoint = open_checkpoint(tmp_path)
        tensors = [checkpoint.tensor("score.weight")]
        paths.add(PackedWeights(checkpoint, tensors, WeightsPlace(tmp_path / "cache"), "none").cache.path)
    assert len(paths) == 2
