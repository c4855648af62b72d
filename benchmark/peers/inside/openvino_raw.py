"""OpenVINO GenAI without HTTP. Adds requests and steps the pipeline until they are finished."""

import sys

from openvino_engine import Engine, new_tokens
from raw import serve


def main():
    gguf, cache_gb, max_sequences, threads = sys.argv[1], *map(int, sys.argv[2:])
    engine = Engine(gguf, cache_gb, max_sequences, threads)

    def generate(prompts, max_tokens, clock):
        handles = [engine.add(ids, max_tokens) for ids in prompts]
        while engine.pipeline.has_non_finished_requests():
            engine.pipeline.step()
            for i, handle in enumerate(handles):
                for _ in new_tokens(handle):
                    clock.token(i)

    serve(generate)


if __name__ == "__main__":
    main()
