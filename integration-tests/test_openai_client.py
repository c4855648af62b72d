"""The real `openai` package, unchanged."""

from __future__ import annotations

import httpx
import openai
import pytest
from harness import Trunkline, wait_for

USER = [{"role": "user", "content": "Write a short poem about the sea."}]


@pytest.fixture
def client(server: Trunkline) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)


def test_chats(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    answer = client.chat.completions.create(model=model, messages=USER, max_tokens=24, temperature=0)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24


def test_streams_the_same_text_as_the_plain_answer(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    fields = {"model": model, "messages": USER, "max_tokens": 32, "seed": 5, "temperature": 0.7}
    plain = client.chat.completions.create(**fields)
    parts, usage = [], None
    for chunk in client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True}):
        if chunk.choices and chunk.choices[0].delta.content:
            parts.append(chunk.choices[0].delta.content)
        usage = chunk.usage or usage
    assert "".join(parts) == plain.choices[0].message.content
    assert usage is not None
    assert usage.completion_tokens == 32


def test_second_turn_hits_the_first(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    first = client.chat.completions.create(model=model, messages=USER, max_tokens=24, temperature=0)
    history = [
        *USER,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "Thank you. Another one?"},
    ]
    second = client.chat.completions.create(model=model, messages=history, max_tokens=4, temperature=0)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    # Prompt and output of the first turn are in the cache; what a template adds after a reply is not.
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens + 20


def test_cancelled_stream_frees_everything(server: Trunkline, client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model, messages=USER, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
    )
    for number, _ in enumerate(stream):
        if number == 5:
            break
    stream.close()
    wait_for(server.quiet, "the cancelled request to be gone")
    assert server.metrics()["trunkline_kv_blocks_held"] == 0


def test_errors_arrive_as_the_package_types(server: Trunkline, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nobody/none", messages=USER)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as absurd:
        client.chat.completions.create(model="tgi", messages=USER, temperature=1e9)
    assert absurd.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tgi", prompt=[5] * 9000)
    assert long.value.code == "context_length_exceeded"
    assert httpx.get(f"{server.base_url}/readyz").status_code == 200
