"""A budget ends reasoning after its tokens, and changes none of them."""

from __future__ import annotations

from typing import Any

from harness import http, serving

BEGUN = {
    "messages": [{"role": "user", "content": "Why is the sea blue?"}, {"role": "assistant", "content": "<think>"}],
    "continue_final_message": True,
    "max_tokens": 48,
    "seed": 3,
}


def test_a_budget_ends_reasoning_and_changes_none_of_its_tokens() -> None:
    with serving("--reasoning-parser", "think") as server:

        def ask(**fields: Any) -> dict[str, Any]:
            answer = http.post(f"{server.base_url}/v1/chat/completions", json=BEGUN | fields, timeout=300)
            return answer.raise_for_status().json()

        free = ask()
        thought = free["choices"][0]["message"]["reasoning_content"]
        unspent = ask(thinking_token_budget=1000)
        assert (unspent["choices"], unspent["usage"]["completion_tokens"]) == (
            free["choices"],
            free["usage"]["completion_tokens"],
        )
        for budget in (0, 1, 9):
            message = ask(thinking_token_budget=budget)["choices"][0]["message"]
            kept = message.get("reasoning_content") or ""
            assert thought.startswith(kept) and bool(kept) == bool(budget)
            assert message["content"]
            tokens = ask(thinking_token_budget=budget, logprobs=True)["choices"][0]["logprobs"]["content"]
            assert "".join(token["token"] for token in tokens[:budget]) == kept
            assert "".join(token["token"] for token in tokens[budget:]).startswith("</think>")
            constrained = ask(thinking_token_budget=budget, guided_choice=["because"])["choices"][0]
            assert constrained["message"]["content"] == "because"
            assert (constrained["message"].get("reasoning_content") or "") == kept
