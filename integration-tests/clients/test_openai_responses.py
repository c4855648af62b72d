"""The Responses API through the unmodified `openai` package."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from clients.given import KEY, LONG_PROMPT, POET, PROMPT, SYSTEM, WEATHER_QUESTION, WEATHER_SCHEMA, City
from clients.plain import Plain
from harness import Trunkline

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": WEATHER_SCHEMA,
    "strict": True,
}


@pytest.fixture
def client(server: Trunkline) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=KEY, max_retries=0)


def test_answers(client: openai.OpenAI, model: str, plain: Plain) -> None:
    answer = client.responses.create(
        model=model, instructions=SYSTEM, input=PROMPT, max_output_tokens=16, temperature=0
    )
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text == plain.chat(POET, 16)
    assert answer.usage.output_tokens == 16
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_events_come_in_order_and_make_up_the_answer(client: openai.OpenAI, model: str, plain: Plain) -> None:
    fields: dict[str, Any] = {"model": model, "input": PROMPT, "max_output_tokens": 12, "temperature": 0}
    events = list(client.responses.create(**fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    deltas = kinds.count("output_text.delta")
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    with client.responses.stream(**fields) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == client.responses.create(**fields).output_text == plain.chat(PROMPT, 12)


def test_continues_from_a_stored_answer(client: openai.OpenAI, model: str) -> None:
    first = client.responses.create(model=model, input="I am called Ada.", max_output_tokens=16, temperature=0)
    more: dict[str, Any] = {"model": model, "max_output_tokens": 16, "temperature": 0}
    question = "What am I called?"
    second = client.responses.create(previous_response_id=first.id, input=question, **more)
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    # The same conversation, sent whole.
    history = [
        {"role": "user", "content": "I am called Ada."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": question},
    ]
    assert client.responses.create(input=history, **more).output_text == second.output_text


def test_counts_tokens_and_lists_input(client: openai.OpenAI, model: str) -> None:
    counted = client.responses.input_tokens.count(model=model, input=PROMPT, instructions=SYSTEM)
    answer = client.responses.create(model=model, input=PROMPT, instructions=SYSTEM, max_output_tokens=1)
    assert counted.input_tokens == answer.usage.input_tokens
    assert answer.usage.input_tokens_details.cache_write_tokens == 0
    page = client.responses.input_items.list(answer.id, order="asc", limit=5)
    assert [item.content[0].text for item in page.data] == [PROMPT]
    assert page.has_more is False
    with pytest.raises(openai.BadRequestError, match="was not created with `background`"):
        client.responses.cancel(answer.id)


def test_a_required_call_validates_and_its_result_is_taken(client: openai.OpenAI, model: str, plain: Plain) -> None:
    fields: dict[str, Any] = {"model": model, "tools": [TOOL], "max_output_tokens": 256, "temperature": 0}
    answer = client.responses.create(input=WEATHER_QUESTION, tool_choice="required", **fields)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls
    for call in calls:
        assert call.name == "get_weather"
        jsonschema.validate(json.loads(call.arguments), WEATHER_SCHEMA)
    with client.responses.stream(input=WEATHER_QUESTION, tool_choice="required", **fields) as stream:
        streamed = [item for item in stream.get_final_response().output if item.type == "function_call"]
    assert [call.arguments for call in streamed] == [call.arguments for call in calls]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"} for call in calls]
    final = client.responses.create(
        previous_response_id=answer.id, input=results, tool_choice="none", **fields | {"max_output_tokens": 8}
    )
    function = {key: value for key, value in TOOL.items() if key != "type"}
    sent_calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]
    messages = [
        {"role": "user", "content": WEATHER_QUESTION},
        {"role": "assistant", "content": None, "tool_calls": sent_calls},
        *({"role": "tool", "tool_call_id": call.call_id, "content": "rain"} for call in calls),
    ]
    tools = [{"type": "function", "function": function}]
    assert final.output_text == plain.chat(messages, 8, tools=tools, tool_choice="none")


def test_parses_a_structured_answer(client: openai.OpenAI, model: str) -> None:
    answer = client.responses.parse(model=model, input="Tell of Paris.", text_format=City, max_output_tokens=256)
    assert isinstance(answer.output_parsed, City)


def test_errors_have_the_classes_of_the_package(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=model, input=PROMPT, previous_response_id="resp_of_nobody")
    with pytest.raises(openai.BadRequestError, match="input"):
        client.responses.create(model=model, input=7)  # type: ignore[call-overload]
    with pytest.raises(openai.BadRequestError) as long:
        client.responses.create(model=model, input=LONG_PROMPT)
    assert long.value.code == "context_length_exceeded"
