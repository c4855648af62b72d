"""The unmodified packages `openai` and `ollama`, and a server of several models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import httpx
import ollama
import openai
import pytest
from clients.given import KEY, USER
from harness import Trunkline, serving, write_shallow
from tests.hub import fake_hub


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trunkline]:
    folder = tmp_path_factory.mktemp("several")
    for num_layers, name in ((2, "first"), (3, "second")):
        write_shallow(folder / f"{name}.gguf", num_layers)
    flags = ("--threads", "1", "--max-batch-total-tokens", "4096", "--weights-cache", str(folder / "packed"))
    repositories = {"org/third": fake_hub.Repository({"third.gguf": (folder / "second.gguf").read_bytes()})}
    with fake_hub.serve(fake_hub.Hub(repositories)) as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hf")}
        flags += ("--pull", "hub")
        with serving(str(folder / "second.gguf"), *flags, model=str(folder / "first.gguf"), env=env) as running:
            yield running


def test_streams_of_a_model_that_is_loaded_meanwhile(several: Trunkline) -> None:
    fields = {"model": "second", "messages": USER, "max_tokens": 8, "temperature": 0}
    body = fields | {"stream": True}
    with httpx.stream("POST", f"{several.base_url}/v1/chat/completions", json=body, timeout=60) as answer:
        lines = list(answer.iter_lines())
    assert lines[0].startswith(": model second is "), lines
    with openai.OpenAI(base_url=f"{several.base_url}/v1", api_key=KEY, max_retries=0) as client:
        whole = client.chat.completions.create(**fields)
        httpx.post(f"{several.base_url}/v1/models/second/unload").raise_for_status()
        chunks = list(client.chat.completions.create(**fields, stream=True))
        assert {chunk.model for chunk in chunks} == {"second"}
        texts = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
        assert "".join(texts) == whole.choices[0].message.content
        assert [model.id for model in client.models.list()] == ["first", "second"]


def test_ollamas_client_pulls_a_model_and_deletes_it(several: Trunkline) -> None:
    with contextlib.closing(ollama.Client(host=several.base_url)) as client:
        states = list(client.pull("hf.co/org/third", stream=True))
        assert (states[0].status, states[-1].status) == ("pulling manifest", "success")
        assert any(state.total == state.completed for state in states[1:-1])
        answer = client.chat("hf.co/org/third", messages=USER, options={"num_predict": 8, "temperature": 0})
        same = client.chat("second", messages=USER, options={"num_predict": 8, "temperature": 0})
        assert answer.message.content == same.message.content
        assert "org/third:latest" in [model.model for model in client.list().models]
        assert client.delete("org/third").status == "success"
        with pytest.raises(ollama.ResponseError, match="is not served") as gone:
            client.show("org/third")
        assert gone.value.status_code == 404
