"""The loop of an engine that is measured without HTTP; runs in the peer's own environment.

One line of JSON in: {"prompts": [[token ids]], "max_tokens": n}. One out: {"events": [[seconds at which each output
token was there, from the start of the call]]}.
"""

import json
import sys
import time


class Clock:
    """Collects when the output tokens of each prompt came."""

    def __init__(self, num_prompts):
        self.begin = time.monotonic()
        self.events = [[] for _ in range(num_prompts)]

    def token(self, prompt_idx, now=None):
        self.events[prompt_idx].append((now or time.monotonic()) - self.begin)


def serve(generate):
    """Calls `generate(prompts, max_tokens, clock)` for each line of stdin until it closes."""
    answers = sys.stdout
    for line in sys.stdin:
        asked = json.loads(line)
        clock = Clock(len(asked["prompts"]))
        generate(asked["prompts"], asked["max_tokens"], clock)
        answers.write(json.dumps({"events": clock.events}) + "\n")
        answers.flush()
