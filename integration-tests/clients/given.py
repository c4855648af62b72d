"""What every client is given: keys, prompts, a tool."""

from __future__ import annotations

from typing import Any

KEY = "a-key-of-the-clients"
WRONG_KEY = "a-key-of-nobody"
PROMPT = "Write a short poem about the sea."
# A prompt that does not fit into the model's context.
LONG_PROMPT = "sea and sand " * 4000
WEATHER_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "name of the city"}},
    "required": ["city"],
}
