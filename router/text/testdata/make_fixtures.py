"""Writes what transformers makes of the texts and chats below, for the Rust tests to compare with.

Run with transformers, gguf and sentencepiece installed:  python make_fixtures.py SmolLM2-135M-Instruct.Q4_1.gguf

Writes beside itself: smollm2.json (ids and rendered chats of the model in the file), pre_tokenizers.json (the same
vocabulary cut by the other families' rules), spm.gguf and spm_tokenizer.json with spm.json (a small SentencePiece
vocabulary), templates.json (templates/*.jinja over some chats), unigram.model, unigram_bytes.model and bpe.model with
sentence_piece.json (vocabularies that sentencepiece trained, and its ids), small.tiktoken with tiktoken.json (byte
pairs, and the ids of the algorithm as tiktoken defines it). The templates are shortened from the models' own.
"""

from __future__ import annotations

import base64
import io
import json
import random
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import gguf
import regex
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer
from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping

HERE = Path(__file__).parent

TEXTS = [
    "",
    " ",
    "a",
    "Hello, world!",
    " leading and trailing ",
    "It's we'll they'd I'm you've SHE'S DON'T",
    "The year 2024 had 366 days; pi is 3.14159265, 1,000,000 is 10^6, ١٢٣ and Ⅷ ½ ² are numerals.",
    "  12  345   6789\t10\n11\r\n  12",
    'fn main() {\n    let x: Vec<u32> = (0..10).map(|i| i * 2).collect();\n\tprintln!("{x:?}");\n}\n',
    "def f(n):\n    return 1 if n < 2 else n * f(n - 1)  # factorial\n\n\n"
    "if __name__ == '__main__':\n    print(f(20))\n",
    "line\n\n\n\nbreaks\r\n\r\nand\ttabs\t\tand     spaces   \n   \n\t \n end   ",
    "\n",
    "\n\n\n",
    "   ",
    "\t\t\t\t",
    "Größe, naïve café, Ærøskøbing, Łódź, İstanbul, ſtraße ﬁ ﬂ",
    "Быстрая лиса перепрыгивает через ленивую собаку.",
    "Η γρήγορη αλεπού πηδάει πάνω από τον τεμπέλη σκύλο.",
    "敏捷的棕色狐狸跳过懒狗。素早い茶色の狐がのろまな犬を飛び越える。",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다.",
    "الثعلب البني السريع يقفز فوق الكلب الكسول.",
    "השועל החום המהיר קופץ מעל הכלב העצלן.",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है।",
    "สุนัขจิ้งจอกสีน้ำตาลกระโดดข้ามสุนัขขี้เกียจ",
    "e\u0301 a\u0308 n\u0303 decomposed; \u00e9 \u00e4 \u00f1 composed; \ud55c \u1112\u1161\u11ab",
    "🙂 🙃 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 ☃️ zero\u200bwidth \u202eright\u202c",
    "\x00 \x01 \x7f \x80 \xa0 \xad \ufeff \ufffd \U0010ffff",
    '{"json": [1, 2.5e-3, null, true, "\\u00e9"]}',
    "https://example.org/a/b?c=d&e=f#g user@example.com C:\\path\\to\\file.txt",
    "!!!???...---___***///\\\\\\+++===###$$$%%%^^^&&&~~~```",
    "CamelCaseIdentifier snake_case_identifier SCREAMING_SNAKE kebab-case XMLHttpRequest iPhone15Pro",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b<|im_end|><|im_end|> <|im_start|>\n\n<repo_name>x<file_sep>y <jupyter_start>",
    "almost <|im_start| > <|im_start <im_start|> |im_end|> <|im_end|",
    "<|im_start|><|im_start|>",
    "word " * 300 + "end",
    "x" * 1000,
    "1234567890" * 20,
    " " * 100 + "x" + "\n" * 50,
    "aA bB " * 10 + "ÀÉ" * 20,
]

