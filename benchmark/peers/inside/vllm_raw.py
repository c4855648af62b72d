"""vLLM without HTTP. Steps the engine until all requests are finished."""

import sys

from raw import serve
from vllm import LLM, SamplingParams


def main():
    folder, context, max_sequences = sys.argv[1], *map(int, sys.argv[2:])
    model = LLM(folder, max_model_len=context, max_num_seqs=max_sequences, dtype="bfloat16", enable_prefix_caching=True)
    engine = model.llm_engine
    calls = 0

    def generate(prompts, max_tokens, clock):
        nonlocal calls
        calls += 1
        params = SamplingParams(max_tokens=max_tokens, min_tokens=max_tokens, ignore_eos=True, temperature=0)
        for i, ids in enumerate(prompts):
            engine.add_request(f"{calls}-{i}", {"prompt_token_ids": ids}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                i = int(output.request_id.split("-")[1])
                for _ in range(len(output.outputs[0].token_ids) - len(clock.events[i])):
                    clock.token(i)

    serve(generate)


if __name__ == "__main__":
    main()
