"""transformers without HTTP: one forward pass over the prompts, then one greedy pass per output token."""

import sys

import torch
from raw import serve
from transformers import AutoModelForCausalLM, DynamicCache


def main():
    folder, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)

    @torch.inference_mode()
    def generate(prompts, max_tokens, clock):
        # All prompts of a call have the same length, so none is padded.
        ids, cache = torch.tensor(prompts), DynamicCache(config=model.config)
        for _ in range(max_tokens):
            logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            ids = logits[:, -1].argmax(-1, keepdim=True)
            for i in range(len(prompts)):
                clock.token(i)

    serve(generate)


if __name__ == "__main__":
    main()
