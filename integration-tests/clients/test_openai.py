"""The unmodified `openai` package."""

from __future__ import annotations

import asyncio
import json
import math

import httpx
import jsonschema
import openai
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


@pytest.fixture
def client(server: Trunkline) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=KEY, max_retries=0)


def test_chats(client: openai.OpenAI, model: str, plain: Plain) -> None:
    answer = client.chat.completions.create(model=model, messages=USER, max_completion_tokens=16, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.model == model
    assert answer.system_fingerprint
    assert answer.choices[0].message.content == plain.chat(PROMPT, 16)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16


def test_streams_the_choices_of_the_whole_answer(client: openai.OpenAI, model: str) -> None:
    fields = {"model": model, "messages": USER, "max_tokens": 12, "n": 2, "seed": 3, "temperature": 1.0}
    whole = client.chat.completions.create(**fields)
    texts, finish, usage = {0: "", 1: ""}, {}, None
    for chunk in client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finish[choice.index] = choice.finish_reason or finish.get(choice.index)
        usage = chunk.usage or usage
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert texts[0] != texts[1]
    assert finish == {0: "length", 1: "length"}
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens == 24


def test_stream_helper_assembles_the_answer(client: openai.OpenAI, model: str) -> None:
    # The helper raises an error if the reply reaches the length limit.
    fields = {"model": model, "messages": USER, "max_tokens": 64, "temperature": 0, "stop": [",", "."]}
    whole = client.chat.completions.create(**fields)
    assert whole.choices[0].finish_reason == "stop"
    with client.chat.completions.stream(**fields) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == whole.choices[0].message.content


def test_returns_logprobs(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=USER, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 4
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    for token in tokens:
        assert token.logprob == token.top_logprobs[0].logprob
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1.0


def test_completes(client: openai.OpenAI, model: str, plain: Plain) -> None:
    fields = {"model": model, "prompt": ["The sea is", "The sky is"], "max_tokens": 6, "temperature": 0}
    whole = client.completions.create(**fields, logprobs=2, echo=False)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert [choice.text for choice in whole.choices] == [plain.complete(prompt, 6) for prompt in fields["prompt"]]
    for choice in whole.choices:
        assert "".join(choice.logprobs.tokens) == choice.text
        assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs) == 6
    texts = ["", ""]
    for chunk in client.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_accepts_token_ids(client: openai.OpenAI, model: str, plain: Plain) -> None:
    token_ids = [504, 4965, 314]
    answer = client.completions.create(model=model, prompt=token_ids, max_tokens=3, temperature=0)
    assert answer.usage.prompt_tokens == 3
    assert answer.choices[0].text == plain.complete(token_ids, 3)


def test_async_client_runs_many_requests_at_once(server: Trunkline, model: str, plain: Plain) -> None:
    async def many() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=KEY, max_retries=0) as client:
            answers = await asyncio.gather(
                *(
                    client.chat.completions.create(model=model, messages=USER, max_tokens=8, temperature=0)
                    for _ in range(8)
                )
            )
        return [answer.choices[0].message.content for answer in answers]

    assert asyncio.run(many()) == [plain.chat(PROMPT, 8)] * 8


def test_retrieves_models(client: openai.OpenAI, model: str) -> None:
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody/none")


def test_a_required_call_validates_whole_and_streamed(client: openai.OpenAI, model: str) -> None:
    fields = {
        "model": model,
        "messages": [{"role": "user", "content": WEATHER_QUESTION}],
        "tools": [WEATHER_TOOL],
        "tool_choice": "required",
        "max_tokens": 256,
        "temperature": 0,
    }
    answer = client.chat.completions.create(**fields)
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    for call in calls:
        assert call.function.name == "get_weather"
        jsonschema.validate(json.loads(call.function.arguments), WEATHER_SCHEMA)
    with client.chat.completions.stream(**fields) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert [call.function.arguments for call in streamed] == [call.function.arguments for call in calls]


def test_parses_a_structured_answer(client: openai.OpenAI, model: str) -> None:
    fields = {"messages": [{"role": "user", "content": "Tell of Paris."}], "max_tokens": 256, "seed": 5}
    answer = client.chat.completions.parse(model=model, response_format=City, **fields)
    assert isinstance(answer.choices[0].message.parsed, City)


def test_errors_have_the_classes_of_the_package(server: Trunkline, client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.AuthenticationError) as stranger:
        client.with_options(api_key=WRONG_KEY).models.list()
    assert stranger.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nobody/none", messages=USER)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as absurd:
        client.chat.completions.create(model=model, messages=USER, temperature=1e9)
    assert absurd.value.param == "temperature"
    assert absurd.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": LONG_PROMPT}], stream=True)
    assert long.value.code == "context_length_exceeded"
    assert long.value.request_id
    with pytest.raises(openai.BadRequestError) as many:
        client.completions.create(model=model, prompt=[5] * 9000)
    assert many.value.code == "context_length_exceeded"
    assert httpx.get(f"{server.base_url}/readyz").status_code == 200


def dot(x: list[float], y: list[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def test_embeds(client: openai.OpenAI, model: str) -> None:
    texts = ["The sea is wide.", "A ship sails on the ocean.", "Prime numbers have two divisors."]
    # The package asks for Base64 by default and decodes it.
    answer = client.embeddings.create(model=model, input=texts)
    first, *others = [entry.embedding for entry in answer.data]
    assert [dot(first, first), dot(others[0], others[0])] == pytest.approx([1, 1], abs=1e-5)
    assert dot(first, others[0]) > dot(first, others[1])
    plain = client.embeddings.create(model=model, input=texts[0], encoding_format="float", dimensions=8)
    assert len(plain.data[0].embedding) == 8
    with pytest.raises(openai.BadRequestError, match="`dimensions` is 9999"):
        client.embeddings.create(model=model, input=texts, dimensions=9999)