CHATS: list[dict[str, object]] = [
    {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True},
    {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False},
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "  What is 12 * 12?\n"},
            {"role": "assistant", "content": "144"},
            {"role": "user", "content": "Und auf Deutsch? 🙂"},
        ],
        "add_generation_prompt": True,
    },
    {"messages": [{"role": "system", "content": ""}], "add_generation_prompt": True},
    {"messages": [{"role": "tool", "content": '{"x": 1}\n\n'}], "add_generation_prompt": False},
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather at a place, <em>now</em>.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["place"],
            },
        },
    },
    {"type": "function", "function": {"name": "zeit", "description": "für Größe", "parameters": {}}},
]
CALL = {
    "id": "abcdefghi",
    "type": "function",
    "function": {"name": "weather", "arguments": {"place": "Ulm", "days": 2}},
}
TURNS = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello.\n"},
    {"role": "user", "content": "Weather?  \n"},
]
TOOL_TURNS = [
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": '{"sun": true}', "tool_call_id": "abcdefghi"},
    {"role": "assistant", "content": "Sunny."},
    {"role": "user", "content": "Thanks!"},
]
SYSTEM = {"role": "system", "content": "Be <brief>. "}
# One of each kind that prints differently in Python.
KINDS = {
    "z": None,
    "a": [True, False, 1, -2.5, 1e-7, 1e16, 3.0],
    "text": 'it\'s <b>"é" 🙂\n\t\\',
    "q": 'say "x"',
    "e": {},
}
TEMPLATE_CHATS: list[dict[str, object]] = [
    {"messages": TURNS[:1], "tools": [], "add_generation_prompt": True, "kwargs": {}},
    {"messages": TURNS, "tools": [], "add_generation_prompt": False, "kwargs": {"kinds": KINDS}},
    {"messages": [SYSTEM, *TURNS], "tools": [], "add_generation_prompt": True, "kwargs": {"enable_thinking": False}},
    {
        "messages": [SYSTEM, *TURNS, *TOOL_TURNS],
        "tools": TOOLS,
        "add_generation_prompt": True,
        "kwargs": {"kinds": [1.5]},
    },
    {"messages": [TURNS[0], TURNS[0]], "tools": [], "add_generation_prompt": True, "kwargs": {}},
    {
        "messages": [*TURNS, {"role": "assistant", "content": "a", "tool_calls": [CALL, CALL]}],
        "tools": TOOLS,
        "add_generation_prompt": False,
        "kwargs": {},
    },
]
# 2026-03-01 12:00:00 UTC
NOW_UNIX_S = 1_772_366_400

# The pre-tokenizers that models' own repositories put before ByteLevel, by the `tokenizer.ggml.pre` that Rust supports.
DIGITS = pre_tokenizers.Digits(individual_digits=True)
SPLITS = mapping.GGUF_PRE_TOKENIZER_SPLITS


