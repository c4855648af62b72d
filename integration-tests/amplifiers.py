"""The largest bodies that each route accepts or refuses late, made to cost the server as much as they can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness import ALL_TIERS

# The value of `--max-body-bytes`; in the second tier it is the default.
MAX_BODY_BYTES = 8 << 20 if ALL_TIERS else 1 << 19
# The text that fills a body; it leaves room for the rest of it.
NUM_BYTES = MAX_BODY_BYTES - 4096
# Just below `MAX_JSON_VALUES` in router/base/src/limits.rs.
NUM_VALUES = 131_000
USER = [{"role": "user", "content": "x"}]
ONE = {"max_tokens": 1}
ONE_OUTPUT = {"max_output_tokens": 1}


@dataclass(frozen=True)
class Amplifier:
    """A request whose body is `body` with the text `filling` in place of the string `FILL`."""

    path: str
    name: str
    body: Any
    filling: str = ""

    def content(self) -> bytes:
        return json.dumps(self.body).replace('"FILL"', self.filling).encode()


def text(piece: str = "a b ") -> str:
    """Returns a JSON string that fills a body."""
    return '"' + piece * (NUM_BYTES // len(piece)) + '"'


def items(item: str, count: int = NUM_VALUES) -> str:
    """Returns a JSON list of as many items as a body may have."""
    return "[" + ",".join([item] * min(count, NUM_BYTES // (len(item) + 1))) + "]"


def members(value: str, count: int = NUM_VALUES) -> str:
    """Returns a JSON object of as many members as a body may have."""
    count = min(count, NUM_BYTES // (len(value) + 10))
    return "{" + ",".join(f'"k{index}":{value}' for index in range(count)) + "}"


TEXTS = {
    "text": text(),
    "escapes": text("\\u00e9"),
    "no spaces": text("x"),
    "rare characters": text("\\u0f40"),
}
NESTED = "[" * 100 + "]" * 100
# A JSON text inside a string, whose values count apart.
INNER = '"' + "[[]," * (NUM_BYTES // 150) + "[]" + "]" * (NUM_BYTES // 150) + '"'
FLAT_INNER = '"[' + "[]," * min(120_000, NUM_BYTES // 4) + '0]"'
IDS = items("7", NUM_BYTES)


def generating() -> Iterator[Amplifier]:
    """Yields amplifiers for the routes of a model that generates."""
    yield from long_texts()
    yield from many_values()
    yield from fields_of_chats()
    yield from other_fields()
    yield from large_answers()


def long_texts() -> Iterator[Amplifier]:
    """Yields a long text in each field that takes one."""
    for name, filling in TEXTS.items():
        yield Amplifier(
            "/v1/chat/completions", name, {"messages": [{"role": "user", "content": "FILL"}], **ONE}, filling
        )
        yield Amplifier("/v1/completions", name, {"prompt": "FILL", **ONE}, filling)
    for path, field in (
        ("/v1/responses", "input"),
        ("/v1/responses/input_tokens", "input"),
        ("/generate", "inputs"),
        ("/", "inputs"),
        ("/generate_stream", "inputs"),
        ("/tokenize", "inputs"),
        ("/tokenize", "prompt"),
        ("/invocations", "prompt"),
    ):
        yield Amplifier(path, f"long `{field}`", {field: "FILL", **ONE_OUTPUT}, text())
    chat = {"messages": [{"role": "user", "content": "FILL"}], **ONE}
    for path in (
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/chat_tokenize",
        "/tokenize",
        "/invocations",
        "/v1/chat/completions/render",
    ):
        yield Amplifier(path, "long message", chat, text())
    yield Amplifier("/v1/completions/render", "long prompt", {"prompt": "FILL"}, text())
    yield Amplifier("/vertex", "long instance", {"instances": [{"inputs": "FILL"}]}, text())
    yield Amplifier("/vertex", "long chat", {"instances": [chat]}, text())
    yield Amplifier(
        "/vertex",
        "many instances",
        {"instances": "FILL"},
        items('{"inputs":"x","parameters":{"max_new_tokens":1}}', 128),
    )
    yield Amplifier("/tokenize", "pieces", {"content": "FILL", "with_pieces": True}, text())
    yield Amplifier("/detokenize", "ids", {"tokens": "FILL"}, IDS)
    whole: dict[str, Any] = {"stream": False, "options": {"num_predict": 1}}
    yield Amplifier("/api/chat", "long message", {"messages": chat["messages"], **whole}, text())
    yield Amplifier("/api/generate", "long prompt", {"prompt": "FILL", **whole}, text())
    yield Amplifier("/api/show", "long name", {"model": "FILL"}, text())
    yield Amplifier("/infill", "long prefix", {"input_prefix": "FILL", "input_suffix": "x", "n_predict": 1}, text())


MESSAGE = '{"role":"user","content":"x"}'


def many_values() -> Iterator[Amplifier]:
    """Yields lists of messages, of parts and of values that nobody reads."""
    part = '{"type":"text","text":"x"}'
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/chat/completions/render", "/chat_tokenize"):
        yield Amplifier(path, "messages", {"messages": "FILL", **ONE}, items(MESSAGE, 16_384))
        parts = '{"role":"user","content":' + items(part, 1024) + "}"
        yield Amplifier(path, "parts", {"messages": "FILL", **ONE}, items(parts, 42))
        yield Amplifier(path, "unknown field", {"messages": USER, **ONE, "unknown": "FILL"}, text())
        yield Amplifier(
            path, "unknown values", {"messages": USER, **ONE, "unknown": "FILL"}, items("[]", NUM_VALUES // 2)
        )


def fields_of_chats() -> Iterator[Amplifier]:
    """Yields a large value for each field of a chat that can have one."""
    tool = {"type": "function", "function": {"name": "look", "description": "FILL"}}
    for name, body, filling in (
        ("template variables", {"chat_template_kwargs": "FILL"}, members("0")),
        ("nested template variables", {"chat_template_kwargs": {"x": "FILL"}}, items(NESTED, NUM_VALUES // 101)),
        ("long tool", {"tools": [tool]}, text()),
        ("many tools", {"tools": "FILL"}, items('{"type":"function","function":{"name":"a"}}', 40_000)),
        ("long schema", {"response_format": {"type": "json_schema", "json_schema": {"schema": "FILL"}}}, members("{}")),
        ("stop strings", {"stop": "FILL"}, items('"a"')),
        ("bad words", {"bad_words": "FILL"}, items('"a"')),
        ("bias", {"logit_bias": "FILL"}, members("0")),
        ("allowed tokens", {"allowed_token_ids": "FILL", "n": 64}, IDS),
        ("stop tokens", {"stop_token_ids": "FILL"}, items("7")),
        ("prediction", {"prediction": {"type": "content", "content": "FILL"}}, text()),
        ("outputs", {"n": 100, "logprobs": True, "top_logprobs": 20, "user": "FILL"}, text()),
        ("regular expression", {"guided_regex": "FILL"}, text("(a|b)")),
        ("choices", {"guided_choice": "FILL"}, items('"a"')),
    ):
        yield Amplifier("/v1/chat/completions", name, {"messages": USER, **ONE, **body}, filling)
    call = '{"id":"c","type":"function","function":{"name":"look","arguments":FILL}}'
    for name, filling in (("nested arguments", INNER), ("flat arguments", FLAT_INNER), ("long arguments", text())):
        calls = '[{"role":"assistant","tool_calls":[' + call.replace("FILL", filling) + "]}," + MESSAGE + "]"
        yield Amplifier("/v1/chat/completions", name, {"messages": "FILL", **ONE}, calls)
        item = '[{"type":"function_call","call_id":"c","name":"look","arguments":' + filling + "}]"
        yield Amplifier("/v1/responses", name, {"input": "FILL", **ONE_OUTPUT}, item)


def other_fields() -> Iterator[Amplifier]:
    """Yields large values for fields of other routes."""
    for name, filling in (
        ("token ids", IDS),
        ("prompts", items('"a"')),
        ("prompts of ids", items("[7]", NUM_VALUES // 2)),
    ):
        yield Amplifier("/v1/completions", name, {"prompt": "FILL", **ONE, "echo": True}, filling)
        yield Amplifier("/v1/completions/render", name, {"prompt": "FILL"}, filling)
    yield Amplifier("/v1/responses", "items", {"input": "FILL", **ONE_OUTPUT}, items(MESSAGE, 16_384))
    yield Amplifier(
        "/v1/responses",
        "references",
        {"input": "FILL", **ONE_OUTPUT},
        items('{"type":"item_reference","id":"x"}', 16_384),
    )
    yield Amplifier("/v1/responses", "instructions", {"input": "x", **ONE_OUTPUT, "instructions": "FILL"}, text())
    yield Amplifier("/v1/responses", "metadata", {"input": "x", **ONE_OUTPUT, "metadata": "FILL"}, members('"x"'))
    tool = {"type": "function", "name": "look", "parameters": "FILL"}
    yield Amplifier("/v1/responses", "tool", {"input": "x", **ONE_OUTPUT, "tools": [tool]}, members("{}"))
    block = '{"type":"text","text":"x"}'
    yield Amplifier("/v1/messages", "system", {"messages": USER, **ONE, "system": "FILL"}, text())
    yield Amplifier("/v1/messages", "system blocks", {"messages": USER, **ONE, "system": "FILL"}, items(block, 40_000))
    use = '[{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"look","input":' + members("0") + "}]}]"
    yield Amplifier("/v1/messages", "tool input", {"messages": "FILL", **ONE}, use)
    yield Amplifier("/generate", "stops", {"inputs": "x", "parameters": {"stop": "FILL"}}, items('"a"'))
    yield Amplifier("/v1/kv/tree/0-0/pin", "unknown field", {"unknown": "FILL"}, text())


def large_answers() -> Iterator[Amplifier]:
    """Yields small requests with large answers."""
    short = {"prompt": [5] * 2000, "max_tokens": 1, "logprobs": 20, "echo": True}
    yield Amplifier("/v1/completions", "echo with logprobs", short)
    yield Amplifier("/v1/completions", "echo of outputs", short | {"n": 64, "logprobs": None})
    details = {"best_of": 16, "do_sample": True, "decoder_input_details": True, "max_new_tokens": 1}
    yield Amplifier("/generate", "details", {"inputs": "a b " * 1000, "parameters": details})


def pooling() -> Iterator[Amplifier]:
    """Yields amplifiers for the routes of a model with classes."""
    for path in ("/v1/rerank", "/v2/rerank"):
        yield Amplifier(path, "long query", {"query": "FILL", "documents": ["a", "b"]}, text())
        half = '"' + "a " * (NUM_BYTES // 4) + '"'
        yield Amplifier(path, "many documents", {"query": "a", "documents": "FILL"}, items('"a"'))
        both = f'{{"query":{half},"documents":{items(chr(34) * 2, NUM_VALUES)}}}'
        yield Amplifier(path, "long query, many documents", "FILL", both)
        # A request may have so many documents.
        documents = {"query": "a " * 60_000, "documents": ["b"] * 2048}
        yield Amplifier(path, "long query, documents", documents)
    yield Amplifier("/rerank", "long query", {"query": "FILL", "texts": ["a", "b"]}, text())
    for path in ("/v1/score", "/score"):
        yield Amplifier(path, "long text", {"text_1": "FILL", "text_2": ["a", "b"]}, text())
        yield Amplifier(path, "many texts", {"text_1": "a", "text_2": "FILL"}, items('"a"'))
    for path, field in (("/v1/classify", "input"), ("/classify", "input"), ("/predict", "inputs")):
        yield Amplifier(path, "long text", {field: "FILL"}, text())
        yield Amplifier(path, "many texts", {field: "FILL"}, items('"a"'))
    yield Amplifier("/v1/embeddings", "long text", {"input": "FILL"}, text())
    yield Amplifier("/v1/embeddings", "token ids", {"input": "FILL"}, IDS)
    yield Amplifier("/embed", "many texts", {"inputs": "FILL"}, items('"a"'))
    yield Amplifier("/api/embed", "many texts", {"input": "FILL"}, items('"a"'))
    yield Amplifier("/api/embeddings", "long text", {"prompt": "FILL"}, text())
