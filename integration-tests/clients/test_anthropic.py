"""The unmodified `anthropic` package. Its version 2 has no sampling parameters, so they are sent as `extra_body`."""

from __future__ import annotations

from typing import Literal

import anthropic
import jsonschema
import pytest
from clients.given import KEY, LONG_PROMPT, POET, PROMPT, SYSTEM, USER, WEATHER_QUESTION, WEATHER_SCHEMA, WRONG_KEY
from clients.plain import Plain
from harness import Trunkline
from pydantic import BaseModel


class Place(BaseModel):
    """A structured answer without numeric bounds and lengths, which the package omits from the schema that it sends."""

    continent: Literal["Africa", "America", "Asia", "Europe", "Oceania"]
    is_capital: bool


GREEDY = {"temperature": 0}
TOOL = {"name": "get_weather", "description": "The weather in a city", "input_schema": WEATHER_SCHEMA}


@pytest.fixture
def client(server: Trunkline) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.base_url, api_key=KEY, max_retries=0)


def test_chats(client: anthropic.Anthropic, model: str, plain: Plain) -> None:
    answer = client.messages.create(model=model, system=SYSTEM, messages=USER, max_tokens=16, extra_body=GREEDY)
    assert answer.type == "message"
    assert answer.role == "assistant"
    assert answer.model == model
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].text == plain.chat(POET, 16)
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == 16


def test_stream_helper_assembles_the_whole_answer(client: anthropic.Anthropic, model: str) -> None:
    whole = client.messages.create(model=model, messages=USER, max_tokens=16, extra_body=GREEDY)
    with client.messages.stream(model=model, messages=USER, max_tokens=16, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == 16


def test_counted_tokens_equal_those_of_usage(client: anthropic.Anthropic, model: str) -> None:
    counted = client.messages.count_tokens(model=model, system=SYSTEM, messages=USER)
    answer = client.messages.create(model=model, system=SYSTEM, messages=USER, max_tokens=1, extra_body=GREEDY)
    cached = answer.usage.cache_read_input_tokens or 0
    assert counted.input_tokens == answer.usage.input_tokens + cached


def test_answer_names_the_stop_sequence(client: anthropic.Anthropic, model: str) -> None:
    answer = client.messages.create(
        model=model, messages=USER, max_tokens=64, stop_sequences=[" the", " of"], extra_body=GREEDY
    )
    assert answer.stop_reason == "stop_sequence"
    assert answer.stop_sequence in (" the", " of")
    assert answer.stop_sequence not in answer.content[0].text


def test_a_required_call_validates_whole_and_streamed(client: anthropic.Anthropic, model: str) -> None:
    fields = {
        "model": model,
        "messages": [{"role": "user", "content": WEATHER_QUESTION}],
        "tools": [TOOL],
        "tool_choice": {"type": "any"},
        "max_tokens": 256,
        "extra_body": GREEDY,
    }
    answer = client.messages.create(**fields)
    assert answer.stop_reason == "tool_use"
    assert [block.type for block in answer.content] == ["tool_use"] * len(answer.content)
    for block in answer.content:
        assert block.name == "get_weather"
        jsonschema.validate(block.input, WEATHER_SCHEMA)
    with client.messages.stream(**fields) as stream:
        streamed = stream.get_final_message()
    assert [block.input for block in streamed.content] == [block.input for block in answer.content]
    assert streamed.stop_reason == "tool_use"


def test_parses_a_structured_answer(client: anthropic.Anthropic, model: str) -> None:
    question = [{"role": "user", "content": "Tell of Paris."}]
    answer = client.messages.parse(model=model, messages=question, max_tokens=256, output_format=Place)
    assert isinstance(answer.parsed_output, Place)


def test_errors_have_the_classes_of_the_package(client: anthropic.Anthropic, model: str) -> None:
    fields = {"messages": USER, "max_tokens": 8}
    with pytest.raises(anthropic.AuthenticationError) as stranger:
        client.with_options(api_key=WRONG_KEY).messages.create(model=model, **fields)
    assert stranger.value.body["error"]["type"] == "authentication_error"
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(model="nobody/none", **fields)
    assert unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as absurd:
        client.messages.create(model=model, **fields, extra_body={"temperature": 1e9})
    assert absurd.value.body["error"]["type"] == "invalid_request_error"
    assert absurd.value.request_id
    with pytest.raises(anthropic.BadRequestError) as long:
        client.messages.create(
            model=model, messages=[{"role": "user", "content": LONG_PROMPT}], max_tokens=8, stream=True
        )
    assert long.value.body["error"]["code"] == "context_length_exceeded"


def test_second_turn_of_an_agent_hits_the_prefix_cache(client: anthropic.Anthropic, model: str) -> None:
    def turn(nonce: str, *more: dict[str, object]) -> anthropic.types.beta.BetaMessage:
        return client.beta.messages.create(
            model=model,
            betas=["context-management-2025-06-27"],
            system=[
                {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.154; cch={nonce};"},
                {"type": "text", "text": "You are an agent. " * 40, "cache_control": {"type": "ephemeral"}},
            ],
            messages=[{"role": "user", "content": PROMPT}, *more],
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            output_config={"effort": "low"},
            tools=[TOOL | {"name": "mcp__a_server_with_a_long_name__" + "get_weather_of_tomorrow_and_after" * 2}],
            max_tokens=8,
            extra_body=GREEDY,
        )

    first = turn("00000")
    total = first.usage.input_tokens + first.usage.cache_read_input_tokens
    note = {"role": "system", "content": []}
    second = turn("a1b2c", {"role": "assistant", "content": first.content}, {"role": "user", "content": "Go on."}, note)
    # The hit covers all but the last block of the first turn's prompt, although the header's nonce differs.
    assert second.usage.cache_read_input_tokens > total - 64
    assert second.content


def test_lists_models(client: anthropic.Anthropic, model: str) -> None:
    page = client.models.list()
    assert [(card.type, card.id, card.display_name) for card in page.data] == [("model", model, model)]
    assert page.has_more is False
    assert client.models.retrieve(model).created_at == page.data[0].created_at
    assert client.models.list(after_id=model).data == []
