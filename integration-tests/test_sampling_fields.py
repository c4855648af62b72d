"""Each field that affects which tokens are sampled has its effect on an answer.

The fields are those of `/v1/completions`, which has all of them. In every dialect they reach the shard
(`router/tests/router/token_fields.rs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from api_table import api_pages, read_rows
from harness import ROOT, Trunkline

NUM_TOKENS = 12
NUM_SENDERS = 16
PROMPT = "The sea is"
# The model answers this with a few words and an end token.
SHORT = "<|im_start|>user\nWhat is the capital of France? One word.<|im_end|>\n<|im_start|>assistant\n"
GREEDY = {"temperature": 0}
# With this seed, the first output is not the best of three.
SAMPLED = {"temperature": 1.5, "seed": 5}
IM_START = 1


@dataclass(frozen=True)
class Reply:
    """The parts of an answer that the checks look at."""

    texts: list[str]
    reason: str
    num_output: int
    num_prompt: int
    choices: list[dict[str, Any]]

    @property
    def text(self) -> str:
        return self.texts[0]


def ask(server: Trunkline, prompt: str, fields: dict[str, Any]) -> Reply:
    answer = server.complete(prompt, **{"max_tokens": NUM_TOKENS} | fields)
    choices, usage = answer["choices"], answer["usage"]
    texts = [choice["text"] for choice in choices]
    return Reply(texts, choices[0]["finish_reason"], usage["completion_tokens"], usage["prompt_tokens"], choices)


@dataclass(frozen=True)
class Known:
    """The answers without the field under test, and facts about their tokens."""

    greedy: Reply
    sampled: Reply
    several: Reply
    # Ends before the limit, with an end token.
    short: Reply
    # A word that occurs once in the greedy text, and the id of its first token.
    word: str
    word_id: int
    yes: int
    no: int

    @property
    def before_word(self) -> str:
        return self.greedy.text[: self.greedy.text.index(self.word)]


@dataclass(frozen=True)
class Effect:
    """A value of a field, the other fields to send with it, and a check of the answer."""

    value: Callable[[Known], Any]
    check: Callable[[Reply, Known], bool]
    beside: Callable[[Known], dict[str, Any]] = lambda _: {}
    is_sampled: bool = False
    is_short: bool = False


def becomes_greedy(value: float) -> Effect:
    return Effect(lambda _: value, lambda reply, known: reply.texts == known.greedy.texts, is_sampled=True)


def repeats_less(value: float, **more: Any) -> Effect:
    def check(reply: Reply, known: Known) -> bool:
        num_repeats = [len(words) - len(set(words)) for words in (reply.text.split(), known.greedy.text.split())]
        return reply.text != known.greedy.text and num_repeats[0] <= num_repeats[1]

    return Effect(lambda _: value, check, lambda _: more)


def goes_on_to(num_tokens: int, value: Any) -> Effect:
    return Effect(
        lambda _: value,
        lambda reply, known: known.short.num_output < num_tokens <= reply.num_output,
        is_short=True,
    )


def ends_at_word(value: Callable[[Known], Any]) -> Effect:
    return Effect(value, lambda reply, known: reply.text == known.before_word and reply.reason == "stop")


def ends_after(num_tokens: int) -> Effect:
    return Effect(lambda _: num_tokens, lambda reply, _: (reply.num_output, reply.reason) == (num_tokens, "length"))


def is_best(reply: Reply, known: Known) -> bool:
    """Checks that the reply is the one of three with the highest mean logprob."""
    means: dict[str, float] = {}
    for choice in known.several.choices:
        logprobs = choice["logprobs"]["token_logprobs"]
        means[choice["text"]] = sum(logprobs) / len(logprobs)
    return len(means) == 3 and reply.text == max(means, key=lambda text: means[text])


def keeps_the_beginning(reply: Reply, _: Known) -> bool:
    """Checks that the second token of the truncated prompt is also the second one of the whole prompt."""
    kept = reply.choices[0].get("prompt_logprobs") or []
    texts = [token["decoded_token"] for place in kept if place for token in place.values()]
    return texts == [" sea"]


EFFECTS: dict[str, Effect] = {
    "temperature": becomes_greedy(0.01),
    "top_p": becomes_greedy(0.01),
    "top_k": becomes_greedy(1),
    "min_p": becomes_greedy(1),
    "typical_p": Effect(
        lambda _: 0.01, lambda reply, known: reply.text not in (known.greedy.text, known.sampled.text), is_sampled=True
    ),
    "top_n_sigma": becomes_greedy(0.001),
    "xtc_probability": Effect(
        lambda _: 1, lambda reply, known: reply.text not in (known.greedy.text, known.sampled.text), is_sampled=True
    ),
    "xtc_threshold": Effect(
        lambda _: 0.001,
        lambda reply, known: reply.text not in (known.greedy.text, known.sampled.text),
        lambda _: {"xtc_probability": 1},
        is_sampled=True,
    ),
    "seed": Effect(lambda _: 8, lambda reply, known: reply.text != known.sampled.text, is_sampled=True),
    "n": Effect(
        lambda _: 2,
        lambda reply, known: len(set(reply.texts)) == 2 and known.sampled.text in reply.texts,
        is_sampled=True,
    ),
    "best_of": Effect(lambda _: 3, is_best, is_sampled=True),
    "dry_multiplier": repeats_less(10, dry_allowed_length=1),
    "bad_words": Effect(lambda known: [known.word], lambda reply, known: known.word not in reply.text != ""),
    "presence_penalty": repeats_less(2),
    "frequency_penalty": repeats_less(2),
    "repetition_penalty": repeats_less(2),
    "repeat_penalty": repeats_less(2),
    "stop": ends_at_word(lambda known: [known.word]),
    "stop_token_ids": ends_at_word(lambda known: [known.word_id]),
    "include_stop_str_in_output": Effect(
        lambda _: True,
        lambda reply, known: reply.text == known.before_word + known.word,
        lambda known: {"stop": [known.word]},
    ),
    "max_tokens": ends_after(3),
    "n_predict": ends_after(3),
    "min_tokens": goes_on_to(11, 11),
    "ignore_eos": goes_on_to(NUM_TOKENS, True),
    "logit_bias": Effect(
        lambda known: {str(known.yes): 100}, lambda reply, _: reply.text.strip() == " ".join(["yes"] * NUM_TOKENS)
    ),
    "allowed_token_ids": Effect(
        lambda known: [known.yes, known.no], lambda reply, _: set(reply.text.split()) <= {"yes", "no"} != set()
    ),
    "skip_special_tokens": Effect(
        lambda _: False,
        lambda reply, _: reply.text == "<|im_start|>" * NUM_TOKENS,
        lambda _: {"logit_bias": {str(IM_START): 100}},
    ),
    "truncate_prompt_tokens": Effect(lambda _: 2, lambda reply, _: reply.num_prompt == 2),
    "truncation_side": Effect(
        lambda _: "right", keeps_the_beginning, lambda _: {"truncate_prompt_tokens": 2, "prompt_logprobs": 0}
    ),
}
# Fields that do not affect sampling. They change the model, the prompt or the form of the answer, or constrain it by a
# grammar.
OTHERS = {
    *(
        "prompt",
        "suffix",
        "model",
        "adapter_id",
        "lora",
        "stream",
        "stream_options",
        "timeout",
        "echo",
        "logprobs",
        "prompt_logprobs",
    ),
    *("response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "grammar", "ebnf"),
    *("structured_outputs", "return_token_ids", "timings_per_token", "speculation", "service_tier", "priority"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("cache_salt", "prompt_cache_key", "prompt_cache_retention", "cache_retention"),
}
SUPPORTED = {row.field for row in read_rows(api_pages(ROOT)) if row.table == "completion" and row.status == "supported"}


def test_every_supported_field_has_an_effect_or_does_not_affect_sampling() -> None:
    assert EFFECTS.keys() | OTHERS == SUPPORTED
    assert not EFFECTS.keys() & OTHERS


@pytest.fixture(scope="module")
def known(server: Trunkline) -> Known:
    greedy = ask(server, PROMPT, GREEDY)
    words = greedy.text.split()
    word = next(" " + word for word in words[3:] if greedy.text.count(" " + word) == 1)
    (yes,), (no,) = server.tokenize(" yes"), server.tokenize(" no")
    return Known(
        greedy=greedy,
        sampled=ask(server, PROMPT, SAMPLED),
        several=ask(server, PROMPT, SAMPLED | {"n": 3, "logprobs": 0}),
        short=ask(server, SHORT, GREEDY),
        word=word,
        word_id=server.tokenize(word)[0],
        yes=yes,
        no=no,
    )


@pytest.fixture(scope="module")
def replies(server: Trunkline, known: Known) -> Iterator[dict[str, Reply]]:
    """The replies to each field, requested concurrently."""

    def reply(name: str) -> Reply:
        effect = EFFECTS[name]
        # `max_tokens` counts if it is sent with another name of it.
        other_name: dict[str, Any] = {"max_tokens": None} if name == "n_predict" else {}
        base = SAMPLED if effect.is_sampled else GREEDY
        fields = base | effect.beside(known) | other_name | {name: effect.value(known)}
        return ask(server, SHORT if effect.is_short else PROMPT, fields)

    with ThreadPoolExecutor(NUM_SENDERS) as pool:
        yield dict(zip(EFFECTS, pool.map(reply, EFFECTS), strict=True))


def test_each_sampling_field_has_its_effect(replies: dict[str, Reply], known: Known) -> None:
    assert known.greedy.text != known.sampled.text and known.short.reason == "stop", known
    wrong = {name: reply for name, reply in replies.items() if not EFFECTS[name].check(reply, known)}
    assert not wrong, f"greedy: {known.greedy.text!r}, sampled: {known.sampled.text!r}, word: {known.word!r}"
    # Each check must fail without the field. Otherwise it would not notice that the field is accepted and ignored.
    vacuous = {name for name, effect in EFFECTS.items() if effect.check(plain(name, known), known)}
    assert not vacuous, "these checks also hold without the field"


def plain(name: str, known: Known) -> Reply:
    """Returns the reply to the same request without the field."""
    effect = EFFECTS[name]
    return known.short if effect.is_short else known.sampled if effect.is_sampled else known.greedy
