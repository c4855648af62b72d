"""Each field that affects which tokens are sampled has its effect on every route that accepts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from api_table import api_pages, read_rows
from harness import ROOT, Trunkline, http

NUM_TOKENS = 12
NUM_SENDERS = 16
PROMPT = "The sea is"
# The model answers this with a few words and an end token.
SHORT = "What is the capital of France? One word."
# With this seed, the first output is not the best of three.
SAMPLED = {"temperature": 1.5, "seed": 5}
END_REASONS = {"stop", "stop_sequence", "end_turn", "completed", "eos_token"}
LENGTH_REASONS = {"length", "max_tokens", "incomplete"}
IM_START = 1


@dataclass(frozen=True)
class Reply:
    """The parts of an answer that all routes have."""

    texts: list[str]
    reason: str
    num_output: int
    num_prompt: int
    raw: Any

    @property
    def text(self) -> str:
        return self.texts[0]


@dataclass(frozen=True)
class Route:
    """A route, with functions that build its body and read its answer.

    `holder` names the object in the body that has the sampling fields, or is None for the body itself. `limit` is the
    field that limits the output.
    """

    table: str
    path: str
    limit: str
    body: Callable[[str], dict[str, Any]]
    read: Callable[[dict[str, Any]], Reply]
    holder: str | None = None
    greedy: dict[str, Any] = field(default_factory=lambda: {"temperature": 0})
    sampled: dict[str, Any] = field(default_factory=lambda: SAMPLED)

    def __str__(self) -> str:
        return self.table

    def ask(self, server: Trunkline, prompt: str, fields: dict[str, Any]) -> Reply:
        body = self.body(prompt)
        holder = body.setdefault(self.holder, {}) if self.holder else body
        holder |= {self.limit: NUM_TOKENS} | fields
        answer = http.post(server.base_url + self.path, json=body, timeout=300)
        assert answer.status_code == 200, (body, answer.text)
        return self.read(answer.json())


def user(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def read_openai(answer: dict[str, Any]) -> Reply:
    choices, usage = answer["choices"], answer["usage"]
    texts = [choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices]
    return Reply(texts, choices[0]["finish_reason"], usage["completion_tokens"], usage["prompt_tokens"], answer)


def read_response(answer: dict[str, Any]) -> Reply:
    usage = answer["usage"]
    text = answer["output"][0]["content"][0]["text"]
    return Reply([text], answer["status"], usage["output_tokens"], usage["input_tokens"], answer)


def read_message(answer: dict[str, Any]) -> Reply:
    usage = answer["usage"]
    text = answer["content"][0]["text"]
    return Reply([text], answer["stop_reason"], usage["output_tokens"], usage["input_tokens"], answer)


def read_generated(answer: dict[str, Any]) -> Reply:
    details = answer["details"]
    text, reason = answer["generated_text"], details["finish_reason"]
    return Reply([text], reason, details["generated_tokens"], len(details["prefill"]), answer)


ROUTES = {
    route.table: route
    for route in [
        Route("chat", "/v1/chat/completions", "max_tokens", lambda text: {"messages": user(text)}, read_openai),
        Route("completion", "/v1/completions", "max_tokens", lambda text: {"prompt": text}, read_openai),
        Route(
            "response",
            "/v1/responses",
            "max_output_tokens",
            lambda text: {"input": text, "store": False},
            read_response,
        ),
        Route("messages", "/v1/messages", "max_tokens", lambda text: {"messages": user(text)}, read_message),
        Route(
            "parameters",
            "/generate",
            "max_new_tokens",
            lambda text: {"inputs": text, "parameters": {"details": True, "decoder_input_details": True}},
            read_generated,
            holder="parameters",
            greedy={},
            sampled=SAMPLED | {"do_sample": True},
        ),
    ]
}


@dataclass(frozen=True)
class Known:
    """A route's answers without the field under test, and facts about its tokens."""

    greedy: Reply
    sampled: Reply
    several: Reply | None
    # Ends before the limit, with an end token.
    short: Reply
    short_prompt: str
    # A word that occurs once in the greedy text, and the id of its first token.
    word: str
    word_id: int
    # The part of a stop string that the output keeps: all of it in TGI's API, nothing in the others.
    kept: str
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
    return Effect(
        value, lambda reply, known: reply.text == known.before_word + known.kept and reply.reason in END_REASONS
    )


