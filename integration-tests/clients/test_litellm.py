"""Unmodified LiteLLM as a library, with its OpenAI and Anthropic providers."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import litellm
import pytest
from clients.given import (
    KEY,
    LONG_PROMPT,
    PROMPT,
    USER,
    WEATHER_QUESTION,
    WEATHER_SCHEMA,
    WEATHER_TOOL,
    WRONG_KEY,
    City,
)
from clients.plain import Plain
from harness import Trunkline


def fields(server: Trunkline, model: str, key: str = KEY, provider: str = "openai") -> dict[str, Any]:
    base = f"{server.base_url}/v1" if provider == "openai" else server.base_url
    return {"model": f"{provider}/{model}", "api_base": base, "api_key": key, "max_tokens": 12, "num_retries": 0}


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_chats_and_streams(server: Trunkline, model: str, plain: Plain, provider: str) -> None:
    given = fields(server, model, provider=provider)
    answer = litellm.completion(messages=USER, temperature=0, **given)
    assert answer.choices[0].message.content == plain.chat(PROMPT, 12)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    parts = [
        chunk.choices[0].delta.content or ""
        for chunk in litellm.completion(messages=USER, temperature=0, stream=True, **given)
    ]
    assert "".join(parts) == answer.choices[0].message.content


def test_completes(server: Trunkline, model: str, plain: Plain) -> None:
    given = fields(server, model) | {"model": f"text-completion-openai/{model}"}
    answer = litellm.text_completion(prompt="The sea is", temperature=0, **given)
    assert answer.choices[0].text == plain.complete("The sea is", 12)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_required_call_validates(server: Trunkline, model: str, provider: str) -> None:
    answer = litellm.completion(
        messages=[{"role": "user", "content": WEATHER_QUESTION}],
        tools=[WEATHER_TOOL],
        tool_choice="required",
        **fields(server, model, provider=provider) | {"max_tokens": 256, "temperature": 0},
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    for call in answer.choices[0].message.tool_calls:
        jsonschema.validate(json.loads(call.function.arguments), WEATHER_SCHEMA)
    calls = answer.choices[0].message.tool_calls
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in calls]
    answer = litellm.completion(
        messages=[{"role": "user", "content": WEATHER_QUESTION}, answer.choices[0].message.model_dump(), *results],
        tools=[WEATHER_TOOL],
        **fields(server, model, provider=provider) | {"temperature": 0},
    )
    assert answer.choices[0].message.content


def test_structures_output(server: Trunkline, model: str) -> None:
    answer = litellm.completion(
        messages=[{"role": "user", "content": "Tell of Paris."}],
        response_format=City,
        **fields(server, model) | {"max_tokens": 256},
    )
    City.model_validate_json(answer.choices[0].message.content)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_errors_have_the_classes_of_the_package(server: Trunkline, model: str, provider: str) -> None:
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(messages=USER, **fields(server, model, key=WRONG_KEY, provider=provider))
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=USER, **fields(server, "nobody/none", provider=provider))
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=USER, top_p=7.0, **fields(server, model, provider=provider))
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(
            messages=[{"role": "user", "content": LONG_PROMPT}], **fields(server, model, provider=provider)
        )


def test_embeds_and_reranks(server: Trunkline, model: str) -> None:
    texts = ["Prime numbers have two divisors.", "A ship sails on the ocean."]
    answer = litellm.embedding(
        model=f"openai/{model}", input=texts, api_base=f"{server.base_url}/v1", api_key=KEY, encoding_format="float"
    )
    assert [entry["index"] for entry in answer.data] == [0, 1]
    ranked = litellm.rerank(
        model=f"hosted_vllm/{model}", query="The sea is wide.", documents=texts, api_base=server.base_url, api_key=KEY
    )
    assert [result["index"] for result in ranked.results] == [1, 0]
    assert ranked.results[0]["relevance_score"] > ranked.results[1]["relevance_score"]
