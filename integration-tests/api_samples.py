"""Sample values for the fields that docs/api lists as supported.

A field that has a numeric range needs none, because the ends of its range are sent.
"""

from __future__ import annotations

from typing import Any

PROMPT = "The sea is"
USER = [{"role": "user", "content": PROMPT}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}
RESPONSE_TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": SCHEMA}
MESSAGES_TOOL = {"type": "custom", "name": "look", "description": "Looks.", "input_schema": SCHEMA}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
# Placeholder for the id of a stored response.
KEPT_RESPONSE = "KEPT_RESPONSE"

SHARED: dict[str, list[Any]] = {
    "model": ["", "tgi", "dummy"],
    # A name of the model, because the server has no adapters.
    "adapter_id": ["tgi"],
    "lora": [[]],
    "max_tokens": [2],
    "top_k": [0, 5],
    "seed": [7, -1, 2**64 - 1],
    "stop": ["xyzzy", ["a", "b"]],
    "include_stop_str_in_output": [True],
    "n": [1, 2],
    "stream": [False, True],
    "timeout": [60.5],
    "stream_options": [{"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}],
    "n_predict": [2, -1],
    "min_tokens": [1],
    "ignore_eos": [True],
    "service_tier": ["auto", "default", "scale", "flex", "priority"],
    "priority": [-1, 0, 1],
    "cache_salt": ["salt"],
    "prompt_cache_key": ["key"],
    "prompt_cache_retention": ["in_memory", "24h"],
    "speculation": [True, False],
    "cache_retention": [{"priority": "low"}, {"priority": "normal"}, {"priority": "high", "ttl_s": 1}],
    "logit_bias": [{}, {"5": -100}, {"5": 100, "6": 0.5}],
    "dry_penalty_last_n": [100, -1],
    "dry_sequence_breakers": [[], ["."]],
    "bad_words": [[], ["the", " of"]],
    "return_token_ids": [True],
    "allowed_token_ids": [[5, 6]],
    "stop_token_ids": [[], [5]],
    "skip_special_tokens": [True, False],
    "truncate_prompt_tokens": [2, -1],
    "truncation_side": ["left", "right"],
    "prompt_logprobs": [2],
    "response_format": [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json_object", "value": SCHEMA},
        {"type": "structural_tag", "format": {"type": "const_string", "value": "yes"}},
    ],
    "guided_json": [SCHEMA, '{"type": "string"}'],
    "guided_regex": ["[a-z]+"],
    "guided_choice": [["yes", "no"]],
    "guided_grammar": ['start: "yes" | "no"', 'root ::= "yes" | "no"'],
    "grammar": ['root ::= "yes" | "no"'],
    "ebnf": ['root ::= "yes" | "no"'],
    "structured_outputs": [
        {"json": SCHEMA},
        {"regex": "[a-z]+"},
        {"choice": ["yes", "no"]},
        {"grammar": 'start: "yes" | "no"'},
        {"structural_tag": {"format": {"type": "const_string", "value": "yes"}}},
        {"json_object": True},
    ],
}
MESSAGES: dict[str, list[Any]] = {
    "messages": [
        USER,
        [*USER, {"role": "assistant", "content": "It is"}],
        USER * 2,
        [*USER, {"role": "system", "content": []}],
    ],
    "model": [""],
    "max_tokens": [2],
    "system": ["Be brief.", [{"type": "text", "text": "Be brief."}]],
    "stop_sequences": [["xyzzy"]],
    "stream": [True],
    "timeout": [60],
    "top_k": [5],
    "cache_control": [{"type": "ephemeral", "ttl": "5m"}, {"type": "ephemeral", "ttl": "1h"}, {"type": "ephemeral"}],
    "seed": [7],
    "cache_salt": ["salt"],
    "tools": [[MESSAGES_TOOL]],
    "tool_choice": [{"type": "auto"}, {"type": "none"}, {"type": "any"}, {"type": "tool", "name": "look"}],
    "thinking": [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, {"type": "disabled"}],
    "output_format": [{"type": "json_schema", "schema": SCHEMA}],
    "output_config": [{"format": {"type": "json_schema", "schema": SCHEMA}}, {"effort": "low"}],
    "context_management": [{}, {"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}],
    "service_tier": ["auto", "standard_only"],
}
# The fields that change the prompt of a response.
RESPONSE: dict[str, list[Any]] = {
    "input": [PROMPT, [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": PROMPT}]}]],
    "instructions": ["Be brief."],
    "previous_response_id": [KEPT_RESPONSE],
    "tools": [[RESPONSE_TOOL]],
    "tool_choice": [
        "none",
        "auto",
        "required",
        {"type": "function", "name": "look"},
        {"type": "allowed_tools", "mode": "required", "tools": [RESPONSE_TOOL]},
    ],
    "reasoning": [{"effort": "low", "summary": "auto"}],
}
OLLAMA: dict[str, list[Any]] = {
    "model": [*SHARED["model"], "tgi:latest"],
    "format": ["", "json", SCHEMA],
    # Without a limit, an output would fill the context.
    "options": [{"num_predict": 2}, {"num_predict": 2, "temperature": 0.5, "num_gpu": 1}],
    "think": [False],
    "stream": [False, True],
    "logprobs": [True, False],
    "top_logprobs": [2],
    "keep_alive": [300, 1.5, 0, -1, "5m", "1h30m", "-1s", "0"],
}
# Table → field → values to send, one request for each.
VECTORS: dict[str, list[Any]] = {
    "input": [PROMPT, [5, 6], [PROMPT, PROMPT], [[5], [6]]],
    "model": SHARED["model"],
    "truncate_prompt_tokens": [3, -1],
}
SAMPLES: dict[str, dict[str, list[Any]]] = {
    "chat": SHARED
    | {
        "messages": [USER, [{"role": "system", "content": "Be brief."}, *USER]],
        "max_completion_tokens": [2],
        "tools": [[CHAT_TOOL], [{"type": "function", "function": {"name": "look", "arguments": SCHEMA}}]],
        "tool_choice": [
            "none",
            "auto",
            "required",
            "look",
            {"type": "function", "function": {"name": "look"}},
            {"function": {"name": "look"}},
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CHAT_TOOL]}},
        ],
        "parallel_tool_calls": [True, False],
        "include_reasoning": [True, False],
        "reasoning_effort": ["none", "high"],
        "thinking_token_budget": [-1, 0, 5],
        "reasoning_budget_tokens": [-1, 0, 5],
        "reasoning": [{}, {"effort": "low", "max_tokens": 5, "exclude": True, "enabled": True}],
        "logprobs": [True],
        "top_logprobs": [2],
        "chat_template_kwargs": [{"enable_thinking": False}],
        "timings_per_token": [True, False],
        "continue_final_message": [True],
        "add_generation_prompt": [True, False],
        "prediction": [
            {"type": "content", "content": "blue"},
            {"type": "content", "content": [{"type": "text", "text": "blue"}]},
        ],
        "messages[].content[].cache_control": MESSAGES["cache_control"],
    },
    "message": {
        "role": ["system", "developer", "user", "assistant", "tool"],
        "content": [PROMPT, [{"type": "text", "text": PROMPT}]],
        "name": ["Ann"],
        "tool_calls": [[CALL]],
        "tool_call_id": ["c1"],
        "reasoning_content": ["Let me think."],
        "reasoning": ["Let me think."],
    },
    "completion": SHARED
    | {
        "prompt": [PROMPT, [5, 6], [[5], [6]]],
        "best_of": [2],
        "echo": [True],
        "suffix": ["", " blue."],
        "logprobs": [2],
        "timings_per_token": [True, False],
    },
    "infill": SHARED
    | {
        "input_prefix": ["", PROMPT],
        "input_suffix": ["", " blue."],
        "prompt": [" v"],
        "input_extra": [[], [{"filename": "a.txt", "text": PROMPT}, {"text": PROMPT}]],
        "return_tokens": [True],
        "timings_per_token": [True],
    },
    "response": {name: SHARED[name] for name in ("model", "top_k", "stream", "timeout", "service_tier")}
    | {name: SHARED[name] for name in ("prompt_cache_key", "prompt_cache_retention", "seed", "cache_salt")}
    | RESPONSE
    | {
        "store": [True, False],
        "max_output_tokens": [2],
        "parallel_tool_calls": [True, False],
        "metadata": [{"a": "b"}],
        "text": [
            {"format": {"type": "text"}},
            {"format": {"type": "json_object"}},
            {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}, "verbosity": "medium"},
        ],
    },
    "input_tokens": RESPONSE | {"model": SHARED["model"]},
    "messages": MESSAGES,
    "count_tokens": {
        name: MESSAGES[name]
        for name in ("messages", "system", "tools", "tool_choice", "thinking", "output_config", "model")
    },
    "generate": {"inputs": [PROMPT], "parameters": [None, {}, {"max_new_tokens": 2}], "stream": [False, True]},
    "parameters": {name: SHARED[name] for name in ("adapter_id", "top_k", "seed", "stop", "timeout")}
    | {
        "max_new_tokens": [2],
        "do_sample": [False, True],
        "min_new_tokens": [1],
        "ignore_eos_token": [True],
        "return_full_text": [True],
        "truncate": [2],
        "details": [True],
        "top_n_tokens": [2],
        "best_of": [2],
        "decoder_input_details": [True],
        "watermark": [True],
        "grammar": [
            {"type": "json", "value": SCHEMA},
            {"type": "json_schema", "value": {"schema": SCHEMA}},
            {"type": "regex", "value": "[a-z]+"},
        ],
    },
    "tokenize": {
        "inputs": [PROMPT],
        "prompt": [PROMPT],
        "content": [PROMPT],
        "messages": [USER],
        "add_special_tokens": [True, False],
        "add_special": [True, False],
        "with_pieces": [True, False],
        "return_token_strs": [True, False],
        "model": SHARED["model"],
    },
    "detokenize": {"tokens": [[], [5, 6]], "model": SHARED["model"]},
    "embeddings": VECTORS | {"encoding_format": ["base64", "float"], "dimensions": [2], "normalize": [False]},
    "embed": {"inputs": VECTORS["input"], "truncate": [True], "normalize": [False], "dimensions": [2]},
    "rerank": {
        "query": [PROMPT],
        "documents": [[{"text": PROMPT}], [PROMPT]],
        "texts": [[PROMPT]],
        "model": SHARED["model"],
        "top_n": [1],
        **{name: [True] for name in ("return_documents", "return_text", "raw_scores", "truncate")},
        "truncate_prompt_tokens": [2, -1],
    },
    "score": {
        **{name: VECTORS[name] for name in ("model", "truncate_prompt_tokens")},
        "text_1": [PROMPT, [PROMPT]],
        "text_2": [PROMPT, [PROMPT]],
    },
    "classify": VECTORS,
    "predict": {
        "inputs": [PROMPT, [PROMPT, PROMPT], [[PROMPT], [PROMPT, PROMPT]]],
        "truncate": [True],
        "raw_scores": [True],
    },
    "ollama_chat": OLLAMA
    | {
        "messages": [[], USER, [*USER, {"role": "assistant", "content": "It is"}]],
        "tools": [[CHAT_TOOL]],
    },
    "ollama_message": {
        "role": ["system", "user", "assistant", "tool", "User"],
        "content": [PROMPT],
        "thinking": ["Let me think."],
        "tool_calls": [[CALL], [{"function": {"name": "look", "arguments": {"a": 1}}}]],
        "tool_name": ["look"],
        "tool_call_id": ["c1"],
    },
    "ollama_generate": OLLAMA
    | {"prompt": ["", PROMPT], "suffix": ["", " blue."], "system": ["", "Be brief."], "raw": [True, False]},
    "ollama_options": {
        "num_predict": [2, -1, -2],
        "num_ctx": [64],
        "top_k": [0, 5],
        "seed": [7, -1],
        "stop": SHARED["stop"],
    },
    "ollama_embed": {
        "input": VECTORS["input"],
        "truncate": [True],
        "dimensions": [2],
        **{name: OLLAMA[name] for name in ("model", "options", "keep_alive")},
    },
    "ollama_embeddings": {"prompt": [PROMPT], **{name: OLLAMA[name] for name in ("model", "options", "keep_alive")}},
    "ollama_show": {
        "model": OLLAMA["model"],
        "name": OLLAMA["model"],
        "verbose": [True, False],
        "options": OLLAMA["options"],
    },
    "vertex": {
        "instances": [[{"inputs": PROMPT, "parameters": {"max_new_tokens": 2}}]],
        "instances[].inputs": [PROMPT],
        "instances[].parameters": [{"max_new_tokens": 2}],
        "instances[].messages": [USER],
    },
    "pin": {"ttl_s": [1]},
}
# Other fields that a field requires: (table, field) → additions to the body.
BESIDE: dict[tuple[str, str], dict[str, Any]] = {
    ("chat", "stream_options"): {"stream": True},
    ("completion", "stream_options"): {"stream": True},
    ("chat", "tool_choice"): {"tools": [CHAT_TOOL]},
    ("response", "tool_choice"): {"tools": [RESPONSE_TOOL]},
    ("input_tokens", "tool_choice"): {"tools": [RESPONSE_TOOL]},
    # Without an end, an output would fill the context.
    ("ollama_options", "num_predict"): {"stop": ["e", "a", " "]},
    ("infill", "n_predict"): {"stop": ["e", "a", " "]},
    ("ollama_chat", "top_logprobs"): {"logprobs": True},
    ("ollama_generate", "top_logprobs"): {"logprobs": True},
    ("ollama_message", "tool_calls"): {"role": "assistant", "content": None},
    ("messages", "tool_choice"): {"tools": [MESSAGES_TOOL]},
    ("count_tokens", "tool_choice"): {"tools": [MESSAGES_TOOL]},
    ("chat", "top_logprobs"): {"logprobs": True},
    ("chat", "continue_final_message"): {"messages": [*USER, {"role": "assistant", "content": "It is"}]},
    ("chat", "messages[].content[].cache_control"): {
        "messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]
    },
    ("message", "role"): {"content": PROMPT, "tool_call_id": "c1"},
    ("message", "tool_calls"): {"role": "assistant", "content": None},
    ("message", "tool_call_id"): {"role": "tool", "content": "blue"},
    ("chat", "max_completion_tokens"): {"max_tokens": None},
    ("parameters", "best_of"): {"do_sample": True},
    ("tokenize", "prompt"): {"inputs": None},
    ("tokenize", "content"): {"inputs": None},
    ("tokenize", "messages"): {"inputs": None},
    ("rerank", "texts"): {"documents": None},
    ("vertex", "instances[].messages"): {"instances": [{"max_tokens": 2}]},
    ("vertex", "instances[].inputs"): {"instances": [{"parameters": {"max_new_tokens": 2}}]},
}
