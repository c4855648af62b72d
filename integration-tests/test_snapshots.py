"""Exact comparison of whole answers of every route with recorded snapshots."""

from __future__ import annotations

from typing import Any

import pytest
import snapshots
from harness import Trunkline, http, wait_for

USER = [{"role": "user", "content": "Name three colours."}]
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

CASES: dict[str, tuple[str, str, Any]] = {
    "chat_greedy": ("POST", CHAT, {"messages": USER, "temperature": 0, "max_tokens": 24}),
    "chat_stream": (
        "POST",
        CHAT,
        {
            "messages": USER,
            "temperature": 0,
            "max_tokens": 12,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
    "chat_seeded_logprobs": (
        "POST",
        CHAT,
        {
            "messages": USER,
            "temperature": 0.9,
            "top_p": 0.95,
            "seed": 7,
            "max_tokens": 12,
            "logprobs": True,
            "top_logprobs": 3,
        },
    ),
    "chat_system_and_history": (
        "POST",
        CHAT,
        {
            "messages": [
                {"role": "system", "content": "You answer in one word."},
                {"role": "user", "content": "The capital of France?"},
                {"role": "assistant", "content": "Paris."},
                {"role": "user", "content": [{"type": "text", "text": "And of Italy?"}]},
            ],
            "temperature": 0,
            "max_completion_tokens": 8,
        },
    ),
    "chat_stop": (
        "POST",
        CHAT,
        {"messages": USER, "temperature": 0, "max_tokens": 40, "stop": ["versatile", "\n\n\n"]},
    ),
    "chat_penalties": (
        "POST",
        CHAT,
        {
            "messages": USER,
            "seed": 3,
            "max_tokens": 16,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.5,
            "repetition_penalty": 1.1,
            "top_k": 20,
            "min_p": 0.02,
        },
    ),
    "chat_min_tokens_ignore_eos": (
        "POST",
        CHAT,
        {"messages": USER, "temperature": 0, "min_tokens": 4, "ignore_eos": True, "max_tokens": 48},
    ),
    "completions_greedy": ("POST", COMPLETIONS, {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 16}),
    "completions_tokens_logprobs": (
        "POST",
        COMPLETIONS,
        {"prompt": [504, 2365, 282, 4649, 314], "temperature": 0, "max_tokens": 6, "logprobs": 2},
    ),
    "completions_stream": (
        "POST",
        COMPLETIONS,
        {"prompt": "The sea is", "temperature": 0, "max_tokens": 6, "stream": True},
    ),
    "models": ("GET", "/v1/models", None),
    "model_by_id": ("GET", "/v1/models/HuggingFaceTB/SmolLM2-135M-Instruct", None),
    "docs": ("GET", "/docs", None),
    "tgi_info": ("GET", "/info", None),
    "tgi_root": ("POST", "/", {"inputs": "The sea is", "parameters": {"max_new_tokens": 4}}),
    "tgi_generate": (
        "POST",
        "/generate",
        {"inputs": "The sea is", "parameters": {"max_new_tokens": 8, "details": True}},
    ),
    "tgi_generate_sampled": (
        "POST",
        "/generate",
        {
            "inputs": "The sea is",
            "parameters": {
                "max_new_tokens": 8,
                "do_sample": True,
                "seed": 11,
                "temperature": 0.8,
                "top_k": 40,
                "return_full_text": True,
            },
        },
    ),
    "tgi_generate_stream": (
        "POST",
        "/generate_stream",
        {"inputs": "The sea is", "parameters": {"max_new_tokens": 6, "details": True}},
    ),
    "tgi_stop": ("POST", "/generate", {"inputs": "1, 2, 3,", "parameters": {"max_new_tokens": 20, "stop": ["5"]}}),
    "tgi_tokenize": ("POST", "/tokenize", {"inputs": "Grüße, 世界! 🙂"}),
    "health": ("GET", "/health", None),
    "livez": ("GET", "/livez", None),
    "readyz": ("GET", "/readyz", None),
    "error_openai_unknown_model": ("POST", CHAT, {"model": "nobody/none", "messages": USER}),
    "error_openai_no_messages": ("POST", CHAT, {"messages": []}),
    "error_openai_too_long": ("POST", COMPLETIONS, {"prompt": [5] * 9000, "max_tokens": 1}),
    "error_openai_temperature": ("POST", CHAT, {"messages": USER, "temperature": -1}),
    "error_openai_refused_field": ("POST", CHAT, {"messages": USER, "logits_processors": ["x"]}),
    "error_openai_type": ("POST", CHAT, {"messages": USER, "max_tokens": "many"}),
    "error_tgi_validation": ("POST", "/generate", {"inputs": "", "parameters": {}}),
    "error_tgi_best_of": ("POST", "/generate", {"inputs": "x", "parameters": {"best_of": 3}}),
    "error_unknown_route": ("GET", "/v1/nothing", None),
    "error_method": ("GET", CHAT, None),
}


@pytest.mark.parametrize("name", CASES)
def test_snapshot(server: Trunkline, request: pytest.FixtureRequest, name: str) -> None:
    method, path, body = CASES[name]
    # Usage includes the prefix hit, which depends on earlier requests. The second time, the whole prompt is a hit.
    snapshots.exchange(server.base_url, method, path, body)
    # The last, partly filled block enters the cache shortly after the answer.
    wait_for(server.is_idle, "the end of the request")
    text = snapshots.exchange(server.base_url, method, path, body)
    snapshots.compare(name, text, record=request.config.getoption("--record"))


def test_snapshot_of_the_openapi_document(server: Trunkline, request: pytest.FixtureRequest) -> None:
    document = http.get(f"{server.base_url}/openapi.json").json()
    text = snapshots.openapi_summary(document)
    snapshots.compare("openapi", text, record=request.config.getoption("--record"))