def cut_as(pre: str) -> tuple[pre_tokenizers.PreTokenizer, normalizers.Normalizer | None]:
    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), None
    if pre == "smollm":
        # SmolLM's tokenizer.json; transformers cuts a GGUF of this kind as GPT-2's and so differs where several
        # spaces stand before a digit
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        return pre_tokenizers.Sequence([DIGITS, byte_level]), None
    split = pre_tokenizers.Split(Regex(SPLITS[pre]), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    normalizer = normalizers.NFC() if pre in ("qwen2", "qwen35") else None
    return pre_tokenizers.Sequence([split, byte_level]), normalizer


def write(name: str, content: object) -> None:
    text = json.dumps(content, ensure_ascii=True, indent=None, separators=(",", ":"))
    (HERE / name).write_text(text.replace("},{", "},\n{") + "\n")


def smollm2(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    plain = {text: tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS}
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer, _ = cut_as("smollm")
    encodings = []
    for text in TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        encodings.append(
            {
                "text": text,
                "ids": ids,
                "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                "skipped": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    differing = sum(plain[entry["text"]] != entry["ids"] for entry in encodings)
    print(f"{differing} of {len(TEXTS)} texts differ from transformers' own cut of this file")
    chats = []
    for chat in CHATS:
        text = tokenizer.apply_chat_template(
            tokenize=False, conversation=chat["messages"], add_generation_prompt=chat["add_generation_prompt"]
        )
        chats.append({**chat, "text": text, "ids": tokenizer(text, add_special_tokens=False)["input_ids"]})
    write("smollm2.json", {"encodings": encodings, "chats": chats})

    families = []
    for pre, ignore_merges in [
        ("gpt-2", False),
        ("llama-bpe", True),
        ("qwen2", False),
        ("qwen35", False),
        ("tekken", True),
        ("gpt-4o", False),
    ]:
        backend.pre_tokenizer, normalizer = cut_as(pre)
        if normalizer is not None:
            backend.normalizer = normalizer
        elif backend.normalizer is not None:
            backend.normalizer = normalizers.Sequence([])
        bpe = backend.model
        bpe.ignore_merges = ignore_merges
        backend.model = bpe
        families.append({"pre": pre, "ids": [backend.encode(text, add_special_tokens=False).ids for text in TEXTS]})
    write("pre_tokenizers.json", {"texts": TEXTS, "families": families})


def templates() -> None:
    """Every template of templates/ over every chat, as transformers' own Jinja environment renders or refuses it."""
    import datetime

    from jinja2.exceptions import TemplateError
    from transformers.utils.chat_template_utils import _compile_jinja_template

    now = datetime.datetime.fromtimestamp(NOW_UNIX_S, datetime.UTC)
    out = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        template = _compile_jinja_template(path.read_text())
        template.globals["strftime_now"] = now.strftime
        for index, chat in enumerate(TEMPLATE_CHATS):
            entry: dict[str, object] = {"template": path.stem, "chat": index}
            try:
                entry["text"] = template.render(
                    messages=chat["messages"],
                    tools=chat["tools"] or None,
                    documents=None,
                    add_generation_prompt=chat["add_generation_prompt"],
                    bos_token="<s>",
                    eos_token="</s>",
                    **chat["kwargs"],  # type: ignore[arg-type]
                )
            except TemplateError as error:
                entry["refused"] = str(error)
            out.append(entry)
    write("templates.json", {"now_unix_s": NOW_UNIX_S, "chats": TEMPLATE_CHATS, "rendered": out})


def spm() -> None:
    """A SentencePiece-like vocabulary, trained here on the texts, as a GGUF and as transformers' kind of pipeline."""
    from tokenizers import trainers

    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    # no piece crosses a word, as in Llama's vocabulary
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("▁?[^▁]+|▁+"), behavior="isolated")
    corpus = [text for text in TEXTS if "<|" not in text][:24]
    trained.train_from_iterator(corpus * 3, trainers.BpeTrainer(vocab_size=700, show_progress=False))
    learned = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    # a character that is not in the vocabulary becomes bytes
    pieces = [piece for piece, _ in learned if len(piece) > 1 or piece in "▁ etaoinshrdluTHE.,'é漢"]
    special = ["<unk>", "<s>", "</s>"]
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = special + byte_pieces + [piece for piece in pieces if piece not in special] + ["<|user|>", "[TOOL]"]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 3 - 256 - 2) + [3, 4]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(tokens) - 259)]

    path = HERE / "spm.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ bos_token }}{% for m in messages %}[TOOL]{{ m.content | trim }}<|user|>{% endfor %}")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()

    vocab = {token: index for index, token in enumerate(tokens)}
    skip = {token for token, kind in zip(tokens, types, strict=True) if kind in (2, 3, 6)}
    from transformers.tokenization_utils_base import generate_merges

    merges = generate_merges(vocab, dict(zip(tokens, scores, strict=True)), skip)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    for token, kind in zip(tokens, types, strict=True):
        if kind in (2, 3):
            tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == 4:
            tokenizer.add_tokens([AddedToken(token, normalized=False)])
    texts = [*TEXTS, "<s>a</s> b<unk><|user|> hi[TOOL]x [TOOL] <0x41>", "<s>", "▁ already ▁"]
    encodings = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        encodings.append(
            {
                "text": text,
                "ids": ids,
                "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                "skipped": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    write("spm.json", {"encodings": encodings})
    # the same tokenizer as a file, for the other way to load it
    tokenizer.save(str(HERE / "spm_tokenizer.json"), pretty=False)


# The sentencepiece trainer's options of each model, in addition to those of `sentence_piece`.
SENTENCE_PIECE_MODELS: dict[str, dict[str, object]] = {
    # collapses spaces, replaces characters, and has no bytes for unknown ones
    "unigram": {
        "model_type": "unigram",
        "vocab_size": 400,
        "normalization_rule_tsv": "REPLACEMENTS",
        "user_defined_symbols": ["<|call|>", "ﬁx", "the the"],
    },
    "unigram_bytes": {
        "model_type": "unigram",
        "vocab_size": 700,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "user_defined_symbols": ["<|call|>", "▁▁", "\n"],
    },
    "bpe": {
        "model_type": "bpe",
        "vocab_size": 700,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "control_symbols": ["<|user|>"],
        "user_defined_symbols": ["<|call|>", "▁▁▁▁", "ab"],
    },
}
# Ligatures and accents, a pair of characters, and characters that vanish or become spaces.
REPLACEMENTS = {"ﬁ": "fi", "é": "e", "e\u0301": "é", "\t": " ", "\n": " ", "\u200b": "", "ß": "ss", "½": " 1/2 "}


def drawn_texts(count: int) -> list[str]:
    """Texts of a few characters and fragments that repeat often, with unknown and control ones among them."""
    rng = random.Random(7)
    parts = [
        *"abehlot  \n\té½ßﬁ🙂漢\u0301\u200b▁",
        "the ",
        "ab",
        "ing",
        "<|call|>",
        "<s>",
        "<0x41>",
        "  ",
        "<|user|>",
        "ﬁx",
    ]
    return ["".join(rng.choices(parts, k=rng.randint(1, 24))) for _ in range(count)]


def has_two_best(processor: sentencepiece.SentencePieceProcessor, text: str) -> bool:
    """Returns True if the same pieces in another order spell a text as well, so that rounding chooses the order."""
    best = processor.nbest_encode(text, nbest_size=2)
    return len(best) == 2 and sorted(best[0]) == sorted(best[1])


def sentence_piece(num_drawn: int = 150) -> None:
    corpus = [text for text in TEXTS if "<|" not in text and text.strip()] * 3
    tsv = HERE / "replacements.tsv"
    tsv.write_text(
        "".join(
            f"{' '.join(f'{ord(c):X}' for c in old)}\t{' '.join(f'{ord(c):X}' for c in new)}\n"
            for old, new in REPLACEMENTS.items()
        )
    )
    out = {}
    for name, options in SENTENCE_PIECE_MODELS.items():
        if "normalization_rule_tsv" in options:
            options = {**options, "normalization_rule_tsv": str(tsv)}
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus), model_writer=model, hard_vocab_limit=False, minloglevel=2, **options
        )
        (HERE / f"{name}.model").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        out[name] = [
            {"text": text, "ids": processor.encode(text)}
            for text in [*TEXTS, *drawn_texts(num_drawn)]
            if options["model_type"] == "bpe" or not has_two_best(processor, text)
        ]
    tsv.unlink()
    write("sentence_piece.json", out)


