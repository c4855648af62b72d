"""The unmodified `ollama` package."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import ollama
import pytest
from clients.given import KEY, LONG_PROMPT, POET, PROMPT, SYSTEM, USER, WEATHER_QUESTION, WEATHER_TOOL, WRONG_KEY, City
from clients.plain import Plain
from harness import Trunkline

GREEDY = {"temperature": 0, "num_predict": 16}


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def client(server: Trunkline) -> Iterator[ollama.Client]:
    opened = ollama.Client(host=server.base_url, headers=headers(KEY))
    yield opened
    opened.close()


def test_chats(client: ollama.Client, model: str, plain: Plain) -> None:
    answer = client.chat(model=model, messages=POET, options=GREEDY, keep_alive="5m")
    assert answer.message.role == "assistant"
    assert answer.message.content == plain.chat(POET, 16)
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "length", 16)
    assert answer.prompt_eval_count and answer.prompt_eval_count > 0
    times = (answer.load_duration, answer.prompt_eval_duration, answer.eval_duration)
    assert answer.total_duration and 0 < sum(time or 0 for time in times) <= answer.total_duration


def test_streams_the_text_of_the_whole_answer(client: ollama.Client, model: str, plain: Plain) -> None:
    parts = list(client.chat(model=f"{model}:latest", messages=USER, options=ollama.Options(**GREEDY), stream=True))
    assert "".join(part.message.content or "" for part in parts) == plain.chat(USER, 16)
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == 16


def test_async_client_streams(server: Trunkline, model: str, plain: Plain) -> None:
    async def stream() -> str:
        client = ollama.AsyncClient(host=server.base_url, headers=headers(KEY))
        parts = await client.chat(model=model, messages=USER, options=GREEDY, stream=True)
        return "".join([part.message.content or "" async for part in parts])

    assert asyncio.run(stream()) == plain.chat(USER, 16)


def test_generates_with_and_without_the_template(client: ollama.Client, model: str, plain: Plain) -> None:
    answer = client.generate(model=model, prompt=PROMPT, system=SYSTEM, options=GREEDY)
    assert answer.response == plain.chat(POET, 16)
    raw = client.generate(model=model, prompt="The sea is", raw=True, options=GREEDY)
    assert raw.response == plain.complete("The sea is", 16)
    parts = list(client.generate(model=model, prompt="The sea is", raw=True, options=GREEDY, stream=True))
    assert "".join(part.response or "" for part in parts) == raw.response


def test_seeds_and_stop_strings_have_their_effect(client: ollama.Client, model: str) -> None:
    def reply(**options: Any) -> str:
        given: dict[str, Any] = {"num_predict": 16, "temperature": 1.5} | options
        return str(client.chat(model=model, messages=USER, options=given).message.content)

    assert reply(seed=1) == reply(seed=1) != reply(seed=2)
    whole = reply(temperature=0)
    word = whole.split()[2]
    assert reply(temperature=0, stop=[word]) == whole[: whole.index(word)]


def test_formats_constrain_the_reply(client: ollama.Client, model: str) -> None:
    options = {"num_predict": 256, "seed": 3}
    question = [{"role": "user", "content": "Tell of Paris as JSON."}]
    answer = client.chat(model=model, messages=question, format=City.model_json_schema(), options=options)
    City.model_validate_json(answer.message.content or "")
    generated = client.generate(model=model, prompt="Tell of Paris.", format=City.model_json_schema(), options=options)
    City.model_validate_json(generated.response or "")
    # A small model may not end its object within the limit.
    anything = client.chat(model=model, messages=question, format="json", options=options)
    assert (anything.message.content or "").lstrip().startswith("{")
    if anything.done_reason == "stop":
        assert isinstance(json.loads(anything.message.content or ""), dict)


def test_calls_and_their_results_are_read(client: ollama.Client, model: str) -> None:
    messages: list[Any] = [{"role": "user", "content": WEATHER_QUESTION}]
    # The small model need not call anything.
    answer = client.chat(model=model, messages=messages, tools=[WEATHER_TOOL], options=GREEDY | {"num_predict": 64})
    for call in answer.message.tool_calls or []:
        jsonschema.validate(call.function.arguments, {"type": "object"})
    call = ollama.Message.ToolCall(
        function=ollama.Message.ToolCall.Function(name="get_weather", arguments={"city": "Paris"})
    )
    messages += [
        ollama.Message(role="assistant", tool_calls=[call]),
        ollama.Message(role="tool", tool_name="get_weather", content="It rains."),
    ]
    assert client.chat(model=model, messages=messages, tools=[WEATHER_TOOL], options=GREEDY).message.content


def test_logprobs_belong_to_the_text(client: ollama.Client, model: str) -> None:
    answer = client.chat(model=model, messages=USER, options=GREEDY, logprobs=True, top_logprobs=2)
    assert answer.logprobs and len(answer.logprobs) == 16
    assert "".join(token.token for token in answer.logprobs) == answer.message.content
    for token in answer.logprobs:
        assert token.top_logprobs and token.top_logprobs[0].logprob >= token.logprob - 1e-6


def test_loads_lists_and_shows_the_model(client: ollama.Client, model: str) -> None:
    assert client.generate(model=model, keep_alive=-1).done_reason == "load"
    assert client.chat(model=model).done_reason == "load"
    (listed,) = client.list().models
    (running,) = client.ps().models
    assert listed.model == running.model == f"{model}:latest"
    assert listed.size == running.size and listed.size and listed.size > 1e6
    assert listed.digest and len(listed.digest) >= 12
    assert running.context_length == 8192
    shown = client.show(listed.model or "")
    assert shown.capabilities and "completion" in shown.capabilities
    assert shown.template and "im_start" in shown.template
    assert shown.modelinfo and shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 8192


def test_embeds(client: ollama.Client, model: str) -> None:
    answer = client.embed(model=model, input=["The sea is", "A rose is"], dimensions=8)
    assert [len(vector) for vector in answer.embeddings] == [8, 8]
    assert sum(x * x for x in answer.embeddings[0]) == pytest.approx(1)
    assert client.embeddings(model=model, prompt="The sea is").embedding
    with pytest.raises(ollama.ResponseError, match="limit"):
        client.embed(model=model, input=LONG_PROMPT)


def test_errors_have_the_class_of_the_package(server: Trunkline, client: ollama.Client, model: str) -> None:
    with pytest.raises(ollama.ResponseError, match="key") as stranger:
        ollama.Client(host=server.base_url, headers=headers(WRONG_KEY)).list()
    assert stranger.value.status_code == 401
    with pytest.raises(ollama.ResponseError, match="not served") as unknown:
        client.chat(model="nobody", messages=USER)
    assert unknown.value.status_code == 404
    for stream in (False, True):
        with pytest.raises(ollama.ResponseError, match="the prompt has"):
            answer = client.generate(model=model, prompt=LONG_PROMPT, stream=stream)
            list(answer)
    with pytest.raises(ollama.ResponseError, match=r"raise `options\.num_ctx`"):
        client.chat(model=model, messages=USER, options={"num_ctx": 8})
    with pytest.raises(ollama.ResponseError, match=r"`options\.num_ctx` is 1000000"):
        client.chat(model=model, messages=USER, options={"num_ctx": 1_000_000})
    with pytest.raises(ollama.ResponseError, match="images"):
        client.chat(model=model, messages=[{"role": "user", "content": "x", "images": [b"hi"]}])
    with pytest.raises(ollama.ResponseError, match="no route"):
        client.copy(model, "other")
