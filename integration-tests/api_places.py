"""The routes that take each table of fields in docs/api, with a body for each.

`test_api_table.py` checks that every route of `/openapi.json` with a body is here, or has only fields in words.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from api_samples import PROMPT, USER

CHAT = {"messages": USER, "max_tokens": 2, "temperature": 0}
COMPLETION = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0}
PAIRS = {"query": PROMPT, "documents": [PROMPT, "A rose is"]}
INFILL = {"input_prefix": PROMPT, "input_suffix": ".", "n_predict": 2, "temperature": 0}
OLLAMA_OPTIONS = {"num_predict": 2, "temperature": 0}
OLLAMA_CHAT = {"messages": USER, "stream": False, "options": OLLAMA_OPTIONS}
OLLAMA_GENERATE = {"prompt": PROMPT, "stream": False, "options": OLLAMA_OPTIONS}
GENERATE = {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}}


@dataclass(frozen=True)
class Place:
    """A route that accepts the fields of a table.

    `holder` is the path of the object in its body that has the fields, and `text` the path of the text in its answer.
    `classifies`: a server whose model classifies answers it, not the one that generates.
    """

    table: str
    route: str
    body: str
    holder: str = ""
    status: int = 400
    text: tuple[str | int, ...] = ()
    classifies: bool = False

    def __str__(self) -> str:
        return f"{self.table}-{self.route}"

    @property
    def is_first(self) -> bool:
        """Returns True if this is the first place of its table."""
        return next(place for place in PLACES if place.table == self.table) is self


def in_instance(body: dict[str, Any]) -> str:
    return json.dumps({"instances": [body]})


CHAT_TEXT = ("choices", 0, "message", "content")
PLACES = [
    Place("chat", "/v1/chat/completions", json.dumps(CHAT), text=CHAT_TEXT),
    Place("chat", "/invocations", json.dumps(CHAT), text=CHAT_TEXT),
    Place("chat", "/v1/chat/completions/render", json.dumps(CHAT), text=("token_ids",)),
    Place("chat", "/chat_tokenize", json.dumps(CHAT), status=422, text=("templated_text",)),
    Place("chat", "/vertex", in_instance(CHAT), "instances[]", 422, ("predictions", 0)),
    Place("message", "/v1/chat/completions", json.dumps(CHAT), "messages[]"),
    Place("completion", "/v1/completions", json.dumps(COMPLETION), text=("choices", 0, "text")),
    Place("completion", "/invocations", json.dumps(COMPLETION), text=("choices", 0, "text")),
    Place("completion", "/v1/completions/render", json.dumps(COMPLETION), text=(0, "token_ids")),
    Place("infill", "/infill", json.dumps(INFILL), text=("content",)),
    Place(
        "response",
        "/v1/responses",
        json.dumps({"input": PROMPT, "max_output_tokens": 2, "temperature": 0}),
        text=("output", 0, "content", 0, "text"),
    ),
    Place("input_tokens", "/v1/responses/input_tokens", json.dumps({"input": PROMPT}), text=("input_tokens",)),
    Place("messages", "/v1/messages", json.dumps(CHAT), text=("content", 0, "text")),
    Place("count_tokens", "/v1/messages/count_tokens", json.dumps({"messages": USER}), text=("input_tokens",)),
    *(Place("generate", route, json.dumps(GENERATE), status=422) for route in ("/generate", "/generate_stream", "/")),
    Place("generate", "/invocations", json.dumps(GENERATE), status=422),
    *(
        Place("parameters", route, json.dumps(GENERATE), "parameters", 422)
        for route in ("/generate", "/generate_stream", "/", "/invocations")
    ),
    Place("parameters", "/vertex", in_instance(GENERATE), "instances[].parameters", 422),
    Place("tokenize", "/tokenize", json.dumps({"inputs": PROMPT}), status=422),
    Place("detokenize", "/detokenize", json.dumps({"tokens": [5, 6]}), status=422),
    Place("embeddings", "/v1/embeddings", json.dumps({"input": PROMPT}), text=("data", 0, "embedding")),
    Place("embed", "/embed", json.dumps({"inputs": PROMPT}), status=422),
    Place("rerank", "/rerank", json.dumps(PAIRS), status=422, text=("results",)),
    Place("rerank", "/v1/rerank", json.dumps(PAIRS), text=("results",)),
    Place("score", "/v1/score", json.dumps({"text_1": PROMPT, "text_2": PROMPT}), text=("data", 0, "score")),
    Place("classify", "/v1/classify", json.dumps({"input": PROMPT}), text=("data", 0, "probs"), classifies=True),
    Place("predict", "/predict", json.dumps({"inputs": PROMPT}), status=422, classifies=True),
    Place("ollama_chat", "/api/chat", json.dumps(OLLAMA_CHAT), text=("message", "content")),
    Place("ollama_message", "/api/chat", json.dumps(OLLAMA_CHAT), "messages[]", text=("message", "content")),
    Place("ollama_generate", "/api/generate", json.dumps(OLLAMA_GENERATE), text=("response",)),
    Place("ollama_options", "/api/generate", json.dumps(OLLAMA_GENERATE), "options", text=("response",)),
    Place("ollama_options", "/api/chat", json.dumps(OLLAMA_CHAT), "options", text=("message", "content")),
    Place("ollama_embed", "/api/embed", json.dumps({"input": PROMPT}), text=("embeddings",)),
    Place("ollama_embeddings", "/api/embeddings", json.dumps({"prompt": PROMPT}), text=("embedding",)),
    Place("ollama_show", "/api/show", "{}", text=("template",)),
    Place("vertex", "/vertex", in_instance(GENERATE), status=422),
    Place("pin", "/v1/kv/tree/{id}/pin", "{}"),
]


def holder_of(body: Any, path: str) -> Any:
    """Returns the object at a path such as `instances[].parameters`, taking the first element of each list."""
    for name in filter(None, path.split(".")):
        body = body[name.removesuffix("[]")]
        body = body[0] if name.endswith("[]") else body
    return body
