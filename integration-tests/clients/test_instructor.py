"""Unmodified Instructor on top of the `openai` package."""

from __future__ import annotations

import instructor
import openai
import pytest
from clients.given import KEY, PROMPT, USER, City
from clients.plain import Plain
from harness import Trunkline


def patched(server: Trunkline, mode: instructor.Mode = instructor.Mode.MD_JSON) -> instructor.Instructor:
    client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=KEY, max_retries=0)
    return instructor.from_openai(client, mode=mode)


def test_chats_and_streams_without_a_response_model(server: Trunkline, model: str, plain: Plain) -> None:
    fields = {"model": model, "messages": USER, "max_tokens": 12, "temperature": 0, "response_model": None}
    answer = patched(server).chat.completions.create(**fields)
    assert answer.choices[0].message.content == plain.chat(PROMPT, 12)
    chunks = patched(server).chat.completions.create(**fields, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == answer.choices[0].message.content


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT])
def test_returns_a_structured_answer(server: Trunkline, model: str, mode: instructor.Mode) -> None:
    fields = {"model": model, "messages": [{"role": "user", "content": "Tell of Paris."}], "max_tokens": 256}
    city = patched(server, mode=mode).chat.completions.create(**fields, response_model=City, max_retries=0)
    assert isinstance(city, City)


def test_streams_a_structured_answer(server: Trunkline, model: str) -> None:
    parts = patched(server, mode=instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
        model=model, messages=[{"role": "user", "content": "Tell of Paris."}], max_tokens=256, response_model=City
    )
    assert City.model_validate(list(parts)[-1].model_dump())
