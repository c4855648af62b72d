"""The unmodified `text-generation` package, TGI's own client."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import jsonschema
import pytest
from clients.given import KEY, LONG_PROMPT, PROMPT, WEATHER_QUESTION, WEATHER_SCHEMA, WRONG_KEY
from clients.plain import Plain
from harness import Trunkline
from text_generation import AsyncClient, Client
from text_generation.errors import UnknownError, ValidationError
from text_generation.types import Grammar, GrammarType, Message, Tool

TIMEOUT_S = 60


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def client(server: Trunkline) -> Client:
    return Client(server.base_url, headers=headers(KEY), timeout=TIMEOUT_S)


def test_generates(client: Client, plain: Plain) -> None:
    answer = client.generate("The sea is", max_new_tokens=8)
    assert answer.generated_text == plain.complete("The sea is", 8)
    assert answer.details.generated_tokens == 8
    assert answer.details.finish_reason == "length"
    assert "".join(token.text for token in answer.details.tokens) == answer.generated_text


def test_streams_the_text_of_the_whole_answer(client: Client) -> None:
    fields = {"max_new_tokens": 8, "do_sample": True, "temperature": 0.8, "seed": 11}
    whole = client.generate("The sea is", **fields)
    events = list(client.generate_stream("The sea is", **fields))
    assert "".join(event.token.text for event in events) == whole.generated_text
    assert events[-1].generated_text == whole.generated_text
    assert events[-1].details.finish_reason == "length"
    assert events[-1].details.seed == 11


def test_best_of_returns_the_other_sequences(client: Client) -> None:
    answer = client.generate("The sea is", max_new_tokens=4, do_sample=True, best_of=3)
    assert len(answer.details.best_of_sequences) == 2


def test_chats(client: Client, plain: Plain) -> None:
    answer = client.chat(messages=[Message(role="user", content=PROMPT)], max_tokens=8, temperature=0.0)
    assert answer.choices[0].message.content == plain.chat(PROMPT, 8)
    assert answer.usage["completion_tokens"] == 8


def test_streams_chats(client: Client) -> None:
    fields: Any = {"max_tokens": 8, "temperature": 0.5, "seed": 1}
    whole = client.chat(messages=[Message(role="user", content=PROMPT)], **fields)
    chunks = list(client.chat(messages=[Message(role="user", content=PROMPT)], stream=True, **fields))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"


def test_async_client_streams(server: Trunkline, plain: Plain) -> None:
    async def stream() -> str:
        client = AsyncClient(server.base_url, headers=headers(KEY), timeout=TIMEOUT_S)
        return "".join([event.token.text async for event in client.generate_stream("The sea is", max_new_tokens=8)])

    assert asyncio.run(stream()) == plain.complete("The sea is", 8)


def test_schemas_and_expressions_constrain_text(client: Client) -> None:
    fields = {"max_new_tokens": 256, "do_sample": True, "seed": 3}
    schema = Grammar(type=GrammarType.Json, value=WEATHER_SCHEMA)
    answer = client.generate("The weather as JSON:", grammar=schema, **fields)
    jsonschema.validate(json.loads(answer.generated_text), WEATHER_SCHEMA)
    date = Grammar(type=GrammarType.Regex, value="[0-9]{4}-[01][0-9]")
    events = list(client.generate_stream("Today is", grammar=date, **fields))
    assert re.fullmatch("[0-9]{4}-[01][0-9]", events[-1].generated_text)
    assert events[-1].details.finish_reason == "eos_token"


def test_a_named_call_validates(client: Client) -> None:
    function = {"name": "get_weather", "description": "The weather in a city", "parameters": WEATHER_SCHEMA}
    answer = client.chat(
        messages=[Message(role="user", content=WEATHER_QUESTION)],
        tools=[Tool(type="function", function=function)],
        tool_choice="get_weather",
        max_tokens=256,
        seed=1,
    )
    for call in answer.choices[0].message.tool_calls:
        assert call["function"]["name"] == "get_weather"


def test_errors_have_the_classes_of_the_package(server: Trunkline, client: Client) -> None:
    with pytest.raises(ValidationError, match="context"):
        client.generate(LONG_PROMPT, max_new_tokens=8)
    with pytest.raises(ValidationError, match="context"):
        list(client.generate_stream(LONG_PROMPT, max_new_tokens=8))
    # The package has no class for status 401.
    with pytest.raises(UnknownError, match="key"):
        Client(server.base_url, headers=headers(WRONG_KEY), timeout=TIMEOUT_S).generate("Hello")
