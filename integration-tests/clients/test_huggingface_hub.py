"""`InferenceClient` of the unmodified `huggingface_hub`, with the server's address as the model."""

from __future__ import annotations

import json

import jsonschema
import pytest
from clients.given import KEY, LONG_PROMPT, PROMPT, USER, WEATHER_QUESTION, WEATHER_SCHEMA, WRONG_KEY, City
from clients.plain import Plain
from harness import Trunkline
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError, HfHubHTTPError, UnknownError, ValidationError


@pytest.fixture
def client(server: Trunkline) -> InferenceClient:
    return InferenceClient(model=server.base_url, token=KEY)


def test_generates_text(client: InferenceClient, plain: Plain) -> None:
    text = client.text_generation("The sea is", max_new_tokens=8)
    assert text == plain.complete("The sea is", 8)
    parts = list(client.text_generation("The sea is", max_new_tokens=8, stream=True))
    assert "".join(parts) == text


def test_returns_details(client: InferenceClient) -> None:
    answer = client.text_generation(
        "The sea is", max_new_tokens=6, do_sample=True, temperature=0.9, seed=7, details=True, top_n_tokens=2
    )
    assert answer.details.finish_reason == "length"
    assert answer.details.generated_tokens == 6
    assert answer.details.seed == 7
    assert "".join(token.text for token in answer.details.tokens) == answer.generated_text
    assert [len(tops) for tops in answer.details.top_tokens] == [2] * 6
    events = list(
        client.text_generation(
            "The sea is", max_new_tokens=6, do_sample=True, temperature=0.9, seed=7, details=True, stream=True
        )
    )
    assert [event.token.id for event in events] == [token.id for token in answer.details.tokens]
    assert events[-1].generated_text == answer.generated_text
    assert events[-1].details.finish_reason == "length"
    assert events[-1].details.generated_tokens == 6


def test_chats_without_naming_a_model(client: InferenceClient, plain: Plain) -> None:
    answer = client.chat_completion(USER, max_tokens=12, temperature=0)
    assert answer.choices[0].message.content == plain.chat(PROMPT, 12)
    assert answer.usage.completion_tokens == 12
    parts = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat_completion(USER, max_tokens=12, temperature=0, stream=True)
        if chunk.choices
    ]
    assert "".join(parts) == answer.choices[0].message.content


def test_openai_interface_chats(server: Trunkline, model: str, plain: Plain) -> None:
    client = InferenceClient(base_url=f"{server.base_url}/v1", api_key=KEY)
    answer = client.chat.completions.create(model=model, messages=USER, max_tokens=4, temperature=0)
    assert answer.model == model
    assert answer.choices[0].message.content == plain.chat(PROMPT, 4)


def test_a_required_call_validates(client: InferenceClient) -> None:
    function = {"name": "get_weather", "description": "The weather in a city", "parameters": WEATHER_SCHEMA}
    answer = client.chat_completion(
        [{"role": "user", "content": WEATHER_QUESTION}],
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
        max_tokens=256,
        temperature=0,
    )
    for call in answer.choices[0].message.tool_calls:
        assert call.function.name == "get_weather"
        jsonschema.validate(json.loads(call.function.arguments), WEATHER_SCHEMA)


def test_schemas_constrain_text_and_chats(client: InferenceClient) -> None:
    grammar = {"type": "json", "value": WEATHER_SCHEMA}
    text = client.text_generation("The weather as JSON:", grammar=grammar, max_new_tokens=256, seed=3, do_sample=True)
    jsonschema.validate(json.loads(text), WEATHER_SCHEMA)
    schema = {"name": "city", "strict": True, "schema": City.model_json_schema()}
    answer = client.chat_completion(
        [{"role": "user", "content": "Tell of Paris."}],
        response_format={"type": "json_schema", "json_schema": schema},
        max_tokens=256,
        seed=3,
    )
    City.model_validate_json(answer.choices[0].message.content)


def test_errors_have_the_classes_of_the_package(server: Trunkline, client: InferenceClient) -> None:
    stranger = InferenceClient(model=server.base_url, token=WRONG_KEY)
    # The package has classes only for TGI's own types of errors.
    with pytest.raises(UnknownError, match="API key"):
        stranger.text_generation("Hello")
    with pytest.raises(HfHubHTTPError, match="API key") as refused:
        stranger.chat_completion(USER)
    assert refused.value.response.status_code == 401
    with pytest.raises(ValidationError, match="top_p"):
        client.text_generation("Hello", top_p=7.0)
    with pytest.raises(ValidationError, match="context"):
        client.text_generation(LONG_PROMPT)
    with pytest.raises(BadRequestError, match="temperature"):
        client.chat_completion(USER, temperature=1e9)
    with pytest.raises(HfHubHTTPError) as unknown:
        InferenceClient(base_url=f"{server.base_url}/v1", api_key=KEY).chat_completion(USER, model="nobody/none")
    assert unknown.value.response.status_code == 404
