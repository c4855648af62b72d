"""Agents of other packages on a real server: one turn that calls a tool, and one that uses its result."""

from __future__ import annotations

import json
from typing import Any

import agents
import httpx
import openai
import pytest
import smolagents
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesModel
from clients.given import KEY, WEATHER_QUESTION, City
from harness import Trunkline
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.messages import ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

SETTINGS = {"temperature": 0, "max_tokens": 64}


def get_weather(city: str) -> str:
    """Get the weather in a city.

    Args:
        city: name of the city
    """
    return f"rain in {city}"


async def require_first_call(request: httpx.Request) -> None:
    """Requires a call until the conversation has a result. The embedded model rarely calls a tool on its own."""
    body = json.loads(request.content)
    has_result = any(message["role"] == "tool" for message in body["messages"])
    body["tool_choice"] = "none" if has_result else "required"
    content = json.dumps(body).encode()
    request.stream = httpx.ByteStream(content)
    request.headers["content-length"] = str(len(content))


def test_pydantic_ai_calls_a_tool_and_answers(server: Trunkline, model: str) -> None:
    http_client = httpx.AsyncClient(event_hooks={"request": [require_first_call]})
    provider = OpenAIProvider(base_url=f"{server.base_url}/v1", api_key=KEY, http_client=http_client)
    settings = ModelSettings(**SETTINGS)
    agent = Agent(OpenAIChatModel(model, provider=provider), tools=[get_weather], model_settings=settings)
    result = agent.run_sync(WEATHER_QUESTION, usage_limits=UsageLimits(request_limit=2))
    parts = [part for message in result.all_messages() for part in message.parts]
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    returns = [part for part in parts if isinstance(part, ToolReturnPart)]
    assert calls and [call.tool_call_id for call in calls] == [each.tool_call_id for each in returns]
    assert returns[0].content == f"rain in {calls[0].args_as_dict()['city']}"
    assert result.output
    assert result.usage.requests == 2


def test_pydantic_ai_structures_output(server: Trunkline, model: str) -> None:
    provider = OpenAIProvider(base_url=f"{server.base_url}/v1", api_key=KEY)
    settings = ModelSettings(temperature=0, max_tokens=256)
    agent = Agent(OpenAIChatModel(model, provider=provider), output_type=City, model_settings=settings)
    assert isinstance(agent.run_sync("Tell of Paris.").output, City)


def test_smolagents_calls_tools_until_the_answer(server: Trunkline, model: str) -> None:
    language_model = smolagents.OpenAIModel(model, api_base=f"{server.base_url}/v1", api_key=KEY, **SETTINGS)
    agent = smolagents.ToolCallingAgent([smolagents.tool(get_weather)], language_model, max_steps=2, verbosity_level=0)
    answer = agent.run(WEATHER_QUESTION)
    steps = [step for step in agent.memory.steps if isinstance(step, smolagents.ActionStep)]
    # It requires a call in each step.
    assert steps and all(step.tool_calls for step in steps[:2]), steps
    assert steps[0].token_usage.input_tokens > 0
    assert answer is not None


@pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])
def test_openai_agents_call_a_tool_and_answer(server: Trunkline, model: str, kind: Any) -> None:
    client = openai.AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key=KEY, max_retries=0)
    # After the first call, the package no longer requires one.
    settings = agents.ModelSettings(temperature=0, max_tokens=64, tool_choice="required")
    agent = agents.Agent(
        "meteorologist", model=kind(model, client), tools=[agents.function_tool(get_weather)], model_settings=settings
    )
    config = agents.RunConfig(tracing_disabled=True)
    result = agents.Runner.run_sync(agent, WEATHER_QUESTION, max_turns=2, run_config=config)
    kinds = [item.type for item in result.new_items]
    assert kinds[:2] == ["tool_call_item", "tool_call_output_item"] and kinds[-1] == "message_output_item", kinds
    [output] = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert output.startswith("rain in ")
    assert isinstance(result.final_output, str)