def ends_after(num_tokens: int) -> Effect:
    return Effect(
        lambda _: num_tokens, lambda reply, _: reply.num_output == num_tokens and reply.reason in LENGTH_REASONS
    )


def is_best(reply: Reply, known: Known) -> bool:
    """Checks that the reply is the one of three with the highest mean logprob."""
    means: dict[str, float] = {}
    if known.several:
        for choice in known.several.raw["choices"]:
            logprobs = choice["logprobs"]["token_logprobs"]
            means[choice["text"]] = sum(logprobs) / len(logprobs)
    else:
        # TGI returns the others with the best one.
        details = reply.raw["details"]
        for each in [details | {"generated_text": reply.text}, *details.get("best_of_sequences", [])]:
            logprobs = [token["logprob"] for token in each["tokens"]]
            means[each["generated_text"]] = sum(logprobs) / len(logprobs)
    return len(means) == 3 and reply.text == max(means, key=lambda text: means[text])


def keeps_the_beginning(reply: Reply, _: Known) -> bool:
    """Checks that the second token of the truncated prompt is also the second one of the whole prompt."""
    (choice,) = reply.raw["choices"]
    kept = choice.get("prompt_logprobs") or reply.raw.get("prompt_logprobs") or []
    texts = [token["decoded_token"] for place in kept if place for token in place.values()]
    return texts in ([" sea"], ["system"])


