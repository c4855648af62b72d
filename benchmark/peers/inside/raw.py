"""The loop of an engine that is measured without HTTP, in the peer's own environment.

Each line of input is {"prompts": [[token ids]], "max_tokens": n}. Each line of output is {"events": [[seconds]]}, with
the time of each output token since the start of the call.
"""

import json
import sys
import time


class Clock:
    """Records the time of each prompt's output tokens."""

    def __init__(self, num_prompts):
        self.begin = time.monotonic()
        self.events = [[] for _ in range(num_prompts)]

    def token(self, prompt_idx, now=None):
        self.events[prompt_idx].append((now or time.monotonic()) - self.begin)


def serve(generate):
    """Calls `generate(prompts, max_tokens, clock)` for each line of stdin until it closes."""
    answers = sys.stdout
    for line in sys.stdin:
        request = json.loads(line)
        clock = Clock(len(request["prompts"]))
        generate(request["prompts"], request["max_tokens"], clock)
        answers.write(json.dumps({"events": clock.events}) + "\n")
        answers.flush()
