"""Inputs for all clients: keys, prompts, a tool, and a Pydantic model for structured answers."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

KEY = "a-key-of-the-clients"
WRONG_KEY = "a-key-of-nobody"
# The key of a tenant that may send 30 requests per minute; once used up, one is added every two seconds.
LIMITED_KEY = "a-key-with-few-requests"
PROMPT = "Write a short poem about the sea."
SYSTEM = "You are a poet."
# The same prompts as messages of OpenAI's API.
USER = [{"role": "user", "content": PROMPT}]
POET = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
# Longer than the model's context.
LONG_PROMPT = "sea and sand " * 4000
WEATHER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 40, "description": "name of the city"}},
    "required": ["city"],
}
WEATHER_QUESTION = "What is the weather in Paris?"
# The function as OpenAI's API describes it.
WEATHER_TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather in a city", "parameters": WEATHER_SCHEMA},
}


class City(BaseModel):
    """A structured answer about a city."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=40)
    continent: Literal["Africa", "America", "Asia", "Europe", "Oceania"]
    millions: int = Field(ge=0, le=40)
