"""Unmodified LangChain chat models for OpenAI and Anthropic."""

from __future__ import annotations

import anthropic
import jsonschema
import openai
import pytest
from clients.given import KEY, LONG_PROMPT, POET, PROMPT, SYSTEM, WEATHER_QUESTION, WEATHER_SCHEMA, WRONG_KEY, City
from clients.plain import Plain
from harness import Trunkline
from langchain_anthropic import ChatAnthropic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

MESSAGES = [SystemMessage(SYSTEM), HumanMessage(PROMPT)]


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def through_openai(server: Trunkline, model: str, key: str = KEY, max_tokens: int = 12) -> ChatOpenAI:
    base_url = f"{server.base_url}/v1"
    return ChatOpenAI(base_url=base_url, api_key=key, model=model, temperature=0, max_tokens=max_tokens, max_retries=0)


def through_anthropic(server: Trunkline, model: str, key: str = KEY, max_tokens: int = 12) -> ChatAnthropic:
    # `temperature` is sent in the body, because the `anthropic` package no longer has this parameter.
    fields = {"extra_body": {"temperature": 0}}
    return ChatAnthropic(
        base_url=server.base_url, api_key=key, model=model, max_tokens=max_tokens, max_retries=0, model_kwargs=fields
    )


def test_chats_and_streams_through_openai(server: Trunkline, model: str, plain: Plain) -> None:
    chat = through_openai(server, model)
    answer = chat.invoke(MESSAGES)
    assert answer.content == plain.chat(POET, 12)
    assert answer.usage_metadata["output_tokens"] == 12
    assert answer.response_metadata["finish_reason"] == "length"
    chunks = list(chat.stream(MESSAGES, stream_usage=True))
    whole = sum(chunks[1:], chunks[0])
    assert whole.content == answer.content
    assert whole.usage_metadata["output_tokens"] == 12


def test_runs_a_chain_over_a_batch(server: Trunkline, model: str, plain: Plain) -> None:
    prompt = ChatPromptTemplate.from_messages([("user", "Say something about {topic}.")])
    chain = prompt | through_openai(server, model) | StrOutputParser()
    topics = ["the sea", "the sky", "the sea"]
    texts = chain.batch([{"topic": topic} for topic in topics])
    assert texts == [plain.chat(f"Say something about {topic}.", 12) for topic in topics]


@pytest.mark.parametrize("through", ["openai", "anthropic"])
def test_calls_a_tool_and_answers(server: Trunkline, model: str, through: str) -> None:
    chat = {"openai": through_openai, "anthropic": through_anthropic}[through](server, model, max_tokens=256)
    bound = chat.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False, strict=True)
    called = bound.invoke(WEATHER_QUESTION)
    [call] = called.tool_calls
    history = [HumanMessage(WEATHER_QUESTION), called, ToolMessage("rain", tool_call_id=call["id"])]
    answer = chat.invoke(history)
    assert call["name"] == "get_weather" and answer.text


def test_chats_and_streams_through_anthropic(server: Trunkline, model: str, plain: Plain) -> None:
    chat = through_anthropic(server, model)
    answer = chat.invoke(MESSAGES)
    assert answer.text == plain.chat(POET, 12)
    assert answer.usage_metadata["output_tokens"] == 12
    chunks = list(chat.stream(MESSAGES))
    whole = sum(chunks[1:], chunks[0])
    assert whole.text == answer.text
    assert whole.usage_metadata["input_tokens"] == answer.usage_metadata["input_tokens"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structures_output_through_openai(server: Trunkline, model: str, method: str) -> None:
    chat = through_openai(server, model, max_tokens=256).with_structured_output(City, method=method)
    assert isinstance(chat.invoke("Tell of Paris."), City)


def test_structures_output_and_calls_through_anthropic(server: Trunkline, model: str) -> None:
    chat = through_anthropic(server, model, max_tokens=256)
    assert isinstance(chat.with_structured_output(City).invoke("Tell of Paris."), City)
    # LangChain omits `additionalProperties` for Python functions. Without it the small model would add properties until
    # it reaches the token limit.
    schema = WEATHER_SCHEMA | {"additionalProperties": False}
    bounded = {"name": "get_weather", "description": "The weather in a city.", "input_schema": schema}
    answer = chat.bind_tools([bounded], tool_choice="any", parallel_tool_calls=False, strict=True).invoke(
        WEATHER_QUESTION
    )
    [call] = answer.tool_calls
    assert call["name"] == "get_weather"
    jsonschema.validate(call["args"], schema)


def test_errors_have_the_classes_of_the_underlying_packages(server: Trunkline, model: str) -> None:
    for through, package in ((through_openai, openai), (through_anthropic, anthropic)):
        with pytest.raises(package.AuthenticationError):
            through(server, model, key=WRONG_KEY).invoke(PROMPT)
        with pytest.raises(package.NotFoundError):
            through(server, "nobody/none").invoke(PROMPT)
        with pytest.raises(ContextOverflowError):
            through(server, model).invoke(LONG_PROMPT)