TWO_TOKENS = Effect(lambda _: 2, lambda reply, _: reply.num_prompt == 2)
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
    "do_sample": Effect(lambda _: True, lambda reply, known: reply.text != known.greedy.text, lambda _: {"seed": 7}),
    "watermark": Effect(lambda _: True, lambda reply, known: reply.text != known.greedy.text),
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
    "stop_sequences": ends_at_word(lambda known: [known.word]),
    "stop_token_ids": ends_at_word(lambda known: [known.word_id]),
    "include_stop_str_in_output": Effect(
        lambda _: True,
        lambda reply, known: reply.text == known.before_word + known.word,
        lambda known: {"stop": [known.word]},
    ),
    "max_tokens": ends_after(3),
    "max_completion_tokens": ends_after(3),
    "max_output_tokens": ends_after(3),
    "max_new_tokens": ends_after(3),
    "n_predict": ends_after(3),
    "min_tokens": goes_on_to(11, 11),
    "min_new_tokens": goes_on_to(11, 11),
    "ignore_eos": goes_on_to(NUM_TOKENS, True),
    "ignore_eos_token": goes_on_to(NUM_TOKENS, True),
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
    "truncate_prompt_tokens": TWO_TOKENS,
    "truncate": TWO_TOKENS,
    "truncation_side": Effect(
        lambda _: "right", keeps_the_beginning, lambda _: {"truncate_prompt_tokens": 2, "prompt_logprobs": 0}
    ),
}
# Fields that do not affect sampling. They change the prompt or the form of the answer, or constrain it by a grammar.
OTHERS = {
    *("messages", "prompt", "input", "instructions", "system", "previous_response_id", "store", "model", "tools"),
    *(
        "tool_choice",
        "response_format",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
        "grammar",
        "ebnf",
    ),
    *("structured_outputs", "text", "output_format", "output_config", "parallel_tool_calls", "include_reasoning"),
    *("reasoning_effort", "reasoning", "thinking_token_budget", "reasoning_budget_tokens", "thinking"),
    *("stream", "stream_options", "timeout", "logprobs", "top_logprobs", "return_token_ids"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    *("prompt_logprobs", "details", "decoder_input_details", "top_n_tokens", "echo", "return_full_text", "metadata"),
    *("chat_template_kwargs", "continue_final_message", "add_generation_prompt", "service_tier", "priority"),
    *("cache_salt", "prompt_cache_key", "prompt_cache_retention", "cache_retention", "cache_control"),
    *("messages[].content[].cache_control", "prediction", "speculation", "timings_per_token", "context_management"),
}
SUPPORTED = [
    (row.table, row.field) for row in read_rows(api_pages(ROOT)) if row.table in ROUTES and row.status == "supported"
]
CASES = [(table, name) for table, name in SUPPORTED if name in EFFECTS]


def test_every_supported_field_has_an_effect_or_does_not_affect_sampling() -> None:
    fields = {name for _, name in SUPPORTED}
    assert fields == EFFECTS.keys() | OTHERS
    assert not EFFECTS.keys() & OTHERS


def learn(server: Trunkline, route: Route) -> Known:
    greedy = route.ask(server, PROMPT, route.greedy)
    words = greedy.text.split()
    word = next(" " + word for word in words[3:] if greedy.text.count(" " + word) == 1)
    # Completion routes apply no chat template.
    short_prompt = SHORT
    if route.table in ("completion", "parameters"):
        short_prompt = f"<|im_start|>user\n{SHORT}<|im_end|>\n<|im_start|>assistant\n"
    several = {"n": 3, "logprobs": 0} if route.table == "completion" else None
    (yes,), (no,) = server.tokenize(" yes"), server.tokenize(" no")
    return Known(
        greedy=greedy,
        sampled=route.ask(server, PROMPT, route.sampled),
        several=route.ask(server, PROMPT, route.sampled | several) if several else None,
        short=route.ask(server, short_prompt, route.greedy),
        short_prompt=short_prompt,
        word=word,
        word_id=server.tokenize(word)[0],
        kept=word if route.table == "parameters" else "",
        yes=yes,
        no=no,
    )


@pytest.fixture(scope="module")
def replies(server: Trunkline) -> Iterator[dict[tuple[str, str], tuple[Reply, Known]]]:
    """The replies to each field on each route, requested concurrently."""
    with ThreadPoolExecutor(NUM_SENDERS) as pool:
        known = dict(zip(ROUTES, pool.map(lambda route: learn(server, route), ROUTES.values()), strict=True))

        def ask(case: tuple[str, str]) -> tuple[Reply, Known]:
            (table, name), route = case, ROUTES[case[0]]
            effect, facts = EFFECTS[name], known[table]
            base = route.sampled if effect.is_sampled else route.greedy
            # `max_tokens` counts if it is sent with another name of it, or both are refused.
            other_name: dict[str, Any] = {"max_tokens": None} if name in ("max_completion_tokens", "n_predict") else {}
            fields = base | effect.beside(facts) | other_name | {name: effect.value(facts)}
            return route.ask(server, facts.short_prompt if effect.is_short else PROMPT, fields), facts

        yield dict(zip(CASES, pool.map(ask, CASES), strict=True))


@pytest.mark.parametrize("table", ROUTES)
def test_each_sampling_field_has_its_effect(replies: dict[tuple[str, str], tuple[Reply, Known]], table: str) -> None:
    (known,) = {id(known): known for (of, _), (_, known) in replies.items() if of == table}.values()
    assert known.greedy.text != known.sampled.text and known.short.reason in END_REASONS, known
    wrong = {
        name: (reply.texts, reply.reason, reply.num_output, reply.num_prompt)
        for (of, name), (reply, known) in replies.items()
        if of == table and not EFFECTS[name].check(reply, known)
    }
    assert not wrong, f"greedy: {known.greedy.text!r}, sampled: {known.sampled.text!r}, word: {known.word!r}"
    # Each check must fail without the field. Otherwise it would not notice that the field is accepted and ignored.
    vacuous = {name for name in EFFECTS if (table, name) in CASES and EFFECTS[name].check(plain(name, known), known)}
    assert not vacuous, "these checks also hold without the field"


def plain(name: str, known: Known) -> Reply:
    """Returns the reply to the same request without the field."""
    effect = EFFECTS[name]
    return known.short if effect.is_short else known.sampled if effect.is_sampled else known.greedy
