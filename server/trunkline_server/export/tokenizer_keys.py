"""Writes `tokenizer.json` and the files beside it as GGUF's keys. Only byte-level BPE has the same form in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunkline_server.errors import DamagedFile, UnsupportedFormat
from trunkline_server.export.config_keys import CONVERTER_HINT
from trunkline_server.weights.safetensors import read_json_object

if TYPE_CHECKING:
    from trunkline_server.export.gguf_writer import Value

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
_CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_CL100K_END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_CASES_END = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
# Names of llama.cpp by the steps of the pre-tokenizer, by whether whole pieces are tokens without merges, and by
# whether text is composed. router/text/src/tokenizer/pre.rs has the same expressions.
NAMES = {
    (("ByteLevel",), False, False): "gpt-2",
    (("Digits", "ByteLevel"), False, False): "smollm",
    ((_CL100K + r"\p{N}{1,3}" + _CL100K_END,), True, False): "llama-bpe",
    ((_CL100K + r"\p{N}{1,3}" + _CL100K_END,), False, False): "smaug-bpe",
    ((_CL100K + r"\p{N}" + _CL100K_END,), False, True): "qwen2",
    ((_CL100K + r"\p{N}" + _CL100K_END,), False, False): "deepseek-r1-qwen",
    ((rf"{_CASES[0]}|{_CASES[1]}|\p{{N}}" + _CASES_END,), True, False): "tekken",
    ((rf"{_CASES[0]}{_SUFFIX}|{_CASES[1]}{_SUFFIX}|\p{{N}}{{1,3}}" + _CASES_END,), False, False): "gpt-4o",
}


def tokenizer_keys(folder: Path, vocab_size: int) -> dict[str, Value]:
    """Returns the metadata of a folder's tokenizer, special tokens and chat template.

    vocab_size: rows of the embedding; tokens that the tokenizer lacks are unused.
    Raises UnsupportedFormat, DamagedFile.
    """
    path = folder / "tokenizer.json"
    tokenizer = read_json_object(path) if path.is_file() else {}
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
        what = "has no `tokenizer.json`" if not tokenizer else "has a tokenizer that is not byte-level BPE"
        raise UnsupportedFormat(f"`{folder}` {what}, so it cannot be written as GGUF", hint=CONVERTER_HINT)
    if (name := NAMES.get(_properties(tokenizer, model))) is None:
        raise UnsupportedFormat(
            f"`{path}` splits text in a way for which GGUF has no name that is known here", hint=CONVERTER_HINT
        )
    try:
        texts, kinds = _tokens(tokenizer, model, vocab_size)
        merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise DamagedFile(path, f"its tokens or merges have another form than the format says ({error!r})") from error
    keys: dict[str, Value] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
    }
    return keys | _special_keys(folder, tokenizer, {text: index for index, text in enumerate(texts)})


def _properties(tokenizer: Mapping[str, Any], model: Mapping[str, Any]) -> tuple[tuple[str, ...], bool, bool]:
    whole = tokenizer.get("pre_tokenizer") or {}
    steps = []
    for step in whole.get("pretokenizers") or [whole]:
        if step.get("type") == "Split":
            steps.append(str((step.get("pattern") or {}).get("Regex")))
        elif step.get("type") != "ByteLevel" or step.get("use_regex", True):
            steps.append(str(step.get("type")))
    normalizer = tokenizer.get("normalizer") or {}
    names = [step.get("type") for step in normalizer.get("normalizers") or [normalizer] if step]
    steps += [f"normalizer {name}" for name in names if name != "NFC"]
    return tuple(steps), bool(model.get("ignore_merges")), names == ["NFC"]


def _tokens(tokenizer: Mapping[str, Any], model: Mapping[str, Any], vocab_size: int) -> tuple[list[str], list[int]]:
    texts, kinds = [f"[PAD{index}]" for index in range(vocab_size)], [_UNUSED] * vocab_size
    tokens = [(index, text, _NORMAL) for text, index in model["vocab"].items()]
    for token in tokenizer.get("added_tokens") or []:
        tokens.append((token["id"], token["content"], _CONTROL if token.get("special") else _USER_DEFINED))
    for index, text, kind in tokens:
        if not 0 <= index < vocab_size:
            raise ValueError(f"id {index} is not below {vocab_size}")
        texts[index], kinds[index] = text, kind
    return texts, kinds


def _special_keys(folder: Path, tokenizer: Mapping[str, Any], ids: Mapping[str, int]) -> dict[str, Value]:
    path = folder / "tokenizer_config.json"
    config = read_json_object(path) if path.is_file() else {}
    keys: dict[str, Value] = {}
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    for field, name in named.items():
        token = config.get(field)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text in ids:
            keys[f"tokenizer.ggml.{name}_token_id"] = ids[text]
    for end, around in zip(("bos", "eos"), _around(tokenizer.get("post_processor") or {}), strict=True):
        chosen = config.get(f"add_{end}_token")
        adds = chosen if isinstance(chosen, bool) else around
        keys[f"tokenizer.ggml.add_{end}_token"] = adds
    template = config.get("chat_template")
    if (file := folder / "chat_template.jinja").is_file():
        template = file.read_text()
    if isinstance(template, str):
        keys["tokenizer.chat_template"] = template
    elif isinstance(template, list):
        named_templates = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        if isinstance(default := named_templates.get("default"), str):
            keys["tokenizer.chat_template"] = default
    return keys


def _around(processor: Mapping[str, Any]) -> tuple[bool, bool]:
    """Returns whether a token precedes and whether one follows every text."""
    for step in processor.get("processors") or [processor]:
        single: Sequence[Mapping[str, Any]] = step.get("single") or []
        if step.get("type") == "TemplateProcessing" and single:
            return "SpecialToken" in single[0], "SpecialToken" in single[-1]
    return False, False
