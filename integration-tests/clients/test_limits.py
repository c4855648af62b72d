"""A tenant's rate limits, seen through the packages of OpenAI and Anthropic."""

from __future__ import annotations

import anthropic
import openai
import pytest
from clients.given import KEY, LIMITED_KEY
from harness import Trunkline

PROMPT = [{"role": "user", "content": "Say something."}]


def test_packages_read_rate_limit_headers_raise_their_own_errors_and_honour_retry_after(server: Trunkline) -> None:
    own = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=LIMITED_KEY, max_retries=0)
    other = anthropic.Anthropic(base_url=server.base_url, api_key=LIMITED_KEY, max_retries=0)
    answers = [
        own.chat.completions.with_raw_response.create(model="tgi", messages=PROMPT, max_tokens=1) for _ in range(5)
    ]
    left = [int(answer.headers["x-ratelimit-remaining-requests"]) for answer in answers]
    assert left[0] == 29
    assert left == sorted(left, reverse=True)
    assert left[-1] < left[0]
    assert answers[0].headers["x-ratelimit-limit-tokens"] == "100000"
    message = other.messages.with_raw_response.create(model="tgi", messages=PROMPT, max_tokens=1)
    assert message.headers["anthropic-ratelimit-requests-limit"] == "30"
    while int(message.headers["anthropic-ratelimit-requests-remaining"]) > 0:
        message = other.messages.with_raw_response.create(model="tgi", messages=PROMPT, max_tokens=1)
    with pytest.raises(openai.RateLimitError) as refused:
        own.chat.completions.create(model="tgi", messages=PROMPT, max_tokens=1)
    assert refused.value.code == "rate_limit_exceeded"
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 2
    with pytest.raises(anthropic.RateLimitError) as refused_too:
        other.messages.create(model="tgi", messages=PROMPT, max_tokens=1)
    assert refused_too.value.response.json()["error"]["type"] == "rate_limit_error"
    # With one retry, the package waits as long as `Retry-After` says and succeeds.
    patient = own.with_options(max_retries=1)
    assert patient.chat.completions.create(model="tgi", messages=PROMPT, max_tokens=1).choices


def test_timeout_in_the_body_raises_the_error_of_the_package(server: Trunkline) -> None:
    own = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=KEY, max_retries=0)
    fields = {"timeout": 0.2, "ignore_eos": True}
    with pytest.raises(openai.APIStatusError) as over:
        own.chat.completions.create(model="tgi", messages=PROMPT, max_tokens=4000, extra_body=fields)
    assert over.value.status_code == 504
    assert over.value.code == "deadline_exceeded"
