"""Writes tiny random models that make vectors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import safetensors.numpy
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "aeiourstn")]
# Kind of embedding → number of rows.
EMBEDDINGS = {"word": len(WORDS), "position": 64, "token_type": 2}


def write_bert(folder: Path, kind: str, num_labels: int = 2) -> str:
    """Writes a random BERT with a WordPiece tokenizer, and returns its path.

    It is written without transformers, which takes ten seconds of CPU time to import.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": [kind], "model_type": "bert", "vocab_size": len(WORDS), "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
        "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "pad_token_id": 0, "dtype": "float32",
        "id2label": {str(label): f"LABEL_{label}" for label in range(num_labels)},
        "label2id": {f"LABEL_{label}": label for label in range(num_labels)},
    }  # fmt: skip
    shapes = {f"embeddings.{part}_embeddings.weight": (size, 64) for part, size in EMBEDDINGS.items()}
    shapes |= {f"embeddings.LayerNorm.{part}": (64,) for part in ("weight", "bias")}
    linear = {f"attention.self.{part}": (64, 64) for part in ("query", "key", "value")}
    linear |= {"attention.output.dense": (64, 64), "intermediate.dense": (96, 64), "output.dense": (64, 96)}
    for layer in range(2):
        for name, shape in linear.items():
            shapes |= {f"encoder.layer.{layer}.{name}.weight": shape, f"encoder.layer.{layer}.{name}.bias": shape[:1]}
        for name in ("attention.output", "output"):
            shapes |= {f"encoder.layer.{layer}.{name}.LayerNorm.{part}": (64,) for part in ("weight", "bias")}
    shapes |= {"pooler.dense.weight": (64, 64), "pooler.dense.bias": (64,)}
    if kind == "BertForSequenceClassification":
        shapes = {f"bert.{name}": shape for name, shape in shapes.items()}
        shapes |= {"classifier.weight": (num_labels, 64), "classifier.bias": (num_labels,)}
    noise = np.random.default_rng(3)
    tensors = {name: noise.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(WORDS[:5])
    ids = [(word, WORDS.index(word)) for word in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{word.strip('[]').lower()}_token": word for word in WORDS[:5]}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    named = names | {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return str(folder)


def write_reranker(folder: Path) -> str:
    """Writes a random Qwen3 that scores pairs by its answer, as sentence-transformers saves it. Returns its path."""
    import torch
    import transformers
    from sentence_transformers import CrossEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore

    plain = folder / "plain"
    write_bert(plain, "BertModel")
    config = transformers.Qwen3Config(
        vocab_size=len(WORDS), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=130, tie_word_embeddings=True,
    )  # fmt: skip
    network = transformers.Qwen3ForCausalLM(config)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    network.save_pretrained(plain)
    template = "{% for message in messages %}[CLS] {{ message.role }} {{ message.content }} [SEP]{% endfor %}"
    (plain / "chat_template.jinja").write_text(template)
    transformer = Transformer(str(plain), transformer_task="text-generation")
    score = LogitScore(WORDS.index("y"), WORDS.index("n"))
    CrossEncoder(modules=[transformer, score], device="cpu").save_pretrained(str(folder / "reranker"))
    return str(folder / "reranker")