def tiktoken(num_drawn: int = 150) -> None:
    """Byte pairs trained here. The ids are those of the definition: the pair of the least rank is merged first."""
    pattern = regex.compile(SPLITS["llama-bpe"])
    corpus = Counter(word.encode() for text in TEXTS for word in pattern.findall(text) if len(word) < 40)
    ranks = {bytes([byte]): byte for byte in range(256)}

    def merged(word: bytes) -> list[bytes]:
        parts = [word[at : at + 1] for at in range(len(word))]
        while len(parts) > 1:
            pairs = [(ranks.get(parts[at] + parts[at + 1], len(ranks)), at) for at in range(len(parts) - 1)]
            rank, at = min(pairs)
            if rank == len(ranks):
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return parts

    while len(ranks) < 500:
        counts: dict[bytes, int] = {}
        for word, count in corpus.items():
            for left, right in pairwise(merged(word)):
                counts[left + right] = counts.get(left + right, 0) + count
        ranks[max(counts, key=lambda token: (counts[token], token))] = len(ranks)
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    (HERE / "small.tiktoken").write_text("".join(lines))
    encodings = []
    for text in [*TEXTS, *drawn_texts(num_drawn)]:
        words = [word.encode() for word in pattern.findall(text)]
        ids = [ranks[part] for word in words for part in ([word] if word in ranks else merged(word))]
        encodings.append({"text": text, "ids": ids})
    write("tiktoken.json", encodings)


if __name__ == "__main__":
    smollm2(Path(sys.argv[1]))
    spm()
    templates()
    sentence_piece()
    tiktoken()
