"""Measures transformers on the same weights: compiled `generate` with a static cache, and continuous batching."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import transformers

from gpu.probes import wait


def load(model: Path, device: str) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(device).eval()


@torch.inference_mode()
def measure_static(model: Any, batch: int, context: int, num_tokens: int, device: str) -> dict[str, Any]:
    """Measures decode of compiled `generate` with a static cache, as the time of all tokens minus that of one."""
    ids = torch.randint(2, model.config.vocab_size, (batch, context), device=device)
    mask = torch.ones_like(ids)

    def seconds(count: int) -> float:
        wait(device)
        began = time.perf_counter()
        model.generate(
            ids, attention_mask=mask, min_new_tokens=count, max_new_tokens=count, do_sample=False,
            cache_implementation="static", pad_token_id=0,
        )  # fmt: skip
        wait(device)
        return time.perf_counter() - began

    for count in (num_tokens, 1):
        seconds(count)
    step = (seconds(num_tokens) - seconds(1)) / (num_tokens - 1)
    return {"batch": batch, "context": context, "step_ms": step * 1e3, "tokens_per_s": batch / step}


@torch.inference_mode()
def measure_continuous(model: Any, num_requests: int, num_prompt: int, num_output: int) -> dict[str, Any]:
    """Measures concurrent requests through `generate_batch`."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(2, model.config.vocab_size, (num_requests, num_prompt), generator=generator).tolist()
    config = transformers.GenerationConfig(
        max_new_tokens=num_output, min_new_tokens=num_output, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    model.generate_batch(inputs[:2], generation_config=config)
    began = time.perf_counter()
    outputs = model.generate_batch(inputs, generation_config=config)
    seconds = time.perf_counter() - began
    num_tokens = sum(len(output.generated_tokens) for output in outputs.values())
    return {
        "requests": num_requests,
        "prompt_tokens": num_prompt,
        "output_tokens": num_output,
        "tokens_per_s": num_tokens / seconds,
    }
