"""Writes tiny random models that make vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "aeiourstn")]


def write_bert(folder: Path, kind: str, **sizes: Any) -> str:
    """Writes a random BERT with a WordPiece tokenizer, and returns its path."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, **sizes,
    )  # fmt: skip
    network = getattr(transformers, kind)(config)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    network.save_pretrained(folder)
    pieces = models.WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
    tokenizer = Tokenizer(pieces)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ids = [(word, WORDS.index(word)) for word in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip
    return str(folder)


def write_xlm_roberta(folder: Path) -> str:
    """Writes a random XLM-RoBERTa with one class and a unigram tokenizer, and returns its path."""
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    torch.manual_seed(4)
    tokenizer = Tokenizer(models.Unigram())
    spaces = pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    tokenizer.decoder = decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(["a rose is a rose on a terrace", "the sea is no tea", "no one is at sea"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    config = transformers.XLMRobertaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=66, type_vocab_size=1, num_labels=1,
    )  # fmt: skip
    network = transformers.XLMRobertaForSequenceClassification(config)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    network.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
        cls_token="<s>", sep_token="</s>", model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(folder)  # fmt: skip
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
